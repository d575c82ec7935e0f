//! ttrpc: remote calls between processes of one host, over any byte stream.
//!
//! ```text
//!   Client --- message, message, ... ---> Server
//!     |   10-byte header + <= 4 MiB         |
//!   call / stream                         Service: method -> handler, one task per call
//! ```
//!
//! Messages are protobuf (prost); `ttrpc-build` generates a client and a server trait from
//! a service in a `.proto` file. Both ends work over a Unix socket, a pipe, an in-memory
//! stream, or, by a [`MessageWriter`], a multiplexer.
//!
//! ```
//! # use std::time::Duration;
//! # use ttrpc::{Client, Context, MethodName, Server, ServerContext, Service};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let greeter = Service::new("example.Greeter")
//!     .unary("Hello", async |_: ServerContext, name: String| Ok(format!("hello {name}")));
//! let server = Server::builder().service(greeter).build();
//!
//! let (near, far) = tokio::io::duplex(4096);
//! let client = Client::new(near);
//! let hello = async {
//!     let ctx = Context::timeout(Duration::from_secs(1));
//!     let method = MethodName::new("example.Greeter", "Hello");
//!     let answer = client.call::<String, String>(method, &ctx, &"world".into()).await;
//!     client.close();
//!     answer
//! };
//! let (answer, served) = tokio::join!(hello, server.serve_connection(far));
//! assert_eq!(answer?, "hello world");
//! served?;
//! # Ok(())
//! # }
//! ```
//!
//! What it promises:
//! - A call may be dropped at any moment, also while its message is being written; the
//!   connection and every other call go on.
//! - Every queue is bounded, by bytes. Who does not read is waited for a second, then cut
//!   off, alone.
//! - A message above 4 MiB costs its own call, never the connection, in both directions.
//! - A panic in a handler is an `INTERNAL` answer.

mod client;
mod context;
mod error;
mod frame;
mod link;
mod message;
mod outbox;
mod queue;
mod server;
mod service;
mod status;
mod stream;
mod transport;
mod wire;

pub use client::{Client, MethodName};
pub use context::{Context, Metadata, ServerContext};
pub use error::{Direction, Error, Oversize};
pub use frame::{Decoded, Decoder, Flags, HEADER_LEN, Header, MAX_PAYLOAD, MessageType};
pub use server::{Server, ServerBuilder};
pub use service::Service;
pub use status::{Any, Code, Status};
pub use stream::{ClientStream, Receiver, ReplySender, RequestSender};
pub use transport::{MessageWriter, StreamWriter};
