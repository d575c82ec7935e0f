//! What tests share: a daemon as a process of its own, and proof that it left nothing.
//!
//! Only ever a dev-dependency. Everything here cleans up in `Drop`, also when the test
//! fails half-way.

mod daemon;
mod go;
pub mod image;
pub mod registry;
mod skip;

pub use daemon::{DaemonProcess, Exit};
pub use go::GoTool;
pub use skip::{is_root, skip};
