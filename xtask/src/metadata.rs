//! The part of `cargo metadata` that the checks look at.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// What we ship for. Crates that only other systems would build are neither fetched nor checked.
pub(crate) const PLATFORMS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_members: Vec<String>,
    pub(crate) resolve: Resolve,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// `None` for a package of this repository.
    pub(crate) source: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) manifest_path: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// A dependency as declared, also when a feature or a platform switches it off.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Option<DependencyKind>,
    /// Set when the dependency is a crate of ours.
    pub(crate) path: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DependencyKind {
    Dev,
    Build,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Resolve {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) deps: Vec<NodeDependency>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeDependency {
    pub(crate) pkg: String,
    pub(crate) dep_kinds: Vec<NodeDependencyKind>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeDependencyKind {
    pub(crate) kind: Option<DependencyKind>,
}

impl Metadata {
    /// Asks cargo, for [`PLATFORMS`] only, and never changes the lock file.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["metadata", "--format-version", "1", "--locked"]);
        for platform in PLATFORMS {
            cargo.args(["--filter-platform", platform]);
        }
        let answer = answer(&mut cargo).context("cargo metadata")?;
        serde_json::from_slice(&answer).context("read the answer of cargo metadata")
    }

    /// Forgets packages that are in the lock file but in no build: `cargo metadata` also lists
    /// optional dependencies that a feature mentions without switching them on.
    pub(crate) fn keep_built(&mut self, root: &Path) -> Result<()> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args([
            "tree",
            "--locked",
            "--workspace",
            "--edges=normal,build,dev",
        ]);
        cargo.args(["--prefix=none", "--format={p}"]);
        for platform in PLATFORMS {
            cargo.args(["--target", platform]);
        }
        let answer = answer(&mut cargo).context("cargo tree")?;
        let tree = String::from_utf8(answer).context("read the answer of cargo tree")?;
        let built: BTreeSet<_> = tree.lines().filter_map(name_and_version).collect();
        self.packages
            .retain(|package| built.contains(&(package.name.as_str(), package.version.as_str())));
        Ok(())
    }

    /// The crates of this repository.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Everything below `root` that a dependency accepted by `follow` leads to, without `root`.
    pub(crate) fn reach(
        &self,
        root: &str,
        follow: impl Fn(&NodeDependency) -> bool,
    ) -> BTreeSet<&str> {
        let nodes: BTreeMap<_, _> =
            self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut seen = BTreeSet::new();
        let mut frontier = vec![root];
        while let Some(id) = frontier.pop() {
            let below = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            for dependency in below.filter(|dependency| follow(dependency)) {
                if seen.insert(dependency.pkg.as_str()) {
                    frontier.push(&dependency.pkg);
                }
            }
        }
        seen
    }
}

impl NodeDependency {
    pub(crate) fn is_normal(&self) -> bool {
        self.dep_kinds.iter().any(|dependency| dependency.kind.is_none())
    }
}

/// Reads `name v1.2.3 (what else cargo tree has to say)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

fn answer(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{}", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabricate::World;

    #[test]
    fn reads_the_lines_of_cargo_tree() {
        assert_eq!(name_and_version("syn v2.0.1"), Some(("syn", "2.0.1")));
        assert_eq!(name_and_version("base v0.1.0 (/src/base) (*)"), Some(("base", "0.1.0")));
        assert_eq!(name_and_version(""), None);
    }

    #[test]
    fn reach_follows_edges_and_survives_a_circle() {
        let world = World::default()
            .member("a", &[])
            .member("b", &[])
            .member("c", &[])
            .edge("a 0.1.0", "b 0.1.0")
            .edge("b 0.1.0", "a 0.1.0")
            .metadata();
        let reached = world.reach("a 0.1.0", |_| true);
        assert_eq!(reached.into_iter().collect::<Vec<_>>(), ["a 0.1.0", "b 0.1.0"]);
        assert!(world.reach("a 0.1.0", |_| false).is_empty());
    }
}
