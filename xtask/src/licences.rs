//! What comes into the build from outside: licences, sources, versions, crates we refused.
//!
//! The rules are data in `deny.toml`, in the form cargo-deny reads; the facts come from
//! `cargo metadata` and `cargo tree`. Nothing has to be installed or downloaded to know.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{
    metadata::{Metadata, Package},
    report, spdx,
};

/// `deny.toml`, as far as we obey it. Keys we do not know are cargo-deny's own business.
#[derive(Debug, Deserialize)]
struct Policy {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Bans {
    skip: Vec<Entry>,
    skip_tree: Vec<Entry>,
    deny: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// `name` or `name@version`, and why. The version may be cut short: `@2` is any 2.x. The reason is not optional.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "crate")]
    spec: String,
    reason: String,
}

impl Entry {
    fn names(&self, package: &Package) -> bool {
        match self.spec.split_once('@') {
            Some((name, version)) => package.name == name && is_version(&package.version, version),
            None => package.name == self.spec,
        }
    }
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let path = root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let policy: Policy = toml::from_str(&text).context("read deny.toml")?;
    let mut metadata = Metadata::load(root)?;
    metadata.keep_built(root)?;
    report("licences", metadata.packages.len(), "packages", &check(&metadata, &policy))
}

fn check(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut faults = Vec::new();
    let members: BTreeSet<_> = metadata.members().map(|package| package.id.as_str()).collect();
    for package in metadata.packages.iter().filter(|p| !members.contains(p.id.as_str())) {
        faults.extend(licence_fault(package, &policy.licenses));
        faults.extend(source_fault(package, &policy.sources));
        faults.extend(ban_fault(package, &policy.bans));
    }
    faults.extend(duplicates(metadata, &policy.bans));
    faults
}

fn licence_fault(package: &Package, policy: &Licenses) -> Option<String> {
    let label = label(package);
    let Some(expression) = &package.license else {
        return Some(format!("{label} states no licence"));
    };
    match spdx::satisfied(expression, &|id| policy.allow.contains(id)) {
        Ok(true) => None,
        Ok(false) => {
            Some(format!("{label} is under {expression:?}, which licenses.allow cannot satisfy"))
        }
        Err(e) => Some(format!("{label}: licence {expression:?}: {e}")),
    }
}

fn source_fault(package: &Package, policy: &Sources) -> Option<String> {
    let registry = package.source.as_deref().and_then(|source| source.strip_prefix("registry+"));
    if registry.is_some_and(|url| policy.allow_registry.iter().any(|allowed| allowed == url)) {
        return None;
    }
    let source = package.source.as_deref().unwrap_or("a path outside the workspace");
    Some(format!("{} comes from {source}, not from an allowed registry", label(package)))
}

fn ban_fault(package: &Package, policy: &Bans) -> Option<String> {
    let entry = policy.deny.iter().find(|entry| entry.names(package))?;
    Some(format!("{} is refused: {}", label(package), entry.reason))
}

/// More than one version of a crate, once the excused ones are set aside; and excuses that
/// excuse nothing, so that the list shrinks when it can.
fn duplicates(metadata: &Metadata, policy: &Bans) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in &metadata.packages {
        by_name.entry(&package.name).or_default().push(package);
    }
    by_name.retain(|_, versions| versions.len() > 1);

    let mut used = BTreeSet::new();
    let trees: Vec<_> = policy.skip_tree.iter().map(|entry| tree(metadata, entry)).collect();
    let mut faults = Vec::new();
    for (name, versions) in &by_name {
        let mut unexcused = Vec::new();
        for package in versions {
            let skip = policy.skip.iter().find(|entry| entry.names(package));
            let mut excuses: Vec<_> = skip.into_iter().map(|entry| entry.spec.as_str()).collect();
            for (entry, tree) in policy.skip_tree.iter().zip(&trees) {
                excuses.extend(tree.contains(package.id.as_str()).then_some(entry.spec.as_str()));
            }
            if excuses.is_empty() {
                unexcused.push(package.version.as_str());
            }
            used.extend(excuses);
        }
        if unexcused.len() > 1 {
            faults.push(format!(
                "{name} is in the build {} times: {}",
                unexcused.len(),
                unexcused.join(", ")
            ));
        }
    }
    for entry in policy.skip.iter().chain(&policy.skip_tree) {
        if !used.contains(entry.spec.as_str()) {
            faults
                .push(format!("deny.toml excuses {}, which needs no excuse any more", entry.spec));
        }
    }
    faults
}

fn tree<'a>(metadata: &'a Metadata, entry: &Entry) -> BTreeSet<&'a str> {
    let roots = metadata.packages.iter().filter(|package| entry.names(package));
    roots
        .flat_map(|root| {
            let mut tree = metadata.reach(&root.id, |_| true);
            tree.insert(&root.id);
            tree
        })
        .collect()
}

fn is_version(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '+']))
}

fn label(package: &Package) -> String {
    format!("{} {}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fabricate::World, metadata::PLATFORMS};

    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT"]
        [bans]
        skip = [{ crate = "twice@1.0.0", reason = "old" }]
        skip-tree = [{ crate = "peer", reason = "test only" }]
        deny = [{ crate = "bad", reason = "no" }]
        [sources]
        allow-registry = ["https://example.org/index"]
    "#;
    const INDEX: &str = "registry+https://example.org/index";

    /// A world in which both excuses of the policy are needed, so that faults are those of the case.
    fn world() -> World {
        World::default()
            .outside("twice 1.0.0", "MIT", INDEX)
            .outside("twice 2.0.0", "MIT", INDEX)
            .outside("peer 1.0.0", "MIT", INDEX)
            .outside("below 1.0.0", "MIT", INDEX)
            .outside("below 2.0.0", "MIT", INDEX)
            .edge("peer 1.0.0", "below 1.0.0")
    }

    #[track_caller]
    fn faults(world: World, want: &[&str]) {
        let policy = toml::from_str(POLICY).unwrap();
        assert_eq!(check(&world.metadata(), &policy), want);
    }

    #[test]
    fn excused_duplicates_and_allowed_licences_pass() {
        faults(world(), &[]);
    }

    #[test]
    fn a_third_version_is_a_fault() {
        faults(
            world().outside("twice 3.0.0", "MIT", INDEX),
            &["twice is in the build 2 times: 2.0.0, 3.0.0"],
        );
    }

    #[test]
    fn an_unlisted_duplicate_is_a_fault() {
        faults(
            world().outside("a 1.0.0", "MIT", INDEX).outside("a 2.0.0", "MIT", INDEX),
            &["a is in the build 2 times: 1.0.0, 2.0.0"],
        );
    }

    #[test]
    fn a_stale_excuse_is_a_fault() {
        faults(
            World::default(),
            &[
                "deny.toml excuses twice@1.0.0, which needs no excuse any more",
                "deny.toml excuses peer, which needs no excuse any more",
            ],
        );
    }

    #[test]
    fn licences_sources_and_refused_crates() {
        faults(
            world()
                .outside("copyleft 1.0.0", "GPL-3.0", INDEX)
                .outside("silent 1.0.0", "", INDEX)
                .outside("odd 1.0.0", "MIT OR", INDEX)
                .outside("forked 1.0.0", "MIT", "git+https://example.org/forked")
                .outside("bad 1.0.0", "MIT", INDEX),
            &[
                r#"copyleft 1.0.0 is under "GPL-3.0", which licenses.allow cannot satisfy"#,
                "silent 1.0.0 states no licence",
                r#"odd 1.0.0: licence "MIT OR": a licence is missing at the end"#,
                "forked 1.0.0 comes from git+https://example.org/forked, not from an allowed registry",
                "bad 1.0.0 is refused: no",
            ],
        );
    }

    #[test]
    fn versions_may_be_cut_short() {
        assert!(is_version("2.0.119", "2"));
        assert!(is_version("2.0.119", "2.0.119"));
        assert!(is_version("1.1.5+spec-1.1.0", "1.1.5"));
        assert!(!is_version("2.0.119", "2.0.11"));
        assert!(!is_version("20.1.0", "2"));
        assert!(!is_version("1.2.0", "2"));
    }

    #[test]
    fn deny_toml_is_for_the_platforms_we_ask_cargo_about() {
        let text = include_str!("../../deny.toml");
        let table: toml::Table = text.parse().unwrap();
        let targets: Vec<_> = table["graph"]["targets"].as_array().unwrap().iter().collect();
        assert_eq!(targets.iter().filter_map(|t| t.as_str()).collect::<Vec<_>>(), PLATFORMS);
        toml::from_str::<Policy>(text).unwrap();
    }

    #[test]
    fn an_excuse_without_a_reason_is_refused() {
        let policy = POLICY.replace(r#", reason = "old""#, "");
        let error = toml::from_str::<Policy>(&policy).unwrap_err().to_string();
        assert!(error.contains("reason"), "{error}");
    }
}
