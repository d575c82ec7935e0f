//! Real network namespaces: programs that misbehave, Debian's CNI programs, and daemons that
//! are killed.
//!
//! Its own small runner: every test is a process in its own network and mount namespace. What
//! that process sees as the host is gone with it; what is left outside is looked for.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a runner of tests prints, and its helpers fail by panicking"
)]

mod crash;
mod fakes;
mod follow;
mod real;
mod world;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// The name of the test a child shall run, and its directory.
const CHILD: &str = "NET_ROOT_TEST";

type Test = (&'static str, fn(&Path));

macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), $module::$name)),+),+]
    };
}

const TESTS: &[Test] = tests![
    fakes:
        bad_programs_are_undone,
        a_slow_program_has_its_time,
        a_chain_hands_on_and_goes_back,
        one_broken_program_does_not_keep_the_others,
        a_container_nobody_knows_is_gone,
        what_del_could_not_do_is_tried_again,
        programs_may_be_missing_for_a_while,
        a_namespace_may_be_gone_or_another,
        a_namespace_goes_with_the_last_del,
        strange_namespaces_are_refused,
        del_stops_an_add,
        callers_may_go_away,
        a_pod_is_attached_once,
        ports_have_one_holder,
        networks_of_a_pod_are_all_or_none,
        networks_are_parallel_or_serial,
        checks_ask_who_can_answer,
        garbage_is_collected,
        garbage_is_collected_alone,
        nothing_starts_after_the_end;
    follow:
        the_configuration_of_the_time_counts,
        a_directory_comes_and_goes,
        programs_beside_the_file_are_followed,
        handlers_have_their_own,
        programs_are_asked_how_they_are,
        a_template_makes_a_network;
    crash:
        an_add_that_outlives_its_daemon_attaches_nothing,
        killed_between_add_and_record,
        a_del_that_was_asked_for_is_done,
        a_pod_that_was_attached_stays;
    real:
        pods_talk_and_leave_nothing,
        host_ports_are_reachable,
        both_families,
        a_namespace_that_is_gone_keeps_no_address,
        many_pods_and_a_flaky_program,
        killed_anywhere_nothing_is_left,
];

fn main() -> ExitCode {
    if env::var_os(crash::DAEMON).is_some() {
        return crash::daemon();
    }
    if let Some(wanted) = env::var_os(CHILD) {
        return child(&wanted.to_string_lossy());
    }
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(&***f));
    let tests: Vec<_> = TESTS.iter().filter(|(name, _)| chosen(name)).collect();
    println!("\nrunning {} tests", tests.len());
    if !testkit::is_root() {
        testkit::skip("net root tests", "need root");
        println!("test result: ok. 0 passed; 0 failed; {} ignored", tests.len());
        return ExitCode::SUCCESS;
    }
    let failed: Vec<_> = tests.iter().filter(|(name, _)| !passes(name)).collect();
    let (passed, word) =
        (tests.len() - failed.len(), if failed.is_empty() { "ok" } else { "FAILED" });
    println!("\ntest result: {word}. {passed} passed; {} failed; 0 ignored", failed.len());
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// Runs one test in a child and looks for what it left behind.
fn passes(name: &str) -> bool {
    let dir = tempfile::Builder::new().prefix("net-root-").tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--"])
        .arg(env::current_exe().unwrap())
        .env(CHILD, format!("{name} {}", dir.path().display()))
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let mut complaints = String::new();
    if !output.status.success() {
        complaints = format!("{}\n", output.status);
    }
    for process in mentioning(dir.path()) {
        complaints += &format!("left running: {process}\n");
    }
    println!("test {name} ... {}", if complaints.is_empty() { "ok" } else { "FAILED" });
    let errors = String::from_utf8_lossy(&output.stderr);
    for line in errors.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("{line}");
    }
    if !complaints.is_empty() {
        println!("{complaints}{}\n{errors}", String::from_utf8_lossy(&output.stdout));
    }
    complaints.is_empty()
}

/// Processes that were started with the directory of a test.
fn mentioning(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |file: &str| {
            let bytes = fs::read(entry.path().join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid.bytes().all(|b| b.is_ascii_digit())
            && (read("environ").contains(dir) || read("cmdline").contains(dir))
        {
            found.push(format!("{pid} {}", read("cmdline")));
        }
    }
    found
}

fn child(wanted: &str) -> ExitCode {
    let (name, dir) = wanted.split_once(' ').unwrap();
    let (_, test) = TESTS.iter().find(|(own, _)| *own == name).unwrap();
    testkit::cni::command("ip", &["link", "set", "lo", "up"]);
    test(&PathBuf::from(dir));
    ExitCode::SUCCESS
}
