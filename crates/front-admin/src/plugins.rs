//! Plugins and what they did, as messages.

use std::time::Duration;

use api_admin::v1::{ExplainContainerResponse, FieldOwner, Plugin, PluginAnswer, SpecChange};
use engine::nri::{Origin, PluginStatus, Story};

pub(crate) fn status(plugin: &PluginStatus) -> Plugin {
    let (kind, pid) = match plugin.origin {
        Origin::Launched { pid } => ("launched", pid),
        Origin::External { pid, .. } => ("external", pid.unwrap_or_default()),
        Origin::BuiltIn => ("built in", 0),
    };
    Plugin {
        id: plugin.id.to_string(),
        kind: kind.to_owned(),
        pid,
        events: plugin.events.to_string(),
        active: plugin.active,
        age_millis: millis(plugin.age),
        strikes: plugin.strikes,
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn story(story: Story) -> ExplainContainerResponse {
    let Story { plugins, owners, changes } = story;
    let text = |value: serde_json::Value| {
        if value.is_null() { String::new() } else { value.to_string() }
    };
    let answers = plugins.into_iter().map(|answered| PluginAnswer {
        plugin: answered.plugin,
        micros: answered.micros,
        asked: text(answered.asked),
    });
    let owners =
        owners.into_iter().map(|owned| FieldOwner { field: owned.field, plugin: owned.plugin });
    let changes = changes.into_iter().map(|changed| SpecChange {
        path: changed.path,
        before: text(changed.before),
        after: text(changed.after),
    });
    ExplainContainerResponse {
        answers: answers.collect(),
        owners: owners.collect(),
        changes: changes.collect(),
    }
}
