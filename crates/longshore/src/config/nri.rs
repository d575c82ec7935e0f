//! What the file says of plugins, and what it means to [`nri`].

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use base::Span;
use engine::{
    PluginsConfig,
    nri::{
        Backoff, DefaultValidator, Duplicates, FieldSet, OnFailure, PluginPolicy, Settings,
        SettingsError,
    },
};

use super::{ConfigError, Place, one_of, settings::settings, value};

settings! {
    /// Node Resource Interface: plugins. Changes take effect at SIGHUP.
    NriConfig {
        /// Off: no plugin is started or let in.
        enabled: bool = true;
        /// Let plugins connect by the socket.
        external: bool = true;
        /// Where external plugins connect. The directory is made for root alone.
        socket: Option<PathBuf> => "\"/var/run/nri/nri.sock\"";
        /// Plugins that the daemon launches, called NN-name.
        plugin_dir: Option<PathBuf> => "\"/opt/nri/plugins\"";
        /// Their configuration: NN-name.conf or name.conf.
        plugin_config_dir: Option<PathBuf> => "\"/etc/nri/conf.d\"";
        /// From connecting to registering.
        registration_timeout: String = "5s".into();
        /// For one answer of a plugin.
        request_timeout: String = "2s".into();
        /// Time limit for one Synchronize, in which a new plugin is told what exists. It is sent
        /// again three times before the plugin is dropped. Pods and containers wait for it no
        /// longer than `request_timeout`, unless the plugin is required.
        synchronize_timeout: String = "30s".into();
        /// For one change of a container that a plugin asked for.
        change_timeout: String = "10s".into();
        /// For one eviction, until the process has exited.
        eviction_timeout: String = "30s".into();
        /// A plugin that registers under a name that is taken: "replace", "allow" or "reject".
        duplicates: String = "replace".into();
        /// Containers start though a plugin refuses StartContainer.
        ignore_start_errors: bool = false;
        validator: ValidatorConfig = ValidatorConfig::default();
        plugins: BTreeMap<String, PolicyConfig> = BTreeMap::new();
    }
}

settings! {
    /// What plugins may not do, whoever they are.
    ValidatorConfig {
        /// Containers are not created if a plugin adds OCI hooks, ...
        reject_oci_hooks: bool = false;
        /// ... changes the seccomp policy of one that asks for the default, ...
        reject_runtime_default_seccomp: bool = false;
        /// ... for a profile of its own, ...
        reject_custom_seccomp: bool = false;
        /// ... for none, ...
        reject_unconfined_seccomp: bool = false;
        /// ... changes namespaces, ...
        reject_namespaces: bool = false;
        /// ... or sysctls.
        reject_sysctls: bool = false;
        /// Plugins without which no container is created, by name or NN-name.
        required_plugins: Vec<String> = Vec::new();
        /// A pod with this annotation set to true does without required plugins.
        tolerate_missing_annotation: String = String::new();
    }
}

settings! {
    /// How one plugin is treated, by NN-name or name.
    PolicyConfig {
        /// For one answer. Unset: as of all plugins.
        request_timeout: Option<String> => "\"2s\"";
        /// Time limit for one Synchronize of this plugin. Defaults to `nri.synchronize_timeout`.
        synchronize_timeout: Option<String> => "\"30s\"";
        /// "fail": what it is asked about fails if it refuses or is silent. "ignore": it goes
        /// on without it. Unset: a refusal fails it, silence does not.
        on_failure: Option<String> => "\"fail\"";
        /// How often in a row it may be too slow before it is dropped. Unset: once.
        strikes: Option<u32> => "3";
        /// Start it again when it ends, if we launched it: after this long, doubling ...
        restart_first: String = "1s".into();
        /// ... to this. "0s" leaves it dead.
        restart_most: String = "5m".into();
        /// What it may set: fields of NRI, or the groups "cpu" and "memory". Empty: all.
        fields: Vec<String> = Vec::new();
        /// The user it must connect as.
        uid: Option<u32> => "0";
        /// The program it must connect from: a guard against mistakes, no border of security.
        executable: Option<PathBuf> => "\"/opt/bin/plugin\"";
        /// Pods and containers are not created without it, and wait this long for it.
        required: Option<String> => "\"30s\"";
        /// It takes any number of requests at once.
        concurrent: bool = false;
        /// It is asked to validate updates too.
        validates_updates: bool = false;
    }
}

/// Plugins, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Nri {
    /// Without a socket where external plugins are off.
    pub settings: Settings,
    socket: PathBuf,
    ignore_start_errors: bool,
}

impl Nri {
    /// Where external plugins connect, or would.
    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    pub fn engine(&self) -> PluginsConfig {
        PluginsConfig {
            settings: self.settings.clone(),
            ignore_start_errors: self.ignore_start_errors,
            ..PluginsConfig::default()
        }
    }
}

impl NriConfig {
    pub(super) fn check(&self, place: &Place<'_>) -> Result<Nri, ConfigError> {
        let shared = PathBuf::from("/var/run/nri/nri.sock");
        let socket = self.socket.as_ref().or((!place.own_state).then_some(&shared));
        let socket = place.socket("nri.socket", socket, "nri.sock")?;
        let (programs, configs) = ("/opt/nri/plugins", "/etc/nri/conf.d");
        let settings = Settings {
            enabled: self.enabled,
            socket: self.external.then(|| socket.clone()),
            plugin_dirs: vec![place.dir(
                "nri.plugin_dir",
                self.plugin_dir.as_ref(),
                programs,
                "nri/plugins",
            )?],
            config_dirs: vec![place.dir(
                "nri.plugin_config_dir",
                self.plugin_config_dir.as_ref(),
                configs,
                "nri/conf.d",
            )?],
            show_stderr: false,
            registration_timeout: span("nri.registration_timeout", &self.registration_timeout)?,
            request_timeout: span("nri.request_timeout", &self.request_timeout)?,
            synchronize_timeout: span("nri.synchronize_timeout", &self.synchronize_timeout)?,
            change_timeout: span("nri.change_timeout", &self.change_timeout)?,
            eviction_timeout: span("nri.eviction_timeout", &self.eviction_timeout)?,
            duplicates: duplicates(&self.duplicates)?,
            plugins: self.policies()?,
            validator: self.validator.check(),
            domains: BTreeMap::new(),
        };
        settings.check().map_err(|error| refused(&error))?;
        Ok(Nri { settings, socket, ignore_start_errors: self.ignore_start_errors })
    }

    fn policies(&self) -> Result<BTreeMap<String, PluginPolicy>, ConfigError> {
        let policy = |(name, policy): (&String, &PolicyConfig)| {
            Ok((name.clone(), policy.check(&format!("nri.plugins.{name}"))?))
        };
        self.plugins.iter().map(policy).collect()
    }
}

fn refused(error: &SettingsError) -> ConfigError {
    match error {
        SettingsError::Plugin { plugin, why } => value(format!("nri.plugins.{plugin}"), why),
        SettingsError::Zero(key) => value(format!("nri.{key}"), "must not be zero"),
        other => value("nri", other),
    }
}

fn duplicates(name: &str) -> Result<Duplicates, ConfigError> {
    match name {
        "replace" => Ok(Duplicates::Replace),
        "allow" => Ok(Duplicates::Allow),
        "reject" => Ok(Duplicates::Reject),
        other => Err(one_of("nri.duplicates", other, "\"replace\", \"allow\" or \"reject\"")),
    }
}

fn span(key: impl Into<String>, text: &str) -> Result<Duration, ConfigError> {
    text.parse::<Span>().map(|span| span.0).map_err(|error| value(key, error))
}

impl ValidatorConfig {
    fn check(&self) -> DefaultValidator {
        let annotation = &self.tolerate_missing_annotation;
        DefaultValidator {
            reject_oci_hooks: self.reject_oci_hooks,
            reject_runtime_default_seccomp: self.reject_runtime_default_seccomp,
            reject_custom_seccomp: self.reject_custom_seccomp,
            reject_unconfined_seccomp: self.reject_unconfined_seccomp,
            reject_namespaces: self.reject_namespaces,
            reject_sysctls: self.reject_sysctls,
            required_plugins: self.required_plugins.clone(),
            tolerate_missing_annotation: (!annotation.is_empty()).then(|| annotation.clone()),
        }
    }
}

impl PolicyConfig {
    fn check(&self, key: &str) -> Result<PluginPolicy, ConfigError> {
        let named = |name: &str| format!("{key}.{name}");
        let optional = |name: &str, text: &Option<String>| {
            text.as_ref().map(|text| span(named(name), text)).transpose()
        };
        Ok(PluginPolicy {
            request_timeout: optional("request_timeout", &self.request_timeout)?,
            synchronize_timeout: optional("synchronize_timeout", &self.synchronize_timeout)?,
            on_failure: self.on_failure(key)?,
            strikes: match self.strikes {
                None => None,
                Some(0) => return Err(value(named("strikes"), "must not be zero")),
                Some(strikes) => NonZeroU32::new(strikes),
            },
            restart: self.restart(key)?,
            fields: self.fields(key)?,
            uid: self.uid,
            executable: match &self.executable {
                Some(path) if !Path::is_absolute(path) => {
                    let why = format!("{} is not an absolute path", path.display());
                    return Err(value(named("executable"), why));
                }
                path => path.clone(),
            },
            required: optional("required", &self.required)?,
            concurrent: self.concurrent,
            validates_updates: self.validates_updates,
        })
    }

    fn on_failure(&self, key: &str) -> Result<Option<OnFailure>, ConfigError> {
        match self.on_failure.as_deref() {
            None => Ok(None),
            Some("fail") => Ok(Some(OnFailure::Fail)),
            Some("ignore") => Ok(Some(OnFailure::Ignore)),
            Some(other) => {
                let why = format!("{other:?} is not \"fail\" or \"ignore\"");
                Err(value(format!("{key}.on_failure"), why))
            }
        }
    }

    fn restart(&self, key: &str) -> Result<Option<Backoff>, ConfigError> {
        let first = span(format!("{key}.restart_first"), &self.restart_first)?;
        let most = span(format!("{key}.restart_most"), &self.restart_most)?;
        Ok((!most.is_zero()).then_some(Backoff { first, most }))
    }

    fn fields(&self, key: &str) -> Result<Option<FieldSet>, ConfigError> {
        if self.fields.is_empty() {
            return Ok(None);
        }
        let fields = self.fields.join(",").parse();
        fields.map(Some).map_err(|error| value(format!("{key}.fields"), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn checked(toml: &str) -> Result<Nri, String> {
        let settings = toml::from_str::<Config>(toml).unwrap().check();
        settings.map(|settings| settings.nri).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(toml: &str, want: &str) {
        assert_eq!(checked(toml).unwrap_err(), want);
    }

    #[test]
    fn nothing_said_is_what_the_reference_does() {
        assert_eq!(checked("").unwrap().settings, Settings::default());
    }

    #[test]
    fn a_policy_is_read_whole() {
        let toml = "[nri.plugins.'10-a']\non_failure = 'fail'\nstrikes = 3\nfields = ['cpu', 'Env']\n\
                    required = '30s'\nrequest_timeout = '500ms'\nrestart_most = '0s'\nuid = 7\n\
                    synchronize_timeout = '1m'";
        let settings = checked(toml).unwrap().settings;
        let policy = settings.policy(&"10-a".parse().unwrap());
        assert_eq!(policy.on_failure, Some(OnFailure::Fail));
        assert_eq!(policy.strikes, NonZeroU32::new(3));
        assert_eq!(policy.request_timeout, Some(Duration::from_millis(500)));
        assert_eq!(policy.required, Some(Duration::from_secs(30)));
        assert_eq!(policy.synchronize_timeout, Some(Duration::from_secs(60)));
        assert_eq!((policy.restart, policy.uid), (None, Some(7)));
        assert!(policy.fields.is_some_and(|fields| fields != FieldSet::all()));
    }

    #[test]
    fn switches() {
        assert!(!checked("nri.enabled = false").unwrap().settings.enabled);
        let closed = checked("nri.external = false").unwrap();
        assert_eq!((closed.settings.socket.as_ref(), closed.settings.enabled), (None, true));
    }

    #[test]
    fn what_cannot_be_meant_names_its_key() {
        refused("nri.request_timeout = '0s'", "nri.request_timeout: must not be zero");
        refused("nri.synchronize_timeout = '0s'", "nri.synchronize_timeout: must not be zero");
        refused(
            "nri.duplicates = 'x'",
            "nri.duplicates: \"x\" is not \"replace\", \"allow\" or \"reject\"",
        );
        refused(
            "nri.plugins.a.on_failure = 'x'",
            "nri.plugins.a.on_failure: \"x\" is not \"fail\" or \"ignore\"",
        );
        refused("nri.plugins.a.strikes = 0", "nri.plugins.a.strikes: must not be zero");
        refused(
            "nri.plugins.a.executable = 'x'",
            "nri.plugins.a.executable: x is not an absolute path",
        );
        refused(
            "[nri.plugins.a]\nrequired = '1s'\non_failure = 'ignore'",
            "nri.plugins.a: it cannot be required and its failure ignored",
        );
        let unknown = checked("nri.plugins.a.fields = ['Nonsense']").unwrap_err();
        assert!(unknown.starts_with("nri.plugins.a.fields: "), "{unknown}");
    }
}
