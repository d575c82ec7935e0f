//! Images from a registry on loopback to a root file system, each round another one, so that
//! nobody has any of it yet.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::{
    image::{Compression, ImageBuilder, LayerBuilder, noise},
    registry::Registry,
};
use tokio::time::Instant;

use crate::peer::{Peer, median};

pub(crate) const MEGABYTES: usize = 500;
pub(crate) const LAYERS: usize = 10;
const ROUNDS: usize = 3;
/// As large as programs and libraries are.
const FILE: usize = 1_000_000;

#[derive(Debug)]
pub(crate) struct Pulls {
    pub(crate) ours: Duration,
    pub(crate) theirs: Duration,
    /// `skopeo copy`, then `umoci unpack`; `None` where they are not installed.
    pub(crate) tools: Option<Duration>,
    /// The most our daemon held, in KiB of RSS, during its slowest round.
    pub(crate) peak_kib: u64,
}

pub(crate) async fn pulls(peers: &[Peer; 2], registry: &Registry) -> Result<Pulls> {
    let [ours, theirs] = peers;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut peak_kib = 0;
    for round in 0..ROUNDS {
        let name = push(registry, round);
        ours.forget_peak()?;
        let begun = Instant::now();
        ours.cri().await?.pull(&name).await.context("pull by longshore")?;
        times[0].push(begun.elapsed());
        peak_kib = peak_kib.max(ours.peak_kib()?);

        let begun = Instant::now();
        run(theirs.ctr().args(["image", "pull", "--plain-http", &name]))?;
        times[1].push(begun.elapsed());

        if let Some(took) = by_tools(&name)? {
            times[2].push(took);
        }
        ours.cri().await?.remove_image(&name).await?;
        run(theirs.ctr().args(["image", "remove", "--sync", &name]))?;
    }
    let [ours, theirs, tools] = times;
    let tools = (!tools.is_empty()).then(|| median(tools));
    Ok(Pulls { ours: median(ours), theirs: median(theirs), tools, peak_kib })
}

/// Half of it compresses, half does not.
fn push(registry: &Registry, round: usize) -> String {
    let mut image = ImageBuilder::default().set("Cmd", json!(["/bin/true"]));
    for layer in 0..LAYERS {
        let mut builder = LayerBuilder::default().compression(Compression::Gzip);
        builder = builder.dir("data", 0o755);
        for file in 0..MEGABYTES * 1_000_000 / LAYERS / FILE {
            let seed = (round * LAYERS + layer) * 1000 + file + 1;
            let mut bytes = noise(FILE / 2, seed as u64);
            bytes.resize(FILE, b'x');
            builder = builder.file(&format!("data/{layer}-{file}"), 0o644, &bytes);
        }
        image = image.layer(builder.build());
    }
    let tag = format!("r{round}");
    registry.push("pull", &tag, &image.build());
    format!("{}/pull:{tag}", registry.host())
}

fn by_tools(name: &str) -> Result<Option<Duration>> {
    let there = |tool: &str| Path::new("/usr/bin").join(tool).exists();
    if !there("skopeo") || !there("umoci") {
        return Ok(None);
    }
    let home = tempfile::Builder::new().prefix("lsb").tempdir_in("/var/tmp")?;
    let at = |name: &str| home.path().join(name).display().to_string();
    let begun = Instant::now();
    let (from, to) = (format!("docker://{name}"), format!("oci:{}:1", at("layout")));
    run(Command::new("skopeo").args(["copy", "--quiet", "--src-tls-verify=false", &from, &to]))?;
    let layout = format!("{}:1", at("layout"));
    run(Command::new("umoci").args(["unpack", "--image", &layout, &at("bundle")]))?;
    let took = begun.elapsed();
    fs::remove_dir_all(home.path())?;
    Ok(Some(took))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {told}", output.status);
    Ok(())
}
