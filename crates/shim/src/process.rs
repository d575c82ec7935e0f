//! One process that the runtime started for us: a container's first, or an added one.

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use sys::pidfd::Pidfd;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::error::{Error, Result};

/// How long a start waits for the process to execute its program.
const EXECUTE_LIMIT: Duration = Duration::from_secs(1);
/// The first and the longest pause between two looks at it.
const LOOK_PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(20)];

/// How and when a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// 128 + n for signal n.
    pub(crate) status: u32,
    pub(crate) at: SystemTime,
}

/// From the moment it runs to the moment its end is known, which it stays.
#[derive(Debug)]
pub(crate) struct Process {
    live: Mutex<Option<Live>>,
    ended: watch::Sender<Option<Ended>>,
}

/// A process by number and by descriptor. The number is for showing; the descriptor cannot
/// mean another.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) pid: u32,
    /// None for one that had ended before we could hold it.
    pub(crate) pidfd: Option<Arc<Pidfd>>,
}

impl Live {
    pub(crate) fn open(pid: u32) -> Result<Self> {
        let pidfd = Pidfd::open(pid).map_err(Error::io("hold a process"))?;
        Ok(Self { pid, pidfd: Some(Arc::new(pidfd)) })
    }

    /// False: it had ended.
    pub(crate) fn signal(&self, signal: i32) -> Result<bool> {
        match &self.pidfd {
            Some(pidfd) => pidfd.signal(signal).map_err(Error::io("signal a process")),
            None => Ok(false),
        }
    }

    /// Returns when the process has executed its program or has ended, or after a second. Until
    /// then it is a copy of the OCI runtime, also some time after `start` of the runtime: a signal
    /// for the program is lost, or ends the copy. Cancel safe.
    pub(crate) async fn executed(&self) {
        let until = Instant::now() + EXECUTE_LIMIT;
        let [mut pause, longest] = LOOK_PAUSES;
        while self.is_before_exec() && Instant::now() < until {
            sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }

    fn is_before_exec(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
        // Asked after the look: one that can still be signalled had its number until now.
        stat.is_ok_and(|stat| is_before_exec(&stat)) && self.signal(0).is_ok_and(|alive| alive)
    }
}

/// Whether a live process was forked and has executed no program since, from the text of
/// `/proc/<pid>/stat`: state and flags are fields 3 and 9. False for what is no such text.
fn is_before_exec(stat: &str) -> bool {
    const PF_FORKNOEXEC: u64 = 0x40;
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let mut fields = fields.split_whitespace();
    let has_ended = matches!(fields.next(), None | Some("Z" | "X"));
    let flags: Option<u64> = fields.nth(5).and_then(|flags| flags.parse().ok());
    !has_ended && flags.is_some_and(|flags| flags & PF_FORKNOEXEC != 0)
}

impl Process {
    pub(crate) fn new() -> Self {
        Self { live: Mutex::new(None), ended: watch::Sender::new(None) }
    }

    pub(crate) fn begin(&self, live: Live) {
        *self.live.lock() = Some(live);
    }

    /// 0 before it runs; kept after its end.
    pub(crate) fn pid(&self) -> u32 {
        self.live.lock().as_ref().map_or(0, |live| live.pid)
    }

    pub(crate) fn live(&self) -> Option<Live> {
        self.live.lock().clone()
    }

    pub(crate) fn end(&self, ended: Ended) {
        self.ended.send_replace(Some(ended));
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        *self.ended.borrow()
    }

    /// Cancel safe.
    pub(crate) async fn wait(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        let known = ended.wait_for(Option::is_some).await;
        // We hold the sender, so the channel is not closed.
        known.ok().and_then(|ended| *ended).unwrap_or(Ended { status: 255, at: SystemTime::now() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_who_has_executed() {
        #[track_caller]
        fn check(stat: &str, want: bool) {
            assert_eq!(is_before_exec(stat), want, "{stat}");
        }
        // PF_FORKNOEXEC alone, and among others; a name may hold anything.
        check("7 (runc:[2:INIT]) S 1 7 7 0 -1 64 0 0", true);
        check("7 (a) S 1 2 3 4 5 6) S 1 7 7 0 -1 4194624 0 0", true);
        check("7 (sh) S 1 7 7 0 -1 4194560 0 0", false);
        check("7 (sh) R 1 7 7 0 -1 0 0 0", false);
        // What has ended executes nothing any more.
        check("7 (runc) Z 1 7 7 0 -1 68 0 0", false);
        check("7 (runc) X 1 7 7 0 -1 68 0 0", false);
        for odd in ["", "7 (sh)", "7 (sh) S 1", "7 (sh) S 1 7 7 0 -1 x 0"] {
            check(odd, false);
        }
    }
}
