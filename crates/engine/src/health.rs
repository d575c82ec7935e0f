//! Whether the node can take work, and if not, why.
//!
//! Parts write their condition when it changes; readers copy it. A reader never waits
//! for the part it asks about.

use parking_lot::RwLock;

#[derive(Debug, Default)]
pub struct Health {
    pub runtime: Condition,
    pub network: Condition,
}

/// Good until told otherwise.
#[derive(Debug, Default)]
pub struct Condition {
    trouble: RwLock<Option<Trouble>>,
}

/// Why a condition does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One word in camel case, for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Condition {
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.read().clone()
    }

    pub fn fail(&self, reason: &'static str, message: impl Into<String>) {
        *self.trouble.write() = Some(Trouble { reason, message: message.into() });
    }

    pub fn recover(&self) {
        *self.trouble.write() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_holds_until_it_fails_and_again_after_recovery() {
        let health = Health::default();
        assert_eq!(health.network.trouble(), None);
        health.network.fail("NoConfig", "the directory is empty");
        assert_eq!(health.network.trouble().unwrap().reason, "NoConfig");
        assert_eq!(health.runtime.trouble(), None);
        health.network.recover();
        assert_eq!(health.network.trouble(), None);
    }
}
