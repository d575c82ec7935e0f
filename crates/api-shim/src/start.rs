//! The start of our shim: a [`Description`] on its standard input, a [`Bootstrap`] on its
//! standard output and in the pod's directory.
//!
//! Both are JSON with named fields, so that a new daemon finds its way with an old shim:
//! a field that is not there has its default, one that nobody knows is skipped.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// All of a pod that its shim has to make and keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub id: String,
    /// The pod's own directory, which exists. The shim ends with it.
    pub dir: PathBuf,
    pub runtime: OciRuntime,
    #[serde(default)]
    pub namespaces: Namespaces,
    #[serde(default)]
    pub hostname: Option<String>,
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
    #[serde(default)]
    pub pid1: FirstProcess,
    #[serde(default)]
    pub log_level: LogLevel,
    /// Where the controllers are, as the daemon sees it. Finding that out means to read all
    /// mounts of the host, which would double the memory of a shim.
    #[serde(default)]
    pub hierarchies: Vec<CgroupHierarchy>,
}

/// What the first process of a shared PID namespace gets from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstProcess {
    /// Its cgroup, made if missing and removed with it. `None`: that of the shim.
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
    /// `None`: as the shim's.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
}

/// A mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupHierarchy {
    pub v2: bool,
    pub mount: PathBuf,
    /// The group one sees at `mount`.
    pub root: PathBuf,
    pub controllers: Vec<String>,
}

/// How to call the OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciRuntime {
    pub binary: PathBuf,
    /// What comes before its command.
    #[serde(default)]
    pub args: Vec<String>,
    /// Where it keeps its state (`--root`).
    pub root: PathBuf,
    /// systemd makes the cgroups, and changes them.
    #[serde(default)]
    pub systemd_cgroup: bool,
}

/// The namespaces of a pod that are not the host's, and where each is to be pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    #[serde(default)]
    pub net: Option<PathBuf>,
    #[serde(default)]
    pub ipc: Option<PathBuf>,
    #[serde(default)]
    pub uts: Option<PathBuf>,
    /// Owns the others.
    #[serde(default)]
    pub user: Option<UserNs>,
    /// One PID namespace for all containers, with a PID 1 of the shim's.
    #[serde(default)]
    pub pid: bool,
    /// Where that one is pinned; pods of earlier versions have it nowhere.
    #[serde(default)]
    pub pid_pin: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNs {
    pub pin: PathBuf,
    pub uids: Vec<IdMap>,
    pub gids: Vec<IdMap>,
}

/// `count` ids from `inside` on are those from `outside` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// What the shim writes into `shim.log`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    #[default]
    Warn,
    Debug,
}

/// Where a shim is to be found. `version`, `address` and `protocol` are what the shims of
/// containerd say too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Of the Task API.
    pub version: u32,
    /// `unix://` and the path of the socket.
    pub address: String,
    pub protocol: String,
    pub pid: u32,
    /// PID 1 of the shared PID namespace, in the numbers of the host.
    #[serde(default)]
    pub pod_pid: Option<u32>,
    /// When that one started, see [`TaskRecord::start_time`].
    #[serde(default)]
    pub pod_start_time: u64,
    /// As asked for, and made.
    #[serde(default)]
    pub namespaces: Namespaces,
    /// For whoever has to tidy up after a shim that was killed.
    pub runtime: OciRuntime,
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
    /// As asked for, and made.
    #[serde(default)]
    pub pid1: FirstProcess,
}

/// Files of a shim in the pod's directory. Names are short: the path of a socket has at
/// most 107 bytes.
#[derive(Clone, Debug)]
pub struct Files {
    pub bootstrap: PathBuf,
    /// Task and Io.
    pub socket: PathBuf,
    /// Attached clients.
    pub attach: PathBuf,
    pub log: PathBuf,
    /// One file per task, by its id: what is needed to end it without the shim.
    pub tasks: PathBuf,
}

impl Files {
    pub fn of(dir: &Path) -> Self {
        Self {
            bootstrap: dir.join("bootstrap.json"),
            socket: dir.join("shim.sock"),
            attach: dir.join("io.sock"),
            log: dir.join("shim.log"),
            tasks: dir.join("tasks"),
        }
    }
}

/// A task as its shim leaves it on disk, for the case that the shim is killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub bundle: PathBuf,
    /// 0 while the runtime is creating it.
    pub pid: u32,
    /// When the process started, in clock ticks since boot: tells it from a later process
    /// with the same number.
    #[serde(default)]
    pub start_time: u64,
    /// Its cgroup, below the mount points of the hierarchies.
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
    #[serde(default)]
    pub exit: Option<ExitRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub status: u32,
    /// Nanoseconds since 1970.
    pub at: i64,
    pub oom: bool,
}

/// When a process started, from the text of `/proc/<pid>/stat`. The name before it may
/// hold anything, spaces and parentheses too.
pub fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_survive_odd_names() {
        let fields: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("7 (a) S 1 (b)) S {}", fields.join(" "));
        assert_eq!(start_time(&stat), Some(22));
        assert_eq!(start_time("7 (sh) S 1"), None);
        assert_eq!(start_time(""), None);
    }
}
