//! Who a plugin is: a place in the order and a name, as in `10-device-injector`.

use std::{fmt, str::FromStr, sync::Arc};

/// Two digits and a name. Plugins are asked in this order; its text form is what owners,
/// metrics and messages call a plugin. Clones share it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginId {
    /// As the index has two digits, this is also the order.
    text: Arc<str>,
}

const INDEX_LEN: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("invalid plugin index {0:?}: it must be two digits")]
    Index(String),
    #[error("invalid plugin name {0:?}: it must be letters, digits and any of '_', '.', '+', '-'")]
    Name(String),
    #[error("invalid plugin {0:?}: it must be NN-name")]
    Form(String),
}

impl PluginId {
    pub fn new(index: &str, name: &str) -> Result<Self, IdentityError> {
        if index.len() != INDEX_LEN || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IdentityError::Index(index.to_owned()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-');
        match !name.is_empty() && name.chars().all(allowed) {
            true => Ok(Self { text: format!("{index}-{name}").into() }),
            false => Err(IdentityError::Name(name.to_owned())),
        }
    }

    /// The two digits.
    pub fn index(&self) -> &str {
        &self.text[..INDEX_LEN]
    }

    /// Without the index.
    pub fn name(&self) -> &str {
        &self.text[INDEX_LEN + 1..]
    }

    /// Whether somebody who says `name` means this plugin: by its bare name or by `NN-name`.
    pub fn is_called(&self, name: &str) -> bool {
        self.name() == name || self.as_str() == name
    }

    /// Its text form.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for PluginId {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let (index, name) =
            text.split_once('-').ok_or_else(|| IdentityError::Form(text.to_owned()))?;
        Self::new(index, name)
    }
}

impl fmt::Display for PluginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for PluginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PluginId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str) {
        assert!(text.parse::<PluginId>().is_err(), "{text}");
    }

    #[test]
    fn text_form_is_index_and_name() {
        let id: PluginId = "10-abcd-0123+EFGH_4567.ijkl".parse().unwrap();
        assert_eq!((id.index(), id.name()), ("10", "abcd-0123+EFGH_4567.ijkl"));
        assert_eq!(id.to_string(), "10-abcd-0123+EFGH_4567.ijkl");
        for text in ["", "10", "10-", "1-a", "100-a", "ab-c", "1٣-a", "10-foo,bar", "10-a/b"] {
            refused(text);
        }
    }

    #[test]
    fn order_is_by_index_then_name() {
        let mut ids: Vec<PluginId> =
            ["10-b", "09-z", "10-a"].iter().map(|text| text.parse().unwrap()).collect();
        ids.sort();
        let texts: Vec<_> = ids.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["09-z", "10-a", "10-b"]);
    }
}
