//! The check on the host that runs the tests, with containers that really run.
//!
//! One test after the other, because each compares the host before and after.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use probe::{Broken, HostPaths, Report, Row, Runtime, Settings, Verdict, check, runtimes};

fn settings(root: &Path) -> Settings {
    Settings {
        root: root.join("longshore"),
        cni_conf_dir: "/etc/cni/net.d".into(),
        cni_bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
        runtimes: Vec::new(),
        driver: None,
        min_free_bytes: 0,
        limit: Duration::from_secs(10),
    }
}

fn host() -> HostPaths {
    HostPaths::real(OsStr::new(""))
}

/// What a check could leave: our directories, mounts and cgroups, and marked processes.
fn traces(root: &Path) -> Vec<String> {
    let mut traces: Vec<_> =
        fs::read_dir(root).unwrap().map(|entry| format!("{:?}", entry.unwrap().path())).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = root.to_str().unwrap();
    traces.extend(mounts.lines().filter(|line| line.contains(root)).map(str::to_owned));
    let ours = format!("longshore-check-{}-", std::process::id());
    let mut dirs = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            }
        }
        if dir.to_str().is_some_and(|path| path.contains(&ours)) {
            traces.push(format!("{dir:?}"));
        }
    }
    let mark = format!("LONGSHORE_CHECK={}-", std::process::id());
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.windows(mark.len()).any(|window| window == mark.as_bytes()) {
            traces.push(format!("process {:?}", entry.file_name()));
        }
    }
    traces
}

#[track_caller]
fn row<'a>(report: &'a Report, name: &str) -> &'a Row {
    report.rows.iter().find(|row| row.name == name).unwrap()
}

/// `settings` with this one runtime.
fn only(program: impl Into<PathBuf>, settings: Settings) -> Settings {
    Settings { runtimes: vec![("mine".to_owned(), program.into())], ..settings }
}

fn probed(host: &HostPaths, settings: &Settings) -> Runtime {
    runtimes(host, settings).remove(0)
}

#[test]
fn host_is_checked_and_left_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED host_is_checked_and_left_as_it_was: needs root");
        let report = check(&host(), &settings(root.path()));
        assert_eq!(row(&report, "privileges").verdict, Verdict::Fail);
        assert_eq!(row(&report, "overlayfs").remedy.as_deref(), Some("run as root"));
        return;
    }
    let begin = tokio::time::Instant::now();
    let report = check(&host(), &settings(root.path()));
    eprintln!("{}\n{:?}", report.table(100, probe::Paint::Plain), begin.elapsed());
    assert_eq!(traces(root.path()), Vec::<String>::new());
    assert_eq!(row(&report, "overlayfs").verdict, Verdict::Ok);
    let names: BTreeSet<_> = report.rows.iter().map(|row| &row.name).collect();
    assert_eq!(names.len(), report.rows.len(), "a name occurs twice in {names:?}");
    let json = report.json();
    assert_eq!(json["rows"].as_array().unwrap().len(), report.rows.len());

    a_container_really_runs_from_either_shell(root.path());
    litter_is_swept(root.path());
}

fn a_container_really_runs_from_either_shell(root: &Path) {
    let Some(runc) =
        ["/usr/sbin/runc", "/usr/bin/runc"].into_iter().find(|p| Path::new(p).exists())
    else {
        eprintln!("SKIPPED the containers: no runc");
        return;
    };
    let settings = only(runc, settings(root));
    let runtime = probed(&host(), &settings);
    assert!(runtime.works.is_ok(), "{runtime:?}");
    assert!(runtime.version.is_some());
    // No busybox on this path: the host's own shell is used.
    let bare = HostPaths { path_dirs: Vec::new(), ..host() };
    let runtime = probed(&bare, &settings);
    assert!(runtime.works.is_ok(), "{runtime:?}");
    assert_eq!(traces(root), Vec::<String>::new());
}

fn litter_is_swept(root: &Path) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    for (program, hung) in [("leaves-litter", "container"), ("hangs-in-create", "create")] {
        let limit = Duration::from_millis(1000);
        let settings = Settings { limit, ..only(programs.join(program), settings(root)) };
        let runtime = probed(&host(), &settings);
        match (&runtime.works, hung) {
            (Err(Broken::ContainerHung(_)), "container") => {}
            (Err(Broken::Hung { step, .. }), hung) => assert_eq!(*step, hung),
            other => panic!("{program}: {other:?}"),
        }
        assert_eq!(traces(root), Vec::<String>::new(), "{program}");
    }
}
