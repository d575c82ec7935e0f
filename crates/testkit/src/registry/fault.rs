use std::time::Duration;

use base::Digest;

/// What to do wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answer with this, and an error of that name in the body.
    Status(u16),
    /// 429 with a `Retry-After` of so many seconds.
    TooMany { retry_after: u64 },
    /// Never answer.
    Hang,
    /// Take so long to begin.
    AnswerAfter(Duration),
    /// Pause between pieces of so many bytes.
    Slow { piece: usize, pause: Duration },
    /// Send that much of the body, then nothing, with the connection open.
    StallAfter(usize),
    /// Send that much of the body, then close.
    TruncateAfter(usize),
    /// Bytes of the right number that are not the right ones.
    WrongBytes,
    /// Announce and send more than there is.
    TooLong,
    /// Send more than there is, announcing nothing.
    TooLongChunked,
    /// 307 to the same path below this URL.
    Redirect(String),
    /// Answer a range with all of it.
    IgnoreRange,
    /// Answer a range with 416.
    RefuseRange,
    /// Say it is the range and send the beginning.
    LieAboutRange,
    /// Send another range than was asked for, and say so.
    OtherRange,
    /// No `Docker-Content-Digest`, HEAD not allowed.
    NoDigest,
    /// Claim this is the digest.
    ClaimDigest(Digest),
}

/// Which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Everything,
    Manifests,
    Blobs,
    Blob(Digest),
    Token,
}

#[derive(Debug)]
pub(crate) struct Armed {
    pub(crate) target: Target,
    pub(crate) fault: Fault,
    pub(crate) left: usize,
}

impl Target {
    pub(crate) fn is(&self, path: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Manifests => path.contains("/manifests/"),
            Self::Blobs => path.contains("/blobs/"),
            Self::Blob(digest) => path.ends_with(&format!("/blobs/{digest}")),
            Self::Token => path == "/token",
        }
    }
}
