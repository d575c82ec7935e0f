//! How fast layers unpack, beside GNU tar and umoci on the same tree.
//!
//! A plain program: each run writes a whole tree, so a few runs are what there is time
//! for, and the best of them is the one the machine disturbed least.
//! Run it with `cargo bench -p snapshot`; an argument is the number of MiB.

#![allow(clippy::print_stdout, reason = "the table is the product")]

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
use snapshot::{ApplyOptions, Form, LayerDir, apply_layer, rebase_layer};
use tokio::time::Instant;

const RUNS: usize = 5;

fn main() -> Result<()> {
    ensure!(testkit::is_root(), "files get owners here: run it as root");
    let mib = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(192);
    // Below the build directory: /tmp may be a tmpfs.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let plain = archive(mib << 20);
    let mut gzip = Vec::new();
    let level = flate2::Compression::new(6);
    flate2::read::GzEncoder::new(&plain[..], level).read_to_end(&mut gzip)?;
    let zstd = zstd::encode_all(&plain[..], 3)?;
    println!("{} MiB, {} files", plain.len() >> 20, files(plain.len()));
    println!("packing   size MiB  unpacked by        best ms    MiB/s");
    for (packing, bytes, flag) in
        [("none", &plain, "-x"), ("gzip", &gzip, "-xz"), ("zstd", &zstd, "--zstd")]
    {
        let row = |by: &str, best: Duration| {
            let rate = (plain.len() >> 20) as f64 / best.as_secs_f64();
            let (size, ms) = (bytes.len() >> 20, best.as_secs_f64() * 1e3);
            println!("{packing:<8} {size:>9}  {by:<16} {ms:>9.0} {rate:>8.0}");
        };
        let blob = dir.path().join(packing);
        fs::write(&blob, bytes)?;
        row("longshore", best(dir.path(), |at| ours(&blob, at))?);
        row("GNU tar", best(dir.path(), |at| gnu_tar(&blob, flag, at))?);
        if packing != "zstd" {
            row("tar crate", best(dir.path(), |at| tar_crate(&blob, packing == "gzip", at))?);
        }
    }
    Ok(())
}

fn best(dir: &Path, run: impl Fn(&Path) -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let at = dir.join("tree");
        fs::create_dir(&at)?;
        let began = Instant::now();
        run(&at)?;
        best = best.min(began.elapsed());
        fs::remove_dir_all(&at)?;
    }
    Ok(best)
}

fn ours(blob: &Path, at: &Path) -> Result<()> {
    let layer = LayerDir::new(at, Form::Overlay);
    let applied = apply_layer(fs::File::open(blob)?, &layer, &ApplyOptions::default())?;
    rebase_layer(&layer, applied, &[])?;
    Ok(())
}

fn gnu_tar(blob: &Path, flag: &str, at: &Path) -> Result<()> {
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

/// Like a distribution: many small files, a few large ones, text that compresses by half.
fn archive(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let text: Vec<u8> = (0..1 << 20)
        .map(|_| if next() % 2 == 0 { b'e' } else { (next() % 64).to_le_bytes()[0] + 32 })
        .collect();
    let mut items = Vec::new();
    let mut total = 0;
    let mut at = 0;
    while total < bytes {
        let dir = format!("usr/share/d{}/e{}", items.len() / 400, items.len() / 40);
        if items.len() % 40 == 0 {
            items.push(tarball::dir(&dir));
        }
        let size = match next() % 100 {
            0 => 600_000,
            1..=20 => 30_000,
            _ => 3000,
        };
        at = (at + 7919) % (text.len() - size);
        items.push(tarball::file(format!("{dir}/f{}", items.len()), &text[at..at + size]));
        total += size;
    }
    tarball::tarball(items)
}

fn files(bytes: usize) -> String {
    format!("about {}", bytes / 15_000)
}
