//! The log thread: all bytes of all containers of the pod.
//!
//! ```text
//!   stdout, stderr ──> lines ──> log file
//!          └────────────────────> attached clients, each with a bounded buffer
//!   attached clients ──> bounded buffer ──> stdin
//! ```
//! It waits for the disk of a log, and for nothing else. A client that reads slowly has its
//! container's output wait, one that does not read is cut off after a second; a container
//! that does not read its input holds up the clients that type.
//!
//! **Invariant:** nothing the control thread needs is held here. It sends commands into a
//! bounded queue and is told when that is full.

mod client;
mod file;
mod input;
mod line;
mod pump;
mod source;

use std::{
    io as stdio,
    os::{fd::OwnedFd, unix::net::UnixListener},
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

pub(crate) use file::LogFile;
pub(crate) use line::{Format, Stream};
pub(crate) use source::Source;

use crate::error::{Error, Result};

/// A thread that is stuck this far behind is stuck on its disk.
const QUEUE: usize = 64;

/// What the control thread asks for.
#[derive(Debug)]
enum Command {
    Add(Box<Source>),
    /// Take what the container has written so far; it may be the last. Both this and the
    /// next answer how many writes to the log have failed.
    Drain {
        id: String,
        reply: oneshot::Sender<u64>,
    },
    /// Drain and forget.
    Finish {
        id: String,
        reply: oneshot::Sender<u64>,
    },
    Reopen {
        id: String,
        reply: oneshot::Sender<stdio::Result<()>>,
    },
    CloseStdin {
        id: String,
    },
}

/// The control thread's end. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct IoThread {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
}

impl IoThread {
    pub(crate) fn start(clients: UnixListener) -> Result<Self> {
        const DOING: &str = "start the log thread";
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(Error::io(DOING))?);
        clients.set_nonblocking(true).map_err(Error::io(DOING))?;
        let (commands, queue) = sync_channel(QUEUE);
        let pump = pump::Pump::new(queue, Arc::clone(&wake), clients);
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(256 << 10);
        thread.spawn(move || pump.run()).map_err(Error::io(DOING))?;
        Ok(Self { commands, wake })
    }

    pub(crate) fn add(&self, source: Source) -> Result<()> {
        self.send("add a container", Command::Add(Box::new(source)))
    }

    /// Cancel safe.
    pub(crate) async fn drain(&self, id: &str) -> Result<u64> {
        let (reply, done) = oneshot::channel();
        self.send("drain output", Command::Drain { id: id.to_owned(), reply })?;
        done.await.map_err(|_| gone("drain output"))
    }

    /// Cancel safe: it is done all the same.
    pub(crate) async fn finish(&self, id: &str) -> Result<u64> {
        let (reply, done) = oneshot::channel();
        self.send("end output", Command::Finish { id: id.to_owned(), reply })?;
        done.await.map_err(|_| gone("end output"))
    }

    /// Cancel safe: it is done all the same.
    pub(crate) async fn reopen(&self, id: &str) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.send("reopen the log", Command::Reopen { id: id.to_owned(), reply })?;
        let reopened = done.await.map_err(|_| gone("reopen the log"))?;
        reopened.map_err(Error::io("reopen the log"))
    }

    pub(crate) fn close_stdin(&self, id: &str) -> Result<()> {
        self.send("close stdin", Command::CloseStdin { id: id.to_owned() })
    }

    fn send(&self, doing: &'static str, command: Command) -> Result<()> {
        match self.commands.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(Error::Busy { doing }),
            Err(TrySendError::Disconnected(_)) => return Err(gone(doing)),
        }
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

fn gone(doing: &'static str) -> Error {
    Error::io(doing)(stdio::Error::other("the log thread has ended"))
}
