//! SPDY/3.1, as far as Kubernetes speaks it.
//!
//! ```text
//!   bytes ──Decoder──> Frame ──> Session ──> streams: headers, an Input, an Output
//!   bytes <──Encoder── Frame <─────┘
//! ```
//! The common client (Go's) sends without looking at windows and gives none. So windows bind
//! only who knows them: see [`session`].

pub mod frame;
pub mod headers;
pub mod session;

#[derive(Debug, thiserror::Error)]
pub enum SpdyError {
    #[error("frame of SPDY version {0}, this is 3")]
    Version(u16),

    #[error("{name} frame of {len} bytes")]
    Length { name: &'static str, len: usize },

    #[error("headers that make no sense: {0}")]
    Headers(&'static str),

    #[error("data of stream 0")]
    NoStream,

    #[error("the peer asks for answers and does not read them")]
    Flood,

    #[error("the connection broke")]
    Io(#[from] std::io::Error),
}
