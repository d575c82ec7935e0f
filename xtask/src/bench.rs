//! Every benchmark of the workspace, found rather than listed.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::metadata::Metadata;

pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = Metadata::load(root)?;
    let benches = benches(&metadata);
    ensure!(!benches.is_empty(), "the workspace has no benchmark");
    for (package, bench) in benches {
        println!("== {package}: {bench}");
        // One by one: by package alone, cargo would hand the unit tests to the bench run as well.
        let status = Command::new("cargo")
            .current_dir(root)
            .args(["bench", "--locked", "--quiet", "--package", &package, "--bench", bench])
            .status()
            .context("run cargo bench")?;
        ensure!(status.success(), "benchmark {bench} of {package}: {status}");
    }
    Ok(())
}

/// The package with its version: a peer we measure against may have our crate's name.
fn benches(metadata: &Metadata) -> Vec<(String, &str)> {
    let mut benches: Vec<_> = metadata
        .members()
        .flat_map(|package| package.targets.iter().map(move |target| (package, target)))
        .filter(|(_, target)| target.kind.iter().any(|kind| kind == "bench"))
        .map(|(package, target)| {
            (format!("{}@{}", package.name, package.version), target.name.as_str())
        })
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
        assert_eq!(benches(&metadata), [("store@0.1.0".to_owned(), "commit")]);
    }
}
