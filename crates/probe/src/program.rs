//! Runs a program of the host to its end or to a time limit.
//!
//! **Invariants:** a program never outlives its limit, nor do those it started
//! in its process group; its output is bounded; and nobody waits for the end of a
//! pipe, because a container inherits the runtime's and may keep it open for ever.

use std::{
    fs::File,
    io::{self, Seek},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
    time::Timespec,
};
use tokio::time::Instant;

/// More than any `features` document; writing further fails with an error in the program.
const MAX_OUTPUT: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("cannot execute {}: {source}", .path.display())]
    Spawn { path: PathBuf, source: io::Error },
    #[error("did not end within {limit:?}")]
    Limit { limit: Duration },
    #[error("cannot watch it: {0}")]
    Watch(#[from] io::Error),
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
}

/// A bounded file in memory that stands for stdout or stderr. It may still be written to after
/// the program ended: by a container that got it.
#[derive(Debug)]
pub(crate) struct Capture(File);

/// A point in time that several programs together must not pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    limit: Duration,
    at: Instant,
}

pub(crate) fn run(command: &mut Command, deadline: Deadline) -> Result<Ended, RunError> {
    let (stdout, stderr) = (Capture::new()?, Capture::new()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.stdio()?)
        .stderr(stderr.stdio()?)
        .process_group(0)
        .spawn()
        .map_err(|source| RunError::Spawn {
            path: Path::new(command.get_program()).into(),
            source,
        })?;
    match wait(&child, deadline) {
        Ok(true) => Ok(Ended { status: child.wait()?, stdout, stderr }),
        other => {
            end(&mut child);
            other?;
            Err(RunError::Limit { limit: deadline.limit })
        }
    }
}

/// `false` when the deadline came first.
fn wait(child: &Child, deadline: Deadline) -> io::Result<bool> {
    let pidfd = pidfd_open(pid_of(child)?, PidfdFlags::empty())?;
    deadline.wait_readable(&pidfd)
}

/// Kills the program with all that is in its process group, and reaps it.
fn end(child: &mut Child) {
    if let Ok(group) = pid_of(child) {
        // Its leader is our unreaped child, so the group cannot be someone else's.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| Errno::SRCH.into())
}

// === impl Ended ===

impl Ended {
    /// What a failing program says about itself, in one line.
    pub(crate) fn complaint(&self) -> String {
        let last = |text: String| {
            let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
            Some(line.chars().take(300).collect::<String>())
        };
        let line = last(self.stderr.text()).or_else(|| last(self.stdout.text()));
        line.unwrap_or_else(|| format!("{} without a word", self.status))
    }
}

// === impl Capture ===

impl Capture {
    fn new() -> io::Result<Self> {
        let fd = memfd_create("capture", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, MAX_OUTPUT as u64)?;
        fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK)?;
        Ok(Self(fd.into()))
    }

    fn stdio(&self) -> io::Result<Stdio> {
        Ok(OwnedFd::from(self.0.try_clone()?).into())
    }

    /// What was written so far. The offset is shared with the writers, so it is the length.
    pub(crate) fn text(&self) -> String {
        let mut file = &self.0;
        let written = file.stream_position().ok().and_then(|at| usize::try_from(at).ok());
        let mut bytes = vec![0; written.unwrap_or(0).min(MAX_OUTPUT)];
        // By position: moving the offset would move the writers'.
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }
}

// === impl Deadline ===

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        // A limit so long that time overflows is none.
        let day = Duration::from_secs(86_400);
        Self { limit, at: Instant::now() + limit.min(day) }
    }

    pub(crate) fn limit(self) -> Duration {
        self.limit
    }

    /// Waits until `fd` is readable; `false` when time is over.
    pub(crate) fn wait_readable(self, fd: impl AsFd) -> io::Result<bool> {
        loop {
            let left = self.at.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<Ended, RunError> {
        run(Command::new("/bin/sh").args(["-c", script]), Deadline::after(limit))
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn output_and_status_come_back() {
        let ended = sh("echo out; echo err >&2; exit 3", LONG).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(ended.stdout.text(), "out\n");
        assert_eq!(ended.complaint(), "err");
        assert!(sh("kill -9 $$", LONG).unwrap().complaint().contains("signal: 9"));
    }

    #[test]
    fn endless_output_is_bounded() {
        let ended = sh("exec yes", LONG).unwrap();
        assert!(!ended.status.success());
        assert_eq!(ended.stdout.text().len(), MAX_OUTPUT);
    }

    #[test]
    fn the_whole_group_dies_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", note.display());
        let start = Instant::now();
        let error = sh(&script, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, RunError::Limit { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        let pid: i32 = std::fs::read_to_string(note).unwrap().trim().parse().unwrap();
        // Dead in a moment, though its new parent may not have reaped it yet.
        let status = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let dead = |status: String| status.is_empty() || status.contains(") Z ");
        let ended = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            dead(status())
        });
        assert!(ended, "{}", status());
    }

    #[test]
    fn a_child_that_keeps_stdout_open_delays_nobody() {
        let start = Instant::now();
        let ended = sh("sleep 1000 & echo $!", LONG).unwrap();
        let pid = ended.stdout.text().trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        assert!(start.elapsed() < LONG / 2);
    }

    #[test]
    fn a_missing_program_is_named() {
        let path = "/nowhere/program";
        let error = run(&mut Command::new(path), Deadline::after(LONG)).unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}
