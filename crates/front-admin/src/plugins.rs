//! Plugins and what they did, as messages.

use std::time::{Duration, SystemTime};

use api_admin::v1::{
    ExplainContainerResponse, FieldChange, FieldOwner, NotGranted, Plugin, PluginAnswer,
    PluginEviction, PluginNotice, PluginOutput, PluginUpdate, RestartPluginResponse, SpecChange,
};
use engine::nri::{
    Absence, AbsentPlugin, OnFailure, Origin, OutputLine, Owned, PluginPolicy, PluginStatus,
    Restarted, Story, Watch, WatchEnd,
};
use tonic::Status;

use crate::streams::Sender;

fn kind(origin: &Origin) -> (&'static str, u32) {
    match *origin {
        Origin::Launched { pid } => ("launched", pid),
        Origin::External { pid, .. } => ("external", pid.unwrap_or_default()),
        Origin::BuiltIn => ("built in", 0),
    }
}

pub(crate) fn status(plugin: &PluginStatus) -> Plugin {
    let (kind, pid) = kind(&plugin.origin);
    Plugin {
        id: plugin.id.to_string(),
        kind: kind.to_owned(),
        pid,
        events: plugin.events.to_string(),
        active: plugin.active,
        age_millis: millis(plugin.age),
        strikes: plugin.strikes,
        version: plugin.version.clone(),
        policy: policy(&plugin.policy, plugin.limit),
        calls: plugin.calls.calls,
        errors: plugin.calls.errors,
        p50_micros: micros(plugin.calls.p50),
        p99_micros: micros(plugin.calls.p99),
        state: if plugin.active { "active" } else { "joining" }.to_owned(),
        reason: String::new(),
        output: output(&plugin.output),
    }
}

/// One that is not connected.
pub(crate) fn absent(plugin: &AbsentPlugin) -> Plugin {
    let (kind, pid) = kind(&plugin.origin);
    let (state, more) = match plugin.absence {
        Absence::Starting => ("starting", String::new()),
        Absence::BackingOff { remaining } => {
            ("backing off", format!("; starts again in {}s", remaining.as_secs()))
        }
        Absence::Down => ("down", String::new()),
        Absence::Rejected => ("rejected", String::new()),
    };
    Plugin {
        id: plugin.name.clone(),
        kind: kind.to_owned(),
        pid,
        age_millis: millis(plugin.age),
        state: state.to_owned(),
        reason: format!("{}{more}", plugin.reason),
        output: output(&plugin.output),
        ..Plugin::default()
    }
}

fn output(lines: &[OutputLine]) -> Vec<PluginOutput> {
    let at = |line: &OutputLine| {
        let since = line.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    };
    let told = lines.iter().map(|line| PluginOutput {
        at: at(line),
        stream: line.stream.name().to_owned(),
        text: line.text.clone(),
    });
    told.collect()
}

/// What of it an operator decided, the time limit first.
fn policy(policy: &PluginPolicy, limit: Duration) -> String {
    let mut words = vec![format!("{limit:?}")];
    match policy.on_failure {
        Some(OnFailure::Fail) => words.push("fail".to_owned()),
        Some(OnFailure::Ignore) => words.push("ignore".to_owned()),
        None => {}
    }
    words.extend(policy.required.map(|_| "required".to_owned()));
    words.extend(policy.strikes.map(|strikes| format!("{strikes} strikes")));
    words.extend(policy.fields.as_ref().map(|_| "some fields".to_owned()));
    words.extend(policy.concurrent.then(|| "concurrent".to_owned()));
    words.join(", ")
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Everything from now on, until the client is too slow or gone.
pub(crate) async fn watch(mut watch: Watch, out: Sender<PluginNotice>) -> Result<(), Status> {
    loop {
        let notice = watch.next().await.map_err(|end| match end {
            WatchEnd::Behind(_) => Status::resource_exhausted(end.to_string()),
            WatchEnd::Stopped => Status::unavailable(end.to_string()),
        })?;
        let at = base::time::to_unix_nanos(jiff::Timestamp::now());
        let notice = serde_json::to_string(&*notice).unwrap_or_default();
        if out.send(Ok(PluginNotice { at, notice })).await.is_err() {
            return Ok(());
        }
    }
}

pub(crate) fn restarted(done: &Restarted) -> RestartPluginResponse {
    let (id, joined) = match done {
        Restarted::Joined(id) => (id, true),
        Restarted::Disconnected(id) => (id, false),
    };
    RestartPluginResponse { id: id.to_string(), joined }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn story(story: Story) -> ExplainContainerResponse {
    let Story { plugins, owners, fields, changes, updates, not_granted, evictions } = story;
    let text = |value: serde_json::Value| {
        if value.is_null() { String::new() } else { value.to_string() }
    };
    let answers = plugins.into_iter().map(|answered| PluginAnswer {
        plugin: answered.plugin,
        micros: answered.micros,
        asked: text(answered.asked),
    });
    let owner = |owned: Owned| FieldOwner { field: owned.field, plugin: owned.plugin };
    let owners = owners.into_iter().map(owner);
    let updates = updates.into_iter().map(|later| PluginUpdate {
        at: later.at,
        asked: text(later.asked),
        owners: later.owners.into_iter().map(owner).collect(),
        error: later.error,
    });
    let not_granted = not_granted.into_iter().map(|refused| NotGranted {
        field: refused.field,
        asked: text(refused.asked),
        plugin: refused.plugin,
        why: refused.why,
    });
    let evictions = evictions.into_iter().map(|evicted| PluginEviction {
        at: evicted.at,
        plugin: evicted.plugin,
        cause: evicted.cause,
        reason: evicted.reason,
    });
    let changes = changes.into_iter().map(|changed| SpecChange {
        path: changed.path,
        before: text(changed.before),
        after: text(changed.after),
    });
    let fields = fields.into_iter().map(|field| FieldChange {
        field: field.field,
        before: text(field.before),
        after: text(field.after),
        plugin: field.plugin,
    });
    ExplainContainerResponse {
        answers: answers.collect(),
        owners: owners.collect(),
        fields: fields.collect(),
        changes: changes.collect(),
        updates: updates.collect(),
        not_granted: not_granted.collect(),
        evictions: evictions.collect(),
    }
}
