//! A client of a container's streams, on a connection of its own.

use std::{io, path::Path};

use api_shim::attach::{self, Channel, HEADER_LEN, Hello, MAX_FRAME};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
};

use crate::{ShimError, connect};

/// Both directions, to be used apart.
#[derive(Debug)]
pub struct AttachIo {
    pub output: AttachOutput,
    pub input: AttachInput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What the output brings next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    Data(Stream, Bytes),
    /// The container's output has ended.
    End,
    /// We were too slow, and miss what follows.
    Lagged,
}

/// The container's output. Nothing is buffered here beyond one read. Who reads slowly slows
/// his container down; who makes no room for a second is cut off by the shim.
#[derive(Debug)]
pub struct AttachOutput {
    socket: OwnedReadHalf,
    buffer: BytesMut,
}

/// The container's input.
#[derive(Debug)]
pub struct AttachInput {
    socket: OwnedWriteHalf,
}

impl AttachIo {
    pub(crate) async fn join(socket: &Path, hello: &Hello) -> Result<Self, ShimError> {
        let call = "Attach";
        let stream = connect::open(call, socket).await?;
        let (reader, writer) = stream.into_split();
        let mut output = AttachOutput { socket: reader, buffer: BytesMut::new() };
        let mut input = AttachInput { socket: writer };
        let hello = serde_json::to_vec(hello).map_err(ShimError::io("describe the client"))?;
        input.send(Channel::Hello, &hello).await?;
        match output.frame().await? {
            Some((Channel::Reply, refusal)) if refusal.is_empty() => Ok(Self { output, input }),
            Some((Channel::Reply, refusal)) => {
                let message = String::from_utf8_lossy(&refusal).into_owned();
                Err(ShimError::NotFound { call, message })
            }
            Some(_) => Err(broken(io::ErrorKind::InvalidData.into())),
            None => Err(ShimError::Gone { call, source: None }),
        }
    }
}

impl AttachOutput {
    /// After [`Chunk::End`] or [`Chunk::Lagged`] nothing follows. [`ShimError::Gone`] if the
    /// shim ended before the container did.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Chunk, ShimError> {
        match self.frame().await? {
            Some((Channel::Stdout, bytes)) => Ok(Chunk::Data(Stream::Stdout, bytes)),
            Some((Channel::Stderr, bytes)) => Ok(Chunk::Data(Stream::Stderr, bytes)),
            Some((Channel::End, _)) => Ok(Chunk::End),
            Some((Channel::Lagged, _)) => Ok(Chunk::Lagged),
            Some(_) => Err(broken(io::ErrorKind::InvalidData.into())),
            None => Err(ShimError::Gone { call: "Attach", source: None }),
        }
    }

    /// Reads into the buffer only, so that a dropped call loses nothing.
    async fn frame(&mut self) -> Result<Option<(Channel, Bytes)>, ShimError> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer).map_err(broken)? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(HEADER_LEN + MAX_FRAME);
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(e) => return Err(ShimError::Gone { call: "Attach", source: Some(e) }),
            }
        }
    }
}

fn take_frame(buffer: &mut BytesMut) -> io::Result<Option<(Channel, Bytes)>> {
    let Some(&header) = buffer.first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let (channel, len) = attach::parse(header)?;
    if buffer.len() < HEADER_LEN + len {
        return Ok(None);
    }
    let mut frame = buffer.split_to(HEADER_LEN + len);
    Ok(Some((channel, frame.split_off(HEADER_LEN).freeze())))
}

impl AttachInput {
    /// Waits while the container does not read.
    ///
    /// Not cancel safe: part of the bytes may have been sent.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ShimError> {
        for part in bytes.chunks(MAX_FRAME) {
            self.send(Channel::Stdin, part).await?;
        }
        Ok(())
    }

    /// Ends our input. The container sees the end of its own only with
    /// [`crate::Stdio::stdin_once`]; dropping the whole [`AttachIo`] counts as this too.
    ///
    /// Not cancel safe.
    pub async fn close(&mut self) -> Result<(), ShimError> {
        self.send(Channel::Stdin, &[]).await
    }

    async fn send(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), ShimError> {
        let header = attach::header(channel, bytes.len());
        let sent = async {
            self.socket.write_all(&header).await?;
            self.socket.write_all(bytes).await
        };
        sent.await.map_err(|e| ShimError::Gone { call: "Attach", source: Some(e) })
    }
}

fn broken(source: io::Error) -> ShimError {
    ShimError::Io { doing: "understand an attach frame".to_owned(), source }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_come_out_whole_however_they_arrive(
            frames in proptest::collection::vec((1u8..3, proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
            step in 1usize..400,
        ) {
            let wire: Vec<u8> = frames.iter().flat_map(|(channel, bytes)| {
                let channel = if *channel == 1 { Channel::Stdout } else { Channel::Stderr };
                [&attach::header(channel, bytes.len())[..], bytes].concat()
            }).collect();
            let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
            for part in wire.chunks(step) {
                buffer.extend_from_slice(part);
                while let Some((channel, bytes)) = take_frame(&mut buffer).unwrap() {
                    got.push((channel.code(), bytes.to_vec()));
                }
            }
            prop_assert!(buffer.is_empty());
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = take_frame(&mut BytesMut::from(&bytes[..]));
        }
    }
}
