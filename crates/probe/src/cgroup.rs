//! Which cgroups the host has, who owns them, and what is missing.
//!
//! A cgroup2 mount does not mean v2: what counts is the file system mounted on
//! `/sys/fs/cgroup` itself. A controller belongs to one hierarchy at a time, v1 or v2;
//! on a *hybrid* host a few may sit in v2 while the rest are v1, and some
//! OCI runtimes refuse exactly that.

use std::path::{Path, PathBuf};

use sys::mount::Entry;

use crate::{
    host::{Driver, HostPaths, Settings, is_read_only, read},
    report::Row,
};

const GROUP: &str = "cgroup";
const ROOT: &str = "/sys/fs/cgroup";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    V1,
    Hybrid,
    V2,
}

/// The hierarchies of a host.
#[derive(Debug)]
pub(crate) struct Hierarchies {
    /// `None` when no hierarchy is mounted at all.
    pub(crate) mode: Option<Mode>,
    /// Mount points with the controllers at each, as the host names them (`/sys/…`).
    pub(crate) v1: Vec<(PathBuf, Vec<String>)>,
    pub(crate) v2: Option<(PathBuf, Vec<String>)>,
    /// A hierarchy that cannot be written to.
    pub(crate) read_only: Option<PathBuf>,
}

/// Name in v1, name in v2 (empty: the core of v2 does it), needed, what is lost without it.
const CONTROLLERS: [(&str, &str, bool, &str); 9] = [
    ("cpu", "cpu", true, "CPU limits and shares have no effect"),
    ("cpuacct", "", true, "the CPU time of containers is unknown"),
    ("cpuset", "cpuset", true, "containers cannot be pinned to CPUs"),
    ("memory", "memory", true, "memory limits have no effect"),
    ("pids", "pids", true, "a fork bomb in a container takes the host down"),
    ("devices", "", true, "containers could use every device of the host"),
    ("freezer", "", true, "containers cannot be paused"),
    ("blkio", "io", false, "I/O limits and statistics are missing"),
    ("hugetlb", "hugetlb", false, "huge page limits have no effect"),
];

pub(crate) fn rows(host: &HostPaths, settings: &Settings, found: &Hierarchies) -> Vec<Row> {
    let mut rows = vec![mode(found)];
    if found.mode.is_some() {
        rows.extend(CONTROLLERS.iter().filter_map(|&controller| row(found, controller)));
    }
    rows.push(driver(host, settings));
    rows
}

// === impl Hierarchies ===

impl Hierarchies {
    pub(crate) fn find(host: &HostPaths) -> Self {
        let mounts = host.mounts();
        let below: Vec<_> = mounts.below(Path::new(ROOT)).collect();
        let v2 = below.iter().find(|mount| mount.fs_type == "cgroup2").map(|mount| {
            let list = in_sys(host, &mount.point).join("cgroup.controllers");
            let list = read(&list).unwrap_or_default();
            (mount.point.clone(), list.split_whitespace().map(str::to_owned).collect())
        });
        let v1: Vec<_> =
            below.iter().filter(|mount| mount.fs_type == "cgroup").map(|mount| v1(mount)).collect();
        let mode = match (&v2, v1.is_empty()) {
            (Some((point, _)), _) if point == Path::new(ROOT) => Some(Mode::V2),
            (Some(_), _) => Some(Mode::Hybrid),
            (None, false) => Some(Mode::V1),
            (None, true) => None,
        };
        let read_only = below
            .iter()
            .find(|mount| mount.fs_type.starts_with("cgroup") && is_read_only(mount))
            .map(|mount| mount.point.clone());
        Self { mode, v1, v2, read_only }
    }

    /// Where a container's cgroup directories may be, in this process's view.
    pub(crate) fn points<'a>(&'a self, host: &'a HostPaths) -> impl Iterator<Item = PathBuf> + 'a {
        self.v1.iter().chain(&self.v2).map(|(point, _)| in_sys(host, point))
    }

    /// Controllers that make crun refuse the host.
    pub(crate) fn stray(&self) -> Option<&[String]> {
        match (self.mode, &self.v2) {
            (Some(Mode::Hybrid), Some((_, list))) if !list.is_empty() => Some(list),
            _ => None,
        }
    }

    /// The two ways out of the hybrid trap, both checked on such a host.
    pub(crate) fn stray_remedy(&self) -> Option<String> {
        let (stray, (unified, _)) = (self.stray()?, self.v2.as_ref()?);
        let mounts: Vec<_> = stray
            .iter()
            .map(|name| {
                let at = Path::new(ROOT).join(if name == "io" { "blkio" } else { name });
                let option = if name == "io" { "blkio" } else { name };
                let at = at.display();
                format!("mkdir {at} && mount -t cgroup -o {option} none {at}")
            })
            .collect();
        Some(format!(
            "move the controllers back to v1 while no v2 cgroup uses them ({}), or unmount {}; \
             best, boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)",
            mounts.join("; "),
            unified.display(),
        ))
    }
}

/// A v1 mount names its controllers among its superblock options, or a name of its own.
fn v1(mount: &Entry) -> (PathBuf, Vec<String>) {
    let options = mount.super_options.split(',');
    let controllers = options
        .filter(|option| CONTROLLERS.iter().any(|(name, ..)| name == option))
        .map(str::to_owned)
        .collect();
    (mount.point.clone(), controllers)
}

/// `/sys/…` as the host says it, below the tree we were given.
fn in_sys(host: &HostPaths, point: &Path) -> PathBuf {
    point.strip_prefix("/sys").map_or_else(|_| point.to_owned(), |tail| host.sys.join(tail))
}

fn mode(found: &Hierarchies) -> Row {
    let row = |text: &str| Row::ok(GROUP, "mode", text);
    let v1_reason = "the kubelet refuses cgroup v1 from 1.35 on unless failCgroupV1 is false";
    let v1_remedy = "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)";
    if let Some(point) = &found.read_only {
        return row("read-only")
            .fail(format!("{} is mounted read-only: no container can start", point.display()))
            .remedy(format!("mount -o remount,rw {}", point.display()));
    }
    match found.mode {
        None => row("none")
            .fail(format!("no cgroup hierarchy is mounted below {ROOT}"))
            .remedy(format!("mount -t cgroup2 none {ROOT}")),
        Some(Mode::V2) => row("v2"),
        Some(Mode::V1) => row("v1").warn(v1_reason).remedy(v1_remedy),
        Some(Mode::Hybrid) => match (found.stray(), found.stray_remedy()) {
            (Some(stray), Some(remedy)) => {
                row(&format!("hybrid, with {} in v2", stray.join(", ")))
                    .warn(format!("crun refuses a hybrid host whose v2 side has controllers, runc takes it; {v1_reason}"))
                    .remedy(remedy)
            }
            _ => row("hybrid, no controller in v2").warn(v1_reason).remedy(v1_remedy),
        },
    }
}

fn row(found: &Hierarchies, controller: (&str, &str, bool, &str)) -> Option<Row> {
    let (old, new, needed, lost) = controller;
    let name = if found.mode == Some(Mode::V2) { new } else { old };
    if name.is_empty() {
        return None;
    }
    let has = |list: &[String], name| list.iter().any(|have| have == name);
    let in_v1 = found.v1.iter().find(|(_, list)| has(list, old));
    let in_v2 = found.v2.as_ref().filter(|(_, list)| has(list, new));
    let row = Row::ok(GROUP, name, "absent");
    let place = match (in_v1, in_v2) {
        (Some((point, _)), _) if found.mode != Some(Mode::V2) => Some(point),
        (_, Some((point, _))) => Some(point),
        _ => None,
    };
    if let Some(point) = place {
        return Some(Row { found: point.display().to_string(), ..row });
    }
    let remedy = match found.mode {
        Some(Mode::V2) => format!("enable it at boot (cgroup_enable={name})"),
        _ => format!("mkdir -p {ROOT}/{name} && mount -t cgroup -o {name} none {ROOT}/{name}"),
    };
    Some(if needed { row.fail(lost) } else { row.warn(lost) }.remedy(remedy))
}

fn driver(host: &HostPaths, settings: &Settings) -> Row {
    let systemd = host.systemd_runs();
    let driver = settings.driver.unwrap_or_else(|| host.default_driver());
    let row = Row::ok(GROUP, "driver", driver.name());
    match (driver, systemd) {
        (Driver::Systemd, false) => row
            .fail("the cgroup driver is set to systemd, which does not run here")
            .remedy("set the cgroup driver to cgroupfs, here and in the kubelet"),
        (Driver::Cgroupfs, true) => row
            .warn("systemd runs here and owns the cgroup tree: two writers disturb each other")
            .remedy("set the cgroup driver to systemd, here and in the kubelet"),
        _ => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect},
    };

    const V1: [&str; 9] = [
        "/sys/fs/cgroup tmpfs rw rw",
        "/sys/fs/cgroup/cpu,cpuacct cgroup rw rw,cpu,cpuacct",
        "/sys/fs/cgroup/cpuset cgroup rw rw,cpuset",
        "/sys/fs/cgroup/memory cgroup rw rw,memory",
        "/sys/fs/cgroup/devices cgroup rw rw,devices",
        "/sys/fs/cgroup/freezer cgroup rw rw,freezer",
        "/sys/fs/cgroup/blkio cgroup rw rw,blkio",
        "/sys/fs/cgroup/pids cgroup rw rw,pids",
        "/sys/fs/cgroup/systemd cgroup rw rw,name=systemd",
    ];
    const UNIFIED: &str = "/sys/fs/cgroup/unified cgroup2 rw rw";

    #[track_caller]
    fn check(fake: &FakeHost, name: &str, want: Verdict, text: &str) {
        let found = Hierarchies::find(&fake.paths);
        expect(&rows(&fake.paths, &fake.settings(), &found), name, want, text);
    }

    fn hybrid(controllers: &str) -> FakeHost {
        let fake = FakeHost::good();
        let mut mounts = V1.to_vec();
        mounts.push(UNIFIED);
        fake.mounts(&mounts);
        fake.write("sys/fs/cgroup/unified/cgroup.controllers", controllers);
        fake
    }

    #[test]
    fn good_host_is_ok() {
        let fake = FakeHost::good();
        let found = Hierarchies::find(&fake.paths);
        let rows = rows(&fake.paths, &fake.settings(), &found);
        assert!(rows.iter().all(|row| row.verdict == Verdict::Ok), "{rows:?}");
        // Devices and freezer are no controllers of v2.
        assert_eq!(rows.iter().filter(|row| row.found == ROOT).count(), 6);
    }

    #[test]
    fn mode_fails() {
        let fake = FakeHost::good();
        check(&fake, "mode", Verdict::Ok, "v2");
        fake.mounts(&V1);
        check(&fake, "mode", Verdict::Warn, "failCgroupV1");
        fake.mounts(&["/ ext4 rw rw"]);
        check(&fake, "mode", Verdict::Fail, "no cgroup hierarchy");
        fake.mounts(&["/sys/fs/cgroup cgroup2 ro rw"]);
        check(&fake, "mode", Verdict::Fail, "remount,rw /sys/fs/cgroup");
        fake.remove("proc/self/mountinfo");
        check(&fake, "mode", Verdict::Fail, "no cgroup hierarchy");
    }

    #[test]
    fn hybrid_trap_is_explained_both_ways() {
        let trap = hybrid("hugetlb\n");
        check(&trap, "mode", Verdict::Warn, "hybrid, with hugetlb in v2");
        check(&trap, "mode", Verdict::Warn, "runc takes it");
        check(
            &trap,
            "mode",
            Verdict::Warn,
            "mount -t cgroup -o hugetlb none /sys/fs/cgroup/hugetlb",
        );
        check(&trap, "mode", Verdict::Warn, "unmount /sys/fs/cgroup/unified");
        check(&trap, "hugetlb", Verdict::Ok, "/sys/fs/cgroup/unified");

        let harmless = hybrid("\n");
        check(&harmless, "mode", Verdict::Warn, "no controller in v2");
        check(&harmless, "hugetlb", Verdict::Warn, "huge page limits");
    }

    #[test]
    fn each_v1_controller_fails_when_absent() {
        for (name, _, needed, lost) in CONTROLLERS {
            let fake = FakeHost::good();
            let mounts: Vec<_> = V1
                .iter()
                .map(|mount| mount.replace(&format!(",{name},"), ",").to_owned())
                .map(|mount| {
                    mount.strip_suffix(&format!(",{name}")).map_or(mount.clone(), str::to_owned)
                })
                .collect();
            fake.mounts(&mounts.iter().map(String::as_str).collect::<Vec<_>>());
            check(&fake, name, if needed { Verdict::Fail } else { Verdict::Warn }, lost);
        }
    }

    #[test]
    fn each_v2_controller_fails_when_absent() {
        for (_, name, needed, lost) in CONTROLLERS.iter().filter(|(_, name, ..)| !name.is_empty()) {
            let fake = FakeHost::good();
            let all = "cpuset cpu io memory hugetlb pids";
            let list: Vec<_> = all.split(' ').filter(|have| have != name).collect();
            fake.write("sys/fs/cgroup/cgroup.controllers", &list.join(" "));
            check(&fake, name, if *needed { Verdict::Fail } else { Verdict::Warn }, lost);
        }
    }

    #[test]
    fn driver_fails() {
        let fake = FakeHost::good();
        check(&fake, "driver", Verdict::Ok, "systemd");
        let found = Hierarchies::find(&fake.paths);
        let ask = |driver| Settings { driver: Some(driver), ..fake.settings() };
        let rows_for = |driver| rows(&fake.paths, &ask(driver), &found);
        expect(&rows_for(Driver::Cgroupfs), "driver", Verdict::Warn, "two writers");
        fake.remove("run/systemd/system");
        check(&fake, "driver", Verdict::Ok, "cgroupfs");
        expect(&rows_for(Driver::Systemd), "driver", Verdict::Fail, "does not run here");
    }
}
