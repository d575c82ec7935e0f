//! Our end of the streams of a command or a container.

use std::io::Write;

use anyhow::{Context, bail};
use api_admin::v1::{Ended, SessionInput, SessionOutput, Size, session_output};
use bytes::Bytes;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    client::Refusal,
    terminal::{self, Interrupts},
};

/// Requests on their way; when it is full, input waits.
const QUEUE: usize = 4;

/// What goes to the daemon: first how to begin, then input.
#[derive(Debug)]
pub(super) struct Requests<R> {
    sender: mpsc::Sender<R>,
}

/// The user's side of a session.
#[derive(Debug)]
pub(super) struct Keyboard {
    stdin: Option<mpsc::Receiver<Bytes>>,
    /// SIGWINCH, where there is a terminal.
    resized: Option<Signal>,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself; with the exit code of a command.
    Ended(Option<i32>),
    /// We were told to end; the exit code says by which signal.
    Interrupted(u8),
}

/// The stream of requests, which begins with `start`.
pub(super) fn requests<R: Send + 'static>(start: R) -> (Requests<R>, ReceiverStream<R>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    sender.try_send(start).expect("a new queue has room");
    (Requests { sender }, ReceiverStream::new(receiver))
}

impl Keyboard {
    pub(super) fn new(stdin: bool, tty: bool) -> anyhow::Result<Self> {
        let resized = match tty {
            true => Some(signal(SignalKind::window_change()).context("listen for signals")?),
            false => None,
        };
        Ok(Self { stdin: stdin.then(terminal::stdin), resized })
    }
}

impl<R: From<SessionInput>> Requests<R> {
    /// Passes input on, for ever. Not cancel safe: input that was read is lost.
    pub(super) async fn forward(self, mut keyboard: Keyboard) {
        if keyboard.resized.is_some()
            && let Some(size) = terminal::size()
        {
            self.resize(size).await;
        }
        loop {
            tokio::select! {
                portion = next(&mut keyboard.stdin) => match portion {
                    Some(bytes) => self.send(SessionInput::stdin(bytes)).await,
                    None => {
                        keyboard.stdin = None;
                        self.send(SessionInput::close_stdin()).await;
                    }
                },
                () = resized(&mut keyboard.resized) => if let Some(size) = terminal::size() {
                    self.resize(size).await;
                }
            }
        }
    }

    async fn resize(&self, size: Size) {
        self.send(SessionInput::resize(size)).await;
    }

    /// Input of a session that has ended goes nowhere; its output tells.
    async fn send(&self, input: SessionInput) {
        if self.sender.send(R::from(input)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn next(stdin: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match stdin {
        Some(stdin) => stdin.recv().await,
        None => std::future::pending().await,
    }
}

async fn resized(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Writes output until the session ends. Not cancel safe: output may be written in part.
pub(super) async fn print(
    answers: &mut Streaming<SessionOutput>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<Option<i32>> {
    while let Some(SessionOutput { output }) = answers.message().await.map_err(failed)? {
        match output {
            Some(session_output::Output::Stdout(bytes)) => {
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(session_output::Output::Stderr(bytes)) => err.write_all(&bytes)?,
            Some(session_output::Output::Ended(Ended { exit_code })) => return Ok(exit_code),
            Some(session_output::Output::Started(_)) | None => {}
        }
    }
    bail!("the daemon ended the session without a word")
}

fn failed(status: Status) -> anyhow::Error {
    anyhow::Error::new(Refusal(status))
}

/// The whole session: output printed, input passed on, signals obeyed.
pub(super) async fn run<R: From<SessionInput>>(
    requests: Requests<R>,
    mut answers: Streaming<SessionOutput>,
    keyboard: Keyboard,
    out: &mut impl Write,
) -> anyhow::Result<End> {
    let mut interrupts = Interrupts::listen()?;
    let mut err = std::io::stderr();
    tokio::select! {
        code = print(&mut answers, out, &mut err) => Ok(End::Ended(code?)),
        () = requests.forward(keyboard) => bail!("input ended the session"),
        code = interrupts.next() => Ok(End::Interrupted(code)),
    }
}
