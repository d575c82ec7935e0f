use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::Args;
use telemetry::logs::Logs;

use crate::{
    config::{Config, ConfigError, HandlerConfig, Settings, load},
    daemon,
};

/// Serve, in the foreground, until SIGTERM or SIGINT. SIGHUP reloads the configuration.
///
/// Settings come from the file, then the environment, then these flags; the last one wins.
/// With --root and --state of its own, a daemon shares nothing with others on the host.
#[derive(Debug, Args)]
pub(super) struct Daemon {
    #[command(flatten)]
    settings: SettingsArgs,
}

/// The flags that say which daemon, shared by all commands that need its settings.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SettingsArgs {
    /// Configuration file [default: /etc/longshore/config.toml, if it exists]
    #[arg(long, env = "LONGSHORE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// State that survives a reboot [default: /var/lib/longshore]
    #[arg(long, env = "LONGSHORE_ROOT", value_name = "DIR")]
    root: Option<PathBuf>,
    /// State of the running system [default: /run/longshore]
    #[arg(long, env = "LONGSHORE_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
    /// Socket for the kubelet and crictl [default: STATE/longshore.sock]
    #[arg(long, env = "LONGSHORE_CRI_SOCKET", value_name = "PATH")]
    cri_socket: Option<PathBuf>,
    /// Socket for Docker clients [default: STATE/docker.sock]
    #[arg(long, env = "LONGSHORE_DOCKER_SOCKET", value_name = "PATH")]
    docker_socket: Option<PathBuf>,
    /// Socket for external NRI plugins [default: /var/run/nri/nri.sock, or STATE/nri.sock]
    #[arg(long, env = "LONGSHORE_NRI_SOCKET", value_name = "PATH")]
    nri_socket: Option<PathBuf>,
    /// NRI plugins to launch [default: /opt/nri/plugins, or ROOT/nri/plugins]
    #[arg(long, env = "LONGSHORE_NRI_PLUGIN_DIR", value_name = "DIR")]
    nri_plugin_dir: Option<PathBuf>,
    /// Configuration of NRI plugins [default: /etc/nri/conf.d, or ROOT/nri/conf.d]
    #[arg(long, env = "LONGSHORE_NRI_PLUGIN_CONFIG_DIR", value_name = "DIR")]
    nri_plugin_config_dir: Option<PathBuf>,
    /// CNI network configurations [default: /etc/cni/net.d, or ROOT/cni/net.d]
    #[arg(long, env = "LONGSHORE_CNI_CONF_DIR", value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// CNI programs; may be repeated [default: /opt/cni/bin and /usr/lib/cni]
    #[arg(long, env = "LONGSHORE_CNI_BIN_DIR", value_name = "DIR", value_delimiter = ':')]
    cni_bin_dir: Vec<PathBuf>,
    /// hosts.toml tree of the registries [default: /etc/longshore/certs.d, or ROOT/certs.d]
    #[arg(long, env = "LONGSHORE_REGISTRY_CONFIG", value_name = "DIR")]
    registry_config: Option<PathBuf>,
    /// An OCI runtime as NAME=BINARY; may be repeated, the first is the default
    #[arg(long, env = "LONGSHORE_HANDLER", value_name = "NAME=BINARY", value_delimiter = ',')]
    handler: Vec<String>,
    /// auto, systemd or cgroupfs
    #[arg(long, env = "LONGSHORE_CGROUP_DRIVER", value_name = "DRIVER")]
    cgroup_driver: Option<String>,
    /// error, warn, info, debug, trace, or target=level pairs
    #[arg(long, env = "LONGSHORE_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
}

impl Daemon {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let settings = self.settings.settings()?;
        let logs = Logs::install(&settings.log_level, settings.log_format)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("start the async runtime")?;
        let ended = runtime.block_on(async {
            let daemon = daemon::Daemon::start(settings).await?;
            daemon.run(Some(logs), || self.settings.settings()).await
        });
        ended.map(|()| ExitCode::SUCCESS)
    }
}

impl SettingsArgs {
    /// File, environment and flags together, checked.
    pub(super) fn settings(&self) -> Result<Settings, ConfigError> {
        let mut config = load(self.config.as_deref())?;
        self.lay_over(&mut config)?;
        config.check()
    }

    fn lay_over(&self, config: &mut Config) -> Result<(), ConfigError> {
        set(&mut config.root, self.root.as_ref());
        set(&mut config.state, self.state.as_ref());
        set(&mut config.cgroup_driver, self.cgroup_driver.as_ref());
        set(&mut config.log.level, self.log_level.as_ref());
        set_option(&mut config.cri.socket, self.cri_socket.as_ref());
        set_option(&mut config.docker.socket, self.docker_socket.as_ref());
        set_option(&mut config.nri.socket, self.nri_socket.as_ref());
        set_option(&mut config.nri.plugin_dir, self.nri_plugin_dir.as_ref());
        set_option(&mut config.nri.plugin_config_dir, self.nri_plugin_config_dir.as_ref());
        set_option(&mut config.cni.conf_dir, self.cni_conf_dir.as_ref());
        set_option(&mut config.registry.config_dir, self.registry_config.as_ref());
        if !self.cni_bin_dir.is_empty() {
            config.cni.bin_dirs.clone_from(&self.cni_bin_dir);
        }
        self.lay_over_handlers(config)
    }

    /// Handlers on the command line replace those of the file: the first is the default.
    fn lay_over_handlers(&self, config: &mut Config) -> Result<(), ConfigError> {
        if self.handler.is_empty() {
            return Ok(());
        }
        config.handlers.clear();
        config.default_handler = None;
        for given in &self.handler {
            let (name, binary) = given
                .split_once('=')
                .filter(|(name, binary)| !name.is_empty() && !binary.is_empty())
                .ok_or_else(|| ConfigError::Value {
                    key: "--handler".to_owned(),
                    why: format!("{given:?} is not NAME=BINARY, e.g. crun=/usr/bin/crun"),
                })?;
            let handler = HandlerConfig { binary: binary.into(), ..HandlerConfig::default() };
            config.handlers.insert(name.to_owned(), handler);
            config.default_handler.get_or_insert_with(|| name.to_owned());
        }
        Ok(())
    }
}

fn set<T: Clone>(into: &mut T, given: Option<&T>) {
    if let Some(value) = given {
        *into = value.clone();
    }
}

fn set_option<T: Clone>(into: &mut Option<T>, given: Option<&T>) {
    if let Some(value) = given {
        *into = Some(value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Handlers;

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "root = '/file'\nstate = '/file-state'\nhandlers.a.binary = 'a'")
            .unwrap();
        let args = SettingsArgs {
            config: Some(file),
            root: Some("/flag".into()),
            handler: vec!["z=zz".into(), "b=/b".into()],
            ..SettingsArgs::default()
        };
        let settings = args.settings().unwrap();
        assert_eq!(settings.root, PathBuf::from("/flag"));
        assert_eq!(settings.state, PathBuf::from("/file-state"));
        let Handlers::Given { default, handlers } = settings.handlers else { panic!("given") };
        assert_eq!(default.as_deref(), Some("z"));
        let given: Vec<_> = handlers.iter().map(|h| (h.name.as_str(), h.binary.clone())).collect();
        assert_eq!(given, [("z", "zz".into()), ("b", "/b".into())]);
    }

    #[test]
    fn a_handler_needs_a_name_and_a_binary() {
        for bad in ["crun", "=crun", "crun=", ""] {
            let args = SettingsArgs { handler: vec![bad.into()], ..SettingsArgs::default() };
            let error = args.settings().unwrap_err().to_string();
            assert!(error.contains("is not NAME=BINARY"), "{error}");
        }
    }
}
