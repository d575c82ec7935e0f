//! The signals that ask a run to end: it removes what it made first.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, caught from the moment this exists.
#[derive(Debug)]
pub(crate) struct Interrupt {
    int: Signal,
    term: Signal,
}

impl Interrupt {
    pub(crate) fn catch() -> Result<Self> {
        let catch = |kind| signal(kind).context("catch signals");
        Ok(Self { int: catch(SignalKind::interrupt())?, term: catch(SignalKind::terminate())? })
    }

    /// Waits for the next of them. Cancel safe.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}
