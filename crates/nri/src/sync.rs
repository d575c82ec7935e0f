//! Synchronize in parts: a message has 4 MiB, a node may have more.
//!
//! All pods, then all containers, in as few messages as fit. Only an attempt shows whether
//! one does: the sender says how large a refused message was, and the next attempt takes a
//! share of it. A peer that understands parts echoes `more`.

use std::ops::Range;

/// Which part is next. Objects are counted through: pods first, then containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPlan {
    pods: usize,
    containers: usize,
    sent: usize,
    /// Objects per message.
    size: usize,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub pods: Range<usize>,
    pub containers: Range<usize>,
    /// Others follow.
    pub more: bool,
}

/// A single object does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one object of {len} bytes does not fit into a message")]
pub struct TooLarge {
    pub len: usize,
}

impl SyncPlan {
    /// Everything in one message, until that is refused.
    pub fn new(pods: usize, containers: usize) -> Self {
        Self { pods, containers, sent: 0, size: (pods + containers).max(1) }
    }

    /// The message to send now. There is always one, if only an empty one.
    pub fn part(&self) -> Part {
        let total = self.pods + self.containers;
        let end = (self.sent + self.size).min(total);
        let of_pods = |at: usize| at.min(self.pods);
        let of_containers = |at: usize| at.saturating_sub(self.pods);
        Part {
            pods: of_pods(self.sent)..of_pods(end),
            containers: of_containers(self.sent)..of_containers(end),
            more: end < total,
        }
    }

    /// The part went out; `false` when it was the last.
    pub fn advance(&mut self) -> bool {
        let part = self.part();
        self.sent += part.pods.len() + part.containers.len();
        part.more
    }

    /// The part was refused: it had `len` bytes where `max` are allowed.
    pub fn shrink(&mut self, len: usize, max: usize) -> Result<(), TooLarge> {
        let part = self.part();
        let objects = part.pods.len() + part.containers.len();
        if objects <= 1 {
            return Err(TooLarge { len });
        }
        // A little less than its share, since objects differ in size.
        let share = (objects as u128 * max as u128 * 9 / 10) / (len.max(1) as u128);
        self.size = usize::try_from(share).unwrap_or(objects).clamp(1, objects - 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Sends objects of these sizes through a wire that takes `max`.
    fn send(pods: &[usize], containers: &[usize], max: usize) -> Result<Vec<Part>, TooLarge> {
        let mut plan = SyncPlan::new(pods.len(), containers.len());
        let mut parts = Vec::new();
        loop {
            let part = plan.part();
            let len: usize = pods[part.pods.clone()].iter().sum::<usize>()
                + containers[part.containers.clone()].iter().sum::<usize>();
            if len > max {
                plan.shrink(len, max)?;
                continue;
            }
            parts.push(part);
            if !plan.advance() {
                return Ok(parts);
            }
        }
    }

    #[test]
    fn what_fits_goes_in_one() {
        assert_eq!(
            send(&[1, 1], &[1], 3),
            Ok(vec![Part { pods: 0..2, containers: 0..1, more: false }])
        );
        assert_eq!(send(&[], &[], 3), Ok(vec![Part { pods: 0..0, containers: 0..0, more: false }]));
    }

    #[test]
    fn one_object_above_the_limit_is_refused() {
        assert_eq!(send(&[], &[1, 9, 1], 8), Err(TooLarge { len: 9 }));
    }

    #[test]
    fn few_large_objects_are_split_too() {
        let parts = send(&[5, 5], &[5], 7).unwrap();
        assert_eq!(parts.len(), 3);
    }

    proptest! {
        #[test]
        fn every_object_is_sent_once_and_in_order(
            pods in vec(1usize..50, 0..40),
            containers in vec(1usize..50, 0..40),
            max in 40usize..400,
        ) {
            let largest = pods.iter().chain(&containers).copied().max().unwrap_or(0);
            let sent = send(&pods, &containers, max);
            prop_assert_eq!(sent.is_ok(), largest <= max);
            if let Ok(parts) = sent {
                let pods_sent: Vec<_> = parts.iter().flat_map(|p| p.pods.clone()).collect();
                let containers_sent: Vec<_> = parts.iter().flat_map(|p| p.containers.clone()).collect();
                prop_assert_eq!(pods_sent, (0..pods.len()).collect::<Vec<_>>());
                prop_assert_eq!(containers_sent, (0..containers.len()).collect::<Vec<_>>());
                let more: Vec<_> = parts.iter().map(|p| p.more).collect();
                prop_assert!(more.iter().rev().skip(1).all(|m| *m) && !more[more.len() - 1]);
            }
        }
    }
}
