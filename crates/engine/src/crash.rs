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

/// Every point of every operation, as the environment names them. Made from the step lists:
/// a step is here because it exists.
#[cfg(feature = "crash-points")]
pub fn points() -> Vec<String> {
    let mut points = of_plan::<crate::pod::MakePod>();
    points.extend(of_plan::<crate::container::MakeContainer>());
    let stages: [(&str, &[&str]); 5] = [
        (crate::container::checkpoint::OPERATION, &crate::container::checkpoint::STAGES),
        (crate::container::start::OPERATION, &crate::container::start::STAGES),
        (crate::container::remove::OPERATION, &crate::container::remove::STAGES),
        (crate::pod::stop::OPERATION, &crate::pod::stop::STAGES),
        (crate::pod::remove::OPERATION, &crate::pod::remove::STAGES),
    ];
    for (operation, steps) in stages {
        let moment = Moment::Intended.name();
        points.extend(steps.iter().map(|step| format!("{operation}/{step}/{moment}")));
    }
    points
}

#[cfg(feature = "crash-points")]
fn of_plan<P: crate::steps::Plan>() -> Vec<String> {
    let moments = [Moment::Intended, Moment::Acted];
    let steps = P::STEPS.iter().flat_map(|step| moments.map(|moment| (P::name(*step), moment)));
    steps.map(|(step, moment)| format!("{}/{step}/{}", P::OPERATION, moment.name())).collect()
}
