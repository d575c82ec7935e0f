use std::fmt;

/// What a caller can do about a failure. Front ends match on this, never on text.
///
/// Each front end owns its one mapping; these are the targets:
///
/// | kind | gRPC | HTTP (Docker) | what the caller may do |
/// |---|---|---|---|
/// | `NotFound` | `NOT_FOUND` | 404 | stop asking, or create it |
/// | `AlreadyExists` | `ALREADY_EXISTS` | 409 | use the one that exists |
/// | `Invalid` | `INVALID_ARGUMENT` | 400 | change the request |
/// | `FailedPrecondition` | `FAILED_PRECONDITION` | 409 | change the state first |
/// | `Unavailable` | `UNAVAILABLE` | 503 | repeat the same request later |
/// | `Unimplemented` | `UNIMPLEMENTED` | 501 | do without |
/// | `Cancelled` | `CANCELLED` | 499 | nothing: the caller itself went away |
/// | `Deadline` | `DEADLINE_EXCEEDED` | 504 | repeat: the work may have gone on |
/// | `ResourceExhausted` | `RESOURCE_EXHAUSTED` | 507 | free space, raise a limit, ask for less |
/// | `Internal` | `INTERNAL` | 500 | read our log |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    NotFound,
    AlreadyExists,
    Invalid,
    FailedPrecondition,
    Unavailable,
    Unimplemented,
    Cancelled,
    Deadline,
    ResourceExhausted,
    Internal,
}

impl Kind {
    /// Whether the same request, unchanged, may succeed later.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::Deadline | Self::ResourceExhausted)
    }
}

/// As a metric label or log field: `failed_precondition`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Invalid => "invalid",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unavailable => "unavailable",
            Self::Unimplemented => "unimplemented",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Internal => "internal",
        })
    }
}

/// How the kernel's refusals read to a caller. A missing file is *not* `NotFound`:
/// that kind is about the objects a client names, not about our own files.
impl From<&std::io::Error> for Kind {
    fn from(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        match error.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::OutOfMemory | Io::FileTooLarge => {
                Self::ResourceExhausted
            }
            Io::TimedOut => Self::Deadline,
            Io::ConnectionRefused | Io::ConnectionReset | Io::BrokenPipe | Io::NotConnected => {
                Self::Unavailable
            }
            Io::Unsupported => Self::Unimplemented,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn io_errors_have_a_kind() {
        let check = |io: ErrorKind, want| assert_eq!(Kind::from(&Error::from(io)), want, "{io}");
        check(ErrorKind::StorageFull, Kind::ResourceExhausted);
        check(ErrorKind::NotFound, Kind::Internal);
        check(ErrorKind::ConnectionRefused, Kind::Unavailable);
        check(ErrorKind::TimedOut, Kind::Deadline);
    }
}
