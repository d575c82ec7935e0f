//! Names of images, as Docker users write them and as registries know them.
//!
//! ```text
//! busybox                      docker.io/library/busybox:latest
//! quay.io/a/b@sha256:…         quay.io/a/b@sha256:…              (no tag is made up)
//! localhost:5000/x:1@sha256:…  localhost:5000/x:1@sha256:…       (the digest decides)
//! └ registry    ┘└path┘└tag┘└digest┘
//! ```
//!
//! **Invariant:** an [`ImageRef`] is normalised: it has a registry, and a tag or a digest
//! or both. Two references are the same image name exactly when they are equal.

mod grammar;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use crate::{
    digest::{Digest, DigestError},
    hex,
    text::serde_as_text,
};

const DEFAULT_REGISTRY: &str = "docker.io";
/// What Docker called the same registry in its first years.
const LEGACY_REGISTRY: &str = "index.docker.io";
const OFFICIAL: &str = "library/";
const DEFAULT_TAG: &str = "latest";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefError {
    #[error("the image name is empty")]
    Empty,
    #[error("{0:?} is an image id, not a name")]
    IdLike(String),
    #[error("image name {0:?} has upper-case letters")]
    UpperCase(String),
    #[error("{0:?} is not a registry host")]
    Registry(String),
    #[error("{0:?} is not a repository name")]
    Path(String),
    #[error("repository name of {0} characters is longer than {max}", max = grammar::MAX_PATH)]
    TooLong(usize),
    #[error("{0:?} is not a tag")]
    Tag(String),
    #[error("image name {name:?}")]
    Digest { name: String, source: DigestError },
}

/// Where images of one name live: `docker.io` + `library/busybox`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository {
    registry: Box<str>,
    path: Box<str>,
}

impl Repository {
    /// Host and port, `docker.io` where none was written.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// As people write it: without `docker.io/` and `library/`, unless the rest would
    /// then be read as another name.
    pub fn familiar(&self) -> String {
        if &*self.registry != DEFAULT_REGISTRY {
            return self.to_string();
        }
        let short = match self.path.strip_prefix(OFFICIAL) {
            Some(name) if !name.contains('/') => name,
            _ => &self.path,
        };
        if split_registry(short).0.is_some() { self.to_string() } else { short.to_owned() }
    }
}

/// Without tag and digest.
impl FromStr for Repository {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        if text.is_empty() {
            return Err(ImageRefError::Empty);
        }
        let (registry, path) = split_registry(text);
        let registry = match registry {
            None | Some(LEGACY_REGISTRY) => DEFAULT_REGISTRY,
            Some(host) => host,
        };
        if !grammar::is_registry(registry) {
            return Err(ImageRefError::Registry(registry.to_owned()));
        }
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(ImageRefError::UpperCase(path.to_owned()));
        }
        if !grammar::is_path(path) {
            return Err(ImageRefError::Path(path.to_owned()));
        }
        let official = registry == DEFAULT_REGISTRY && !path.contains('/');
        let path = if official { format!("{OFFICIAL}{path}") } else { path.to_owned() };
        if path.len() > grammar::MAX_PATH {
            return Err(ImageRefError::TooLong(path.len()));
        }
        Ok(Self { registry: registry.into(), path: path.into() })
    }
}

/// The first part is a host if it looks like one: a dot, a port, `localhost`, or an
/// upper-case letter, which no path may have.
fn split_registry(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((host, rest))
            if host == "localhost"
                || host.bytes().any(|b| matches!(b, b'.' | b':') || b.is_ascii_uppercase()) =>
        {
            (Some(host), rest)
        }
        _ => (None, name),
    }
}

/// Canonical: always with the registry.
impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Box<str>);

impl Tag {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        if grammar::is_tag(text) {
            Ok(Self(text.into()))
        } else {
            Err(ImageRefError::Tag(text.to_owned()))
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A normalised image name. See the module for what normal is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageRef {
    repository: Repository,
    tag: Option<Tag>,
    digest: Option<Digest>,
}

impl ImageRef {
    pub fn tagged(repository: Repository, tag: Tag) -> Self {
        Self { repository, tag: Some(tag), digest: None }
    }

    pub fn pinned(repository: Repository, digest: Digest) -> Self {
        Self { repository, tag: None, digest: Some(digest) }
    }

    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    pub fn tag(&self) -> Option<&Tag> {
        self.tag.as_ref()
    }

    /// If there is one, it says which image is meant, whatever the tag says.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// As people write it: `busybox:latest`. Parses back to the same reference.
    pub fn familiar(&self) -> String {
        let Self { repository, tag, digest } = self;
        format!("{}{}", repository.familiar(), Suffix(tag.as_ref(), digest.as_ref()))
    }
}

impl FromStr for ImageRef {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        // Docker's rule: whoever writes 64 digits means an id, and gets no such name.
        if text.len() == 64 && hex::is_lower_hex(text) {
            return Err(ImageRefError::IdLike(text.to_owned()));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name, None),
        };
        let repository = name.parse()?;
        let digest = digest
            .map(Digest::from_str)
            .transpose()
            .map_err(|source| ImageRefError::Digest { name: text.to_owned(), source })?;
        let tag = match (tag, &digest) {
            (None, Some(_)) => None,
            (tag, _) => Some(tag.unwrap_or(DEFAULT_TAG).parse()?),
        };
        Ok(Self { repository, tag, digest })
    }
}

serde_as_text!(ImageRef, Repository, Tag);

/// Canonical: `docker.io/library/busybox:latest`.
impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repository, tag, digest } = self;
        write!(f, "{repository}{}", Suffix(tag.as_ref(), digest.as_ref()))
    }
}

struct Suffix<'a>(Option<&'a Tag>, Option<&'a Digest>);

impl fmt::Display for Suffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tag) = self.0 {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = self.1 {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// What a user may mean by an image in `inspect`, `rm` or a CRI `ImageSpec`: an id, a
/// name, or a piece of an id that may just as well be a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageQuery {
    /// A whole id, written bare or as `sha256:…`.
    Id(Digest),
    /// Look for the name first, then for the one id that starts with these digits.
    NameOrPrefix {
        name: ImageRef,
        id_prefix: String,
    },
    Name(ImageRef),
}

impl FromStr for ImageQuery {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        if let Ok(id) = text.parse().or_else(|_| format!("sha256:{text}").parse()) {
            return Ok(Self::Id(id));
        }
        let name = text.parse()?;
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if !digits.is_empty() && digits.len() < 64 && hex::is_lower_hex(digits) {
            return Ok(Self::NameOrPrefix { name, id_prefix: digits.to_owned() });
        }
        Ok(Self::Name(name))
    }
}
