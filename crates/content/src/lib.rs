//! Images as content: blobs, registries, records.

pub mod blobs;
pub mod digest;
pub mod image;
