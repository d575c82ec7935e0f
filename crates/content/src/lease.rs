//! What work in flight needs, so that garbage collection leaves it alone.
//!
//! A pull leases a digest *before* it looks whether it is here; the collector discards
//! under the same lock, after a look at leases and then at records. A pull ends its lease
//! after its record is visible. So whoever found something here keeps it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use base::Digest;
use parking_lot::Mutex;

#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    held: HashMap<u64, HashSet<Digest>>,
}

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Leases,
    number: u64,
}

impl Leases {
    pub(crate) fn open(&self) -> Lease {
        let mut table = self.0.lock();
        table.last += 1;
        let number = table.last;
        table.held.insert(number, HashSet::new());
        Lease { leases: self.clone(), number }
    }

    /// Runs `act` unless the digest is leased; nobody can lease it meanwhile. Keep it short.
    pub(crate) fn unless_leased<R>(&self, digest: &Digest, act: impl FnOnce() -> R) -> Option<R> {
        let table = self.0.lock();
        let leased = table.held.values().any(|held| held.contains(digest));
        (!leased).then(act)
    }
}

impl Lease {
    pub(crate) fn add<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        let mut table = self.leases.0.lock();
        if let Some(held) = table.held.get_mut(&self.number) {
            held.extend(digests.into_iter().cloned());
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.0.lock().held.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::sha256;

    #[test]
    fn a_digest_is_free_when_the_last_lease_ends() {
        let leases = Leases::default();
        let digest = sha256(b"x");
        let [first, second] = [leases.open(), leases.open()];
        first.add([&digest]);
        second.add([&digest, &digest]);
        drop(first);
        assert_eq!(leases.unless_leased(&digest, || 7), None);
        assert_eq!(leases.unless_leased(&sha256(b"y"), || 7), Some(7));
        drop(second);
        assert_eq!(leases.unless_leased(&digest, || 7), Some(7));
    }
}
