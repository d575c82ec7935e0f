//! External plugins that were refused or have gone, for as long as that is news.
//!
//! **Invariant:** bounded, however often and under however many names somebody tries. Pure.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::status::{Absence, AbsentPlugin};
use crate::{output::printable_text, peer::Origin};

/// How many are remembered; the oldest is forgotten for one more.
const KEPT: usize = 16;
/// How long one is remembered.
const FOR: Duration = Duration::from_secs(3600);

/// The external plugins that are not there.
#[derive(Debug, Default)]
pub(super) struct Absentees {
    /// Oldest first, one per name.
    entries: VecDeque<Absentee>,
}

#[derive(Debug)]
struct Absentee {
    name: String,
    origin: Origin,
    absence: Absence,
    reason: String,
    at: Instant,
    /// How often in a row.
    times: u32,
}

impl Absentees {
    /// Notes that a plugin was refused, or has gone.
    pub(super) fn note(
        &mut self,
        name: &str,
        origin: Origin,
        absence: Absence,
        reason: &str,
        now: Instant,
    ) {
        let (name, reason) = (printable_text(name), printable_text(reason));
        let before = self.entries.iter().position(|entry| entry.name == name);
        let before = before.and_then(|at| self.entries.remove(at));
        let again = before.filter(|entry| entry.absence == absence && entry.reason == reason);
        let times = again.map_or(0, |entry| entry.times).saturating_add(1);
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Absentee { name, origin, absence, reason, at: now, times });
    }

    /// Lists those that are not here again.
    pub(super) fn list(&self, now: Instant, is_here: impl Fn(&str) -> bool) -> Vec<AbsentPlugin> {
        let age = |entry: &Absentee| now.saturating_duration_since(entry.at);
        let news = self.entries.iter().filter(|entry| age(entry) < FOR && !is_here(&entry.name));
        news.map(|entry| AbsentPlugin {
            name: entry.name.clone(),
            origin: entry.origin.clone(),
            absence: entry.absence,
            reason: match entry.times {
                1 => entry.reason.clone(),
                times => format!("{} ({times} times)", entry.reason),
            },
            age: age(entry),
            output: Vec::new(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(absentees: &Absentees, now: Instant) -> Vec<(String, String)> {
        let all = absentees.list(now, |name| name == "10-here").into_iter();
        all.map(|plugin| (plugin.name, plugin.reason)).collect()
    }

    #[test]
    fn a_name_is_listed_once_and_few_are_kept() {
        let (mut absentees, now) = (Absentees::default(), Instant::now());
        let mut note = |name: &str, reason: &str, now| {
            absentees.note(name, Origin::BuiltIn, Absence::Rejected, reason, now);
        };
        note("10-here", "was refused", now);
        (0..3).for_each(|_| note("10-a", "no\x1b", now));
        note("20-b", "never", now);
        let want = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
        let both = [want("10-a", r"no\u{1b} (3 times)"), want("20-b", "never")];
        assert_eq!(listed(&absentees, now), both);
        let later = now + FOR - Duration::from_secs(1);
        (0..100).for_each(|number| {
            let name = format!("{number:02}-x");
            absentees.note(&name, Origin::BuiltIn, Absence::Down, "gone", later);
        });
        let all = listed(&absentees, later);
        assert_eq!((all.len(), all[KEPT - 1].0.as_str()), (KEPT, "99-x"));
        assert_eq!(listed(&absentees, later + FOR), []);
    }
}
