use std::{io::Write, process::ExitCode, time::Duration};

use anyhow::Context;
use api_admin::v1::{PluginNotice, WatchPluginsRequest};
use clap::Args;
use engine::nri::{About, Notice};
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
    let notice = serde_json::from_str(&notice.notice).context("read a notice")?;
    Ok(format!("{at} {}", words(&notice)))
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
            format!("{} {plugin} {:?}{asked}", of(about), time(micros))
        }
        Notice::Failed { plugin, about, micros, why, fatal } => {
            let then = if *fatal { "" } else { ", goes on without it" };
            format!("{} {plugin} {:?} FAILED{then}: {why}", of(about), time(micros))
        }
        Notice::Decided { about, error: None } => format!("{} done", of(about)),
        Notice::Decided { about, error: Some(error) } => format!("{} FAILED: {error}", of(about)),
        Notice::Changed { container, by, asked, error } => {
            let error = error.as_ref().map(|error| format!(" FAILED: {error}"));
            format!("changed {container} {by} {asked}{}", error.unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

/// `CreateContainer web/nginx`.
fn of(about: &About) -> String {
    let About { event, pod_name, container_name, .. } = about;
    match container_name.as_str() {
        "" => format!("{event} {pod_name}"),
        name => format!("{event} {pod_name}/{name}"),
    }
}
