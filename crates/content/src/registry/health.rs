//! What earlier requests taught about servers: for this process, and for a while.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use base::Digest;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a server that hung is tried after the others, and one that sent wrong bytes is
/// not asked for them.
const MEMORY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    hung: HashMap<String, Instant>,
    liars: HashMap<(String, Digest), Instant>,
    /// Servers whose ranges cannot be relied on.
    no_ranges: HashSet<String>,
}

impl Health {
    pub(super) fn hung(&self, server: &str) {
        self.0.lock().hung.insert(server.to_owned(), Instant::now() + MEMORY);
    }

    pub(super) fn answered(&self, server: &str) {
        self.0.lock().hung.remove(server);
    }

    /// Else every blob of a pull would wait for the same dead mirror again.
    pub(super) fn is_late(&self, server: &str) -> bool {
        self.0.lock().hung.get(server).is_some_and(|&until| until > Instant::now())
    }

    pub(super) fn lied(&self, server: &str, about: &Digest) {
        let mut memory = self.0.lock();
        let now = Instant::now();
        memory.liars.retain(|_, until| *until > now);
        memory.liars.insert((server.to_owned(), about.clone()), now + MEMORY);
    }

    pub(super) fn is_liar(&self, server: &str, about: &Digest) -> bool {
        let key = (server.to_owned(), about.clone());
        self.0.lock().liars.get(&key).is_some_and(|&until| until > Instant::now())
    }

    pub(super) fn breaks_ranges(&self, server: &str) {
        self.0.lock().no_ranges.insert(server.to_owned());
    }

    pub(super) fn has_ranges(&self, server: &str) -> bool {
        !self.0.lock().no_ranges.contains(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::sha256;

    #[tokio::test(start_paused = true)]
    async fn memory_fades() {
        let health = Health::default();
        let digest = sha256(b"x");
        health.hung("a");
        health.lied("a", &digest);
        assert!(health.is_late("a") && !health.is_late("b"));
        assert!(health.is_liar("a", &digest) && !health.is_liar("a", &sha256(b"y")));
        tokio::time::advance(MEMORY + Duration::from_secs(1)).await;
        assert!(!health.is_late("a") && !health.is_liar("a", &digest));
        health.hung("a");
        health.answered("a");
        assert!(!health.is_late("a"));
    }
}
