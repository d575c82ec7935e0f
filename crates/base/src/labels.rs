use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// What users pin to pods, containers and images. Ordered, so that listings and
/// generated files do not change from run to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(pub BTreeMap<String, String>);

impl Labels {
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The empty selector takes everything.
    pub fn matches(&self, selector: &Selector) -> bool {
        selector.0.iter().all(|term| term.takes(self))
    }

    /// Ours, overlaid by `other` where both have a key.
    #[must_use]
    pub fn overlaid_by(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

impl From<HashMap<String, String>> for Labels {
    fn from(map: HashMap<String, String>) -> Self {
        map.into_iter().collect()
    }
}

impl From<Labels> for HashMap<String, String> {
    fn from(labels: Labels) -> Self {
        labels.0.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Labels {
    type Item = (&'a String, &'a String);
    type IntoIter = std::collections::btree_map::Iter<'a, String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// All terms must hold. CRI's selectors are maps of equals; Docker's filters are
/// written `key` or `key=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(pub Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    Has(String),
    Equals(String, String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label filter {0:?} has no key")]
pub struct SelectorError(String);

impl Term {
    fn takes(&self, labels: &Labels) -> bool {
        match self {
            Self::Has(key) => labels.0.contains_key(key),
            Self::Equals(key, value) => labels.get(key) == Some(value),
        }
    }
}

impl FromStr for Term {
    type Err = SelectorError;

    /// Only the first `=` separates: values may hold more of them.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let term = match text.split_once('=') {
            Some((key, value)) => Self::Equals(key.to_owned(), value.to_owned()),
            None => Self::Has(text.to_owned()),
        };
        match &term {
            Self::Has(key) | Self::Equals(key, _) if key.is_empty() => {
                Err(SelectorError(text.to_owned()))
            }
            _ => Ok(term),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(key) => f.write_str(key),
            Self::Equals(key, value) => write!(f, "{key}={value}"),
        }
    }
}

impl FromIterator<Term> for Selector {
    fn from_iter<I: IntoIterator<Item = Term>>(terms: I) -> Self {
        Self(terms.into_iter().collect())
    }
}

/// As CRI sends it: every pair must be there with that very value.
impl FromIterator<(String, String)> for Selector {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        pairs.into_iter().map(|(key, value)| Term::Equals(key, value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(filters: &[&str], want: bool) {
        let labels: Labels =
            [("app", "web"), ("empty", ""), ("sum", "1+1=2")].into_iter().collect();
        let selector: Selector = filters.iter().map(|f| f.parse::<Term>().unwrap()).collect();
        assert_eq!(labels.matches(&selector), want, "{filters:?}");
    }

    #[test]
    fn selectors() {
        check(&[], true);
        check(&["app"], true);
        check(&["app=web"], true);
        check(&["app=web", "empty"], true);
        check(&["app=web", "tier"], false);
        check(&["app=db"], false);
        check(&["app="], false);
        check(&["empty="], true);
        check(&["sum=1+1=2"], true);
    }

    #[test]
    fn a_filter_needs_a_key() {
        assert_eq!("=x".parse::<Term>(), Err(SelectorError("=x".into())));
        assert_eq!("".parse::<Term>(), Err(SelectorError(String::new())));
    }

    #[test]
    fn terms_print_as_written() {
        for text in ["app", "app=", "app=a=b"] {
            assert_eq!(text.parse::<Term>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn overlay_prefers_the_upper() {
        let upper: Labels = [("a", "2")].into_iter().collect();
        let lower: Labels = [("a", "1"), ("b", "1")].into_iter().collect();
        assert_eq!(lower.overlaid_by(upper), [("a", "2"), ("b", "1")].into_iter().collect());
    }

    #[test]
    fn serde_is_a_plain_map() {
        let labels: Labels = [("b", "1"), ("a", "2")].into_iter().collect();
        assert_eq!(serde_json::to_string(&labels).unwrap(), r#"{"a":"2","b":"1"}"#);
    }
}
