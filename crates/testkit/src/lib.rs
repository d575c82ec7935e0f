//! What tests share: a daemon as a process of its own, and proof that it left nothing.
//!
//! Only ever a dev-dependency. Everything here cleans up in `Drop`, also when the test
//! fails half-way.

mod cgroup;
pub mod cni;
mod cri;
mod criu;
mod daemon;
mod example;
mod go;
pub mod image;
mod leftovers;
mod node;
mod program;
mod proxy;
pub mod registry;
mod rounds;
mod rust;
mod sandbox;
mod skip;

pub use cgroup::Cgroups;
pub use cri::{Cri, Pod};
pub use criu::FakeCriu;
pub use daemon::{DaemonProcess, Exit};
pub use example::sdk_example;
pub use go::GoTool;
pub use leftovers::Process;
pub use node::Node;
pub use program::{compiled, program};
pub use proxy::ForwardProxy;
pub use rounds::{rounds, slowness};
pub use rust::RustTool;
pub use sandbox::sandbox_shim;
pub use skip::{is_root, skip};
