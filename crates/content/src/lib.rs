//! Images as content: pulled from registries, kept as blobs, known by records.
//!
//! ```text
//!  Images ── pull ──► registry ──► downloads ──► blobs
//!    │                                │ while it arrives
//!    │                                └────────► LayerSink (snapshots, above us)
//!    ├── records ──► store
//!    ├── import, export ──► archive
//!    └── remove, prune, check
//! ```
//!
//! **Invariants**
//! - Nothing is visible before it is verified: a blob by its digest and size, an image by
//!   all its blobs and unpacked layers.
//! - What an image record names is on disk, synced, before the record is written; so neither
//!   SIGKILL nor power loss leaves an image that is listed and cannot be used.
//! - Of one blob there is one download, of one layer one unpacking, however many pulls want
//!   them; it ends when the last of them goes away.
//! - What a pull in flight needs is never collected.

pub mod archive;
pub mod blobs;
mod collect;
pub mod digest;
mod download;
mod error;
mod flight;
pub mod image;
mod images;
mod layer;
mod lease;
mod progress;
mod pull;
mod record;
pub mod registry;
mod unpack;

pub use archive::{ArchiveError, ImportOptions, Imported};
pub use collect::{Pruned, Removed};
pub use error::ContentError;
pub use image::{
    config::{ImageConfig, ImageUser},
    platform::Platform,
};
pub use images::{Broken, ContentConfig, Image, Images, Usage};
pub use layer::{LayerDescriptor, LayerSink, LayerSource, SinkError};
pub use progress::{LayerProgress, Progress, Stage};
pub use pull::{PullOptions, Pulled};
pub use record::{ImageRecord, Root, StoredBlob, StoredLayer};
pub use registry::{
    Patience, RegistryConfig,
    credentials::{AuthConfig, Credentials},
    proxy::{Proxies, parse as parse_proxy},
};
