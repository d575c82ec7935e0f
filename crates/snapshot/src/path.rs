//! Names in archives, cleaned. A clean path is its components joined by single slashes,
//! none of them `.` or `..`; the empty one is the root.

use crate::{
    ApplyError, Limited, Limits, Refusal,
    layer::{OPAQUE, WHITEOUT},
    limits::{self, NAME_BYTES},
};

/// What an entry's name makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Root,
    Node(Vec<u8>),
    /// This name is gone in the layers below.
    Whiteout(Vec<u8>),
    /// All that the layers below have in this directory is gone.
    Opaque(Vec<u8>),
    /// Notes of the file system that layers were once made with.
    Ignored,
}

/// `.wh..wh.aufs`, `.wh..wh.plnk/…`: nothing of ours.
const NOTES: &[u8] = b".wh..wh.";

pub(crate) fn meaning(name: &[u8], limits: &Limits) -> Result<Meaning, ApplyError> {
    let path = clean(name, limits)?;
    if path.is_empty() {
        return Ok(Meaning::Root);
    }
    let (dir, last) = split(&path);
    if last == OPAQUE && !is_special(dir) {
        return Ok(Meaning::Opaque(dir.to_vec()));
    }
    if components(&path).any(|part| part.starts_with(NOTES)) {
        return Ok(Meaning::Ignored);
    }
    if is_special(dir) {
        return Err(ApplyError::refused(name, Refusal::BelowWhiteout));
    }
    match last.strip_prefix(WHITEOUT) {
        None => Ok(Meaning::Node(path)),
        Some(b"" | b"." | b"..") => Err(ApplyError::refused(name, Refusal::EmptyWhiteout)),
        Some(hidden) => Ok(Meaning::Whiteout(join(dir, hidden))),
    }
}

/// The name of an entry or of what a hard link links to.
pub(crate) fn clean(name: &[u8], limits: &Limits) -> Result<Vec<u8>, ApplyError> {
    if name.is_empty() {
        return Err(ApplyError::refused(name, Refusal::NoName));
    }
    if name.len() > NAME_BYTES {
        return Err(limits::limit(Limited::NameBytes, NAME_BYTES as u64));
    }
    if name.contains(&0) {
        return Err(ApplyError::refused(name, Refusal::Nul));
    }
    let parts: Vec<_> = components(name).filter(|&part| part != b".").collect();
    if parts.iter().any(|&part| part == b"..") {
        return Err(ApplyError::refused(name, Refusal::DotDot));
    }
    if parts.iter().any(|part| part.len() > 255) {
        return Err(ApplyError::refused(name, Refusal::LongName));
    }
    if parts.len() > limits.depth {
        return Err(limits::limit(Limited::Depth, limits.depth as u64));
    }
    Ok(parts.join(&b'/'))
}

fn is_special(path: &[u8]) -> bool {
    components(path).any(|part| part.starts_with(WHITEOUT))
}

pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|part| !part.is_empty())
}

/// Directory and last name of a clean path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        [] => name.to_vec(),
        dir => [dir, b"/", name].concat(),
    }
}

/// What is left of `path` below `dir`, which is not the root.
pub(crate) fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    path.strip_prefix(dir)?.strip_prefix(b"/")
}

/// From the root down to the directory `path` is in, both included.
pub(crate) fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let root = (!path.is_empty()).then_some(&path[..0]);
    let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
    root.into_iter().chain(slashes.map(|(at, _)| &path[..at]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(name: &str, want: impl Into<Result<Meaning, Refusal>>) {
        let want = want.into();
        let got = meaning(name.as_bytes(), &Limits::default()).map_err(|e| match e {
            ApplyError::Refused { why, .. } => why,
            other => panic!("{name:?}: {other}"),
        });
        assert_eq!(got, want, "{name:?}");
    }

    fn node(path: &str) -> Result<Meaning, Refusal> {
        Ok(Meaning::Node(path.into()))
    }

    #[test]
    fn names_are_cleaned() {
        for root in [".", "./", "/", "//", "./."] {
            check(root, Ok(Meaning::Root));
        }
        check("a", node("a"));
        check("./a/b", node("a/b"));
        check("/a//b/./c/", node("a/b/c"));
        check("...", node("..."));
        check(".wh", node(".wh"));
        check(".WH.a", node(".WH.a"));
        check("a/.wh.b", Ok(Meaning::Whiteout(b"a/b".into())));
        check(".wh.b/", Ok(Meaning::Whiteout(b"b".into())));
        check(".wh..b", Ok(Meaning::Whiteout(b".b".into())));
        check("a/.wh..wh..opq", Ok(Meaning::Opaque(b"a".into())));
        check(".wh..wh..opq", Ok(Meaning::Opaque(b"".into())));
        check(".wh..wh.aufs", Ok(Meaning::Ignored));
        check(".wh..wh.plnk/1.2", Ok(Meaning::Ignored));
        check("a/.wh..wh.orph", Ok(Meaning::Ignored));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        check("", Err(Refusal::NoName));
        check("a\0b", Err(Refusal::Nul));
        for name in ["..", "../a", "a/..", "a/../b", "/..", "./../a", "a/../../b"] {
            check(name, Err(Refusal::DotDot));
        }
        for name in [".wh.", "a/.wh.", ".wh..", "a/.wh...", ".wh.../"] {
            check(name, Err(Refusal::EmptyWhiteout));
        }
        check(".wh.a/b", Err(Refusal::BelowWhiteout));
        check(".wh.a/.wh.b", Err(Refusal::BelowWhiteout));
    }

    #[test]
    fn limits_hold() {
        let limits = Limits { depth: 3, ..Limits::default() };
        assert!(clean(b"a/b/c", &limits).is_ok());
        assert!(clean(b"./a/./b/c/", &limits).is_ok());
        let error = clean(b"a/b/c/d", &limits).unwrap_err();
        assert_eq!(error.to_string(), "layer has more than 3 directories on the way to an entry");
        let error = clean(&[b'a'; 4096], &limits).unwrap_err();
        assert_eq!(error.to_string(), "layer has more than 4095 bytes in the name of an entry");
    }

    #[test]
    fn relations() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
        assert_eq!(below(b"a/b/c", b"a"), Some(&b"b/c"[..]));
        assert_eq!(below(b"ab/c", b"a"), None);
        let all: Vec<_> = ancestors(b"a/b/c").collect();
        assert_eq!(all, [&b""[..], b"a", b"a/b"]);
        assert_eq!(ancestors(b"").count(), 0);
    }

    proptest! {
        #[test]
        fn clean_paths_stay_below_and_stay_clean(name in "[a./]{0,20}") {
            if let Ok(path) = clean(name.as_bytes(), &Limits::default()) {
                prop_assert!(components(&path).all(|part| part != b"." && part != b".."));
                prop_assert!(!path.starts_with(b"/") && !path.ends_with(b"/"));
                if !path.is_empty() {
                    prop_assert_eq!(clean(&path, &Limits::default()).unwrap(), path.clone());
                    let (dir, last) = split(&path);
                    prop_assert_eq!(join(dir, last), path);
                }
            }
        }

        #[test]
        fn no_name_panics(name: Vec<u8>) {
            let _ = meaning(&name, &Limits::default());
        }
    }
}
