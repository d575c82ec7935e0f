//! Real containers under a real shim. Needs root and an OCI runtime that works here.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, like tests")]

mod attach;
mod containers;
mod death;
mod execs;
mod keeper;
mod logs;
mod namespaces;
mod orphans;
mod priorities;
mod refusals;
mod resources;
mod starts;
mod world;
