//! The daemon as crictl sees it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::process::{Command, Output};

use testkit::{DaemonProcess, GoTool};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

#[tokio::test]
async fn version_and_info() {
    let Some(crictl) = GoTool::Crictl.build().unwrap() else {
        return testkit::skip("version_and_info", "crictl needs Go to be built");
    };
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let run = |args: &[&str]| -> Output {
        let endpoint = format!("unix://{}", daemon.cri_socket().display());
        Command::new(&crictl)
            .args(["--config", "/dev/null", "--runtime-endpoint", &endpoint])
            .args(args)
            .output()
            .unwrap()
    };
    let version = run(&["version"]);
    let text = String::from_utf8_lossy(&version.stdout);
    assert!(version.status.success(), "{version:?}");
    assert!(text.contains("RuntimeName:  longshore"), "{text}");
    assert!(text.contains("RuntimeApiVersion:  v1"), "{text}");

    let info = run(&["info"]);
    assert!(info.status.success(), "{info:?}");
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    let conditions = info["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions[0]["type"], "RuntimeReady");
    assert_eq!(conditions[1]["type"], "NetworkReady");
}
