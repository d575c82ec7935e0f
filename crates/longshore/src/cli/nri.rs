use std::{io::Write, process::ExitCode, time::Duration};

use api_admin::v1::{
    ExplainContainerRequest, ExplainContainerResponse, ListPluginsRequest, Plugin,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    client::{DaemonArgs, Told},
    table::{Table, age},
};

/// NRI plugins, and what they do to containers.
#[derive(Debug, Subcommand)]
pub(super) enum NriCommand {
    Plugins(Plugins),
    Explain(Explain),
}

/// List the plugins that are here, in the order in which they are asked.
#[derive(Debug, Args)]
pub(super) struct Plugins {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// For programs.
    #[arg(long)]
    json: bool,
}

/// Show which plugin set what of a container, also when the plugin is long gone.
///
///     longshore nri explain web/nginx
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Explain {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// For programs.
    #[arg(long)]
    json: bool,
    /// `pod/container`, or an id or its beginning.
    container: String,
}

impl NriCommand {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        match self {
            Self::Plugins(plugins) => plugins.run(out),
            Self::Explain(explain) => explain.run(out),
        }
    }
}

impl Plugins {
    fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let plugins = super::block_on(async {
            let client = self.daemon.connect().await?;
            let listed = client.admin().list_plugins(ListPluginsRequest {}).await;
            Ok(listed.told("list plugins")?.plugins)
        })?;
        if self.json {
            let all: Vec<Value> = plugins.iter().map(plugin_json).collect();
            writeln!(out, "{:#}", Value::Array(all))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(["PLUGIN", "KIND", "PID", "AGE", "STATE", "STRIKES", "EVENTS"]);
        for plugin in plugins {
            let state = if plugin.active { "active" } else { "joining" };
            let pid = if plugin.pid == 0 { String::new() } else { plugin.pid.to_string() };
            table.row([
                plugin.id,
                plugin.kind,
                pid,
                age(Duration::from_millis(plugin.age_millis)),
                state.to_owned(),
                plugin.strikes.to_string(),
                plugin.events,
            ]);
        }
        write!(out, "{table}")?;
        Ok(ExitCode::SUCCESS)
    }
}

fn plugin_json(plugin: &Plugin) -> Value {
    json!({
        "id": plugin.id,
        "kind": plugin.kind,
        "pid": plugin.pid,
        "events": plugin.events,
        "active": plugin.active,
        "ageMillis": plugin.age_millis,
        "strikes": plugin.strikes,
    })
}

impl Explain {
    fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let story = super::block_on(async {
            let client = self.daemon.connect().await?;
            let objects = client.objects().await?;
            let container = objects.find_container(&self.container)?.id.clone();
            let told =
                client.admin().explain_container(ExplainContainerRequest { container }).await;
            told.told(format_args!("explain {}", self.container))
        })?;
        if self.json {
            writeln!(out, "{:#}", story_json(&story))?;
        } else if story.answers.is_empty() {
            writeln!(out, "no plugin changed anything")?;
        } else {
            print(out, story)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(out: &mut impl Write, story: ExplainContainerResponse) -> std::io::Result<()> {
    let mut asked = Table::new(["PLUGIN", "TOOK", "ASKED FOR"]);
    for answer in story.answers {
        let took = Duration::from_micros(answer.micros);
        asked.row([answer.plugin, format!("{took:?}"), answer.asked]);
    }
    let mut owners = Table::new(["FIELD", "PLUGIN"]);
    for owner in story.owners {
        owners.row([owner.field, owner.plugin]);
    }
    let mut changes = Table::new(["SPEC", "BEFORE", "AFTER"]);
    for change in story.changes {
        changes.row([change.path, change.before, change.after]);
    }
    write!(out, "{asked}\n{owners}\n{changes}")
}

fn story_json(story: &ExplainContainerResponse) -> Value {
    let value = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let answers: Vec<_> = story
        .answers
        .iter()
        .map(|a| json!({ "plugin": a.plugin, "micros": a.micros, "asked": value(&a.asked) }))
        .collect();
    let owners: Vec<_> =
        story.owners.iter().map(|o| json!({ "field": o.field, "plugin": o.plugin })).collect();
    let changes: Vec<_> = story
        .changes
        .iter()
        .map(|c| json!({ "path": c.path, "before": value(&c.before), "after": value(&c.after) }))
        .collect();
    json!({ "plugins": answers, "owners": owners, "changes": changes })
}
