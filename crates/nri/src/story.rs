//! A container's journal as plain data that outlives the plugins and the runtime.

mod fields;

use nri_wire::api;
use oci_spec::runtime as oci;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Claimant, Creation,
    apply::{self, BareHost},
    journal::{Adjusted, Evicted, Journal, UPDATES, Updated},
    owners::FieldKey,
};

/// Who set what at a container's creation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Story {
    /// In the order in which they were asked.
    pub plugins: Vec<Answered>,
    /// Fields of NRI, and whose value each has.
    pub owners: Vec<Owned>,
    /// The same with their values, and what was removed.
    pub fields: Vec<FieldStory>,
    /// What all of it did to the specification.
    pub changes: Vec<Changed>,
    /// What plugins changed since, oldest first; of many only the last.
    pub updates: Vec<Later>,
    /// What plugins asked for at its creation and did not get.
    pub not_granted: Vec<NotGranted>,
    /// Evictions of the container, oldest first.
    pub evictions: Vec<EvictionStory>,
}

/// A value that a plugin asked for and did not get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotGranted {
    pub field: String,
    /// Null where it cannot be told.
    pub asked: Value,
    /// Empty where it cannot be told.
    pub plugin: String,
    pub why: String,
}

/// An eviction of the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionStory {
    /// In milliseconds since 1970.
    pub at: i64,
    pub plugin: String,
    /// The request with whose answer it came, or `unsolicited`.
    pub cause: String,
    pub reason: String,
}

/// A change of limits after the creation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Later {
    /// In milliseconds since 1970.
    pub at: i64,
    pub asked: Value,
    pub owners: Vec<Owned>,
    /// Why it was not made; empty where it was.
    pub error: String,
}

/// What one plugin asked for; null where that was nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answered {
    pub plugin: String,
    pub micros: u64,
    pub asked: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Owned {
    pub field: String,
    pub plugin: String,
}

/// A field, or an entry of one, that a plugin set or removed; null is not there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FieldStory {
    pub field: String,
    /// Without any plugin.
    pub before: Value,
    pub after: Value,
    pub plugin: String,
}

/// A part of the specification, by its path; of lists only what came and went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
    pub path: String,
    pub before: Value,
    pub after: Value,
}

impl Story {
    /// Nobody asked for anything.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
            && self.changes.is_empty()
            && self.updates.is_empty()
            && self.not_granted.is_empty()
            && self.evictions.is_empty()
    }

    /// Adds an eviction, and forgets the oldest where there are many.
    pub fn evict(&mut self, evicted: &Evicted, at: i64) {
        if self.evictions.len() >= UPDATES {
            self.evictions.remove(0);
        }
        let Evicted { by, reason, cause } = evicted.clone();
        self.evictions.push(EvictionStory { at, plugin: by, cause, reason });
    }

    /// The plugins that wanted something changed at the creation, in the order in which they
    /// were asked.
    pub fn adjusters(&self) -> impl Iterator<Item = &str> {
        let adjusted = self.plugins.iter().filter(|answer| !answer.asked.is_null());
        adjusted.map(|answer| answer.plugin.as_str())
    }

    /// Adds a later change, and forgets the oldest where there are many.
    pub fn update(&mut self, updated: &Updated, at: i64) {
        if self.updates.len() >= UPDATES {
            self.updates.remove(0);
        }
        let owned = |(field, plugin): &(FieldKey, String)| Owned {
            field: field.to_string(),
            plugin: plugin.clone(),
        };
        let asked = serde_json::to_value(&updated.resources).map_or(Value::Null, stripped);
        let owners = updated.owners.iter().map(owned).collect();
        let error = updated.error.clone().unwrap_or_default();
        self.updates.push(Later { at, asked, owners, error });
    }
}

impl Journal {
    /// What all plugins together asked for, by the names of the wire; null where nothing.
    pub fn merged(&self) -> Value {
        serde_json::to_value(&self.merged).map_or(Value::Null, stripped)
    }

    /// `adjusted` is what became of the specification of `container`.
    pub fn story(&self, container: &str, adjusted: &oci::Spec) -> Story {
        let answered = self.adjustments.iter().map(|answer| Answered {
            plugin: answer.plugin.to_string(),
            micros: u64::try_from(answer.took.as_micros()).unwrap_or(u64::MAX),
            asked: answer
                .adjust
                .as_ref()
                .and_then(|a| serde_json::to_value(a).ok())
                .map_or(Value::Null, stripped),
        });
        let own = self.owners.iter().filter(|(id, ..)| *id == container);
        let owners = own.map(|(_, field, plugin)| Owned {
            field: field.to_string(),
            plugin: plugin.to_owned(),
        });
        let json = |spec: &oci::Spec| serde_json::to_value(spec).unwrap_or_default();
        let (mut changes, mut fields) = (Vec::new(), Vec::new());
        // A container as most are: nobody wanted anything, and there is nothing to compare.
        let untouched =
            |original: &oci::Spec| self.owners.iter().next().is_none() && original == adjusted;
        if let Some(original) = self.original.as_ref().filter(|original| !untouched(original)) {
            let (before, after) = (json(original), json(adjusted));
            compare("", &before, &after, &mut changes);
            fields = self.fields(container, &before, &after);
        }
        let (plugins, owners) = (answered.collect(), owners.collect());
        let not_granted = self.not_granted(container);
        Story { plugins, owners, fields, changes, not_granted, ..Story::default() }
    }

    /// What one plugin asked for and another has, or nobody.
    fn not_granted(&self, container: &str) -> Vec<NotGranted> {
        let asking = self.adjustments.iter().filter(|answer| answer.adjust.is_some());
        // What one plugin alone asks for it gets.
        if asking.clone().count() < 2 && asking.clone().all(|answer| answer.refused.is_none()) {
            return Vec::new();
        }
        asking.flat_map(|answer| self.not_granted_to(container, answer)).collect()
    }

    fn not_granted_to(&self, container: &str, answer: &Adjusted) -> Vec<NotGranted> {
        let plugin = answer.plugin.as_str();
        let Some(adjust) = answer.adjust.as_deref() else { return Vec::new() };
        // By itself, to see what it claims.
        let mut alone =
            Creation::of(api::Container { id: container.to_owned(), ..Default::default() });
        let response =
            api::CreateContainerResponse { adjust: Some(adjust.clone()), ..Default::default() };
        let _ = alone.merge(Claimant::new(plugin), response);
        let mut spec = None;
        let mut refused = Vec::new();
        for (_, field, _) in alone.merged().owners.iter() {
            let Some(why) = self.why_not(container, answer, &field) else { continue };
            let spec = spec.get_or_insert_with(|| self.applied(adjust));
            let asked = match fields::find(spec, &field) {
                Value::Null => fields::asked(adjust, &field),
                found => found,
            };
            let (field, plugin) = (field.to_string(), plugin.to_owned());
            refused.push(NotGranted { field, asked, plugin, why });
        }
        refused
    }

    /// `None` if the plugin has got it.
    fn why_not(&self, container: &str, answer: &Adjusted, key: &FieldKey) -> Option<String> {
        if let Some(why) = &answer.refused {
            return Some(why.clone());
        }
        let plugin = answer.plugin.as_str();
        if let Some(owner) = self.owners.owner(container, key.field, key.key.as_deref()) {
            let has = owner.split(',').any(|owner| owner == plugin);
            return (!has).then(|| format!("taken over by {owner}"));
        }
        let cleared = self.owners.cleared(container).find(|(cleared, _)| cleared == key);
        Some(match cleared {
            Some((_, by)) => format!("removed by {by}"),
            None => "not applied".to_owned(),
        })
    }

    /// The specification as one plugin alone would have it; nothing where that cannot be told.
    fn applied(&self, adjust: &api::ContainerAdjustment) -> Value {
        let original = self.original.as_deref().cloned().unwrap_or_default();
        let applied = apply::applied(&original, adjust, &BareHost);
        applied.ok().and_then(|spec| serde_json::to_value(spec).ok()).unwrap_or_default()
    }

    fn fields(&self, container: &str, before: &Value, after: &Value) -> Vec<FieldStory> {
        let own = self.owners.iter().filter(|(id, ..)| *id == container);
        let set = own.map(|(_, field, plugin)| (field, plugin, true));
        let cleared = self.owners.cleared(container).map(|(field, plugin)| (field, plugin, false));
        let mut all: Vec<_> = set.chain(cleared).collect();
        all.sort();
        let story = |(field, plugin, set): (FieldKey, &str, bool)| {
            let after = match fields::find(after, &field) {
                Value::Null if set => fields::asked(&self.merged, &field),
                found => found,
            };
            let before = fields::find(before, &field);
            FieldStory { field: field.to_string(), before, after, plugin: plugin.to_owned() }
        };
        all.into_iter().map(story).collect()
    }
}

/// Without what says nothing.
pub(crate) fn stripped(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().map(|(key, value)| (key, stripped(value)));
            let kept: Map<_, _> = kept.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(list) if list.is_empty() => Value::Null,
        Value::Array(list) => Value::Array(list.into_iter().map(stripped).collect()),
        Value::String(text) if text.is_empty() => Value::Null,
        other => other,
    }
}

fn compare(path: &str, before: &Value, after: &Value, changes: &mut Vec<Changed>) {
    if before == after {
        return;
    }
    let (before, after) = match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                compare(&format!("{path}/{key}"), &of(old), &of(new), changes);
            }
            return;
        }
        (Value::Array(old), Value::Array(new)) => {
            let without = |list: &[Value], other: &[Value]| -> Value {
                list.iter().filter(|item| !other.contains(item)).cloned().collect()
            };
            (without(old, new), without(new, old))
        }
        (old, new) => (old.clone(), new.clone()),
    };
    // A list that was only put in order says nothing.
    let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    if !(empty(&before) && empty(&after)) {
        changes.push(Changed { path: path.to_owned(), before, after });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_lists_only_what_came_and_went() {
        let before = json!({ "a": 1, "env": ["A=1", "B=2"], "order": [1, 2], "same": { "x": 1 } });
        let after = json!({ "a": 2, "env": ["B=2", "C=3"], "order": [2, 1], "same": { "x": 1 }, "new": true });
        let mut changes = Vec::new();
        compare("", &before, &after, &mut changes);
        let got: Vec<_> = changes.iter().map(|c| (c.path.as_str(), &c.before, &c.after)).collect();
        let want = [
            ("/a", &json!(1), &json!(2)),
            ("/env", &json!(["A=1"]), &json!(["C=3"])),
            ("/new", &Value::Null, &json!(true)),
        ];
        assert_eq!(got, want);
    }

    fn env(entries: &[(&str, &str)]) -> api::ContainerAdjustment {
        let pair = |(key, value): &(&str, &str)| api::KeyValue {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        api::ContainerAdjustment { env: entries.iter().map(pair).collect(), ..Default::default() }
    }

    #[test]
    fn what_another_plugin_has_was_not_granted() {
        let mut creation = Creation::of(api::Container { id: "c".into(), ..Default::default() });
        let mut adjustments = Vec::new();
        let answers = [
            ("10-a", env(&[("TAKEN", "1"), ("REMOVED", "1"), ("KEPT", "1")]), None),
            ("20-b", env(&[("-TAKEN", ""), ("TAKEN", "2"), ("-REMOVED", "")]), None),
            ("30-c", env(&[("SECRET", "1")]), Some("the plugin may not set Env".to_owned())),
        ];
        for (plugin, adjust, refused) in answers {
            let response =
                api::CreateContainerResponse { adjust: Some(adjust.clone()), ..Default::default() };
            if refused.is_none() {
                creation.merge(Claimant::new(plugin), response).unwrap();
            }
            let (plugin, adjust) = (plugin.parse().unwrap(), Some(Box::new(adjust)));
            adjustments.push(Adjusted { plugin, took: Default::default(), adjust, refused });
        }
        let owners = creation.finish().owners;
        let original = Some(std::sync::Arc::new(oci::Spec::default()));
        let journal = Journal { original, adjustments, owners, ..Journal::default() };
        let story = journal.story("c", &oci::Spec::default());
        let got: Vec<_> = story
            .not_granted
            .iter()
            .map(|n| (n.field.as_str(), &n.asked, n.plugin.as_str(), n.why.as_str()))
            .collect();
        let one = json!("1");
        let want = [
            ("Env \"REMOVED\"", &one, "10-a", "removed by 20-b"),
            ("Env \"TAKEN\"", &one, "10-a", "taken over by 20-b"),
            ("Env \"SECRET\"", &one, "30-c", "the plugin may not set Env"),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let full = json!({ "env": [{ "key": "A", "value": "" }], "args": [], "linux": { "x": {} }, "n": 0 });
        assert_eq!(stripped(full), json!({ "env": [{ "key": "A" }], "n": 0 }));
    }
}
