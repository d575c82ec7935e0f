//! A SPDY connection that carries anything at all: it is read the same in any pieces, the
//! session ends when the bytes do, and no stream is heard that was not opened.
#![no_main]

use std::time::Duration;

use bytes::BytesMut;
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use stream::spdy::{
    frame::{Decoder, Encoder, Frame},
    headers::Headers,
    session::session,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Arbitrary, Debug)]
enum Said {
    Open { id: u8, name: u8, fin: bool },
    Data { id: u8, bytes: Vec<u8>, fin: bool },
    Reset { id: u8 },
    Window { id: u8, more: u32 },
    Settings { id: u8, value: u32 },
    Ping(u32),
    Junk(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Talk {
    said: Vec<Said>,
    /// How much is decoded at a time.
    step: u8,
}

fn wire(said: &[Said]) -> Vec<u8> {
    let (mut encoder, mut wire) = (Encoder::default(), BytesMut::new());
    for said in said {
        let frame = match said {
            Said::Open { id, name, fin } => {
                let headers = Headers::default().with("streamtype", &name.to_string());
                Frame::SynStream { id: (*id).into(), headers, fin: *fin }
            }
            Said::Data { id, bytes, fin } => {
                Frame::Data { id: (*id).into(), bytes: bytes.clone().into(), fin: *fin }
            }
            Said::Reset { id } => Frame::Reset { id: (*id).into(), status: 5 },
            Said::Window { id, more } => Frame::Window { id: (*id).into(), more: *more },
            Said::Settings { id, value } => Frame::Settings(vec![((*id).into(), *value)]),
            Said::Ping(id) => Frame::Ping(*id),
            Said::Junk(bytes) => {
                wire.extend_from_slice(bytes);
                continue;
            }
        };
        encoder.put(&frame, &mut wire);
    }
    wire.to_vec()
}

/// The frames in these pieces, with data put together per frame; `None` at the end is an error.
fn frames(wire: &[u8], step: usize) -> Vec<Option<Frame>> {
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
    let mut all: Vec<Option<Frame>> = Vec::new();
    for part in wire.chunks(step) {
        buffer.extend_from_slice(part);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(Frame::Data { id, bytes, fin })) => match all.last_mut() {
                    // Two frames of one stream look like one: so they do in both readings.
                    Some(Some(Frame::Data { id: last, bytes: before, fin: ended }))
                        if *last == id && !*ended =>
                    {
                        *before = [&before[..], &bytes].concat().into();
                        *ended = fin;
                    }
                    _ => all.push(Some(Frame::Data { id, bytes, fin })),
                },
                Ok(Some(frame)) => all.push(Some(frame)),
                Ok(None) => break,
                Err(_) => {
                    all.push(None);
                    return all;
                }
            }
        }
    }
    all
}

async fn serve(wire: Vec<u8>) {
    let (near, far) = tokio::io::duplex(1 << 10);
    let (driver, mut streams) = session(near, Duration::from_secs(1));
    let (mut read, mut write) = tokio::io::split(far);
    let peer = async move {
        let talk = async {
            let _ = write.write_all(&wire).await;
            let _ = write.shutdown().await;
        };
        let mut heard = Vec::new();
        let _ = tokio::join!(talk, read.read_to_end(&mut heard));
        heard
    };
    let serving = async {
        while let Some(mut incoming) = streams.accept().await {
            assert_eq!(incoming.id % 2, 1);
            let mut bytes = BytesMut::with_capacity(64);
            // One that says nothing more keeps nobody.
            let read = incoming.input.read_buf(&mut bytes);
            let _ = tokio::time::timeout(Duration::from_millis(10), read).await;
            let send = incoming.output.send(bytes.freeze());
            let _ = tokio::time::timeout(Duration::from_millis(10), send).await;
            incoming.output.finish().await;
        }
    };
    let (_, (), heard) = tokio::join!(driver.run(), serving, peer);
    let (mut decoder, mut heard) = (Decoder::default(), BytesMut::from(&heard[..]));
    while let Some(_frame) = decoder.next(&mut heard).expect("what we send can be read") {}
}

fuzz_target!(|talk: Talk| {
    let wire = wire(&talk.said);
    assert_eq!(frames(&wire, usize::from(talk.step).max(1)), frames(&wire, wire.len().max(1)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(serve(wire));
});
