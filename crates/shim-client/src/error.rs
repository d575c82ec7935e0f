use std::{fmt, io, time::Duration};

use base::Kind;
use ttrpc::Code;

/// Why a shim did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The shim does not know the task or process; or there is no shim in the directory.
    #[error("{call}: {message}")]
    NotFound { call: &'static str, message: String },

    /// The shim, or the connection to it, is gone. Whether the call was carried out is
    /// for a new connection to find out.
    #[error("{call}: shim is gone")]
    Gone {
        call: &'static str,
        #[source]
        source: Option<io::Error>,
    },

    /// The shim may still be at it.
    #[error("{call}: no answer within {limit:?}")]
    Timeout { call: &'static str, limit: Duration },

    #[error("{call}: {message}")]
    Refused { call: &'static str, kind: Kind, message: String },

    /// It did not come up, and has undone what it had made. The text names its step.
    #[error("start shim: {stderr}")]
    Start { stderr: String },

    #[error("{doing}")]
    Io {
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl ShimError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } => Kind::NotFound,
            Self::Gone { .. } => Kind::Unavailable,
            Self::Timeout { .. } => Kind::Deadline,
            Self::Refused { kind, .. } => *kind,
            Self::Start { .. } => Kind::Internal,
            Self::Io { source, .. } => Kind::from(source),
        }
    }

    /// Names the step that failed: `.map_err(ShimError::io("read bootstrap"))`.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing: doing.to_string(), source: source.into() }
    }

    /// What a failed call means.
    pub(crate) fn of_call(call: &'static str, limit: Duration, error: ttrpc::Error) -> Self {
        match error {
            ttrpc::Error::Status(status) => match status.code {
                Code::NotFound => Self::NotFound { call, message: status.message },
                code => Self::Refused { call, kind: kind(code), message: status.message },
            },
            ttrpc::Error::Timeout => Self::Timeout { call, limit },
            ttrpc::Error::Closed { cause } => {
                // The cause is shared by all calls of the connection; each gets a copy.
                let copy = |e: &io::Error| io::Error::new(e.kind(), e.to_string());
                Self::Gone { call, source: cause.as_deref().map(copy) }
            }
            other => Self::Refused { call, kind: kind(other.code()), message: other.to_string() },
        }
    }
}

fn kind(code: Code) -> Kind {
    match code {
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::AlreadyExists,
        Code::InvalidArgument | Code::OutOfRange => Kind::Invalid,
        Code::FailedPrecondition | Code::Aborted => Kind::FailedPrecondition,
        Code::Unavailable => Kind::Unavailable,
        Code::Unimplemented => Kind::Unimplemented,
        Code::Cancelled => Kind::Cancelled,
        Code::DeadlineExceeded => Kind::Deadline,
        Code::ResourceExhausted => Kind::ResourceExhausted,
        _ => Kind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use ttrpc::{Error, Status};

    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let check = |error: Error, want| {
            let got = ShimError::of_call("Kill", Duration::from_secs(1), error);
            assert_eq!(got.kind(), want, "{got:?}");
        };
        check(Status::not_found("no task x").into(), Kind::NotFound);
        check(Status::failed_precondition("not running").into(), Kind::FailedPrecondition);
        check(Error::Timeout, Kind::Deadline);
        check(Error::Closed { cause: None }, Kind::Unavailable);
        check(Error::Protocol("odd"), Kind::Internal);
    }

    #[test]
    fn texts_name_the_call() {
        let limit = Duration::from_secs(2);
        let text = |error| ShimError::of_call("Start", limit, error).to_string();
        assert_eq!(text(Error::Timeout), "Start: no answer within 2s");
        assert_eq!(text(Error::Closed { cause: None }), "Start: shim is gone");
        assert_eq!(text(Status::internal("runc: boom").into()), "Start: runc: boom");
    }
}
