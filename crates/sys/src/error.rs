use std::{fmt, io, path::Path};

pub type Result<T> = std::result::Result<T, Error>;

/// A step the kernel refused. The cause a caller may decide on is [`Error::errno`].
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct Error {
    /// What was tried, on what, and what else the kernel said.
    step: String,
    source: io::Error,
}

impl Error {
    pub(crate) fn new(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { step: step.into(), source: source.into() }
    }

    /// Something the kernel said that we do not understand.
    pub(crate) fn malformed(step: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::new(step.to_string(), io::Error::new(io::ErrorKind::InvalidData, what.to_string()))
    }

    pub fn errno(&self) -> Option<rustix::io::Errno> {
        rustix::io::Errno::from_io_error(&self.source)
    }

    pub fn is(&self, errno: rustix::io::Errno) -> bool {
        self.errno() == Some(errno)
    }

    pub fn io_kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// For callers that speak `io::Error`: kind and text survive.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// `.map_err(on("unmount", path))`
pub(crate) fn on<E: Into<io::Error>>(
    step: &'static str,
    object: impl AsRef<Path>,
) -> impl FnOnce(E) -> Error {
    move |source| Error::new(format!("{step} {}", object.as_ref().display()), source)
}

/// `.map_err(to("become a subreaper"))`
pub(crate) fn to<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::new(step, source)
}
