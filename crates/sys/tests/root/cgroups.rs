use std::{
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::io::Errno;
use sys::cgroup::{Cgroup, Hierarchy, Layout, LayoutMode, Membership, Version};

const SOON: Duration = Duration::from_secs(5);
const ALL: [&str; 8] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "blkio", "io"];

/// Our group carries the name of the test's directory, so that the runner finds leaks.
fn group(dir: &Path) -> PathBuf {
    Path::new("/").join(dir.file_name().unwrap())
}

/// Directories of groups with this name, in any hierarchy.
pub(crate) fn named(name: &str) -> Vec<PathBuf> {
    let Ok(layout) = Layout::detect() else { return Vec::new() };
    let dirs = layout.hierarchies().into_iter().map(|(h, _)| h.dir(&Path::new("/").join(name)));
    dirs.filter(|dir| dir.exists()).collect()
}

/// The v2 side of the host as if it were all there is: on a hybrid host too it can
/// freeze and kill.
fn v2_only() -> Option<Layout> {
    let unified: Hierarchy = Layout::detect().unwrap().unified?;
    Some(Layout {
        mode: LayoutMode::V2,
        controllers: [].into(),
        named: Vec::new(),
        unified: Some(unified),
    })
}

/// A shell and two children of its, all asleep, all in the group.
fn sleepers(cgroup: &Cgroup) -> Child {
    let mut child = Command::new("sh")
        .args(["-c", "read go; sleep 300 & sleep 300; :"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let added = cgroup.add(child.id());
    // It goes on at the end of its input.
    drop(child.stdin.take());
    let all_there = || cgroup.pids().is_ok_and(|pids| pids.len() == 3);
    let there = added.is_ok() && (0..1000).any(|_| all_there() || pause());
    if !there {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("{added:?}, {:?}", cgroup.pids());
    }
    child
}

fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(2));
    false
}

pub(crate) fn this_host_has_a_layout(_: &Path) {
    let layout = Layout::detect().unwrap();
    assert!(!layout.hierarchies().is_empty());
    let root = Cgroup::open(&layout, Path::new("/")).unwrap().unwrap();
    assert!(root.paths().count() == layout.hierarchies().len());
    let own = Membership::of(std::process::id()).unwrap();
    assert!(own.iter().all(|membership| membership.path.is_absolute()));
    for (name, hierarchy) in &layout.controllers {
        assert_eq!(root.version_of(name), Some(hierarchy.version), "{name}");
    }
}

pub(crate) fn a_group_lives_and_dies(dir: &Path) {
    let layout = Layout::detect().unwrap();
    let cgroup = Cgroup::create(&layout, &group(dir).join("inner"), &ALL).unwrap();
    let mut child = sleepers(&cgroup);
    let there = |name: &str| layout.controllers.contains_key(name);

    assert!(cgroup.cpu().unwrap().is_none_or(|cpu| cpu.usage_ns > 0));
    assert_eq!(cgroup.cpu().unwrap().is_some(), there("cpuacct") || there("cpu"));
    let memory = cgroup.memory().unwrap();
    assert!(memory.is_none_or(|m| m.usage > 0 && m.working_set <= m.usage && m.limit.is_none()));
    assert_eq!(memory.is_some(), there("memory"));
    assert_eq!(cgroup.oom_kills().unwrap().unwrap_or(0), 0);
    assert!(cgroup.pids_usage().unwrap().is_none_or(|p| p.current == 3 && p.limit.is_none()));
    assert!(cgroup.io().unwrap().is_some() || !there("blkio") && !there("io"));
    if there("pids") {
        cgroup.write("pids", "pids.max", "64").unwrap();
        assert_eq!(cgroup.pids_usage().unwrap().unwrap().limit, Some(64));
    }

    cgroup.kill(SOON).unwrap();
    assert_eq!(cgroup.pids().unwrap(), []);
    child.wait().unwrap();
    cgroup.remove(SOON).unwrap();
    let outer = Cgroup::open(&layout, &group(dir)).unwrap().unwrap();
    outer.remove(SOON).unwrap();
    assert!(Cgroup::open(&layout, &group(dir)).unwrap().is_none());
}

pub(crate) fn v2_groups_freeze_and_die(dir: &Path) {
    let Some(layout) = v2_only() else { return println!("SKIPPED: no v2 hierarchy") };
    let cgroup = Cgroup::create(&layout, &group(dir), &[]).unwrap();
    assert_eq!(cgroup.version_of("memory"), None);
    let mut child = sleepers(&cgroup);
    cgroup.freeze(true, SOON).unwrap();
    cgroup.freeze(true, SOON).unwrap();
    cgroup.freeze(false, SOON).unwrap();
    cgroup.freeze(true, SOON).unwrap();
    cgroup.kill(SOON).unwrap();
    child.wait().unwrap();
    let pressure = cgroup.cpu_pressure().unwrap();
    assert!(pressure.is_none_or(|p| p.some.avg10 >= 0.0));
    cgroup.remove(SOON).unwrap();
}

/// One at a time by signals, frozen as v1 freezes where there is such a freezer.
pub(crate) fn kills_reach_what_is_frozen(dir: &Path) {
    let layout = Layout::detect().unwrap();
    let cgroup = Cgroup::create(&layout, &group(dir), &["pids", "freezer"]).unwrap();
    let mut child = sleepers(&cgroup);
    cgroup.freeze(true, SOON).unwrap();
    cgroup.kill(SOON).unwrap();
    child.wait().unwrap();
    cgroup.remove(SOON).unwrap();
}

/// A SIGKILL that came before reaches a process when its group is thawed; to thaw what is not
/// frozen changes nothing.
pub(crate) fn a_thawed_group_dies_of_an_earlier_kill(dir: &Path) {
    let v2 = v2_only();
    for layout in [Layout::detect().unwrap()].into_iter().chain(v2) {
        let cgroup = Cgroup::create(&layout, &group(dir), &["pids", "freezer"]).unwrap();
        let mut child = sleepers(&cgroup);
        cgroup.thaw().unwrap();
        cgroup.freeze(true, SOON).unwrap();
        cgroup.thaw().unwrap();
        cgroup.freeze(false, SOON).expect("it runs again");
        cgroup.freeze(true, SOON).unwrap();
        child.kill().unwrap();
        cgroup.thaw().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        cgroup.kill(SOON).unwrap();
        cgroup.thaw().unwrap();
        cgroup.remove(SOON).unwrap();
    }
}

/// Set for a process that is to be [`restless`].
pub(crate) const RESTLESS: &str = "SYS_ROOT_RESTLESS";

/// Becomes itself again and again, each time out of several threads.
pub(crate) fn restless() -> ! {
    for _ in 0..8 {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(100)));
    }
    panic!("{}", Command::new(std::env::current_exe().unwrap()).exec());
}

/// The one that becomes another waits for the end of the others, which v1 holds when they are
/// frozen.
pub(crate) fn threads_that_become_another_program_freeze(dir: &Path) {
    let layout = Layout::detect().unwrap();
    let cgroup = Cgroup::create(&layout, &group(dir), &["pids", "freezer"]).unwrap();
    let mut restless = Command::new(std::env::current_exe().unwrap());
    let mut child = restless.env(RESTLESS, "1").stdin(Stdio::null()).spawn().unwrap();
    cgroup.add(child.id()).unwrap();
    let frozen = (0..300).try_for_each(|_| {
        cgroup.freeze(true, SOON)?;
        cgroup.freeze(false, SOON)
    });
    cgroup.kill(SOON).unwrap();
    child.wait().unwrap();
    cgroup.remove(SOON).unwrap();
    frozen.unwrap();
}

pub(crate) fn the_oom_killer_is_counted(dir: &Path) {
    let layout = Layout::detect().unwrap();
    let limit = match layout.version_of("memory") {
        Some(Version::V1) => "memory.limit_in_bytes",
        Some(Version::V2) => "memory.max",
        None => return println!("SKIPPED: no memory controller"),
    };
    let cgroup = Cgroup::create(&layout, &group(dir), &["memory", "pids"]).unwrap();
    cgroup.write("memory", limit, "16777216").unwrap();
    assert_eq!(cgroup.memory().unwrap().unwrap().limit, Some(16 << 20));
    // `tail` keeps its input in memory until a line ends, which in /dev/zero none does.
    let mut child = Command::new("sh")
        .args(["-c", "read go; exec tail /dev/zero"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    cgroup.add(child.id()).unwrap();
    drop(child.stdin.take());
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert_eq!(cgroup.oom_kills().unwrap(), Some(1));
    cgroup.remove(SOON).unwrap();
}

pub(crate) fn groups_that_are_gone_say_so(dir: &Path) {
    let layout = Layout::detect().unwrap();
    let path = group(dir);
    let old = Cgroup::create(&layout, &path, &ALL).unwrap();
    let again = Cgroup::open(&layout, &path).unwrap().unwrap();
    again.remove(SOON).unwrap();
    let again = Cgroup::create(&layout, &path, &ALL).unwrap();
    // The handle does not take the new group for the old one.
    assert_eq!(old.memory().unwrap(), None);
    assert!(old.add(std::process::id()).unwrap_err().is(Errno::NOENT));
    old.remove(SOON).unwrap();
    again.remove(SOON).unwrap();
}

pub(crate) fn busy_groups_are_not_removed(dir: &Path) {
    let layout = Layout::detect().unwrap();
    let cgroup = Cgroup::create(&layout, &group(dir), &["memory", "pids"]).unwrap();
    let mut child = sleepers(&cgroup);
    let error = cgroup.remove(Duration::from_millis(20)).unwrap_err();
    assert!(error.is(Errno::BUSY), "{error}");
    let cgroup = Cgroup::open(&layout, &group(dir)).unwrap().unwrap();
    cgroup.kill(SOON).unwrap();
    child.wait().unwrap();
    cgroup.remove(SOON).unwrap();
}
