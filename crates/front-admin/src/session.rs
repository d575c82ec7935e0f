//! The streams of a command or a container, between a client and the engine.
//!
//! ```text
//!   client ──stdin, resize, close──> feed ──> Keyboard
//!   client <──stdout, stderr──────── pump <── pipes, or the shim's frames
//!   client <──exit code, last──────── once the command has ended and its output is read
//! ```

use std::sync::Arc;

use api_admin::v1::{
    Ended, SessionInput, SessionOutput, Size, Started, session_input, session_output,
};
use bytes::Bytes;
use engine::{
    AttachChunk, AttachInput, AttachIo, AttachOutput, AttachStream, Engine, ExecControl, ExecInput,
    ExecPipe, ExecSession,
};
use tokio::io::AsyncWriteExt;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::{request::console_size, status::status, streams::Sender};

/// Where a client's input goes.
trait Keyboard {
    /// Waits while nobody reads; what nobody will read is dropped. Not cancel safe.
    fn write(&mut self, bytes: &[u8]) -> impl Future<Output = ()> + Send;
    fn close(&mut self) -> impl Future<Output = ()> + Send;
    fn resize(
        &mut self,
        width: u16,
        height: u16,
    ) -> impl Future<Output = engine::Result<()>> + Send;
}

struct OfCommand {
    stdin: Option<ExecInput>,
    control: ExecControl,
}

struct OfContainer {
    input: Option<AttachInput>,
    engine: Arc<Engine>,
    id: String,
}

/// Not cancel safe: a session that is dropped kills its command.
pub(crate) async fn exec(
    mut session: ExecSession,
    inputs: impl Stream<Item = Result<SessionInput, Status>> + Unpin,
    out: Sender<SessionOutput>,
) -> Result<(), Status> {
    send(&out, session_output::Output::Started(Started {})).await?;
    let keyboard = OfCommand { stdin: session.stdin.take(), control: session.control.clone() };
    let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
    let all_output = async {
        tokio::join!(
            pump(stdout, session_output::Output::Stdout, &out),
            pump(stderr, session_output::Output::Stderr, &out)
        );
    };
    let code = tokio::select! {
        (code, ()) = async { tokio::join!(session.wait(), all_output) } => code.map_err(status)?,
        gone = feed(inputs, keyboard) => return Err(gone),
    };
    send(&out, session_output::Output::Ended(Ended { exit_code: Some(code) })).await
}

/// Not cancel safe, but harmless: a session that is dropped leaves the container alone.
pub(crate) async fn attach(
    io: AttachIo,
    engine: Arc<Engine>,
    id: String,
    inputs: impl Stream<Item = Result<SessionInput, Status>> + Unpin,
    out: Sender<SessionOutput>,
) -> Result<(), Status> {
    send(&out, session_output::Output::Started(Started {})).await?;
    let keyboard = OfContainer { input: Some(io.input), engine, id };
    tokio::select! {
        shown = show(io.output, &out) => shown?,
        gone = feed(inputs, keyboard) => return Err(gone),
    }
    send(&out, session_output::Output::Ended(Ended { exit_code: None })).await
}

/// Sends what a command writes, in pieces.
async fn pump(
    output: Option<ExecPipe>,
    piece: fn(Bytes) -> session_output::Output,
    out: &Sender<SessionOutput>,
) {
    let Some(mut output) = output else { return };
    while let Some(bytes) = output.next().await {
        if send(out, piece(bytes)).await.is_err() {
            return;
        }
    }
}

/// Sends what a container writes, until its output ends.
async fn show(mut output: AttachOutput, out: &Sender<SessionOutput>) -> Result<(), Status> {
    loop {
        let piece = match output.next().await.map_err(|e| status(e.into()))? {
            AttachChunk::Data(AttachStream::Stdout, bytes) => session_output::Output::Stdout(bytes),
            AttachChunk::Data(AttachStream::Stderr, bytes) => session_output::Output::Stderr(bytes),
            AttachChunk::End => return Ok(()),
            AttachChunk::Lagged => {
                let why = "the client read too slowly and was cut off: the log has it all";
                return Err(Status::resource_exhausted(why));
            }
        };
        send(out, piece).await?;
    }
}

/// Passes on what the client sends. Returns only when there is no client any more.
async fn feed(
    mut inputs: impl Stream<Item = Result<SessionInput, Status>> + Unpin,
    mut keyboard: impl Keyboard,
) -> Status {
    while let Some(input) = inputs.next().await {
        let passed = match input {
            Ok(SessionInput { input: Some(input) }) => pass_on(input, &mut keyboard).await,
            Ok(SessionInput { input: None }) => Ok(()),
            Err(gone) => Err(gone),
        };
        if let Err(status) = passed {
            return status;
        }
    }
    keyboard.close().await;
    std::future::pending().await
}

async fn pass_on(input: session_input::Input, keyboard: &mut impl Keyboard) -> Result<(), Status> {
    match input {
        session_input::Input::Stdin(bytes) => keyboard.write(&bytes).await,
        session_input::Input::CloseStdin(_) => keyboard.close().await,
        session_input::Input::Resize(size) => resize(size, keyboard).await?,
    }
    Ok(())
}

async fn resize(size: Size, keyboard: &mut impl Keyboard) -> Result<(), Status> {
    let size = console_size(size)?;
    match keyboard.resize(size.width, size.height).await {
        // The end of the session will tell.
        Err(error) if error.kind() == base::Kind::NotFound => Ok(()),
        resized => resized.map_err(status),
    }
}

async fn send(out: &Sender<SessionOutput>, output: session_output::Output) -> Result<(), Status> {
    let sent = out.send(Ok(SessionOutput { output: Some(output) })).await;
    sent.map_err(|_| Status::cancelled("the client is gone"))
}

// === impl Keyboard ===

impl Keyboard for OfCommand {
    async fn write(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.stdin
            && stdin.write_all(bytes).await.is_err()
        {
            self.stdin = None;
        }
    }

    async fn close(&mut self) {
        self.stdin = None;
    }

    async fn resize(&mut self, width: u16, height: u16) -> engine::Result<()> {
        self.control.resize(width, height).await
    }
}

impl Keyboard for OfContainer {
    async fn write(&mut self, bytes: &[u8]) {
        if let Some(input) = &mut self.input
            && input.write(bytes).await.is_err()
        {
            self.input = None;
        }
    }

    async fn close(&mut self) {
        // One that cannot be told is gone, and so is its input.
        if let Some(input) = &mut self.input {
            let _ = input.close().await;
        }
    }

    async fn resize(&mut self, width: u16, height: u16) -> engine::Result<()> {
        self.engine.resize(&self.id, width, height).await
    }
}

#[cfg(test)]
mod tests;
