//! The sample plugins as programs, as their users meet them.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const EXAMPLES: [&str; 7] = [
    "cpu-balloons",
    "device-injector",
    "hook-injector",
    "logger",
    "network-logger",
    "rdt",
    "ulimit-adjuster",
];

/// The program of an example, built beside this test.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    testkit::sdk_example(own.parent().unwrap(), name).unwrap()
}

/// What an operator sees who has backtraces on.
fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(example(name));
    command.args(arguments).env("RUST_BACKTRACE", "1").env_remove("NO_COLOR");
    command.output().unwrap()
}

/// Standard error of a plugin that ended with an error: its log, and a last line for people.
#[track_caller]
fn failed(output: &Output) -> (String, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for bad in ["\u{1b}", "backtrace", "Error:", "Caused by", "panicked"] {
        assert!(!text.contains(bad), "{bad:?}: {text}");
    }
    let last = text.lines().last().unwrap_or_default().to_owned();
    (text, last)
}

#[test]
fn help_is_prose() {
    for name in EXAMPLES {
        for flag in ["--help", "-h"] {
            let output = run(name, &[flag]);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success());
            assert!(text.starts_with("An NRI plugin that "), "{name}: {text}");
            for bad in ["`", "nri_sdk", "derive(", "\u{1b}", "To be flattened"] {
                assert!(!text.contains(bad), "{name}: {bad:?}: {text}");
            }
        }
    }
}

#[test]
fn without_a_runtime_they_end_with_a_sentence() {
    for name in EXAMPLES {
        let arguments = ["--idx", "10", "--socket", "/nonexistent/nri.sock", "--no-reconnect"];
        let mut arguments = arguments.to_vec();
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        fs::write(&config, "classes: {}\n").unwrap();
        if name == "cpu-balloons" {
            arguments.extend(["--config", config.to_str().unwrap()]);
        }
        let (text, last) = failed(&run(name, &arguments));
        assert!(last.starts_with(&format!("{name}: ")), "{text}");
        assert!(last.contains("/nonexistent/nri.sock"), "{text}");
    }
}

#[test]
fn who_it_is_has_to_be_said() {
    let (text, last) = failed(&run("rdt", &["--socket", "/nonexistent/nri.sock"]));
    assert!(last.contains("no index is given") && last.contains("NN-name"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    let (text, last) = failed(&run("cpu-balloons", &["--idx", "10", "--config", "/nonexistent"]));
    assert!(last.contains("/nonexistent") && last.contains("--config"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

async fn runtime_in(dir: &Path) -> nri::Nri {
    let settings = nri::Settings {
        socket: Some(dir.join("nri.sock")),
        plugin_dirs: Vec::new(),
        ..nri::Settings::default()
    };
    let nri = nri::Nri::new(settings, nri::RuntimeInfo::new("test", "1")).unwrap();
    nri.start().await.unwrap();
    nri
}

#[tokio::test(flavor = "multi_thread")]
async fn no_configuration_at_all_is_told_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let nri = runtime_in(dir.path()).await;
    let socket = dir.path().join("nri.sock");
    let ended = tokio::task::spawn_blocking(move || {
        run("cpu-balloons", &["--idx", "10", "--socket", socket.to_str().unwrap()])
    });
    let (text, last) = failed(&ended.await.unwrap());
    assert!(last.contains("no classes are configured"), "{text}");
    assert!(last.contains("--config") && last.contains("cpu-balloons.conf"), "{text}");
    nri.shutdown().await;
}
