//! Why the network refused or failed, by cause.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use base::{Chain, Id, Kind};
use store::StoreError;

use crate::{
    cidr::CidrError, conf::ConfError, ports::PortMapping, program::Verb, result::ResultError,
    template::TemplateError,
};

#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("no network is ready: {why}")]
    NotReady { why: String },

    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },

    #[error("pod cidr")]
    PodCidr(#[from] CidrError),

    #[error("host port {port} is taken by pod {holder}")]
    PortTaken { port: PortMapping, holder: Id },

    #[error("pod {id} is attached to its networks already")]
    AlreadyAttached { id: Id },

    #[error("pod {id} is not attached to a network")]
    NotAttached { id: Id },

    #[error("network namespace {}: {why}", path.display())]
    Namespace { path: PathBuf, why: &'static str },

    #[error("network namespace {}", path.display())]
    Kernel { path: PathBuf, source: sys::Error },

    #[error("{verb} of network {network} by {program}")]
    Program { verb: Verb, network: String, program: String, source: ProgramError },

    #[error("network {network} gave the pod no address")]
    NoAddress { network: String },

    /// More than one, of several networks or programs.
    #[error("{}", all(failures))]
    Several { failures: Vec<NetError> },

    #[error("{undo}; not all of it could be undone yet, which is tried again")]
    NotUndone { undo: String, source: Box<NetError> },

    #[error("stopped, because the pod is to go or the daemon ends")]
    Stopped,

    #[error("pods come and go without a pause: no garbage was collected")]
    Busy,

    #[error("the work on this network ended unexpectedly")]
    Died,

    #[error("template of the network configuration")]
    Template(#[from] TemplateError),

    #[error("configuration made from the template")]
    Rendered(#[source] ConfError),

    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },

    #[error("remember the networks of a pod")]
    Store(#[from] StoreError),
}

/// Why one call of a program gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("there is no such program in {dirs}")]
    Missing { dirs: String },

    #[error("start it")]
    Start(#[source] io::Error),

    #[error("talk to it")]
    Talk(#[source] io::Error),

    #[error("this thread is in another network namespace than the daemon")]
    WrongNamespace,

    #[error("it took longer than {limit:?} and was killed{}", having_said(stderr))]
    Timeout { limit: Duration, stderr: String },

    #[error("it was not started: its network has used up {limit:?}")]
    NoTimeLeft { limit: Duration },

    #[error("it was killed, because the pod is to go or the daemon ends")]
    Stopped,

    #[error("it printed more than {limit} bytes and was killed")]
    TooMuch { limit: usize },

    /// It said so itself, in the form CNI prescribes.
    #[error("{message} (code {code})")]
    Refused { code: u32, message: String },

    #[error("it ended with {status}: {said}")]
    Failed { status: ExitStatus, said: String },

    #[error("{said}")]
    Answer { said: String, source: ResultError },
}

// === impl NetError ===

impl NetError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotReady { .. } | Self::Stopped | Self::Busy => Kind::Unavailable,
            Self::Invalid { .. } | Self::PodCidr(_) => Kind::Invalid,
            Self::PortTaken { .. } | Self::Namespace { .. } => Kind::FailedPrecondition,
            Self::AlreadyAttached { .. } => Kind::AlreadyExists,
            Self::NotAttached { .. } => Kind::NotFound,
            Self::Program { source, .. } => source.kind(),
            Self::Several { failures } => failures.first().map_or(Kind::Internal, Self::kind),
            Self::NotUndone { source, .. } => source.kind(),
            Self::Template(_) | Self::Rendered(_) => Kind::FailedPrecondition,
            Self::Io { source, .. } => source.into(),
            Self::Store(source) => source.kind(),
            Self::Kernel { .. } | Self::NoAddress { .. } | Self::Died => Kind::Internal,
        }
    }

    /// `.map_err(NetError::io("list", dir))`
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    pub(crate) fn kernel(path: &Path) -> impl FnOnce(sys::Error) -> Self {
        move |source| Self::Kernel { path: path.to_owned(), source }
    }

    /// `None` if nothing failed.
    pub(crate) fn collect(mut failures: Vec<Self>) -> Option<Self> {
        match failures.len() {
            0 | 1 => failures.pop(),
            _ => Some(Self::Several { failures }),
        }
    }

    /// Tells that the undo after `self` failed too.
    pub(crate) fn not_undone(self, undo: &Self) -> Self {
        Self::NotUndone { undo: Chain(undo).to_string(), source: self.into() }
    }
}

fn all(failures: &[NetError]) -> String {
    let texts: Vec<_> = failures.iter().map(|failure| Chain(failure).to_string()).collect();
    texts.join("; ")
}

/// What a program wrote before it was killed, if anything.
fn having_said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it had said: {stderr}") }
}

// === impl ProgramError ===

impl ProgramError {
    /// The container is unknown: CNI says there is nothing to clean up then.
    const UNKNOWN_CONTAINER: u32 = 3;
    const TRY_AGAIN_LATER: u32 = 11;
    const CANNOT_ADD: u32 = 50;
    const LIMITED: u32 = 51;

    pub fn kind(&self) -> Kind {
        match self {
            Self::Refused {
                code: Self::TRY_AGAIN_LATER | Self::CANNOT_ADD | Self::LIMITED,
                ..
            } => Kind::Unavailable,
            Self::Timeout { .. } | Self::NoTimeLeft { .. } => Kind::Deadline,
            Self::Stopped => Kind::Unavailable,
            Self::Missing { .. } => Kind::FailedPrecondition,
            Self::Start(source) => source.into(),
            _ => Kind::Internal,
        }
    }

    pub(crate) fn is_unknown_container(&self) -> bool {
        matches!(self, Self::Refused { code: Self::UNKNOWN_CONTAINER, .. })
    }
}
