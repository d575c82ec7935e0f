//! The long-lived parts of the daemon, and what happens when one of them dies.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// The parts have their own, shorter limits; this one only keeps a stop from hanging.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);

/// Tasks that run until they are told to stop. One that ends before is a failure of the
/// whole daemon: half a daemon would look alive to those who watch it.
#[derive(Debug, Default)]
pub(super) struct Parts {
    tasks: JoinSet<Ended>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Ended {
    name: &'static str,
    result: anyhow::Result<()>,
}

impl Parts {
    /// To be cancelled when the parts shall end; they watch it.
    pub(super) fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { Ended { name, result: part.await } });
    }

    /// Waits for the first part to end, which none should. Cancel safe.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(ended) => why(ended),
            None => std::future::pending().await,
        }
    }

    /// Stops all and returns when none is left, with what went wrong on the way.
    pub(super) async fn close(mut self) -> Vec<anyhow::Error> {
        self.stop.cancel();
        let mut errors = Vec::new();
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                if !matches!(&ended, Ok(Ended { result: Ok(()), .. })) {
                    errors.push(why(ended));
                }
            }
        };
        if tokio::time::timeout(CLOSE_LIMIT, all).await.is_err() {
            errors.push(anyhow::anyhow!("some parts did not stop in {CLOSE_LIMIT:?}"));
            self.tasks.shutdown().await;
        }
        errors
    }
}

fn why(ended: Result<Ended, JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ended { name, result: Err(e) }) => e.context(format!("{name} failed")),
        Ok(Ended { name, result: Ok(()) }) => anyhow::anyhow!("{name} ended by itself"),
        Err(panic) => anyhow::anyhow!("a part panicked: {panic}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_part_to_end_is_named() {
        let mut parts = Parts::default();
        let stop = parts.stop_token();
        parts.spawn("good", async move {
            stop.cancelled().await;
            Ok(())
        });
        parts.spawn("bad", async { anyhow::bail!("out of luck") });
        assert_eq!(format!("{:#}", parts.failed().await), "bad failed: out of luck");
        assert!(parts.close().await.is_empty());
    }

    #[tokio::test]
    async fn a_panic_and_an_early_end_are_failures_too() {
        let mut parts = Parts::default();
        parts.spawn("quitter", async { Ok(()) });
        assert_eq!(parts.failed().await.to_string(), "quitter ended by itself");
        parts.spawn("clumsy", async { panic!("oops") });
        assert!(parts.failed().await.to_string().starts_with("a part panicked"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_does_not_stop_is_ended() {
        let mut parts = Parts::default();
        parts.spawn("deaf", std::future::pending());
        assert_eq!(parts.close().await.len(), 1);
    }
}
