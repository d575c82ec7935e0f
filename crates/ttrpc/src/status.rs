//! What a server answers when it refuses: a gRPC status, in the bytes of `google.rpc.Status`.

use std::{fmt, io};

use crate::wire;

pub use crate::wire::Any;

/// Why a call failed. The numbers are those of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// Every code, at the index of its number.
const CODES: [Code; 17] = [
    Code::Ok,
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// The answer of a server that refuses a call. Handlers return it, clients get it inside
/// [`Error::Status`](crate::Error::Status).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    pub code: Code,
    pub message: String,
    /// Typed messages for programs, rarely used.
    pub details: Vec<Any>,
}

impl Status {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new() }
    }

    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::new(Code::Cancelled, message)
    }

    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(Code::Unknown, message)
    }

    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn deadline_exceeded(message: impl Into<String>) -> Self {
        Self::new(Code::DeadlineExceeded, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, message)
    }

    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, message)
    }

    pub fn resource_exhausted(message: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, message)
    }

    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }
}

impl Code {
    /// The name gRPC gives the code, as in `NOT_FOUND`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number gRPC does not define becomes [`Code::Unknown`].
impl From<i32> for Code {
    fn from(number: i32) -> Self {
        usize::try_from(number).ok().and_then(|i| CODES.get(i)).copied().unwrap_or(Self::Unknown)
    }
}

impl From<wire::Status> for Status {
    fn from(wire: wire::Status) -> Self {
        Self { code: wire.code.into(), message: wire.message, details: wire.details }
    }
}

impl From<Status> for wire::Status {
    fn from(status: Status) -> Self {
        Self { code: status.code as i32, message: status.message, details: status.details }
    }
}

/// The codes a Go server gives the same operating system errors, so that a caller cannot
/// tell the two apart.
impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => Code::AlreadyExists,
            io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            io::ErrorKind::InvalidInput => Code::InvalidArgument,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => Code::FailedPrecondition,
            io::ErrorKind::TimedOut => Code::DeadlineExceeded,
            _ => Code::Unknown,
        };
        Self::new(code, error.to_string())
    }
}

impl From<tokio::time::error::Elapsed> for Status {
    fn from(elapsed: tokio::time::error::Elapsed) -> Self {
        Self::deadline_exceeded(elapsed.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire() {
        for (number, code) in CODES.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            assert_eq!(Code::from(code as i32), code);
        }
        assert_eq!(Code::from(17), Code::Unknown);
        assert_eq!(Code::from(-1), Code::Unknown);
    }

    #[test]
    fn operating_system_errors_keep_their_meaning() {
        let check = |kind: io::ErrorKind, want| {
            assert_eq!(Status::from(io::Error::from(kind)).code, want, "{kind}");
        };
        check(io::ErrorKind::NotFound, Code::NotFound);
        check(io::ErrorKind::AlreadyExists, Code::AlreadyExists);
        check(io::ErrorKind::PermissionDenied, Code::PermissionDenied);
        check(io::ErrorKind::UnexpectedEof, Code::FailedPrecondition);
        check(io::ErrorKind::OutOfMemory, Code::Unknown);
    }
}
