//! Port-forward: connections of a client, each joined to one inside a pod.
//!
//! ```text
//!   stream "data"  ──> Input ──> pod's port        each side ends for itself: a client that
//!                 <── Output <──                    has said all still hears the answer
//!   stream "error" <── why it failed, or nothing
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    task::JoinSet,
    time::Instant,
};

use crate::{
    backend::{Backend, PortForward},
    lanes::{Input, MAX_PIECE, Output},
    spdy::session::{Incoming, Streams},
};

/// One connection of a client.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) port: u16,
    pub(crate) input: Input,
    pub(crate) data: Output,
    pub(crate) error: Output,
}

/// A stream whose partner is not there yet.
#[derive(Debug)]
struct Half {
    incoming: Incoming,
    is_error: bool,
    port: u16,
    until: Instant,
}

/// Serves the streams of a SPDY connection, until the client is gone.
pub(crate) async fn serve<B: Backend>(
    mut streams: Streams,
    backend: &Arc<B>,
    asked: &PortForward,
    patience: Duration,
) {
    let mut waiting = BTreeMap::<String, Half>::new();
    let mut lines = JoinSet::new();
    loop {
        let next = waiting.values().map(|half| half.until).min();
        let overdue = async {
            match next {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            incoming = streams.accept() => {
                let Some(incoming) = incoming else { return };
                if let Some(line) = matched(&mut waiting, incoming, patience).await {
                    lines.spawn(run(Arc::clone(backend), asked.pod.clone(), line));
                }
            }
            Some(_) = lines.join_next() => {}
            () = overdue => give_up(&mut waiting).await,
        }
    }
}

/// The connection, if `incoming` was the second stream of it.
async fn matched(
    waiting: &mut BTreeMap<String, Half>,
    incoming: Incoming,
    patience: Duration,
) -> Option<Line> {
    let (request, half) = match half(incoming, patience) {
        Ok(half) => half,
        Err((output, why)) => {
            let _ = output.send(why.into()).await;
            output.finish().await;
            return None;
        }
    };
    let Some(other) = waiting.remove(&request) else {
        waiting.insert(request, half);
        return None;
    };
    if other.is_error == half.is_error || other.port != half.port {
        for one in [half, other] {
            one.incoming.output.finish().await;
        }
        return None;
    }
    let (error, data) = if half.is_error { (half, other) } else { (other, half) };
    let Incoming { input, output, .. } = data.incoming;
    Some(Line { port: data.port, input, data: output, error: error.incoming.output })
}

/// What a new stream is, and of which connection.
fn half(incoming: Incoming, patience: Duration) -> Result<(String, Half), (Output, String)> {
    let headers = &incoming.headers;
    let is_error = match headers.get("streamtype") {
        Some("error") => true,
        Some("data") => false,
        other => {
            let why = format!("invalid stream type {:?}", other.unwrap_or_default());
            return Err((incoming.output, why));
        }
    };
    let text = headers.get("port").unwrap_or_default();
    let Some(port) = text.parse().ok().filter(|port| *port > 0) else {
        let why = format!("{text:?} is not a port");
        return Err((incoming.output, why));
    };
    let request = match headers.get("requestid") {
        Some(request) => request.to_owned(),
        // Old clients open the error stream first, and the data stream right after it.
        None if is_error => format!("stream {}", incoming.id),
        None => format!("stream {}", incoming.id.saturating_sub(2)),
    };
    Ok((request, Half { incoming, is_error, port, until: Instant::now() + patience }))
}

async fn give_up(waiting: &mut BTreeMap<String, Half>) {
    let now = Instant::now();
    let late: Vec<_> = waiting.extract_if(.., |_, half| half.until <= now).collect();
    for (request, half) in late {
        let missing = if half.is_error { "data" } else { "error" };
        tracing::debug!(request, missing, "half of a forwarded connection never came");
        half.incoming.output.finish().await;
    }
}

/// From the dial to the end of both sides.
pub(crate) async fn run<B: Backend>(backend: Arc<B>, pod: String, line: Line) {
    let Line { port, input, data, error } = line;
    match backend.connect(&pod, port).await {
        Ok(connection) => {
            tokio::select! {
                () = join(connection, input, &data) => {}
                () = data.gone() => {}
            }
        }
        Err(why) => drop(error.send(format!("forward port {port}: {why}").into()).await),
    }
    data.finish().await;
    error.finish().await;
}

async fn join(connection: impl AsyncRead + AsyncWrite, input: Input, data: &Output) {
    let (mut from_pod, mut to_pod) = tokio::io::split(connection);
    let up = async {
        let mut input = BufReader::with_capacity(MAX_PIECE, input);
        // A pod that takes no more may still have something to say.
        if tokio::io::copy_buf(&mut input, &mut to_pod).await.is_ok() {
            let _ = to_pod.shutdown().await;
        }
    };
    let down = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(MAX_PIECE);
            let Ok(1..) = from_pod.read_buf(&mut buffer).await else { break };
            if data.send(buffer.split().freeze()).await.is_err() {
                return;
            }
        }
        data.finish().await;
    };
    tokio::join!(up, down);
}
