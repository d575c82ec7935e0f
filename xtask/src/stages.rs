//! A run of checks and tests: stages in order, a table of times, one closing count.
//!
//! The first red stage ends the run, and the table is printed all the same. The closing line
//! stands alone and says `N passed, M failed` with `, K skipped` where there are any. N counts
//! tests; a red stage that counts no failed test (a lint, a build) adds one to M, so that a red
//! run never ends in `0 failed`.
//!
//! A few tests that fail are run once more, alone: on a machine that is shared, time is not what
//! a test thinks it is. One that passes then is shown as unreliable, by name, until somebody
//! mends it; one that fails again is red, and so is a run in which many failed.
//!
//! A stage that prints nothing for ten minutes is ended, with the test it was at.
//!
//! Tests with containers run with runc, and those that a runtime can break once more with crun, on hosts
//! where it works.
//!
//! Tests that cannot run here say so in the file named by `LONGSHORE_SKIP_LOG`, one line
//! `SKIPPED: name: reason` each; the lines are shown with the table, and the tests count as
//! skipped, not as passed.

use std::{
    fmt, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    bin_dir,
    confine::OciRuntime,
    conformance, layers, licences,
    output::{QuietLimits, drain, lines},
    tally::{Tally, failed_test},
};

/// More failures than this are no accident.
const SECOND_CHANCES: usize = 3;

struct Stage {
    name: &'static str,
    work: Work,
    /// The OCI runtime that containers run with, where there are any.
    runtime: Option<OciRuntime>,
    /// The tests to run, by the names of their programs; none: all of them.
    only: &'static [&'static str],
}

enum Work {
    Own(fn(&Path) -> Result<()>),
    Conformance,
    Cargo(&'static [&'static str]),
    /// As `Cargo`, and what it prints is counted.
    Tests(&'static [&'static str]),
}

const FORMAT: Stage = Stage::new("format", Work::Cargo(&["fmt", "--all", "--check"]));
const LAYERS: Stage = Stage::new("layers", Work::Own(layers::run));
const LICENCES: Stage = Stage::new("licences", Work::Own(licences::run));
const CLIPPY: Stage = Stage::new(
    "clippy",
    Work::Cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]),
);
/// Builds apart from the tests: the table tells compiling from testing, and a stage of tests that is
/// silent for long can only hang.
const BUILD: Stage =
    Stage::new("build", Work::Cargo(&["test", "--locked", "--workspace", "--tests", "--no-run"]));
const BUILD_UNIT: Stage = Stage::new(
    "build",
    Work::Cargo(&["test", "--locked", "--workspace", "--lib", "--bins", "--no-run"]),
);
const UNIT: Stage = Stage::new(
    "unit",
    Work::Tests(&["test", "--locked", "--workspace", "--lib", "--bins", "--no-fail-fast"]),
);
/// Integration and end-to-end tests: whatever lies in a `tests/`.
const INTEGRATION_TESTS: &[&str] =
    &["test", "--locked", "--workspace", "--test", "*", "--no-fail-fast"];
const INTEGRATION: Stage =
    Stage::new("integration", Work::Tests(INTEGRATION_TESTS)).with(OciRuntime::Runc);
/// Those of them in which containers run and whose outcome a runtime can change. They are chosen when
/// they are run: cargo would build much of the tree once more for a part of the tests.
const INTEGRATION_CRUN: Stage =
    Stage::new("integration-crun", Work::Tests(INTEGRATION_TESTS)).with(OciRuntime::Crun).only(&[
        "checkpoint",
        "cli_pods",
        "crash",
        "crictl",
        "daemon",
        "faults",
        "foreign",
        "handlers",
        "logs",
        "network",
        "pod",
        "pods",
        "sandbox",
        "shared_pids",
        "spec",
        "stats",
        "streaming",
        "streams",
    ]);
/// Without the program: the examples in its comments are shell, and its `doctest = false` does
/// not count where doc tests are asked for by name.
const DOC: Stage = Stage::new(
    "doc",
    Work::Tests(&[
        "test",
        "--locked",
        "--workspace",
        "--exclude",
        "longshore",
        "--doc",
        "--no-fail-fast",
    ]),
);
/// Prints its own counts; what it must pass is listed in its crate.
const CONFORMANCE: Stage = Stage::new("conformance", Work::Conformance).with(OciRuntime::Runc);
const CONFORMANCE_CRUN: Stage =
    Stage::new("conformance-crun", Work::Conformance).with(OciRuntime::Crun);
const LONG: Stage = Stage::new(
    "long",
    Work::Tests(&[
        "test",
        "--locked",
        "--workspace",
        "--tests",
        "--no-fail-fast",
        "--",
        "--include-ignored",
    ]),
);

/// What a long run multiplies. Tests have their own short defaults.
const LONG_ENV: &[(&str, &str)] = &[("LONGSHORE_TEST_ROUNDS", "200"), ("PROPTEST_CASES", "10000")];

/// Runs all stages, or those of the given names.
pub(crate) fn test(root: &Path, names: &[&str]) -> Result<()> {
    let checks = [FORMAT, LAYERS, LICENCES, CLIPPY];
    let tests = [BUILD, UNIT, DOC, INTEGRATION, CONFORMANCE, INTEGRATION_CRUN, CONFORMANCE_CRUN];
    let mut stages: Vec<_> = checks.into_iter().chain(tests).collect();
    if let Some(unknown) = names.iter().find(|name| stages.iter().all(|it| it.name != **name)) {
        let known: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        bail!("no stage {unknown:?}; there are {}", known.join(", "));
    }
    stages.retain(|stage| names.is_empty() || names.contains(&stage.name));
    run(root, &stages, &[])
}

pub(crate) fn check(root: &Path) -> Result<()> {
    run(root, &[FORMAT, LAYERS, LICENCES, CLIPPY, BUILD_UNIT, UNIT], &[])
}

pub(crate) fn test_long(root: &Path) -> Result<()> {
    run(root, &[BUILD, LONG], LONG_ENV)
}

#[derive(Debug, Default)]
struct Summary {
    rows: Vec<Row>,
    tally: Tally,
    skips: Vec<String>,
    unreliable: Vec<String>,
}

#[derive(Debug)]
struct Row {
    stage: &'static str,
    took: Duration,
    verdict: Verdict,
}

#[derive(Debug)]
enum Verdict {
    Ok,
    /// The stage cannot run here, for this reason.
    Skipped(String),
    Red(String),
}

fn run(root: &Path, stages: &[Stage], env: &[(&str, &str)]) -> Result<()> {
    let skip_log = SkipLog::create(&bin_dir()?)?;
    let mut summary = Summary::default();
    for stage in stages {
        println!("\n== {}", stage.name);
        let clock = Stopwatch::start();
        let result = stage.run(root, env, &skip_log, &mut summary);
        let verdict = result.unwrap_or_else(|e| Verdict::Red(format!("{e:#}")));
        summary.rows.push(Row { stage: stage.name, took: clock.elapsed(), verdict });
        if summary.is_red() {
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
    const fn new(name: &'static str, work: Work) -> Self {
        Self { name, work, runtime: None, only: &[] }
    }

    const fn only(mut self, programs: &'static [&'static str]) -> Self {
        self.only = programs;
        self
    }

    const fn with(mut self, runtime: OciRuntime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Returns whether a host on which its runtime cannot work passes without it.
    fn is_extra(&self) -> bool {
        self.runtime == Some(OciRuntime::Crun)
    }

    fn run(
        &self,
        root: &Path,
        env: &[(&str, &str)],
        skip_log: &SkipLog,
        summary: &mut Summary,
    ) -> Result<Verdict> {
        let confinement = self.runtime.map(OciRuntime::prepare).transpose()?;
        if let Some(confinement) = &confinement
            && self.is_extra()
            && let Err(e) = confinement.check(&bin_dir()?.join("longshore"))
        {
            return Ok(Verdict::Skipped(format!("{e:#}")));
        }
        let confined = |command: Command| match &confinement {
            Some(confinement) => confinement.command(&command),
            None => command,
        };
        let runner = runner(self.only)?;
        let cargo = |args: &[&str]| {
            let mut command = Command::new("cargo");
            let (subcommand, rest) = args.split_at(args.len().min(1));
            command.current_dir(root).args(subcommand).args(&runner).args(rest);
            command.envs(env.iter().copied());
            command.env("LONGSHORE_SKIP_LOG", &skip_log.path).stdin(Stdio::null());
            confined(command)
        };
        match (&self.work, self.runtime) {
            (Work::Own(check), _) => check(root)?,
            (Work::Cargo(args), _) => succeeds(&mut cargo(args))?,
            (Work::Tests(args), _) => {
                tests_pass(&mut cargo(args), || cargo(&again(args)), summary)?;
            }
            (Work::Conformance, runtime) => {
                succeeds(&mut confined(conformance::with(root, runtime)?))?;
            }
        }
        Ok(Verdict::Ok)
    }
}

/// Returns what tells cargo to run test programs by [`run_if_listed`].
fn runner(programs: &[&str]) -> Result<Vec<String>> {
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let xtask = std::env::current_exe().context("find xtask")?;
    let words = [&xtask.display().to_string(), "run-if-listed", &programs.join(",")];
    let config = format!("target.'cfg(all())'.runner={words:?}");
    Ok(vec!["--config".to_owned(), config])
}

/// Becomes the test program if it is one of `list`, names joined by commas; else all is well.
pub(crate) fn run_if_listed(list: &str, program: &str, args: &[&str]) -> Result<()> {
    if list.split(',').any(|name| name == program_name(Path::new(program))) {
        return Err(Command::new(program).args(args).exec()).context(format!("run {program}"));
    }
    Ok(())
}

/// The name that cargo made a file name of: `pods` is in `deps/pods-0123456789abcdef`.
fn program_name(program: &Path) -> &str {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.rsplit_once('-').map_or(name, |(name, _)| name)
}

fn succeeds(command: &mut Command) -> Result<()> {
    let program = Path::new(command.get_program()).display().to_string();
    let status = command.status().with_context(|| format!("run {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

/// The arguments that run tests of the same programs one after the other; names follow.
fn again<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let of_cargo = args.iter().take_while(|arg| **arg != "--").copied();
    let of_tests = ["--", "--include-ignored", "--test-threads=1", "--exact"];
    of_cargo.chain(of_tests).collect()
}

/// Runs tests, and the few that fail once more by what `again` makes.
fn tests_pass(
    tests: &mut Command,
    again: impl FnOnce() -> Command,
    summary: &mut Summary,
) -> Result<()> {
    let first = count(tests)?;
    summary.tally += first.tally;
    if first.status.success() {
        return Ok(());
    }
    let (failed, count_failed) = (first.failed, first.tally.failed);
    // A program that died has failed without a word, and is not excused by others.
    let all_named = failed.len() as u64 == count_failed;
    if failed.is_empty() || !all_named || failed.len() > SECOND_CHANCES {
        bail!("cargo ended with {}", first.status);
    }
    println!("\n== once more: {}", failed.join(", "));
    let second = count(again().args(&failed))?;
    let passed = second.status.success() && second.tally.passed >= count_failed;
    ensure!(passed, "failed twice: {}", failed.join(", "));
    summary.tally.failed -= count_failed;
    summary.tally.passed += count_failed;
    summary.unreliable.extend(failed);
    Ok(())
}

/// What came of a test command.
#[derive(Debug)]
struct Counted {
    status: ExitStatus,
    tally: Tally,
    /// By name.
    failed: Vec<String>,
}

/// Runs a test command, passes its output on and counts what it says.
fn count(command: &mut Command) -> Result<Counted> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("run cargo")?;
    let stdout = child.stdout.take().context("the output of cargo is not a pipe")?;
    let lines = lines(stdout);
    let (mut tally, mut failed) = (Tally::default(), Vec::new());
    let drained = drain(&mut child, &lines, QuietLimits::DEFAULT, |line| {
        println!("{line}");
        tally.read(&line);
        failed.extend(failed_test(&line).map(str::to_owned));
    });
    let status = child.wait().context("wait for cargo")?;
    drained?;
    Ok(Counted { status, tally, failed })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
            Self::Red(error) => write!(f, "RED: {error}"),
        }
    }
}

impl Summary {
    fn is_red(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.verdict, Verdict::Red(_)))
    }

    /// Brings the count in line with what the harness cannot know.
    fn settle(&mut self) {
        self.tally.skip(self.skips.len() as u64);
        if self.tally.failed == 0 && self.is_red() {
            self.tally.failed = 1;
        }
    }

    fn table(&self) -> String {
        let skips = self.skips.iter().map(|skip| format!("{skip}\n"));
        let unreliable = self.unreliable.iter();
        let unreliable =
            unreliable.map(|name| format!("UNRELIABLE: {name}: passed when run again\n"));
        let rows = self.rows.iter().map(|row| {
            format!("{:<17} {:>7.1} s  {}\n", row.stage, row.took.as_secs_f64(), row.verdict)
        });
        let total: Duration = self.rows.iter().map(|row| row.took).sum();
        let total = format!("{:<17} {:>7.1} s\n", "total", total.as_secs_f64());
        skips.chain(unreliable).chain(rows).chain([total]).collect()
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
        let verdict = error.map_or(Verdict::Ok, |error| Verdict::Red(error.to_owned()));
        Row { stage, took: Duration::from_millis(1250), verdict }
    }

    #[test]
    fn output_is_counted_and_the_status_kept() {
        let script = "echo 'test a::b ... FAILED'; printf 'x\\377\\n'; \
                      echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 3";
        let counted = count(&mut shell(script)).unwrap();
        assert_eq!(counted.status.code(), Some(3));
        assert_eq!(counted.tally, Tally { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(counted.failed, ["a::b"]);
    }

    /// What a run of `names`, all failing, comes to where the second run is `script`.
    fn twice(names: &[&str], script: &str) -> (Result<()>, Summary) {
        let lines = names.iter().map(|name| format!("echo 'test {name} ... FAILED'; "));
        let first: String = lines.collect();
        let end = format!("echo 'test result: FAILED. 5 passed; {} failed'; exit 101", names.len());
        let mut summary = Summary::default();
        let passed = tests_pass(&mut shell(&(first + &end)), || shell(script), &mut summary);
        (passed, summary)
    }

    #[test]
    fn a_test_that_passes_when_run_again_is_unreliable_and_not_red() {
        // The name is an argument of the second run.
        let script = "test \"$0\" = a && echo 'test result: ok. 1 passed; 0 failed'";
        let (passed, summary) = twice(&["a"], script);
        passed.unwrap();
        assert_eq!(summary.tally, Tally { passed: 6, failed: 0, skipped: 0 });
        assert_eq!(summary.table().lines().next(), Some("UNRELIABLE: a: passed when run again"));
    }

    #[test]
    fn what_fails_twice_or_often_or_is_not_run_again_is_red() {
        let red = "echo 'test result: FAILED. 0 passed; 1 failed'; exit 101";
        let not_found = "echo 'test result: ok. 0 passed; 0 failed'";
        let green = "echo 'test result: ok. 9 passed; 0 failed'";
        for (names, script) in
            [(&["a"][..], red), (&["a"], not_found), (&["a", "b", "c", "d"], green), (&[], green)]
        {
            let (passed, summary) = twice(names, script);
            assert!(passed.is_err(), "{names:?} {script}");
            assert_eq!(summary.tally.failed, names.len() as u64);
            assert!(summary.unreliable.is_empty());
        }
    }

    #[test]
    fn a_program_that_dies_has_no_second_chance() {
        let script = "echo 'test a ... FAILED'; exit 101";
        let mut summary = Summary::default();
        let again = || shell("echo 'test result: ok. 1 passed; 0 failed'");
        assert!(tests_pass(&mut shell(script), again, &mut summary).is_err());
    }

    #[test]
    fn tests_are_run_again_by_the_same_command() {
        let args = ["test", "--workspace", "--tests", "--", "--include-ignored"];
        let want = ["test", "--workspace", "--tests", "--", "--include-ignored"];
        assert_eq!(again(&args), [&want[..], &["--test-threads=1", "--exact"]].concat());
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
        let mut summary = Summary { rows, tally, ..Summary::default() };
        summary.settle();
        assert_eq!(summary.tally.to_string(), "4 passed, 2 failed");
    }

    #[test]
    fn the_table_shows_times_verdicts_and_skips() {
        let tally = Tally { passed: 3, failed: 0, skipped: 0 };
        let mut rows =
            vec![row("format", None), row("doc", None), row("unit", Some("cargo ended"))];
        rows[1].verdict = Verdict::Skipped("no crun".to_owned());
        let skips = vec!["SKIPPED: interop: no Go".to_owned()];
        let mut summary = Summary { rows, tally, skips, ..Summary::default() };
        summary.settle();
        let want = "SKIPPED: interop: no Go\n\
                    format                1.2 s  ok\n\
                    doc                   1.2 s  skipped: no crun\n\
                    unit                  1.2 s  RED: cargo ended\n\
                    total                 3.8 s\n";
        assert_eq!(summary.table(), want);
        assert_eq!(summary.tally.to_string(), "2 passed, 1 failed, 1 skipped");
    }

    /// A name that is misspelt would run nothing.
    #[test]
    fn the_tests_that_crun_runs_exist() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let crates: Vec<_> = crates.read_dir().unwrap().map(|it| it.unwrap().path()).collect();
        let exists = |test: &str| {
            let paths = [format!("tests/{test}.rs"), format!("tests/{test}/main.rs")];
            crates.iter().any(|krate| paths.iter().any(|path| krate.join(path).exists()))
        };
        for test in INTEGRATION_CRUN.only {
            assert!(exists(test), "{test}");
        }
    }

    #[test]
    fn programs_are_known_by_their_names() {
        assert_eq!(program_name(Path::new("target/debug/deps/pods-0123456789abcdef")), "pods");
        assert_eq!(program_name(Path::new("/t/cli_pods-0123456789abcdef")), "cli_pods");
        let ran = run_if_listed("pods,spec", "/no/such/other-0123456789abcdef", &[]);
        assert!(ran.is_ok(), "{ran:?}");
        assert!(run_if_listed("pods,spec", "/no/such/spec-0123456789abcdef", &[]).is_err());
    }
}
