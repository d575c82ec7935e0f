//! The CRI front end: translate, call the engine, translate back.
//!
//! ```text
//! connection ─> Service ─(deadline, metrics, one log line per failure)─> RuntimeService
//!                  │                                                     ImageService
//!                  └─ engine not there yet: UNAVAILABLE                       │
//!                                                                             v
//!       message ──(pod, container, mount, … ::request)──> engine::request ──> Engine
//!       message <─(pod, container, mount, … ::wire)────── engine::record <──────┘
//! ```
//!
//! **Invariant:** nothing is decided here. It knows neither store nor shim. What cannot be
//! meant is refused with the name of the field; what the engine refuses is passed on.

mod absent;
mod container;
mod events;
mod field;
mod filter;
mod image;
mod metrics;
mod mount;
mod namespace;
mod pod;
mod resources;
mod rpc_metrics;
mod runtime;
#[cfg(test)]
mod sample;
mod security;
mod service;
mod signal;
mod stats;
mod status;
mod stream;
mod streaming;

pub use service::{Service, Slot};
pub use streaming::{EngineStreams, Streaming};
