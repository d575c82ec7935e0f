//! Logs and metrics: how the daemon tells what it does.
//!
//! **Invariant:** nothing here is global but the `tracing` dispatcher, which the
//! language of that crate forces: metrics are values, made in `main` and passed down.

pub mod logs;
pub mod metrics;
