//! Pods created at once while plugins are slow: the time is that of the slowest plugin, not of
//! the sum.
//!
//! `cargo bench -p longshore --bench plugins`. Without root it says so and measures nothing.

#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::{path::Path, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use nri_sdk::{
    Answer, Container, Context, Creation, Environment, Handlers, Plugin, PodSandbox, Stub, Updates,
    World,
};
use testkit::{Cri, Node};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};
use tokio_util::task::TaskTracker;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
const PODS: usize = 20;
const NAP: Duration = Duration::from_millis(50);
/// Of five plugins to one.
const MOST: f64 = 1.5;

/// Takes its time for everything it can refuse.
#[derive(Default)]
struct Sleeper {
    synced: Notify,
}

impl Sleeper {
    async fn synchronize(self: Arc<Self>, _: Context, _: World) -> Answer<Updates> {
        self.synced.notify_one();
        Ok(Updates::default())
    }

    async fn pod(self: Arc<Self>, _: Context, _: PodSandbox) -> Answer {
        tokio::time::sleep(NAP).await;
        Ok(())
    }

    async fn create(self: Arc<Self>, _: Context, _: PodSandbox, _: Container) -> Answer<Creation> {
        tokio::time::sleep(NAP).await;
        Ok(Creation::default())
    }

    async fn start(self: Arc<Self>, _: Context, _: PodSandbox, _: Container) -> Answer {
        tokio::time::sleep(NAP).await;
        Ok(())
    }
}

impl Plugin for Sleeper {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .synchronize(Self::synchronize)
            .run_pod_sandbox(Self::pod)
            .create_container(Self::create)
            .start_container(Self::start)
    }
}

struct Connected(JoinHandle<()>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn connect(socket: &Path, number: usize) -> Result<Connected> {
    let stub = Stub::builder(Sleeper::default())
        .environment(Environment::default())
        .name("sleeper")
        .index(format!("{number:02}"))
        .socket(socket)
        .build()?;
    let plugin = Arc::clone(stub.plugin());
    let running = TaskTracker::new().spawn(async move {
        let _ = stub.run().await;
    });
    plugin.synced.notified().await;
    Ok(Connected(running))
}

/// From the first request to the last answer.
async fn create_all(node: &Node, cri: &Cri, plugins: usize) -> Result<Duration> {
    let socket = node.daemon.state().join("nri.sock");
    let mut connected = Vec::new();
    for number in 0..plugins {
        connected.push(connect(&socket, number).await?);
    }
    let begun = Instant::now();
    let pods = try_join_all((0..PODS).map(|number| async move {
        let pod = cri.run_pod(&node.pod(&format!("p{plugins}-{number}"))).await?;
        cri.run(&pod, node.sh("c", "exec sleep 1000")).await?;
        Ok::<_, tonic::Status>(pod)
    }))
    .await?;
    let took = begun.elapsed();
    drop(connected);
    for pod in pods {
        cri.remove_pod(&pod.id).await?;
    }
    Ok(took)
}

/// As it ships, beside the daemon.
fn build_shim() -> Result<()> {
    let profile = Path::new(LONGSHORE).parent().context("a program lies in a directory")?;
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "--quiet", "--package", "shim"]);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().context("run cargo build")?;
    ensure!(status.success(), "cargo build of the shim: {status}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    build_shim()?;
    let Some(node) = Node::start("benchmark of plugins", LONGSHORE).await else { return Ok(()) };
    let cri = node.cri().await?;
    let none = create_all(&node, &cri, 0).await?;
    let one = create_all(&node, &cri, 1).await?;
    let five = create_all(&node, &cri, 5).await?;
    node.finish().await?;
    let ratio = five.as_secs_f64() / one.as_secs_f64();
    println!("{PODS} pods at once, plugins that take {NAP:?} for each of three calls");
    println!("  no plugin      {:>6} ms", none.as_millis());
    println!("  one plugin     {:>6} ms", one.as_millis());
    println!("  five plugins   {:>6} ms   {ratio:.2} x one, at most {MOST}", five.as_millis());
    println!("  containerd as Debian ships it has no NRI to measure beside");
    ensure!(ratio <= MOST, "five plugins take {ratio:.2} times as long as one");
    Ok(())
}
