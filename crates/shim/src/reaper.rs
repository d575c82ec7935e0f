//! Every child's end, told to whoever expects it.
//!
//! A process belongs to the runtime that starts it, and to us as soon as the runtime ends;
//! its number is known only after that. So an end may come before anyone expects it: as
//! long as a birth is under way, ends that nobody expects are kept.
//!
//! **Invariant:** all reaping happens here, in the control thread. A number therefore means
//! the same process from its birth until its end is handed out.

use std::{collections::HashMap, io, sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use rustix::process::{WaitOptions, WaitStatus, wait};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::process::Ended;

#[derive(Debug, Default)]
pub(crate) struct Reaper {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    expected: HashMap<u32, oneshot::Sender<Ended>>,
    /// Cleared when no birth is under way.
    unclaimed: HashMap<u32, Ended>,
    births: usize,
}

/// While it lives, ends that nobody expects yet are kept.
#[derive(Debug)]
pub(crate) struct Birth(Arc<Reaper>);

impl Reaper {
    pub(crate) fn birth(self: &Arc<Self>) -> Birth {
        self.table.lock().births += 1;
        Birth(Arc::clone(self))
    }

    /// The end of a child. For one whose number we did not get from `fork` itself, a
    /// [`Birth`] must be held from before it could exist.
    pub(crate) fn expect(&self, pid: u32) -> oneshot::Receiver<Ended> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.table.lock();
        match table.unclaimed.remove(&pid) {
            Some(ended) => drop(sender.send(ended)),
            None => drop(table.expected.insert(pid, sender)),
        }
        receiver
    }

    /// Runs as long as the shim does.
    pub(crate) async fn run(&self, mut children: Signal) {
        loop {
            self.reap();
            if children.recv().await.is_none() {
                return;
            }
        }
    }

    fn reap(&self) {
        // ECHILD is the usual end; any other error would come again next time.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(status) = exit_status(status) else { continue };
            let pid = pid.as_raw_nonzero().get().cast_unsigned();
            self.table.lock().ended(pid, Ended { status, at: SystemTime::now() });
        }
    }
}

impl Table {
    fn ended(&mut self, pid: u32, ended: Ended) {
        match self.expected.remove(&pid) {
            // Whoever expected it may have given up.
            Some(waiter) => drop(waiter.send(ended)),
            None if self.births > 0 => drop(self.unclaimed.insert(pid, ended)),
            None => {}
        }
    }
}

impl Drop for Birth {
    fn drop(&mut self) {
        let mut table = self.0.table.lock();
        table.births -= 1;
        if table.births == 0 {
            table.unclaimed = HashMap::new();
        }
    }
}

fn exit_status(status: WaitStatus) -> Option<u32> {
    let by_signal = status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or(by_signal)?.try_into().ok()
}

/// Must be called before the first child is started.
pub(crate) fn children() -> io::Result<Signal> {
    signal(SignalKind::child())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: u32) -> Ended {
        Ended { status, at: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn an_expected_end_arrives() {
        let reaper = Reaper::default();
        let mut end = reaper.expect(7);
        reaper.table.lock().ended(8, ended(1));
        assert!(end.try_recv().is_err());
        reaper.table.lock().ended(7, ended(2));
        assert_eq!(end.try_recv(), Ok(ended(2)));
    }

    #[test]
    fn an_early_end_is_kept_during_a_birth_only() {
        let reaper = Arc::new(Reaper::default());
        let (first, second) = (reaper.birth(), reaper.birth());
        reaper.table.lock().ended(7, ended(3));
        reaper.table.lock().ended(9, ended(4));
        drop(first);
        assert_eq!(reaper.expect(7).try_recv(), Ok(ended(3)));
        drop(second);
        assert!(reaper.table.lock().unclaimed.is_empty());
        reaper.table.lock().ended(10, ended(5));
        assert!(reaper.table.lock().unclaimed.is_empty());
    }

    #[test]
    fn a_number_used_again_is_another_process() {
        let reaper = Arc::new(Reaper::default());
        let _birth = reaper.birth();
        reaper.table.lock().ended(7, ended(1));
        assert_eq!(reaper.expect(7).try_recv(), Ok(ended(1)));
        let mut second = reaper.expect(7);
        assert!(second.try_recv().is_err());
        reaper.table.lock().ended(7, ended(2));
        assert_eq!(second.try_recv(), Ok(ended(2)));
    }
}
