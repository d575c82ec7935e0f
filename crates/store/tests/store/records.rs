//! Record types and small shorthands for the other modules.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use store::{Record, Store};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) note: String,
}

impl Record for Pod {
    const TABLE: &'static str = "pods";
    const VERSION: u32 = 2;
    type Key = String;

    fn key(&self) -> String {
        self.id.clone()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) number: u64,
    pub(crate) value: u64,
    #[serde(default)]
    pub(crate) padding: String,
}

impl Record for Count {
    const TABLE: &'static str = "counts";
    const VERSION: u32 = 1;
    type Key = u64;

    fn key(&self) -> u64 {
        self.number
    }
}

pub(crate) fn pod(id: impl Display, note: impl Display) -> Pod {
    Pod { id: format!("{id}"), note: format!("{note}") }
}

pub(crate) fn count(number: u64, value: u64) -> Count {
    Count { number, value, padding: String::new() }
}

pub(crate) fn ids(pods: &[std::sync::Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| pod.id.as_str()).collect()
}

/// A connection beside the store's, to look at the file or to spoil it.
pub(crate) fn sqlite(store_dir: &std::path::Path) -> rusqlite::Connection {
    rusqlite::Connection::open(store_dir.join("state.db")).expect("open the file by hand")
}

pub(crate) fn open(dir: &std::path::Path) -> Store {
    Store::open(dir).expect("open the store")
}
