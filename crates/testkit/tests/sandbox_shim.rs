//! How the shim with the Sandbox service is called. What it does is tested by those who drive it;
//! and because of this test cargo builds it for them.

use std::process::Command;

const SHIM: &str = env!("CARGO_BIN_EXE_sandbox-shim");

#[test]
fn it_tells_its_version_and_refuses_what_it_does_not_know() {
    let version = Command::new(SHIM).arg("-v").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains("Version:"), "{version:?}");
    for (args, want) in [(&["-x"][..], "-x is unknown"), (&["-id"], "-id has no value")] {
        let refused = Command::new(SHIM).args(args).output().unwrap();
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains(want), "{refused:?}");
    }
    assert_eq!(testkit::sandbox_shim(SHIM).as_os_str(), SHIM);
}
