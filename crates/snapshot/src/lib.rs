//! Layers become root file systems here.
//!
//! ```text
//!  compressed bytes                                       parents, committed
//!        │  apply_layer: any order, in parallel                │
//!        ▼                                                     ▼
//!  decode ─► hash ─► tar ─► staging/x ── commit: rebase onto the layers below ──► layers/<chain id>
//!                                                                                      │ prepare
//!                                              target ◄── mount ── snapshots/<key> ◄───┘
//! ```
//!
//! **Invariants**
//! - What an archive says cannot reach outside its staging directory: names are cleaned,
//!   symlinks on the way are resolved as a container would see them, and every path that
//!   is opened is resolved by the kernel beneath the directory (`openat2`).
//! - A layer that is visible is whole: applied, verified, fitted onto its parent, renamed
//!   into place, then recorded. What is on disk without a record is litter.
//! - A layer never changes after its commit.
//! - Nothing that a caller waits for walks a tree: removal is a rename, usage is counted
//!   while unpacking and sampled in the background.

mod apply;
mod archive;
mod compression;
mod copy;
mod diff;
mod error;
mod flatten;
mod layer;
mod limits;
mod node;
mod path;
mod pipeline;
mod rebase;
mod record;
mod snapshots;
mod stack;
mod sweep;
mod tree;
mod usage;
mod walk;

pub use apply::{Applied, ApplyOptions, apply_layer};
pub use compression::Compression;
pub use diff::{Diff, Exactly, GoOn, write_diff};
pub use error::{ApplyError, Limited, Refusal, SnapshotError};
pub use layer::{Form, LayerDir};
pub use limits::Limits;
pub use rebase::rebase_layer;
pub use record::{
    Key, LayerKey, LayerRecord, PrepareOptions, SnapshotKey, SnapshotRecord, Snapshotter,
    StoredRange, chain_ids,
};
pub use snapshots::{
    Collected, FsInfo, Hold, Recovery, Sample, Snapshots, SnapshotsConfig, Staging,
};
pub use usage::Usage;
