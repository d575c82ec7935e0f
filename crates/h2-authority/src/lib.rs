//! Rewrites the `:authority` of HTTP/2 requests before h2 reads them.
//!
//! A client that dials a unix socket has no host name to send. grpc-go with a `passthrough` target
//! and grpc-java send the path of the socket, gRPC's C core sends it percent-encoded, others send
//! an empty authority. None of these is valid by RFC 3986, so h2 resets the stream with
//! PROTOCOL_ERROR before a service sees the request, and has no option to accept it. gRPC servers
//! in Go answer all of them, and clients rely on that.
//!
//! [`AuthorityStream`] sits between the socket and h2:
//!
//! ```text
//!  client ──> AuthorityStream (Rewriter) ──> h2
//!  client <────────── unchanged ──────────── h2
//! ```
//!
//! Frames without a header block pass through unchanged. A header block is decoded with the HPACK
//! state of the client's side and forwarded as literals without indexing, so h2's own decoder never
//! has any state to keep in sync. The authority becomes `localhost` unless h2 would accept it.
//!
//! *Invariants:* an authority that h2 accepts is unchanged, and so is every other field. Memory per
//! connection is bounded, whatever the client sends. A violation of HTTP/2 reaches h2 as one, so
//! that h2 answers it; nothing is read after it.

mod block;
mod huffman;
mod rewriter;
mod stream;

pub use rewriter::{
    MAX_BLOCK_BYTES, MAX_FRAGMENTS, MAX_LITERAL_BYTES, PREFACE, Rewriter, Violation,
};
pub use stream::AuthorityStream;
