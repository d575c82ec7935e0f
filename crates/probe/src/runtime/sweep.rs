//! Takes away what a trial left: processes that carry its mark, and its cgroups.
//!
//! **Invariant:** only what bears the trial's nonce is touched. A process id that a
//! runtime wrote somewhere is never signalled: it may be anybody's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::bundle::MARK;

/// A killed process leaves its cgroup a moment after its death.
const PATIENCE: [u64; 8] = [0, 1, 2, 5, 10, 30, 100, 300];

/// Kills every process whose environment names this trial.
pub(super) fn kill_marked(nonce: &str) {
    let mark = format!("{MARK}={nonce}");
    // Again until none is left: one may have forked while we looked.
    for wait_ms in PATIENCE {
        sleep(Duration::from_millis(wait_ms));
        let marked: Vec<_> = processes().filter(|pid| is_marked(*pid, &mark)).collect();
        if marked.is_empty() {
            return;
        }
        for pid in marked {
            kill_if(pid, || is_marked(pid, &mark));
        }
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

fn is_marked(pid: Pid, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// Looks again once the process is held, so that a reused id is not hit.
fn kill_if(pid: Pid, still: impl Fn() -> bool) {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if still() {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

/// Ends what runs in these cgroups and removes them. An absent one is fine.
pub(super) fn remove_cgroups(dirs: impl Iterator<Item = PathBuf>) -> Result<(), String> {
    let stuck: Vec<_> = dirs
        .filter_map(|dir| {
            remove_cgroup(&dir).err().map(|error| format!("{} ({error})", dir.display()))
        })
        .collect();
    if stuck.is_empty() { Ok(()) } else { Err(stuck.join(", ")) }
}

fn remove_cgroup(dir: &Path) -> io::Result<()> {
    let mut last = Ok(());
    for wait_ms in PATIENCE {
        sleep(Duration::from_millis(wait_ms));
        last = match remove_tree(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => return Ok(()),
        };
    }
    last
}

/// Children first; the files of a cgroup go with its directory.
fn remove_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)?.filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    for pid in members(dir) {
        kill_if(pid, || members(dir).contains(&pid));
    }
    fs::remove_dir(dir)
}

fn members(dir: &Path) -> Vec<Pid> {
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_marked_processes_die() {
        let sleeper = |nonce: &str| {
            let mut command = Command::new("sleep");
            command.arg("1000").env(MARK, nonce).stdin(Stdio::null()).spawn().unwrap()
        };
        let nonce = format!("test-{}", std::process::id());
        let (mut ours, mut others) = (sleeper(&nonce), sleeper(&format!("{nonce}x")));
        kill_marked(&nonce);
        assert!(!ours.wait().unwrap().success());
        assert!(others.try_wait().unwrap().is_none());
        others.kill().unwrap();
        others.wait().unwrap();
    }

    #[test]
    fn absent_cgroups_are_fine_and_stuck_ones_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(remove_cgroups([dir.path().join("absent")].into_iter()), Ok(()));
        let full = dir.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("file"), "").unwrap();
        assert!(remove_cgroups([full].into_iter()).unwrap_err().contains("full"));
    }
}
