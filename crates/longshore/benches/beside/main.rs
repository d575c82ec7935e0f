//! Longshore beside Debian's containerd: the same OCI runtime, the same images, the same CNI
//! programs, in turns, in one run.
//!
//! `cargo bench -p longshore --bench beside [-- images lives streams many]` chooses rows;
//! `LONGSHORE_BENCH_ROUNDS` sets how many pods one is made of. Without root or containerd it
//! says so and measures nothing.

#![allow(clippy::print_stdout, reason = "the table is the product")]

mod load;
mod peer;
mod pull;
mod table;

use anyhow::{Context, Result};
use testkit::{
    image::{ImageBuilder, LayerBuilder},
    registry::Registry,
};

use crate::{load::Network, peer::Peer, table::Table};

/// Pods at once in the rows about memory and restart.
const MANY: usize = 50;
const LINES_MB: usize = 20;
const LINES_TIMES: usize = 10;

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(why) = peer::missing() {
        println!("SKIPPED: beside containerd: {why}");
        return Ok(());
    }
    let registry = Registry::start().await?;
    let image = push_images(&registry)?;
    let mut peers = [Peer::longshore().await?, Peer::containerd(&registry.host()).await?];
    for peer in &peers {
        peer.cri().await?.pull(&image).await.with_context(|| format!("pull by {}", peer.name))?;
    }
    let measured = measure(&mut peers, &image, &registry).await;
    for peer in peers {
        peer.end().await;
    }
    measured
}

async fn measure(peers: &mut [Peer; 2], image: &str, registry: &Registry) -> Result<()> {
    let rounds = std::env::var("LONGSHORE_BENCH_ROUNDS").map_or(Ok(30), |text| text.parse())?;
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |rows: &str| chosen.is_empty() || chosen.iter().any(|name| name == rows);
    let table = Table::begin();
    if wanted("images") {
        images(&table, peers, registry).await?;
    }
    if wanted("lives") {
        lives(&table, peers, image, rounds).await?;
    }
    if wanted("streams") {
        streams(&table, peers, image, rounds).await?;
    }
    if wanted("many") {
        many(&table, peers, image).await?;
    }
    Ok(())
}

async fn images(table: &Table, peers: &[Peer; 2], registry: &Registry) -> Result<()> {
    let pulls = pull::pulls(peers, registry).await?;
    let what = format!("pull + unpack, {} MB in {} layers", pull::MEGABYTES, pull::LAYERS);
    table.millis(&what, pulls.ours, pulls.theirs, 0.6);
    match pulls.tools {
        Some(tools) => table.millis("  the same beside skopeo + umoci", pulls.ours, tools, 0.6),
        None => table.note("skopeo and umoci are not installed: no row"),
    }
    table.note(&format!("  the most our daemon held meanwhile: {} MiB", pulls.peak_kib >> 10));
    Ok(())
}

async fn lives(table: &Table, peers: &[Peer; 2], image: &str, rounds: usize) -> Result<()> {
    for (network, name, start, remove) in
        [(Network::Host, "host network", 0.4, 0.4), (Network::Cni, "CNI bridge", 0.6, 0.8)]
    {
        let [ours, theirs] = load::lives(peers, image, network, rounds).await?;
        table.millis(&format!("pod + container start, {name}"), ours.start, theirs.start, start);
        table.millis(&format!("stop + remove, {name}"), ours.remove, theirs.remove, remove);
    }
    Ok(())
}

async fn streams(table: &Table, peers: &[Peer; 2], image: &str, rounds: usize) -> Result<()> {
    let [ours, theirs] = load::execs(peers, image, rounds).await?;
    table.millis("ExecSync of true", ours, theirs, 0.6);
    let [ours, theirs] = load::logs(peers, image, LINES_TIMES).await?;
    let megabytes = (LINES_MB * LINES_TIMES) as f64;
    let speed = |time: std::time::Duration| megabytes / time.as_secs_f64();
    table.more_is_better("log throughput, MB/s", speed(ours), speed(theirs), 2.0);
    let fresh = [peers[0].daemon_kib()?, peers[1].daemon_kib()?];
    table.kib("daemon, after the rows above", fresh, None);
    Ok(())
}

async fn many(table: &Table, peers: &mut [Peer; 2], image: &str) -> Result<()> {
    let [ours, theirs] = load::many(peers, image, MANY).await?;
    table.millis(&format!("{MANY} pods with CNI, 10 at a time"), ours.start, theirs.start, 0.5);
    table.kib("shim of an idle pod", [ours.shim_kib, theirs.shim_kib], Some(0.13));
    table.kib(&format!("daemon with {MANY} pods"), [ours.daemon_kib, theirs.daemon_kib], None);
    table.millis("list of all stats", ours.stats, theirs.stats, 0.1);
    table.millis("restart until all are listed", ours.restart, theirs.restart, 0.3);
    Ok(())
}

/// Busybox with a file of log lines, and what containerd keeps a pod with.
fn push_images(registry: &Registry) -> Result<String> {
    let busybox = std::fs::read("/bin/busybox").context("read a static busybox")?;
    let line = format!("{}\n", "a line of a log, as long as most are ".repeat(3).trim_end());
    let lines = line.repeat(LINES_MB * 1_000_000 / line.len());
    let mut layer = LayerBuilder::default().dir("bin", 0o755).file("bin/busybox", 0o755, &busybox);
    for applet in ["cat", "echo", "sh", "sleep", "true"] {
        layer = layer.symlink(&format!("bin/{applet}"), "busybox");
    }
    let layer = layer.file("lines", 0o644, lines.as_bytes()).build();
    let path = serde_json::json!(["PATH=/bin"]);
    let image = ImageBuilder::default().layer(layer.clone()).set("Env", path.clone());
    registry.push("bench", "1", &image.build());
    let keep = serde_json::json!(["/bin/sleep", "100000"]);
    let pause = ImageBuilder::default().layer(layer).set("Env", path).set("Entrypoint", keep);
    registry.push("pause", "1", &pause.build());
    Ok(format!("{}/bench:1", registry.host()))
}
