//! Real containers under a shim that others wrote: containerd's, as Debian has it. Most of these
//! tests are those of our own shim. Needs root, an OCI runtime that works here, and the shim.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, like tests")]

#[path = "../../../shim/tests/pod/attach.rs"]
mod attach;
#[path = "../../../shim/tests/pod/containers.rs"]
mod containers;
mod death;
#[path = "../../../shim/tests/pod/execs.rs"]
mod execs;
mod keeper;
#[path = "../../../shim/tests/pod/logs.rs"]
mod logs;
mod refusals;
#[path = "../../../shim/tests/pod/world.rs"]
mod world;
