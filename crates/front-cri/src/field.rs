//! One field of a request: when it is unset, when it is refused, and how it is named.
//!
//! A translation of a nested message knows its own fields only; whoever calls it puts the
//! place in front with [`Under`], so that the client reads `mounts[2].propagation: …`.

use std::{fmt, path::PathBuf};

pub(crate) type Result<T, E = Invalid> = std::result::Result<T, E>;

/// What cannot be meant, named as the CRI spells it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("{path}: {why}")]
    Field { path: String, why: String },

    /// A text that clients know from other runtimes.
    #[error("{0}")]
    Request(&'static str),
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Field { path: field.into(), why: why.to_string() }
    }
}

pub(crate) trait Under {
    /// Puts the place of the message in front of the field's name.
    fn under(self, parent: impl fmt::Display) -> Self;
}

impl<T> Under for Result<T> {
    fn under(self, parent: impl fmt::Display) -> Self {
        self.map_err(|invalid| match invalid {
            Invalid::Field { path, why } => {
                Invalid::Field { path: format!("{parent}.{path}"), why }
            }
            known @ Invalid::Request(_) => known,
        })
    }
}

/// Zero and empty are how proto3 says "not given".
pub(crate) fn set<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

pub(crate) fn path(text: String) -> Option<PathBuf> {
    set(text).map(PathBuf::from)
}

/// The value of an enum, if this version of the contract has it.
pub(crate) fn known<E: TryFrom<i32>>(field: &'static str, number: i32) -> Result<E> {
    E::try_from(number).map_err(|_| Invalid::new(field, format_args!("unknown value {number}")))
}

/// A number that the wire gives more room than it has.
pub(crate) fn number<W, T>(field: &'static str, value: W) -> Result<T>
where
    W: Copy + fmt::Display,
    T: TryFrom<W>,
{
    T::try_from(value).map_err(|_| Invalid::new(field, format_args!("{value} is out of range")))
}

pub(crate) fn not_empty(field: &'static str, text: String) -> Result<String> {
    if text.is_empty() { Err(Invalid::new(field, "must not be empty")) } else { Ok(text) }
}

/// Refuses what is there only for Windows nodes, unless it says nothing.
pub(crate) fn not_windows<T: Default + PartialEq>(message: Option<T>) -> Result<()> {
    match message.and_then(set) {
        None => Ok(()),
        Some(_) => Err(Invalid::new("windows", "this is a Linux node")),
    }
}

#[cfg(test)]
mod tests {
    use api_cri::v1::NamespaceMode;

    use super::*;

    #[track_caller]
    fn check<T: fmt::Debug>(result: Result<T>, want: &str) {
        assert_eq!(result.unwrap_err().to_string(), want);
    }

    #[test]
    fn places_are_put_in_front() {
        let inner: Result<()> = Err(Invalid::new("pid", "unknown value 9"));
        let outer = inner.under("namespace_options").under(format_args!("containers[{}]", 2));
        check(outer, "containers[2].namespace_options.pid: unknown value 9");
        let whole: Result<()> = Err(Invalid::Request("no such thing"));
        check(whole.under("config"), "no such thing");
    }

    #[test]
    fn zero_is_unset() {
        assert_eq!(set(0), None);
        assert_eq!(set(-1), Some(-1));
        assert_eq!(set(String::new()), None);
        assert_eq!(path("/a".into()), Some("/a".into()));
        assert_eq!(path(String::new()), None);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        assert_eq!(known("pid", 3), Ok(NamespaceMode::Target));
        check(known::<NamespaceMode>("pid", 4), "pid: unknown value 4");
        assert_eq!(number("n", 7_i64), Ok(7_u32));
        check(number::<i64, u32>("n", -1), "n: -1 is out of range");
        check(not_empty("id", String::new()), "id: must not be empty");
        assert_eq!(not_windows(Some(0)), Ok(()));
        check(not_windows(Some(1)), "windows: this is a Linux node");
    }
}
