//! The streaming server of Kubernetes' runtimes: exec, attach and port-forward.
//!
//! ```text
//!  RPC ──> Server::exec, attach, port_forward ──> URL with a token
//!  client ──HTTP upgrade, token──> Server ──┬── SPDY/3.1                    ┐
//!                                           ├── WebSocket, channels v1–v5   ├──> Backend
//!                                           └── SPDY/3.1 inside a WebSocket ┘
//! ```
//! Whoever runs containers implements [`Backend`] and gets the streams of a client; all
//! protocol is here.
//!
//! **Invariants**
//! - A token is spent by its first use, and worth nothing after a minute.
//! - What waits for a slow side is bounded; the fast side waits.
//! - [`Server::serve`] returns when no connection and no work of one is left.

mod backend;
mod command;
mod forward;
mod lanes;
mod negotiate;
mod server;
mod session;
pub mod spdy;
mod tls;
mod tokens;
mod websocket;

pub use backend::{Attach, Backend, BoxError, Client, Exec, PortForward, Size, Sizes, Wanted};
pub use lanes::{Gone, Input, Output};
pub use server::{Limits, Server};
pub use tls::{TlsError, acceptor};
pub use tokens::Busy;
pub use tokio_rustls::TlsAcceptor as Acceptor;
