//! The daemon's own API: what its commands need and CRI has no words for.
//!
//! ```text
//! connection ─> Admin ── reads ──────────────────────────────────> Engine
//!                 └── streams ─> a task each, with a bounded queue ──┘
//! ```
//!
//! A stream is a task of its own, so that input is taken while the client does not read
//! output. Three things end it: its work, a client that goes away, and the end of the daemon;
//! whichever it is, what the task held is dropped: that kills a command and leaves an
//! attached container.
//!
//! **Invariant:** nothing is decided here, and nothing is buffered beyond one queue: who
//! does not read is not written for.

mod admin;
mod images;
mod plugins;
mod request;
mod session;
mod stages;
mod status;
mod streams;

pub use admin::{Admin, EngineCell, Paths};
pub use streams::Streams;
