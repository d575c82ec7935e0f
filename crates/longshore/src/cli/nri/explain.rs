use std::{collections::BTreeSet, io::Write, process::ExitCode};

use api_admin::v1::{ExplainContainerRequest, ExplainContainerResponse, FieldOwner};
use clap::Args;
use engine::nri::{Changed, FieldStory};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{
    client::{DaemonArgs, Told},
    table::Table,
};

/// Show which plugin set what of a container, also when the plugin is long gone.
///
/// A row per field, or per entry of one: what it was, what it is, and whose value that is; then
/// what that did to the OCI spec, and what was changed since. Long values are cut; `--json` has
/// them whole, and what each plugin asked for.
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
    let fields: Vec<_> = fields(&story).collect();
    let changes: Vec<_> = changes(&story).collect();
    super::story::print(out, &fields, &changes)?;
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

/// One told by an older daemon has no values.
fn fields(story: &ExplainContainerResponse) -> impl Iterator<Item = FieldStory> {
    let told = story.fields.iter().map(|f| FieldStory {
        field: f.field.clone(),
        before: value(&f.before),
        after: value(&f.after),
        plugin: f.plugin.clone(),
    });
    let bare = story.owners.iter().filter(|_| story.fields.is_empty()).map(|o| FieldStory {
        field: o.field.clone(),
        plugin: o.plugin.clone(),
        ..FieldStory::default()
    });
    told.chain(bare)
}

fn changes(story: &ExplainContainerResponse) -> impl Iterator<Item = Changed> {
    story.changes.iter().map(|c| Changed {
        path: c.path.clone(),
        before: value(&c.before),
        after: value(&c.after),
    })
}

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_default()
}

fn story_json(story: &ExplainContainerResponse) -> Value {
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
    json!({
        "plugins": answers,
        "owners": owners,
        "fields": fields(story).collect::<Vec<_>>(),
        "changes": changes(story).collect::<Vec<_>>(),
        "updates": updates,
    })
}
