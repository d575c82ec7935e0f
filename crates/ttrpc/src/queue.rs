//! A queue bounded by the bytes in it.
//!
//! Messages are between ten bytes and four megabytes, so a bound on their number is
//! either too tight for small ones or no bound at all for large ones. A full queue makes
//! the sender wait; a message larger than the whole budget waits for an empty queue.
//!
//! **Invariant:** room is taken before an item is queued and given back when it is taken
//! out; between the two calls of a sender there is no await, so a dropped future leaks none.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError, mpsc};

/// What an item costs besides its bytes, so that empty ones are bounded too.
const ITEM_COST: usize = 64;

#[derive(Debug)]
pub(crate) struct Sender<T> {
    room: Arc<Room>,
    items: mpsc::UnboundedSender<(u32, T)>,
}

#[derive(Debug)]
pub(crate) struct Receiver<T> {
    room: Arc<Room>,
    items: mpsc::UnboundedReceiver<(u32, T)>,
}

/// Room for one item.
#[derive(Debug)]
pub(crate) struct Permit<'a, T> {
    queue: &'a Sender<T>,
    room: SemaphorePermit<'a>,
    cost: u32,
}

#[derive(Debug)]
struct Room {
    free: Semaphore,
    budget: u32,
}

/// The receiver is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

pub(crate) fn channel<T>(budget: u32) -> (Sender<T>, Receiver<T>) {
    let room = Arc::new(Room { free: Semaphore::new(budget as usize), budget });
    let (sender, receiver) = mpsc::unbounded_channel();
    (Sender { room: Arc::clone(&room), items: sender }, Receiver { room, items: receiver })
}

impl<T> Sender<T> {
    /// Waits for room, in the order of asking.
    ///
    /// Cancel safe.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Permit<'_, T>, Closed> {
        let cost = self.cost(bytes);
        let room = self.room.free.acquire_many(cost).await.map_err(|_| Closed)?;
        Ok(Permit { queue: self, room, cost })
    }

    /// `Ok(None)` where the queue is full.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Result<Option<Permit<'_, T>>, Closed> {
        let cost = self.cost(bytes);
        match self.room.free.try_acquire_many(cost) {
            Ok(room) => Ok(Some(Permit { queue: self, room, cost })),
            Err(TryAcquireError::NoPermits) => Ok(None),
            Err(TryAcquireError::Closed) => Err(Closed),
        }
    }

    /// Queues without asking for room. For the last item of a stream, of which there is
    /// one, and which must arrive however full the queue is.
    pub(crate) fn send_last(&self, item: T) {
        // A receiver that is gone wants no last word.
        let _ = self.items.send((0, item));
    }

    fn cost(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.saturating_add(ITEM_COST)).unwrap_or(u32::MAX).min(self.room.budget)
    }
}

impl<T> Permit<'_, T> {
    pub(crate) fn send(self, item: T) -> Result<(), Closed> {
        self.queue.items.send((self.cost, item)).map_err(|_| Closed)?;
        // From here the item holds the room.
        self.room.forget();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// `None` once all senders are gone and the queue is empty.
    ///
    /// Cancel safe.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.items.poll_recv(cx).map(|next| next.map(|(cost, item)| self.taken(cost, item)))
    }

    /// What is there now.
    pub(crate) fn try_recv(&mut self) -> Option<T> {
        let (cost, item) = self.items.try_recv().ok()?;
        Some(self.taken(cost, item))
    }

    fn taken(&self, cost: u32, item: T) -> T {
        self.room.free.add_permits(cost as usize);
        item
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { room: Arc::clone(&self.room), items: self.items.clone() }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Those who wait for room must not wait for ever.
        self.room.free.close();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Room for four items of 36 bytes.
    const FOUR: u32 = 4 * (64 + 36);

    #[tokio::test]
    async fn a_full_queue_makes_senders_wait_until_an_item_is_taken() {
        let (tx, mut rx) = channel(FOUR);
        for i in 0..4 {
            tx.reserve(36).await.unwrap().send(i).unwrap();
        }
        assert!(tx.try_reserve(36).unwrap().is_none());
        let mut waiting = Box::pin(tx.reserve(36));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(rx.recv().await, Some(0));
        waiting.await.unwrap().send(4).unwrap();
        assert_eq!(rx.recv().await, Some(1));
    }

    #[tokio::test]
    async fn a_giant_waits_for_an_empty_queue_and_passes() {
        let (tx, mut rx) = channel(FOUR);
        tx.reserve(0).await.unwrap().send("small").unwrap();
        let mut giant = Box::pin(tx.reserve(100_000));
        assert!(giant.as_mut().now_or_never().is_none());
        assert_eq!(rx.recv().await, Some("small"));
        giant.await.unwrap().send("giant").unwrap();
        assert!(tx.try_reserve(0).unwrap().is_none());
        assert_eq!(rx.recv().await, Some("giant"));
    }

    #[tokio::test]
    async fn a_permit_not_used_and_a_wait_given_up_cost_nothing() {
        let (tx, mut rx) = channel(FOUR);
        for _ in 0..100 {
            drop(tx.reserve(36).await.unwrap());
        }
        tx.reserve(FOUR as usize).await.unwrap().send(0).unwrap();
        for _ in 0..100 {
            assert!(tx.reserve(1).now_or_never().is_none());
        }
        assert_eq!(rx.recv().await, Some(0));
        assert_eq!(tx.room.free.available_permits(), FOUR as usize);
    }

    #[tokio::test]
    async fn a_gone_receiver_releases_those_who_wait() {
        let (tx, rx) = channel(FOUR);
        tx.reserve(1000).await.unwrap().send(0).unwrap();
        let mut waiting = Box::pin(tx.reserve(36));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(rx);
        assert_eq!(waiting.await.err(), Some(Closed));
    }

    #[tokio::test]
    async fn the_last_item_passes_a_full_queue_and_the_end_follows() {
        let (tx, mut rx) = channel(FOUR);
        tx.reserve(1000).await.unwrap().send(1).unwrap();
        tx.send_last(2);
        drop(tx);
        assert_eq!((rx.recv().await, rx.recv().await, rx.recv().await), (Some(1), Some(2), None));
    }
}
