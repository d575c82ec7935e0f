//! Plugins at a real daemon, with real containers.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod adjust;
mod changes;
mod commands;
mod contract;
mod probe;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
