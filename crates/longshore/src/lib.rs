//! The daemon and its commands: configuration, wiring, sockets, signals. No policy.

pub mod cli;
pub mod config;
pub mod daemon;
