//! Pods on real bridges, driven over CRI, and CNI programs that misbehave.
//!
//! Each test has a network namespace of its own, which its daemon takes for the host's.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod bad;
mod churn;
mod configuration;
mod talk;
mod world;
