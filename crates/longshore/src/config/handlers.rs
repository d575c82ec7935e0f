//! Handlers: OCI runtimes that pods name as their runtime class.

use std::path::{Path, PathBuf};

use engine::SandboxKind;
use oci::{PrivilegedDevices, Profile};

use super::{Config, ConfigError, absolute, one_of, settings::settings, value};

settings! {
    /// An OCI runtime that pods can name as their runtime class.
    /// Without any such section, crun and runc are looked up on PATH.
    HandlerConfig {
        /// The OCI runtime: a name on PATH or an absolute path. Shims other than ours may have none.
        binary: PathBuf = PathBuf::new();
        /// What keeps its pods: "longshore" is our own shim; others go by the name containerd has
        /// for them, like "io.containerd.runc.v2", or by the absolute path of their binary.
        shim: String = "longshore".into();
        /// The configuration file of a shim that has one and no OCI runtime.
        shim_config: Option<PathBuf> => "none";
        /// What a pod is to a shim other than ours: "task", a first task of it that sleeps; or
        /// "shim", what the shim makes itself by its Sandbox service.
        sandboxer: Option<String> => "\"task\"";
        /// Arguments of the OCI runtime, before its command.
        args: Vec<String> = Vec::new();
        /// A runtime spec in JSON that stands where our default would.
        base_spec: Option<PathBuf> => "\"/etc/longshore/base.json\"";
        /// Who makes root file systems: "overlayfs" or "native".
        snapshotter: Option<String> => "\"overlayfs\"";
        /// Network configurations for its pods. Unset: as for all others.
        cni_conf_dir: Option<PathBuf> => "none";
        /// Annotations of pods that the OCI runtime sees: patterns, in which * stops at a /.
        pod_annotations: Vec<String> = Vec::new();
        /// The same of containers.
        container_annotations: Vec<String> = Vec::new();
        /// The host's devices that privileged containers get: "all"; "none" but what they ask
        /// for; or "allowed": none, but they may use any that they make.
        privileged_devices: String = "all".into();
        /// The seccomp profile of containers that name none: "unconfined" or "default".
        seccomp: Option<String> => "\"unconfined\"";
        /// Containers may write to their own cgroup, where that is v2.
        cgroup_writable: bool = false;
    }
}

const SNAPSHOTTERS: [&str; 2] = ["overlayfs", "native"];

/// In the order in which they are tried as the default.
#[derive(Clone, Debug, PartialEq)]
pub enum Handlers {
    /// Whatever of the known runtimes is on PATH.
    Search,
    Given {
        default: Option<String>,
        handlers: Vec<HandlerSettings>,
    },
}

/// One handler, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerSettings {
    pub name: String,
    /// Empty where a foreign shim has none.
    pub binary: PathBuf,
    pub shim: Option<ShimSettings>,
    pub args: Vec<String>,
    pub base_spec: Option<PathBuf>,
    pub snapshotter: Option<String>,
    pub pod_annotations: Vec<String>,
    pub container_annotations: Vec<String>,
    pub privileged_devices: PrivilegedDevices,
    pub seccomp: Option<Profile>,
    pub cgroup_writable: bool,
}

/// A shim that is not ours.
#[derive(Clone, Debug, PartialEq)]
pub struct ShimSettings {
    pub name: String,
    pub config: Option<PathBuf>,
    pub sandbox: SandboxKind,
}

impl Handlers {
    /// As asked for; nothing of those that are searched for.
    pub fn given(&self) -> &[HandlerSettings] {
        match self {
            Self::Search => &[],
            Self::Given { handlers, .. } => handlers,
        }
    }
}

impl Config {
    pub(super) fn check_handlers(&self) -> Result<Handlers, ConfigError> {
        if self.handlers.is_empty() && self.default_handler.is_none() {
            return Ok(Handlers::Search);
        }
        let checked = self.handlers.iter().map(|(name, handler)| check(name, handler));
        let mut handlers = checked.collect::<Result<Vec<_>, _>>()?;
        if let Some(default) = &self.default_handler {
            // The default is tried first.
            let Some(at) = handlers.iter().position(|handler| handler.name == *default) else {
                let why = format!("no [handlers.{default}] says what {default:?} is");
                return Err(value("default_handler", why));
            };
            let first = handlers.remove(at);
            handlers.insert(0, first);
        }
        Ok(Handlers::Given { default: self.default_handler.clone(), handlers })
    }
}

fn check(name: &str, handler: &HandlerConfig) -> Result<HandlerSettings, ConfigError> {
    let key = |key: &str| format!("handlers.{name}.{key}");
    if let Some(other) = handler.snapshotter.as_deref().filter(|name| !SNAPSHOTTERS.contains(name))
    {
        return Err(one_of(key("snapshotter"), other, "\"overlayfs\" or \"native\""));
    }
    let base_spec = handler.base_spec.as_ref();
    let shim = shim(&key, handler)?;
    Ok(HandlerSettings {
        name: name.to_owned(),
        binary: match (&shim, handler.binary.as_os_str().is_empty()) {
            (Some(_), true) => PathBuf::new(),
            _ => binary(key("binary"), &handler.binary)?,
        },
        shim,
        args: handler.args.clone(),
        base_spec: base_spec.map(|path| absolute(key("base_spec"), path)).transpose()?,
        snapshotter: handler.snapshotter.clone(),
        pod_annotations: handler.pod_annotations.clone(),
        container_annotations: handler.container_annotations.clone(),
        privileged_devices: match handler.privileged_devices.as_str() {
            "all" => PrivilegedDevices::Host,
            "none" => PrivilegedDevices::Own,
            "allowed" => PrivilegedDevices::OwnAllAllowed,
            other => {
                let want = "\"all\", \"none\" or \"allowed\"";
                return Err(one_of(key("privileged_devices"), other, want));
            }
        },
        seccomp: handler.seccomp.as_deref().map(|p| seccomp(key("seccomp"), p)).transpose()?,
        cgroup_writable: handler.cgroup_writable,
    })
}

fn shim(
    key: &dyn Fn(&str) -> String,
    handler: &HandlerConfig,
) -> Result<Option<ShimSettings>, ConfigError> {
    let config = handler.shim_config.as_ref();
    let config = config.map(|path| absolute(key("shim_config"), path)).transpose()?;
    if handler.shim == "longshore" {
        return match (config, &handler.sandboxer) {
            (Some(_), _) => Err(value(key("shim_config"), "our own shim has none: name another")),
            (_, Some(_)) => Err(value(key("sandboxer"), "our own shim needs none: name another")),
            (None, None) => Ok(None),
        };
    }
    let sandbox = match handler.sandboxer.as_deref() {
        None | Some("task") => SandboxKind::Task,
        Some("shim") => SandboxKind::Service,
        Some(other) => return Err(one_of(key("sandboxer"), other, "\"task\" or \"shim\"")),
    };
    if !handler.args.is_empty() {
        return Err(value(key("args"), "only our own shim can be told arguments"));
    }
    if config.is_some() && !handler.binary.as_os_str().is_empty() {
        return Err(value(key("shim_config"), "a shim is told this or its OCI runtime, not both"));
    }
    engine::check_shim_name(&handler.shim).map_err(|e| value(key("shim"), e.to_string()))?;
    Ok(Some(ShimSettings { name: handler.shim.clone(), config, sandbox }))
}

fn binary(key: String, binary: &Path) -> Result<PathBuf, ConfigError> {
    if binary.as_os_str().is_empty() {
        return Err(value(key, "is missing: name the OCI runtime, e.g. \"crun\""));
    }
    let plain_name = binary.components().count() == 1;
    if !binary.is_absolute() && !plain_name {
        return Err(value(key, format!("{} is neither a name nor absolute", binary.display())));
    }
    Ok(binary.to_owned())
}

/// Only what needs no file: one that a container shall have by default must always be there.
pub(super) fn seccomp(key: String, name: &str) -> Result<Profile, ConfigError> {
    match name {
        "unconfined" => Ok(Profile::Unconfined),
        "default" => Ok(Profile::RuntimeDefault),
        other => Err(one_of(key, other, "\"unconfined\" or \"default\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::refused;

    #[test]
    fn bad_values_name_their_key() {
        refused(
            "[handlers.a]",
            "handlers.a.binary: is missing: name the OCI runtime, e.g. \"crun\"",
        );
        refused(
            "handlers.a.binary = './x/y'",
            "handlers.a.binary: ./x/y is neither a name nor absolute",
        );
        refused(
            "default_handler = 'kata'",
            "default_handler: no [handlers.kata] says what \"kata\" is",
        );
        let a = |line: &str| format!("[handlers.a]\nbinary = 'x'\n{line}");
        refused(
            &a("shim = 'kata'"),
            "handlers.a.shim: \"kata\" is neither an absolute path nor a name like \
             \"io.containerd.runc.v2\"",
        );
        refused(
            &a("shim_config = '/k.toml'"),
            "handlers.a.shim_config: our own shim has none: name another",
        );
        refused(
            &a("sandboxer = 'shim'"),
            "handlers.a.sandboxer: our own shim needs none: name another",
        );
        let foreign = |line: &str| a(&format!("shim = 'io.containerd.x.v2'\n{line}"));
        refused(
            &foreign("sandboxer = 'podsandbox'"),
            "handlers.a.sandboxer: \"podsandbox\" is not \"task\" or \"shim\"",
        );
        refused(
            &foreign("args = ['-x']"),
            "handlers.a.args: only our own shim can be told arguments",
        );
        refused(
            &foreign("shim_config = '/k.toml'"),
            "handlers.a.shim_config: a shim is told this or its OCI runtime, not both",
        );
        refused(
            &a("privileged_devices = 'some'"),
            "handlers.a.privileged_devices: \"some\" is not \"all\", \"none\" or \"allowed\"",
        );
        refused(
            &a("seccomp = '/x.json'"),
            "handlers.a.seccomp: \"/x.json\" is not \"unconfined\" or \"default\"",
        );
        refused(&a("base_spec = 'x'"), "handlers.a.base_spec: \"x\" is not an absolute path");
        refused(
            &a("snapshotter = 'zfs'"),
            "handlers.a.snapshotter: \"zfs\" is not \"overlayfs\" or \"native\"",
        );
    }

    #[test]
    fn a_foreign_shim_may_have_no_runtime() {
        let toml = "[handlers.kata]\nshim = 'io.containerd.kata.v2'\nshim_config = '/k.toml'\nsandboxer = 'shim'";
        let settings = toml::from_str::<Config>(toml).unwrap().check().unwrap();
        let kata = &settings.handlers.given()[0];
        let want = ShimSettings {
            name: "io.containerd.kata.v2".to_owned(),
            config: Some("/k.toml".into()),
            sandbox: SandboxKind::Service,
        };
        assert_eq!((kata.binary.as_os_str().is_empty(), kata.shim.as_ref()), (true, Some(&want)));
    }

    #[test]
    fn the_default_handler_is_tried_first() {
        let toml = "default_handler = 'runc'\nhandlers.crun.binary = 'crun'\nhandlers.runc.binary = '/x/runc'";
        let settings = toml::from_str::<Config>(toml).unwrap().check().unwrap();
        let first = &settings.handlers.given()[0];
        assert_eq!((first.name.as_str(), &first.binary), ("runc", &PathBuf::from("/x/runc")));
    }
}
