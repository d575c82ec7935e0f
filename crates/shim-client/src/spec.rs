//! What is asked of a shim, and what it answers, in plain types.

use std::{collections::BTreeMap, path::PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sys::sched::{IoPriority, Scheduler};

use crate::{FirstProcess, LogLevel, Namespaces, OciRuntime};

/// A pod to start a shim for.
#[derive(Clone, Debug)]
pub struct StartPod {
    pub id: String,
    /// Exists, belongs to the pod alone, mode 0700. The shim keeps its sockets and files
    /// here, and ends when the directory is gone and no container runs.
    pub dir: PathBuf,
    pub shim_binary: PathBuf,
    pub runtime: OciRuntime,
    pub namespaces: Namespaces,
    /// Needs a UTS namespace.
    pub hostname: Option<String>,
    /// By dotted name, set inside the pod's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// The shim's own cgroup (not the pod's), made if missing. Removed by [`crate::bury`],
    /// or by the caller once the shim has ended: nobody can remove the group he is in.
    pub cgroup: Option<PathBuf>,
    /// Of a shared PID namespace; without one it means nothing.
    pub pid1: FirstProcess,
    pub log_level: LogLevel,
}

/// A container to create. Its bundle is complete, its root file system mounted.
#[derive(Clone, Debug, Default)]
pub struct CreateTask {
    pub id: String,
    pub bundle: PathBuf,
    pub stdio: Stdio,
    /// Without one output goes to those attached only.
    pub log: Option<LogTarget>,
    /// What the OCI runtime cannot give. Only our own shim can.
    pub priorities: Priorities,
}

/// Where a checkpoint goes. Both directories exist.
#[derive(Clone, Debug)]
pub struct CheckpointPaths {
    /// What a container can be restored from.
    pub images: PathBuf,
    /// What criu says of its work: `dump.log` and `stats-dump`.
    pub work: PathBuf,
}

/// Of the first process of a container, and of those added to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    pub io: Option<IoPriority>,
    pub scheduler: Option<Scheduler>,
}

impl Priorities {
    /// By the names plugins know them by.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static str> {
        let io = self.io.map(|_| "io_priority");
        io.into_iter().chain(self.scheduler.map(|_| "scheduler"))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stdio {
    /// Else the container reads from /dev/null.
    pub stdin: bool,
    /// The first attached client that ends its input ends the container's.
    pub stdin_once: bool,
    /// Must agree with `process.terminal` of the bundle. All output is then stdout.
    pub tty: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogTarget {
    pub path: PathBuf,
    pub format: LogFormat,
    /// Longer lines are cut into parts; 0 never cuts. CRI's custom is 16384.
    pub max_line: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogFormat {
    #[default]
    Cri,
    /// Docker's json-file.
    JsonFile,
}

/// A process to run in a container that runs.
#[derive(Clone, Debug)]
pub struct ExecTask {
    pub id: String,
    pub exec_id: String,
    /// An OCI `Process`.
    pub process_json: Vec<u8>,
    /// Must agree with `terminal` of the process. All output is then stdout.
    pub tty: bool,
    /// FIFOs whose other ends are open already, see [`crate::ExecFifos`]. Missing ones are
    /// /dev/null.
    pub stdin: Option<PathBuf>,
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// 128 + n for signal n.
    pub code: u32,
    pub at: Timestamp,
    /// The OOM killer took a process of the container. Never for an exec.
    pub oom: bool,
    /// Writes to the log that failed (a full disk); what they carried is lost. Final once
    /// the container is deleted.
    pub log_errors: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskState {
    pub id: String,
    pub bundle: PathBuf,
    pub pid: u32,
    pub status: TaskStatus,
    /// Of a stopped one.
    pub exit: Option<Exit>,
    /// Processes added by exec and not deleted yet.
    pub execs: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    Created,
    Running,
    Paused,
    Stopped,
}
