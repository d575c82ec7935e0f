//! Puts containers where annotations of their pod want them in Resource Director Technology:
//! cache ways, memory bandwidth and monitoring.
//!
//! ```yaml
//! closid.rdt.noderesource.dev/container.db: gold
//! schemata.rdt.noderesource.dev/container.db: "L3:0=ff;1=f, MB:0=70"
//! enablemonitoring.rdt.noderesource.dev/pod: "true"
//! ```

#[path = "../program/mod.rs"]
mod program;

use std::{process::ExitCode, sync::Arc};

use anyhow::Context as _;
use clap::Parser;
use nri_sdk::{
    Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox, Rdt, Stub,
    effective_annotation, stop_signal,
};

/// An NRI plugin that assigns containers to classes of Resource Director Technology.
///
/// Annotations of the pod choose: closid.rdt.noderesource.dev/container.NAME, and likewise
/// schemata and enablemonitoring.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
    /// Set it even where another plugin already has
    #[arg(long)]
    take_over: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("rdt", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plugin = RdtPlugin { take_over: arguments.take_over };
    let stub = arguments.nri.apply(Stub::builder(plugin)).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

struct RdtPlugin {
    take_over: bool,
}

impl Plugin for RdtPlugin {
    fn handlers() -> Handlers<Self> {
        Handlers::new().create_container(Self::create_container)
    }
}

impl RdtPlugin {
    async fn create_container(
        self: Arc<Self>,
        _: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Adjustment> {
        let mut adjustment = Adjustment::new();
        adjustment.rdt = asked(&pod, &container)?;
        if adjustment.rdt != Rdt::default() {
            adjustment.rdt.take_over = self.take_over;
        }
        Ok(adjustment)
    }
}

fn asked(pod: &PodSandbox, container: &Container) -> anyhow::Result<Rdt> {
    let annotation = |name: &str| {
        let key = format!("{name}.rdt.noderesource.dev");
        effective_annotation(pod, &key, container).map(str::trim)
    };
    let schemata = |text: &str| text.split(',').map(|line| line.trim().to_owned()).collect();
    let monitoring = annotation("enablemonitoring").map(|text| {
        text.parse().with_context(|| format!("enablemonitoring: {text:?} is not true or false"))
    });
    Ok(Rdt {
        take_over: false,
        clos_id: annotation("closid").map(str::to_owned),
        schemata: annotation("schemata").map(schemata),
        enable_monitoring: monitoring.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use nri_sdk::testing::{FakeRuntime, container, pod};

    use super::*;

    async fn adjusted(
        take_over: bool,
        annotations: &[(&str, &str)],
    ) -> Result<Rdt, nri_sdk::ttrpc::Error> {
        let runtime = FakeRuntime::start(RdtPlugin { take_over }).await.unwrap();
        let mut web = pod("web");
        for (key, value) in annotations {
            web.annotations.insert((*key).to_owned(), (*value).to_owned());
        }
        let created = runtime.create_container(&web, &container(&web, "db")).await?;
        Ok(created.adjustment.rdt)
    }

    #[tokio::test]
    async fn annotations_become_rdt() {
        let annotations = [
            ("closid.rdt.noderesource.dev/container.db", "gold"),
            ("closid.rdt.noderesource.dev/pod", "bronze"),
            ("schemata.rdt.noderesource.dev/container.db", "L3:0=ff;1=f, MB:0=70"),
            ("enablemonitoring.rdt.noderesource.dev", "true"),
        ];
        for take_over in [false, true] {
            let want = Rdt {
                take_over,
                clos_id: Some("gold".into()),
                schemata: Some(vec!["L3:0=ff;1=f".into(), "MB:0=70".into()]),
                enable_monitoring: Some(true),
            };
            assert_eq!(adjusted(take_over, &annotations).await.unwrap(), want);
        }
    }

    #[tokio::test]
    async fn what_is_not_asked_for_is_not_touched() {
        let other = [("closid.rdt.noderesource.dev/container.web", "gold")];
        assert_eq!(adjusted(true, &other).await.unwrap(), Rdt::default());
    }

    #[tokio::test]
    async fn a_bad_flag_fails_the_creation() {
        let bad = [("enablemonitoring.rdt.noderesource.dev/container.db", "maybe")];
        let error = adjusted(false, &bad).await.unwrap_err();
        assert!(error.to_string().contains("\"maybe\" is not true or false"), "{error}");
    }
}
