//! Entries of an adjustment that have a name.

use std::collections::BTreeMap;

/// What becomes of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<V> {
    /// Added, or changed if the container has it. If another plugin has set it the creation
    /// fails: two plugins must not fight over a value unknowingly.
    Set(V),
    /// Removed, whoever set it.
    Remove,
    /// Set, whoever set it before.
    TakeOver(V),
}

/// Entries by name, each with one [`Change`]. The last change of an entry counts, so an
/// adjustment cannot be in conflict with itself.
///
/// ```
/// # use nri_sdk::{Adjustment, Change};
/// let mut adjustment = Adjustment::new();
/// adjustment.env.set("LEVEL", "info").remove("DEBUG").take_over("TZ", "UTC");
/// adjustment.env.set("LEVEL", "warn");
/// assert_eq!(adjustment.env.get("LEVEL"), Some(&Change::Set("warn".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed<V> {
    entries: BTreeMap<String, Change<V>>,
}

impl<V> Keyed<V> {
    /// Sets an entry that no other plugin sets.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<V>) -> &mut Self {
        self.put(key, Change::Set(value.into()))
    }

    /// Removes an entry, of the container or of a plugin asked before.
    pub fn remove(&mut self, key: impl Into<String>) -> &mut Self {
        self.put(key, Change::Remove)
    }

    /// Sets an entry though a plugin asked before may have set it.
    pub fn take_over(&mut self, key: impl Into<String>, value: impl Into<V>) -> &mut Self {
        self.put(key, Change::TakeOver(value.into()))
    }

    pub fn get(&self, key: &str) -> Option<&Change<V>> {
        self.entries.get(key)
    }

    /// The value the entry will have, if it is set at all.
    pub fn value(&self, key: &str) -> Option<&V> {
        match self.entries.get(key)? {
            Change::Set(value) | Change::TakeOver(value) => Some(value),
            Change::Remove => None,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Change<V>)> {
        self.entries.iter().map(|(key, change)| (key.as_str(), change))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn put(&mut self, key: impl Into<String>, change: Change<V>) -> &mut Self {
        self.entries.insert(key.into(), change);
        self
    }

    /// The first key that a marker of removal would turn into another.
    pub(super) fn bad_key(&self) -> Option<&str> {
        self.entries.keys().map(String::as_str).find(|key| key.is_empty() || key.starts_with('-'))
    }

    /// Markers of removal first, then values: that is the order in which a runtime that
    /// takes them one by one ends with the right result.
    pub(super) fn to_wire<W>(
        &self,
        removal: impl Fn(String) -> W,
        value: impl Fn(&str, &V) -> W,
    ) -> impl Iterator<Item = W> {
        let removed = self.entries.iter().filter(|(_, change)| !matches!(change, Change::Set(_)));
        let markers = removed.map(move |(key, _)| removal(format!("-{key}")));
        let values = self.entries.iter().filter_map(move |(key, change)| match change {
            Change::Set(set) | Change::TakeOver(set) => Some(value(key, set)),
            Change::Remove => None,
        });
        markers.chain(values)
    }

    /// A marker and a value of one key, in either order, are a take-over.
    pub(super) fn from_wire(entries: impl IntoIterator<Item = (String, V)>) -> Self {
        let mut keyed = Self::default();
        for (key, value) in entries {
            match key.strip_prefix('-').filter(|key| !key.is_empty()) {
                Some(key) => keyed.take_removal(key),
                None => keyed.take_value(key, value),
            }
        }
        keyed
    }

    fn take_removal(&mut self, key: &str) {
        let change = match self.entries.remove(key) {
            Some(Change::Set(value) | Change::TakeOver(value)) => Change::TakeOver(value),
            Some(Change::Remove) | None => Change::Remove,
        };
        self.entries.insert(key.to_owned(), change);
    }

    fn take_value(&mut self, key: String, value: V) {
        let change = match self.entries.get(&key) {
            Some(Change::Remove | Change::TakeOver(_)) => Change::TakeOver(value),
            Some(Change::Set(_)) | None => Change::Set(value),
        };
        self.entries.insert(key, change);
    }
}

impl<V> Default for Keyed<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new() }
    }
}
