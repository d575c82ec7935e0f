use std::{error::Error, fmt, io, path::PathBuf, sync::Arc, time::Duration};

use base::{Chain, Digest, Kind};

use super::hosts::HostsError;

/// An error of the HTTP or TLS library, which callers may print but not name.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// Why one server did not give what it was asked for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("connect")]
    Connect(#[source] Cause),
    #[error("proxy {proxy}")]
    Proxy { proxy: String, source: Box<Refusal> },
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("no progress within {0:?}")]
    Stalled(Duration),
    #[error("connection broke")]
    Broken(#[source] Cause),
    #[error("ended {missing} bytes early")]
    Truncated { missing: u64 },
    #[error("answered {status}{}", Says(.message))]
    Status { status: u16, message: String, retry_after: Option<Duration> },
    #[error("unauthorized{}", Says(.message))]
    Unauthorized { message: String },
    #[error("token service {realm}")]
    Token { realm: String, source: Box<Refusal> },
    #[error("token service gave no token")]
    NoToken,
    #[error("asks to send the password to {realm} in the clear")]
    ClearRealm { realm: String },
    #[error("would send {got} bytes and not {want}")]
    Length { want: u64, got: u64 },
    #[error("sent more than the {limit} bytes allowed here")]
    TooLarge { limit: u64 },
    #[error("sent {got} for {want}")]
    Digest { want: Digest, got: Digest },
    #[error("cannot go on at byte {0}")]
    Range(u64),
    #[error("redirects {0}")]
    Redirect(String),
    #[error("{0}")]
    Protocol(String),
    #[error("read {path}")]
    File { path: PathBuf, source: Arc<io::Error> },
    #[error("configuration: {0}")]
    Config(String),
}

/// What the registry itself said, if it said anything.
struct Says<'a>(&'a str);

impl fmt::Display for Says<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

impl Refusal {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Status { status: 404 | 410, .. } => Kind::NotFound,
            Self::Status { status: 403, .. } | Self::Unauthorized { .. } => {
                Kind::FailedPrecondition
            }
            Self::ClearRealm { .. } | Self::File { .. } | Self::Config(_) => {
                Kind::FailedPrecondition
            }
            Self::TooLarge { .. } => Kind::Invalid,
            Self::Token { source, .. } | Self::Proxy { source, .. } => source.kind(),
            _ => Kind::Unavailable,
        }
    }

    /// Whether the same server may answer better in a moment.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Silent(_) | Self::Stalled(_) | Self::Broken(_) => true,
            Self::Truncated { .. } => true,
            Self::Status { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Self::Token { source, .. } | Self::Proxy { source, .. } => source.is_transient(),
            _ => false,
        }
    }

    /// Whether the server could not be reached or kept us waiting: the next request will
    /// likely fare no better.
    pub fn is_hang(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Silent(_) | Self::Stalled(_) => true,
            Self::Proxy { source, .. } => source.is_hang(),
            _ => false,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Token { source, .. } | Self::Proxy { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}

/// No server gave what was asked for. Says what each of them answered last.
#[derive(Clone, Debug)]
pub struct RegistryError {
    pub what: String,
    /// In the order they were tried; the registry itself is the last.
    pub attempts: Vec<(String, Refusal)>,
}

impl RegistryError {
    /// The registry's own answer decides, its mirrors' do not: they may be behind. But if
    /// it could not be asked at all, a mirror's word is all there is.
    pub fn kind(&self) -> Kind {
        self.attempts.last().map_or(Kind::Internal, |(_, refusal)| refusal.kind())
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The kubelet looks for this word at the beginning.
        if self.kind() == Kind::Unavailable {
            f.write_str("RegistryUnavailable: ")?;
        }
        write!(f, "fetch {}", self.what)?;
        for (at, (host, refusal)) in self.attempts.iter().enumerate() {
            let separator = if at == 0 { ": " } else { "; " };
            write!(f, "{separator}{host} {}", Chain(refusal))?;
        }
        if self.attempts.is_empty() {
            f.write_str(": no server of this registry may be asked")?;
        }
        Ok(())
    }
}

impl Error for RegistryError {}

/// Before any server could be asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Hosts(#[from] HostsError),
    #[error("credentials: {0}")]
    Credentials(#[from] super::credentials::AuthConfigError),
}

impl SetupError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Hosts(HostsError::Name { .. }) | Self::Credentials(_) => Kind::Invalid,
            Self::Hosts(_) => Kind::FailedPrecondition,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, message: &str) -> Refusal {
        Refusal::Status { status, message: message.to_owned(), retry_after: None }
    }

    #[track_caller]
    fn check(refusals: &[Refusal], kind: Kind, want: &str) {
        let attempts = refusals.iter().enumerate();
        let attempts = attempts.map(|(at, refusal)| (format!("https://h{at}"), refusal.clone()));
        let error = RegistryError { what: "a:b".to_owned(), attempts: attempts.collect() };
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, want));
    }

    #[test]
    fn the_registry_decides_and_everybody_is_quoted() {
        check(
            &[status(500, ""), status(404, "no such tag")],
            Kind::NotFound,
            "fetch a:b: https://h0 answered 500; https://h1 answered 404: no such tag",
        );
        check(
            &[status(404, ""), Refusal::Silent(Duration::from_secs(1))],
            Kind::Unavailable,
            "RegistryUnavailable: fetch a:b: https://h0 answered 404; \
             https://h1 no answer within 1s",
        );
        check(
            &[Refusal::Unauthorized { message: String::new() }],
            Kind::FailedPrecondition,
            "fetch a:b: https://h0 unauthorized",
        );
    }

    #[test]
    fn transient_is_what_time_may_heal() {
        let check = |refusal: Refusal, want| assert_eq!(refusal.is_transient(), want, "{refusal}");
        check(status(503, ""), true);
        check(status(429, ""), true);
        check(status(404, ""), false);
        check(Refusal::Truncated { missing: 1 }, true);
        check(Refusal::Length { want: 1, got: 2 }, false);
        let token = |source| Refusal::Token { realm: "r".to_owned(), source: Box::new(source) };
        check(token(status(502, "")), true);
        check(token(status(400, "")), false);
    }
}
