//! A run of checks and tests: stages in order, a table of times, one closing count.
//!
//! The first red stage ends the run, and the table is printed all the same. The closing line
//! stands alone and says `N passed, M failed` with `, K skipped` where there are any. N counts
//! tests; a red stage that counts no failed test (a lint, a build) adds one to M, so that a red
//! run never ends in `0 failed`.
//!
//! Tests that cannot run here say so in the file named by `LONGSHORE_SKIP_LOG`, one line
//! `SKIPPED: name: reason` each; the lines are shown with the table, and the tests count as
//! skipped, not as passed.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{bin_dir, conformance, layers, licences, tally::Tally};

/// How long the output of a test run may stay open after cargo has ended.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);

struct Stage {
    name: &'static str,
    work: Work,
}

enum Work {
    Own(fn(&Path) -> Result<()>),
    Cargo(&'static [&'static str]),
    /// As `Cargo`, and what it prints is counted.
    Tests(&'static [&'static str]),
}

const FORMAT: Stage = Stage { name: "format", work: Work::Cargo(&["fmt", "--all", "--check"]) };
const LAYERS: Stage = Stage { name: "layers", work: Work::Own(layers::run) };
const LICENCES: Stage = Stage { name: "licences", work: Work::Own(licences::run) };
const CLIPPY: Stage = Stage {
    name: "clippy",
    work: Work::Cargo(&[
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]),
};
/// Apart from the tests, so that the table tells compiling from testing.
const BUILD: Stage = Stage {
    name: "build",
    work: Work::Cargo(&["test", "--locked", "--workspace", "--tests", "--no-run"]),
};
const UNIT: Stage = Stage {
    name: "unit",
    work: Work::Tests(&["test", "--locked", "--workspace", "--lib", "--bins", "--no-fail-fast"]),
};
/// Integration and end-to-end tests: whatever lies in a `tests/`.
const INTEGRATION: Stage = Stage {
    name: "integration",
    work: Work::Tests(&["test", "--locked", "--workspace", "--test", "*", "--no-fail-fast"]),
};
/// Without the program: the examples in its comments are shell, and its `doctest = false` does
/// not count where doc tests are asked for by name.
const DOC: Stage = Stage {
    name: "doc",
    work: Work::Tests(&[
        "test",
        "--locked",
        "--workspace",
        "--exclude",
        "longshore",
        "--doc",
        "--no-fail-fast",
    ]),
};
/// Prints its own counts; what it must pass is listed in its crate.
const CONFORMANCE: Stage = Stage { name: "conformance", work: Work::Own(conformance::stage) };
const LONG: Stage = Stage {
    name: "long",
    work: Work::Tests(&[
        "test",
        "--locked",
        "--workspace",
        "--tests",
        "--no-fail-fast",
        "--",
        "--include-ignored",
    ]),
};

/// What a long run multiplies. Tests have their own short defaults.
const LONG_ENV: &[(&str, &str)] = &[("LONGSHORE_TEST_ROUNDS", "200"), ("PROPTEST_CASES", "10000")];

pub(crate) fn test(root: &Path) -> Result<()> {
    let tests = [BUILD, UNIT, INTEGRATION, DOC, CONFORMANCE];
    let checks = [FORMAT, LAYERS, LICENCES, CLIPPY];
    let stages: Vec<_> = checks.into_iter().chain(tests).collect();
    run(root, &stages, &[])
}

pub(crate) fn check(root: &Path) -> Result<()> {
    run(root, &[FORMAT, LAYERS, LICENCES, CLIPPY, UNIT], &[])
}

pub(crate) fn test_long(root: &Path) -> Result<()> {
    run(root, &[BUILD, LONG], LONG_ENV)
}

#[derive(Debug, Default)]
struct Summary {
    rows: Vec<Row>,
    tally: Tally,
    skips: Vec<String>,
}

#[derive(Debug)]
struct Row {
    stage: &'static str,
    took: Duration,
    error: Option<String>,
}

fn run(root: &Path, stages: &[Stage], env: &[(&str, &str)]) -> Result<()> {
    let skip_log = SkipLog::create(&bin_dir()?)?;
    let mut summary = Summary::default();
    for stage in stages {
        println!("\n== {}", stage.name);
        let clock = Stopwatch::start();
        let result = stage.run(root, env, &skip_log, &mut summary.tally);
        let error = result.err().map(|e| format!("{e:#}"));
        let red = error.is_some();
        summary.rows.push(Row { stage: stage.name, took: clock.elapsed(), error });
        if red {
            break;
        }
    }
    summary.skips = skip_log.lines()?;
    summary.settle();
    print!("\n{}", summary.table());
    println!("{}", summary.tally);
    ensure!(summary.tally.failed == 0, "a stage is red");
    Ok(())
}

impl Stage {
    fn run(
        &self,
        root: &Path,
        env: &[(&str, &str)],
        skip_log: &SkipLog,
        tally: &mut Tally,
    ) -> Result<()> {
        let cargo = |args: &[&str]| {
            let mut command = Command::new("cargo");
            command.current_dir(root).args(args).envs(env.iter().copied());
            command.env("LONGSHORE_SKIP_LOG", &skip_log.path).stdin(Stdio::null());
            command
        };
        let status = match self.work {
            Work::Own(check) => return check(root),
            Work::Cargo(args) => cargo(args).status().context("run cargo")?,
            Work::Tests(args) => count(cargo(args), tally)?,
        };
        ensure!(status.success(), "cargo ended with {status}");
        Ok(())
    }
}

/// Runs a test command, passes its output on and counts what it says.
fn count(mut command: Command, tally: &mut Tally) -> Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("run cargo")?;
    let stdout = child.stdout.take().context("the output of cargo is not a pipe")?;
    let lines = lines(stdout);
    let drained = drain(&mut child, &lines, LEFTOVER_LIMIT, |line| {
        println!("{line}");
        tally.read(&line);
    });
    let status = child.wait().context("wait for cargo")?;
    drained?;
    Ok(status)
}

/// Lines of a pipe as a channel, so that waiting for one can end. Full, it blocks the writer.
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

/// Hands on lines until all writers are gone. A process that a test left behind would keep the
/// pipe open for ever: that is a fault of the test and ends the stage.
fn drain(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    mut each: impl FnMut(String),
) -> Result<()> {
    let tick = Duration::from_millis(100);
    let mut quiet = Duration::ZERO;
    loop {
        match lines.recv_timeout(tick) {
            Ok(line) => each(line),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                if child.try_wait().context("look after cargo")?.is_some() {
                    quiet += tick;
                }
                if quiet >= limit {
                    bail!("a test left a process behind: it still holds the output open");
                }
            }
        }
    }
}

impl Summary {
    /// Brings the count in line with what the harness cannot know.
    fn settle(&mut self) {
        self.tally.skip(self.skips.len() as u64);
        if self.tally.failed == 0 && self.rows.iter().any(|row| row.error.is_some()) {
            self.tally.failed = 1;
        }
    }

    fn table(&self) -> String {
        let skips = self.skips.iter().map(|skip| format!("{skip}\n"));
        let rows = self.rows.iter().map(|row| {
            let verdict =
                row.error.as_ref().map_or_else(|| "ok".to_owned(), |e| format!("RED: {e}"));
            format!("{:<12} {:>7.1} s  {verdict}\n", row.stage, row.took.as_secs_f64())
        });
        let total: Duration = self.rows.iter().map(|row| row.took).sum();
        let total = format!("{:<12} {:>7.1} s\n", "total", total.as_secs_f64());
        skips.chain(rows).chain([total]).collect()
    }
}

struct SkipLog {
    path: PathBuf,
}

impl SkipLog {
    fn create(dir: &Path) -> Result<Self> {
        let path = dir.join("skipped.log");
        fs::write(&path, "").with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path })
    }

    fn lines(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.path)
            .with_context(|| format!("read {}", self.path.display()))?;
        Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }
}

#[expect(clippy::disallowed_types, reason = "nothing here runs under tokio's paused time")]
pub(crate) struct Stopwatch(std::time::Instant);

#[expect(clippy::disallowed_types, reason = "as above")]
impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn row(stage: &'static str, error: Option<&str>) -> Row {
        Row { stage, took: Duration::from_millis(1250), error: error.map(str::to_owned) }
    }

    #[test]
    fn output_is_counted_and_the_status_kept() {
        let mut tally = Tally::default();
        let script =
            "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; printf 'x\\377\\n'; exit 3";
        let status = count(shell(script), &mut tally).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(tally, Tally { passed: 2, failed: 1, skipped: 0 });
    }

    #[test]
    fn a_process_left_behind_is_a_fault_and_not_a_hang() {
        let mut child = shell("sleep 60 & echo $!").stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        let mut printed = Vec::new();
        let limit = Duration::from_millis(200);
        let drained = drain(&mut child, &lines, limit, |line| printed.push(line));
        child.wait().unwrap();
        assert!(shell(&format!("kill {}", printed[0])).status().unwrap().success());
        let error = drained.unwrap_err().to_string();
        assert!(error.contains("left a process behind"), "{error}");
    }

    #[test]
    fn skips_of_an_earlier_run_are_forgotten() {
        let dir = std::env::temp_dir().join(format!("xtask-skips-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("skipped.log"), "old\n").unwrap();
        let log = SkipLog::create(&dir).unwrap();
        fs::write(&log.path, "SKIPPED: interop: no Go\n\n").unwrap();
        let lines = log.lines().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(lines, ["SKIPPED: interop: no Go"]);
    }

    #[test]
    fn a_red_stage_without_tests_counts_as_a_failure() {
        let mut summary = Summary { rows: vec![row("clippy", Some("bad"))], ..Summary::default() };
        summary.settle();
        assert_eq!(summary.tally.to_string(), "0 passed, 1 failed");
    }

    #[test]
    fn failed_tests_are_not_counted_twice() {
        let tally = Tally { passed: 4, failed: 2, skipped: 0 };
        let rows = vec![row("unit", Some("cargo ended"))];
        let mut summary = Summary { rows, tally, skips: Vec::new() };
        summary.settle();
        assert_eq!(summary.tally.to_string(), "4 passed, 2 failed");
    }

    #[test]
    fn the_table_shows_times_verdicts_and_skips() {
        let tally = Tally { passed: 3, failed: 0, skipped: 0 };
        let rows = vec![row("format", None), row("unit", Some("cargo ended"))];
        let mut summary =
            Summary { rows, tally, skips: vec!["SKIPPED: interop: no Go".to_owned()] };
        summary.settle();
        let want = "SKIPPED: interop: no Go\n\
                    format           1.2 s  ok\n\
                    unit             1.2 s  RED: cargo ended\n\
                    total            2.5 s\n";
        assert_eq!(summary.table(), want);
        assert_eq!(summary.tally.to_string(), "2 passed, 1 failed, 1 skipped");
    }
}
