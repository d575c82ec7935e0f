//! What was acknowledged survives SIGKILL at any moment.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Stdio,
    time::Duration,
};

use store::{Pace, Store};

use crate::{
    child,
    records::{Count, Pod, count, open, pod},
};

const WRITERS: u64 = 4;

/// Keeps keys of the writers apart.
const STRIDE: u64 = 1 << 32;

/// Rounds of a test that has a long form.
fn rounds() -> u32 {
    let rounds = std::env::var("LONGSHORE_TEST_ROUNDS").ok();
    rounds.map_or(10, |rounds| rounds.parse().expect("LONGSHORE_TEST_ROUNDS is a number"))
}

/// Each writer counts up from where the file ends: a batch puts number N into both tables
/// and deletes N - 50 from one. It says "ack N" only after the acknowledgement.
#[test]
#[ignore = "started and killed by another test"]
fn write_for_ever() {
    let Some(dir) = child::dir() else { return };
    let pace = Pace {
        sync_after: Duration::from_millis(5),
        checkpoint_bytes: 100_000,
        quiet: Duration::from_millis(2),
        force_bytes: 400_000,
    };
    let store = Store::open_with(dir, pace).unwrap();
    let pods = store.table::<Pod>().unwrap();
    let counts = store.table::<Count>().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, pods, counts) = (&store, &pods, &counts);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let first = writer * STRIDE;
                let last = counts.range(first..first + STRIDE).last().map(|count| count.number);
                for number in last.map_or(first, |last| last + 1).. {
                    let mut batch = store.batch();
                    batch
                        .put(counts, count(number, number))
                        .put(pods, pod(number, "x".repeat(500)));
                    if number >= first + 50 {
                        batch.delete(pods, &(number - 50).to_string());
                    }
                    if number % 16 == 0 {
                        batch.durable();
                    }
                    runtime.block_on(batch.commit()).unwrap();
                    writeln!(std::io::stdout().lock(), "ack {number}").unwrap();
                }
            });
        }
    });
}

#[test]
fn acknowledged_batches_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    let mut total = 0;
    for round in 0..rounds() {
        total += run_and_kill(dir.path(), round, &mut acknowledged);
        // In the other rounds the next child starts from what the last one left.
        if round % 2 == 1 {
            verify(dir.path(), &acknowledged);
        }
    }
    verify(dir.path(), &acknowledged);
    eprintln!("{total} acknowledgements in {} rounds", rounds());
}

/// The number of acknowledgements; the last of each writer goes to `acknowledged`.
fn run_and_kill(dir: &Path, round: u32, acknowledged: &mut BTreeMap<u64, u64>) -> usize {
    let mut child = child::command("kill::write_for_ever", dir, &[])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the child");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let numbers = lines.by_ref().map_while(Result::ok).filter_map(|line| {
        // The first one follows the harness's "test … ..." on the same line.
        line.split_once("ack ").map(|(_, number)| number.parse::<u64>().unwrap())
    });
    let mut numbers = numbers.peekable();
    assert!(numbers.peek().is_some(), "the child wrote nothing");
    let killer = std::thread::spawn(move || {
        // Any spread will do, as long as the moments differ from round to round.
        std::thread::sleep(Duration::from_micros(u64::from(round.wrapping_mul(7_919) % 60_000)));
        child.kill().expect("kill the child");
        child.wait().expect("reap the child")
    });
    let mut total = 0;
    for number in numbers {
        acknowledged.insert(number / STRIDE, number);
        total += 1;
    }
    let status = killer.join().unwrap();
    assert!(status.code().is_none(), "killed, not ended: {status}");
    total
}

fn verify(dir: &Path, acknowledged: &BTreeMap<u64, u64>) {
    let store = open(dir);
    let pods = store.table::<Pod>().unwrap();
    let counts = store.table::<Count>().unwrap();
    assert!(store.quarantined().is_empty());
    assert!(store::check(dir).unwrap().unwrap().problems.is_empty());
    for (writer, &acknowledged) in acknowledged {
        let first = writer * STRIDE;
        let stored = counts.range(first..first + STRIDE);
        let last = stored.last().expect("something was acknowledged").number;
        assert!(last >= acknowledged, "writer {writer}: {acknowledged} acknowledged, {last} found");
        assert_eq!(stored.len() as u64, last - first + 1, "writer {writer} has a hole");
        // Both halves of each batch, and its delete: exactly the last fifty pods are left.
        let oldest = (last + 1).saturating_sub(50).max(first);
        for number in oldest..=last {
            assert!(pods.get(&number.to_string()).is_some(), "{number} is half there");
        }
        assert!(oldest == first || pods.get(&(oldest - 1).to_string()).is_none());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.close()).unwrap();
}
