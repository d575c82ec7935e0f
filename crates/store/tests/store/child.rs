//! The test program started again, as one ignored test that finds its work in the
//! environment.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const DIR: &str = "LONGSHORE_STORE_TEST_DIR";

/// The directory given to a child; `None` when somebody runs the ignored tests by hand.
pub(crate) fn dir() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// `wrapper` is a program and its arguments; the test program is appended to them.
pub(crate) fn command(test: &str, dir: &Path, wrapper: &[&OsStr]) -> Command {
    let exe = std::env::current_exe().expect("the test program has a path");
    let mut command = match wrapper.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(exe);
            command
        }
        None => Command::new(exe),
    };
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(DIR, dir);
    command
}

/// Runs `test` below a shell line that ends in `exec "$@"`.
pub(crate) fn shell(test: &str, dir: &Path, script: &str) -> Command {
    let wrapper = ["sh", "-c", script, "sh"].map(OsStr::new);
    command(test, dir, &wrapper)
}

/// Runs `test` with a tmpfs of that size on `dir`, in a mount namespace of its own that
/// goes with the process. `None`, loudly, when that is not possible here.
pub(crate) fn on_small_disk(test: &str, dir: &Path, size: &str) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {test}: mounting a tmpfs needs root");
        return None;
    }
    let script = format!(
        "mount -t tmpfs -o size={size},mode=0700 none '{}' || exit 77; exec \"$@\"",
        dir.display()
    );
    let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let output = command(test, dir, &wrapper.map(OsStr::new)).output();
    let refused = |output: &Output| {
        output.status.code() == Some(77)
            || String::from_utf8_lossy(&output.stderr).contains("unshare failed")
    };
    match output {
        Ok(output) if !refused(&output) => Some(output),
        other => {
            eprintln!("SKIPPED {test}: no private tmpfs here: {other:?}");
            None
        }
    }
}

#[track_caller]
pub(crate) fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
