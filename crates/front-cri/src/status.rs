//! The one place where errors become gRPC; the Docker front end has its twin.

use std::error::Error;

use base::{Chain, Kind};
use engine::EngineError;
use oci::OciError;
use tonic::{Code, Status};

use crate::field::Invalid;

/// The message is the whole chain of causes, except where the kubelet looks for a word at
/// its very start: then it begins with the cause that has the word.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn status(error: EngineError) -> Status {
    Status::new(code(error.kind()), Chain(marked(&error)).to_string())
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        Self::invalid_argument(invalid.to_string())
    }
}

/// Clients of other URLs have to come first.
pub(crate) fn busy(busy: ::stream::Busy) -> Status {
    Status::resource_exhausted(busy.to_string())
}

/// CRI: to stop or remove what is gone succeeds. An ambiguous prefix is not gone, and
/// neither is what failed because something else was missing.
pub(crate) fn gone_is_done(result: engine::Result<()>) -> Result<(), Status> {
    match result {
        Err(EngineError::NotFound { .. }) => Ok(()),
        other => other.map_err(status),
    }
}

/// An RPC of the contract that this version does not serve, by name.
pub(crate) fn unimplemented(rpc: &'static str) -> Status {
    Status::unimplemented(format!("{rpc} is not implemented"))
}

fn code(kind: Kind) -> Code {
    match kind {
        Kind::NotFound => Code::NotFound,
        Kind::AlreadyExists => Code::AlreadyExists,
        Kind::Invalid => Code::InvalidArgument,
        Kind::FailedPrecondition => Code::FailedPrecondition,
        Kind::Unavailable => Code::Unavailable,
        Kind::Unimplemented => Code::Unimplemented,
        Kind::Cancelled => Code::Cancelled,
        Kind::Deadline => Code::DeadlineExceeded,
        Kind::ResourceExhausted => Code::ResourceExhausted,
        Kind::Internal => Code::Internal,
    }
}

/// Skips the steps around a cause whose text begins with a word of the contract.
fn marked(error: &EngineError) -> &(dyn Error + 'static) {
    let mut cause = error;
    while let EngineError::Step { source, .. } = cause {
        cause = source;
    }
    match cause {
        EngineError::ImageVolume { .. } => cause,
        EngineError::Spec(spec) if matches!(**spec, OciError::RecursiveReadonly { .. }) => &**spec,
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc, time::Duration};

    use base::Id;

    use super::*;

    const ID: &str = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff";

    fn id() -> Id {
        ID.parse().unwrap()
    }

    #[track_caller]
    fn check(error: EngineError, want: Code, message: &str) {
        let got = status(error);
        assert_eq!((got.code(), got.message()), (want, message));
    }

    fn step(source: EngineError) -> EngineError {
        EngineError::Step { operation: "create", id: id(), step: "spec", source: Box::new(source) }
    }

    #[test]
    fn every_kind_has_its_code() {
        let kinds = [
            (Kind::NotFound, Code::NotFound),
            (Kind::AlreadyExists, Code::AlreadyExists),
            (Kind::Invalid, Code::InvalidArgument),
            (Kind::FailedPrecondition, Code::FailedPrecondition),
            (Kind::Unavailable, Code::Unavailable),
            (Kind::Unimplemented, Code::Unimplemented),
            (Kind::Cancelled, Code::Cancelled),
            (Kind::Deadline, Code::DeadlineExceeded),
            (Kind::ResourceExhausted, Code::ResourceExhausted),
            (Kind::Internal, Code::Internal),
        ];
        for (kind, want) in kinds {
            let error = EngineError::Failed { doing: "x".into(), why: "y".into(), kind };
            check(error, want, "x: y");
        }
    }

    #[test]
    fn messages_are_whole_chains() {
        let what = "container";
        check(
            EngineError::NotFound { what, id: "ab".into() },
            Code::NotFound,
            "no container \"ab\"",
        );
        check(
            EngineError::Timeout { doing: "exec".into(), limit: Duration::from_secs(2) },
            Code::DeadlineExceeded,
            "exec took longer than 2s",
        );
        let full = Arc::new(io::Error::from(io::ErrorKind::StorageFull));
        check(
            step(EngineError::Io { doing: "write", path: "/x".into(), source: full }),
            Code::ResourceExhausted,
            &format!("create of {ID} at step \"spec\": write /x: no storage space"),
        );
        check(
            EngineError::NoHandler("gvisor".into()),
            Code::InvalidArgument,
            "no runtime for \"gvisor\" is configured",
        );
    }

    #[test]
    fn words_the_kubelet_looks_for_come_first() {
        let (field, handler) = ("mounts[0]".to_owned(), "crun".to_owned());
        let cause = OciError::RecursiveReadonly { field, handler };
        let message = cause.to_string();
        assert!(message.starts_with("RROUnsupported: "), "{message}");
        check(step(step(cause.into())), Code::Unimplemented, &message);

        let source = Box::new(EngineError::NotFound { what: "image", id: "x".into() });
        let cause = EngineError::ImageVolume { field: "mounts[1]".into(), source };
        let message = "ImageVolumeMountFailed: mounts[1]: no image \"x\"";
        check(step(cause), Code::NotFound, message);
    }

    #[test]
    fn gone_is_done_but_not_anything_else() {
        let what = "pod";
        let not_found = || EngineError::NotFound { what, id: "ab".into() };
        assert!(gone_is_done(Ok(())).is_ok());
        assert!(gone_is_done(Err(not_found())).is_ok());
        let ambiguous = EngineError::Ambiguous { what, id: "ab".into() };
        assert_eq!(gone_is_done(Err(ambiguous)).unwrap_err().code(), Code::NotFound);
        assert_eq!(gone_is_done(Err(step(not_found()))).unwrap_err().code(), Code::NotFound);
        assert_eq!(gone_is_done(Err(EngineError::Closing)).unwrap_err().code(), Code::Unavailable);
    }

    #[test]
    fn what_is_invalid_says_so() {
        let got = Status::from(Invalid::new("cmd", "must not be empty"));
        assert_eq!((got.code(), got.message()), (Code::InvalidArgument, "cmd: must not be empty"));
    }
}
