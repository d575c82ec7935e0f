//! The words every other crate shares: ids, digests, image references, labels,
//! error kinds, time and quantities.
//!
//! **Invariant:** nothing here does I/O (a random id is the one system call), nothing
//! here is async, and a value that exists is valid: each type checks in its parser
//! and has no other way in.

pub mod cgroup;
mod chain;
mod digest;
mod hex;
mod id;
mod image;
mod kind;
mod labels;
mod quantity;
mod text;
pub mod time;

pub use chain::Chain;
pub use digest::{Algorithm, Digest, DigestError};
pub use id::{Id, IdError, LookupError, by_prefix};
pub use image::{ImageQuery, ImageRef, ImageRefError, Repository, Tag};
pub use kind::Kind;
pub use labels::{Labels, Selector, SelectorError, Term};
pub use quantity::{ByteSize, QuantityError, Span};
