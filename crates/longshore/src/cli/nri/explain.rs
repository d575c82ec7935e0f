use std::{collections::BTreeSet, io::Write, process::ExitCode, time::Duration};

use api_admin::v1::{ExplainContainerRequest, ExplainContainerResponse, FieldOwner};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{
    client::{DaemonArgs, Told},
    table::Table,
};

/// Show which plugin set what of a container, also when the plugin is long gone.
///
///     longshore nri explain web/nginx
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Explain {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// For programs.
    #[arg(long)]
    json: bool,
    /// `pod/container`, or an id or its beginning.
    container: String,
}

impl Explain {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let story = crate::cli::block_on(async {
            let client = self.daemon.connect().await?;
            let objects = client.objects().await?;
            let container = objects.find_container(&self.container)?.id.clone();
            let told =
                client.admin().explain_container(ExplainContainerRequest { container }).await;
            told.told(format_args!("explain {}", self.container))
        })?;
        if self.json {
            writeln!(out, "{:#}", story_json(&story))?;
        } else if story.answers.is_empty() && story.updates.is_empty() {
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
    write!(out, "{asked}\n{owners}\n{changes}")?;
    if story.updates.is_empty() {
        return Ok(());
    }
    let mut updates = Table::new(["CHANGED AT", "PLUGINS", "LIMITS ASKED FOR"]);
    for update in story.updates {
        let at = Timestamp::from_millisecond(update.at).unwrap_or_default();
        let by: BTreeSet<_> = update.owners.into_iter().map(|owner| owner.plugin).collect();
        let by = by.into_iter().collect::<Vec<_>>().join(", ");
        updates.row([at.to_string(), by, update.asked]);
    }
    write!(out, "\n{updates}")
}

fn story_json(story: &ExplainContainerResponse) -> Value {
    let value = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let answers: Vec<_> = story
        .answers
        .iter()
        .map(|a| json!({ "plugin": a.plugin, "micros": a.micros, "asked": value(&a.asked) }))
        .collect();
    let owner = |o: &FieldOwner| json!({ "field": o.field, "plugin": o.plugin });
    let owners: Vec<_> = story.owners.iter().map(owner).collect();
    let updates: Vec<_> = story
        .updates
        .iter()
        .map(|u| {
            let owners: Vec<_> = u.owners.iter().map(owner).collect();
            json!({ "at": u.at, "asked": value(&u.asked), "owners": owners })
        })
        .collect();
    let changes: Vec<_> = story
        .changes
        .iter()
        .map(|c| json!({ "path": c.path, "before": value(&c.before), "after": value(&c.after) }))
        .collect();
    json!({ "plugins": answers, "owners": owners, "changes": changes, "updates": updates })
}
