//! The program as `make conformance` calls it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_conformance");

#[test]
fn help_names_what_can_be_chosen() {
    let output = Command::new(PROGRAM).arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for flag in ["--longshore", "--handler", "--focus", "--bless", "--websocket"] {
        assert!(text.contains(flag), "{flag} is not in\n{text}");
    }
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    if !testkit::is_root() {
        return testkit::skip("a_daemon_that_is_not_there_is_named", "needs root");
    }
    let output =
        Command::new(PROGRAM).args(["--longshore", "/nowhere/longshore"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(err.contains("/nowhere/longshore"), "{err}");
}

/// Waits until `done` holds, or the program has ended.
fn eventually(child: &mut Child, done: impl Fn() -> bool) -> bool {
    for _ in 0..1200 {
        if done() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

/// Processes whose command line names `dir`, and mounts below it.
fn leftovers(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let command = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        command.contains(dir).then_some(command)
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(dir)).map(str::to_owned);
    processes.chain(mounts).collect()
}

#[test]
fn an_interrupted_run_removes_its_pods() {
    let name = "an_interrupted_run_removes_its_pods";
    let longshore = Path::new(PROGRAM).with_file_name("longshore");
    if !testkit::is_root() || !longshore.exists() {
        return testkit::skip(name, "needs root, and the daemon built");
    }
    let dir = tempfile::Builder::new().prefix("lsi-").tempdir().unwrap();
    let mut run = Command::new(PROGRAM)
        .arg("--longshore")
        .arg(longshore)
        .args(["--focus", "runtime should support portforward|runtime should support exec"])
        .env("TMPDIR", dir.path())
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let bridge = Path::new("/sys/class/net").join(format!("ls-conf{}", run.id() % 100_000));
    if !eventually(&mut run, || bridge.exists()) {
        let status = run.wait().unwrap();
        assert!(status.success(), "no pod was run, and the run ended with {status}");
        return testkit::skip(name, "no Go, or no packages for images");
    }
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    let status = run.wait().unwrap();
    assert!(!status.success(), "an interrupted run is not a good one");
    assert!(!bridge.exists(), "the bridge is left");
    assert_eq!(leftovers(dir.path()), Vec::<String>::new());
}
