//! Places where a test may kill the daemon.
//!
//! Compiled in by the feature `crash-points`, which only tests switch on: elsewhere a
//! point is nothing at all.

/// Dies here, as by SIGKILL, if the environment asks for `plan/step/moment`.
#[cfg(feature = "crash-points")]
pub(crate) fn point(plan: &str, step: &str, moment: Moment) {
    use std::sync::OnceLock;
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| std::env::var("LONGSHORE_CRASH_AT").ok());
    if wanted.as_deref() == Some(&format!("{plan}/{step}/{}", moment.name())) {
        // Not abort(): nothing may run, no handler, no destructor.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(not(feature = "crash-points"))]
#[inline]
pub(crate) fn point(_: &str, _: &str, _: Moment) {}

/// Around a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// The intent is recorded, nothing was done.
    Intended,
    /// Done, and only the outside world knows.
    Acted,
}

impl Moment {
    #[cfg_attr(not(feature = "crash-points"), expect(dead_code, reason = "for crash points"))]
    fn name(self) -> &'static str {
        match self {
            Self::Intended => "intended",
            Self::Acted => "acted",
        }
    }
}
