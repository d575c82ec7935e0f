//! What a simulation showed, for people and for programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    time::Duration,
};

use base::Chain;
use engine::{
    EngineError,
    nri::{Notice, PluginId},
    simulate::{Creation, Step},
};
use serde_json::{Value, json};

use crate::cli::table::Table;

#[derive(Debug, Default)]
pub(super) struct Report {
    /// The plugins that were part of it, with the events they subscribed to.
    pub(super) joined: BTreeMap<String, String>,
    /// What happened before the first step and after the last.
    pub(super) notices: Vec<Notice>,
    pub(super) outcomes: Vec<Outcome>,
    /// Everybody, in the order in which they are asked.
    plugins: Vec<String>,
    unseen: Vec<String>,
}

/// One step and what came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    event: String,
    container: String,
    error: Option<String>,
    /// It was about what an earlier step failed to make.
    skipped: bool,
    created: Option<Box<Creation>>,
    notices: Vec<Notice>,
}

impl Outcome {
    pub(super) fn new(
        step: &Step,
        done: Result<Option<Box<Creation>>, EngineError>,
        notices: Vec<Notice>,
    ) -> Self {
        let json = serde_json::to_value(step).unwrap_or_default();
        let container = match &json["container"] {
            Value::String(name) => name.clone(),
            described => described["container"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        let event = json["event"].as_str().unwrap_or_default().to_owned();
        let skipped = matches!(&done, Err(EngineError::NotFound { .. }));
        let error = done.as_ref().err().map(|error| Chain(error).to_string());
        let created = done.ok().flatten();
        Self { event, container, error, skipped, created, notices }
    }

    fn answers(&self) -> impl Iterator<Item = Answer<'_>> {
        self.notices.iter().filter_map(|notice| match notice {
            Notice::Answered { plugin, about, micros, asked } => {
                let (event, micros) = (about.event.as_str(), *micros);
                Some(Answer { plugin, event, micros, asked: Some(asked), failed: None })
            }
            Notice::Failed { plugin, about, micros, why, .. } => {
                let (event, micros) = (about.event.as_str(), *micros);
                Some(Answer { plugin, event, micros, asked: None, failed: Some(why) })
            }
            _ => None,
        })
    }

    /// Changes of other containers.
    fn changes(&self) -> impl Iterator<Item = Value> {
        self.notices.iter().filter_map(|notice| match notice {
            Notice::Changed { .. } => serde_json::to_value(notice).ok(),
            _ => None,
        })
    }
}

struct Answer<'a> {
    plugin: &'a str,
    event: &'a str,
    micros: u64,
    asked: Option<&'a Value>,
    failed: Option<&'a str>,
}

// === the whole ===

impl Report {
    pub(super) fn complete(&mut self, plugins: Vec<PluginId>, unseen: Vec<String>) {
        let mut plugins: Vec<_> = plugins.into_iter().collect();
        plugins.sort();
        self.plugins = plugins.iter().map(ToString::to_string).collect();
        self.unseen = unseen;
    }

    fn all_notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter().chain(self.outcomes.iter().flat_map(|outcome| &outcome.notices))
    }

    /// What is wrong with a plugin, in the order it happened.
    fn problems(&self, id: &str) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let problems = self.all_notices().filter_map(|notice| match notice {
            Notice::NotJoined { plugin, why } if plugin == id => Some(why.clone()),
            Notice::Ended { plugin, status } if plugin == id => {
                Some(format!("its process ended: {status}"))
            }
            Notice::Failed { plugin, about, why, .. } if plugin == id => {
                Some(format!("{}: {why}", about.event))
            }
            _ => None,
        });
        problems.filter(|problem| seen.insert(problem.clone())).collect()
    }

    pub(super) fn is_good(&self) -> bool {
        let failed = self.outcomes.iter().any(|outcome| outcome.error.is_some());
        !failed && self.plugins.iter().all(|id| self.problems(id).is_empty())
    }

    pub(super) fn json(&self) -> Value {
        let plugins = self.plugins.iter().map(|id| {
            let (events, problems) = (self.joined.get(id), self.problems(id));
            json!({ "id": id, "joined": events.is_some(), "events": events, "problems": problems })
        });
        let steps = self.outcomes.iter().filter(|outcome| !outcome.skipped).map(step_json);
        json!({
            "ok": self.is_good(),
            "plugins": plugins.collect::<Vec<_>>(),
            "steps": steps.collect::<Vec<_>>(),
            "unseen": self.unseen,
        })
    }
}

fn step_json(outcome: &Outcome) -> Value {
    let answers = outcome.answers().map(|answer| {
        let Answer { plugin, event, micros, asked, failed } = answer;
        json!({ "plugin": plugin, "event": event, "micros": micros, "asked": asked,
                "failed": failed })
    });
    let mut step = json!({
        "event": outcome.event,
        "container": outcome.container,
        "error": outcome.error,
        "answers": answers.collect::<Vec<_>>(),
        "changed": outcome.changes().collect::<Vec<_>>(),
    });
    if let Some(created) = &outcome.created {
        let story = &created.adjusted.story;
        let ignored = created.adjusted.ignored.iter();
        let ignored: Vec<_> = ignored.map(|i| json!({ "field": i.field, "why": i.why })).collect();
        step["merged"] = created.merged.clone();
        step["owners"] = json!(story.owners);
        step["fields"] = json!(story.fields);
        step["changes"] = json!(story.changes);
        step["ignored"] = Value::Array(ignored);
    }
    step
}

// === for people ===

impl Report {
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let mut plugins = Table::new(["PLUGIN", "STATE", "EVENTS"]);
        for id in &self.plugins {
            let (problems, events) = (self.problems(id), self.joined.get(id));
            let state = match (events, problems.is_empty()) {
                (None, _) => "did not join",
                (Some(_), true) => "ok",
                (Some(_), false) => "failed",
            };
            let events = events.cloned().unwrap_or_default();
            plugins.row([id.clone(), state.to_owned(), events]);
        }
        write!(out, "{plugins}")?;
        for id in &self.plugins {
            for problem in self.problems(id) {
                writeln!(out, "{id}: {problem}")?;
            }
        }
        for part in &self.unseen {
            writeln!(out, "not simulated: {part}")?;
        }
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.skipped) {
            outcome.print(out)?;
        }
        Ok(())
    }
}

impl Outcome {
    /// What nobody had anything to say to is not worth a line.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let says = |answer: &Answer<'_>| answer.asked.is_none_or(|asked| !asked.is_null());
        let answers: Vec<_> = self.answers().filter(says).collect();
        if answers.is_empty() && self.error.is_none() {
            return Ok(());
        }
        let of = if self.container.is_empty() { "" } else { " of " };
        writeln!(out, "\n{}{of}{}", self.event, self.container)?;
        let mut asked = Table::new(["PLUGIN", "TOOK", "ASKED FOR"]);
        for answer in answers {
            let took = format!("{:?}", Duration::from_micros(answer.micros));
            let said = match (answer.asked, answer.failed) {
                (Some(asked), _) => asked.to_string(),
                (None, why) => format!("failed: {}", why.unwrap_or_default()),
            };
            asked.row([answer.plugin.to_owned(), took, said]);
        }
        write!(out, "{asked}")?;
        for change in self.changes() {
            writeln!(out, "changed: {change}")?;
        }
        if let Some(created) = &self.created {
            print_created(out, created)?;
        }
        match &self.error {
            Some(error) => writeln!(out, "ERROR: {error}"),
            None => Ok(()),
        }
    }
}

fn print_created(out: &mut impl Write, created: &Creation) -> io::Result<()> {
    let story = &created.adjusted.story;
    if story.is_empty() {
        return Ok(());
    }
    writeln!(out, "merged: {}\n", created.merged)?;
    super::story::print(out, &story.fields, &story.changes)?;
    for ignored in &created.adjusted.ignored {
        writeln!(out, "without effect: {}: {}", ignored.field, ignored.why)?;
    }
    Ok(())
}
