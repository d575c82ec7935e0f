//! Plugins at a real daemon, with real containers.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod act;
mod adjust;
mod changes;
mod commands;
mod contract;
mod go;
mod launched;
mod network;
mod probe;
mod simulate;
mod storm;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
