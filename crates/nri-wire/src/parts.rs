//! Several futures in one task, which wake each other without going through its scheduler.
//!
//! An answer passes from the trunk to the connection inside it and on to whoever waits. As
//! tasks, and even as branches of one `select!`, each step is a wake-up that may end up on
//! another thread; here the next part is simply polled next.
//!
//! **Invariant:** `state` holds a bit for each part that is to be polled, and [`POLLING`] while
//! the task is at it. Who sets a bit without [`POLLING`] wakes the task; who is at it leaves
//! only when there is no bit.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

const POLLING: u32 = 1 << 31;
/// So often a poll goes round before it lets other tasks have their turn.
const ROUNDS: u32 = 8;

/// Futures that end with a `T` each.
pub(crate) struct Parts<T> {
    parts: Vec<Part<T>>,
    shared: Arc<Shared>,
}

struct Part<T> {
    /// Gone when it has ended.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    waker: Waker,
    bit: u32,
}

#[derive(Default)]
struct Shared {
    state: AtomicU32,
    task: AtomicWaker,
}

struct PartWaker {
    shared: Arc<Shared>,
    bit: u32,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), shared: Arc::default() }
    }
}

impl<T> Parts<T> {
    /// At most 31.
    pub(crate) fn add(&mut self, future: impl Future<Output = T> + Send + 'static) {
        let bit = 1 << self.parts.len();
        assert!(bit < POLLING, "too many parts");
        let waker = Waker::from(Arc::new(PartWaker { shared: Arc::clone(&self.shared), bit }));
        self.shared.state.fetch_or(bit, Ordering::Relaxed);
        self.parts.push(Part { future: Some(Box::pin(future)), waker, bit });
    }

    /// What the next of them ends with; the one added first if several do at a time. Never
    /// comes when all have ended.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        self.shared.task.register(cx.waker());
        match self.turn() {
            Some(end) => Poll::Ready(end),
            None => Poll::Pending,
        }
    }

    /// Polls what is to be polled, in the stead of the task, which is woken as before if anything
    /// is left. Who gets an end has to tell the task.
    pub(crate) fn turn(&mut self) -> Option<T> {
        for _ in 0..ROUNDS {
            let ready = self.shared.state.swap(POLLING, Ordering::AcqRel);
            if let Some(end) = self.poll_parts(ready & !POLLING) {
                self.shared.state.fetch_and(!POLLING, Ordering::AcqRel);
                return Some(end);
            }
            if self.shared.rest() {
                return None;
            }
        }
        self.shared.state.fetch_and(!POLLING, Ordering::AcqRel);
        self.wake_task();
        None
    }

    /// The part that was added first is polled at the next turn.
    pub(crate) fn call_first(&self) {
        self.shared.state.fetch_or(1, Ordering::AcqRel);
    }

    pub(crate) fn wake_task(&self) {
        self.shared.task.wake();
    }

    /// Parts behind one that ends are left for the next time.
    fn poll_parts(&mut self, ready: u32) -> Option<T> {
        let mut left = ready;
        for part in self.parts.iter_mut().filter(|part| ready & part.bit != 0) {
            left &= !part.bit;
            let Some(future) = &mut part.future else { continue };
            let polled = future.as_mut().poll(&mut Context::from_waker(&part.waker));
            if let Poll::Ready(end) = polled {
                part.future = None;
                self.shared.state.fetch_or(left, Ordering::AcqRel);
                return Some(end);
            }
        }
        None
    }
}

impl Shared {
    /// Whether there is nothing more to do now.
    fn rest(&self) -> bool {
        self.state.compare_exchange(POLLING, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Wake for PartWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = self.shared.state.fetch_or(self.bit, Ordering::AcqRel);
        if before & POLLING == 0 {
            self.shared.task.wake();
        }
    }
}

impl<T> fmt::Debug for Parts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("count", &self.parts.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::atomic::AtomicUsize};

    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    impl<T> Parts<T> {
        async fn next(&mut self) -> T {
            poll_fn(|cx| self.poll_next(cx)).await
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Passes numbers on until it gets 0.
    async fn pass(mut from: mpsc::Receiver<u32>, to: mpsc::Sender<u32>) -> u32 {
        while let Some(number) = from.recv().await {
            if number == 0 || to.send(number - 1).await.is_err() {
                return number;
            }
        }
        u32::MAX
    }

    #[test]
    fn parts_wake_each_other_and_not_the_task() {
        let ((first, one), (second, two)) = (mpsc::channel(1), mpsc::channel(1));
        let mut parts = Parts::default();
        parts.add(pass(one, second));
        parts.add(pass(two, first.clone()));
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        assert!(parts.poll_next(&mut cx).is_pending());
        let woken = || count.0.load(Ordering::Relaxed);
        assert_eq!(woken(), 0);
        first.try_send(5).unwrap();
        assert_eq!(woken(), 1, "from outside");
        assert_eq!(parts.poll_next(&mut cx), Poll::Ready(0), "within one poll");
        assert_eq!(woken(), 1);
    }

    #[test]
    fn a_part_that_is_always_ready_lets_others_have_their_turn() {
        let mut parts = Parts::<()>::default();
        parts.add(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        assert!(parts.poll_next(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "it comes back by itself");
    }

    #[test]
    fn ends_come_one_by_one_in_their_order() {
        let mut parts = Parts::default();
        (0..3).for_each(|n| parts.add(async move { n }));
        let ends: Vec<_> = (0..3).map(|_| parts.next().now_or_never()).collect();
        assert_eq!(ends, [Some(0), Some(1), Some(2)]);
        assert_eq!(parts.next().now_or_never(), None);
    }

    /// Wake-ups from other threads are never lost, whatever they meet.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_lost_between_threads() {
        let mut parts = Parts::default();
        let tasks = tokio_util::task::TaskTracker::new();
        for _ in 0..3 {
            let (sender, mut receiver) = mpsc::channel(1);
            parts.add(async move {
                let mut sum = 0_u32;
                while let Some(number) = receiver.recv().await {
                    sum += number;
                }
                sum
            });
            tasks.spawn(async move {
                for _ in 0..5000 {
                    sender.send(1).await.unwrap();
                }
            });
        }
        let all = async { [parts.next().await, parts.next().await, parts.next().await] };
        let sums = tokio::time::timeout(std::time::Duration::from_secs(60), all).await.unwrap();
        assert_eq!(sums, [5000; 3]);
    }
}
