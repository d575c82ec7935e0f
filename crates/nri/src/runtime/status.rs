//! Who is there, and who is not, for people.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use nri_wire::{EventMask, PluginId};
use tokio::time::Instant;

use super::{Nri, program::Phase};
use crate::{output::OutputLine, peer::Origin, settings::PluginPolicy, tally::Calls};

/// One plugin, for people.
#[derive(Clone, Debug)]
pub struct PluginStatus {
    pub id: PluginId,
    pub origin: Origin,
    /// Of NRI, as it says; old plugins do not.
    pub version: String,
    pub events: EventMask,
    pub policy: PluginPolicy,
    /// For one answer.
    pub limit: Duration,
    /// Since it is connected.
    pub calls: Calls,
    /// Knows all that exists and is asked.
    pub active: bool,
    pub age: Duration,
    /// Answers it owes, in a row.
    pub strikes: u32,
    /// The last lines that it printed, oldest first; only of launched plugins.
    pub output: Vec<OutputLine>,
}

/// A plugin that is not connected.
#[derive(Clone, Debug)]
pub struct AbsentPlugin {
    /// `NN-name`, or what it calls itself.
    pub name: String,
    pub origin: Origin,
    pub absence: Absence,
    /// Why it is not there; empty where nothing has gone wrong yet.
    pub reason: String,
    /// Since it is in this state.
    pub age: Duration,
    /// The last lines that it printed, oldest first; only of launched plugins.
    pub output: Vec<OutputLine>,
}

/// The state of a plugin that is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It was started, and has not registered yet.
    Starting,
    /// It is started again after a pause.
    BackingOff { remaining: Duration },
    /// It was there, or is required, and nobody starts it.
    Down,
    /// It may not be there.
    Rejected,
}

impl Nri {
    /// Who is there, in the order in which they are asked.
    pub fn plugins(&self) -> Vec<PluginStatus> {
        let mut output = self.output_by_pid();
        let state = self.shared.state.lock();
        let mut plugins: Vec<_> = state
            .peers
            .iter()
            .filter(|(_, peer)| !peer.is_gone())
            .map(|(lane, peer)| PluginStatus {
                id: peer.id.clone(),
                origin: peer.origin.clone(),
                version: peer.version.clone(),
                events: peer.events,
                policy: peer.treatment().policy.clone(),
                limit: peer.treatment().limit,
                calls: peer.calls(),
                active: state.active.contains(lane),
                age: Instant::now().saturating_duration_since(peer.since),
                strikes: peer.strikes(),
                output: match peer.origin {
                    Origin::Launched { pid } => output.remove(&pid).unwrap_or_default(),
                    _ => Vec::new(),
                },
            })
            .collect();
        plugins.sort_by(|a, b| a.id.cmp(&b.id));
        plugins
    }

    fn output_by_pid(&self) -> HashMap<u32, Vec<OutputLine>> {
        let services = self.shared.services.lock();
        let programs = services.launched.values().map(|launched| launched.program());
        programs.map(|program| (program.state().phase.pid(), program.output())).collect()
    }

    /// Who should be there and is not, by name.
    pub fn absent_plugins(&self) -> Vec<AbsentPlugin> {
        let mut absent = self.absent_programs();
        absent.extend(self.shared.services.lock().left_out.iter().cloned());
        let here: BTreeSet<_> = self.plugins().iter().map(|p| p.id.to_string()).collect();
        let external = self.shared.absentees.lock();
        absent.extend(external.list(Instant::now(), |name| here.contains(name)));
        drop(external);
        self.add_missing(&mut absent);
        absent.sort_by(|a, b| a.name.cmp(&b.name));
        absent
    }

    /// Adds required plugins of which nothing else is known.
    fn add_missing(&self, absent: &mut Vec<AbsentPlugin>) {
        let settings = self.shared.settings.load();
        let here = self.plugins();
        for (name, _) in settings.required().filter(|_| settings.enabled) {
            let called =
                |id: &str| id == name || id.split_once('-').is_some_and(|(_, n)| n == name);
            if here.iter().any(|plugin| called(&plugin.id.to_string()))
                || absent.iter().any(|plugin| called(&plugin.name))
            {
                continue;
            }
            let reason = "it is required, and has not connected since the daemon started";
            absent.push(AbsentPlugin {
                name: name.to_owned(),
                origin: Origin::External { pid: None, uid: u32::MAX },
                absence: Absence::Down,
                reason: reason.to_owned(),
                age: Instant::now().saturating_duration_since(self.shared.since),
                output: Vec::new(),
            });
        }
    }

    fn absent_programs(&self) -> Vec<AbsentPlugin> {
        let programs: Vec<_> = {
            let services = self.shared.services.lock();
            services.launched.values().map(|launched| launched.program().clone()).collect()
        };
        let state = self.shared.state.lock();
        let now = Instant::now();
        let connected = |pid: u32| {
            let mut peers = state.peers.values().filter(|peer| !peer.is_gone());
            peers.any(|peer| peer.origin == Origin::Launched { pid })
        };
        let absent = programs.iter().filter_map(|program| {
            let known = program.state();
            let absence = match known.phase {
                Phase::Joined { pid } | Phase::Starting { pid } if connected(pid) => return None,
                Phase::Starting { .. } => Absence::Starting,
                // Its process is about to be ended.
                Phase::Joined { .. } => Absence::Down,
                Phase::BackingOff { until } => {
                    Absence::BackingOff { remaining: until.saturating_duration_since(now) }
                }
                Phase::Down => Absence::Down,
            };
            Some(AbsentPlugin {
                name: program.id.to_string(),
                // Who has a process is not yet, or no more, a plugin.
                origin: Origin::Launched { pid: 0 },
                absence,
                reason: known.reason,
                age: now.saturating_duration_since(known.since),
                output: program.output(),
            })
        });
        absent.collect()
    }
}
