//! Gives classes of containers CPUs of their own.
//!
//! Containers of a class share a *balloon*, a set of CPUs nobody else uses. It grows with
//! every container that joins and shrinks when one leaves; whoever is affected, in the
//! balloon or outside, is moved in the same step.
//!
//! ```yaml
//! # configuration file, or --config FILE
//! cpus: 0-15          # default: all that are online
//! shared_min: 2       # what balloons leave to everybody else
//! classes:
//!   fast: {min: 2, max: 8, per_container: 2}
//! ```
//! ```yaml
//! # annotation of a pod
//! balloon.noderesource.dev/container.db: fast
//! ```

mod balloons;
mod cpuset;
#[path = "../program/mod.rs"]
mod program;

use std::{collections::BTreeMap, fs, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use balloons::{Balloons, Config};
use clap::Parser;
use cpuset::CpuSet;
use nri_sdk::{
    Adjustment, Answer, Changes, Configuration, Container, Context, Creation, Handlers, Plugin,
    PodSandbox, Resources, Stub, Update, Updates, World, effective_annotation, stop_signal,
};
use parking_lot::Mutex;

const KEY: &str = "balloon.noderesource.dev";
const NO_CONFIG: &str = "no classes are configured: name a file with --config, or give the runtime \
                         one for this plugin, cpu-balloons.conf";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// An NRI plugin that gives classes of containers CPUs of their own.
///
/// Containers of a class share a balloon, a set of CPUs that nobody else uses. A pod chooses by
/// the annotation balloon.noderesource.dev/container.NAME=CLASS.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
    /// Classes, where the runtime has no configuration for this plugin
    #[arg(long)]
    config: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("cpu-balloons", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).with_context(|| {
            format!("read the configuration {}, as given by --config", path.display())
        })
    };
    let config = arguments.config.as_ref().map(read).transpose()?;
    let stub = arguments.nri.apply(Stub::builder(CpuBalloons::new(config))).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

struct CpuBalloons {
    config: Option<String>,
    /// Empty until the runtime has said how it is configured.
    balloons: Mutex<Option<Balloons>>,
}

impl Plugin for CpuBalloons {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .configure(Self::configure)
            .synchronize(Self::synchronize)
            .create_container(Self::create_container)
            .update_container(Self::update_container)
            .stop_container(Self::leave)
            .remove_container(Self::remove_container)
    }
}

impl CpuBalloons {
    fn new(config: Option<String>) -> Self {
        Self { config, balloons: Mutex::default() }
    }

    async fn configure(self: Arc<Self>, _: Context, configuration: Configuration) -> Answer {
        let text = match configuration.text.trim() {
            "" => self.config.clone().context(NO_CONFIG)?,
            text => text.to_owned(),
        };
        let config: Config = serde_saphyr::from_str(&text)?;
        let cpus = match &config.cpus {
            Some(cpus) => cpus.clone(),
            None => fs::read_to_string(ONLINE).with_context(|| format!("read {ONLINE}"))?,
        };
        *self.balloons.lock() = Some(Balloons::new(config, cpus.parse()?)?);
        Ok(())
    }

    /// Places all there are anew and moves those that are elsewhere.
    async fn synchronize(self: Arc<Self>, _: Context, world: World) -> Answer<Updates> {
        let mut guard = self.balloons.lock();
        let balloons = guard.as_mut().context("not configured")?;
        for container in &world.containers {
            let pod = world.pod_of(container);
            let class = pod.and_then(|pod| effective_annotation(pod, KEY, container));
            if let Err(error) = balloons.join(&container.id, class) {
                // It runs already; it can run on where the others do.
                tracing::warn!(container = container.name, "{error:#}");
                balloons.join(&container.id, None)?;
            }
        }
        let placed = balloons.all();
        let now = world.containers.iter().map(|container| (container.id.clone(), cpus(container)));
        Ok(moves(&now.collect(), &placed))
    }

    async fn create_container(
        self: Arc<Self>,
        _: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Creation> {
        let mut guard = self.balloons.lock();
        let balloons = guard.as_mut().context("not configured")?;
        let before = balloons.all();
        balloons.join(&container.id, effective_annotation(&pod, KEY, &container))?;
        let mut adjustment = Adjustment::new();
        if let Some(cpus) = balloons.cpus_of(&container.id) {
            adjustment.resources.cpu.cpus = cpus.to_string();
        }
        let updates = moves(&before, &balloons.all());
        Ok(Creation { adjustment, updates, ..Creation::default() })
    }

    /// Whatever is changed, the CPUs stay what they are.
    async fn update_container(
        self: Arc<Self>,
        _: Context,
        _: PodSandbox,
        container: Container,
        resources: Resources,
    ) -> Answer<Changes> {
        let guard = self.balloons.lock();
        let placed = guard.as_ref().and_then(|balloons| balloons.cpus_of(&container.id));
        let Some(cpus) = placed.filter(|cpus| cpus.to_string() != resources.cpu.cpus) else {
            return Ok(Changes::default());
        };
        Ok(update(&container.id, cpus).into())
    }

    async fn leave(
        self: Arc<Self>,
        _: Context,
        _: PodSandbox,
        container: Container,
    ) -> Answer<Updates> {
        let mut guard = self.balloons.lock();
        let Some(balloons) = guard.as_mut() else { return Ok(Updates::new()) };
        let before = balloons.all();
        balloons.leave(&container.id);
        Ok(moves(&before, &balloons.all()))
    }

    /// Not every runtime says that a container has stopped before it says that it is gone,
    /// and here there is no answer to put the moves into.
    async fn remove_container(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer {
        let runtime = ctx.runtime().clone();
        let updates = self.leave(ctx, pod, container).await?;
        Ok(runtime.update_containers(updates).await?)
    }
}

fn cpus(container: &Container) -> CpuSet {
    let resources = container.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let cpu = resources.and_then(|resources| resources.cpu.as_ref());
    cpu.and_then(|cpu| cpu.cpus.parse().ok()).unwrap_or_default()
}

/// Updates of the containers that were there before and have other CPUs after. One that is
/// gone by now is not worth failing for.
fn moves(before: &BTreeMap<String, CpuSet>, after: &BTreeMap<String, CpuSet>) -> Updates {
    let moved = after.iter().filter(|(id, cpus)| before.get(*id).is_some_and(|was| was != *cpus));
    moved.map(|(id, cpus)| update(id, cpus)).collect()
}

fn update(id: &str, cpus: &CpuSet) -> Update {
    let mut update = Update::of(id);
    update.resources.cpu.cpus = cpus.to_string();
    update.ignore_failure = true;
    update
}

#[cfg(test)]
mod tests {
    use nri_sdk::testing::{FakeConfig, FakeRuntime, container, pod};

    use super::*;

    const CONFIG: &str = "{cpus: 0-7, shared_min: 2, classes: {fast: {min: 2, max: 4}}}";

    async fn started(world: World) -> FakeRuntime<CpuBalloons> {
        let config = FakeConfig { world, ..Default::default() };
        let plugin = CpuBalloons::new(Some(CONFIG.into()));
        FakeRuntime::start_with(plugin, config).await.unwrap()
    }

    fn fast() -> PodSandbox {
        let mut pod = pod("fast");
        pod.annotations.insert(KEY.into(), "fast".into());
        pod
    }

    /// As `id=cpus`, in the order of the ids.
    fn text(updates: &Updates) -> Vec<String> {
        let mut texts: Vec<_> = updates
            .iter()
            .map(|update| format!("{}={}", update.container_id, update.resources.cpu.cpus))
            .collect();
        texts.sort();
        texts
    }

    #[tokio::test]
    async fn others_move_when_a_balloon_grows_and_shrinks() {
        let runtime = started(World::default()).await;
        let (web, fast) = (pod("web"), fast());
        let plain = container(&web, "plain");
        let members: Vec<_> = ["a", "b", "c"].map(|name| container(&fast, name)).into();
        let created = runtime.create_container(&web, &plain).await.unwrap();
        assert_eq!(created.adjustment.resources.cpu.cpus, "0-7");
        let mut got = Vec::new();
        for member in &members {
            let created = runtime.create_container(&fast, member).await.unwrap();
            got.push((created.adjustment.resources.cpu.cpus.clone(), text(&created.updates)));
        }
        let grown = vec!["pod-fast-a=5-7", "pod-fast-b=5-7", "pod-web-plain=0-4"];
        let want = [
            ("6-7".to_owned(), vec!["pod-web-plain=0-5".to_owned()]),
            ("6-7".to_owned(), vec![]),
            ("5-7".to_owned(), grown.into_iter().map(str::to_owned).collect()),
        ];
        assert_eq!(got, want);
        let freed = runtime.stop_container(&fast, &members[2]).await.unwrap();
        let shrunk = ["pod-fast-a=6-7", "pod-fast-b=6-7", "pod-web-plain=0-5"];
        assert_eq!(text(&freed), shrunk);
        runtime.remove_container(&fast, &members[2]).await.unwrap();
        assert!(runtime.unsolicited().is_empty(), "stopped already");
    }

    #[tokio::test]
    async fn a_removal_without_a_stop_moves_them_too() {
        let runtime = started(World::default()).await;
        let (web, fast) = (pod("web"), fast());
        runtime.create_container(&web, &container(&web, "plain")).await.unwrap();
        let a = container(&fast, "a");
        runtime.create_container(&fast, &a).await.unwrap();
        runtime.remove_container(&fast, &a).await.unwrap();
        let asked = runtime.unsolicited();
        assert_eq!(asked.len(), 1);
        assert_eq!(text(&asked[0].updates), ["pod-web-plain=0-7"]);
    }

    #[tokio::test]
    async fn an_update_does_not_change_the_cpus() {
        let runtime = started(World::default()).await;
        let fast = fast();
        let a = container(&fast, "a");
        runtime.create_container(&fast, &a).await.unwrap();
        let mut resources = Resources::new();
        resources.cpu.cpus = "0-7".into();
        let changes = runtime.update_container(&fast, &a, &resources).await.unwrap();
        assert_eq!(text(&changes.updates), ["pod-fast-a=6-7"]);
        resources.cpu.cpus = "6-7".into();
        let changes = runtime.update_container(&fast, &a, &resources).await.unwrap();
        assert!(changes.is_empty());
    }

    #[tokio::test]
    async fn after_a_restart_all_are_placed_as_before() {
        let (web, fast) = (pod("web"), fast());
        let mut a = container(&fast, "a");
        // It has its place already, and the other has not.
        let linux = a.linux.get_or_insert_default();
        linux.resources.get_or_insert_default().cpu.get_or_insert_default().cpus = "6-7".into();
        let plain = container(&web, "plain");
        let world = World { pods: vec![web.clone(), fast], containers: vec![a, plain] };
        let mut runtime = started(world.clone()).await;
        assert_eq!(text(runtime.sync_updates()), ["pod-web-plain=0-5"]);
        runtime.restart(world).await.unwrap();
        assert_eq!(text(runtime.sync_updates()), ["pod-web-plain=0-5"]);
        let created = runtime.create_container(&web, &container(&web, "new")).await.unwrap();
        assert_eq!(created.adjustment.resources.cpu.cpus, "0-5");
        assert!(created.updates.is_empty());
    }

    #[tokio::test]
    async fn an_unknown_class_fails_the_creation() {
        let runtime = started(World::default()).await;
        let mut web = pod("web");
        web.annotations.insert(KEY.into(), "turbo".into());
        let refused = runtime.create_container(&web, &container(&web, "a")).await;
        assert!(refused.unwrap_err().to_string().contains("no class \"turbo\""));
    }

    #[tokio::test]
    async fn without_classes_it_does_not_start() {
        assert!(FakeRuntime::start(CpuBalloons::new(None)).await.is_err());
        assert!(FakeRuntime::start(CpuBalloons::new(Some("cpus: x".into()))).await.is_err());
    }
}
