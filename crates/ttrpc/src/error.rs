//! What a client sees when a call fails: an answer of the peer, or a local cause.

use std::{io, sync::Arc};

use crate::{Code, MAX_PAYLOAD, Status};

/// A failed call. Cloneable, since one lost connection fails all its calls.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused. The only variant that says that the server saw the call.
    #[error(transparent)]
    Status(#[from] Status),

    /// The connection is gone. A call in flight may or may not have been carried out.
    #[error("connection closed")]
    Closed {
        #[source]
        cause: Option<Arc<io::Error>>,
    },

    /// No answer in the time the [`Context`](crate::Context) allows. The connection is
    /// sound; a late answer is dropped.
    #[error("no answer before the deadline")]
    Timeout,

    /// A message above the limit. When sending, nothing of it went out; when receiving,
    /// it was dropped. The connection is sound in both cases.
    #[error(transparent)]
    Oversize(#[from] Oversize),

    /// The peer's message does not decode.
    #[error("malformed message")]
    Decode(#[from] prost::DecodeError),

    /// The peer broke the protocol on this stream.
    #[error("protocol violation: {0}")]
    Protocol(&'static str),

    /// This stream's items were not taken in time, so it was cut off rather than have it
    /// hold up every other call on the connection.
    #[error("stream cut off: its items were not taken in time")]
    Lagged,

    /// Sent on a stream that the peer has already ended; its receiving side knows why.
    #[error("stream already ended")]
    StreamEnded,

    /// All stream ids of this connection are used up; new calls need a new connection.
    #[error("stream ids of this connection are used up")]
    Exhausted,
}

/// A payload above [`MAX_PAYLOAD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{direction} message of {len} bytes is above the limit of {MAX_PAYLOAD}")]
pub struct Oversize {
    pub direction: Direction,
    /// Length of the payload: the envelope of a request or response included, the frame
    /// header not.
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Sent,
    Received,
}

impl Error {
    pub(crate) fn closed() -> Self {
        Self::Closed { cause: None }
    }

    /// What went wrong in the terms of gRPC, whoever found it.
    pub fn code(&self) -> Code {
        match self {
            Self::Status(status) => status.code,
            Self::Closed { .. } | Self::Exhausted => Code::Unavailable,
            Self::Timeout => Code::DeadlineExceeded,
            Self::Oversize(_) | Self::Lagged => Code::ResourceExhausted,
            Self::Decode(_) | Self::Protocol(_) => Code::Internal,
            Self::StreamEnded => Code::Cancelled,
        }
    }
}

/// For a handler that calls another server and passes its failure on with `?`.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Status(status) => status,
            other => Self::new(other.code(), other.to_string()),
        }
    }
}

impl From<Oversize> for Status {
    fn from(oversize: Oversize) -> Self {
        Self::resource_exhausted(oversize.to_string())
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sent => "outgoing",
            Self::Received => "incoming",
        })
    }
}
