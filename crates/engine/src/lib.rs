//! Pods, containers and images: all policy, and no wire type of any front end.
//!
//! ```text
//!  front ends ──> Engine ──┬── reads: straight from the store's memory
//!                          └── changes: to the pod's owner task, which alone moves the
//!                              pod and its containers; the work runs in child tasks
//! ```
//!
//! **Invariants**
//! - One owner per pod. It awaits its mailbox and the journal, never a shim, a plugin, a
//!   registry or a CNI program: it takes a stop at any time.
//! - A caller that goes away changes nothing: what it began is finished or undone.
//! - Nothing half-made is visible, nothing is left behind.

mod apparmor;
mod attach;
mod config;
mod container;
mod controller;
mod crash;
mod engine;
mod error;
mod events;
mod exec;
mod files;
mod forward;
pub mod health;
pub mod host;
mod images;
mod layout;
mod metrics;
mod names;
mod network;
mod owner;
pub mod phase;
mod plugins;
mod pod;
mod program;
pub mod record;
mod recover;
pub mod request;
mod shared;
pub mod simulate;
mod stages;
pub mod stats;
mod steps;
pub mod storage;
pub mod view;

pub use apparmor::find_parser as find_apparmor_parser;
pub use attach::{Attaching, LAST_WORDS};
pub use config::{EngineConfig, ForeignShim, Handler, Limits, SandboxKind, check_shim_name};
#[cfg(feature = "crash-points")]
pub use crash::points as crash_points;
pub use engine::Engine;
pub use error::{EngineError, Result};
pub use events::{Event, EventsEnd, Moment, Subscription};
pub use exec::{ExecControl, ExecPipe, ExecSession, ExecStdio, MAX_PIECE};
pub use images::{Images, PrunedImages, Unpacker};
pub use metrics::Metrics;
pub use nri;
pub use plugins::{Adjusted, PluginsConfig};
pub use program::ProgramFault;
pub use shim_client::{
    AttachInput, AttachIo, AttachOutput, Chunk as AttachChunk, ExecInput, Stream as AttachStream,
};
pub use stages::Stage;
