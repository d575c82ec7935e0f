//! What needs mounts: snapshots from layers to running and gone, and the comparison with
//! another unpacker.
//!
//! Its own small runner: every test is a process in its own mount namespace, and what it
//! leaves behind is looked for.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a runner of tests prints, and its helpers fail by panicking"
)]

mod image;
mod life;
#[path = "../layers/tarball.rs"]
#[expect(dead_code, reason = "the other suite needs more of it")]
mod tarball;
#[path = "../layers/tree.rs"]
mod tree;
mod umoci;

use std::{
    env,
    future::Future,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// The name of the test a child shall run, and its directory.
const CHILD: &str = "SNAPSHOT_ROOT_TEST";

type Test = (&'static str, fn(&Path));

macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), $module::$name)),+),+]
    };
}

const TESTS: &[Test] = tests![
    life:
        a_container_lives_on_an_overlay,
        a_container_lives_on_a_copy,
        views_cannot_be_written,
        images_without_layers,
        many_layers,
        volatile_ones_are_mounted_once,
        others_are_mounted_again,
        ids_are_mapped_on_an_overlay,
        ids_are_shifted_in_a_copy,
        the_first_commit_wins,
        a_layer_needs_its_parent_to_commit,
        what_is_not_needed_is_collected,
        layers_in_use_stay,
        removal_does_not_wait_for_the_disk,
        usage_is_sampled,
        a_start_cleans_up,
        layers_of_another_boot_are_lost,
        one_store_at_a_time,
        callers_may_go_away,
        nothing_starts_after_the_end;
    umoci:
        trees_are_equal,
        random_images_are_equal,
        debian_is_equal,
];

fn main() -> ExitCode {
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
        testkit::skip("snapshot root tests", "need root");
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
    let dir = tempfile::Builder::new().prefix("snapshot-root-").tempdir().unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .env(CHILD, format!("{name} {}", dir.path().display()))
        .output()
        .unwrap();
    let mut complaints = String::new();
    if !output.status.success() {
        complaints = format!("{}\n", output.status);
    }
    let table = sys::mount::Table::own().unwrap();
    for entry in table.entries.iter().filter(|entry| entry.point.starts_with(dir.path())) {
        complaints += &format!("left mounted: {}\n", entry.point.display());
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

fn child(wanted: &str) -> ExitCode {
    let (name, dir) = wanted.split_once(' ').unwrap();
    let (_, test) = TESTS.iter().find(|(own, _)| *own == name).unwrap();
    sys::namespace::unshare_mounts().unwrap();
    let dir = PathBuf::from(dir);
    test(&dir);
    let table = sys::mount::Table::own().unwrap();
    let left: Vec<_> = table.below(&dir).map(|entry| entry.point.clone()).collect();
    assert!(left.is_empty(), "left mounted: {left:?}");
    ExitCode::SUCCESS
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}
