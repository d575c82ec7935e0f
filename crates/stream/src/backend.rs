//! What the server asks of those who run containers.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::lanes::{Input, Output};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// More than a size of a terminal can be long.
const MAX_SIZE_TEXT: usize = 4096;

/// The streams that a client wants. Never all absent, never a terminal with stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    pub container: String,
    pub command: Vec<String>,
    pub wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    pub container: String,
    pub wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortForward {
    pub pod: String,
    /// For WebSocket clients, which cannot name them later.
    pub ports: Vec<u16>,
}

/// The work behind the streams. Dropping a future ends what it does. A server that stops drops
/// them a moment later: what has to tell its client so returns an error by then.
pub trait Backend: Send + Sync + 'static {
    type Connection: AsyncRead + AsyncWrite + Send + 'static;

    /// Runs a command to its end, and gives its exit code.
    fn exec(
        &self,
        exec: Exec,
        client: Client,
    ) -> impl Future<Output = Result<i32, BoxError>> + Send;

    /// Joins a container until its output ends or the client is gone.
    fn attach(
        &self,
        attach: Attach,
        client: Client,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Connects to a port inside a pod.
    fn connect(
        &self,
        pod: &str,
        port: u16,
    ) -> impl Future<Output = Result<Self::Connection, BoxError>> + Send;
}

/// A client's side of an exec or attach. Of its streams those are there that it wants.
#[derive(Debug)]
pub struct Client {
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub sizes: Sizes,
    /// Cancelled when it has gone away.
    pub gone: CancellationToken,
}

/// Of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

/// The sizes that a client's terminal takes on.
#[derive(Debug)]
pub struct Sizes {
    input: Option<Input>,
    text: Vec<u8>,
    known: VecDeque<Size>,
}

impl Sizes {
    pub(crate) fn new(input: Option<Input>) -> Self {
        Self { input, text: Vec::new(), known: VecDeque::new() }
    }

    /// Never returns if there are no more. What is no size is passed over. Cancel safe.
    pub async fn next(&mut self) -> Size {
        loop {
            if let Some(size) = self.known.pop_front() {
                return size;
            }
            let Some(input) = &mut self.input else { return std::future::pending().await };
            let mut part = [0; 256];
            match input.read(&mut part).await {
                Ok(count @ 1..) => self.text.extend_from_slice(&part[..count]),
                _ => self.input = None,
            }
            self.parse();
        }
    }

    fn parse(&mut self) {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Message {
            width: u16,
            height: u16,
        }
        let mut messages = serde_json::Deserializer::from_slice(&self.text).into_iter::<Message>();
        let mut used = 0;
        let keep = loop {
            match messages.next() {
                Some(Ok(Message { width, height })) => {
                    used = messages.byte_offset();
                    if width > 0 && height > 0 {
                        self.known.push_back(Size { width, height });
                    }
                }
                Some(Err(error)) => break error.is_eof() && self.text.len() < MAX_SIZE_TEXT,
                None => break false,
            }
        };
        drop(messages);
        if keep {
            self.text.drain(..used);
        } else {
            self.text.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::lanes::pipe;

    async fn sizes(parts: &[&'static str]) -> Vec<(u16, u16)> {
        let (mut sink, input) = pipe(None);
        let mut sizes = Sizes::new(Some(input));
        let mut got = Vec::new();
        for part in parts {
            sink.write(&mut Bytes::from_static(part.as_bytes())).await.unwrap();
            let wait = std::time::Duration::from_secs(1);
            while let Ok(Size { width, height }) = tokio::time::timeout(wait, sizes.next()).await {
                got.push((width, height));
            }
        }
        got
    }

    #[tokio::test(start_paused = true)]
    async fn sizes_come_as_json_in_any_pieces() {
        assert_eq!(sizes(&["{\"Width\":80,\"Height\":24}\n"]).await, [(80, 24)]);
        let two = sizes(&["{\"Width\":80,\"Hei", "ght\":24}{\"Width\":1,\"Height\":2}"]).await;
        assert_eq!(two, [(80, 24), (1, 2)]);
        let junk = sizes(&["junk", "{\"Width\":0,\"Height\":9}", "{\"Width\":3,\"Height\":4}"]);
        assert_eq!(junk.await, [(3, 4)]);
    }
}
