//! Lists and maps whose entries have keys, and the `-` that removes one.

use std::collections::{BTreeMap, BTreeSet};

use nri_wire::api::{Field, KeyValue, LinuxDevice, Mount};

use super::{Ledger, MergeError};

/// An entry of a list that is addressed by a key.
pub(crate) trait Keyed: Clone {
    const FIELD: Field;

    fn key(&self) -> &str;

    /// The entry that removes the one with this key.
    fn removal_of(key: &str) -> Self;
}

/// The key that an entry with this key removes, if it is a removal.
pub(crate) fn removed(key: &str) -> Option<&str> {
    key.strip_prefix('-')
}

fn removal(key: &str) -> String {
    format!("-{key}")
}

/// The container as the next plugin sees it.
pub(super) trait View<T> {
    fn hide(&mut self, key: &str);
    fn show(&mut self, entry: &T);
}

/// Merges a list of keyed entries. What is removed without being set anew in the same answer
/// stays in `collected` as a removal.
pub(super) fn merge_list<T: Keyed>(
    ledger: &mut Ledger<'_>,
    collected: &mut Vec<T>,
    incoming: Vec<T>,
    view: &mut impl View<T>,
) -> Result<(), MergeError> {
    let (removals, additions): (Vec<T>, Vec<T>) =
        incoming.into_iter().partition(|entry| removed(entry.key()).is_some());
    let added: BTreeSet<&str> = additions.iter().map(Keyed::key).collect();
    for key in removals.iter().filter_map(|entry| removed(entry.key())) {
        ledger.clear_entry(T::FIELD, key)?;
        collected.retain(|entry| entry.key() != key && removed(entry.key()) != Some(key));
        view.hide(key);
        if !added.contains(key) {
            collected.push(T::removal_of(key));
        }
    }
    for entry in additions {
        ledger.claim_entry(T::FIELD, entry.key())?;
        view.hide(entry.key());
        view.show(&entry);
        collected.push(entry);
    }
    Ok(())
}

/// Merges a map. The result keeps every removal; a key that is removed and set has both.
pub(super) fn merge_map<V: Clone + Default>(
    ledger: &mut Ledger<'_>,
    field: Field,
    collected: &mut BTreeMap<String, V>,
    incoming: BTreeMap<String, V>,
    view: &mut BTreeMap<String, V>,
) -> Result<(), MergeError> {
    for key in incoming.keys().filter_map(|key| removed(key)) {
        ledger.clear_entry(field, key)?;
        collected.remove(key);
        collected.insert(removal(key), V::default());
        view.remove(key);
    }
    for (key, value) in incoming.into_iter().filter(|(key, _)| removed(key).is_none()) {
        ledger.claim_entry(field, &key)?;
        view.insert(key.clone(), value.clone());
        collected.insert(key, value);
    }
    Ok(())
}

impl Keyed for Mount {
    const FIELD: Field = Field::Mounts;

    fn key(&self) -> &str {
        &self.destination
    }

    fn removal_of(key: &str) -> Self {
        Self { destination: removal(key), ..Self::default() }
    }
}

impl Keyed for LinuxDevice {
    const FIELD: Field = Field::Devices;

    fn key(&self) -> &str {
        &self.path
    }

    fn removal_of(key: &str) -> Self {
        Self { path: removal(key), ..Self::default() }
    }
}

impl Keyed for KeyValue {
    const FIELD: Field = Field::Env;

    fn key(&self) -> &str {
        &self.key
    }

    fn removal_of(key: &str) -> Self {
        Self { key: removal(key), value: String::new() }
    }
}

impl<T: Keyed> View<T> for Vec<T> {
    fn hide(&mut self, key: &str) {
        self.retain(|entry| entry.key() != key);
    }

    fn show(&mut self, entry: &T) {
        self.push(entry.clone());
    }
}

/// The environment of a container is text, `NAME=value`.
impl View<KeyValue> for Vec<String> {
    fn hide(&mut self, key: &str) {
        self.retain(|entry| entry.split('=').next() != Some(key));
    }

    fn show(&mut self, entry: &KeyValue) {
        self.push(format!("{}={}", entry.key, entry.value));
    }
}
