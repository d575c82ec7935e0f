//! Every benchmark of the workspace, found rather than listed.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::metadata::Metadata;

pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = Metadata::load(root)?;
    let benches = benches(&metadata);
    ensure!(!benches.is_empty(), "the workspace has no benchmark");
    // All in one go: package by package, cargo would choose features anew and compile every
    // dependency as often.
    cargo(root, &benches, &["--no-run"]).context("build the benchmarks")?;
    for bench in benches {
        println!("== {bench}");
        cargo(root, &[bench], &[]).with_context(|| format!("benchmark {bench}"))?;
    }
    Ok(())
}

fn cargo(root: &Path, benches: &[&str], more: &[&str]) -> Result<()> {
    let named = benches.iter().flat_map(|bench| ["--bench", bench]);
    let status = Command::new("cargo")
        .current_dir(root)
        .args(["bench", "--locked", "--quiet", "--workspace"])
        .args(named)
        .args(more)
        .status()
        .context("run cargo bench")?;
    ensure!(status.success(), "cargo bench: {status}");
    Ok(())
}

fn benches(metadata: &Metadata) -> Vec<&str> {
    let mut benches: Vec<_> = metadata
        .members()
        .flat_map(|package| &package.targets)
        .filter(|target| target.kind.iter().any(|kind| kind == "bench"))
        .map(|target| target.name.as_str())
        .collect();
    benches.sort_unstable();
    benches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fabricate::World, metadata::Target};

    #[test]
    fn finds_benches_only_of_members() {
        let mut metadata = World::default()
            .member("store", &[])
            .outside("theirs 1.0.0", "MIT", "registry")
            .metadata();
        for package in &mut metadata.packages {
            let target =
                |name: &str, kind: &str| Target { name: name.into(), kind: vec![kind.into()] };
            package.targets = vec![target("commit", "bench"), target("kill", "test")];
        }
        assert_eq!(benches(&metadata), ["commit"]);
    }
}
