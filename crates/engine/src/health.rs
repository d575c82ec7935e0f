//! Whether the node can take work, and if not, why.
//!
//! Parts write their condition when it changes; readers copy it. A reader never waits
//! for the part it asks about.

use std::collections::BTreeMap;

use parking_lot::RwLock;

#[derive(Debug, Default)]
pub struct Health {
    pub runtime: Condition,
    pub network: Condition,
    pub deprecations: Deprecations,
}

/// What works today and is on its way out: each once, however often it is met.
#[derive(Debug, Default)]
pub struct Deprecations {
    met: RwLock<BTreeMap<&'static str, &'static str>>,
}

impl Deprecations {
    /// `name` is for programs, `advice` a sentence for people.
    pub fn note(&self, name: &'static str, advice: &'static str) {
        if self.met.read().contains_key(name) {
            return;
        }
        if self.met.write().insert(name, advice).is_none() {
            tracing::warn!(name, "deprecated: {advice}");
        }
    }

    pub fn met(&self) -> BTreeMap<&'static str, &'static str> {
        self.met.read().clone()
    }
}

/// Good until told otherwise.
#[derive(Debug, Default)]
pub struct Condition {
    told: RwLock<Told>,
}

/// A condition as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub holds: bool,
    /// One word in camel case, for programs; empty if there is nothing to say.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Default for Told {
    fn default() -> Self {
        Self { holds: true, reason: "", message: String::new() }
    }
}

impl Condition {
    pub fn told(&self) -> Told {
        self.told.read().clone()
    }

    pub fn fail(&self, reason: &'static str, message: impl Into<String>) {
        *self.told.write() = Told { holds: false, reason, message: message.into() };
    }

    /// It holds, and there is something to be seen to.
    pub fn warn(&self, reason: &'static str, message: impl Into<String>) {
        *self.told.write() = Told { holds: true, reason, message: message.into() };
    }

    pub fn recover(&self) {
        *self.told.write() = Told::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_holds_until_it_fails_and_again_after_recovery() {
        let health = Health::default();
        assert!(health.network.told().holds);
        health.network.fail("NoConfig", "the directory is empty");
        let told = health.network.told();
        assert!(!told.holds && told.reason == "NoConfig");
        assert!(health.runtime.told().holds);
        health.network.warn("Odd", "look at it");
        let told = health.network.told();
        assert!(told.holds && told.message == "look at it");
        health.network.recover();
        assert_eq!(health.network.told().reason, "");
    }

    #[test]
    fn a_deprecation_is_noted_once() {
        let health = Health::default();
        assert!(health.deprecations.met().is_empty());
        health.deprecations.note("b", "use c");
        health.deprecations.note("a", "use d");
        health.deprecations.note("b", "use e");
        let met: Vec<_> = health.deprecations.met().into_iter().collect();
        assert_eq!(met, [("a", "use d"), ("b", "use c")]);
    }
}
