//! Starting, finding and calling the shims of pods.
//!
//! ```text
//!   start ──exec──> longshore-shim start ──forks──> the shim, which outlives us
//!   connect ──────────────────────────────────────> the same one, after a restart
//!      └─> Shim: calls over ttrpc, each with a limit; died() by pidfd
//!             └─> attach(): a connection of its own, so that output delays no call
//!   bury ── after a shim was killed: ends and removes what it left
//!
//!   Foreign ── the same for shims that others wrote
//! ```
//!
//! **Invariants:** dropping any future of this crate, or all of a [`Shim`], changes nothing
//! in the pod: the shim finishes what it began. No call waits for ever but those that wait
//! for the end of a process, and these end with the connection.

mod attach;
mod bury;
mod connect;
mod error;
mod fifo;
mod foreign;
mod limits;
mod own;
mod shim;
mod spec;
mod start;
mod task;

pub use attach::{AttachInput, AttachIo, AttachOutput, Chunk, Stream};
pub use bury::{Buried, bury};
pub use connect::connect;
pub use error::ShimError;
pub use fifo::{ExecFifos, ExecInput, ExecStreams};
pub use foreign::{
    BadName, BootstrapForm, Foreign, PodConfig, PodDns, PodPids, PodPort, PodProtocol,
    PodResources, RuntimeOptions, SandboxMetrics, SandboxService, SandboxStatus, Sandboxer,
    StartForeign, ask_version, find_shim, shim_binary_name, shim_version,
};
pub use limits::Limits;
pub use shim::{Shim, ShimInfo};
pub use spec::{
    CheckpointPaths, CreateTask, ExecTask, Exit, LogFormat, LogTarget, Priorities, StartPod, Stdio,
    TaskState, TaskStatus,
};
pub use start::start;

pub use sys::sched::{IoPriority, Scheduler};

pub use api_shim::start::{FirstProcess, IdMap, LogLevel, Namespaces, OciRuntime, UserNs};
