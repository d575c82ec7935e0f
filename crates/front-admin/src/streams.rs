//! Streams of answers, each fed by a task.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

/// Messages that wait for a client. When it is full the feeding task waits.
const QUEUE: usize = 4;

/// Where a feeding task puts its messages; an error means that the client is gone.
pub(crate) type Sender<T> = mpsc::Sender<Result<T, Status>>;

pub(crate) type Stream<T> = ReceiverStream<Result<T, Status>>;

/// All streams that are open; clones share them.
#[derive(Clone, Debug)]
pub struct Streams {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Streams {
    /// They end when `stop` is cancelled.
    pub fn new(stop: CancellationToken) -> Self {
        Self { tasks: TaskTracker::new(), stop }
    }

    /// Returns when `stop` was cancelled and no stream is left. Cancel safe.
    pub async fn ended(&self) {
        self.stop.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Feeds a stream by `work`, until it ends, the client goes away or the daemon stops.
    pub(crate) fn feed<T, F>(&self, work: impl FnOnce(Sender<T>) -> F) -> Stream<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let work = work(sender.clone());
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                // Not waited for: a client that does not read must not delay the end.
                () = stop.cancelled() => drop(sender.try_send(Err(stopping()))),
                () = sender.closed() => {}
                done = work => if let Err(status) = done {
                    let _ = sender.send(Err(status)).await;
                },
            }
        });
        ReceiverStream::new(receiver)
    }

    /// What has to happen before there is a stream. Cancel safe if `work` is.
    pub(crate) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(stopping()),
            done = work => done,
        }
    }
}

fn stopping() -> Status {
    Status::unavailable("the daemon is stopping")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_stream_ends_with_its_work_or_its_error() {
        let streams = Streams::new(CancellationToken::new());
        let mut good = streams.feed(|out| async move {
            out.send(Ok(1)).await.unwrap();
            Ok(())
        });
        assert_eq!(good.next().await.unwrap().unwrap(), 1);
        assert!(good.next().await.is_none());
        let mut bad = streams.feed::<i32, _>(|_| async { Err(Status::not_found("x")) });
        assert_eq!(bad.next().await.unwrap().unwrap_err().message(), "x");
        assert!(bad.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_away_ends_the_work() {
        let streams = Streams::new(CancellationToken::new());
        let held = CancellationToken::new();
        let guard = held.clone().drop_guard();
        let stream = streams.feed::<i32, _>(|_| async {
            let _held = guard;
            std::future::pending().await
        });
        drop(stream);
        tokio::time::timeout(Duration::from_secs(1), held.cancelled()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_daemon_waits_for_no_reader() {
        let stop = CancellationToken::new();
        let streams = Streams::new(stop.clone());
        // Nobody reads: the queue fills up and the work waits.
        let mut full = streams.feed(|out| async move {
            while out.send(Ok(1)).await.is_ok() {}
            Ok(())
        });
        let mut idle = streams.feed::<i32, _>(|_| std::future::pending());
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(1), streams.ended()).await.unwrap();
        let mut got = 0;
        while let Some(Ok(_)) = full.next().await {
            got += 1;
        }
        assert_eq!(got, QUEUE);
        let last = idle.next().await.unwrap().unwrap_err();
        assert_eq!(last.code(), tonic::Code::Unavailable);
        let late = streams.unless_stopped(std::future::pending::<Result<(), _>>()).await;
        assert_eq!(late.unwrap_err().message(), "the daemon is stopping");
    }
}
