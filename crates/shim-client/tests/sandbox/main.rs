//! Real containers under a shim that makes the pod itself, by its Sandbox service: one of the
//! testkit, which is our own driver of runc told of a pod as containerd does it. Most of these tests
//! are those of other shims. Needs root and an OCI runtime that works here.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, like tests")]

#[path = "../../../shim/tests/pod/attach.rs"]
mod attach;
#[path = "../../../shim/tests/pod/containers.rs"]
mod containers;
#[path = "../foreign/death.rs"]
mod death;
#[path = "../../../shim/tests/pod/execs.rs"]
mod execs;
mod keeper;
#[path = "../../../shim/tests/pod/logs.rs"]
mod logs;
mod service;
#[path = "../../../shim/tests/pod/world.rs"]
mod world;
