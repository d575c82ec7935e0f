//! The user's own terminal.

use std::io;

use anyhow::Context;
use api_admin::v1::Size;
use bytes::Bytes;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

/// What the input thread is ahead of the daemon at most.
const PORTIONS: usize = 4;
const PORTION: usize = 16 << 10;

/// Standard input passes every key on, unchanged. Dropping it gives the user the terminal
/// back as it was: so it must be dropped on every way out, signals included.
#[derive(Debug)]
pub(super) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    pub(super) fn enter() -> anyhow::Result<Self> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            anyhow::bail!("standard input is not a terminal: leave out -t");
        }
        let before = tcgetattr(&stdin).context("read the settings of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Drain, &raw).context("set up the terminal")?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that hung up needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Of the terminal that output goes to, if it is one.
pub(super) fn size() -> Option<Size> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    // A terminal that does not know says 0.
    (size.ws_col > 0 && size.ws_row > 0)
        .then(|| Size { width: size.ws_col.into(), height: size.ws_row.into() })
}

/// Standard input in portions; the channel closes at its end.
///
/// A thread reads it: the terminal must not be made non-blocking, because the shell that
/// started us shares it. The thread ends with the process.
pub(super) fn stdin() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PORTIONS);
    std::thread::spawn(move || {
        let mut portion = vec![0; PORTION];
        while let Ok(len @ 1..) = io::Read::read(&mut io::stdin(), &mut portion) {
            if sender.blocking_send(Bytes::copy_from_slice(&portion[..len])).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Signals that ask us to end.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Interrupts {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The exit code of one that the signal ended. Cancel safe.
    pub(super) async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        };
        u8::try_from(128 + kind.as_raw_value()).unwrap_or(u8::MAX)
    }
}
