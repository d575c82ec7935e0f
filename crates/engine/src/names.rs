//! Who holds which name, and who waits for whom.
//!
//! A client that lost its answer asks again with the same name. If the work is still in
//! flight it joins it; if it is done but nobody has the answer, it takes it; only once an
//! answer was delivered is a second request a conflict.
//!
//! ```text
//!            claim           finished(Ok)         delivered
//!   free ──────────> making ─────────────> made ─────────────> taken
//!     ^                │ finished(Err)       │ released           │ released
//!     └────────────────┴─────────────────────┴────────────────────┘
//! ```

use std::collections::BTreeMap;

use base::Id;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::EngineError;

/// How the making of something ended; `None` while it goes on.
pub(crate) type Outcome = Option<Result<(), EngineError>>;

/// The names of one kind of object.
#[derive(Debug, Default)]
pub(crate) struct Names {
    held: Mutex<BTreeMap<String, Held>>,
}

#[derive(Debug)]
struct Held {
    id: Id,
    state: State,
}

#[derive(Debug)]
enum State {
    Making(watch::Receiver<Outcome>),
    /// Done, and its maker has not said that a client knows.
    Made,
    Taken,
}

/// What a request finds under its name.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Nobody had it: the caller makes the object and tells the outcome.
    New(watch::Sender<Outcome>),
    /// Somebody is making it: wait for the outcome.
    Join(Id, watch::Receiver<Outcome>),
    /// It is there, and nobody knows.
    Undelivered(Id),
    Taken(Id),
}

impl Names {
    pub(crate) fn claim(&self, name: &str, id: Id) -> Claim {
        let mut held = self.held.lock();
        if let Some(held) = held.get(name) {
            return match &held.state {
                State::Making(outcome) => Claim::Join(held.id, outcome.clone()),
                State::Made => Claim::Undelivered(held.id),
                State::Taken => Claim::Taken(held.id),
            };
        }
        let (tell, outcome) = watch::channel(None);
        held.insert(name.to_owned(), Held { id, state: State::Making(outcome) });
        Claim::New(tell)
    }

    /// The object is there; who waits hears of it through the sender of the claim.
    pub(crate) fn made(&self, name: &str) {
        self.set(name, State::Made);
    }

    pub(crate) fn delivered(&self, name: &str) {
        self.set(name, State::Taken);
    }

    /// Found at start: `delivered` as the record says.
    pub(crate) fn restore(&self, name: &str, id: Id, delivered: bool) {
        let state = if delivered { State::Taken } else { State::Made };
        self.held.lock().insert(name.to_owned(), Held { id, state });
    }

    /// Only of the object that holds it: a name may have a new holder already.
    pub(crate) fn release(&self, name: &str, id: Id) {
        let mut names = self.held.lock();
        if names.get(name).is_some_and(|held| held.id == id) {
            names.remove(name);
        }
    }

    fn set(&self, name: &str, state: State) {
        if let Some(held) = self.held.lock().get_mut(name) {
            held.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_joins_what_is_in_flight_and_gets_what_nobody_took() {
        let (names, first, second) = (Names::default(), Id::random(), Id::random());
        let Claim::New(tell) = names.claim("web", first) else { panic!("free") };
        let Claim::Join(id, outcome) = names.claim("web", second) else { panic!("in flight") };
        assert_eq!(id, first);
        names.made("web");
        tell.send_replace(Some(Ok(())));
        assert!(matches!(*outcome.borrow(), Some(Ok(()))));
        assert!(matches!(names.claim("web", second), Claim::Undelivered(id) if id == first));
        names.delivered("web");
        assert!(matches!(names.claim("web", second), Claim::Taken(id) if id == first));
    }

    #[test]
    fn a_failed_or_removed_one_frees_its_name_but_not_its_successors() {
        let (names, first, second) = (Names::default(), Id::random(), Id::random());
        assert!(matches!(names.claim("web", first), Claim::New(_)));
        names.release("web", first);
        assert!(matches!(names.claim("web", second), Claim::New(_)));
        names.release("web", first);
        assert!(matches!(names.claim("web", first), Claim::Join(id, _) if id == second));
    }
}
