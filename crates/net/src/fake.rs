//! CNI programs made of shell, for tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn program(dir: &Path, name: &str, script: &str) -> PathBuf {
    let path = dir.join(name);
    testkit::program(&path, &format!("#!/bin/sh\n{script}\n"));
    path
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

/// For one that was killed and that init has to collect.
#[track_caller]
pub(crate) fn wait_until_gone(pid: &str) {
    for _ in 0..200 {
        if !is_running(pid) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("process {pid} still runs");
}
