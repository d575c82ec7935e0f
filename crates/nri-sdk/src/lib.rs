//! Write a plugin for NRI, the Node Resource Interface.
//!
//! An NRI plugin is a process beside a container runtime (containerd, CRI-O, Docker,
//! Longshore) that hears of every pod and container and may change them: environment,
//! mounts, devices, CPUs, memory and much more.
//!
//! ```
//! use std::sync::Arc;
//! use nri_sdk::{Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox, Stub};
//!
//! /// Gives every container the time zone of the node.
//! struct TimeZone;
//!
//! impl Plugin for TimeZone {
//!     fn handlers() -> Handlers<Self> {
//!         Handlers::new().create_container(Self::create_container)
//!     }
//! }
//!
//! impl TimeZone {
//!     async fn create_container(
//!         self: Arc<Self>,
//!         _: Context,
//!         _: PodSandbox,
//!         container: Container,
//!     ) -> Answer<Adjustment> {
//!         let mut adjustment = Adjustment::new();
//!         if !container.env.iter().any(|var| var.starts_with("TZ=")) {
//!             adjustment.env.set("TZ", "Europe/Berlin");
//!         }
//!         Ok(adjustment)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stub = Stub::builder(TimeZone).name("time-zone").index("10").build()?;
//! assert_eq!(stub.events().to_string(), "CreateContainer");
//! # if false {
//! stub.run().await?;
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! What it promises:
//! - The events on the wire are those that have handlers; there is no second list.
//! - A lost connection is replaced and the world synchronised anew.
//! - An [`Adjustment`] never conflicts with itself; removing and taking over from another
//!   plugin are said, not happened upon.
//! - The same plugin runs started by the runtime, over its socket, inside its process and
//!   against [`testing::FakeRuntime`] in a unit test.
//! - Old runtimes (`StateChange`), worlds in several messages and partial failures of
//!   updates are dealt with here, not in plugins.
//!
//! Features: `clap` for [`Flags`] to flatten into a command line, `oci` for conversions from
//! and to the types of `oci-spec`, `serde` for messages as JSON or YAML.
//!
//! Whole plugins, each a tool of its own, are among the examples of this crate.

mod adjust;
mod annotation;
mod change;
mod context;
mod dispatch;
mod environment;
#[cfg(feature = "clap")]
mod flags;
#[cfg(feature = "oci")]
pub mod oci;
mod plugin;
mod request;
mod resources;
mod runtime;
mod signal;
mod stub;
pub mod testing;
mod version;

pub use adjust::{
    Adjustment, AdjustmentError, Args, Change, Device, DeviceKind, Keyed, Mount, Namespace,
    NamespaceKind, Rdt, Rlimit, Setting, UnknownKind,
};
pub use annotation::effective_annotation;
pub use change::{Changes, Creation, Update, Updates};
pub use context::Context;
pub use environment::{Environment, UnknownIdentity};
#[cfg(feature = "clap")]
pub use flags::Flags;
pub use nri_wire::{
    EventMask, IdentityError, PluginId, UnknownEvent, api,
    api::{Container, Event, FailurePolicy, Field, PodSandbox},
    defaults,
};
pub use plugin::{Answer, BoxError, Handler, Handlers, Plugin};
pub use request::{
    Configuration, Owners, PodResources, Proposal, RuntimeInfo, Subscription, Verdict, World,
};
pub use resources::{Class, Cpu, Memory, PidsLimit, Resources};
pub use runtime::{Runtime, UpdateError, UpdateErrorKind};
pub use signal::stop_signal;
pub use stub::{BuildError, Builder, ConnectError, Reconnect, RunError, Stub};
/// The wire protocol, for statuses with a code and for metadata.
pub use ttrpc;
