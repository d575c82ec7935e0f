//! Sample plugins of the SDK, which tests of other crates start as programs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

/// The path of a built example of `nri-sdk`, beside the program `built`, which tells where
/// this build keeps its programs. Builds it where that has not happened yet; not for async
/// code.
pub fn sdk_example(built: impl AsRef<Path>, name: &str) -> anyhow::Result<PathBuf> {
    let profile = built.as_ref().parent().context("a program lies in a directory")?;
    let target = profile.parent().context("the target directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--locked", "--package", "nri-sdk", "--example", name])
        .arg("--target-dir")
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    // Build scripts look at what cargo says of the package it runs: with that of the test, half
    // of all dependencies would be built anew.
    let of_test = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
    for (key, _) in std::env::vars_os() {
        if of_test.iter().any(|prefix| key.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(key);
        }
    }
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let output = command.output().context("run cargo build")?;
    if !output.status.success() {
        bail!("cargo build --example {name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(profile.join("examples").join(name))
}
