//! The runtime side of NRI, the Node Resource Interface.
//!
//! The core is pure: who set what ([`Owners`]), how answers become one ([`Creation`],
//! [`Updating`]), who is asked when ([`model`]), what exists ([`registry`]), what is
//! acceptable ([`DefaultValidator`]).

pub mod apply;
#[cfg(test)]
mod arbitrary;
mod merge;
pub mod model;
mod owners;
pub mod registry;
mod sync;
mod validate;

pub use merge::{
    Claimant, Creation, FieldSet, MergeError, Merged, UnknownField, Updates, Updating,
};
pub use nri_wire::{EventMask, PluginId, api};
pub use owners::{Conflict, FieldKey, Owners};
pub use sync::{Part, SyncPlan, TooLarge};
pub use validate::{DefaultValidator, REQUIRED_PLUGINS_ANNOTATION, Rejection};
