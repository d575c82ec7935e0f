//! What an operator can decide.
//!
//! Where nothing is set a plugin sees what the reference would do to it: a refusal fails the
//! request, silence ends the plugin and the request goes on without it.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use nri_wire::{PluginId, defaults};

use crate::{DefaultValidator, FieldSet};

/// The whole of it. Plain data: who reads it from where is the caller's business.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Off: no plugin is started or accepted, and every request passes untouched.
    pub enabled: bool,
    /// Where plugins connect; `None` takes no external plugins.
    pub socket: Option<PathBuf>,
    /// Where the plugins are that we start.
    pub plugin_dirs: Vec<PathBuf>,
    /// Where their configuration is.
    pub config_dirs: Vec<PathBuf>,
    /// What they write to standard error goes to ours; else all they print goes to the log.
    pub show_stderr: bool,
    /// From connecting to registering.
    pub registration_timeout: Duration,
    /// For one answer, where the plugin's policy says nothing.
    pub request_timeout: Duration,
    /// Time limit of one Synchronize with all its parts, where the plugin's policy says nothing.
    pub synchronize_timeout: Duration,
    /// For one change of a container that plugins asked for.
    pub change_timeout: Duration,
    /// For one eviction: until its process has exited.
    pub eviction_timeout: Duration,
    pub duplicates: Duplicates,
    /// By `NN-name`, else by name.
    pub plugins: BTreeMap<String, PluginPolicy>,
    pub validator: DefaultValidator,
    /// By the name of the domain.
    pub domains: BTreeMap<String, DomainSettings>,
}

/// What becomes of a plugin that registers under the name of one that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// The old connection is closed.
    #[default]
    Replace,
    /// Both stay, and conflict with each other where they set the same.
    Allow,
    /// The new one is refused.
    Reject,
}

/// How one plugin is treated.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginPolicy {
    /// For one answer.
    pub request_timeout: Option<Duration>,
    /// Time limit of one Synchronize with all its parts.
    pub synchronize_timeout: Option<Duration>,
    /// `None`: a refusal fails the request, silence does if the plugin says so of itself.
    pub on_failure: Option<OnFailure>,
    /// How often in a row it may be too slow before it is dropped. `None`: once, or for ever if
    /// the plugin says so of itself.
    pub strikes: Option<NonZeroU32>,
    /// For one that we start; `None` leaves it dead.
    pub restart: Option<Backoff>,
    /// What it may set; `None` is everything.
    pub fields: Option<FieldSet>,
    /// Who must have connected. A guard against mistakes, not a border of security: the path
    /// a containerised plugin runs from is its own.
    pub uid: Option<u32>,
    pub executable: Option<PathBuf>,
    /// Pods and containers are not created without it, and wait this long for it.
    pub required: Option<Duration>,
    /// Takes any number of requests at once.
    pub concurrent: bool,
    /// Is asked to validate updates too, which no plugin of the reference has seen.
    pub validates_updates: bool,
}

/// What a plugin's failure does to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Fail,
    /// As if it had answered nothing.
    Ignore,
}

/// Waits before starting a plugin again: from `first`, doubling to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

/// How a front end's objects and plugins meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainSettings {
    /// Only plugins of its own directories and socket see its objects.
    pub hidden: bool,
    pub plugin_dirs: Vec<PathBuf>,
    pub config_dirs: Vec<PathBuf>,
    pub socket: Option<PathBuf>,
}

/// Settings that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} must not be zero")]
    Zero(&'static str),
    #[error("plugin {plugin:?}: {why}")]
    Plugin { plugin: String, why: &'static str },
    #[error("{0:?} is the socket of two sets of plugins")]
    SharedSocket(PathBuf),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            socket: Some(PathBuf::from(defaults::SOCKET_PATH)),
            plugin_dirs: vec![PathBuf::from(defaults::PLUGIN_DIR)],
            config_dirs: vec![PathBuf::from(defaults::CONFIG_DIR)],
            show_stderr: false,
            registration_timeout: defaults::REGISTRATION_TIMEOUT,
            request_timeout: defaults::REQUEST_TIMEOUT,
            synchronize_timeout: Duration::from_secs(30),
            change_timeout: Duration::from_secs(10),
            eviction_timeout: Duration::from_secs(30),
            duplicates: Duplicates::default(),
            plugins: BTreeMap::new(),
            validator: DefaultValidator::default(),
            domains: BTreeMap::new(),
        }
    }
}

impl Default for PluginPolicy {
    fn default() -> Self {
        Self {
            request_timeout: None,
            synchronize_timeout: None,
            on_failure: None,
            strikes: None,
            restart: Some(Backoff::default()),
            fields: None,
            uid: None,
            executable: None,
            required: None,
            concurrent: false,
            validates_updates: false,
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), most: Duration::from_secs(300) }
    }
}

impl Settings {
    /// Nothing is started or accepted.
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }

    pub fn check(&self) -> Result<(), SettingsError> {
        let times = [
            ("registration_timeout", self.registration_timeout),
            ("request_timeout", self.request_timeout),
            ("synchronize_timeout", self.synchronize_timeout),
            ("change_timeout", self.change_timeout),
            ("eviction_timeout", self.eviction_timeout),
        ];
        if let Some((name, _)) = times.into_iter().find(|(_, time)| time.is_zero()) {
            return Err(SettingsError::Zero(name));
        }
        for (plugin, policy) in &self.plugins {
            policy.check().map_err(|why| SettingsError::Plugin { plugin: plugin.clone(), why })?;
        }
        let own = self.domains.values().filter_map(|domain| domain.socket.as_ref());
        let mut sockets = BTreeSet::new();
        match self.socket.iter().chain(own).find(|socket| !sockets.insert(*socket)) {
            Some(twice) => Err(SettingsError::SharedSocket(twice.clone())),
            None => Ok(()),
        }
    }

    /// What holds for a plugin: its entry by `NN-name`, else by name, else nothing special.
    pub fn policy(&self, id: &PluginId) -> PluginPolicy {
        let entry = self.plugins.get(&id.to_string()).or_else(|| self.plugins.get(id.name()));
        entry.cloned().unwrap_or_default()
    }

    /// Names of the plugins without which nothing is created, and how long to wait for them.
    pub(crate) fn required(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.plugins.iter().filter_map(|(name, policy)| Some((name.as_str(), policy.required?)))
    }
}

impl PluginPolicy {
    fn check(&self) -> Result<(), &'static str> {
        let limits = [self.request_timeout, self.synchronize_timeout];
        if limits.contains(&Some(Duration::ZERO)) {
            return Err("its time limit must not be zero");
        }
        if self.required.is_some() && self.on_failure == Some(OnFailure::Ignore) {
            return Err("it cannot be required and its failure ignored");
        }
        match self.restart {
            Some(Backoff { first, most }) if first.is_zero() || first > most => {
                Err("its restart backoff must grow from more than zero")
            }
            _ => Ok(()),
        }
    }

    /// A required plugin that fails has not done what it is required for.
    pub(crate) fn on_failure(&self) -> Option<OnFailure> {
        match self.required {
            Some(_) => Some(OnFailure::Fail),
            None => self.on_failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(policy: PluginPolicy) -> Result<(), SettingsError> {
        let plugins = BTreeMap::from([("10-a".to_owned(), policy)]);
        Settings { plugins, ..Settings::default() }.check()
    }

    #[test]
    fn defaults_are_those_of_the_reference_and_valid() {
        let settings = Settings::default();
        settings.check().unwrap();
        assert_eq!(settings.request_timeout, Duration::from_secs(2));
        assert_eq!(settings.registration_timeout, Duration::from_secs(5));
        let policy = settings.policy(&"10-a".parse().unwrap());
        assert_eq!((policy.on_failure(), policy.strikes), (None, None));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let zero = Settings { request_timeout: Duration::ZERO, ..Settings::default() };
        assert_eq!(zero.check(), Err(SettingsError::Zero("request_timeout")));
        assert!(with(PluginPolicy::default()).is_ok());
        let no = PluginPolicy::default;
        assert!(with(PluginPolicy { request_timeout: Some(Duration::ZERO), ..no() }).is_err());
        assert!(with(PluginPolicy { synchronize_timeout: Some(Duration::ZERO), ..no() }).is_err());
        let required = Some(Duration::ZERO);
        assert!(with(PluginPolicy { required, ..no() }).is_ok());
        let ignored = Some(OnFailure::Ignore);
        assert!(with(PluginPolicy { required, on_failure: ignored, ..no() }).is_err());
        let shrinking = Backoff { first: Duration::from_secs(2), most: Duration::from_secs(1) };
        assert!(with(PluginPolicy { restart: Some(shrinking), ..no() }).is_err());
        let socket = Settings::default().socket;
        let domain = DomainSettings { socket: socket.clone(), ..Default::default() };
        let domains = BTreeMap::from([("docker".to_owned(), domain)]);
        let shared = Settings { domains, ..Settings::default() };
        assert_eq!(shared.check(), Err(SettingsError::SharedSocket(socket.unwrap())));
    }

    #[test]
    fn a_policy_is_found_by_either_name_the_longer_first() {
        let policy = |uid| PluginPolicy { uid: Some(uid), ..Default::default() };
        let plugins = BTreeMap::from([("a".to_owned(), policy(1)), ("10-a".to_owned(), policy(2))]);
        let settings = Settings { plugins, ..Settings::default() };
        assert_eq!(settings.policy(&"10-a".parse().unwrap()).uid, Some(2));
        assert_eq!(settings.policy(&"20-a".parse().unwrap()).uid, Some(1));
        assert_eq!(settings.policy(&"20-b".parse().unwrap()).uid, None);
    }
}
