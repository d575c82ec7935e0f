//! What the store does not take, and what it says then.

use std::{
    collections::HashMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use base::Kind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{MigrateError, Record, Store, StoreError};

use crate::records::{Count, Pod, count, ids, open, pod, sqlite};

#[track_caller]
fn check(dir: &Path, kind: Kind, want: &str) {
    let before = listing(dir);
    let error = Store::open(dir).expect_err("must be refused");
    let want = want.replace("DIR", &dir.display().to_string());
    assert_eq!(error.to_string(), want);
    assert_eq!(error.kind(), kind);
    assert_eq!(listing(dir), before, "nothing is changed, nothing is left");
}

/// Names and checksums: whole files would fill the screen when they differ.
fn listing(dir: &Path) -> Vec<(String, u64)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            (entry.file_name().into_string().unwrap(), hasher.finish())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_missing_parent() {
    let root = tempfile::tempdir().unwrap();
    check(&root.path().join("no/state"), Kind::Internal, "create DIR");
    assert!(!root.path().join("no").exists());
}

#[test]
fn a_file_that_is_no_database() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("state.db"), "shopping list\n".repeat(100)).unwrap();
    check(
        root.path(),
        Kind::Internal,
        "DIR/state.db is not a state database of this program: move it away to start empty",
    );
}

#[test]
fn a_database_of_another_program() {
    let root = tempfile::tempdir().unwrap();
    sqlite(root.path()).execute_batch("CREATE TABLE songs (title)").unwrap();
    check(
        root.path(),
        Kind::Internal,
        "DIR/state.db is not a state database of this program: move it away to start empty",
    );
}

#[tokio::test]
async fn a_newer_schema() {
    let root = tempfile::tempdir().unwrap();
    open(root.path()).close().await.unwrap();
    sqlite(root.path()).execute_batch("PRAGMA user_version = 7").unwrap();
    check(
        root.path(),
        Kind::FailedPrecondition,
        "DIR/state.db has schema 7 and this program knows up to 1: install the newer program \
         again, or move the file away to start empty",
    );
}

#[tokio::test]
async fn a_second_process() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path());
    let error = Store::open(root.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "state directory {} is in use by another process: stop that one or choose another root",
            root.path().display()
        )
    );
    store.close().await.unwrap();
    open(root.path());
}

#[derive(Debug, Serialize, Deserialize)]
struct OldPod {
    id: String,
}

impl Record for OldPod {
    const TABLE: &'static str = Pod::TABLE;
    const VERSION: u32 = 1;
    type Key = String;

    fn key(&self) -> String {
        self.id.clone()
    }
}

#[tokio::test]
async fn records_of_a_newer_program() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path());
    let pods = store.table::<Pod>().unwrap();
    pods.put(pod("a", "")).await.unwrap();
    let taken = store.table::<OldPod>().unwrap_err();
    assert_eq!(taken.to_string(), "table pods is already open with another record type");
    store.close().await.unwrap();

    let store = open(root.path());
    let error = store.table::<OldPod>().unwrap_err();
    assert_eq!(error.kind(), Kind::FailedPrecondition);
    assert!(error.to_string().starts_with("table pods of "), "{error}");
    assert!(error.to_string().contains("version 2 and this program knows up to 1"), "{error}");
    assert_eq!(ids(&store.table::<Pod>().unwrap().list()), ["a"]);
}

#[derive(Debug, Serialize, Deserialize)]
struct NewPod {
    id: String,
    annotations: Vec<String>,
}

impl Record for NewPod {
    const TABLE: &'static str = Pod::TABLE;
    const VERSION: u32 = 3;
    type Key = String;

    fn key(&self) -> String {
        self.id.clone()
    }

    fn migrate(from: u32, mut value: Value) -> Result<Value, MigrateError> {
        assert_eq!(from, 2);
        let note = value["note"].take();
        if note == "bad" {
            return Err("this note has no successor".into());
        }
        value["annotations"] = vec![note].into();
        Ok(value)
    }
}

#[tokio::test]
async fn old_records_migrate_once_and_bad_ones_are_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path());
    let pods = store.table::<Pod>().unwrap();
    for (id, note) in [("a", "good"), ("b", "bad"), ("c", "fine")] {
        pods.put(pod(id, note)).await.unwrap();
    }
    store.close().await.unwrap();
    for _ in 0..2 {
        let store = open(root.path());
        let pods = store.table::<NewPod>().unwrap();
        assert_eq!(pods.get("c").unwrap().annotations, ["fine"]);
        assert_eq!(pods.len(), 2);
        let bad = store.quarantined();
        assert_eq!(bad.len(), 1);
        assert_eq!((bad[0].table.as_str(), bad[0].key.as_str()), ("pods", "b"));
        assert_eq!(bad[0].error, "migration from version 2: this note has no successor");
        store.close().await.unwrap();
    }
    let versions: Vec<u32> = sqlite(root.path())
        .prepare("SELECT version FROM pods")
        .unwrap()
        .query_map((), |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(versions, [3, 3]);
}

#[tokio::test]
async fn a_record_that_does_not_decode_is_set_aside_with_its_value() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path());
    let pods = store.table::<Pod>().unwrap();
    for id in ["a", "b", "c"] {
        pods.put(pod(id, "")).await.unwrap();
    }
    store.close().await.unwrap();
    let spoil = sqlite(root.path());
    spoil
        .execute_batch(
            r#"UPDATE pods SET value = '{"id": 7}' WHERE key = 'b';
               INSERT INTO pods VALUES (CAST(x'ff61' AS TEXT), 2, '{}');
               INSERT INTO pods VALUES (x'61', 2, '{"id":"a","note":"blob key"}');
               INSERT INTO pods VALUES ('d', 9, '{}');
               INSERT INTO pods VALUES ('e', 'two', x'00');"#,
        )
        .unwrap();
    drop(spoil);

    let store = open(root.path());
    let pods = store.table::<Pod>().unwrap();
    assert_eq!(ids(&pods.list()), ["a", "c"]);
    assert_eq!(pods.get("a").unwrap().note, "");
    let mut bad = store.quarantined();
    bad.sort_by(|a, b| (&a.key, a.id).cmp(&(&b.key, b.id)));
    let keys: Vec<_> = bad.iter().map(|bad| bad.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "d", "e", "\u{fffd}a"]);
    assert!(bad[1].error.starts_with("not the JSON of this record: invalid type"));
    assert_eq!(bad[2].error, "version 9 is not in 1..=2");
    store.close().await.unwrap();

    let kept: String = sqlite(root.path())
        .query_row("SELECT value FROM quarantine WHERE key = 'b'", (), |row| row.get(0))
        .unwrap();
    assert_eq!(kept, r#"{"id": 7}"#);
    assert_eq!(open(root.path()).quarantined().len(), 5, "remembered");
}

#[derive(Debug, Serialize, Deserialize)]
struct Unprintable {
    id: u64,
    map: HashMap<Vec<u8>, u8>,
}

impl Record for Unprintable {
    const TABLE: &'static str = "unprintable";
    const VERSION: u32 = 1;
    type Key = u64;

    fn key(&self) -> u64 {
        self.id
    }
}

#[tokio::test]
async fn a_bad_write_refuses_its_whole_batch_and_no_other() {
    let root = tempfile::tempdir().unwrap();
    let other_root = tempfile::tempdir().unwrap();
    let (store, other) = (open(root.path()), open(other_root.path()));
    let pods = store.table::<Pod>().unwrap();
    let bad = store.table::<Unprintable>().unwrap();
    let foreign = other.table::<Count>().unwrap();

    let mut batch = store.batch();
    batch.put(&pods, pod("a", "")).put(&bad, Unprintable { id: 1, map: [(vec![1], 1)].into() });
    let error = batch.commit().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (Kind::Invalid, "encode record \"1\" of table unprintable")
    );

    let mut batch = store.batch();
    batch.put(&pods, pod("a", "")).put(&foreign, count(1, 1));
    assert!(matches!(batch.commit().await, Err(StoreError::ForeignTable { table: "counts" })));

    let mut batch = store.batch();
    batch.put(&pods, pod("large", "x".repeat(65 << 20)));
    assert_eq!(batch.commit().await.unwrap_err().kind(), Kind::Invalid);

    assert!(pods.is_empty() && foreign.is_empty());
    pods.put(pod("a", "")).await.unwrap();
}

#[tokio::test]
async fn check_tells_damage_from_health() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(store::check(root.path()).unwrap(), None);
    let store = open(root.path());
    let pods = store.table::<Pod>().unwrap();
    for i in 0..2_000 {
        pods.put(pod(format!("{i:04}"), "x".repeat(50))).await.unwrap();
    }
    let beside = store::check(root.path()).unwrap().unwrap();
    assert_eq!((beside.schema, beside.records), (1, 2_000));
    assert!(beside.problems.is_empty(), "{beside:?}");
    pods.put(pod("after", "")).await.expect("a look from outside disturbs nobody");
    store.close().await.unwrap();

    sqlite(root.path()).execute_batch("UPDATE pods SET value = '{' WHERE key = '0007'").unwrap();
    let spoilt = store::check(root.path()).unwrap().unwrap();
    assert_eq!(spoilt.problems, ["1 records of table pods are not JSON"]);
    assert_eq!(listing(root.path()).len(), 1, "no log is left behind");

    let path = root.path().join("state.db");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    match store::check(root.path()) {
        Ok(Some(damaged)) => assert!(!damaged.problems.is_empty()),
        other => panic!("{other:?}"),
    }
}
