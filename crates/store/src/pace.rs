//! When to sync and when to checkpoint: pure, so that every rule has a test.
//!
//! Nothing is due while nothing was written: an idle store wakes nobody.

use std::time::Duration;

use tokio::time::Instant;

/// How hard the disk is worked. The default is right for a daemon; tests shrink it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The most that power loss may cost.
    pub sync_after: Duration,
    /// A WAL of this size is moved into the database at the next quiet moment.
    pub checkpoint_bytes: u64,
    /// How long without a write is a quiet moment.
    pub quiet: Duration,
    /// A WAL of this size does not wait for one.
    pub force_bytes: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sync_after: Duration::from_secs(1),
            checkpoint_bytes: 4 << 20,
            quiet: Duration::from_secs(1),
            force_bytes: 32 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Sync,
    Checkpoint,
    At(Instant),
    Never,
}

/// What happened so far, as far as the next step depends on it.
#[derive(Debug)]
pub(crate) struct Timeline {
    pace: Pace,
    dirty_since: Option<Instant>,
    last_write: Option<Instant>,
    wal_bytes: u64,
    /// After a checkpoint that could not finish: wait until the WAL has grown to this.
    not_below: u64,
    /// The disk is full: a checkpoint may let the next write reuse the WAL's space.
    cramped: bool,
}

impl Timeline {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            dirty_since: None,
            last_write: None,
            wal_bytes: 0,
            not_below: 0,
            cramped: false,
        }
    }

    /// `bytes` is a guess, put right by the next sync. True when the sleeper must be told:
    /// it may be waiting for nothing at all, or for too long.
    pub(crate) fn wrote(&mut self, now: Instant, bytes: u64) -> bool {
        self.last_write = Some(now);
        let first = self.dirty_since.is_none();
        self.dirty_since.get_or_insert(now);
        let limit = self.pace.force_bytes.max(self.not_below);
        let below = self.wal_bytes < limit;
        self.wal_bytes += bytes;
        first || (below && self.wal_bytes >= limit)
    }

    pub(crate) fn cramped(&mut self) {
        self.cramped = true;
    }

    /// Called before the sync, so that a write during it counts as new.
    pub(crate) fn syncing(&mut self) {
        self.dirty_since = None;
    }

    pub(crate) fn synced(&mut self, wal_bytes: u64) {
        self.wal_bytes = wal_bytes;
    }

    /// `complete` is false when a reader of another process or a full disk was in the way.
    pub(crate) fn checkpointed(&mut self, wal_bytes: u64, complete: bool) {
        self.wal_bytes = wal_bytes;
        self.cramped = false;
        self.not_below = if complete { 0 } else { wal_bytes + self.pace.checkpoint_bytes };
    }

    pub(crate) fn due(&self, now: Instant) -> Due {
        if self.cramped {
            return Due::Checkpoint;
        }
        let sync = self.dirty_since.map(|since| since + self.pace.sync_after);
        if sync.is_some_and(|at| at <= now) {
            return Due::Sync;
        }
        let checkpoint = self.checkpoint_at();
        if checkpoint.is_some_and(|at| at <= now) {
            return Due::Checkpoint;
        }
        match sync.into_iter().chain(checkpoint).min() {
            Some(at) => Due::At(at),
            None => Due::Never,
        }
    }

    fn checkpoint_at(&self) -> Option<Instant> {
        let last_write = self.last_write?;
        if self.wal_bytes < self.pace.checkpoint_bytes.max(self.not_below) {
            return None;
        }
        let patient = self.wal_bytes < self.pace.force_bytes;
        Some(if patient { last_write + self.pace.quiet } else { last_write })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Case {
        start: Instant,
        line: Timeline,
    }

    impl Case {
        fn new() -> Self {
            Self { start: Instant::now(), line: Timeline::new(Pace::default()) }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn wrote(&mut self, ms: u64) -> bool {
            self.line.wrote(self.at(ms), 10_000)
        }

        fn synced(&mut self, wal_bytes: u64) {
            self.line.syncing();
            self.line.synced(wal_bytes);
        }

        #[track_caller]
        fn check(&self, ms: u64, want: Due) {
            assert_eq!(self.line.due(self.at(ms)), want, "at {ms} ms: {:?}", self.line);
        }
    }

    #[test]
    fn an_idle_store_sleeps_for_ever() {
        let mut case = Case::new();
        case.check(0, Due::Never);
        case.wrote(0);
        case.synced(MIB);
        case.check(10_000, Due::Never);
    }

    #[test]
    fn the_first_write_starts_the_second() {
        let mut case = Case::new();
        assert!(case.wrote(0));
        assert!(!case.wrote(900), "the timer runs already");
        case.check(999, Due::At(case.at(1_000)));
        case.check(1_000, Due::Sync);
    }

    #[test]
    fn a_write_during_the_sync_is_synced_again() {
        let mut case = Case::new();
        case.wrote(0);
        case.line.syncing();
        case.wrote(1_001);
        case.line.synced(MIB);
        case.check(1_500, Due::At(case.at(2_001)));
    }

    #[test]
    fn a_checkpoint_waits_for_a_quiet_moment() {
        let mut case = Case::new();
        case.wrote(0);
        case.wrote(900);
        case.synced(5 * MIB);
        case.check(1_000, Due::At(case.at(1_900)));
        case.check(1_900, Due::Checkpoint);
        case.line.checkpointed(0, true);
        case.check(1_901, Due::Never);
    }

    #[test]
    fn a_large_wal_does_not_wait() {
        let mut case = Case::new();
        case.wrote(0);
        case.synced(40 * MIB);
        case.check(1, Due::Checkpoint);
    }

    #[test]
    fn a_torrent_of_writes_is_not_left_to_the_clock() {
        let mut case = Case::new();
        let mut woken = Vec::new();
        for mib in 0..40 {
            if case.line.wrote(case.at(mib), MIB) {
                woken.push(mib);
            }
        }
        assert_eq!(woken, [0, 31]);
        case.check(40, Due::Checkpoint);
    }

    #[test]
    fn a_checkpoint_that_cannot_finish_is_not_repeated_at_once() {
        let mut case = Case::new();
        case.wrote(0);
        case.synced(40 * MIB);
        case.line.checkpointed(40 * MIB, false);
        case.check(10_000, Due::Never);
        case.synced(45 * MIB);
        case.check(10_000, Due::Checkpoint);
    }

    #[test]
    fn a_full_disk_asks_for_a_checkpoint_once() {
        let mut case = Case::new();
        case.line.cramped();
        case.check(0, Due::Checkpoint);
        case.line.checkpointed(0, false);
        case.check(0, Due::Never);
    }
}
