use std::{path::PathBuf, sync::Arc};

use base::Kind;

/// Why the store refused. Cloneable, because one failed commit answers a whole group.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "state directory {dir} is in use by another process: stop that one or choose another root"
    )]
    Locked { dir: PathBuf },

    #[error("{path} is busy: another process holds a lock on it")]
    Busy { path: PathBuf },

    #[error("{path} cannot be written: remount its file system read-write or choose another root")]
    ReadOnly { path: PathBuf },

    #[error("no space left for {path}: free some on its file system")]
    Full { path: PathBuf },

    #[error("{path} is not a state database of this program: move it away to start empty")]
    NotDatabase { path: PathBuf },

    #[error("{path} is damaged: restore a copy, or move it away to start empty")]
    Corrupt { path: PathBuf, source: Cause },

    #[error(
        "{path} has schema {found} and this program knows up to {known}: \
         install the newer program again, or move the file away to start empty"
    )]
    NewerSchema { path: PathBuf, found: u32, known: u32 },

    #[error(
        "table {table} of {path} holds records of version {found} and this program knows up to \
         {known}: install the newer program again, or move the file away to start empty"
    )]
    NewerRecords { path: PathBuf, table: &'static str, found: u32, known: u32 },

    #[error("encode record {key:?} of table {table}")]
    Encode { table: &'static str, key: String, source: Arc<serde_json::Error> },

    #[error("record {key:?} of table {table} has {bytes} bytes: the limit is {limit}")]
    TooLarge { table: &'static str, key: String, bytes: usize, limit: usize },

    #[error("table {table} is already open with another record type")]
    TableTaken { table: &'static str },

    #[error("table {table} belongs to another store than the batch")]
    ForeignTable { table: &'static str },

    #[error("state store is closed")]
    Closed,

    #[error("state store has failed")]
    Failed(#[source] Arc<StoreError>),

    #[error("thread {thread} of the state store panicked")]
    Panicked { thread: &'static str },

    #[error("{doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: Arc<std::io::Error> },

    #[error("{doing} {path}")]
    Database { doing: &'static str, path: PathBuf, source: Cause },
}

/// An error of the database library, which callers may print but not name.
pub(crate) type Cause = Arc<dyn std::error::Error + Send + Sync>;

impl StoreError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Locked { .. } | Self::Busy { .. } | Self::Closed => Kind::Unavailable,
            Self::Failed(_) => Kind::Unavailable,
            Self::ReadOnly { .. } | Self::NewerSchema { .. } | Self::NewerRecords { .. } => {
                Kind::FailedPrecondition
            }
            Self::Full { .. } => Kind::ResourceExhausted,
            Self::Encode { .. } | Self::TooLarge { .. } => Kind::Invalid,
            Self::Io { source, .. } => Kind::from(source.as_ref()),
            Self::NotDatabase { .. }
            | Self::Corrupt { .. }
            | Self::TableTaken { .. }
            | Self::ForeignTable { .. }
            | Self::Panicked { .. }
            | Self::Database { .. } => Kind::Internal,
        }
    }

    /// Whether the database is as it was before the write that met this error, so that
    /// the next write may be tried. After anything else memory and disk may disagree.
    pub(crate) fn leaves_state_intact(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Busy { .. })
    }

    /// Names the step that failed: `.map_err(StoreError::io("open", &path))`. A full or
    /// read-only file system is told as such, whichever step met it.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        use std::io::ErrorKind;
        move |source| match source.kind() {
            ErrorKind::StorageFull => Self::Full { path: path.into() },
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path: path.into() },
            _ => Self::Io { doing, path: path.into(), source: Arc::new(source) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_path_and_the_remedy() {
        let check = |error: StoreError, want: &str| assert_eq!(error.to_string(), want);
        let path = || PathBuf::from("/var/lib/longshore/state.db");
        check(
            StoreError::NewerSchema { path: path(), found: 9, known: 1 },
            "/var/lib/longshore/state.db has schema 9 and this program knows up to 1: \
             install the newer program again, or move the file away to start empty",
        );
        check(
            StoreError::Full { path: path() },
            "no space left for /var/lib/longshore/state.db: free some on its file system",
        );
    }

    #[test]
    fn io_errors_become_causes() {
        use std::io::{Error, ErrorKind};
        let check = |io: ErrorKind, want| {
            assert_eq!(StoreError::io("open", "/x")(Error::from(io)).kind(), want, "{io}");
        };
        check(ErrorKind::StorageFull, Kind::ResourceExhausted);
        check(ErrorKind::ReadOnlyFilesystem, Kind::FailedPrecondition);
        check(ErrorKind::NotFound, Kind::Internal);
    }
}
