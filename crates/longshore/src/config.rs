//! What the operator wrote, and what it means.
//!
//! ```text
//! file ──> Config ──(environment and flags laid over)──> Config ──check──> Settings
//! ```
//!
//! [`Config`] is the raw form: every key optional, nothing verified. [`Settings`] is
//! what the daemon works with: every path absolute, every default worked out, nothing
//! left to parse. Nothing but this crate reads configuration.

mod cni;
mod file;
mod handlers;
mod keys;
mod nri;
mod sample;
mod settings;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use base::Span;
pub use cni::Cni;
use content::Proxies;
pub use file::{ConfigError, load};
pub use handlers::{HandlerConfig, HandlerSettings, Handlers, ShimSettings};
pub use nri::Nri;
use nri::NriConfig;
use oci::Policy;
pub use sample::sample;
use settings::settings;
use telemetry::logs::{Format, Level};

pub const DEFAULT_FILE: &str = "/etc/longshore/config.toml";
const DEFAULT_ROOT: &str = "/var/lib/longshore";
const DEFAULT_STATE: &str = "/run/longshore";

/// `sun_path` holds 108 bytes, the last of which is a zero.
const SOCKET_PATH_BYTES: usize = 107;

settings! {
    /// The file, raw.
    Config {
        /// State that survives a reboot: records, images, snapshots.
        root: PathBuf = DEFAULT_ROOT.into();
        /// State of the running system: sockets, bundles, namespaces. On tmpfs.
        /// Paths below that are not given lie under `root` and `state` when those are
        /// changed, so that any number of daemons run side by side.
        state: PathBuf = DEFAULT_STATE.into();
        /// Who owns the cgroups: "systemd", "cgroupfs", or "auto": systemd where it runs.
        cgroup_driver: String = "auto".into();
        /// The handler of pods that name none. Unset: the first of `handlers` that works.
        default_handler: Option<String> => "\"crun\"";
        log: LogConfig = LogConfig::default();
        cri: CriConfig = CriConfig::default();
        streaming: StreamingConfig = StreamingConfig::default();
        docker: DockerConfig = DockerConfig::default();
        metrics: MetricsConfig = MetricsConfig::default();
        nri: NriConfig = NriConfig::default();
        cni: CniConfig = CniConfig::default();
        registry: RegistryConfig = RegistryConfig::default();
        containers: ContainersConfig = ContainersConfig::default();
        handlers: BTreeMap<String, HandlerConfig> = BTreeMap::new();
    }
}

settings! {
    /// The daemon's own log, on standard error.
    LogConfig {
        /// error, warn, info, debug or trace; or target=level pairs, comma-separated.
        level: String = "info".into();
        /// "text" for people, "json" for machines.
        format: String = "text".into();
    }
}

settings! {
    /// The service for the kubelet and crictl.
    CriConfig {
        /// The socket of both CRI services.
        socket: Option<PathBuf> => "\"/run/longshore/longshore.sock\"";
        /// How long events of containers are kept while nobody is there to read them.
        event_discard_age: Span = Span(Duration::from_secs(300));
    }
}

settings! {
    /// The server that the clients of exec, attach and port-forward are sent to.
    StreamingConfig {
        /// The address it listens on. Whoever reaches it needs a token, which the kubelet gets.
        address: String = "127.0.0.1".into();
        /// Its port; 0 is any that is free.
        port: u16 = 0;
        /// A connection on which nothing passes for so long is closed.
        idle_timeout: Span = Span(Duration::from_secs(4 * 3600));
        /// Encrypt with this certificate, and those that signed it, as PEM.
        tls_certificate: Option<PathBuf> => "\"/etc/longshore/streaming.crt\"";
        /// The private key of the certificate, as PEM.
        tls_key: Option<PathBuf> => "\"/etc/longshore/streaming.key\"";
    }
}

settings! {
    /// The service for Docker clients.
    DockerConfig {
        /// The socket of the Docker Engine API.
        socket: Option<PathBuf> => "\"/run/longshore/docker.sock\"";
    }
}

settings! {
    /// Metrics of the daemon, in OpenMetrics form, under /metrics.
    MetricsConfig {
        /// The socket that serves them: curl --unix-socket PATH http://localhost/metrics
        socket: Option<PathBuf> => "\"/run/longshore/metrics.sock\"";
        /// Serve them on a TCP address too, without encryption or authentication.
        tcp: Option<String> => "\"127.0.0.1:9470\"";
    }
}

settings! {
    /// Container Network Interface: the network of pods.
    CniConfig {
        /// Network configurations; the first by name is used. Watched.
        conf_dir: Option<PathBuf> => "\"/etc/cni/net.d\"";
        /// Where the CNI programs are, first match wins.
        bin_dirs: Vec<PathBuf> = vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()];
        /// How many configurations count, in the order of their names; 0: all. A pod has one
        /// interface in each: eth0, eth1…
        max_conf: u32 = 1;
        /// Written into `conf_dir` when the kubelet tells the node's pod networks and there is
        /// no configuration yet. Go template with PodCIDR, PodCIDRRanges, Routes.
        template: Option<PathBuf> => "none";
        /// Which address of a pod is *the* address: "ipv4", "ipv6", or "cni": the first told.
        ip_preference: String = "ipv4".into();
        /// Attach a pod to one network after the other, not to all at the same time.
        serial: bool = false;
        /// What one call of a CNI program may take.
        call_limit: Span = Span(Duration::from_secs(90));
        /// Where the network namespaces of pods are pinned; some CNI daemons mount it.
        netns_dir: Option<PathBuf> => "\"/var/run/netns\"";
    }
}

settings! {
    /// Registries that images come from.
    RegistryConfig {
        /// A tree of hosts.toml files, one folder per registry. Read at each pull.
        config_dir: Option<PathBuf> => "\"/etc/longshore/certs.d\"";
        /// The proxy for registries without TLS, as a URL. Defaults to HTTP_PROXY of the daemon's
        /// environment; "" is for none. Registries on this machine are always asked directly.
        http_proxy: Option<String> => "\"$HTTP_PROXY\"";
        /// The proxy for registries with TLS. Defaults to HTTPS_PROXY of the environment.
        https_proxy: Option<String> => "\"$HTTPS_PROXY\"";
        /// Hosts, domains, addresses and networks that need no proxy, separated by commas. Defaults
        /// to NO_PROXY of the environment.
        no_proxy: Option<String> => "\"$NO_PROXY\"";
    }
}

settings! {
    /// What holds for all containers.
    ContainersConfig {
        /// Limit huge pages as asked. Off: such limits are ignored.
        hugepages: bool = false;
        /// With that on: refuse such a limit where the kernel has no hugetlb controller.
        hugepages_required: bool = false;
        /// The seccomp profile of containers that name none: "unconfined" or "default".
        seccomp: String = "unconfined".into();
        /// Pods with a network of their own bind low ports without a capability …
        unprivileged_ports: bool = true;
        /// … and ping.
        unprivileged_icmp: bool = true;
        /// Devices belong to the container's user, not to root.
        device_ownership: bool = false;
        /// Where vendors describe devices (CDI), later directories winning. Read when asked for.
        cdi_dirs: Vec<PathBuf> = vec!["/etc/cdi".into(), "/var/run/cdi".into()];
        /// Classes of block I/O that pods name by annotation. Read when asked for.
        blockio_classes: Option<PathBuf> => "\"/etc/longshore/blockio.yaml\"";
    }
}

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub root: PathBuf,
    pub state: PathBuf,
    pub cgroup_driver: CgroupDriver,
    pub handlers: Handlers,
    pub log_level: Level,
    pub log_format: Format,
    pub cri_socket: PathBuf,
    pub streaming: Streaming,
    pub event_discard_age: Duration,
    pub docker_socket: PathBuf,
    pub metrics_socket: PathBuf,
    pub metrics_tcp: Option<SocketAddr>,
    pub nri: Nri,
    pub cni: Cni,
    pub registry: Registry,
    pub containers: Containers,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Streaming {
    pub address: SocketAddr,
    pub idle: Duration,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// Where images come from, and on which way.
#[derive(Clone, Debug, PartialEq)]
pub struct Registry {
    pub config_dir: PathBuf,
    /// What is set here wins over the environment.
    pub proxies: Proxies,
}

/// What holds for all containers.
#[derive(Clone, Debug, PartialEq)]
pub struct Containers {
    pub policy: Policy,
    pub cdi_dirs: Vec<PathBuf>,
    pub blockio_classes: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    Auto,
    Systemd,
    Cgroupfs,
}

impl Config {
    /// Works out every default and refuses what cannot be meant. Touches no file.
    pub fn check(&self) -> Result<Settings, ConfigError> {
        let root = absolute("root", &self.root)?;
        let state = absolute("state", &self.state)?;
        let place = Place {
            root: (root != Path::new(DEFAULT_ROOT)).then_some(root.as_path()),
            state: &state,
            own_state: state != Path::new(DEFAULT_STATE),
        };
        let settings = Settings {
            cgroup_driver: cgroup_driver(&self.cgroup_driver)?,
            handlers: self.check_handlers()?,
            log_level: self.log.level.parse().map_err(|e| value("log.level", e))?,
            log_format: log_format(&self.log.format)?,
            cri_socket: place.socket("cri.socket", self.cri.socket.as_ref(), "longshore.sock")?,
            event_discard_age: self.cri.event_discard_age.0,
            streaming: self.streaming.check()?,
            docker_socket: place.socket(
                "docker.socket",
                self.docker.socket.as_ref(),
                "docker.sock",
            )?,
            metrics_socket: place.socket(
                "metrics.socket",
                self.metrics.socket.as_ref(),
                "metrics.sock",
            )?,
            metrics_tcp: self.metrics.tcp.as_deref().map(tcp_address).transpose()?,
            nri: self.nri.check(&place)?,
            cni: self.check_cni(&place)?,
            registry: self.check_registry(&place)?,
            containers: self.check_containers(&place)?,
            root,
            state,
        };
        settings.sockets_differ()?;
        Ok(settings)
    }

    /// Works out where the daemon serves CRI, for its clients: the rest is none of their business.
    pub fn cri_socket(&self) -> Result<PathBuf, ConfigError> {
        let state = absolute("state", &self.state)?;
        let place = Place { root: None, state: &state, own_state: false };
        place.socket("cri.socket", self.cri.socket.as_ref(), "longshore.sock")
    }

    fn check_registry(&self, place: &Place<'_>) -> Result<Registry, ConfigError> {
        let RegistryConfig { config_dir, http_proxy, https_proxy, no_proxy } = &self.registry;
        let (default, own) = ("/etc/longshore/certs.d", "certs.d");
        let config_dir = place.dir("registry.config_dir", config_dir.as_ref(), default, own)?;
        for (key, url) in
            [("registry.http_proxy", http_proxy), ("registry.https_proxy", https_proxy)]
        {
            if let Some(url) = url.as_deref().filter(|url| !url.is_empty()) {
                content::parse_proxy(url).map_err(|e| value(key, e))?;
            }
        }
        let proxies = Proxies {
            http: http_proxy.clone(),
            https: https_proxy.clone(),
            except: no_proxy.clone(),
        };
        Ok(Registry { config_dir, proxies })
    }

    fn check_containers(&self, place: &Place<'_>) -> Result<Containers, ConfigError> {
        let given = &self.containers;
        let policy = Policy {
            unset_seccomp: handlers::seccomp("containers.seccomp".into(), &given.seccomp)?,
            ignore_hugepages: !given.hugepages,
            tolerate_missing_hugetlb: !given.hugepages_required,
            device_ownership: given.device_ownership,
            unprivileged_ports: given.unprivileged_ports,
            unprivileged_icmp: given.unprivileged_icmp,
            ..Policy::default()
        };
        let cdi_dirs = given.cdi_dirs.iter().map(|dir| absolute("containers.cdi_dirs", dir));
        Ok(Containers {
            policy,
            cdi_dirs: cdi_dirs.collect::<Result<_, _>>()?,
            blockio_classes: place.dir(
                "containers.blockio_classes",
                given.blockio_classes.as_ref(),
                "/etc/longshore/blockio.yaml",
                "blockio.yaml",
            )?,
        })
    }
}

impl StreamingConfig {
    fn check(&self) -> Result<Streaming, ConfigError> {
        let ip = self.address.parse::<IpAddr>();
        let ip = ip.map_err(|_| one_of("streaming.address", &self.address, "an IP address"))?;
        if self.idle_timeout.0.is_zero() {
            return Err(value("streaming.idle_timeout", "must be more than nothing"));
        }
        let tls = match (&self.tls_certificate, &self.tls_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((
                absolute("streaming.tls_certificate", certificate)?,
                absolute("streaming.tls_key", key)?,
            )),
            (Some(_), None) => return Err(value("streaming.tls_key", "is missing")),
            (None, Some(_)) => return Err(value("streaming.tls_certificate", "is missing")),
        };
        let address = SocketAddr::new(ip, self.port);
        Ok(Streaming { address, idle: self.idle_timeout.0, tls })
    }
}

impl Settings {
    /// Keys that differ in `new` and that a running daemon cannot change.
    pub fn fixed_changes(&self, new: &Self) -> Vec<&'static str> {
        let changes = [
            ("root", self.root != new.root),
            ("state", self.state != new.state),
            ("cgroup_driver", self.cgroup_driver != new.cgroup_driver),
            ("handlers", self.handlers != new.handlers),
            ("log.format", self.log_format != new.log_format),
            ("cri.socket", self.cri_socket != new.cri_socket),
            ("cri.event_discard_age", self.event_discard_age != new.event_discard_age),
            ("streaming", self.streaming != new.streaming),
            ("docker.socket", self.docker_socket != new.docker_socket),
            ("metrics.socket", self.metrics_socket != new.metrics_socket),
            ("metrics.tcp", self.metrics_tcp != new.metrics_tcp),
            ("cni", self.cni != new.cni),
            ("registry", self.registry != new.registry),
            ("containers", self.containers != new.containers),
        ];
        changes.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }

    /// Two services on one socket would take it from each other at every start.
    fn sockets_differ(&self) -> Result<(), ConfigError> {
        let sockets = [
            ("cri.socket", &self.cri_socket),
            ("docker.socket", &self.docker_socket),
            ("metrics.socket", &self.metrics_socket),
            ("nri.socket", self.nri.socket()),
        ];
        for (i, (key, path)) in sockets.iter().enumerate() {
            if let Some((other, _)) = sockets[..i].iter().find(|(_, taken)| taken == path) {
                return Err(value(*key, format!("{} is {other} already", path.display())));
            }
        }
        Ok(())
    }
}

impl Settings {
    /// What the host is looked at for.
    pub fn probe(&self) -> probe::Settings {
        /// Less than this is gone after a few pulls.
        const MIN_FREE_BYTES: u64 = 2 << 30;
        /// For one program or trial container.
        const LIMIT: Duration = Duration::from_secs(30);
        probe::Settings {
            root: self.root.clone(),
            cni_conf_dir: self.cni.conf_dir.clone(),
            cni_bin_dirs: self.cni.bin_dirs.clone(),
            runtimes: (self.handlers.given().iter())
                .filter(|handler| !handler.binary.as_os_str().is_empty())
                .map(|handler| (handler.name.clone(), handler.binary.clone()))
                .collect(),
            driver: match self.cgroup_driver {
                CgroupDriver::Auto => None,
                CgroupDriver::Systemd => Some(probe::Driver::Systemd),
                CgroupDriver::Cgroupfs => Some(probe::Driver::Cgroupfs),
            },
            min_free_bytes: MIN_FREE_BYTES,
            limit: LIMIT,
        }
    }
}

/// Where unset paths go: beside the others when root or state were changed.
struct Place<'a> {
    root: Option<&'a Path>,
    state: &'a Path,
    own_state: bool,
}

impl Place<'_> {
    fn socket(
        &self,
        key: &'static str,
        given: Option<&PathBuf>,
        name: &str,
    ) -> Result<PathBuf, ConfigError> {
        let path = match given {
            Some(path) => absolute(key, path)?,
            None => self.state.join(name),
        };
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES {
            let why = format!(
                "{} has {bytes} bytes, a unix socket takes {SOCKET_PATH_BYTES} at most: choose a \
                 shorter path",
                path.display()
            );
            return Err(value(key, why));
        }
        Ok(path)
    }

    fn dir(
        &self,
        key: &'static str,
        given: Option<&PathBuf>,
        plain: &str,
        below_root: &str,
    ) -> Result<PathBuf, ConfigError> {
        match (given, self.root) {
            (Some(path), _) => absolute(key, path),
            (None, Some(root)) => Ok(root.join(below_root)),
            (None, None) => Ok(plain.into()),
        }
    }
}

fn absolute(key: impl Into<String>, path: &Path) -> Result<PathBuf, ConfigError> {
    if path.is_absolute() {
        Ok(path.to_owned())
    } else {
        Err(value(key, format!("{path:?} is not an absolute path")))
    }
}

fn cgroup_driver(name: &str) -> Result<CgroupDriver, ConfigError> {
    match name {
        "auto" => Ok(CgroupDriver::Auto),
        "systemd" => Ok(CgroupDriver::Systemd),
        "cgroupfs" => Ok(CgroupDriver::Cgroupfs),
        other => Err(one_of("cgroup_driver", other, "\"auto\", \"systemd\" or \"cgroupfs\"")),
    }
}

fn log_format(name: &str) -> Result<Format, ConfigError> {
    match name {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        other => Err(one_of("log.format", other, "\"text\" or \"json\"")),
    }
}

fn tcp_address(text: &str) -> Result<SocketAddr, ConfigError> {
    text.parse().map_err(|_| one_of("metrics.tcp", text, "an address and port, 127.0.0.1:9470"))
}

fn one_of(key: impl Into<String>, got: &str, want: &str) -> ConfigError {
    value(key, format!("{got:?} is not {want}"))
}

fn value(key: impl Into<String>, why: impl fmt::Display) -> ConfigError {
    ConfigError::Value { key: key.into(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    pub(super) fn refused(toml: &str, want: &str) {
        let error = toml::from_str::<Config>(toml).unwrap().check().unwrap_err().to_string();
        assert_eq!(error, want);
    }

    #[test]
    fn bad_values_name_their_key() {
        refused("root = 'here'", "root: \"here\" is not an absolute path");
        refused(
            "cgroup_driver = 'x'",
            "cgroup_driver: \"x\" is not \"auto\", \"systemd\" or \"cgroupfs\"",
        );
        refused("log.format = 'xml'", "log.format: \"xml\" is not \"text\" or \"json\"");
        refused(
            "cri.socket = '/a.sock'\nnri.socket = '/a.sock'",
            "nri.socket: /a.sock is cri.socket already",
        );
        refused(
            "streaming.address = 'localhost'",
            "streaming.address: \"localhost\" is not an IP address",
        );
        refused("streaming.tls_certificate = '/a'", "streaming.tls_key: is missing");
        refused(
            "streaming.idle_timeout = '0s'",
            "streaming.idle_timeout: must be more than nothing",
        );
        refused(
            "registry.https_proxy = 'socks5://user:secret@proxy'",
            "registry.https_proxy: proxy has the scheme \"socks5\", which is not http or https",
        );
        refused(
            "metrics.tcp = 'here'",
            "metrics.tcp: \"here\" is not an address and port, 127.0.0.1:9470",
        );
    }

    #[test]
    fn a_socket_path_that_cannot_be_bound_is_refused() {
        let long = format!("/{}", "x".repeat(107));
        let error = toml::from_str::<Config>(&format!("cri.socket = '{long}'")).unwrap().check();
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("cri.socket: /xxx") && text.contains("108 bytes"), "{text}");
        let fits = format!("cri.socket = '/{}'", "x".repeat(106));
        toml::from_str::<Config>(&fits).unwrap().check().unwrap();
    }

    #[test]
    fn with_an_own_root_and_state_nothing_is_shared_with_the_host() {
        let own = "root = '/t/lib'\nstate = '/t/run'";
        let settings = toml::from_str::<Config>(own).unwrap().check().unwrap();
        let paths = [
            &settings.cri_socket,
            &settings.docker_socket,
            &settings.metrics_socket,
            settings.nri.socket(),
            &settings.nri.settings.plugin_dirs[0],
            &settings.nri.settings.config_dirs[0],
            &settings.cni.conf_dir,
            &settings.cni.netns_dir,
            &settings.registry.config_dir,
        ];
        for path in paths {
            assert!(path.starts_with("/t"), "{}", path.display());
        }
    }
}
