use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use store::{FeedEnd, Pace, Store, StoreError};

use crate::records::{Count, Pod, count, ids, open, pod, sqlite};

#[tokio::test]
async fn readers_find_by_key_range_and_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let pods = store.table::<Pod>().unwrap();
    let mut batch = store.batch();
    for id in ["a1", "a2", "b1", "c1"] {
        batch.put(&pods, pod(id, "first"));
    }
    batch.commit().await.unwrap();
    pods.put(pod("a2", "second")).await.unwrap();
    pods.delete(&"c1".to_owned()).await.unwrap();
    pods.delete(&"never".to_owned()).await.unwrap();

    assert_eq!(ids(&pods.list()), ["a1", "a2", "b1"]);
    assert_eq!(ids(&pods.prefix("a")), ["a1", "a2"]);
    assert_eq!(ids(&pods.prefix("x")), [""; 0]);
    assert_eq!(ids(&pods.range("a2".to_owned()..)), ["a2", "b1"]);
    assert_eq!(pods.get("a2").unwrap().note, "second");
    assert!(pods.get("c1").is_none());
    assert_eq!(pods.len(), 3);
}

#[tokio::test]
async fn a_table_opened_twice_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let one = store.table::<Pod>().unwrap();
    let other = store.clone().table::<Pod>().unwrap();
    one.put(pod("a", "")).await.unwrap();
    assert_eq!(ids(&other.list()), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_sees_a_batch_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let pods = store.table::<Pod>().unwrap();
    let counts = store.table::<Count>().unwrap();
    let writer = {
        let (store, pods, counts) = (store.clone(), pods.clone(), counts.clone());
        async move {
            for i in 1..=300 {
                let mut batch = store.batch();
                batch.put(&counts, count(0, i)).put(&pods, pod("a", i));
                batch.commit().await.unwrap();
            }
        }
    };
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < 300 {
            let (number, note) = store.view(|_| (counts.get(&0), pods.get("a")));
            let number = number.map_or(0, |count| count.value);
            let note = note.map_or(0, |pod| pod.note.parse().unwrap());
            assert_eq!(number, note);
            assert!(number >= seen, "{number} after {seen}");
            seen = number;
        }
    });
    writer.await;
    reader.join().unwrap();
}

#[tokio::test]
async fn a_feed_continues_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let counts = store.table::<Count>().unwrap();
    let writing = {
        let counts = counts.clone();
        async move {
            for i in 0..200 {
                counts.put(count(i % 7, i)).await.unwrap();
            }
            counts.delete(&3).await.unwrap();
        }
    };
    let following = async {
        let mut followers = Vec::new();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_micros(500)).await;
            followers.push(counts.subscribe(1_000));
        }
        followers
    };
    let ((), followers) = tokio::join!(writing, following);
    store.close().await.unwrap();

    for (snapshot, mut feed) in followers {
        let mut rebuilt: std::collections::BTreeMap<_, _> =
            snapshot.records.into_iter().map(|record| (record.number, record)).collect();
        let mut last = snapshot.seq;
        let end = loop {
            match feed.next().await {
                Ok(change) => {
                    assert_eq!(change.seq.get(), last.get() + 1, "one change per batch here");
                    last = change.seq;
                    let before = match change.after {
                        Some(record) => rebuilt.insert(change.key, record),
                        None => rebuilt.remove(&change.key),
                    };
                    assert_eq!(before, change.before);
                }
                Err(end) => break end,
            }
        };
        assert_eq!(end, FeedEnd::Closed);
        assert_eq!(rebuilt.into_values().collect::<Vec<_>>(), counts.list());
    }
}

#[tokio::test]
async fn a_slow_subscriber_is_cut_off_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let counts = store.table::<Count>().unwrap();
    let (_, mut slow) = counts.subscribe(2);
    let (_, mut quick) = counts.subscribe(10);
    for i in 1..=5 {
        counts.put(count(i, i)).await.unwrap();
    }
    assert_eq!(slow.next().await.unwrap().key, 1);
    assert_eq!(slow.next().await.unwrap().key, 2);
    for _ in 0..2 {
        let end = slow.next().await.unwrap_err();
        assert_eq!(end.to_string(), "subscriber fell behind and lost changes from 3 on");
    }
    for i in 1..=5 {
        assert_eq!(quick.next().await.unwrap().key, i);
    }
    let (again, _feed) = counts.subscribe(2);
    assert_eq!((again.seq.get(), again.records.len()), (5, 5));
}

#[tokio::test]
async fn a_closed_store_refuses_and_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let pods = store.table::<Pod>().unwrap();
    pods.put(pod("a", "")).await.unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();

    assert!(matches!(pods.put(pod("b", "")).await, Err(StoreError::Closed)));
    assert!(matches!(store.table::<Count>(), Err(StoreError::Closed)));
    assert_eq!(ids(&pods.list()), ["a"]);
    assert_eq!(pods.subscribe(1).1.next().await.unwrap_err(), FeedEnd::Closed);

    let left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["state.db"], "the log is gone");
    let mode = fs::metadata(dir.path().join("state.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = open(dir.path());
    assert_eq!(ids(&again.table::<Pod>().unwrap().list()), ["a"]);
}

#[tokio::test]
async fn what_is_queued_before_the_close_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let counts = store.table::<Count>().unwrap();
    let mut waiting = Vec::new();
    for i in 0..100 {
        // Polled once: queued, hardly ever answered by then.
        let mut write = Box::pin(counts.put(count(i, i)));
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx)));
        match first.await {
            std::task::Poll::Ready(done) => assert!(done.is_ok()),
            std::task::Poll::Pending => waiting.push(write),
        }
    }
    store.close().await.unwrap();
    for write in waiting {
        write.await.unwrap();
    }
    assert_eq!(open(dir.path()).table::<Count>().unwrap().len(), 100);
}

#[tokio::test]
async fn a_dropped_store_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    {
        let pods = open(dir.path()).table::<Pod>().unwrap();
        pods.put(pod("a", "")).await.unwrap();
    }
    // The threads end by themselves; until then the directory is theirs.
    let again = loop {
        match Store::open(dir.path()) {
            Ok(store) => break store,
            Err(StoreError::Locked { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error:#}"),
        }
    };
    assert_eq!(ids(&again.table::<Pod>().unwrap().list()), ["a"]);
}

#[tokio::test]
async fn durable_batches_are_acknowledged_beyond_their_number_of_permits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let counts = store.table::<Count>().unwrap();
    let commits: Vec<_> = (0..200)
        .map(|i| {
            let mut batch = store.batch();
            batch.put(&counts, count(i, i)).durable();
            Box::pin(batch.commit())
        })
        .collect();
    let mut seqs = Vec::new();
    for commit in commits {
        seqs.push(commit.await.unwrap());
    }
    assert!(seqs.is_sorted());
    assert_eq!(counts.len(), 200);
    let mut barrier = store.batch();
    barrier.durable();
    assert_eq!(barrier.commit().await.unwrap().get(), 201);
}

/// A batch that enters the queue while the writer leaves it must not wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_commit_that_meets_the_close_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let store = open(&dir.path().join(round.to_string()));
        let counts = store.table::<Count>().unwrap();
        let tasks = tokio_util::task::TaskTracker::new();
        for i in 0..16 {
            let counts = counts.clone();
            tasks.spawn(async move { while counts.put(count(i, i)).await.is_ok() {} });
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
        store.close().await.unwrap();
        tasks.close();
        tokio::time::timeout(Duration::from_secs(20), tasks.wait()).await.expect("all answered");
    }
}

#[tokio::test]
async fn a_reader_outside_delays_the_log_and_no_writer() {
    let dir = tempfile::tempdir().unwrap();
    let pace = Pace {
        sync_after: Duration::from_millis(5),
        checkpoint_bytes: 64 << 10,
        quiet: Duration::from_millis(2),
        force_bytes: 256 << 10,
    };
    let store = Store::open_with(dir.path(), pace).unwrap();
    let pods = store.table::<Pod>().unwrap();
    let log = dir.path().join("state.db-wal");
    let write = async || {
        for i in 0..300 {
            // New content each time: SQLite does not write what is there already.
            let put = pods.put(pod(i % 10, format!("{i:03000}")));
            tokio::time::timeout(Duration::from_millis(500), put).await.unwrap().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        fs::metadata(&log).unwrap().len()
    };
    let outside = sqlite(dir.path());
    outside.execute_batch("BEGIN; SELECT count(*) FROM pods").unwrap();
    let delayed = write().await;
    assert!(delayed > 1 << 20, "{delayed}: the reader needs all of it");
    outside.execute_batch("COMMIT").unwrap();
    let caught_up = write().await;
    assert!(caught_up < 512 << 10, "{caught_up}");
    store.close().await.unwrap();
}
