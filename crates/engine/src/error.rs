//! Why the engine refused or failed, by cause.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use base::{Id, Kind};
use content::ContentError;
use net::NetError;
use nri::NriError;
use oci::OciError;
use probe::NoCriu;
use shim_client::ShimError;
use snapshot::SnapshotError;
use store::StoreError;

use crate::{phase::Illegal, program::ProgramFault};

#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    #[error("no {what} {id:?}")]
    NotFound { what: &'static str, id: String },

    #[error("{what} id {id:?} is ambiguous")]
    Ambiguous { what: &'static str, id: String },

    #[error("{field}: {why}")]
    Invalid { field: String, why: String },

    #[error("{name:?} is the name of {id} already")]
    NameTaken { name: String, id: Id },

    #[error("{what} {id} is {state}: cannot {action}")]
    State { what: &'static str, id: Id, state: String, action: &'static str },

    #[error("pod {id} is {state}, not ready")]
    NotReady { id: Id, state: String },

    #[error(transparent)]
    Illegal(#[from] Illegal),

    #[error("no runtime for {0:?} is configured")]
    NoHandler(String),

    #[error("{0} is not implemented")]
    Unimplemented(&'static str),

    #[error("{doing} took longer than {limit:?}")]
    Timeout { doing: String, limit: Duration },

    #[error("{operation} of {id} at step {step:?}")]
    Step { operation: &'static str, id: Id, step: &'static str, source: Box<EngineError> },

    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: Arc<io::Error> },

    #[error(transparent)]
    Spec(Arc<OciError>),

    /// CRI clients look for the first word.
    #[error("ImageVolumeMountFailed: {field}")]
    ImageVolume { field: String, source: Box<EngineError> },

    #[error("shim")]
    Shim(#[source] Arc<ShimError>),

    /// Clients look for these words.
    #[error("exec: {program:?}: {fault}")]
    Program { program: String, fault: ProgramFault },

    #[error("kernel")]
    Kernel(#[source] Arc<sys::Error>),

    #[error(transparent)]
    Content(Arc<ContentError>),

    #[error(transparent)]
    Snapshot(Arc<SnapshotError>),

    #[error("pod network")]
    Network(#[source] Arc<NetError>),

    #[error(transparent)]
    Plugins(Arc<NriError>),

    /// Plugins set what host or handler cannot do.
    #[error("apply what {} for", nri::asking(plugins))]
    Adjustment { plugins: Vec<String>, source: Box<EngineError> },

    /// The OCI runtime refused a container that is not as its client asked for it.
    #[error("{} (adjusted by {})", base::Chain(&**refusal), nri::named(plugins))]
    Adjusted { plugins: Vec<String>, refusal: Box<EngineError> },

    #[error("state store")]
    Store(#[source] Arc<StoreError>),

    #[error("{doing}: {why}")]
    Failed { doing: String, why: String, kind: Kind },

    /// Said with the way out.
    #[error("checkpoint container {id}")]
    NoCriu { id: Id, source: NoCriu },

    #[error(
        "checkpoint container {id}: the OCI runtime of handler {handler:?} was built without criu: \
         run the pod with a handler that has it, as runc does"
    )]
    BuiltWithoutCriu { id: Id, handler: String },

    #[error("the engine is closing")]
    Closing,

    #[error("the daemon is stopping; the command goes on in container {container}")]
    CommandLeft { container: Id },
}

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

impl EngineError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } | Self::Ambiguous { .. } => Kind::NotFound,
            Self::Invalid { .. } | Self::NoHandler(_) | Self::Program { .. } => Kind::Invalid,
            Self::NameTaken { .. } => Kind::AlreadyExists,
            Self::State { .. }
            | Self::Illegal(_)
            | Self::NoCriu { .. }
            | Self::BuiltWithoutCriu { .. } => Kind::FailedPrecondition,
            Self::NotReady { .. } => Kind::Unavailable,
            Self::Unimplemented(_) => Kind::Unimplemented,
            Self::Timeout { .. } => Kind::Deadline,
            Self::Step { source, .. }
            | Self::ImageVolume { source, .. }
            | Self::Adjustment { source, .. } => source.kind(),
            Self::Adjusted { refusal, .. } => refusal.kind(),
            Self::Io { source, .. } => Kind::from(source.as_ref()),
            Self::Spec(e) => e.kind(),
            Self::Shim(e) => e.kind(),
            Self::Kernel(e) => Kind::from(&io::Error::from(e.io_kind())),
            Self::Content(e) => e.kind(),
            Self::Snapshot(e) => e.kind(),
            Self::Network(e) => e.kind(),
            Self::Plugins(e) => plugins_kind(e),
            Self::Store(e) => e.kind(),
            Self::Failed { kind, .. } => *kind,
            Self::Closing | Self::CommandLeft { .. } => Kind::Unavailable,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Invalid { field: field.into(), why: why.to_string() }
    }

    /// Names the step that failed: `.map_err(EngineError::io("create directory", &path))`.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source: Arc::new(source) }
    }

    /// For causes of crates whose error type is not worth a variant.
    pub(crate) fn failed(
        doing: impl fmt::Display,
        kind: Kind,
        cause: &(dyn std::error::Error + 'static),
    ) -> Self {
        Self::Failed { doing: doing.to_string(), why: base::Chain(cause).to_string(), kind }
    }
}

/// What plugins say is not the client's mistake.
fn plugins_kind(error: &NriError) -> Kind {
    match error.kind() {
        nri::Kind::Refused | nri::Kind::Conflict => Kind::FailedPrecondition,
        nri::Kind::Unavailable => Kind::Unavailable,
        nri::Kind::Deadline => Kind::Deadline,
        nri::Kind::Internal => Kind::Internal,
    }
}

impl From<NriError> for EngineError {
    fn from(error: NriError) -> Self {
        Self::Plugins(Arc::new(error))
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<NetError> for EngineError {
    fn from(error: NetError) -> Self {
        Self::Network(Arc::new(error))
    }
}

impl From<OciError> for EngineError {
    fn from(error: OciError) -> Self {
        Self::Spec(Arc::new(error))
    }
}

impl From<ShimError> for EngineError {
    fn from(error: ShimError) -> Self {
        Self::Shim(Arc::new(error))
    }
}

impl From<sys::Error> for EngineError {
    fn from(error: sys::Error) -> Self {
        Self::Kernel(Arc::new(error))
    }
}

impl From<ContentError> for EngineError {
    fn from(error: ContentError) -> Self {
        Self::Content(Arc::new(error))
    }
}

impl From<SnapshotError> for EngineError {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(Arc::new(error))
    }
}
