//! Writes down every event a runtime has, whole, as YAML documents or lines of JSON.
//!
//! ```text
//! logger --idx 00 --events pod,CreateContainer --format json --output events.json
//! ```
//!
//! Started by the runtime it has no flags and no standard output; its configuration file is
//! then YAML with the same names: `events`, `format`, `output`.

#[path = "../program/mod.rs"]
mod program;
mod yaml;

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use nri_sdk::{
    Answer, Configuration, Container, Context, Event, EventMask, Handlers, Plugin, PodResources,
    PodSandbox, Proposal, Resources, Stub, Subscription, World, api, stop_signal,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An NRI plugin that writes down every event, whole, as YAML documents or lines of JSON.
///
/// Launched by a runtime it has no flags: its configuration file is YAML with the same names,
/// events, format and output.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
    #[command(flatten)]
    settings: Settings,
}

/// What the command line or the configuration file says.
#[derive(clap::Args, Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Events to log: names, pod, container or all
    #[arg(long, default_value = None)]
    events: Option<String>,
    /// How events are written
    #[arg(long, value_enum, default_value = None)]
    format: Option<Format>,
    /// File to append to, instead of standard output
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// Documents
    #[default]
    Yaml,
    /// One line per event
    Json,
}

struct Logger {
    settings: Mutex<Settings>,
    output: Mutex<Box<dyn Write + Send>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("logger", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let logger = Logger::open(arguments.settings)?;
    let stub = arguments.nri.apply(Stub::builder(logger)).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

impl Logger {
    fn open(settings: Settings) -> anyhow::Result<Self> {
        let output: Box<dyn Write + Send> = match &settings.output {
            Some(path) => append(path)?,
            None => Box::new(io::stdout()),
        };
        Ok(Self::new(settings, output))
    }

    fn new(settings: Settings, output: Box<dyn Write + Send>) -> Self {
        Self { settings: Mutex::new(settings), output: Mutex::new(output) }
    }

    /// One event, with its parts in order.
    fn log<const N: usize>(&self, event: &str, parts: [(&str, Value); N]) -> Answer {
        let mut document = Map::from_iter([("event".to_owned(), event.into())]);
        let parts = parts.into_iter().map(|(name, part)| (name.to_owned(), prune(part)));
        document.extend(parts.filter(|(_, part)| !part.is_null()));
        let document = Value::Object(document);
        let text = match self.settings.lock().format.unwrap_or_default() {
            Format::Yaml => format!("---\n{}", yaml::to_yaml(&document)),
            Format::Json => format!("{document}\n"),
        };
        // In one piece, and out at once: the next thing to happen may be a crash.
        let mut output = self.output.lock();
        output.write_all(text.as_bytes())?;
        Ok(output.flush()?)
    }

    fn of(&self, ctx: &Context, pod: &PodSandbox, container: &Container) -> Answer {
        self.log(name(ctx), [("pod", json(pod)?), ("container", json(container)?)])
    }

    async fn configure(
        self: Arc<Self>,
        _: Context,
        configuration: Configuration,
    ) -> Answer<Subscription> {
        if !configuration.text.trim().is_empty() {
            let settings: Settings = serde_saphyr::from_str(&configuration.text)?;
            if let Some(path) = &settings.output {
                *self.output.lock() = append(path)?;
            }
            *self.settings.lock() = settings;
        }
        let runtime = &configuration.runtime;
        let runtime = serde_json::json!({
            "name": runtime.name, "version": runtime.version, "nri_version": runtime.nri_version,
        });
        self.log("Configure", [("runtime", runtime)])?;
        let events = self.settings.lock().events.clone();
        Ok(match events {
            Some(events) => Subscription::Only(events.parse::<EventMask>()?),
            None => Subscription::Handled,
        })
    }

    async fn synchronize(self: Arc<Self>, _: Context, world: World) -> Answer {
        let (pods, containers) = (json(&world.pods)?, json(&world.containers)?);
        self.log("Synchronize", [("pods", pods), ("containers", containers)])
    }

    async fn shutdown(self: Arc<Self>, _: Context) -> Answer {
        self.log("Shutdown", [])
    }

    async fn pod(self: Arc<Self>, ctx: Context, pod: PodSandbox) -> Answer {
        self.log(name(&ctx), [("pod", json(&pod)?)])
    }

    async fn update_pod(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        resources: PodResources,
    ) -> Answer {
        let overhead = json(&resources.overhead.to_wire())?;
        let resources = json(&resources.resources.to_wire())?;
        let pod = json(&pod)?;
        self.log(name(&ctx), [("pod", pod), ("overhead", overhead), ("resources", resources)])
    }

    async fn container(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer {
        self.of(&ctx, &pod, &container)
    }

    async fn update(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
        resources: Resources,
    ) -> Answer {
        let resources = json(&resources.to_wire())?;
        let (pod, container) = (json(&pod)?, json(&container)?);
        self.log(name(&ctx), [("pod", pod), ("container", container), ("resources", resources)])
    }

    async fn validate(self: Arc<Self>, ctx: Context, proposal: Proposal) -> Answer {
        let adjustment = api::ContainerAdjustment::try_from(proposal.adjustment)?;
        let updates: Vec<api::ContainerUpdate> = proposal.updates.into();
        let plugins = proposal.plugins.iter().map(|p| format!("{}-{}", p.index, p.name));
        let parts = [
            ("pod", json(&proposal.pod)?),
            ("container", json(&proposal.container)?),
            ("adjustment", json(&adjustment)?),
            ("updates", json(&updates)?),
            ("owners", json(&api::OwningPlugins::from(proposal.owners))?),
            ("plugins", plugins.collect()),
        ];
        self.log(name(&ctx), parts)
    }
}

impl Plugin for Logger {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .configure(Self::configure)
            .synchronize(Self::synchronize)
            .shutdown(Self::shutdown)
            .run_pod_sandbox(Self::pod)
            .update_pod_sandbox(Self::update_pod)
            .post_update_pod_sandbox(Self::pod)
            .stop_pod_sandbox(Self::pod)
            .remove_pod_sandbox(Self::pod)
            .create_container(Self::container)
            .post_create_container(Self::container)
            .start_container(Self::container)
            .post_start_container(Self::container)
            .update_container(Self::update)
            .post_update_container(Self::container)
            .stop_container(Self::container)
            .remove_container(Self::container)
            .validate_container_adjustment(Self::validate)
    }
}

fn name(ctx: &Context) -> &'static str {
    ctx.event().map_or("unknown", Event::method)
}

fn append(path: &Path) -> anyhow::Result<Box<dyn Write + Send>> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    Ok(Box::new(file.with_context(|| format!("open {}", path.display()))?))
}

fn json(part: &impl Serialize) -> Answer<Value> {
    Ok(serde_json::to_value(part)?)
}

/// Without what is not set: a container has a hundred fields, most of them empty.
fn prune(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let pruned = entries.into_iter().map(|(key, value)| (key, prune(value)));
            let entries: Map<_, _> = pruned.filter(|(_, value)| !value.is_null()).collect();
            if entries.is_empty() { Value::Null } else { Value::Object(entries) }
        }
        Value::Array(items) => match items.is_empty() {
            true => Value::Null,
            false => items.into_iter().map(prune).collect(),
        },
        Value::String(text) if text.is_empty() => Value::Null,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use nri_sdk::testing::{FakeConfig, FakeRuntime, container, pod};

    use super::*;

    /// What was written, shared with the logger that writes it.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    async fn started(settings: Settings, config: &str) -> (FakeRuntime<Logger>, Paper) {
        let paper = Paper::default();
        let logger = Logger::new(settings, Box::new(paper.clone()));
        let config = FakeConfig { config: config.into(), ..Default::default() };
        (FakeRuntime::start_with(logger, config).await.unwrap(), paper)
    }

    #[tokio::test]
    async fn json_has_a_line_for_every_event() {
        let settings = Settings { format: Some(Format::Json), ..Default::default() };
        let (runtime, paper) = started(settings, "").await;
        assert_eq!(runtime.events(), EventMask::ALL);
        let mut web = pod("web");
        web.annotations.insert("k".into(), "v".into());
        let nginx = container(&web, "nginx");
        runtime.run_pod_sandbox(&web).await.unwrap();
        runtime.create_container(&web, &nginx).await.unwrap();
        let mut resources = Resources::new();
        resources.cpu.cpus = "0-3".into();
        runtime.update_container(&web, &nginx, &resources).await.unwrap();
        runtime.validate_container_adjustment(&Proposal::default()).await.unwrap();
        runtime.shutdown().await.unwrap();
        let text = paper.text();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        let want = [
            "Configure",
            "Synchronize",
            "RunPodSandbox",
            "CreateContainer",
            "UpdateContainer",
            "ValidateContainerAdjustment",
            "Shutdown",
        ];
        assert_eq!(events, want);
        assert_eq!(lines[2]["pod"]["annotations"]["k"], "v");
        assert_eq!(lines[3]["container"]["name"], "nginx");
        assert_eq!(lines[3]["container"].get("hooks"), None, "what is empty is left out");
        assert_eq!(lines[4]["resources"]["cpu"]["cpus"], "0-3");
    }

    #[tokio::test]
    async fn yaml_is_documents() {
        let (runtime, paper) = started(Settings::default(), "").await;
        runtime.run_pod_sandbox(&pod("web")).await.unwrap();
        let text = paper.text();
        let last = text.rsplit("---\n").next().unwrap();
        let document: Value = serde_saphyr::from_str(last).unwrap();
        assert_eq!(document["event"], "RunPodSandbox");
        assert_eq!(document["pod"]["name"], "web");
    }

    #[tokio::test]
    async fn the_configuration_file_decides() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let config =
            format!("format: json\nevents: StopContainer,pod\noutput: {}\n", path.display());
        let (runtime, paper) = started(Settings::default(), &config).await;
        assert_eq!(runtime.events().iter().count(), 6);
        let web = pod("web");
        runtime.stop_pod_sandbox(&web).await.unwrap();
        runtime.start_container(&web, &container(&web, "nginx")).await.unwrap();
        assert_eq!(paper.text(), "");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.lines().last().unwrap().contains("StopPodSandbox"));
    }

    #[tokio::test]
    async fn a_bad_configuration_ends_it() {
        for config in ["format: xml", "evnets: all", "events: NoSuchEvent"] {
            let logger = Logger::new(Settings::default(), Box::new(Paper::default()));
            let config = FakeConfig { config: config.into(), ..Default::default() };
            assert!(FakeRuntime::start_with(logger, config).await.is_err());
        }
    }

    #[test]
    fn flags_are_what_they_say() {
        let parsed = Arguments::parse_from(["logger", "--format", "json", "--events", "pod"]);
        assert_eq!(parsed.settings.format, Some(Format::Json));
        assert_eq!(parsed.settings.events.as_deref(), Some("pod"));
    }
}
