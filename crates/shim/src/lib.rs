//! The shim of one pod: it holds the pod's namespaces, runs its containers through the OCI
//! runtime, writes their logs, and remembers how they ended, whether a daemon is there or
//! not.
//!
//! ```text
//!   daemon ──exec──> start (reads the pod's description)
//!                      └─fork─> the shim ──clone──> PID 1 of a shared PID namespace
//!                                 │  control thread: Task and Io over ttrpc, reaping
//!                                 └─ log thread: output, logs, attached clients, input
//! ```
//!
//! A library, so that a shim with more services than ours can be made of it; what keeps real
//! containers is then written once.
//!
//! **Invariants:** the process has one thread until its namespaces and its PID 1 are made.
//! The control thread never waits for a disk or a terminal; the log thread never holds what
//! the control thread needs. What a failed start has made is gone when it says so.

mod cgroup;
mod checkpoint;
mod clock;
mod console;
mod error;
mod exec;
mod note;
mod oom;
mod pid1;
mod pod;
mod priority;
mod process;
mod reaper;
mod record;
mod runtime;
mod serve;
mod service;
mod start;
mod stats;
mod stdio;
mod task;
mod tasks;
mod update;

pub use start::start;

use std::{io::Write, process::ExitCode};

/// The program `longshore-shim`.
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let said = match arguments.as_slice() {
        [word] if word == "start" => start::run(),
        [word] if word == "--version" => Ok(concat!(env!("CARGO_PKG_VERSION"), "\n").into()),
        _ => Err("usage: longshore-shim start < description.json".to_owned()),
    };
    say(said)
}

/// What a starter prints, and how it ends.
pub fn say(said: Result<String, String>) -> ExitCode {
    let (written, code) = match said {
        Ok(text) => (std::io::stdout().write_all(text.as_bytes()), ExitCode::SUCCESS),
        Err(text) => (writeln!(std::io::stderr(), "{text}"), ExitCode::FAILURE),
    };
    // Whoever asked is gone: there is nobody left to tell.
    written.map_or(ExitCode::FAILURE, |()| code)
}
