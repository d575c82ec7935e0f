//! The log thread: all bytes of all containers of a pod.
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
//! Our shim has one, and the daemon has one for each pod whose shim is not ours and only
//! copies the streams into pipes.
//!
//! **Invariant:** nothing the control thread needs is held here. It sends commands into a
//! bounded queue and is told when that is full.

mod client;
mod file;
mod input;
mod line;
mod pump;
mod source;
mod stamp;

use std::{
    fmt, io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

pub use file::LogFile;
pub use line::{Format, Stream};
pub use source::Source;
pub use stamp::Stamp;

/// Hears what the thread has to say about itself.
pub type Warn = fn(fmt::Arguments<'_>);

/// Why the log thread did not do something.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// It does not keep up, most likely because of its disk.
    #[error("log thread is busy: cannot {doing}")]
    Busy { doing: &'static str },

    #[error("{doing}")]
    Failed {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

pub type Result<T> = std::result::Result<T, IoError>;

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
    /// Answered when no process has an output of it any more.
    Ended {
        id: String,
        reply: oneshot::Sender<()>,
    },
    Reopen {
        id: String,
        reply: oneshot::Sender<io::Result<()>>,
    },
    CloseStdin {
        id: String,
    },
    /// Put the rest of what was read into the logs, and end.
    Stop {
        reply: oneshot::Sender<()>,
    },
}

/// The control thread's end. Dropping it ends the thread, soon.
#[derive(Debug)]
pub struct IoThread {
    /// Gone only while it is dropped.
    commands: Option<SyncSender<Command>>,
    wake: Arc<OwnedFd>,
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.commands = None;
        self.wake();
    }
}

impl IoThread {
    pub fn start(clients: UnixListener, warn: Warn) -> Result<Self> {
        const DOING: &str = "start the log thread";
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let failed = |source: io::Error| IoError::Failed { doing: DOING, source };
        let wake = Arc::new(eventfd(0, flags).map_err(|e| failed(e.into()))?);
        clients.set_nonblocking(true).map_err(failed)?;
        let (commands, queue) = sync_channel(QUEUE);
        let pump = pump::Pump::new(queue, Arc::clone(&wake), clients, warn);
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(256 << 10);
        thread.spawn(move || pump.run()).map_err(failed)?;
        Ok(Self { commands: Some(commands), wake })
    }

    pub fn add(&self, source: Source) -> Result<()> {
        self.send("add a container", Command::Add(Box::new(source)))
    }

    /// Cancel safe.
    pub async fn drain(&self, id: &str) -> Result<u64> {
        let (reply, done) = oneshot::channel();
        self.send("drain output", Command::Drain { id: id.to_owned(), reply })?;
        done.await.map_err(|_| gone("drain output"))
    }

    /// Cancel safe: it is done all the same.
    pub async fn finish(&self, id: &str) -> Result<u64> {
        let (reply, done) = oneshot::channel();
        self.send("end output", Command::Finish { id: id.to_owned(), reply })?;
        done.await.map_err(|_| gone("end output"))
    }

    /// Resolves when all output has ended: no process has it open any more. Cancel safe.
    pub async fn ended(&self, id: &str) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.send("wait for the end of output", Command::Ended { id: id.to_owned(), reply })?;
        done.await.map_err(|_| gone("wait for the end of output"))
    }

    /// Cancel safe: it is done all the same.
    pub async fn reopen(&self, id: &str) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.send("reopen the log", Command::Reopen { id: id.to_owned(), reply })?;
        let reopened = done.await.map_err(|_| gone("reopen the log"))?;
        reopened.map_err(|source| IoError::Failed { doing: "reopen the log", source })
    }

    pub fn close_stdin(&self, id: &str) -> Result<()> {
        self.send("close stdin", Command::CloseStdin { id: id.to_owned() })
    }

    /// Ends the thread; beginnings of lines are in the logs when this returns. The containers'
    /// ends of the pipes are not touched.
    ///
    /// Cancel safe: it is done all the same.
    pub async fn stop(&self) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.send("end the log thread", Command::Stop { reply })?;
        done.await.map_err(|_| gone("end the log thread"))
    }

    fn send(&self, doing: &'static str, command: Command) -> Result<()> {
        match self.commands.as_ref().map(|queue| queue.try_send(command)) {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_))) => return Err(IoError::Busy { doing }),
            None | Some(Err(TrySendError::Disconnected(_))) => return Err(gone(doing)),
        }
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

fn gone(doing: &'static str) -> IoError {
    IoError::Failed { doing, source: io::Error::other("the log thread has ended") }
}
