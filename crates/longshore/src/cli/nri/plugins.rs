use std::{io::Write, process::ExitCode, time::Duration};

use api_admin::v1::{ListPluginsRequest, Plugin, RestartPluginRequest};
use clap::Args;
use serde_json::{Value, json};

use crate::cli::{
    client::{DaemonArgs, Told},
    table::{Table, age},
};

/// List the plugins that are here, in the order in which they are asked.
#[derive(Debug, Args)]
pub(in crate::cli) struct Plugins {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// For programs.
    #[arg(long)]
    json: bool,
}

/// End a plugin and start it anew, if the daemon launched it.
///
/// Any other is disconnected: those that want to be here come back by themselves.
#[derive(Debug, Args)]
pub(in crate::cli) struct Restart {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// NN-name or name.
    plugin: String,
}

impl Plugins {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let plugins = crate::cli::block_on(async {
            let client = self.daemon.connect().await?;
            let listed = client.admin().list_plugins(ListPluginsRequest {}).await;
            Ok(listed.told("list plugins")?.plugins)
        })?;
        if self.json {
            let all: Vec<Value> = plugins.iter().map(plugin_json).collect();
            writeln!(out, "{:#}", Value::Array(all))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new([
            "PLUGIN", "KIND", "PID", "NRI", "AGE", "STATE", "POLICY", "CALLS", "ERRORS", "P50",
            "P99", "STRIKES", "EVENTS",
        ]);
        plugins.into_iter().for_each(|plugin| table.row(row(plugin)));
        write!(out, "{table}")?;
        Ok(ExitCode::SUCCESS)
    }
}

fn row(plugin: Plugin) -> [String; 13] {
    let state = if plugin.active { "active" } else { "joining" };
    let pid = if plugin.pid == 0 { String::new() } else { plugin.pid.to_string() };
    let time = |micros| match (plugin.calls, Duration::from_micros(micros)) {
        (0, _) => String::new(),
        (_, time) => format!("{time:?}"),
    };
    let (p50, p99) = (time(plugin.p50_micros), time(plugin.p99_micros));
    [
        plugin.id,
        plugin.kind,
        pid,
        plugin.version,
        age(Duration::from_millis(plugin.age_millis)),
        state.to_owned(),
        plugin.policy,
        plugin.calls.to_string(),
        plugin.errors.to_string(),
        p50,
        p99,
        plugin.strikes.to_string(),
        plugin.events,
    ]
}

fn plugin_json(plugin: &Plugin) -> Value {
    let (index, name) = plugin.id.split_once('-').unwrap_or_default();
    json!({
        "id": plugin.id,
        "name": name,
        "index": index,
        "kind": plugin.kind,
        "pid": plugin.pid,
        "version": plugin.version,
        "events": plugin.events,
        "policy": plugin.policy,
        "active": plugin.active,
        "ageMillis": plugin.age_millis,
        "calls": plugin.calls,
        "errors": plugin.errors,
        "p50Micros": plugin.p50_micros,
        "p99Micros": plugin.p99_micros,
        "strikes": plugin.strikes,
    })
}

impl Restart {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let done = crate::cli::block_on(async {
            let client = self.daemon.connect().await?;
            let plugin = self.plugin.clone();
            let done = client.admin().restart_plugin(RestartPluginRequest { plugin }).await;
            done.told(format_args!("restart {}", self.plugin))
        })?;
        let what = if done.joined { "runs again" } else { "is disconnected" };
        writeln!(out, "{} {what}", done.id)?;
        Ok(ExitCode::SUCCESS)
    }
}
