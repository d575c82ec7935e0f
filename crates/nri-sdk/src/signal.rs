//! When a plugin's process is asked to end.

use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

/// Resolves at the first SIGINT or SIGTERM; for
/// [`Stub::run_until`](crate::Stub::run_until).
///
/// Cancel safe, but once it was polled the signals no longer end the process by themselves.
pub async fn stop_signal() {
    let interrupted = wait(SignalKind::interrupt());
    let terminated = wait(SignalKind::terminate());
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}

/// A signal that cannot be listened to keeps its default effect, which is to end us.
async fn wait(kind: SignalKind) {
    match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(error) => {
            warn!(?kind, %error, "cannot listen to signal");
            std::future::pending::<()>().await;
        }
    }
}
