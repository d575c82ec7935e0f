//! What a root file system costs a pod start: prepare, mount and remove, one after another.
//!
//! A plain program, because the p99 is what counts. Run it with `cargo bench -p snapshot`.

#![allow(clippy::print_stdout, reason = "the table is the product")]

#[path = "../tests/root/image.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "tests need more of it, and may panic")]
mod image;
#[path = "../tests/layers/tarball.rs"]
#[expect(dead_code, reason = "tests need more of it")]
mod tarball;

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use image::{Image, Rig};
use snapshot::{Key, PrepareOptions, Snapshotter};
use sys::idmap::{IdMaps, IdRange};
use tokio::time::Instant;

const ROUNDS: usize = 200;

fn main() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "this mounts: run it as root");
    // Before there are threads, so that all of them are in it.
    sys::namespace::unshare_mounts()?;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("10 layers, {ROUNDS} rounds: p50 / p99 in µs");
    println!("kind              prepare           mount          remove");
    let ids = IdMaps::same(vec![IdRange { inside: 0, outside: 100_000, count: 65_536 }])?;
    let volatile = PrepareOptions { volatile: true, ..PrepareOptions::default() };
    let view = PrepareOptions { read_only_view: true, ..PrepareOptions::default() };
    let mapped = PrepareOptions { idmap: Some(ids), ..volatile.clone() };
    for (name, options) in [("container", volatile), ("user namespace", mapped), ("view", view)] {
        runtime.block_on(measure(name, &options, &dir.path().join(name)))?;
    }
    Ok(())
}

async fn measure(name: &str, options: &PrepareOptions, dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
    let image = Image::new((0..10).map(|layer| {
        tarball::tarball((0..50).map(|n| tarball::file(format!("d{layer}/f{n}"), "x")))
    }));
    image.unpack(&rig.snapshots).await;
    let top = image.top();
    let target = dir.join("target");
    fs::create_dir(&target)?;
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..ROUNDS {
        let key: Key = format!("container-{round}").parse()?;
        let mut last = Instant::now();
        let mut lap = |step: usize| {
            times[step].push(last.elapsed());
            last = Instant::now();
        };
        rig.snapshots.prepare(&key, top.as_ref(), options.clone()).await?;
        lap(0);
        rig.snapshots.mount(&key, &target).await?;
        lap(1);
        rig.snapshots.remove(&key).await?;
        lap(2);
    }
    rig.close().await;
    let shown = times.map(|mut times| {
        times.sort();
        let at = |share: usize| times[times.len() * share / 100].as_micros();
        format!("{:>7} /{:>6}", at(50), at(99))
    });
    println!("{name:<14} {}", shown.join("  "));
    Ok(())
}
