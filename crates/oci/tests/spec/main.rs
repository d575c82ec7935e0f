//! Requests in, specs out: what an OCI runtime is given, what is refused and by which name, and
//! what holds for all of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod laws;
mod refusals;
mod runtimes;
mod specs;
mod updates;
mod world;
