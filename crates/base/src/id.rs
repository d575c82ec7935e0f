use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt,
    hash::{Hash, Hasher},
    ops::Bound,
    str::FromStr,
};

use crate::{hex, kind::Kind, text::serde_as_text};

/// Names a pod or a container for ever: 32 random bytes as 64 lower-case hex digits.
///
/// Kept as text, because that is how every wire, path and map uses it. Ordered, equal
/// and hashed like that text, so that maps of ids are looked up by `&str` too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id([u8; Id::LEN]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an id: 64 lower-case hexadecimal digits")]
pub struct IdError(String);

impl Id {
    pub const LEN: usize = 64;
    pub const SHORT_LEN: usize = 12;

    /// A new one. The short form is never all digits: it becomes a host name, and
    /// resolvers take a number for an address.
    pub fn random() -> Self {
        loop {
            let mut bytes = [0; Self::LEN / 2];
            getrandom::fill(&mut bytes).expect("getrandom(2) cannot fail on Linux 3.17 and later");
            let id = Self::from_bytes(&bytes);
            if !id.short().bytes().all(|b| b.is_ascii_digit()) {
                return id;
            }
        }
    }

    fn from_bytes(bytes: &[u8; Self::LEN / 2]) -> Self {
        let mut text = [0; Self::LEN];
        for (pair, &byte) in text.chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&hex::digits(byte));
        }
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }

    /// The first twelve digits: for people, and for paths that must stay short.
    pub fn short(&self) -> &str {
        &self.as_str()[..Self::SHORT_LEN]
    }
}

impl FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match <[u8; Self::LEN]>::try_from(text.as_bytes()) {
            Ok(digits) if hex::is_lower_hex(text) => Ok(Self(digits)),
            _ => Err(IdError(text.to_owned())),
        }
    }
}

serde_as_text!(Id);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", self.short())
    }
}

// `Borrow` promises the hash of the text.
impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Borrow<str> for Id {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Id {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<std::path::Path> for Id {
    fn as_ref(&self) -> &std::path::Path {
        self.as_str().as_ref()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("the id is empty")]
    Empty,
    #[error("nothing has an id that starts with {0:?}")]
    NotFound(String),
    #[error("several ids start with {0:?}")]
    Ambiguous(String),
}

impl LookupError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Empty | Self::Ambiguous(_) => Kind::Invalid,
            Self::NotFound(_) => Kind::NotFound,
        }
    }
}

/// The one entry whose key starts with `prefix`; a key that *is* `prefix` wins over
/// longer ones. Costs a map lookup, whatever the number of keys.
pub fn by_prefix<'m, K, V>(
    map: &'m BTreeMap<K, V>,
    prefix: &str,
) -> Result<(&'m K, &'m V), LookupError>
where
    K: Borrow<str> + Ord,
{
    if prefix.is_empty() {
        return Err(LookupError::Empty);
    }
    // Keys with this prefix stand together, the exact one first.
    let mut found = map
        .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(|(key, _)| (*key).borrow().starts_with(prefix));
    let first = found.next().ok_or_else(|| LookupError::NotFound(prefix.to_owned()))?;
    if first.0.borrow() != prefix && found.next().is_some() {
        return Err(LookupError::Ambiguous(prefix.to_owned()));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff";

    #[test]
    fn parses_64_lower_hex_and_nothing_else() {
        let check = |text: &str, good: bool| assert_eq!(text.parse::<Id>().is_ok(), good, "{text}");
        check(HEX, true);
        check("", false);
        check(&HEX[1..], false);
        check(&format!("{HEX}0"), false);
        check(&HEX.to_uppercase(), false);
        check(&HEX.replace("00", "0x"), false);
        check(&HEX.replace("ff", "ß"), false); // 64 bytes, not 64 digits
    }

    #[test]
    fn random_ids_are_ids_and_differ() {
        let (a, b) = (Id::random(), Id::random());
        assert_ne!(a, b);
        assert_eq!(a.to_string().parse(), Ok(a));
        assert_eq!(a.short(), &a.as_str()[..12]);
    }

    #[test]
    fn maps_are_looked_up_by_text() {
        let id = Id::random();
        let map = HashMap::from([(id, 1)]);
        assert_eq!(map.get(id.as_str()), Some(&1));
    }

    #[test]
    fn serde_is_text_and_checks() {
        let id: Id = HEX.parse().unwrap();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{HEX}\""));
        assert_eq!(serde_json::from_str::<Id>(&json).unwrap(), id);
        assert!(serde_json::from_str::<Id>("\"nonsense\"").is_err());
    }

    #[track_caller]
    fn check(keys: &[&str], prefix: &str, want: Result<&str, &LookupError>) {
        let map: BTreeMap<String, ()> = keys.iter().map(|key| ((*key).to_owned(), ())).collect();
        let got = by_prefix(&map, prefix).map(|(key, ())| key.as_str());
        assert_eq!(got.as_ref().copied(), want, "{prefix:?} among {keys:?}");
    }

    #[test]
    fn prefix_lookup() {
        let keys = ["abc", "abcd", "b1", "b2", "c"];
        check(&keys, "abc", Ok("abc"));
        check(&keys, "abcd", Ok("abcd"));
        check(&keys, "ab", Err(&LookupError::Ambiguous("ab".into())));
        check(&keys, "b", Err(&LookupError::Ambiguous("b".into())));
        check(&keys, "b2", Ok("b2"));
        check(&keys, "c", Ok("c"));
        check(&keys, "cc", Err(&LookupError::NotFound("cc".into())));
        check(&keys, "a0", Err(&LookupError::NotFound("a0".into())));
        check(&keys, "", Err(&LookupError::Empty));
        check(&[], "a", Err(&LookupError::NotFound("a".into())));
    }

    proptest! {
        #[test]
        fn prefix_lookup_agrees_with_a_scan(
            keys in proptest::collection::btree_map("[ab]{1,5}", 0u8.., 0..12),
            prefix in "[ab]{1,5}",
        ) {
            let hits: Vec<_> = keys.keys().filter(|key| key.starts_with(&prefix)).collect();
            let want = match hits[..] {
                _ if keys.contains_key(&prefix) => Ok(&prefix),
                [] => Err(LookupError::NotFound(prefix.clone())),
                [only] => Ok(only),
                _ => Err(LookupError::Ambiguous(prefix.clone())),
            };
            prop_assert_eq!(by_prefix(&keys, &prefix).map(|(key, _)| key), want);
        }
    }
}
