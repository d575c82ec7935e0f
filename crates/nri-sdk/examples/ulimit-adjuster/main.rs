//! Sets the resource limits of containers that an annotation of their pod asks for.
//!
//! ```yaml
//! ulimits.noderesource.dev/container.db: |
//!   - type: RLIMIT_MEMLOCK
//!     hard: 1073741824
//!     soft: 1073741824
//!   - {type: nofile, hard: 4096, soft: 1024}
//! ```
//!
//! Types are those of setrlimit(2), in either case, with or without their prefix. Instead of
//! `/container.NAME` the key may end in `/pod`, or in nothing, for all containers.

#[path = "../program/mod.rs"]
mod program;

use std::{collections::BTreeMap, process::ExitCode, sync::Arc};

use clap::Parser;
use nri_sdk::{
    Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox, Rlimit, Stub,
    effective_annotation, stop_signal,
};
use serde::Deserialize;

const KEY: &str = "ulimits.noderesource.dev";
/// What the key was before.
const OLD_KEY: &str = "ulimits.nri.containerd.io";

const TYPES: [&str; 16] = [
    "AS",
    "CORE",
    "CPU",
    "DATA",
    "FSIZE",
    "LOCKS",
    "MEMLOCK",
    "MSGQUEUE",
    "NICE",
    "NOFILE",
    "NPROC",
    "RSS",
    "RTPRIO",
    "RTTIME",
    "SIGPENDING",
    "STACK",
];

/// An NRI plugin that sets the resource limits that an annotation of the pod asks for.
///
/// The annotation is ulimits.noderesource.dev/container.NAME, a list in YAML:
/// [{type: nofile, hard: 4096, soft: 1024}]
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("ulimit-adjuster", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let stub = arguments.nri.apply(Stub::builder(UlimitAdjuster)).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

struct UlimitAdjuster;

impl Plugin for UlimitAdjuster {
    fn handlers() -> Handlers<Self> {
        Handlers::new().create_container(Self::create_container)
    }
}

impl UlimitAdjuster {
    async fn create_container(
        self: Arc<Self>,
        _: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Adjustment> {
        let mut adjustment = Adjustment::new();
        let asked = [KEY, OLD_KEY].map(|key| effective_annotation(&pod, key, &container));
        if let Some(text) = asked.into_iter().flatten().next() {
            let rlimits =
                parse(text).map_err(|error| error.context(format!("annotation {KEY}")))?;
            adjustment.rlimits = rlimits;
        }
        Ok(adjustment)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ulimit {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    hard: u64,
    #[serde(default)]
    soft: u64,
}

fn parse(text: &str) -> anyhow::Result<BTreeMap<String, Rlimit>> {
    let mut rlimits = BTreeMap::new();
    for Ulimit { kind, hard, soft } in serde_saphyr::from_str::<Vec<Ulimit>>(text)? {
        let name = kind.to_ascii_uppercase();
        let name = name.strip_prefix("RLIMIT_").unwrap_or(&name);
        anyhow::ensure!(TYPES.contains(&name), "no limit is called {kind:?}");
        anyhow::ensure!(soft <= hard, "{kind}: soft limit {soft} is above hard limit {hard}");
        let twin = rlimits.insert(format!("RLIMIT_{name}"), Rlimit { hard, soft });
        anyhow::ensure!(twin.is_none(), "{kind} is given twice");
    }
    Ok(rlimits)
}

#[cfg(test)]
mod tests {
    use nri_sdk::testing::{FakeRuntime, container, pod};

    use super::*;

    /// Limits as `TYPE hard soft`, or the error.
    async fn adjusted(key: &str, text: &str) -> Result<Vec<String>, String> {
        let runtime = FakeRuntime::start(UlimitAdjuster).await.unwrap();
        let mut web = pod("web");
        web.annotations.insert(key.into(), text.into());
        let created = runtime.create_container(&web, &container(&web, "db")).await;
        let rlimits = created.map_err(|error| error.to_string())?.adjustment.rlimits;
        let text =
            |(kind, limit): (&String, &Rlimit)| format!("{kind} {} {}", limit.hard, limit.soft);
        Ok(rlimits.iter().map(text).collect())
    }

    #[tokio::test]
    async fn limits_have_names_in_every_style() {
        let text = "[{type: nofile, hard: 4096, soft: 1024}, {type: RLIMIT_CORE}, {type: rlimit_nproc, hard: 7, soft: 7}]";
        let want = ["RLIMIT_CORE 0 0", "RLIMIT_NOFILE 4096 1024", "RLIMIT_NPROC 7 7"];
        for key in [KEY, OLD_KEY] {
            for suffix in ["/container.db", "/pod", ""] {
                assert_eq!(adjusted(&format!("{key}{suffix}"), text).await.unwrap(), want);
            }
        }
    }

    #[tokio::test]
    async fn others_are_left_alone() {
        let key = format!("{KEY}/container.other");
        assert!(adjusted(&key, "[{type: nofile}]").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_is_wrong_is_named() {
        let check = async |text: &str, want: &str| {
            let error = adjusted(KEY, text).await.unwrap_err();
            assert!(error.contains(KEY) && error.contains(want), "{error}");
        };
        check("[{type: files}]", "no limit is called \"files\"").await;
        check("[{type: nofile, soft: 2, hard: 1}]", "soft limit 2 is above hard limit 1").await;
        check("[{type: nofile}, {type: RLIMIT_NOFILE}]", "is given twice").await;
        check("[{kind: nofile}]", "kind").await;
    }
}
