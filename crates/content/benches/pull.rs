//! How fast an image arrives, and what it costs in memory.
//!
//! The registry is this program once more, in a process of its own, so that the memory
//! measured is ours. Layers are decompressed and hashed but not written: the snapshots
//! measure that. `LONGSHORE_BENCH_MB` sets the size.

use std::{
    env, fs, io,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use base::{Digest, Kind};
use content::{
    ContentConfig, Images, LayerDescriptor, LayerSink, LayerSource, PullOptions, SinkError,
    digest::Hasher,
};
use parking_lot::Mutex;
use testkit::{
    image::{ImageBuilder, Layer},
    registry::Registry,
};
use tokio::time::Instant;

const SERVE: &str = "LONGSHORE_BENCH_SERVE";
const LAYERS: u64 = 10;
const ROUNDS: usize = 3;

/// Reads, and remembers that it did.
#[derive(Default)]
struct Nowhere(Mutex<Vec<Digest>>);

impl LayerSink for Nowhere {
    fn has(&self, _: &str, chain_id: &Digest) -> bool {
        self.0.lock().contains(chain_id)
    }

    async fn apply(&self, layer: LayerDescriptor, source: LayerSource) -> Result<(), SinkError> {
        let read = move || {
            let mut plain =
                flate2::read::MultiGzDecoder::new(BufReader::with_capacity(64 << 10, source));
            let mut hasher = Hasher::new(layer.diff_id.algorithm());
            let mut piece = vec![0; 64 << 10];
            loop {
                match plain.read(&mut piece)? {
                    0 => break,
                    count => hasher.update(&piece[..count]),
                }
            }
            io::copy(plain.get_mut(), &mut io::sink())?;
            match hasher.finish() == layer.diff_id {
                true => Ok(layer.chain_id),
                false => Err(io::Error::other("wrong diff id")),
            }
        };
        let done = tokio::task::spawn_blocking(read).await.expect("does not panic");
        self.0.lock().push(done.map_err(|e| SinkError::new(Kind::from(&e), e))?);
        Ok(())
    }

    async fn sync(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let megabytes: u64 = env::var("LONGSHORE_BENCH_MB").map_or(Ok(500), |mb| mb.parse())?;
    if env::var_os(SERVE).is_some() {
        return serve(megabytes).await;
    }
    let (mut server, host) = start_server()?;
    let result = measure(&host, megabytes).await;
    server.kill()?;
    server.wait()?;
    result
}

async fn serve(megabytes: u64) -> Result<()> {
    let registry = Registry::start().await?;
    // Half of each layer compresses, half does not.
    let layer = |seed| {
        let half = usize::try_from(megabytes * 1_000_000 / LAYERS / 2).unwrap_or(usize::MAX);
        let mut bytes = testkit::image::noise(half, seed);
        bytes.resize(2 * half, b'x');
        Layer::of_tar(&bytes, testkit::image::Compression::Gzip)
    };
    let image = (0..LAYERS).map(layer).fold(ImageBuilder::default(), ImageBuilder::layer).build();
    registry.push("bench", "v1", &image);
    let mut out = io::stdout();
    io::Write::write_all(&mut out, format!("{}\n", registry.host()).as_bytes())?;
    io::Write::flush(&mut out)?;
    std::future::pending().await
}

fn start_server() -> Result<(Child, String)> {
    let mut server =
        Command::new(env::current_exe()?).env(SERVE, "1").stdout(Stdio::piped()).spawn()?;
    let mut host = String::new();
    BufReader::new(server.stdout.take().context("is piped")?).read_line(&mut host)?;
    Ok((server, host.trim().to_owned()))
}

async fn measure(host: &str, megabytes: u64) -> Result<()> {
    for _ in 0..ROUNDS {
        let home =
            tempfile::tempdir_in(env::var_os("LONGSHORE_BENCH_DIR").unwrap_or("/var/tmp".into()))?;
        let store = store::Store::open(home.path().join("state"))?;
        let config = ContentConfig::new(home.path().join("content"));
        let images = Images::open(config, &store, Nowhere::default())?;
        let begun = Instant::now();
        images.pull(&format!("{host}/bench:v1").parse()?, PullOptions::default()).await?;
        let took = begun.elapsed();
        let compressed = images.usage().await?.bytes;
        images.close().await;
        store.close().await?;
        eprintln!(
            "pull of {megabytes} MB in {LAYERS} layers: {:.2} s, {:.0} MB/s of {} MB compressed, peak {} MiB",
            took.as_secs_f64(),
            megabytes as f64 / took.as_secs_f64(),
            compressed / 1_000_000,
            peak_kib()? >> 10,
        );
    }
    Ok(())
}

fn peak_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    Ok(number.context("no VmHWM in /proc/self/status")?.parse()?)
}
