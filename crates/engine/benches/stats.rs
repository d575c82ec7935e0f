//! What it costs to ask what 50 containers use; the promise is 5 ms.
//!
//! A plain program over real containers. Run it with `cargo build --release -p shim` and
//! `cargo bench -p engine`.

#![allow(clippy::print_stdout, reason = "the table is the product")]

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "tests need more of it, and may panic")]
mod support;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{
    Engine,
    view::{ContainerFilter, PodFilter},
};
use support::{Host, sh};
use tokio::time::Instant;

const PODS: usize = 10;
const EACH: usize = 5;
const ROUNDS: usize = 200;

fn main() -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<()> {
    let host = Host::new("stats").context("this runs containers: run it as root")?;
    let (engine, store) = host.open().await;
    let mut pods = Vec::new();
    for number in 0..PODS {
        let pod = engine.run_pod(host.pod(&format!("p{number}"))).await?;
        for container in 0..EACH {
            let asked = sh(&format!("c{container}"), "exec sleep 1000");
            let id = engine.create_container(pod.as_str(), asked).await?;
            engine.start_container(id.as_str()).await?;
        }
        pods.push(pod);
    }
    println!("{} containers in {PODS} pods, {ROUNDS} rounds: p50 / p99 in µs", PODS * EACH);
    let containers = measure(async || containers(&engine).await).await?;
    println!("list container stats  {containers}");
    println!("list pod stats        {}", measure(async || of_pods(&engine).await).await?);
    println!("all figures           {}", measure(async || everything(&engine).await).await?);
    for pod in pods {
        engine.remove_pod(pod.as_str()).await?;
    }
    engine.close().await;
    store.close().await?;
    Ok(())
}

async fn containers(engine: &Engine) -> Result<()> {
    let stats = engine.list_container_stats(&ContainerFilter::default()).await?;
    ensure!(stats.iter().filter(|stats| stats.usage.is_some()).count() == PODS * EACH);
    Ok(())
}

async fn of_pods(engine: &Engine) -> Result<()> {
    ensure!(engine.list_pod_stats(&PodFilter::default()).await?.len() == PODS);
    Ok(())
}

async fn everything(engine: &Engine) -> Result<()> {
    ensure!(engine.list_pod_usage_details().await?.len() == PODS);
    Ok(())
}

async fn measure(work: impl AsyncFn() -> Result<()>) -> Result<String> {
    let mut took = Vec::with_capacity(ROUNDS);
    work().await?;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        work().await?;
        took.push(begun.elapsed());
    }
    took.sort();
    let at = |share: usize| Duration::as_micros(&took[ROUNDS * share / 100]);
    Ok(format!("{:>6} / {:>6}", at(50), at(99)))
}
