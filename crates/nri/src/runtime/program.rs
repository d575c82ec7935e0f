//! One program that we keep running: what became of it, and what it prints.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use nri_wire::PluginId;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Child,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::output::{LineBuffer, Output, OutputLine, OutputStream, Pass};

/// Bytes that are read at once.
const CHUNK: usize = 16 * 1024;
/// The pause after a full chunk of a plugin that prints too much: it gets slower, not we.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the output of a process that has ended is read on; others may hold its pipes.
const DRAIN: Duration = Duration::from_millis(200);

/// A launched plugin through all its lives.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) id: PluginId,
    state: Mutex<State>,
    output: Arc<Mutex<Output>>,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) since: Instant,
    /// Why its last life ended.
    pub(super) reason: String,
}

/// Where a launched plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its process is there, or about to be.
    Starting {
        pid: u32,
    },
    Joined {
        pid: u32,
    },
    BackingOff {
        until: Instant,
    },
    /// It is not started again.
    Down,
}

impl Phase {
    /// 0 where there is no process.
    pub(super) fn pid(self) -> u32 {
        match self {
            Self::Starting { pid } | Self::Joined { pid } => pid,
            Self::BackingOff { .. } | Self::Down => 0,
        }
    }
}

impl Program {
    pub(super) fn new(id: PluginId) -> Self {
        let now = Instant::now();
        let state = State { phase: Phase::Starting { pid: 0 }, since: now, reason: String::new() };
        Self { id, state: Mutex::new(state), output: Arc::new(Mutex::new(Output::new(now))) }
    }

    pub(super) fn state(&self) -> State {
        self.state.lock().clone()
    }

    pub(super) fn set(&self, phase: Phase) {
        let mut state = self.state.lock();
        state.phase = phase;
        state.since = Instant::now();
        if let Phase::Joined { .. } = phase {
            state.reason.clear();
        }
    }

    /// Notes why its last life ended.
    pub(super) fn failed(&self, why: String) {
        self.state.lock().reason = why;
    }

    pub(super) fn output(&self) -> Vec<OutputLine> {
        self.output.lock().last()
    }

    /// Reads what a process prints from now on.
    pub(super) fn read(&self, tasks: &TaskTracker, child: &mut Child) -> Readers {
        let stdout = child.stdout.take().map(|pipe| {
            tasks.spawn(read(self.id.clone(), OutputStream::Stdout, pipe, Arc::clone(&self.output)))
        });
        let stderr = child.stderr.take().map(|pipe| {
            tasks.spawn(read(self.id.clone(), OutputStream::Stderr, pipe, Arc::clone(&self.output)))
        });
        Readers(stdout.into_iter().chain(stderr).collect())
    }
}

/// The readers of a process's streams.
pub(super) struct Readers(Vec<JoinHandle<()>>);

impl Readers {
    /// Waits until everything is read, or for as long as the pipes of a process that has ended
    /// may be held by others.
    pub(super) async fn finish(self) {
        let until = Instant::now() + DRAIN;
        for mut reader in self.0 {
            if timeout_at(until, &mut reader).await.is_err() {
                reader.abort();
            }
        }
    }
}

/// Reads a stream to its end: a plugin never waits for a log, and is slowed down only while it
/// prints more than anybody is shown.
async fn read(
    plugin: PluginId,
    stream: OutputStream,
    mut pipe: impl AsyncRead + Unpin,
    output: Arc<Mutex<Output>>,
) {
    let mut lines = LineBuffer::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        let suppressing = output.lock().rate().is_suppressing();
        let read = match suppressing {
            false => Ok(pipe.read(&mut chunk).await),
            true => timeout(Output::REPORT, pipe.read(&mut chunk)).await,
        };
        // One that fell silent is told of, too.
        let Ok(read) = read else {
            report(&plugin, &output, false);
            continue;
        };
        let Ok(count @ 1..) = read else { break };
        lines.feed(&chunk[..count], |line| show(&plugin, stream, &line, &output));
        if count == CHUNK && output.lock().rate().is_suppressing() {
            sleep(PAUSE).await;
        }
    }
    if let Some(line) = lines.finish() {
        show(&plugin, stream, &line, &output);
    }
    report(&plugin, &output, true);
}

fn show(plugin: &PluginId, stream: OutputStream, text: &str, output: &Mutex<Output>) {
    let line = OutputLine { at: SystemTime::now(), stream, text: text.to_owned() };
    let pass = output.lock().keep(line, Instant::now());
    if let Pass::After(lines) = pass {
        warn!(%plugin, lines, "lines of the plugin's output were suppressed");
    }
    if pass != Pass::No {
        info!(%plugin, stream = stream.name(), "plugin printed: {text}");
    }
}

fn report(plugin: &PluginId, output: &Mutex<Output>, ended: bool) {
    let lines = output.lock().rate().report(Instant::now(), ended);
    if let Some(lines) = lines {
        warn!(%plugin, lines, "lines of the plugin's output were suppressed");
    }
}
