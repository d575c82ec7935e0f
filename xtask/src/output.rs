//! The output of a test run: read line by line, and watched for silence.
//!
//! ```text
//!   cargo ─> test program ─pipe─> lines ─> drain ─> one callback per line
//!                 ^                          │
//!                 └──── ended, and named ────┘  nothing was printed for too long
//! ```

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// How long a test run may stay quiet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuietLimits {
    /// Limit while cargo runs. A test that prints nothing for so long hangs.
    pub(crate) running: Duration,
    /// Limit after cargo has ended. Whatever holds the pipe open then was left behind.
    pub(crate) ended: Duration,
}

impl QuietLimits {
    pub(crate) const DEFAULT: Self =
        Self { running: Duration::from_secs(600), ended: Duration::from_secs(5) };
}

/// Returns the lines of a pipe as a channel, so that waiting for one can end. A full channel
/// blocks the writer.
pub(crate) fn lines(pipe: ChildStdout) -> Receiver<String> {
    let (send, lines) = sync_channel(256);
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        // Tests may print what is not UTF-8.
        while matches!(pipe.read_until(b'\n', &mut bytes), Ok(1..)) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if send.send(line).is_err() {
                return;
            }
            bytes.clear();
        }
    });
    lines
}

/// Hands on lines until all writers are gone. A test that hangs is ended and named. A process
/// that a test left behind would keep the pipe open for ever: that is a fault of the test and
/// ends the stage.
pub(crate) fn drain(
    child: &mut Child,
    lines: &Receiver<String>,
    limits: QuietLimits,
    mut each: impl FnMut(String),
) -> Result<()> {
    let tick = Duration::from_millis(100);
    let (mut quiet, mut quiet_after_end) = (Duration::ZERO, Duration::ZERO);
    let mut slow = SlowTests::default();
    loop {
        match lines.recv_timeout(tick) {
            Ok(line) => {
                quiet = Duration::ZERO;
                slow.read(&line);
                each(line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                quiet += tick;
                if child.try_wait().context("look after cargo")?.is_some() {
                    quiet_after_end += tick;
                } else if quiet >= limits.running {
                    let ended = end_tests(child)?;
                    let minutes = limits.running.as_secs() / 60;
                    bail!("no output for {minutes} min, so {ended} was ended; {slow}");
                }
                if quiet_after_end >= limits.ended {
                    bail!("a test left a process behind: it still holds the output open");
                }
            }
        }
    }
}

/// The tests that the harness has reported as slow and that have not ended since.
#[derive(Debug, Default)]
struct SlowTests(BTreeSet<String>);

impl SlowTests {
    fn read(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.0.clear();
            return;
        }
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.0.insert(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.0.remove(name);
        }
    }
}

impl std::fmt::Display for SlowTests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.0.iter().map(String::as_str).collect();
        match names[..] {
            [] => f.write_str("the harness named no slow test"),
            _ => write!(f, "still running: {}", names.join(", ")),
        }
    }
}

/// Ends cargo and all processes below it, and returns the command line of the test program.
fn end_tests(cargo: &mut Child) -> Result<String> {
    let pids = descendants(cargo.id(), &processes()?);
    // Before its children: it would go on with the next test program.
    cargo.kill().context("end cargo")?;
    let Some(first) = pids.first() else { return Ok("cargo".to_owned()) };
    let command = fs::read(format!("/proc/{first}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let list: Vec<_> = pids.iter().map(u32::to_string).collect();
    let script = format!("for pid in {}; do kill -9 $pid 2>/dev/null; done; true", list.join(" "));
    Command::new("sh").args(["-c", &script]).status().context("run kill")?;
    Ok(command.trim_end().to_owned())
}

#[derive(Clone, Copy, Debug)]
struct Process {
    pid: u32,
    parent: u32,
}

fn processes() -> Result<Vec<Process>> {
    let entries = fs::read_dir("/proc").context("list /proc")?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found = pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Process { pid, parent: parent_in(&stat)? })
    });
    Ok(found.collect())
}

/// Returns the parent's pid in a line of `/proc/PID/stat`. The name before it may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// Returns all processes below `parent`, parents before their children.
fn descendants(parent: u32, all: &[Process]) -> Vec<u32> {
    let mut found = vec![parent];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(all.iter().filter(|process| process.parent == parent).map(|p| p.pid));
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// What came of a shell script under `limits`: its lines, and how reading them ended.
    fn run(script: &str, limits: QuietLimits) -> (Vec<String>, Result<()>) {
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        let mut printed = Vec::new();
        let drained = drain(&mut child, &lines, limits, |line| printed.push(line));
        child.wait().unwrap();
        (printed, drained)
    }

    #[test]
    fn a_process_left_behind_is_a_fault_and_not_a_hang() {
        let limits = QuietLimits { ended: Duration::from_millis(200), ..QuietLimits::DEFAULT };
        let (printed, drained) = run("sleep 60 & echo $!", limits);
        let killed = Command::new("sh").args(["-c", &format!("kill {}", printed[0])]).status();
        assert!(killed.unwrap().success());
        let error = drained.unwrap_err().to_string();
        assert!(error.contains("left a process behind"), "{error}");
    }

    #[test]
    fn a_test_that_hangs_is_ended_and_named() {
        let script = "echo 'test slow has been running for over 60 seconds'; \
                      echo 'test hangs has been running for over 60 seconds'; \
                      echo 'test slow ... ok'; (sleep 61 & wait); echo 'went on'";
        let limits = QuietLimits { running: Duration::from_millis(500), ..QuietLimits::DEFAULT };
        let (_, drained) = run(script, limits);
        let error = drained.unwrap_err().to_string();
        assert!(error.ends_with("still running: hangs"), "{error}");
        let alive = processes().unwrap().into_iter().any(|process| {
            let command = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            command == b"sleep\x0061\0"
        });
        assert!(!alive, "the children of the test program are ended too");
    }

    #[test]
    fn output_keeps_a_slow_run_alive() {
        let limits = QuietLimits { running: Duration::from_secs(1), ..QuietLimits::DEFAULT };
        let (printed, drained) = run("for i in 1 2 3 4; do sleep 0.4; echo $i; done", limits);
        drained.unwrap();
        assert_eq!(printed, ["1", "2", "3", "4"]);
    }

    #[test]
    fn names_of_processes_do_not_confuse_the_tree() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12 (sh"), None);
        let process = |pid, parent| Process { pid, parent };
        let all = [process(3, 2), process(2, 1), process(4, 2), process(9, 8), process(1, 0)];
        assert_eq!(descendants(1, &all), [2, 3, 4]);
    }
}
