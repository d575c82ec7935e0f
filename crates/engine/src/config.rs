//! What the engine is told at its start.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use net::NetConfig;
use oci::{CgroupDriver, HandlerFacts, HostFacts, Policy, SelinuxContexts};
use shim_client::{BadName, BootstrapForm};

use crate::{
    apparmor::{LOADED, Profiles},
    metrics::Metrics,
    plugins::PluginsConfig,
};

#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// State that survives a reboot, on disk.
    pub root: PathBuf,
    /// State of the running system, on tmpfs.
    pub state: PathBuf,
    /// Where the network namespaces of pods are pinned.
    pub netns: PathBuf,
    pub network: NetConfig,
    pub shim_binary: PathBuf,
    /// The default first.
    pub handlers: Vec<Handler>,
    pub host: HostFacts,
    pub policy: Policy,
    /// Where vendors describe devices, later directories winning.
    pub cdi_dirs: Vec<PathBuf>,
    /// Defines classes of block I/O, if it exists.
    pub block_io_classes: PathBuf,
    /// The SELinux contexts of containers; `None` where it is off or its policy has none.
    pub selinux: Option<SelinuxContexts>,
    /// Where criu is looked for, as OCI runtimes do.
    pub program_dirs: Vec<PathBuf>,
    /// Loads profiles, where it is installed.
    pub apparmor_parser: Option<PathBuf>,
    pub cgroup_driver: CgroupDriver,
    pub limits: Limits,
    /// Longer lines of a log are cut into parts.
    pub max_log_line: usize,
    /// How long events are kept that nobody is there to read.
    pub event_discard_age: Duration,
    pub metrics: Metrics,
    pub plugins: PluginsConfig,
}

impl EngineConfig {
    pub(crate) fn profiles(&self) -> Profiles<'_> {
        let default = &self.policy.apparmor_profile;
        let loaded = Path::new(LOADED);
        Profiles { loaded, parser: self.apparmor_parser.as_deref(), default }
    }
}

/// A configured OCI runtime.
#[derive(Clone, Debug)]
pub struct Handler {
    pub name: String,
    /// The OCI runtime. Empty for a foreign shim that has none.
    pub binary: PathBuf,
    /// Before every command of it.
    pub args: Vec<String>,
    /// Keeps its pods in the place of our own.
    pub shim: Option<ForeignShim>,
    pub snapshotter: Option<String>,
    pub facts: HandlerFacts,
}

/// Whether a name means a shim at all, whatever is installed.
pub fn check_shim_name(name: &str) -> Result<(), BadName> {
    shim_client::shim_binary_name(name).map(drop)
}

/// A shim that others wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignShim {
    pub binary: PathBuf,
    /// As it tells it.
    pub version: Option<String>,
    pub form: BootstrapForm,
    /// A configuration file of its own, for those that have one.
    pub config: Option<PathBuf>,
    pub sandbox: SandboxKind,
}

/// What is a pod, to a shim that others wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxKind {
    /// The first of its tasks, which sleeps.
    #[default]
    Task,
    /// What its Sandbox service makes.
    Service,
}

impl ForeignShim {
    /// By a name like `io.containerd.runc.v2` or an absolute path, looked for on `path`. Asks it
    /// for its version. Blocking.
    pub fn find(name: &str, path: &OsStr, config: Option<PathBuf>) -> Result<Self, BadName> {
        const LIMIT: Duration = Duration::from_secs(10);
        let binary = shim_client::find_shim(name, path)?;
        // One that cannot be run says by its start what is wrong with it.
        let printed = shim_client::ask_version(&binary, LIMIT).unwrap_or_default();
        Ok(Self {
            binary,
            version: shim_client::shim_version(&printed).map(str::to_owned),
            form: BootstrapForm::of_version(&printed),
            config,
            sandbox: SandboxKind::default(),
        })
    }
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub start_shim: Duration,
    /// For containers of a pod that is stopped to end after SIGKILL.
    pub kill: Duration,
    /// How long a finished create waits for somebody to take its answer.
    pub undelivered: Duration,
    /// The output of a command that ended, held open by children it left.
    pub drain: Duration,
    /// Recovery of one pod.
    pub recover: Duration,
    /// For a pod that ends to be off its networks; then it goes without, and that is tried
    /// again in the background.
    pub detach: Duration,
    /// A checkpoint, where the client gives no limit.
    pub checkpoint: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_shim: Duration::from_secs(30),
            kill: Duration::from_secs(60),
            undelivered: Duration::from_secs(300),
            drain: Duration::from_secs(5),
            recover: Duration::from_secs(10),
            detach: Duration::from_secs(30),
            checkpoint: Duration::from_secs(120),
        }
    }
}
