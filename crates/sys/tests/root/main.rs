//! What needs root, in real namespaces.
//!
//! This is its own small test runner, because libtest runs each test in a thread and
//! forking with care is what is tested here. Every test is a process: the runner starts
//! itself again with the test's name, the child takes a mount namespace and a temporary
//! directory of its own, and the runner looks afterwards whether anything is left.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test runner: a panic is how a test fails, and standard output is the report"
)]

mod cgroups;
mod mounts;
mod namespaces;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use sys::mount::Table;

/// The name of the test a child shall run, and its directory.
const CHILD: &str = "SYS_ROOT_TEST";

type Test = (&'static str, fn(&Path));

/// `tests![module: name, name]` → the table of tests.
macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), $module::$name)),+),+]
    };
}

const TESTS: &[Test] = tests![
    mounts:
        overlay_shows_layers_and_keeps_changes_above,
        overlay_takes_more_layers_than_fit_a_page,
        overlay_takes_paths_longer_than_fsconfig,
        overlay_the_old_way,
        overlay_options_reach_the_kernel,
        views_are_read_only,
        a_refusal_says_what_the_kernel_said,
        bind_trees_are_read_only_all_the_way,
        attributes_add_up,
        detached_mounts_vanish_when_dropped,
        attach_to_an_open_directory,
        tmpfs_has_its_limits,
        unmounting,
        unmount_tree_takes_all_and_only_that,
        busy_mounts_are_said_to_be,
        propagation,
        ids_are_mapped_both_ways,
        idmap_probe_tells_file_systems_apart,
        nothing_is_left_in_the_table;
    namespaces:
        pins_outlive_their_holder,
        unpinning_takes_pins_only,
        a_user_namespace_owns_the_others,
        holders_leave_no_process,
        holders_work_beside_threads,
        a_failed_pin_leaves_no_file,
        pid_namespaces_need_an_init,
        an_init_is_pid_one_and_has_nothing_of_ours,
        threads_enter_and_do_not_stay,
        children_become_root_inside,
        children_report_what_went_wrong,
        forking_beside_threads_is_refused,
        mount_namespaces_can_be_pinned_and_entered;
    cgroups:
        this_host_has_a_layout,
        a_group_lives_and_dies,
        v2_groups_freeze_and_die,
        kills_reach_what_is_frozen,
        a_thawed_group_dies_of_an_earlier_kill,
        threads_that_become_another_program_freeze,
        the_oom_killer_is_counted,
        groups_that_are_gone_say_so,
        busy_groups_are_not_removed,
];

fn main() -> ExitCode {
    if env::var_os(cgroups::RESTLESS).is_some() {
        cgroups::restless();
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
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: all {} of them need root\n", tests.len());
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
    let dir =
        tempfile::Builder::new().prefix("sys-root-").tempdir().expect("a temporary directory");
    let tag = dir.path().file_name().expect("it has a name").to_owned();
    let output = Command::new(env::current_exe().expect("our own path"))
        .env(CHILD, format!("{name} {}", dir.path().display()))
        .output()
        .expect("start ourselves");
    let mut complaints = String::new();
    if !output.status.success() {
        complaints = format!("{}\n", output.status);
    }
    let table = Table::own().expect("the mount table");
    for entry in table.entries.iter().filter(|e| e.point.starts_with(dir.path())) {
        complaints += &format!("left mounted: {}\n", entry.point.display());
    }
    for group in cgroups::named(&tag.to_string_lossy()) {
        complaints += &format!("left cgroup: {}\n", group.display());
    }
    println!("test {name} ... {}", if complaints.is_empty() { "ok" } else { "FAILED" });
    if !complaints.is_empty() {
        print!("{complaints}{}", String::from_utf8_lossy(&output.stdout));
        println!("{}", String::from_utf8_lossy(&output.stderr));
    }
    complaints.is_empty()
}

fn child(wanted: &str) -> ExitCode {
    let (name, dir) = wanted.split_once(' ').expect("name and directory");
    let (_, test) = TESTS.iter().find(|(own, _)| *own == name).expect("a test of this name");
    sys::namespace::unshare_mounts().expect("a mount namespace of our own");
    test(&PathBuf::from(dir));
    // What a test started it has to end: a child still there, dead or alive, is a leak.
    match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
        Err(rustix::io::Errno::CHILD) => ExitCode::SUCCESS,
        other => {
            println!("a child is left: {other:?}");
            ExitCode::FAILURE
        }
    }
}
