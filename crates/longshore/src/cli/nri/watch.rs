use std::{io::Write, process::ExitCode, time::Duration};

use anyhow::Context;
use api_admin::v1::{PluginNotice, WatchPluginsRequest};
use clap::Args;
use engine::nri::Notice;
use jiff::Timestamp;
use serde_json::Value;

use crate::cli::client::{DaemonArgs, Told};

/// Show what plugins are asked, what they answer and what comes of it, as it happens.
///
/// A line each, until it is interrupted. Who reads too slowly is cut off.
#[derive(Debug, Args)]
pub(in crate::cli) struct Watch {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// For programs: a line of JSON each.
    #[arg(long)]
    json: bool,
}

impl Watch {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        crate::cli::block_on(async {
            let client = self.daemon.connect().await?;
            let notices = client.admin().watch_plugins(WatchPluginsRequest {}).await;
            let mut notices = notices.told("watch plugins")?;
            while let Some(notice) = notices.message().await.map_err(crate::cli::client::Refusal)? {
                let line = if self.json { json(&notice)? } else { text(&notice)? };
                writeln!(out, "{line}")?;
                out.flush()?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn json(notice: &PluginNotice) -> anyhow::Result<String> {
    let mut value: Value = serde_json::from_str(&notice.notice).context("read a notice")?;
    value["at"] = notice.at.into();
    Ok(value.to_string())
}

fn text(notice: &PluginNotice) -> anyhow::Result<String> {
    let at = Timestamp::from_nanosecond(notice.at.into()).unwrap_or_default();
    let at = at.strftime("%H:%M:%S%.3f");
    let words = match serde_json::from_str(&notice.notice) {
        Ok(notice) => words(&notice),
        // A newer daemon may have more to tell than we have words for.
        Err(_) => notice.notice.clone(),
    };
    Ok(format!("{at} {words}"))
}

fn words(notice: &Notice) -> String {
    let time = |micros: &u64| Duration::from_micros(*micros);
    match notice {
        Notice::Joined { plugin, events } => format!("{plugin} has joined: {events}"),
        Notice::NotJoined { plugin, why } => format!("{plugin} did not join: {why}"),
        Notice::Left { plugin } => format!("{plugin} has left"),
        Notice::Ended { plugin, status } => format!("{plugin} has ended: {status}"),
        Notice::Answered { plugin, about, micros, asked } => {
            let asked = if asked.is_null() { String::new() } else { format!(" {asked}") };
            format!("{about} {plugin} {:?}{asked}", time(micros))
        }
        Notice::Failed { plugin, about, micros, why, fatal } => {
            let then = if *fatal { "" } else { ", goes on without it" };
            format!("{about} {plugin} {:?} FAILED{then}: {why}", time(micros))
        }
        // It may still fail for another reason, and is told again then.
        Notice::Decided { about, error: None } if about.event == "CreateContainer" => {
            format!("{about} agreed to by all plugins")
        }
        Notice::Decided { about, error: None } => format!("{about} done"),
        Notice::Decided { about, error: Some(error) } => format!("{about} FAILED: {error}"),
        Notice::Changed { .. } => change(notice),
        Notice::Synchronized { plugin, pods, containers, micros, asked, error } => {
            let asked = if asked.is_null() { String::new() } else { format!(" {asked}") };
            let told = format!("{pods} pods, {containers} containers");
            let error = error.as_ref().map(|error| format!(" FAILED: {error}")).unwrap_or_default();
            format!("Synchronize {plugin} {:?} {told}{asked}{error}", time(micros))
        }
        other => format!("{other:?}"),
    }
}

/// `evicted web/nginx by 10-balance (with CreateContainer web/db): makes room`.
fn change(notice: &Notice) -> String {
    let Notice::Changed { container, pod_name, container_name, by, cause, asked, error } = notice
    else {
        return String::new();
    };
    let name = match container_name.as_str() {
        "" => container.clone(),
        name => format!("{pod_name}/{name}"),
    };
    let (verb, what) = match (&asked["evict"][0]["reason"], &asked["update"][0]) {
        (Value::String(reason), _) => ("evicted", reason.clone()),
        (_, Value::Null) if asked["evict"].is_array() => ("evicted", "no reason given".to_owned()),
        (_, update) => ("updated", update["linux"]["resources"].to_string()),
    };
    let cause = match cause.as_str() {
        "" => String::new(),
        cause if cause.contains(' ') => format!(" (with {cause})"),
        cause => format!(" ({cause})"),
    };
    match error {
        None => format!("{verb} {name} by {by}{cause}: {what}"),
        Some(error) => format!("{name} not {verb} by {by}{cause}: {what}: FAILED: {error}"),
    }
}
