//! One upgraded connection, from its streams to its end.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    backend::{Backend, PortForward, Wanted},
    command::{Lines, Verdict},
    forward::{self, Line},
    lanes::{Input, pipe},
    negotiate::Transport,
    server::{Limits, Work},
    spdy::session::{Incoming, Streams, session as spdy},
    websocket::{self, Channels, Codec, Driver, Tunnel},
};

mod channel {
    pub(super) const STDIN: u8 = 0;
    pub(super) const STDOUT: u8 = 1;
    pub(super) const STDERR: u8 = 2;
    pub(super) const ERROR: u8 = 3;
    pub(super) const RESIZE: u8 = 4;
}

pub(crate) struct Session<B> {
    pub(crate) backend: Arc<B>,
    pub(crate) limits: Limits,
    pub(crate) work: Work,
    pub(crate) transport: Transport,
}

impl<B: Backend> Session<B> {
    /// Until the work is done. Dropping it ends the work.
    pub(crate) async fn run(self, io: impl AsyncRead + AsyncWrite + Unpin + Send) {
        match &self.transport {
            Transport::Spdy { resizes, verdict } => {
                let (resizes, verdict) = (*resizes, *verdict);
                self.over_spdy(io, resizes, verdict).await;
            }
            Transport::Tunnel { .. } => {
                let tunnel = Tunnel::new(websocket::upgraded(io).await);
                self.over_spdy(tunnel, false, Verdict::Text).await;
            }
            Transport::Socket { codec, half_close, verdict, .. } => {
                let (codec, half_close, verdict) = (*codec, *half_close, *verdict);
                self.over_channels(io, codec, half_close, verdict).await;
            }
        }
    }

    // === SPDY ===

    async fn over_spdy(
        self,
        io: impl AsyncRead + AsyncWrite + Send,
        resizes: bool,
        verdict: Verdict,
    ) {
        let Self { backend, limits, work, .. } = self;
        let (driver, mut streams) = spdy(io, limits.idle);
        let serving = async {
            match work {
                Work::Forward(asked) => {
                    forward::serve(streams, &backend, &asked, limits.open).await;
                }
                Work::Command(command) => {
                    let expected = Expected::new(command.wanted(), resizes);
                    let opening = expected.collect(&mut streams);
                    match tokio::time::timeout(limits.open, opening).await {
                        Ok(Some(lines)) => {
                            command.run(&backend, lines, verdict, streams.gone()).await;
                        }
                        Ok(None) => {}
                        Err(_) => tracing::debug!("a client did not open its streams in time"),
                    }
                    streams.close().await;
                }
            }
        };
        let ((), ended) = tokio::join!(serving, driver.run());
        if let Err(error) = ended {
            tracing::debug!(%error, "SPDY session");
        }
    }

    // === WebSocket ===

    async fn over_channels(
        self,
        io: impl AsyncRead + AsyncWrite + Unpin,
        codec: Codec,
        half_close: bool,
        verdict: Verdict,
    ) {
        let Self { backend, limits, work, .. } = self;
        let (mut driver, channels) = websocket::session(codec, half_close, limits.idle);
        let socket = websocket::upgraded(io).await;
        let ended = match work {
            Work::Command(command) => {
                let lines = command_lines(command.wanted(), &mut driver, &channels);
                let serving = async {
                    greet(&lines).await;
                    command.run(&backend, lines, verdict, channels.gone.clone()).await;
                    channels.close().await;
                };
                tokio::join!(serving, driver.run(socket)).1
            }
            Work::Forward(asked) => {
                let lines = forward_lines(&asked, &mut driver, &channels);
                let serving = async {
                    forward_all(&backend, &asked, lines).await;
                    channels.close().await;
                };
                tokio::join!(serving, driver.run(socket)).1
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "WebSocket session");
        }
    }
}

/// The streams that a SPDY client is to open.
struct Expected {
    wanted: Wanted,
    resizes: bool,
}

impl Expected {
    fn new(wanted: Wanted, resizes: bool) -> Self {
        Self { wanted, resizes }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        let Wanted { tty, stdin, stdout, stderr } = self.wanted;
        [
            ("error", true),
            ("stdin", stdin),
            ("stdout", stdout),
            ("stderr", stderr && !tty),
            ("resize", tty && self.resizes),
        ]
        .into_iter()
        .filter_map(|(name, wanted)| wanted.then_some(name))
    }

    /// `None` if the client goes away before it has opened all.
    async fn collect(&self, streams: &mut Streams) -> Option<Lines> {
        let mut found = BTreeMap::<&str, Incoming>::new();
        while found.len() < self.names().count() {
            let incoming = streams.accept().await?;
            let asked = incoming.headers.get("streamtype").unwrap_or_default();
            match self.names().find(|name| *name == asked) {
                Some(name) if !found.contains_key(name) => drop(found.insert(name, incoming)),
                _ => incoming.output.finish().await,
            }
        }
        let mut input = |name: &str| found.remove(name).map(|stream| stream.input);
        let (stdin, resize) = (input("stdin"), input("resize"));
        let mut output = |name: &str| found.remove(name).map(|stream| stream.output);
        let (stdout, stderr) = (output("stdout"), output("stderr"));
        Some(Lines { stdin, stdout, stderr, resize, error: output("error")? })
    }
}

fn command_lines(wanted: Wanted, driver: &mut Driver, channels: &Channels) -> Lines {
    let Wanted { tty, stdin, stdout, stderr } = wanted;
    Lines {
        stdin: stdin.then(|| input(driver, channel::STDIN)),
        stdout: stdout.then(|| channels.output(channel::STDOUT)),
        stderr: (stderr && !tty).then(|| channels.output(channel::STDERR)),
        resize: tty.then(|| input(driver, channel::RESIZE)),
        error: channels.output(channel::ERROR),
    }
}

fn input(driver: &mut Driver, channel: u8) -> Input {
    let (sink, input) = pipe(None);
    driver.sinks.insert(channel, sink);
    input
}

/// Clients wait for a first message, empty, on the lowest channel that we write to.
async fn greet(lines: &Lines) {
    let lowest = lines.stdout.as_ref().or(lines.stderr.as_ref());
    // A client that is gone already is noticed later.
    let _ = lowest.unwrap_or(&lines.error).greet().await;
}

/// Two channels per port.
fn forward_lines(asked: &PortForward, driver: &mut Driver, channels: &Channels) -> Vec<Line> {
    let numbered = asked.ports.iter().zip((0..=u8::MAX).step_by(2));
    let line = |(port, channel): (&u16, u8)| Line {
        port: *port,
        input: input(driver, channel),
        data: channels.output(channel),
        error: channels.output(channel + 1),
    };
    numbered.map(line).collect()
}

/// Each channel begins with the number of its port.
async fn forward_all<B: Backend>(backend: &Arc<B>, asked: &PortForward, lines: Vec<Line>) {
    let one = |line: Line| async move {
        for output in [&line.data, &line.error] {
            let number = Bytes::copy_from_slice(&line.port.to_le_bytes());
            if output.send(number).await.is_err() {
                return;
            }
        }
        forward::run(Arc::clone(backend), asked.pod.clone(), line).await;
    };
    futures_util::future::join_all(lines.into_iter().map(one)).await;
}
