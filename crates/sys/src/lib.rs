//! Linux, made safe to call: everything here is a thin, blocking function or handle over
//! system calls, and the only `unsafe` of the project.
//!
//! | module | holds |
//! |---|---|
//! | [`mount`] | detached mounts, overlay, bind, tmpfs; unmounting; the mount table |
//! | [`idmap`] | id ranges, user namespaces made of them, idmapped mounts |
//! | [`namespace`] | making, pinning, joining namespaces |
//! | [`netdev`] | traffic of network interfaces |
//! | [`pidfd`], [`process`] | processes by descriptor; this process's own settings |
//! | [`sched`] | priorities of threads: scheduler and I/O |
//! | [`cgroup`] | which hierarchy holds what; reading, writing, freezing, killing |
//! | [`beneath`], [`fd`], [`pty`] | paths that cannot escape, descriptors, terminals |
//! | [`label`] | SELinux labels of files |
//! | [`host`], [`sysctl`] | kernel version, file system types and space; names of settings |
//!
//! **Invariant:** no policy and no state. Nothing here decides, retries for long, or keeps
//! more than descriptors; parsers are pure functions over text. Every call may block, so
//! async callers go through a blocking thread.

pub mod beneath;
pub mod cgroup;
mod error;
pub mod fd;
pub mod host;
pub mod idmap;
pub mod label;
pub mod mount;
pub mod namespace;
pub mod netdev;
pub mod pidfd;
pub mod process;
pub mod pty;
pub mod sched;
pub mod sysctl;

pub use error::{Error, Result};
