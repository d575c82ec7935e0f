//! One process that the runtime started for us: a container's first, or an added one.

use std::{sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use sys::pidfd::Pidfd;
use tokio::sync::watch;

use crate::error::{Error, Result};

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
