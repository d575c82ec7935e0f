use base::Kind;
use oci_spec::OciSpecError;

/// Why no spec could be made. Always names the field of the request, as the request spells it.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    #[error("{field}: {why}")]
    Invalid { field: String, why: String },

    /// The words "no such …" are about something the field names.
    #[error("{field}: {why}")]
    NotFound { field: String, why: String },

    #[error("{field}: handler {handler:?} cannot do that")]
    Unable { field: String, handler: String },

    /// CRI clients look for the first word.
    #[error("RROUnsupported: {field}: handler {handler:?} has no recursive read-only mounts")]
    RecursiveReadonly { field: String, handler: String },

    #[error("{field}: {what} is not available on this host")]
    Host { field: String, what: &'static str },

    /// The engine left out a fact it owes us.
    #[error("{what} was not looked up")]
    Missing { what: String },

    #[error("fill in the runtime spec")]
    Spec(#[from] OciSpecError),
}

impl OciError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Invalid { .. } => Kind::Invalid,
            Self::NotFound { .. } => Kind::NotFound,
            Self::Unable { .. } | Self::RecursiveReadonly { .. } => Kind::Unimplemented,
            Self::Host { .. } => Kind::FailedPrecondition,
            Self::Missing { .. } | Self::Spec(_) => Kind::Internal,
        }
    }

    /// The field it names.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Invalid { field, .. }
            | Self::NotFound { field, .. }
            | Self::Unable { field, .. }
            | Self::RecursiveReadonly { field, .. }
            | Self::Host { field, .. } => Some(field),
            Self::Missing { .. } | Self::Spec(_) => None,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }
}

pub type Result<T, E = OciError> = std::result::Result<T, E>;
