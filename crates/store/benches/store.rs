//! Commits per second and their latency, with few and with many writers.
//!
//! A plain program: criterion has no percentiles, and the p99 is what a pod start feels.
//! Run it with `cargo bench -p store`; an argument is the number of seconds per row.

#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use store::{Record, Store, Table};
use tokio::time::Instant;

#[derive(Serialize, Deserialize)]
struct Pod {
    id: u64,
    change: u64,
    text: String,
}

impl Record for Pod {
    const TABLE: &'static str = "pods";
    const VERSION: u32 = 1;
    type Key = u64;

    fn key(&self) -> u64 {
        self.id
    }
}

struct Case {
    writers: u64,
    bytes: usize,
    durable: bool,
}

fn main() -> anyhow::Result<()> {
    let seconds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(3);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("writers  bytes  durable   commits/s    p50 µs    p99 µs    max µs  state.db MiB");
    for (writers, durable) in [(1, false), (32, false), (1, true), (32, true)] {
        let case = Case { writers, bytes: 4096, durable };
        runtime.block_on(run(&case, Duration::from_secs(seconds)))?;
    }
    runtime.block_on(read(Duration::from_secs(1)))
}

async fn run(case: &Case, span: Duration) -> anyhow::Result<()> {
    // Below the build directory: /tmp may be a tmpfs, where syncs cost nothing.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let store = Store::open(dir.path())?;
    let pods = store.table::<Pod>()?;
    let tasks = tokio_util::task::TaskTracker::new();
    let end = Instant::now() + span;
    let writing: Vec<_> = (0..case.writers)
        .map(|writer| {
            tasks.spawn(write(store.clone(), pods.clone(), writer, case.bytes, case.durable, end))
        })
        .collect();
    let mut times = Vec::new();
    for task in writing {
        times.extend(task.await??);
    }
    times.sort_unstable();
    store.close().await?;
    let size = std::fs::metadata(dir.path().join("state.db"))?.len();
    println!(
        "{:7}  {:5}  {:7}  {:10.0}  {:8}  {:8}  {:8}  {:12.1}",
        case.writers,
        case.bytes,
        case.durable,
        times.len() as f64 / span.as_secs_f64(),
        times[times.len() / 2].as_micros(),
        times[times.len() * 99 / 100].as_micros(),
        times[times.len() - 1].as_micros(),
        size as f64 / f64::from(1 << 20),
    );
    Ok(())
}

/// A thousand records in all, over and over: the state of a busy node.
async fn write(
    store: Store,
    pods: Table<Pod>,
    writer: u64,
    bytes: usize,
    durable: bool,
    end: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    let text = "x".repeat(bytes);
    for i in 0.. {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let mut batch = store.batch();
        // New content each time: SQLite does not write what is there already.
        batch.put(&pods, Pod { id: (writer * 31 + i) % 1_000, change: i, text: text.clone() });
        if durable {
            batch.durable();
        }
        batch.commit().await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Reads beside a busy writer: they must not feel it.
async fn read(span: Duration) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let store = Store::open(dir.path())?;
    let pods = store.table::<Pod>()?;
    let end = Instant::now() + span;
    let tasks = tokio_util::task::TaskTracker::new();
    let writer = tasks.spawn(write(store.clone(), pods.clone(), 0, 4096, false, end));
    let (mut reads, mut worst) = (0_u64, Duration::ZERO);
    while Instant::now() < end {
        let start = Instant::now();
        for id in 0..100 {
            std::hint::black_box(pods.get(&id));
        }
        worst = worst.max(start.elapsed());
        reads += 100;
        tokio::task::yield_now().await;
    }
    let writes = writer.await??.len();
    println!("{reads} reads beside {writes} commits, slowest hundred {} µs", worst.as_micros());
    store.close().await?;
    Ok(())
}
