//! Which crate may use which: the rules that keep the engine in one piece.
//!
//! Dependencies point down the table of layers, never up and never sideways; a few crates keep
//! narrower rules. Dev-dependencies are free, which is how tests everywhere reach `testkit`: it
//! is the top layer, so nothing can ship it.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    metadata::{Dependency, DependencyKind, Metadata, Package},
    report,
};

/// Bottom first. A crate uses only crates of lower layers. Crates that are planned are here
/// already: where they belong was decided with the layers.
const LAYERS: &[&[&str]] = &[
    &["base", "ttrpc-build", "xtask"],
    &["h2-authority", "store", "sys", "ttrpc", "telemetry"],
    &["api-admin", "api-cri", "api-docker", "api-shim", "nri-wire"],
    &["shim-io"],
    &["content", "net", "nri", "nri-sdk", "oci", "probe", "shim", "shim-client", "snapshot"],
    &["engine"],
    &["stream"],
    &["front-admin", "front-cri", "front-docker"],
    &["longshore"],
    &["testkit"],
    &["conformance"],
];

#[derive(Debug)]
struct Rule {
    ban: Ban,
    why: &'static str,
}

#[derive(Debug)]
enum Ban {
    /// The crates use no crate of ours but these.
    AllOfOursBut { crates: &'static [&'static str], allowed: &'static [&'static str] },
    /// The crates do not use these, ours or not.
    Direct { crates: &'static [&'static str], refused: &'static [&'static str] },
    /// These are not even reached through other crates.
    Reach { crates: &'static [&'static str], refused: &'static [&'static str] },
    /// Only the named crates use it.
    AllBut { users: &'static [&'static str], refused: &'static str },
}

const RULES: &[Rule] = &[
    Rule {
        ban: Ban::Reach {
            crates: &["base"],
            refused: &["hyper", "mio", "rusqlite", "rustix", "tokio", "tonic"],
        },
        why: "base does no I/O",
    },
    Rule {
        ban: Ban::Direct {
            crates: &["front-admin", "front-cri", "front-docker"],
            refused: &["shim-client", "snapshot", "store"],
        },
        why: "front ends translate and call the engine; they decide nothing",
    },
    Rule {
        ban: Ban::Direct {
            crates: &["engine"],
            refused: &[
                "api-cri",
                "api-docker",
                "api-shim",
                "axum",
                "http",
                "hyper",
                "nri-wire",
                "prost",
                "prost-types",
                "tonic",
            ],
        },
        why: "the engine sees no protobuf and no HTTP type",
    },
    Rule {
        ban: Ban::AllOfOursBut { crates: &["stream"], allowed: &[] },
        why: "stream asks a trait for the work, so that others can use it",
    },
    Rule {
        ban: Ban::AllOfOursBut { crates: &["h2-authority"], allowed: &[] },
        why: "h2-authority knows HTTP/2 and nothing of who serves it",
    },
    Rule {
        ban: Ban::AllOfOursBut { crates: &["ttrpc"], allowed: &[] },
        why: "ttrpc knows neither NRI nor shims, and the published SDK stands on it",
    },
    Rule {
        ban: Ban::AllOfOursBut { crates: &["nri-wire"], allowed: &["ttrpc", "ttrpc-build"] },
        why: "the published SDK stands on nri-wire",
    },
    Rule {
        ban: Ban::AllOfOursBut { crates: &["nri-sdk"], allowed: &["nri-wire", "ttrpc"] },
        why: "who writes a plugin gets the SDK, not the engine",
    },
    Rule {
        ban: Ban::AllBut { users: &["front-cri", "longshore", "testkit"], refused: "api-cri" },
        why: "CRI stays in its front end and our own client",
    },
    Rule {
        ban: Ban::AllBut { users: &["front-admin", "longshore", "testkit"], refused: "api-admin" },
        why: "our own API has one server and one client",
    },
    Rule {
        ban: Ban::AllBut { users: &["front-docker", "testkit"], refused: "api-docker" },
        why: "the Docker API stays in its front end",
    },
    Rule {
        ban: Ban::AllBut {
            users: &["shim", "shim-client", "shim-io", "testkit"],
            refused: "api-shim",
        },
        why: "the shim protocol has two ends, and what both have in common",
    },
    Rule {
        ban: Ban::AllBut { users: &["h2-authority"], refused: "loona-hpack" },
        why: "header compression is h2's, but for what h2 refuses to read",
    },
    Rule {
        ban: Ban::AllBut { users: &["store"], refused: "rusqlite" },
        why: "nothing but store writes state",
    },
    Rule {
        ban: Ban::AllBut { users: &["sys"], refused: "libc" },
        why: "rustix everywhere; what it lacks is wrapped once, in sys",
    },
];

/// Has its own table of lints, because it is the one that may hold `unsafe`.
const OWN_LINTS: &str = "sys";

pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = Metadata::load(root)?;
    let mut faults = check(&metadata);
    for package in metadata.members() {
        let path = &package.manifest_path;
        let manifest = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        faults.extend(lint_fault(&package.name, &manifest)?);
    }
    report("layers", metadata.workspace_members.len(), "crates", &faults)
}

fn check(metadata: &Metadata) -> Vec<String> {
    let mut faults = Vec::new();
    for package in metadata.members() {
        let Some(layer) = layer(&package.name) else {
            faults.push(format!("{} has no place in the table of layers", package.name));
            continue;
        };
        for dependency in shipped(package).filter(|dependency| dependency.path.is_some()) {
            faults.extend(layer_fault(package, layer, dependency));
        }
        for rule in RULES {
            let broken = rule.ban.broken_by(metadata, package);
            faults.extend(broken.map(|used| format!("{} uses {used}: {}", package.name, rule.why)));
        }
    }
    faults
}

fn layer_fault(package: &Package, own: usize, dependency: &Dependency) -> Option<String> {
    let (user, used) = (&package.name, &dependency.name);
    let direction = match layer(used)?.cmp(&own) {
        std::cmp::Ordering::Less => return None,
        std::cmp::Ordering::Equal => "sideways",
        std::cmp::Ordering::Greater => "up",
    };
    Some(format!("{user} depends {direction} on {used}: dependencies point down only"))
}

/// Index into [`LAYERS`].
fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|crates| crates.contains(&name))
}

/// What a build of the package takes in. Tests may use anything.
fn shipped(package: &Package) -> impl Iterator<Item = &Dependency> {
    package.dependencies.iter().filter(|dependency| dependency.kind != Some(DependencyKind::Dev))
}

impl Ban {
    /// The names of what `package` should not use and does.
    fn broken_by<'a>(
        &self,
        metadata: &'a Metadata,
        package: &'a Package,
    ) -> impl Iterator<Item = &'a str> {
        let name = package.name.as_str();
        let direct = |refused: &dyn Fn(&Dependency) -> bool| -> Vec<&'a str> {
            shipped(package).filter(|d| refused(d)).map(|d| d.name.as_str()).collect()
        };
        let used = match self {
            Self::AllOfOursBut { crates, allowed } if crates.contains(&name) => {
                direct(&|d| d.path.is_some() && !allowed.contains(&d.name.as_str()))
            }
            Self::Direct { crates, refused } if crates.contains(&name) => {
                direct(&|d| refused.contains(&d.name.as_str()))
            }
            Self::AllBut { users, refused } if !users.contains(&name) => {
                direct(&|d| d.name == *refused)
            }
            Self::Reach { crates, refused } if crates.contains(&name) => {
                let below = metadata.reach(&package.id, |dependency| dependency.is_normal());
                let reached = metadata.packages.iter().filter(|p| below.contains(p.id.as_str()));
                reached.map(|p| p.name.as_str()).filter(|name| refused.contains(name)).collect()
            }
            _ => Vec::new(),
        };
        used.into_iter()
    }
}

/// Lints are the workspace's, `unsafe_code = "forbid"` among them, or they are not checked at all.
fn lint_fault(name: &str, manifest: &str) -> Result<Option<String>> {
    let manifest: toml::Table =
        manifest.parse().with_context(|| format!("read the manifest of {name}"))?;
    let lints = manifest.get("lints");
    let inherited = lints.and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    Ok(match (inherited, lints) {
        (Some(true), _) => None,
        (_, Some(_)) if name == OWN_LINTS => None,
        _ => Some(format!("{name} does not inherit the lints of the workspace")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabricate::World;

    #[track_caller]
    fn faults(world: World, want: &[&str]) {
        assert_eq!(check(&world.metadata()), want);
    }

    #[test]
    fn down_is_allowed() {
        faults(
            World::default()
                .member("longshore", &["front-cri", "engine", "build base"])
                .member("front-cri", &["engine", "api-cri", "^tonic"])
                .member("engine", &["store", "dev testkit"])
                .member("testkit", &["engine"]),
            &[],
        );
    }

    #[test]
    fn up_and_sideways_are_not() {
        faults(
            World::default()
                .member("store", &["engine"])
                .member("probe", &["build net"])
                .member("engine", &["testkit"]),
            &[
                "store depends up on engine: dependencies point down only",
                "probe depends sideways on net: dependencies point down only",
                "engine depends up on testkit: dependencies point down only",
            ],
        );
    }

    #[test]
    fn a_crate_without_a_place_is_a_fault() {
        faults(
            World::default().member("helpers", &[]),
            &["helpers has no place in the table of layers"],
        );
    }

    #[test]
    fn front_ends_stay_out_of_the_parts() {
        faults(
            World::default()
                .member("front-cri", &["store", "dev shim-client"])
                .member("front-docker", &["snapshot"]),
            &[
                "front-cri uses store: front ends translate and call the engine; they decide nothing",
                "front-docker uses snapshot: front ends translate and call the engine; they decide nothing",
            ],
        );
    }

    #[test]
    fn the_engine_sees_no_wire_type() {
        faults(
            World::default().member("engine", &["api-shim", "^prost", "dev ^http"]),
            &[
                "engine uses api-shim: the engine sees no protobuf and no HTTP type",
                "engine uses prost: the engine sees no protobuf and no HTTP type",
                "engine uses api-shim: the shim protocol has two ends, and what both have in common",
            ],
        );
    }

    #[test]
    fn base_does_not_even_reach_tokio() {
        faults(
            World::default()
                .member("base", &["^innocent"])
                .outside("innocent 1.0.0", "MIT", "registry")
                .outside("tokio 1.0.0", "MIT", "registry")
                .edge("base 0.1.0", "innocent 1.0.0")
                .edge("innocent 1.0.0", "tokio 1.0.0"),
            &["base uses tokio: base does no I/O"],
        );
    }

    #[test]
    fn the_sdk_drags_in_nothing_of_the_engine() {
        faults(
            World::default()
                .member("nri-sdk", &["nri-wire", "ttrpc", "base", "^tokio"])
                .member("nri-wire", &["ttrpc", "build ttrpc-build", "sys"])
                .member("ttrpc", &["base"]),
            &[
                "nri-sdk uses base: who writes a plugin gets the SDK, not the engine",
                "nri-wire uses sys: the published SDK stands on nri-wire",
                "ttrpc uses base: ttrpc knows neither NRI nor shims, and the published SDK stands on it",
            ],
        );
    }

    #[test]
    fn wrapped_crates_have_one_user() {
        faults(
            World::default()
                .member("store", &["^rusqlite", "^libc"])
                .member("sys", &["^libc"])
                .member("engine", &["^rusqlite"])
                .member("net", &["api-cri", "dev ^libc"]),
            &[
                "store uses libc: rustix everywhere; what it lacks is wrapped once, in sys",
                "engine uses rusqlite: nothing but store writes state",
                "net uses api-cri: CRI stays in its front end and our own client",
            ],
        );
    }

    #[test]
    fn a_namesake_from_outside_is_not_ours() {
        faults(World::default().member("base", &["^ttrpc"]), &[]);
    }

    #[test]
    fn each_crate_has_one_place() {
        let mut names: Vec<_> = LAYERS.concat();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn lints_are_inherited() {
        let fault = |name, manifest| lint_fault(name, manifest).unwrap();
        assert_eq!(fault("net", "[lints]\nworkspace = true"), None);
        assert_eq!(fault("sys", "[lints.rust]\nunreachable_pub = \"warn\""), None);
        let want = Some("net does not inherit the lints of the workspace".to_owned());
        assert_eq!(fault("net", "[lints.rust]\nunsafe_code = \"allow\""), want);
        assert_eq!(fault("net", "[lints]\nworkspace = false"), want);
        assert_eq!(fault("net", ""), want);
    }
}
