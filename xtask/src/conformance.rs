//! critest against the daemon, by the program `conformance`.

use std::{os::unix::process::CommandExt, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{bin_dir, confine::OciRuntime};

/// Builds what it takes, then runs it with `args`.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    let packages = ["--package=longshore", "--package=shim", "--package=conformance"];
    let built = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--locked", "--quiet"])
        .args(packages)
        .status()
        .context("run cargo build")?;
    ensure!(built.success(), "cargo build: {built}");
    // In place of this process: whoever interrupts it waits for what it does then.
    Err(program(root, args)?.exec()).context("run conformance")
}

/// Returns the command of a stage, for the OCI runtime that it is confined to.
///
/// After the tests everything is built: a build without them would build it all once more, with the
/// features that only tests ask for left out.
pub(crate) fn with(root: &Path, runtime: Option<OciRuntime>) -> Result<Command> {
    let args: &[&str] = match runtime {
        Some(OciRuntime::Crun) => {
            &["--handler=crun=crun", "--expected=crates/conformance/expected/crun-v1.txt"]
        }
        Some(OciRuntime::Runc) | None => &[],
    };
    program(root, args)
}

fn program(root: &Path, args: &[&str]) -> Result<Command> {
    let bins = bin_dir()?;
    let mut command = Command::new(bins.join("conformance"));
    command.current_dir(root).arg("--longshore").arg(bins.join("longshore")).args(args);
    Ok(command)
}
