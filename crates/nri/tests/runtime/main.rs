//! The runtime side with live plugins, inside one process.

#![allow(clippy::large_futures, reason = "tests hold whole worlds")]
#![allow(clippy::unwrap_used, reason = "a step of a test that fails is the test's failure")]

mod changes;
mod create;
mod events;
mod faults;
mod join;
mod kit;
mod slow_sync;
mod sockets;
