//! A server whose work is easy to see through, and clients as raw as can be.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use stream::{
    Attach, Backend, BoxError, Client, Exec, Limits, Server, Wanted,
    spdy::{
        frame::{Decoder, Encoder, Frame},
        headers::Headers,
    },
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Generous: the machine may be busy with a build.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Its commands: `cat`, `exit N`, `size`, `flood`, `vanish`, `leave`.
#[derive(Debug)]
pub(crate) struct Fake {
    /// What commands have to tell.
    pub(crate) notes: mpsc::UnboundedSender<String>,
    /// Where a forwarded connection ends, whatever its port.
    pub(crate) target: Option<SocketAddr>,
    /// Cancelled when the server is to stop.
    pub(crate) stop: CancellationToken,
}

impl Backend for Fake {
    type Connection = TcpStream;

    async fn exec(&self, exec: Exec, mut client: Client) -> Result<i32, BoxError> {
        let words: Vec<_> = exec.command.iter().map(String::as_str).collect();
        match words[..] {
            ["cat"] => cat(client).await,
            ["exit", code] => Ok(code.parse()?),
            ["size"] => {
                let size = client.sizes.next().await;
                let text = format!("{}x{}", size.width, size.height);
                client.stdout.unwrap().send(text.into()).await?;
                Ok(0)
            }
            ["flood"] => loop {
                let piece = Bytes::from(vec![b'x'; 10_000]);
                client.stdout.as_ref().unwrap().send(piece).await?;
                self.notes.send("sent".to_owned())?;
            },
            ["vanish"] => {
                self.notes.send("begun".to_owned())?;
                client.gone.cancelled().await;
                let mut rest = Vec::new();
                client.stdin.unwrap().read_to_end(&mut rest).await?;
                self.notes.send("gone".to_owned())?;
                Ok(0)
            }
            ["leave"] => {
                self.notes.send("begun".to_owned())?;
                self.stop.cancelled().await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err("left running".into())
            }
            _ => Err(format!("no command {words:?}").into()),
        }
    }

    async fn attach(&self, attach: Attach, client: Client) -> Result<(), BoxError> {
        let greeting = format!("attached to {}", attach.container);
        client.stderr.as_ref().unwrap().send(greeting.into()).await?;
        cat(client).await.map(drop)
    }

    async fn connect(&self, pod: &str, port: u16) -> Result<TcpStream, BoxError> {
        self.notes.send(format!("{pod}:{port}"))?;
        let target = self.target.ok_or("nobody listens")?;
        Ok(TcpStream::connect(target).await?)
    }
}

async fn cat(client: Client) -> Result<i32, BoxError> {
    let (mut stdin, stdout) = (client.stdin.unwrap(), client.stdout.unwrap());
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(20_000);
        if stdin.read_buf(&mut buffer).await? == 0 {
            return Ok(0);
        }
        stdout.send(buffer.split().freeze()).await?;
    }
}

pub(crate) struct Stage {
    pub(crate) server: Server<Fake>,
    pub(crate) address: SocketAddr,
    pub(crate) notes: mpsc::UnboundedReceiver<String>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

pub(crate) const ALL: Wanted = Wanted { tty: false, stdin: true, stdout: true, stderr: true };

impl Stage {
    pub(crate) async fn new(target: Option<SocketAddr>) -> Self {
        Self::with(target, Limits::default()).await
    }

    pub(crate) async fn with(target: Option<SocketAddr>, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, notes) = mpsc::unbounded_channel();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let fake = Fake { notes: sender, target, stop: stop.clone() };
        let server = Server::new(fake, format!("http://{address}"), limits);
        let (serving, stopped) = (server.clone(), stop.clone());
        tasks.spawn(async move { serving.serve(listener, None, stopped).await.unwrap() });
        tasks.close();
        Self { server, address, notes, stop, tasks }
    }

    pub(crate) fn exec(&self, command: &str, wanted: Wanted) -> String {
        let command = command.split(' ').map(str::to_owned).collect();
        let exec = Exec { container: "c1".to_owned(), command, wanted };
        path(&self.server.exec(exec).unwrap())
    }

    pub(crate) async fn note(&mut self) -> String {
        tokio::time::timeout(LIMIT, self.notes.recv()).await.expect("a note in time").unwrap()
    }

    /// Nothing may be left.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.tasks.wait()).await.expect("all ends");
    }
}

pub(crate) fn path(url: &str) -> String {
    url.splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap()
}

/// The status line and headers of the answer, and the connection.
pub(crate) async fn request(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> (Vec<String>, BufReader<TcpStream>) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    socket.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
    let (mut reader, mut lines) = (BufReader::new(socket), Vec::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        if line.trim().is_empty() {
            return (lines, reader);
        }
        lines.push(line.trim().to_ascii_lowercase());
    }
}

// === SPDY ===

pub(crate) struct Spdy<T> {
    pub(crate) io: T,
    encoder: Encoder,
    decoder: Decoder,
    wire: BytesMut,
    next: u32,
    /// Came while something else was waited for.
    early: VecDeque<Frame>,
}

pub(crate) async fn spdy(
    address: SocketAddr,
    path: &str,
    protocol: &str,
) -> Spdy<BufReader<TcpStream>> {
    let headers = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", protocol)];
    let (lines, io) = request(address, path, &headers).await;
    assert_eq!(lines[0], "http/1.1 101 switching protocols", "{lines:?}");
    assert!(lines.contains(&format!("x-stream-protocol-version: {protocol}")), "{lines:?}");
    Spdy::over(io)
}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Spdy<T> {
    pub(crate) fn over(io: T) -> Self {
        let (encoder, decoder) = (Encoder::default(), Decoder::default());
        Self { io, encoder, decoder, wire: BytesMut::new(), next: 1, early: VecDeque::new() }
    }

    pub(crate) async fn send(&mut self, frame: &Frame) {
        let mut bytes = BytesMut::new();
        self.encoder.put(frame, &mut bytes);
        self.io.write_all(&bytes).await.unwrap();
        self.io.flush().await.unwrap();
    }

    pub(crate) async fn data(&mut self, id: u32, bytes: impl Into<Bytes>, fin: bool) {
        self.send(&Frame::Data { id, bytes: bytes.into(), fin }).await;
    }

    /// `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        match self.early.pop_front() {
            Some(frame) => Some(frame),
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next(&mut self.wire).unwrap() {
                return Some(frame);
            }
            self.wire.reserve(64 << 10);
            let read = self.io.read_buf(&mut self.wire);
            match tokio::time::timeout(LIMIT, read).await.expect("something in time") {
                Ok(1..) => {}
                _ => return None,
            }
        }
    }

    pub(crate) async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let id = self.next;
        self.next += 2;
        let headers =
            headers.iter().fold(Headers::default(), |all, (name, value)| all.with(name, value));
        self.send(&Frame::SynStream { id, headers, fin: false }).await;
        loop {
            match self.read().await.expect("a reply") {
                Frame::SynReply { id: replied, .. } if replied == id => return id,
                early => self.early.push_back(early),
            }
        }
    }

    /// All that follows, per stream, and which of them were ended.
    pub(crate) async fn rest(&mut self) -> (Vec<(u32, String)>, Vec<u32>) {
        let (mut texts, mut ended) = (std::collections::BTreeMap::new(), Vec::new());
        while let Some(frame) = self.next().await {
            if let Frame::Data { id, bytes, fin } = frame {
                let text: &mut String = texts.entry(id).or_default();
                *text += &String::from_utf8_lossy(&bytes);
                if fin {
                    ended.push(id);
                }
            }
        }
        (texts.into_iter().collect(), ended)
    }
}

// === WebSocket ===

pub(crate) async fn websocket(
    address: SocketAddr,
    path: &str,
    protocol: &str,
) -> WebSocketStream<BufReader<TcpStream>> {
    let mut headers = vec![
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    if !protocol.is_empty() {
        headers.push(("Sec-WebSocket-Protocol", protocol));
    }
    let (lines, io) = request(address, path, &headers).await;
    assert_eq!(lines[0], "http/1.1 101 switching protocols", "{lines:?}");
    // The answer that RFC 6455 gives for this key.
    let accept = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=";
    assert!(lines.iter().any(|line| line == accept), "{lines:?}");
    WebSocketStream::from_raw_socket(io, Role::Client, None).await
}

/// A program in a pod: hears all, then answers with how much it was.
pub(crate) async fn late_answerer() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = Arc::new(TaskTracker::new());
    tasks.clone().spawn(async move {
        loop {
            let Ok((mut socket, _)) = listener.accept().await else { return };
            tasks.spawn(async move {
                let mut all = Vec::new();
                if socket.read_to_end(&mut all).await.is_ok() {
                    let _ = socket.write_all(format!("heard {}", all.len()).as_bytes()).await;
                }
            });
        }
    });
    address
}
