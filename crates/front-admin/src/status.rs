//! The one place where errors become gRPC here.

use base::{Chain, Kind};
use engine::EngineError;
use tonic::{Code, Status};

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn status(error: EngineError) -> Status {
    Status::new(code(error.kind()), Chain(&error).to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_the_whole_chain() {
        let id = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff";
        let source = Box::new(EngineError::NotFound { what: "image", id: "x".into() });
        let (operation, step) = ("create-container", "image");
        let error = EngineError::Step { operation, id: id.parse().unwrap(), step, source };
        let got = status(error);
        assert_eq!(got.code(), Code::NotFound);
        assert_eq!(
            got.message(),
            format!("create-container of {id} at step \"image\": no image \"x\"")
        );
    }
}
