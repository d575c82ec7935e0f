//! What a request to plugins can end in.

use nri_wire::{PluginId, api::Event};

use crate::{
    ApplyError, MergeError, Rejection, domain::DomainError, object::Resources, owners::Owners,
};

/// A request that failed. What it began is undone at the plugins that know of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NriError {
    #[error("plugin {plugin} refused {}: {}", event.method(), status.message)]
    Refused { plugin: PluginId, event: Event, status: ttrpc::Status },

    #[error("plugin {plugin} did not answer {}", event.method())]
    Silent {
        plugin: PluginId,
        event: Event,
        #[source]
        source: Silence,
    },

    #[error("merge what plugins ask for")]
    Merge(#[from] MergeError),

    /// Names the plugins that set what cannot be applied; where that is not known, all that
    /// adjusted the container.
    #[error("apply what {} for", asking(plugins))]
    Apply {
        plugins: Vec<String>,
        #[source]
        source: ApplyError,
    },

    #[error("validator {validator:?} rejected container adjustment, reason: {reason}")]
    Rejected { validator: String, reason: String },

    #[error("validator plugin {plugin} failed")]
    Validator {
        plugin: PluginId,
        #[source]
        source: Silence,
    },

    #[error(transparent)]
    Invalid(#[from] Rejection),

    #[error("required plugins are missing: {}", .0.join(", "))]
    Missing(Vec<String>),

    #[error("change other containers as plugins ask")]
    Change(#[from] ChangeError),

    #[error("no time left: {0}")]
    Deadline(String),

    #[error("container {0:?} exists already")]
    Exists(String),

    #[error("NRI has stopped")]
    Stopped,

    /// Of requests that ask every plugin whatever the others say.
    #[error("{} plugins failed, first {}", .0.len(), crate::watch::whole(&.0[0]))]
    Several(Vec<NriError>),
}

/// Why a plugin has not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Silence {
    #[error("it is gone")]
    Gone,
    #[error("it took longer than its time limit")]
    Slow,
    #[error("calling it failed")]
    Call(#[source] ttrpc::Error),
}

/// Changes of containers that could not be made. Those made before were taken back.
#[derive(Debug, thiserror::Error)]
#[error("{doing} container {container}")]
pub struct ChangeError {
    pub container: String,
    pub doing: &'static str,
    #[source]
    pub source: DomainError,
    /// Containers that could not be put back, and what they have now where that is known.
    pub not_restored: Vec<(String, Option<Resources>)>,
}

/// What a caller may do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plugin or a validator said no; trying again is for its author to decide.
    Refused,
    /// Plugins disagree, or ask for what cannot be.
    Conflict,
    /// A plugin is missing or silent: it may be better soon.
    Unavailable,
    Deadline,
    Internal,
}

/// Plugins in words: `plugin 10-a`, `plugins 10-a, 20-b`.
pub fn named(plugins: &[String]) -> String {
    match plugins {
        [] => "plugins".to_owned(),
        [one] => format!("plugin {one}"),
        several => format!("plugins {}", several.join(", ")),
    }
}

/// The same with their verb: `plugin 10-a asks`.
pub fn asking(plugins: &[String]) -> String {
    let verb = if plugins.len() == 1 { "asks" } else { "ask" };
    format!("{} {verb}", named(plugins))
}

impl NriError {
    /// A value of these owners' that cannot be applied to a container.
    pub(crate) fn not_applied(owners: &Owners, container: &str, source: ApplyError) -> Self {
        let plugins = owners.setters(container, &source.fields());
        Self::Apply { plugins: plugins.into_iter().map(str::to_owned).collect(), source }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Refused { .. } | Self::Rejected { .. } | Self::Invalid(_) => Kind::Refused,
            Self::Merge(_) | Self::Apply { .. } | Self::Exists(_) => Kind::Conflict,
            Self::Silent { .. } | Self::Validator { .. } | Self::Missing(_) | Self::Stopped => {
                Kind::Unavailable
            }
            Self::Deadline(_) => Kind::Deadline,
            Self::Change(_) => Kind::Internal,
            Self::Several(errors) => errors.first().map_or(Kind::Internal, Self::kind),
        }
    }
}
