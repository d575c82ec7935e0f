//! The wire types and the service of the daemon's own API, generated from `proto/admin`.
//!
//! **Invariant:** no logic here, beyond ways to write down a message.

pub mod v1 {
    #![allow(
        clippy::all,
        clippy::needless_pass_by_value,
        clippy::large_futures,
        clippy::cast_possible_truncation,
        unreachable_pub,
        missing_debug_implementations,
        reason = "generated code"
    )]
    tonic::include_proto!("longshore.admin.v1");
}

use self::v1::{
    AttachRequest, AttachStart, CloseStdin, ExecRequest, ExecStart, SessionInput, Size,
    attach_request, exec_request, session_input,
};
use bytes::Bytes;

/// What one message carries of a stream at most: larger ones would hold up the others on the
/// connection.
pub const MAX_CHUNK_BYTES: usize = 64 << 10;

impl From<ExecStart> for ExecRequest {
    fn from(start: ExecStart) -> Self {
        Self { message: Some(exec_request::Message::Start(start)) }
    }
}

impl From<SessionInput> for ExecRequest {
    fn from(input: SessionInput) -> Self {
        Self { message: Some(exec_request::Message::Input(input)) }
    }
}

impl From<AttachStart> for AttachRequest {
    fn from(start: AttachStart) -> Self {
        Self { message: Some(attach_request::Message::Start(start)) }
    }
}

impl From<SessionInput> for AttachRequest {
    fn from(input: SessionInput) -> Self {
        Self { message: Some(attach_request::Message::Input(input)) }
    }
}

impl SessionInput {
    pub fn stdin(bytes: Bytes) -> Self {
        Self { input: Some(session_input::Input::Stdin(bytes)) }
    }

    pub fn close_stdin() -> Self {
        Self { input: Some(session_input::Input::CloseStdin(CloseStdin {})) }
    }

    pub fn resize(size: Size) -> Self {
        Self { input: Some(session_input::Input::Resize(size)) }
    }
}
