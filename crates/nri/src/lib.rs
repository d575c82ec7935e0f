//! The runtime side of NRI, the Node Resource Interface: plugins that have a hand in every
//! pod and container of a node.
//!
//! ```text
//!   runtime --> Nri --> pipeline --> plugin, plugin, plugin     sockets, programs, built-in
//!                |          `--> merge --> validate --> apply --> OCI specification
//!                `--> Domain: updates and evictions of other containers
//! ```
//!
//! [`Nri`] is the whole; its parts are usable alone. The core is pure: who is asked when
//! ([`model`]), what exists ([`registry`]), how answers become one ([`Creation`],
//! [`Updating`], [`Owners`]), what is acceptable ([`DefaultValidator`]), and what becomes of a
//! specification ([`apply`]).
//!
//! What it promises beyond the reference:
//! - Plugins form a pipeline: all see one order, and many requests are on their way at once.
//! - A new plugin is told of every container exactly once, whatever is being created.
//! - A silent plugin costs its time limit, never another plugin's registration or a caller's
//!   deadline; what becomes of it, and of the request, is a stated policy.
//! - What plugins ask of other containers is done whole or not at all, evictions included.
//!
//! It knows nothing of CRI or Docker: a front end is a [`Domain`].

pub mod apply;
#[cfg(test)]
mod arbitrary;
mod domain;
mod error;
mod journal;
mod mailbag;
mod merge;
mod metrics;
pub mod model;
mod object;
mod output;
mod owners;
mod peer;
pub mod registry;
mod runtime;
mod settings;
mod story;
mod sync;
mod tally;
mod validate;
mod watch;

pub use apply::{ApplyError, BareHost, Host, HostError, Propagation};
pub use domain::{Domain, DomainError};
pub use error::{ChangeError, Kind, NriError, Silence, asking, named};
pub use journal::{Adjusted, Evicted, Journal, Updated};
pub use merge::{
    Claimant, Creation, FieldSet, MergeError, Merged, UnknownField, Updates, Updating,
};
pub use metrics::Metrics;
pub use nri_wire::{EventMask, PluginId, api};
pub use object::{Container, Image, Pod, Resources, SeccompProfile, State};
pub use output::{OutputLine, OutputStream};
pub use owners::{Conflict, FieldKey, Owners};
pub use peer::Origin;
pub use runtime::{
    Absence, AbsentPlugin, Ask, Created, JoinError, LaunchError, Nri, PluginStatus, RestartError,
    Restarted, RuntimeInfo, StartError,
};
pub use settings::{
    Backoff, DomainSettings, Duplicates, OnFailure, PluginPolicy, Settings, SettingsError,
};
pub use story::{Answered, Changed, EvictionStory, FieldStory, Later, NotGranted, Owned, Story};
pub use sync::{Part, SyncPlan, TooLarge};
pub use tally::Calls;
pub use validate::{DefaultValidator, REQUIRED_PLUGINS_ANNOTATION, Rejection};
pub use watch::{About, Notice, Watch, WatchEnd};
