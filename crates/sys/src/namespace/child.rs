//! Children made with `clone3`, each in namespaces of its own.

use std::{
    io::{PipeReader, PipeWriter, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{Namespace, Spaces, open, pin};
use crate::{
    error::{Error, Result, to},
    fd::{close_all_but, last_errno},
    pidfd::Pidfd,
    process,
};

/// A running child. Whoever holds it reaps it, through the pidfd.
#[derive(Debug)]
pub struct Child {
    pub pid: u32,
    pub pidfd: Pidfd,
}

/// Namespaces kept alive by a child that does nothing. Dropping it ends the child, and
/// with it what was not pinned or opened.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    /// Its closing is how the child learns that we died.
    _gate: PipeWriter,
}

impl Holder {
    /// Safe in a process with threads. The child sends no SIGCHLD and `wait` for any
    /// child does not see it, so it never meets the caller's own reaping.
    pub fn park(spaces: &Spaces) -> Result<Self> {
        let flags = spaces.flags()?;
        if spaces.others.contains(&Namespace::Pid) {
            // It would end with the holder, pinned or not.
            let step = "a PID namespace needs a PID 1: clone into it";
            return Err(Error::new(step, Errno::INVAL));
        }
        let (gate, ours) = std::io::pipe().map_err(to("make a pipe"))?;
        // SAFETY: the child does nothing but `parked`, which makes bare system calls.
        let child = match unsafe { clone3(flags, 0) }.map_err(to("clone into namespaces"))? {
            Some(child) => child,
            None => parked(gate.as_raw_fd()),
        };
        let holder = Self { child, _gate: ours };
        if let Some(maps) = &spaces.user {
            maps.write(holder.child.pid)?;
        }
        Ok(holder)
    }

    pub fn open(&self, kind: Namespace) -> Result<OwnedFd> {
        open(&self.path(kind))
    }

    /// Makes `target` (which must not exist) stand for the namespace until it is unpinned.
    pub fn pin(&self, kind: Namespace, target: &Path) -> Result<()> {
        pin(&self.path(kind), target)
    }

    fn path(&self, kind: Namespace) -> PathBuf {
        self.child.namespace(kind)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Neither fails on a child of ours that is not reaped yet.
        let _ = self.child.pidfd.signal(libc::SIGKILL);
        let _ = self.child.pidfd.wait();
    }
}

impl Child {
    /// Where the kernel shows its namespace, while it lives.
    pub fn namespace(&self, kind: Namespace) -> PathBuf {
        format!("/proc/{}/ns/{}", self.pid, kind.name()).into()
    }

    /// See [`Holder::pin`]. A pinned PID namespace takes no process once its PID 1 ended.
    pub fn pin(&self, kind: Namespace, target: &Path) -> Result<()> {
        pin(&self.namespace(kind), target)
    }
}

/// Runs `main` in a child that lives in new namespaces. Of all descriptors it has only
/// `fds`, which it gets and the caller loses. Its id maps are written before `main` runs. The child is an ordinary one: it sends
/// SIGCHLD and ends with what `main` returns; a panic ends it with 101.
///
/// Only for a process with one thread: the child has a copy of all its memory, where
/// another thread might hold a lock for ever. `EBUSY` otherwise.
pub fn clone_into(
    spaces: &Spaces,
    fds: Vec<OwnedFd>,
    main: impl FnOnce(Vec<OwnedFd>) -> i32,
) -> Result<Child> {
    let flags = spaces.flags()?;
    let (gate, mut ours) = std::io::pipe().map_err(to("make a pipe"))?;
    let mut kept: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    kept.push(gate.as_raw_fd());
    require_one_thread()?;
    // SAFETY: there is no other thread, so the child's copy of memory is consistent, and
    // the child never returns from `run`.
    let child =
        match unsafe { clone3(flags, libc::SIGCHLD) }.map_err(to("clone into namespaces"))? {
            Some(child) => child,
            None => run(&gate, &mut kept, || main(fds)),
        };
    drop((gate, fds));
    let opened = match &spaces.user {
        Some(maps) => maps.write(child.pid),
        None => Ok(()),
    }
    .and_then(|()| ours.write_all(b"g").map_err(to("start a child")));
    if let Err(error) = opened {
        let _ = child.pidfd.signal(libc::SIGKILL);
        let _ = child.pidfd.wait();
        return Err(error);
    }
    Ok(child)
}

pub(super) fn require_one_thread() -> Result<()> {
    match process::is_single_threaded()? {
        true => Ok(()),
        false => Err(Error::new("fork a process that has threads", Errno::BUSY)),
    }
}

/// A fork into namespaces, with a pidfd. `None` in the child. Signal handlers are reset,
/// so that ours do not run there.
///
/// # Safety
/// As for `fork`: in a process with threads the child may only make async-signal-safe
/// calls until it ends. The C library does not know of the child: its thread id stays
/// that of the parent.
pub(super) unsafe fn clone3(
    flags: u64,
    exit_signal: i32,
) -> std::result::Result<Option<Child>, Errno> {
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    let mut pidfd: RawFd = -1;
    // SAFETY: all fields are integers, for which zero is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | u64::from(libc::CLONE_PIDFD.cast_unsigned()) | CLONE_CLEAR_SIGHAND;
    args.pidfd = (&raw mut pidfd).addr() as u64;
    args.exit_signal = u64::from(exit_signal.cast_unsigned());
    // SAFETY: `args` has the size we say and `pidfd` outlives the call. Without CLONE_VM
    // and without a stack given this is a fork. The rest is the caller's promise.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match u32::try_from(pid) {
        Err(_) => Err(last_errno()),
        Ok(0) => Ok(None),
        Ok(pid) => {
            // SAFETY: the kernel has just opened it for us, and nobody else knows it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Some(Child { pid, pidfd: pidfd.into() }))
        }
    }
}

/// The life of a holder: wait until the other end of the gate is gone.
fn parked(gate: RawFd) -> ! {
    // SAFETY: this process never uses another descriptor again. Keeping them would hold
    // the gates of other holders open, each for ever if they do so in turn.
    let _ = unsafe { close_all_but(&mut [gate]) };
    let mut byte = 0_u8;
    loop {
        // SAFETY: reads at most one byte into one byte.
        let got = unsafe { libc::read(gate, (&raw mut byte).cast(), 1) };
        if got == 0 || got < 0 && last_errno() != Errno::INTR {
            // SAFETY: ends this process without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
    }
}

/// The life of a child with work to do. The gate opens when its id maps are there.
fn run(gate: &PipeReader, keep: &mut [RawFd], main: impl FnOnce() -> i32) -> ! {
    // SAFETY: what is closed belongs to values of the parent's that this process, which
    // ends below without dropping them, never touches.
    let closed = unsafe { close_all_but(keep) };
    let mut byte = [0];
    let opened = rustix::io::retry_on_intr(|| rustix::io::read(gate, &mut byte));
    let code = match (closed, opened) {
        (Ok(()), Ok(1)) => exit_code(main),
        _ => 1,
    };
    // SAFETY: ends this process without running destructors or exit handlers that belong
    // to the parent.
    unsafe { libc::_exit(code) }
}

pub(super) fn exit_code(main: impl FnOnce() -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(main)).unwrap_or(101)
}
