//! Who has which CPUs. No I/O and no protocol here.
//!
//! ```text
//!   cpus:   0 1 2 3 | 4 5 | 6 7
//!           shared    slow  fast      a balloon takes from the right end of the shared CPUs
//! ```
//!
//! **Invariant:** balloons and the shared CPUs are disjoint and together all CPUs; the
//! shared ones are never fewer than `shared_min`; a balloon without members has no CPUs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cpuset::CpuSet;

/// As the configuration file writes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// CPUs to divide; all that are online where it is missing.
    pub(crate) cpus: Option<String>,
    /// CPUs that balloons leave to everybody else.
    #[serde(default = "one")]
    pub(crate) shared_min: usize,
    pub(crate) classes: BTreeMap<String, Class>,
}

/// How a balloon grows.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// CPUs for the first container.
    #[serde(default = "one")]
    pub(crate) min: usize,
    pub(crate) max: usize,
    #[serde(default = "one")]
    pub(crate) per_container: usize,
}

fn one() -> usize {
    1
}

#[derive(Clone, Debug)]
pub(crate) struct Balloons {
    classes: BTreeMap<String, Class>,
    shared_min: usize,
    shared: CpuSet,
    balloons: BTreeMap<String, Balloon>,
    /// Containers without a class.
    others: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
struct Balloon {
    cpus: CpuSet,
    members: BTreeSet<String>,
}

impl Balloons {
    pub(crate) fn new(config: Config, cpus: CpuSet) -> anyhow::Result<Self> {
        ensure!(config.shared_min >= 1, "shared_min must not be 0");
        ensure!(cpus.len() > config.shared_min, "{} CPUs cannot be divided", cpus.len());
        for (name, class) in &config.classes {
            let right = 1 <= class.min && class.min <= class.max && class.per_container >= 1;
            ensure!(right, "class {name}: 1 <= min <= max and 1 <= per_container must hold");
        }
        Ok(Self {
            classes: config.classes,
            shared_min: config.shared_min,
            shared: cpus,
            balloons: BTreeMap::new(),
            others: BTreeSet::new(),
        })
    }

    /// Takes a container in, or leaves all as it was and says why.
    pub(crate) fn join(&mut self, id: &str, class: Option<&str>) -> anyhow::Result<()> {
        self.leave(id);
        let Some(name) = class else {
            self.others.insert(id.to_owned());
            return Ok(());
        };
        let class = *self.classes.get(name).with_context(|| format!("no class {name:?}"))?;
        let balloon = self.balloons.entry(name.to_owned()).or_default();
        balloon.members.insert(id.to_owned());
        self.fit(name);
        let cpus = self.balloons.get(name).map_or(0, |balloon| balloon.cpus.len());
        if cpus < class.min {
            self.leave(id);
            anyhow::bail!("class {name} needs {} CPUs and can have {cpus}", class.min);
        }
        Ok(())
    }

    /// Whether it was there.
    pub(crate) fn leave(&mut self, id: &str) -> bool {
        if self.others.remove(id) {
            return true;
        }
        let balloons = &mut self.balloons;
        let Some(name) = balloons
            .iter_mut()
            .find_map(|(name, balloon)| balloon.members.remove(id).then(|| name.clone()))
        else {
            return false;
        };
        self.fit(&name);
        self.balloons.retain(|_, balloon| !balloon.members.is_empty());
        true
    }

    /// The CPUs of a container.
    pub(crate) fn cpus_of(&self, id: &str) -> Option<&CpuSet> {
        let balloon = self.balloons.values().find(|balloon| balloon.members.contains(id));
        let other = || self.others.contains(id).then_some(&self.shared);
        balloon.map(|balloon| &balloon.cpus).or_else(other)
    }

    /// The CPUs of every container.
    pub(crate) fn all(&self) -> BTreeMap<String, CpuSet> {
        let members = self.balloons.values().flat_map(|balloon| {
            balloon.members.iter().map(|id| (id.clone(), balloon.cpus.clone()))
        });
        members.chain(self.others.iter().map(|id| (id.clone(), self.shared.clone()))).collect()
    }

    /// Blows up or lets air out until the balloon has what its members want, or what is left.
    fn fit(&mut self, name: &str) {
        let (Some(balloon), Some(class)) = (self.balloons.get_mut(name), self.classes.get(name))
        else {
            return;
        };
        let wanted = match balloon.members.len() {
            0 => 0,
            members => (members * class.per_container).clamp(class.min, class.max),
        };
        while balloon.cpus.len() < wanted && self.shared.len() > self.shared_min {
            let Some(cpu) = self.shared.0.pop_last() else { break };
            balloon.cpus.0.insert(cpu);
        }
        // The first to go is the nearest to the shared ones.
        while balloon.cpus.len() > wanted {
            let Some(cpu) = balloon.cpus.0.pop_first() else { break };
            self.shared.0.insert(cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn balloons() -> Balloons {
        let class = |min, max, per_container| Class { min, max, per_container };
        let classes = BTreeMap::from([
            ("fast".to_owned(), class(2, 4, 1)),
            ("slow".to_owned(), class(1, 2, 1)),
        ]);
        let config = Config { cpus: None, shared_min: 2, classes };
        Balloons::new(config, "0-7".parse().unwrap()).unwrap()
    }

    #[test]
    fn a_balloon_grows_and_shrinks_with_its_members() {
        let mut all = balloons();
        let mut step = |id: &str, class: Option<&str>, fast: &str, shared: &str| {
            match class {
                Some("gone") => assert!(all.leave(id)),
                class => all.join(id, class).unwrap(),
            }
            let text = |id| all.cpus_of(id).map(ToString::to_string).unwrap_or_default();
            assert_eq!((text("a"), text("other")), (fast.to_owned(), shared.to_owned()));
        };
        step("other", None, "", "0-7");
        step("a", Some("fast"), "6-7", "0-5");
        step("b", Some("fast"), "6-7", "0-5");
        step("c", Some("fast"), "5-7", "0-4");
        step("d", Some("fast"), "4-7", "0-3");
        step("e", Some("fast"), "4-7", "0-3");
        step("e", Some("gone"), "4-7", "0-3");
        step("d", Some("gone"), "5-7", "0-4");
        step("c", Some("gone"), "6-7", "0-5");
        step("b", Some("gone"), "6-7", "0-5");
        step("a", Some("gone"), "", "0-7");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut all = balloons();
        for id in ["a", "b", "c", "d"] {
            all.join(id, Some("fast")).unwrap();
        }
        all.join("s", Some("slow")).unwrap();
        all.join("t", Some("slow")).unwrap();
        let before = all.all();
        let mut full = all.clone();
        full.classes.insert("big".into(), Class { min: 1, max: 1, per_container: 1 });
        let error = full.join("x", Some("big")).unwrap_err();
        assert_eq!(error.to_string(), "class big needs 1 CPUs and can have 0");
        assert_eq!(full.all(), before);
        assert!(all.join("x", Some("none")).is_err());
        assert_eq!(all.all(), before);
        assert!(!all.leave("x"));
    }

    #[test]
    fn bad_settings_are_refused() {
        let parse = |text: &str| {
            let config: Config = serde_saphyr::from_str(text).unwrap();
            Balloons::new(config, "0-3".parse().unwrap())
        };
        assert!(parse("classes: {a: {max: 2}}").is_ok());
        assert!(parse("classes: {a: {min: 3, max: 2}}").is_err());
        assert!(parse("classes: {a: {min: 0, max: 2}}").is_err());
        assert!(parse("{shared_min: 4, classes: {}}").is_err());
        assert!(parse("{shared_min: 0, classes: {}}").is_err());
    }

    fn step() -> impl Strategy<Value = (String, Option<Option<&'static str>>)> {
        let class = prop_oneof![Just(None), Just(Some("fast")), Just(Some("slow"))];
        ("[a-h]", proptest::option::of(class))
    }

    proptest! {
        #[test]
        fn cpus_are_divided_without_overlap(steps in proptest::collection::vec(step(), 0..60)) {
            let mut all = balloons();
            let mut members = BTreeMap::new();
            for (id, step) in steps {
                match step {
                    Some(class) => match all.join(&id, class) {
                        Ok(()) => drop(members.insert(id, class)),
                        Err(_) => drop(members.remove(&id)),
                    },
                    None => prop_assert_eq!(all.leave(&id), members.remove(&id).is_some()),
                }
                let mut union = all.shared.0.clone();
                for balloon in all.balloons.values() {
                    prop_assert!(union.is_disjoint(&balloon.cpus.0));
                    prop_assert!(balloon.cpus.len() > 0 && !balloon.members.is_empty());
                    union.extend(&balloon.cpus.0);
                }
                prop_assert_eq!(&union, &(0..8).collect());
                prop_assert!(all.shared.len() >= 2);
                prop_assert!(all.all().keys().eq(members.keys()));
            }
        }
    }
}
