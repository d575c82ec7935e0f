//! How fast layers unpack, beside GNU tar and umoci on the same tree.
//!
//! A plain program: each run writes a whole tree, so a few runs are what there is time
//! for, and the best of them is the one the machine disturbed least.
//! Run it with `cargo bench -p snapshot`; an argument is the number of MiB.

#![allow(clippy::print_stdout, reason = "the table is the product")]

#[path = "../tests/root/image.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "tests need more of it, and may panic")]
mod image;
#[path = "../tests/layers/tarball.rs"]
#[expect(dead_code, reason = "tests need more of it")]
mod tarball;

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use image::Image;
use snapshot::{ApplyOptions, Form, LayerDir, apply_layer, rebase_layer};
use tokio::time::Instant;

const RUNS: usize = 3;

fn main() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "files get owners here: run it as root");
    let mib = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(128);
    let plain = archive(mib << 20);
    let mut gzip = Vec::new();
    let level = flate2::Compression::new(6);
    flate2::read::GzEncoder::new(&plain[..], level).read_to_end(&mut gzip)?;
    let zstd = zstd::encode_all(&plain[..], 3)?;
    println!("{} MiB unpacked, best of {RUNS}", plain.len() >> 20);
    println!("where    packing   size MiB  unpacked by        best ms    MiB/s");
    // The disk of the build directory, and memory: what a faster disk would show.
    for (place, path) in [("memory", "/dev/shm"), ("disk", env!("CARGO_TARGET_TMPDIR"))] {
        let Ok(dir) = tempfile::tempdir_in(path) else { continue };
        for (packing, bytes) in [("none", &plain), ("gzip", &gzip), ("zstd", &zstd)] {
            let table = Table { place, packing, size: bytes.len(), plain: plain.len() };
            let blob = dir.path().join(packing);
            fs::write(&blob, bytes)?;
            table.row("longshore", best(dir.path(), |at| ours(&blob, at))?);
            table.row("GNU tar", best(dir.path(), |at| gnu_tar(&blob, packing, at))?);
            if packing != "zstd" {
                let gzip = packing == "gzip";
                table.row("tar crate", best(dir.path(), |at| tar_crate(&blob, gzip, at))?);
            }
            if packing == "none" && Command::new("umoci").arg("--version").output().is_ok() {
                let layout = dir.path().join("layout");
                Image::new([plain.clone()]).write_layout(&layout);
                table.row("umoci", best(dir.path(), |at| umoci(&layout, at))?);
                fs::remove_dir_all(&layout)?;
            }
        }
    }
    Ok(())
}

struct Table {
    place: &'static str,
    packing: &'static str,
    size: usize,
    plain: usize,
}

impl Table {
    fn row(&self, by: &str, best: Duration) {
        let Self { place, packing, size, plain } = self;
        let rate = (plain >> 20) as f64 / best.as_secs_f64();
        let (size, ms) = (size >> 20, best.as_secs_f64() * 1e3);
        println!("{place:<8} {packing:<8} {size:>9}  {by:<16} {ms:>9.0} {rate:>8.0}");
    }
}

fn best(dir: &Path, run: impl Fn(&Path) -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let at = dir.join("tree");
        fs::create_dir(&at)?;
        // What others left to be written is not ours to wait for.
        rustix::fs::syncfs(fs::File::open(dir)?)?;
        let began = Instant::now();
        run(&at)?;
        best = best.min(began.elapsed());
        fs::remove_dir_all(&at)?;
    }
    Ok(best)
}

fn umoci(layout: &Path, at: &Path) -> Result<()> {
    let name = format!("{}:test", layout.display());
    let output =
        Command::new("umoci").args(["raw", "unpack", "--image", &name]).arg(at).output()?;
    ensure!(output.status.success(), "umoci: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn ours(blob: &Path, at: &Path) -> Result<()> {
    let layer = LayerDir::new(at, Form::Overlay);
    let applied = apply_layer(fs::File::open(blob)?, &layer, &ApplyOptions::default())?;
    rebase_layer(&layer, applied, &[])?;
    Ok(())
}

fn gnu_tar(blob: &Path, packing: &str, at: &Path) -> Result<()> {
    let flag = match packing {
        "gzip" => "--gzip",
        "zstd" => "--zstd",
        _ => "--no-auto-compress",
    };
    let status = Command::new("tar")
        .args(["--xattrs", "--numeric-owner", "-p", "-x", flag, "-f"])
        .arg(blob)
        .arg("-C")
        .arg(at)
        .stderr(Stdio::null())
        .status()
        .context("start GNU tar")?;
    ensure!(status.success(), "GNU tar: {status}");
    Ok(())
}

fn tar_crate(blob: &Path, gzip: bool, at: &Path) -> Result<()> {
    let file = std::io::BufReader::new(fs::File::open(blob)?);
    let reader: Box<dyn Read> = match gzip {
        true => Box::new(flate2::bufread::GzDecoder::new(file)),
        false => Box::new(file),
    };
    let mut archive = tar::Archive::new(reader);
    archive.set_preserve_permissions(true);
    archive.unpack(at)?;
    Ok(())
}

/// Like a distribution: many small files, a few large ones, bytes that compress by half.
fn archive(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap_or_default()
    };
    let mut items = Vec::new();
    let mut total = 0;
    while total < bytes {
        let dir = format!("usr/share/d{}/e{}", items.len() / 400, items.len() / 40);
        if items.len().is_multiple_of(40) {
            items.push(tarball::dir(&dir));
        }
        let size = match next() % 100 {
            0 => 600_000,
            1..=20 => 30_000,
            _ => 3000,
        };
        let data: Vec<u8> = (0..size).map(|_| (next() % 16).to_le_bytes()[0] + b'a').collect();
        items.push(tarball::file(format!("{dir}/f{}", items.len()), data));
        total += size;
    }
    tarball::tarball(items)
}
