//! What the engine is told at its start.

use std::{path::PathBuf, time::Duration};

use net::NetConfig;
use oci::{CgroupDriver, HandlerFacts, HostFacts, Policy};

use crate::{metrics::Metrics, plugins::PluginsConfig};

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
    pub cgroup_driver: CgroupDriver,
    pub limits: Limits,
    /// Longer lines of a log are cut into parts.
    pub max_log_line: usize,
    /// How long events are kept that nobody is there to read.
    pub event_discard_age: Duration,
    pub metrics: Metrics,
    pub plugins: PluginsConfig,
}

/// A configured OCI runtime.
#[derive(Clone, Debug)]
pub struct Handler {
    pub name: String,
    pub binary: PathBuf,
    /// Before every command of it.
    pub args: Vec<String>,
    pub snapshotter: Option<String>,
    pub facts: HandlerFacts,
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
        }
    }
}
