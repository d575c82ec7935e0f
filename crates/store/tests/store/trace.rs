//! What the threads ask of the kernel, and when they wake.

use std::{ffi::OsStr, fs, process::Command, time::Duration};

use store::{Pace, Store};

use crate::{
    child,
    records::{Count, Pod, count, pod},
};

// === no fsync in the writer ===

#[test]
fn the_writer_never_syncs() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("SKIPPED the_writer_never_syncs: strace is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("strace");
    let state = dir.path().join("state");
    let calls = "trace=fsync,fdatasync,sync_file_range,msync,syncfs,pwrite64,ftruncate";
    let wrapper = [
        OsStr::new("strace"),
        OsStr::new("-fqqyY"),
        OsStr::new("-e"),
        OsStr::new(calls),
        OsStr::new("-o"),
        log.as_os_str(),
    ];
    let output = child::command("trace::write_much", &state, &wrapper).output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("PTRACE") {
        eprintln!("SKIPPED the_writer_never_syncs: tracing is not allowed here");
        return;
    }
    child::assert_passed(&output);

    let log = fs::read_to_string(&log).unwrap();
    let of = |thread: &str, call: &str| {
        let thread = format!("<{thread}>");
        let made = |line: &&str| line.contains(&thread) && line.contains(call);
        log.lines().filter(made).collect::<Vec<_>>()
    };
    // The trace sees both threads, and the log was begun anew often enough.
    assert!(of("store-write", "state.db-wal>").len() > 500);
    assert!(of("store-write", "state.db>").is_empty(), "checkpoints are not the writer's");
    let turns = of("store-sync", "ftruncate(").iter().filter(|l| l.contains("-wal>, 0)")).count();
    assert!(turns >= 5, "{turns} turns of the log");
    assert!(of("store-sync", "fdatasync(").len() > 20);
    let syncs = of("store-write", "sync");
    assert!(syncs.is_empty(), "{syncs:#?}");
    eprintln!(
        "writer: {} writes, 0 syncs; store-sync: {} syncs, {turns} turns of the log",
        of("store-write", "pwrite64(").len(),
        of("store-sync", "sync(").len(),
    );
}

#[tokio::test]
#[ignore = "started by another test, under strace"]
async fn write_much() {
    let Some(dir) = child::dir() else { return };
    let pace = Pace {
        sync_after: Duration::from_millis(20),
        checkpoint_bytes: 64 << 10,
        quiet: Duration::from_millis(5),
        force_bytes: 512 << 10,
    };
    let store = Store::open_with(&dir, pace).unwrap();
    let counts = store.table::<Count>().unwrap();
    let writer = async |from: u64| {
        for i in 0..200 {
            counts.put(Count { padding: "x".repeat(3_000), ..count(from + i, i) }).await.unwrap();
            // Quiet moments of all lengths, so that writes meet every step of a checkpoint.
            if i % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(i % 30)).await;
            }
        }
    };
    tokio::join!(writer(0), writer(1_000), writer(2_000));
    store.close().await.unwrap();
}

#[test]
fn a_durable_batch_is_synced_before_it_is_acknowledged() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("SKIPPED a_durable_batch_is_synced…: strace is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("strace");
    let state = dir.path().join("state");
    let wrapper = [
        OsStr::new("strace"),
        OsStr::new("-fqqyY"),
        OsStr::new("-e"),
        OsStr::new("trace=fdatasync,openat"),
        OsStr::new("-o"),
        log.as_os_str(),
    ];
    let output = child::command("trace::write_durable", &state, &wrapper).output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("PTRACE") {
        eprintln!("SKIPPED a_durable_batch_is_synced…: tracing is not allowed here");
        return;
    }
    child::assert_passed(&output);
    let log = fs::read_to_string(&log).unwrap();
    // Between the marks of two commits there is a sync of the log, and not for the
    // commits that did not ask.
    let mut syncs = vec![0];
    for line in log.lines() {
        if line.contains("no-such-mark") {
            syncs.push(0);
        } else if line.contains("<store-sync>") && line.contains("-wal>") {
            *syncs.last_mut().unwrap() += 1;
        }
    }
    assert_eq!(syncs.len(), 7, "{log}");
    assert_eq!(syncs[1..4], [1, 1, 1], "durable: {log}");
    assert_eq!(syncs[4..6], [0, 0], "not durable: {log}");
}

#[tokio::test]
#[ignore = "started by another test, under strace"]
async fn write_durable() {
    let Some(dir) = child::dir() else { return };
    let hour = Duration::from_secs(3_600);
    let pace = Pace { sync_after: hour, quiet: hour, ..Pace::default() };
    let store = Store::open_with(&dir, pace).unwrap();
    let pods = store.table::<Pod>().unwrap();
    let mark = || drop(fs::File::open("/no-such-mark"));
    mark();
    for i in 0..5 {
        let mut batch = store.batch();
        batch.put(&pods, pod(i, ""));
        if i < 3 {
            batch.durable();
        }
        batch.commit().await.unwrap();
        mark();
    }
    store.close().await.unwrap();
}

// === no wakeups of an idle store ===

#[test]
fn an_idle_store_does_not_wake() {
    let dir = tempfile::tempdir().unwrap();
    let output = child::command("trace::be_idle", dir.path(), &[]).output().unwrap();
    child::assert_passed(&output);
}

#[test]
#[ignore = "started by another test, alone in its process"]
fn be_idle() {
    let Some(dir) = child::dir() else { return };
    let pace = Pace { sync_after: Duration::from_millis(50), ..Pace::default() };
    let store = Store::open_with(&dir, pace).unwrap();
    let pods = store.table::<Pod>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(pods.put(pod("a", ""))).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let before = switches();
    assert_eq!(before.len(), 2, "{before:?}");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(switches(), before);
    runtime.block_on(pods.put(pod("b", ""))).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_ne!(switches(), before, "the measure sees a wakeup");
}

/// How often each thread of the store gave up the processor.
fn switches() -> Vec<(String, String)> {
    let mut found: Vec<_> = fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path())
        .filter_map(|task| {
            let name = fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
            let status = fs::read_to_string(task.join("status")).ok()?;
            let count = status.lines().find(|line| line.starts_with("voluntary_ctxt"))?.to_owned();
            ["store-sync", "store-write"].contains(&name.as_str()).then_some((name, count))
        })
        .collect();
    found.sort();
    found
}
