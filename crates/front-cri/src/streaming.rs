//! Exec, Attach and PortForward: requests to URLs, and the engine's streams behind them.
//!
//! ```text
//!   RPC ──checked──> Server ──URL──> client ──> Server ──Backend──> engine
//! ```
//! A client that goes away ends the input of its command; output is read on and thrown away,
//! so that the command can end. A command with a terminal is killed: its terminal is gone. When
//! the daemon stops, clients are told so by an error; commands and containers go on.

use ::stream::{Attach, Backend, BoxError, Client, Exec, Input, Output, PortForward, Wanted};
use api_cri::v1;
use base::Chain;
use engine::{
    AttachChunk, AttachInput, AttachOutput, AttachStream, Engine, EngineError, ExecInput, ExecPipe,
    ExecStdio,
};
use oci::ExecRequest;
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    field::{Invalid, Result, not_empty, number},
    service::Slot,
};

/// The streaming server of this front end.
pub type Streaming = ::stream::Server<EngineStreams>;

/// What the streaming server asks for, done by the engine.
#[derive(Clone, Debug)]
pub struct EngineStreams {
    slot: Slot,
}

// === requests ===

pub(crate) fn exec(request: v1::ExecRequest) -> Result<Exec> {
    let v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr } = request;
    let container = not_empty("container_id", container_id)?;
    let wanted = wanted(Wanted { tty, stdin, stdout, stderr })?;
    if cmd.is_empty() {
        return Err(Invalid::new("cmd", "must not be empty"));
    }
    Ok(Exec { container, command: cmd, wanted })
}

pub(crate) fn attach(request: v1::AttachRequest) -> Result<Attach> {
    let v1::AttachRequest { container_id, stdin, tty, stdout, stderr } = request;
    let container = not_empty("container_id", container_id)?;
    Ok(Attach { container, wanted: wanted(Wanted { tty, stdin, stdout, stderr })? })
}

pub(crate) fn port_forward(request: v1::PortForwardRequest) -> Result<PortForward> {
    let v1::PortForwardRequest { pod_sandbox_id, port } = request;
    let pod = not_empty("pod_sandbox_id", pod_sandbox_id)?;
    let one = |port: i32| match number("port", port)? {
        0 => Err(Invalid::new("port", "0 is no port")),
        port => Ok(port),
    };
    Ok(PortForward { pod, ports: port.into_iter().map(one).collect::<Result<_>>()? })
}

fn wanted(wanted: Wanted) -> Result<Wanted> {
    match wanted {
        Wanted { tty: true, stderr: true, .. } => {
            Err(Invalid::Request("tty and stderr cannot both be true"))
        }
        Wanted { stdin: false, stdout: false, stderr: false, .. } => {
            Err(Invalid::Request("one of stdin, stdout, or stderr must be set"))
        }
        wanted => Ok(wanted),
    }
}

// === streams ===

impl EngineStreams {
    pub fn new(slot: Slot) -> Self {
        Self { slot }
    }

    fn engine(&self) -> Result<&Engine, BoxError> {
        Ok(self.slot.engine().map_err(|status| status.message().to_owned())?)
    }
}

impl Backend for EngineStreams {
    type Connection = TcpStream;

    async fn exec(&self, exec: Exec, client: Client) -> Result<i32, BoxError> {
        let Exec { container, command, wanted } = exec;
        let request = ExecRequest { command, tty: wanted.tty, ..ExecRequest::default() };
        let asked = self.engine()?.exec(&container, request, stdio(wanted)).await;
        let mut session = asked.map_err(told)?;
        let Client { stdin, stdout, stderr, mut sizes, gone } = client;
        let (from, to) = (session.stdout.take(), session.stderr.take());
        let output = async {
            tokio::join!(pump(from, stdout), pump(to, stderr));
            Ok(())
        };
        let control = session.control.clone();
        let resized = async {
            loop {
                let size = sizes.next().await;
                note(control.resize(size.width, size.height).await);
            }
        };
        let typed = type_in(stdin, session.stdin.take());
        let hung_up = async {
            gone.cancelled().await;
            if !wanted.tty {
                std::future::pending().await
            }
        };
        tokio::select! {
            // What is left running has no end of its output that could be waited for.
            ended = async { tokio::try_join!(session.wait(), output) } => {
                ended.map(|(code, ())| code).map_err(told)
            }
            // With the session goes the command.
            () = hung_up => Err("the terminal is gone".into()),
            ((), never) = async { tokio::join!(typed, resized) } => never,
        }
    }

    async fn attach(&self, attach: Attach, client: Client) -> Result<(), BoxError> {
        let Attach { container, wanted } = attach;
        let engine = self.engine()?;
        let io = engine.attach(&container, stdio(wanted)).await.map_err(told)?;
        let leaves = engine.container(&container).map_err(told)?.leaves_at_end_of_input();
        let Client { stdin, stdout, stderr, mut sizes, gone } = client;
        let resized = async {
            loop {
                let size = sizes.next().await;
                note(engine.resize(&container, size.width, size.height).await);
            }
        };
        let typed = async {
            let has_input = stdin.is_some();
            // Held, because dropping it counts as the end of input.
            let _input = pass_on(stdin, io.input).await;
            if !has_input || !leaves {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(engine::LAST_WORDS).await;
        };
        tokio::select! {
            shown = show(io.output, stdout, stderr) => shown,
            () = typed => Ok(()),
            () = gone.cancelled() => Ok(()),
            () = engine.stopping() => Err("the daemon is stopping; the container goes on".into()),
            never = resized => never,
        }
    }

    async fn connect(&self, pod: &str, port: u16) -> Result<TcpStream, BoxError> {
        self.engine()?.port_forward(pod, port).await.map_err(told)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: EngineError) -> BoxError {
    Chain(&error).to_string().into()
}

fn stdio(wanted: Wanted) -> ExecStdio {
    let Wanted { stdin, stdout, stderr, .. } = wanted;
    ExecStdio { stdin, stdout, stderr }
}

/// Reads on for a client that is gone.
async fn pump(from: Option<ExecPipe>, to: Option<Output>) {
    let Some(mut from) = from else { return };
    while let Some(bytes) = from.next().await {
        if let Some(to) = &to {
            let _ = to.send(bytes).await;
        }
    }
}

/// Returns with the end of the input, which the command then sees.
async fn type_in(from: Option<Input>, to: Option<ExecInput>) {
    if let (Some(mut from), Some(mut to)) = (from, to) {
        // A command that reads no more need not end.
        let _ = tokio::io::copy(&mut from, &mut to).await;
    }
}

async fn pass_on(from: Option<Input>, mut to: AttachInput) -> AttachInput {
    let Some(mut from) = from else { return to };
    let mut buffer = vec![0; engine::MAX_PIECE];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.write(&buffer[..count]).await.is_err() {
            return to;
        }
    }
    // A container that is gone is told by its output.
    let _ = to.close().await;
    to
}

async fn show(
    mut from: AttachOutput,
    stdout: Option<Output>,
    stderr: Option<Output>,
) -> Result<(), BoxError> {
    loop {
        let (to, bytes) = match from.next().await.map_err(|e| told(e.into()))? {
            AttachChunk::Data(AttachStream::Stdout, bytes) => (&stdout, bytes),
            AttachChunk::Data(AttachStream::Stderr, bytes) => (&stderr, bytes),
            AttachChunk::End => return Ok(()),
            AttachChunk::Lagged => {
                return Err("the client read too slowly and was cut off: the log has it all".into());
            }
        };
        if let Some(to) = to {
            to.send(bytes).await?;
        }
    }
}

/// What cannot be resized any more has ended, or soon will.
fn note(resized: engine::Result<()>) {
    if let Err(error) = resized {
        tracing::debug!(error = %Chain(&error), "resize");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T>, want: &str) {
        assert_eq!(result.unwrap_err().to_string(), want);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let good = v1::ExecRequest {
            container_id: "c".into(),
            cmd: vec!["x".into()],
            stdout: true,
            ..Default::default()
        };
        let want = Wanted { stdout: true, ..Wanted::default() };
        let wanted = Exec { container: "c".into(), command: vec!["x".into()], wanted: want };
        assert_eq!(exec(good.clone()), Ok(wanted));
        refused(
            exec(v1::ExecRequest { container_id: String::new(), ..good.clone() }),
            "container_id: must not be empty",
        );
        refused(
            exec(v1::ExecRequest { cmd: Vec::new(), ..good.clone() }),
            "cmd: must not be empty",
        );
        refused(
            exec(v1::ExecRequest { tty: true, stderr: true, ..good.clone() }),
            "tty and stderr cannot both be true",
        );
        refused(
            exec(v1::ExecRequest { stdout: false, ..good }),
            "one of stdin, stdout, or stderr must be set",
        );
        let nothing = v1::AttachRequest { container_id: "c".into(), ..Default::default() };
        refused(attach(nothing), "one of stdin, stdout, or stderr must be set");
    }

    #[test]
    fn ports_are_checked() {
        let ask = |port: &[i32]| {
            let pod_sandbox_id = "p".to_owned();
            port_forward(v1::PortForwardRequest { pod_sandbox_id, port: port.to_vec() })
        };
        assert_eq!(ask(&[80, 65535]).unwrap().ports, [80, 65535]);
        refused(ask(&[0]), "port: 0 is no port");
        refused(ask(&[65536]), "port: 65536 is out of range");
        refused(
            port_forward(v1::PortForwardRequest::default()),
            "pod_sandbox_id: must not be empty",
        );
    }
}
