//! The CRI front end: translate, call the engine, translate back.
//!
//! ```text
//! connection ─> Service ─(deadline, metrics, one log line per failure)─> RuntimeService
//!                  │                                                     ImageService
//!                  └─ engine not there yet: UNAVAILABLE
//! ```
//!
//! **Invariant:** nothing is decided here. It knows neither store nor shim.

mod absent;
mod image;
mod rpc_metrics;
mod runtime;
mod service;
mod status;

pub use service::{Service, Slot};
