//! The order in which servers are asked, and when to give up.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::error::{Refusal, RegistryError};

const FIRST_PAUSE: Duration = Duration::from_millis(250);

const SOME: u64 = 16 << 10;
const MANY: u64 = 1 << 20;

/// Pure: says who is next and how long to wait before; the caller asks and reports back.
#[derive(Debug)]
pub(super) struct Tries {
    /// Servers, best first; numbers are the caller's.
    order: Vec<usize>,
    queue: VecDeque<usize>,
    rounds: u32,
    round: u32,
    /// What each server said last.
    refusals: BTreeMap<usize, Refusal>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) server: usize,
    pub(super) after: Duration,
}

impl Tries {
    pub(super) fn new(order: Vec<usize>, rounds: u32) -> Self {
        let queue = order.iter().copied().collect();
        Self { order, queue, rounds, round: 0, refusals: BTreeMap::new() }
    }

    pub(super) fn next(&mut self) -> Option<Next> {
        if let Some(server) = self.queue.pop_front() {
            return Some(Next { server, after: Duration::ZERO });
        }
        self.round += 1;
        if self.round >= self.rounds || self.is_settled() {
            return None;
        }
        // Who gave a plain no is not asked again.
        let again = |server: &usize| self.refusals.get(server).is_some_and(Refusal::is_transient);
        self.queue = self.order.iter().copied().filter(again).collect();
        let server = self.queue.pop_front()?;
        let asked = self.refusals.values().filter_map(Refusal::retry_after).max();
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.round - 1);
        Some(Next { server, after: asked.unwrap_or(pause).max(pause) })
    }

    /// The registry itself, always the last number, gave an answer that time will not
    /// change.
    fn is_settled(&self) -> bool {
        let registry = self.order.iter().max();
        let answer = registry.and_then(|registry| self.refusals.get(registry));
        answer.is_some_and(|refusal| !refusal.is_transient())
    }

    pub(super) fn refused(&mut self, server: usize, refusal: Refusal) {
        self.refusals.insert(server, refusal);
    }

    /// Bytes came before it failed. Some are worth a full set of rounds; many, that the
    /// same server goes on. A trickle is worth nothing, or it would never end.
    pub(super) fn progressed(&mut self, server: usize, bytes: u64) {
        if bytes >= SOME {
            self.round = 0;
        }
        if bytes >= MANY {
            self.again(server);
        }
    }

    /// It will not make the same mistake again.
    pub(super) fn again(&mut self, server: usize) {
        self.queue.retain(|&other| other != server);
        self.queue.push_front(server);
    }

    pub(super) fn give_up(self, what: String, name: impl Fn(usize) -> String) -> RegistryError {
        let named = self.refusals.into_iter().map(|(server, refusal)| (name(server), refusal));
        RegistryError { what, attempts: named.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> Refusal {
        Refusal::Status { status, message: String::new(), retry_after: None }
    }

    /// Asks until the end; `answer` is the status a server gives. Returns who was asked.
    fn run(order: &[usize], answer: impl Fn(usize) -> u16) -> Vec<(usize, u128)> {
        let mut tries = Tries::new(order.to_vec(), 3);
        let mut asked = Vec::new();
        while let Some(Next { server, after }) = tries.next() {
            asked.push((server, after.as_millis()));
            tries.refused(server, status(answer(server)));
        }
        asked
    }

    #[test]
    fn transient_failures_are_asked_again_after_a_pause() {
        assert_eq!(run(&[0, 1], |_| 503), [(0, 0), (1, 0), (0, 250), (1, 0), (0, 500), (1, 0)]);
    }

    #[test]
    fn a_plain_no_of_the_registry_ends_it() {
        assert_eq!(run(&[0, 1], |server| [503, 404][server]), [(0, 0), (1, 0)]);
        // Even when a late mirror was moved behind it.
        assert_eq!(run(&[1, 0], |server| [503, 404][server]), [(1, 0), (0, 0)]);
    }

    #[test]
    fn a_plain_no_of_a_mirror_is_not_asked_again() {
        assert_eq!(run(&[0, 1], |server| [404, 503][server]), [(0, 0), (1, 0), (1, 250), (1, 500)]);
    }

    /// Who is asked from then on when server 1 of two got that far and both fail for good.
    fn after_progress(bytes: u64) -> Vec<usize> {
        let mut tries = Tries::new(vec![0, 1, 2], 2);
        for server in [0, 1] {
            assert_eq!(tries.next().map(|next| next.server), Some(server));
            tries.refused(server, status(503));
        }
        tries.progressed(1, bytes);
        let ask = |tries: &mut Tries| {
            let server = tries.next()?.server;
            tries.refused(server, status(503));
            Some(server)
        };
        std::iter::from_fn(|| ask(&mut tries)).collect()
    }

    #[test]
    fn progress_counts_by_its_size() {
        assert_eq!(after_progress(10), [2, 0, 1, 2]);
        assert_eq!(after_progress(SOME), [2, 0, 1, 2]);
        assert_eq!(after_progress(MANY), [1, 2, 0, 1, 2]);
        // A server alone that sends a little each time is asked on and on, but not for a
        // trickle.
        for (bytes, want) in [(10, 3), (SOME, 50)] {
            let mut tries = Tries::new(vec![0], 3);
            let mut asked = 0;
            while asked < 50 && tries.next().is_some() {
                asked += 1;
                tries.refused(0, status(503));
                tries.progressed(0, bytes);
            }
            assert_eq!(asked, want);
        }
    }

    #[test]
    fn retry_after_is_honoured() {
        let mut tries = Tries::new(vec![0], 2);
        tries.next();
        let retry_after = Some(Duration::from_secs(7));
        tries.refused(0, Refusal::Status { status: 429, message: String::new(), retry_after });
        assert_eq!(tries.next(), Some(Next { server: 0, after: Duration::from_secs(7) }));
    }
}
