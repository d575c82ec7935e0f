//! What this host, and the OCI runtimes on it, can do.
//!
//! [`check`] looks at everything the daemon will need and gives a [`Report`]: a row per thing, with
//! a verdict, what was found, why it matters and the way out. What can be
//! tried is tried, not guessed: an overlay is mounted and written to, a container is run.
//!
//! ```text
//!  HostPaths ──> kernel, cgroup, security ──────┐   (files are read)
//!  Settings  ──> storage, network, services ────┼──> rows ──> table, JSON
//!           └──> runtimes ── a container each ──┘   (in parallel)
//! ```
//!
//! **Invariants:** nothing of a check stays on the host, whatever a tried program does; every
//! program has a time limit; where the host is read is a parameter, so each row can be shown
//! a host on which it fails.

mod cgroup;
mod host;
mod kernel;
mod network;
mod overlay;
mod program;
mod report;
mod runtime;
mod scratch;
mod security;
mod service;
mod storage;
#[cfg(test)]
mod testing;

pub use host::{Driver, HostPaths, Settings};
pub use report::{Paint, Report, Row, Verdict};
pub use runtime::{Broken, Runtime, candidates, choose_runtime, runtimes, try_runtimes};
pub use service::{NoCriu, criu};

/// Looks at the whole host. Blocks, usually for a tenth of a second and at most for a few times
/// [`Settings::limit`]; an async caller runs it on a blocking thread, and lets it
/// end: it cleans up after itself when it returns, not when its process is killed.
pub fn check(host: &HostPaths, settings: &Settings) -> Report {
    let found = cgroup::Hierarchies::find(host);
    std::thread::scope(|scope| {
        let runtimes = scope.spawn(|| runtimes(host, settings));
        let storage = scope.spawn(|| storage::rows(host, settings));
        let network = scope.spawn(|| network::rows(host, settings));
        let service = scope.spawn(|| service::rows(host, settings));

        let mut rows = kernel::rows(host);
        rows.extend(cgroup::rows(host, settings, &found));
        rows.extend(security::rows(host));
        rows.extend(join(storage));
        rows.extend(join(network));
        rows.extend(join(service));
        let runtimes = join(runtimes);
        rows.extend(runtime::rows(settings, &found, &runtimes));
        Report { rows, runtimes }
    })
}

/// Does all at once; the results keep the order of the work.
pub(crate) fn parallel<T: Send>(work: impl Iterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = work.map(|job| scope.spawn(job)).collect();
        threads.into_iter().map(join).collect()
    })
}

/// A panic goes on in the caller.
fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
