//! What exists, as plugins are told: pods and containers by the places at which they came
//! and went.
//!
//! A plugin that joins at a place is told what existed *there*, though it is told later: what
//! was created after it is announced by a request that the plugin visits, and what ended
//! after it will be. So an end is recorded at its place and the object kept until no plugin
//! joins before that place any longer.
//!
//! A creation is recorded when it has succeeded, an end when it is asked for: creations can
//! fail, ends cannot.
//!
//! **Invariant:** a container is reported stopped at most once and removed at most once, a
//! pod likewise, and each only if it was created.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::model::Place;

/// All objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table<T> {
    objects: BTreeMap<String, Entry<T>>,
    /// What was removed and is kept, so that forgetting it looks at nothing else.
    kept: BTreeSet<(Place, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry<T> {
    value: Arc<T>,
    /// `None`: was there before there was an order.
    since: Option<Place>,
    /// Its stop was asked for.
    stopped: Option<Stopped>,
    removed: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stopped {
    /// Before there was an order.
    Always,
    At(Place),
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), kept: BTreeSet::new() }
    }
}

impl<T> Table<T> {
    /// An object that exists since before the first request.
    pub fn seed(&mut self, id: &str, value: Arc<T>, stopped: bool) {
        let stopped = stopped.then_some(Stopped::Always);
        let entry = Entry { value, since: None, stopped, removed: None };
        self.objects.insert(id.to_owned(), entry);
    }

    /// The creation at this place has succeeded.
    pub fn created(&mut self, id: &str, value: Arc<T>, at: Place) {
        let entry = Entry { value, since: Some(at), stopped: None, removed: None };
        self.objects.insert(id.to_owned(), entry);
    }

    /// The newest state of an object, made only if it is known.
    pub fn refresh(&mut self, id: &str, value: impl FnOnce() -> T) {
        if let Some(entry) = self.objects.get_mut(id) {
            entry.value = Arc::new(value());
        }
    }

    pub fn get(&self, id: &str) -> Option<&Arc<T>> {
        self.objects.get(id).filter(|entry| entry.removed.is_none()).map(|entry| &entry.value)
    }

    /// Whether it exists and its stop was not asked for.
    pub fn is_live(&self, id: &str) -> bool {
        self.objects.get(id).is_some_and(|e| e.stopped.is_none() && e.removed.is_none())
    }

    /// Whether it exists, stopped or not.
    pub fn is_known(&self, id: &str) -> bool {
        self.get(id).is_some()
    }

    pub fn stop(&mut self, id: &str, at: Place) {
        if let Some(entry) = self.objects.get_mut(id) {
            entry.stopped.get_or_insert(Stopped::At(at));
        }
    }

    pub fn remove(&mut self, id: &str, at: Place) {
        if let Some(entry) = self.objects.get_mut(id) {
            entry.stopped.get_or_insert(Stopped::At(at));
            let end = *entry.removed.get_or_insert(at);
            self.kept.insert((end, id.to_owned()));
        }
    }

    /// What existed at the place, stopped or not.
    pub fn known_at(&self, at: Place) -> impl Iterator<Item = (&str, &Arc<T>)> {
        let known = move |entry: &Entry<T>| {
            entry.since.is_none_or(|since| since < at) && entry.removed.is_none_or(|end| end > at)
        };
        self.objects.iter().filter(move |(_, e)| known(e)).map(|(id, e)| (id.as_str(), &e.value))
    }

    /// What existed at the place and had not been stopped.
    pub fn live_at(&self, at: Place) -> impl Iterator<Item = (&str, &Arc<T>)> {
        let live = move |id: &str| match self.objects.get(id).and_then(|entry| entry.stopped) {
            None => true,
            Some(Stopped::Always) => false,
            Some(Stopped::At(stopped)) => stopped > at,
        };
        self.known_at(at).filter(move |(id, _)| live(id))
    }

    /// Forgets what ended before any place a plugin is still to be told about.
    pub fn prune(&mut self, earliest_join: Option<Place>) {
        let needed = |end: Place| earliest_join.is_some_and(|join| end > join);
        while let Some((end, id)) = self.kept.pop_first() {
            if needed(end) {
                self.kept.insert((end, id));
                return;
            }
            // One of the same name may have come since.
            if self.objects.get(&id).is_some_and(|entry| entry.removed == Some(end)) {
                self.objects.remove(&id);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<T>)> {
        let known = self.objects.iter().filter(|(_, entry)| entry.removed.is_none());
        known.map(|(id, entry)| (id.as_str(), &entry.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pipeline;

    fn places<const N: usize>() -> [Place; N] {
        let mut pipeline = Pipeline::default();
        [(); N].map(|()| pipeline.admit(nri_wire::api::Event::StopContainer, |_| true, |_| false).0)
    }

    fn ids<'a>(objects: impl Iterator<Item = (&'a str, &'a Arc<u8>)>) -> Vec<&'a str> {
        objects.map(|(id, _)| id).collect()
    }

    #[test]
    fn a_place_sees_what_came_before_and_had_not_gone() {
        let [p1, p2, p3, p4, p5] = places();
        let mut table = Table::default();
        table.seed("old", Arc::new(0), false);
        table.seed("dead", Arc::new(0), true);
        table.created("a", Arc::new(0), p1);
        table.created("late", Arc::new(0), p4);
        table.stop("a", p5);
        table.stop("old", p2);
        assert_eq!(ids(table.live_at(p3)), ["a"]);
        assert_eq!(ids(table.known_at(p3)), ["a", "dead", "old"]);
        assert!(!table.is_live("a") && table.is_known("a"));
    }

    #[test]
    fn what_ended_stays_as_long_as_an_earlier_join_may_ask() {
        let [p1, join, p3] = places();
        let mut table = Table::default();
        table.created("a", Arc::new(0), p1);
        table.remove("a", p3);
        assert!(!table.is_known("a"));
        table.prune(Some(join));
        assert_eq!(ids(table.live_at(join)), ["a"]);
        table.prune(None);
        assert_eq!(ids(table.known_at(join)), Vec::<&str>::new());
    }

    #[test]
    fn an_id_that_comes_back_is_new() {
        let [p1, p2, p3] = places();
        let mut table = Table::default();
        table.created("a", Arc::new(1), p1);
        table.remove("a", p2);
        table.created("a", Arc::new(2), p3);
        table.prune(None);
        assert_eq!(table.get("a").map(|v| **v), Some(2));
        assert!(table.is_live("a"));
    }
}
