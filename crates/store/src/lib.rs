//! State that survives the death of the daemon: typed tables over one SQLite file.
//!
//! ```text
//!  Batch ──► bounded queue ──► store-write ──► WAL file          state.db-wal
//!                              one transaction    │
//!                              per group          │ fdatasync within a second,
//!                                 │               ▼ checkpoints
//!                                 │            store-sync ──► state.db
//!                                 ▼
//!                              memory ──► readers (Table), change feeds (Feed)
//!                                 │
//!                                 └──► acknowledgement
//! ```
//!
//! A record is acknowledged once it would survive SIGKILL: it is in the page cache, as
//! a committed WAL frame. Power loss may cost the last second, never consistency. A
//! [`Batch::durable`] one is acknowledged after an fdatasync instead.
//!
//! **Invariants**
//! - Readers see memory and never wait for the disk. A write is visible only after its
//!   commit, and writes become visible in commit order.
//! - `store-write` never calls fsync. Everything that must sync is the business of
//!   `store-sync`, down to the first frame of a new WAL (see `db`).
//! - Nothing but this crate writes the state directory, and one process at a time does:
//!   the directory is locked (flock) from open to close.
//! - A record that does not decode is moved to the `quarantine` table, and the rest loads.
//! - When a write fails for another reason than a full or busy disk, the store has failed
//!   for good: every later write is refused and [`Store::failed`] says why.
//!
//! ```
//! # use serde::{Deserialize, Serialize};
//! #[derive(Serialize, Deserialize)]
//! struct PodRecord {
//!     id: String,
//!     name: String,
//! }
//!
//! impl store::Record for PodRecord {
//!     const TABLE: &'static str = "pods";
//!     const VERSION: u32 = 1;
//!     type Key = String;
//!     fn key(&self) -> String {
//!         self.id.clone()
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let store = store::Store::open(dir.path())?;
//! let pods = store.table::<PodRecord>()?;
//! pods.put(PodRecord { id: "a1".into(), name: "web".into() }).await?;
//! assert_eq!(pods.get("a1").map(|pod| pod.name.clone()).as_deref(), Some("web"));
//! store.close().await
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod core;
mod db;
mod error;
mod feed;
mod handle;
mod pace;
mod record;
mod sync;
mod table;
mod writer;

pub use batch::Batch;
pub use db::check::{Integrity, check};
pub use db::quarantine::Quarantined;
pub use error::StoreError;
pub use feed::{Change, Feed, FeedEnd, Seq, Snapshot};
pub use handle::Store;
pub use pace::Pace;
pub use record::{MigrateError, Record};
pub use table::Table;
