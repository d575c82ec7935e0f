//! gRPC clients that dial a unix socket send its path as `:authority`, or nothing. Each form is
//! sent by a client made of plain frames, and by grpc-go where Go is installed.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{path::Path, process::Command, time::Duration};

use api_cri::{
    client::connect,
    v1::{VersionRequest, runtime_service_client::RuntimeServiceClient},
};
use loona_hpack::Decoder;
use testkit::{DaemonProcess, GoTool};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};
use tonic::{Request, metadata::MetadataValue};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const TIMEOUT: Duration = Duration::from_secs(30);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The authorities that clients send for a unix socket; `None` is a request without the field.
const FORMS: [Option<&str>; 7] = [
    Some("localhost"),
    None,
    Some(""),
    // grpc-go with `passthrough:///PATH`, and grpc-java.
    Some("/run/x.sock"),
    // The C core, and what stands on it.
    Some("%2Frun%2Fx.sock"),
    Some("unix:///run/x.sock"),
    Some("passthrough:///run/x.sock"),
];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![len[1], len[2], len[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes a field as a literal without indexing, with short plain strings.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for string in [name, value] {
        field.push(u8::try_from(string.len()).unwrap());
        field.extend(string.bytes());
    }
    field
}

fn block(path: &str, authority: Option<&str>) -> Vec<u8> {
    let mut fields = vec![(":method", "POST"), (":scheme", "http"), (":path", path)];
    fields.extend(authority.map(|authority| (":authority", authority)));
    fields.extend([("content-type", "application/grpc"), ("te", "trailers")]);
    fields.iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// An HTTP/2 client that sends any frames and reads just enough to know how a stream ended.
struct RawClient {
    stream: UnixStream,
    decoder: Decoder<'static>,
    last: u32,
}

impl RawClient {
    async fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self { stream, decoder: Decoder::new(), last: 0 }
    }

    /// Makes a call with a single HEADERS frame.
    async fn call(&mut self, block: &[u8]) -> String {
        self.send(|stream| frame(HEADERS, END_HEADERS, stream, block)).await
    }

    /// Sends the frames that `headers` makes for the next stream and an empty message. Returns how
    /// the stream ended.
    async fn send(&mut self, headers: impl FnOnce(u32) -> Vec<u8>) -> String {
        let stream = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = stream;
        let mut frames = headers(stream);
        frames.extend(frame(DATA, END_STREAM, stream, &[0; 5]));
        // The server may close before it has read everything.
        let _ = self.stream.write_all(&frames).await;
        timeout(TIMEOUT, self.ended(stream)).await.expect("an answer in time")
    }

    async fn ended(&mut self, stream: u32) -> String {
        loop {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).await.is_err() {
                return "end of stream".to_owned();
            }
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.stream.read_exact(&mut payload).await.unwrap();
            let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            match (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]])) {
                (SETTINGS, _) if head[4] & ACK == 0 => {
                    let _ = self.stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await;
                }
                (GOAWAY, _) => return format!("GOAWAY {}", code(4)),
                (RST_STREAM, id) if id == stream => return format!("RST_STREAM {}", code(0)),
                (HEADERS, id) => {
                    let fields = self.decoder.decode(&payload).unwrap();
                    let status = fields.iter().find(|(name, _)| name == b"grpc-status");
                    if let Some((_, status)) = status.filter(|_| id == stream) {
                        return format!("grpc-status {}", String::from_utf8_lossy(status));
                    }
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn every_form_of_authority_is_answered() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mut all = RawClient::connect(&daemon.cri_socket()).await;
    let mut wrong = Vec::new();
    for form in FORMS {
        let mut alone = RawClient::connect(&daemon.cri_socket()).await;
        for client in [&mut alone, &mut all] {
            let answer = client.call(&block(VERSION, form)).await;
            if answer != "grpc-status 0" {
                wrong.push((form, answer));
            }
        }
    }
    assert_eq!(wrong, []);
}

#[tokio::test]
async fn the_admin_service_answers_a_path_too() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mut client = RawClient::connect(&daemon.cri_socket()).await;
    let paths = "/longshore.admin.v1.Admin/GetPaths";
    assert_eq!(client.call(&block(paths, Some("/run/x.sock"))).await, "grpc-status 0");
}

#[tokio::test]
async fn padding_priority_and_continuations_are_understood() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mut client = RawClient::connect(&daemon.cri_socket()).await;
    let block = block(VERSION, Some("/run/x.sock"));
    let (first, rest) = block.split_at(20);
    let (second, third) = rest.split_at(30);
    for _ in 0..2 {
        let answer = client.send(|stream| {
            let padded = [&[3, 0, 0, 0, 0, 7][..], first, &[0; 3]].concat();
            [
                frame(HEADERS, PADDED | PRIORITY, stream, &padded),
                frame(CONTINUATION, 0, stream, second),
                frame(CONTINUATION, 0, stream, &[]),
                frame(CONTINUATION, END_HEADERS, stream, third),
            ]
            .concat()
        });
        assert_eq!(answer.await, "grpc-status 0");
    }
}

/// Violations of HTTP/2 end their connection (RFC 9113, 4.3 and 6.10) and no other.
#[tokio::test]
async fn malformed_header_blocks_end_their_connection() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mut other = RawClient::connect(&daemon.cri_socket()).await;
    let good = block(VERSION, Some("/run/x.sock"));
    let large = literal("x-large", &"x".repeat(100)).repeat(400);
    let malformed: [(&str, Vec<u8>); 6] = [
        ("an index of nothing", frame(HEADERS, END_HEADERS, 1, &[0xc0])),
        ("a string that is cut off", frame(HEADERS, END_HEADERS, 1, &[0, 9, b'x'])),
        ("more padding than frame", frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0])),
        ("an interrupted block", frame(HEADERS, 0, 1, &good)),
        ("continuations without end", frame(CONTINUATION, 0, 1, &[]).repeat(1000)),
        ("a table that is too large", frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe2, 0x1f, 0x82])),
    ];
    for (what, frames) in malformed {
        let mut client = RawClient::connect(&daemon.cri_socket()).await;
        assert_eq!(client.send(|_| frames).await, "GOAWAY 1", "{what}");
    }
    let mut client = RawClient::connect(&daemon.cri_socket()).await;
    let endless = |stream| {
        let first = frame(HEADERS, 0, stream, &large[..16_000]);
        [first, frame(CONTINUATION, 0, stream, &large[..16_000]).repeat(9)].concat()
    };
    assert_eq!(client.send(endless).await, "GOAWAY 1");
    assert_eq!(other.call(&good).await, "grpc-status 0", "other connections are unaffected");
}

/// The layer's HPACK table stays in sync with that of a client over many calls.
#[tokio::test]
async fn a_thousand_calls_of_one_client_are_answered() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let channel = connect(&daemon.cri_socket()).await.unwrap();
    let mut client = RuntimeServiceClient::new(channel);
    for call in 0..1000_usize {
        let mut request = Request::new(VersionRequest::default());
        let text = "v".repeat(call % 97) + &(call % 13).to_string();
        request.metadata_mut().insert("x-text", text.parse().unwrap());
        let binary = MetadataValue::from_bytes(&call.to_be_bytes());
        request.metadata_mut().insert_bin("x-call-bin", binary);
        request.set_timeout(Duration::from_secs(60 + call as u64 % 7));
        let version = client.version(request).await.unwrap().into_inner();
        assert_eq!(version.runtime_name, "longshore");
    }
}

#[tokio::test]
async fn grpc_go_is_answered_by_every_target() {
    let Some(program) =
        tokio::task::spawn_blocking(|| GoTool::GrpcClient.build().unwrap()).await.unwrap()
    else {
        return testkit::skip("grpc_go_is_answered_by_every_target", "go is not on PATH");
    };
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let socket = daemon.cri_socket();
    let output = tokio::task::spawn_blocking(move || Command::new(program).arg(socket).output());
    let output = output.await.unwrap().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert_eq!(
        stdout.lines().filter(|line| line.ends_with("longshore 0.1.0")).count(),
        5,
        "{stdout}"
    );
}
