//! The program as `make conformance` calls it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_conformance");

#[test]
fn help_names_what_can_be_chosen() {
    let output = Command::new(PROGRAM).arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for flag in ["--longshore", "--handler", "--focus", "--bless", "--websocket"] {
        assert!(text.contains(flag), "{flag} is not in\n{text}");
    }
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    if !testkit::is_root() {
        return testkit::skip("a_daemon_that_is_not_there_is_named", "needs root");
    }
    let output =
        Command::new(PROGRAM).args(["--longshore", "/nowhere/longshore"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(err.contains("/nowhere/longshore"), "{err}");
}
