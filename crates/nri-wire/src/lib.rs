//! The wire of NRI, the Node Resource Interface: what a container runtime and its plugins
//! say to each other, and how it travels.
//!
//! ```text
//!        runtime                                         plugin
//!   calls Plugin --- connection 1 ---.         .--- serves Plugin
//!                                     > trunk <
//!  serves Runtime -- connection 2 ---'         '--- calls Runtime
//!                 ttrpc            mux          ttrpc
//! ```
//!
//! One socket, the *trunk*, carries two logical connections ([`Mux`]), each with a ttrpc
//! connection of its own, in opposite directions. [`Trunk`] is the whole stack: give it a
//! socket and what you serve, get the client of what the peer serves. Messages and service
//! traits are in [`api`].
//!
//! ```
//! use std::time::Duration;
//! use nri_wire::{EventMask, Trunk, api};
//! use ttrpc::{Context, ServerContext, Status};
//!
//! struct Runtime;
//! impl api::Runtime for Runtime {
//!     async fn register_plugin(
//!         &self,
//!         _: ServerContext,
//!         who: api::RegisterPluginRequest,
//!     ) -> Result<api::Empty, Status> {
//!         assert_eq!(who.plugin_name, "logger");
//!         Ok(api::Empty {})
//!     }
//! }
//!
//! struct Plugin;
//! impl api::Plugin for Plugin {
//!     async fn configure(
//!         &self,
//!         _: ServerContext,
//!         _: api::ConfigureRequest,
//!     ) -> Result<api::ConfigureResponse, Status> {
//!         let events = EventMask::NONE.with(api::Event::CreateContainer);
//!         Ok(api::ConfigureResponse { events: events.to_wire(), ..Default::default() })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (near, far) = tokio::net::UnixStream::pair()?;
//! let (plugin, runtime_end) = Trunk::runtime(near, Runtime);
//! let (runtime, _plugin_end) = Trunk::plugin(far, Plugin);
//!
//! let ctx = Context::timeout(Duration::from_secs(2));
//! let name = api::RegisterPluginRequest { plugin_name: "logger".into(), ..Default::default() };
//! runtime.register_plugin(&ctx, &name).await?;
//! let answer = plugin.configure(&ctx, &api::ConfigureRequest::default()).await?;
//! assert!(EventMask::from_wire(answer.events)?.contains(api::Event::CreateContainer));
//! runtime_end.close();
//! # Ok(())
//! # }
//! ```
//!
//! **Invariant:** no policy here. What a runtime does about a plugin that is slow, wrong or
//! gone is not the wire's business, beyond bounding what a peer can make us allocate.

mod annotation;
mod encode;
mod event;
mod frame;
mod identity;
mod mux;
#[cfg(feature = "oci")]
pub mod oci;
mod parts;
mod socket;
mod trunk;

pub use annotation::effective_annotation;
pub use encode::About;
pub use event::{EventMask, InvalidMask, UnknownEvent};
pub use frame::{FIRST_FRAME, Frames, HEADER_LEN, MAX_FRAME, Piece};
pub use identity::{IdentityError, PluginId};
pub use mux::{Connection, Mux, MuxError, MuxReader, MuxWriter, OpenError};
pub use socket::Socket;
pub use trunk::{Trunk, Watcher};

/// Messages, services and enums, generated from `proto/nri/api.proto`.
///
/// Maps are ordered. A message that is absent and one that is empty differ: presence is how
/// a plugin says "set".
pub mod api {
    #![allow(
        clippy::all,
        clippy::needless_pass_by_value,
        clippy::large_futures,
        unreachable_pub,
        missing_debug_implementations,
        reason = "generated code"
    )]
    include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));
}

/// What both sides assume when nobody says otherwise.
pub mod defaults {
    use std::time::Duration;

    /// Where a runtime listens for plugins.
    pub const SOCKET_PATH: &str = "/var/run/nri/nri.sock";
    /// Where the plugins are that a runtime starts itself.
    pub const PLUGIN_DIR: &str = "/opt/nri/plugins";
    /// Where their configuration is: `NN-name.conf`, else `name.conf`.
    pub const CONFIG_DIR: &str = "/etc/nri/conf.d";
    /// From connecting to registering.
    pub const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
    /// For one answer of a plugin.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

    /// How a plugin that was started by the runtime learns its name, its index and the number
    /// of the descriptor that is its trunk.
    pub const NAME_ENV: &str = "NRI_PLUGIN_NAME";
    pub const INDEX_ENV: &str = "NRI_PLUGIN_IDX";
    pub const SOCKET_ENV: &str = "NRI_PLUGIN_SOCKET";

    /// The version of the reference whose semantics this crate speaks; both sides send
    /// theirs, for information.
    pub const NRI_VERSION: &str = "v0.12.5";

    /// Connections inside a trunk.
    pub const PLUGIN_SERVICE_CONNECTION: u32 = 1;
    pub const RUNTIME_SERVICE_CONNECTION: u32 = 2;
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::api;

    #[test]
    fn messages_have_a_json_form_with_defaults() {
        let container: api::Container =
            serde_json::from_str(r#"{"id": "c0", "linux": {"sysctl": {"a": "b"}}}"#).unwrap();
        assert_eq!(container.linux.as_ref().unwrap().sysctl["a"], "b");
        let text = serde_json::to_string(&container).unwrap();
        assert_eq!(serde_json::from_str::<api::Container>(&text).unwrap(), container);
    }
}
