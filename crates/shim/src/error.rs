use std::{fmt, io, path::Path};

use shim_io::IoError;
use ttrpc::{Code, Status};

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a request was not carried out; the caller decides by the code it becomes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no {what} {id:?}")]
    NotFound { what: &'static str, id: String },

    #[error("{what} {id:?} exists already")]
    Exists { what: &'static str, id: String },

    #[error("cannot {wanted}: {what} {id:?} is {phase}")]
    Phase { wanted: &'static str, what: &'static str, id: String, phase: String },

    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },

    /// In the runtime's own words.
    #[error("{runtime} {step}: {said}")]
    Runtime { runtime: String, step: &'static str, said: String },

    #[error("{doing}: not done in time")]
    Timeout { doing: &'static str },

    /// The thread that writes logs does not keep up, most likely because of its disk.
    #[error("log thread is busy: cannot {doing}")]
    Busy { doing: &'static str },

    #[error("{0} is not implemented")]
    Unimplemented(&'static str),

    #[error("{doing}: {}", Chain(source))]
    Io { doing: String, source: io::Error },
}

/// An error with all its causes: it leaves the process as text.
struct Chain<'a>(&'a io::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = std::error::Error::source(self.0);
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

impl Error {
    /// `.map_err(Error::io("open log"))`
    pub(crate) fn io<E: Into<io::Error>>(doing: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing: doing.to_string(), source: source.into() }
    }

    /// `.map_err(Error::on("open", path))`
    pub(crate) fn on<E: Into<io::Error>>(step: &str, path: &Path) -> impl FnOnce(E) -> Self {
        Self::io(format!("{step} {}", path.display()))
    }

    fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::Exists { .. } => Code::AlreadyExists,
            Self::Phase { .. } => Code::FailedPrecondition,
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::Timeout { .. } => Code::DeadlineExceeded,
            Self::Busy { .. } => Code::ResourceExhausted,
            Self::Unimplemented(_) => Code::Unimplemented,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Code::ResourceExhausted
                }
                _ => Code::Internal,
            },
            Self::Runtime { .. } => Code::Internal,
        }
    }
}

impl From<IoError> for Error {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Busy { doing } => Self::Busy { doing },
            IoError::Failed { doing, source } => Self::io(doing)(source),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_causes_are_told() {
        let refused = sys::pidfd::Pidfd::open(0).unwrap_err();
        let text = Error::io("hold a process")(refused).to_string();
        assert_eq!(text, "hold a process: open process 0: Invalid argument (os error 22)");
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Error::io("write")(full).code(), Code::ResourceExhausted);
        assert_eq!(Error::io("write")(io::Error::other("x")).code(), Code::Internal);
    }
}
