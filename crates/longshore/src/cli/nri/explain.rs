use std::{collections::BTreeSet, io::Write, process::ExitCode};

use api_admin::v1::{
    ExplainContainerRequest, ExplainContainerResponse, FieldOwner, PluginEviction, PluginUpdate,
};
use clap::Args;
use engine::nri::{Changed, FieldStory, NotGranted};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{
    client::{DaemonArgs, Told},
    table::Table,
};

/// Show which plugin set what of a container, also when the plugin is long gone.
///
/// A row per field, or per entry of one: what it was, what it is, and whose value that is; then
/// what that did to the OCI spec, what plugins asked for and did not get, what was changed since,
/// and who evicted it. Long values are cut; `--json` has
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
        } else if is_empty(&story) {
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
    super::story::print_not_granted(out, &not_granted(&story).collect::<Vec<_>>())?;
    print_updates(out, story.updates)?;
    print_evictions(out, story.evictions)
}

fn is_empty(story: &ExplainContainerResponse) -> bool {
    story.answers.is_empty()
        && story.updates.is_empty()
        && story.not_granted.is_empty()
        && story.evictions.is_empty()
}

fn print_updates(out: &mut impl Write, updates: Vec<PluginUpdate>) -> std::io::Result<()> {
    if updates.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["CHANGED AT", "PLUGINS", "LIMITS ASKED FOR"]);
    for update in updates {
        let by: BTreeSet<_> = update.owners.into_iter().map(|owner| owner.plugin).collect();
        let by = by.into_iter().collect::<Vec<_>>().join(", ");
        let asked = match update.error.as_str() {
            "" => update.asked,
            error => format!("{} FAILED: {error}", update.asked),
        };
        table.row([time(update.at), by, asked]);
    }
    write!(out, "\n{table}")
}

fn print_evictions(out: &mut impl Write, evictions: Vec<PluginEviction>) -> std::io::Result<()> {
    if evictions.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["EVICTED AT", "PLUGIN", "WITH", "REASON"]);
    for evicted in evictions {
        table.row([time(evicted.at), evicted.plugin, evicted.cause, evicted.reason]);
    }
    write!(out, "\n{table}")
}

fn time(millis: i64) -> String {
    Timestamp::from_millisecond(millis).unwrap_or_default().to_string()
}

fn not_granted(story: &ExplainContainerResponse) -> impl Iterator<Item = NotGranted> {
    story.not_granted.iter().map(|refused| NotGranted {
        field: refused.field.clone(),
        asked: value(&refused.asked),
        plugin: refused.plugin.clone(),
        why: refused.why.clone(),
    })
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
            json!({ "at": u.at, "asked": value(&u.asked), "owners": owners, "error": u.error })
        })
        .collect();
    let evictions: Vec<_> = story
        .evictions
        .iter()
        .map(|e| json!({ "at": e.at, "plugin": e.plugin, "cause": e.cause, "reason": e.reason }))
        .collect();
    json!({
        "plugins": answers,
        "owners": owners,
        "fields": fields(story).collect::<Vec<_>>(),
        "changes": changes(story).collect::<Vec<_>>(),
        "updates": updates,
        "notGranted": not_granted(story).collect::<Vec<_>>(),
        "evictions": evictions,
    })
}
