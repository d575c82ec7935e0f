//! The frames between an attached client and the shim, on a connection of its own.
//!
//! ```text
//!   client: Hello (JSON, length first)   shim: a Reply frame, empty or the refusal
//!   client: STDIN bytes, an empty one ends the input
//!   shim:   STDOUT, STDERR bytes, at last END or LAGGED
//! ```
//! A frame is `channel: u8, len: u32` (big endian) and `len` bytes.

use serde::{Deserialize, Serialize};

/// No frame is longer, in either direction.
pub const MAX_FRAME: usize = 64 << 10;
pub const HEADER_LEN: usize = 5;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Stdin,
    Stdout,
    Stderr,
    /// The first frame of a client: a [`Hello`] in JSON.
    Hello,
    /// The first frame of the shim; text says why the client is refused.
    Reply,
    /// The last frame: the container's output has ended.
    End,
    /// The last frame: the client was too slow and misses what follows.
    Lagged,
}

/// Whose streams a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub id: String,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A frame that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFrame {
    Channel(u8),
    Length(u32),
}

impl Channel {
    pub fn code(self) -> u8 {
        match self {
            Self::Stdin => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::Hello => 3,
            Self::Reply => 4,
            Self::End => 5,
            Self::Lagged => 6,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::Stdin,
            Self::Stdout,
            Self::Stderr,
            Self::Hello,
            Self::Reply,
            Self::End,
            Self::Lagged,
        ];
        all.get(usize::from(code)).copied()
    }
}

/// `len` is at most [`MAX_FRAME`], which the caller sees to.
pub fn header(channel: Channel, len: usize) -> [u8; HEADER_LEN] {
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    [channel.code(), a, b, c, d]
}

/// The channel and the length of what follows.
pub fn parse(header: [u8; HEADER_LEN]) -> Result<(Channel, usize), BadFrame> {
    let [code, a, b, c, d] = header;
    let channel = Channel::from_code(code).ok_or(BadFrame::Channel(code))?;
    let len = u32::from_be_bytes([a, b, c, d]);
    let fits = usize::try_from(len).ok().filter(|len| *len <= MAX_FRAME);
    Ok((channel, fits.ok_or(BadFrame::Length(len))?))
}

impl std::error::Error for BadFrame {}

impl std::fmt::Display for BadFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Channel(code) => write!(f, "frame of unknown channel {code}"),
            Self::Length(len) => write!(f, "frame of {len} bytes is above {MAX_FRAME}"),
        }
    }
}

impl From<BadFrame> for std::io::Error {
    fn from(bad: BadFrame) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for code in 0..=6 {
            let channel = Channel::from_code(code).unwrap();
            assert_eq!(channel.code(), code);
            for len in [0, 1, 255, 256, MAX_FRAME] {
                assert_eq!(parse(header(channel, len)), Ok((channel, len)));
            }
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(parse([7, 0, 0, 0, 0]), Err(BadFrame::Channel(7)));
        assert_eq!(parse([1, 0, 1, 0, 1]), Err(BadFrame::Length(65_537)));
        assert_eq!(parse([1, 255, 255, 255, 255]), Err(BadFrame::Length(u32::MAX)));
    }
}
