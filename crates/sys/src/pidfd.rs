//! Processes held by a descriptor: a pid may be reused between two lines of code, a
//! pidfd always means the process it was opened for.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, waitid},
};

use crate::{
    error::{Error, Result, to},
    fd::last_errno,
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// As shells and container users count: 128 + the signal.
    pub fn status(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// From the encoding of `wait(2)`; `None` for a process that only stopped.
    pub fn from_wait(raw: i32) -> Option<Self> {
        match raw & 0x7f {
            0 => Some(Self::Code(raw >> 8 & 0xff)),
            0x7f => None,
            signal => Some(Self::Signal(signal)),
        }
    }

    fn from_waitid(status: &WaitIdStatus) -> Option<Self> {
        let code = status.exit_status().map(Self::Code);
        code.or_else(|| status.terminating_signal().map(Self::Signal))
    }
}

#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// `ESRCH` if there is no such process (any more).
    pub fn open(pid: u32) -> Result<Self> {
        let step = || format!("open process {pid}");
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = raw.ok_or_else(|| Error::new(step(), Errno::INVAL))?;
        pidfd_open(pid, PidfdFlags::empty()).map(Self).map_err(|e| Error::new(step(), e))
    }

    /// Any signal number, real-time ones too; 0 only asks. False: it had ended.
    pub fn signal(&self, signal: i32) -> Result<bool> {
        // SAFETY: two integers, a null siginfo (the kernel makes one) and no flags.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match result {
            0 => Ok(true),
            _ => match last_errno() {
                Errno::SRCH => Ok(false),
                e => Err(Error::new(format!("send signal {signal}"), e)),
            },
        }
    }

    /// Waits for the end of any process, a child or not. False: time is over first.
    /// Also true for a child that ended and was not reaped yet.
    pub fn wait_end(&self, limit: Option<Duration>) -> Result<bool> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        retry_on_intr(|| poll(&mut fds, limit.as_ref()))
            .map(|ready| ready > 0)
            .map_err(to("wait for the end of a process"))
    }

    /// Waits for a child and reaps it. `ECHILD` if it is not ours, or was reaped.
    pub fn wait(&self) -> Result<Exit> {
        loop {
            if let Some(exit) = self.waitid(WaitIdOptions::empty())? {
                return Ok(exit);
            }
        }
    }

    /// Reaps a child if it has ended.
    pub fn try_wait(&self) -> Result<Option<Exit>> {
        self.waitid(WaitIdOptions::NOHANG)
    }

    fn waitid(&self, options: WaitIdOptions) -> Result<Option<Exit>> {
        // Children that send no SIGCHLD (our namespace holders) are found only with this.
        let all = WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
        let options = options | WaitIdOptions::EXITED | all;
        let status = retry_on_intr(|| waitid(WaitId::PidFd(self.0.as_fd()), options));
        let status = status.map_err(to("reap a child"))?;
        Ok(status.as_ref().and_then(Exit::from_waitid))
    }

    /// How a process that is not our child ended, once whoever was its parent reaped it.
    /// `None`: it lives, it is not reaped yet, or the kernel (before 6.15) cannot say.
    /// The pidfd must have been opened before the end.
    pub fn exit_info(&self) -> Result<Option<Exit>> {
        let wanted = u64::from(libc::PIDFD_INFO_EXIT);
        // SAFETY: all fields are integers, for which zero is a value.
        let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
        info.mask = wanted;
        // SAFETY: the request encodes the size of the struct it writes, which is this one.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        if result == 0 {
            return Ok((info.mask & wanted != 0)
                .then_some(info.exit_code)
                .and_then(Exit::from_wait));
        }
        match last_errno() {
            Errno::NOTTY | Errno::INVAL | Errno::SRCH => Ok(None),
            e => Err(Error::new("ask how a process ended", e)),
        }
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Pidfd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Pidfd> for OwnedFd {
    fn from(pidfd: Pidfd) -> Self {
        pidfd.0
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use crate::host::KernelVersion;

    use super::*;

    fn start(script: &str) -> (Child, Pidfd) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        (child, pidfd)
    }

    #[test]
    fn children_are_reaped_with_their_status() {
        let (_child, pidfd) = start("exit 7");
        assert!(pidfd.wait_end(None).unwrap());
        assert_eq!(pidfd.wait().unwrap(), Exit::Code(7));
        assert!(pidfd.wait().unwrap_err().is(Errno::CHILD));
        assert!(!pidfd.signal(0).unwrap());
    }

    #[test]
    fn signals_reach_and_show() {
        let (_child, pidfd) = start("exec sleep 60");
        assert_eq!(pidfd.try_wait().unwrap(), None);
        assert!(!pidfd.wait_end(Some(Duration::from_millis(1))).unwrap());
        assert!(pidfd.signal(libc::SIGKILL).unwrap());
        let exit = pidfd.wait().unwrap();
        assert_eq!((exit, exit.status()), (Exit::Signal(9), 137));
    }

    #[test]
    fn the_kernel_tells_the_exit_after_the_reaping() {
        let (mut child, pidfd) = start("exit 3");
        assert!(pidfd.wait_end(None).unwrap());
        assert_eq!(pidfd.exit_info().unwrap(), None, "before it is reaped");
        child.wait().unwrap();
        let tells = KernelVersion::running().unwrap() >= KernelVersion::new(6, 15);
        assert_eq!(pidfd.exit_info().unwrap(), tells.then_some(Exit::Code(3)));
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert!(Pidfd::open(0).unwrap_err().is(Errno::INVAL));
        assert!(Pidfd::open(u32::MAX).unwrap_err().is(Errno::INVAL));
        // Above every pid_max.
        assert!(Pidfd::open(0x7fff_fff0).unwrap_err().is(Errno::SRCH));
    }

    #[test]
    fn wait_encodings() {
        assert_eq!(Exit::from_wait(0x0000), Some(Exit::Code(0)));
        assert_eq!(Exit::from_wait(0xff00), Some(Exit::Code(255)));
        assert_eq!(Exit::from_wait(0x000f), Some(Exit::Signal(15)));
        assert_eq!(Exit::from_wait(0x008b), Some(Exit::Signal(11))); // with a core
        assert_eq!(Exit::from_wait(0x137f), None); // stopped
    }
}
