use std::{io::Write, process::ExitCode, time::Duration};

use api_admin::v1::{ListPluginsRequest, Plugin, RestartPluginRequest};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{
    client::{DaemonArgs, Told},
    table::{Table, age},
};

/// List plugins in the order in which they are asked, then those that are not connected.
///
/// Of a plugin that is starting, backing off, down or rejected the last column says why.
#[derive(Debug, Args)]
pub(in crate::cli) struct Plugins {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Show also the events that plugins subscribed to.
    #[arg(long)]
    wide: bool,
    /// Show also the last lines that launched plugins printed.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON, with everything.
    #[arg(long, conflicts_with_all = ["wide", "verbose"])]
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
        write!(out, "{}", table(&plugins, self.wide))?;
        if self.verbose {
            plugins.iter().try_for_each(|plugin| print_output(out, plugin))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The last column holds what may be long.
fn table(plugins: &[Plugin], wide: bool) -> Table<13> {
    let last = if wide { "EVENTS AND REASON" } else { "REASON" };
    let mut table = Table::new([
        "PLUGIN", "KIND", "PID", "NRI", "AGE", "STATE", "POLICY", "CALLS", "ERRORS", "P50", "P99",
        "STRIKES", last,
    ]);
    for plugin in plugins {
        let last = match (wide, plugin.reason.as_str()) {
            (true, "") => &plugin.events,
            (_, reason) => reason,
        };
        table.row(row(plugin, last.to_owned()));
    }
    table
}

/// What is not known of one that is not connected is left empty.
fn row(plugin: &Plugin, last: String) -> [String; 13] {
    let state = match (plugin.state.as_str(), plugin.active) {
        // An older daemon lists those that are connected.
        ("", true) => "active",
        ("", false) => "joining",
        (state, _) => state,
    };
    let connected = matches!(state, "active" | "joining");
    let pid = if plugin.pid == 0 { String::new() } else { plugin.pid.to_string() };
    let count = |count: u64| if connected { count.to_string() } else { String::new() };
    let time = |micros| match (plugin.calls, Duration::from_micros(micros)) {
        (0, _) => String::new(),
        (_, time) => format!("{time:?}"),
    };
    [
        plugin.id.clone(),
        plugin.kind.clone(),
        pid,
        plugin.version.clone(),
        age(Duration::from_millis(plugin.age_millis)),
        state.to_owned(),
        plugin.policy.clone(),
        count(plugin.calls),
        count(plugin.errors),
        time(plugin.p50_micros),
        time(plugin.p99_micros),
        count(plugin.strikes.into()),
        last,
    ]
}

fn print_output(out: &mut impl Write, plugin: &Plugin) -> std::io::Result<()> {
    if plugin.output.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{} printed:", plugin.id)?;
    for line in &plugin.output {
        let at = Timestamp::from_millisecond(line.at).unwrap_or_default();
        writeln!(out, "  {} {} {}", at.strftime("%H:%M:%S%.3f"), line.stream, line.text)?;
    }
    Ok(())
}

fn plugin_json(plugin: &Plugin) -> Value {
    let (index, name) = plugin.id.split_once('-').unwrap_or_default();
    let output: Vec<_> = plugin
        .output
        .iter()
        .map(|line| json!({ "at": line.at, "stream": line.stream, "text": line.text }))
        .collect();
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
        "state": plugin.state,
        "reason": plugin.reason,
        "output": output,
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
