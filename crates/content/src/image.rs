//! The documents an image is made of: index, manifest, configuration, platform.
//!
//! ```text
//!  index ──platform──► manifest ──► config   (its digest is the image's id)
//!                          └──────► layers, lowest first
//! ```
//!
//! **Invariant:** parsing is pure and believes nothing: every count and size is limited
//! before anything is fetched or allocated because of it.

pub mod config;
pub mod manifest;
pub mod media;
pub mod platform;
