//! A server that is told anything at all answers in whole frames, then ends with its client.
#![no_main]

use std::{io, time::Duration};

use bytes::BytesMut;
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use ttrpc::{
    Decoded, Decoder, Flags, Header, MessageType, Receiver, ReplySender, Server, ServerContext,
    Service, Status,
};

/// Something a client says: by the rules, against them, or no message at all.
#[derive(Arbitrary, Debug)]
enum Said {
    Request { stream_id: u8, method: Method, payload: Payload, timeout_nano: i64 },
    Data { stream_id: u8, flags: u8, payload: Payload },
    Frame { stream_id: u32, kind: u8, flags: u8, payload: Vec<u8> },
    Junk(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Method {
    Unary,
    ServerStream,
    ClientStream,
    Duplex,
    Other(String),
}

#[derive(Arbitrary, Debug)]
enum Payload {
    Number(u32),
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    timeout_nano: i64,
}

impl Said {
    fn onto(self, wire: &mut Vec<u8>) {
        let (stream_id, kind, flags, payload) = match self {
            Self::Junk(bytes) => return wire.extend(bytes),
            Self::Frame { stream_id, kind, flags, payload } => (stream_id, kind, flags, payload),
            Self::Data { stream_id, flags, payload } => {
                (stream_id.into(), MessageType::DATA.0, flags, payload.encode())
            }
            Self::Request { stream_id, method, payload, timeout_nano } => {
                let (service, method) = ("s".to_owned(), method.name());
                let request = Request { service, method, payload: payload.encode(), timeout_nano };
                (stream_id.into(), MessageType::REQUEST.0, 0, request.encode_to_vec())
            }
        };
        let len = u32::try_from(payload.len()).expect("fuzz inputs are small");
        let (kind, flags) = (MessageType(kind), Flags(flags));
        wire.extend(Header { len, stream_id, kind, flags }.to_bytes());
        wire.extend(payload);
    }
}

impl Method {
    fn name(self) -> String {
        match self {
            Self::Unary => "u".into(),
            Self::ServerStream => "o".into(),
            Self::ClientStream => "i".into(),
            Self::Duplex => "d".into(),
            Self::Other(name) => name,
        }
    }
}

impl Payload {
    fn encode(self) -> Vec<u8> {
        match self {
            Self::Number(number) => number.encode_to_vec(),
            Self::Text(text) => text.encode_to_vec(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

fn server() -> Server {
    let service = Service::new("s")
        .unary("u", async |_: ServerContext, text: String| Ok(text))
        .server_stream("o", async |_: ServerContext, n: u32, mut out: ReplySender<u32>| {
            for i in 0..n % 8 {
                out.send(&i).await?;
            }
            Ok(())
        })
        .client_stream("i", async |_: ServerContext, mut items: Receiver<u32>| {
            let mut count = 0u32;
            while items.recv().await?.is_some() {
                count += 1;
            }
            Ok(count)
        })
        .duplex("d", duplex);
    Server::builder().service(service).max_calls(16).build()
}

async fn duplex(
    _: ServerContext,
    mut items: Receiver<String>,
    mut out: ReplySender<String>,
) -> Result<(), Status> {
    while let Some(item) = items.recv().await? {
        out.send(&item).await?;
    }
    Ok(())
}

async fn talk(mut io: DuplexStream, wire: &[u8]) {
    io.write_all(wire).await.expect("the server reads all");
    // Long enough for handlers to run; then the end of the client ends them.
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
    let (mut decoder, mut buf) = (Decoder::default(), BytesMut::new());
    loop {
        while let Some(decoded) = decoder.decode(&mut buf) {
            let Decoded::Frame(header, _) = decoded else { panic!("{decoded:?}") };
            let kinds = [MessageType::RESPONSE, MessageType::DATA];
            assert!(kinds.contains(&header.kind), "{header:?}");
        }
        // What is there now; nothing more may come.
        tokio::select! {
            biased;
            read = io.read_buf(&mut buf) => if read.expect("the pipe works") == 0 { break },
            () = std::future::ready(()) => break,
        }
    }
    assert!(buf.is_empty(), "half a frame: {buf:?}");
}

fuzz_target!(|said: Vec<Said>| {
    let mut wire = Vec::new();
    said.into_iter().for_each(|said| said.onto(&mut wire));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let server = server();
        let both = async { tokio::join!(server.serve_connection(far), talk(near, &wire)) };
        let ended = tokio::time::timeout(Duration::from_secs(10), both).await;
        let (served, ()) = ended.expect("it ends with its client");
        if let Err(error) = served {
            // The client left in the middle of a frame, or before its last answer.
            let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
    });
});
