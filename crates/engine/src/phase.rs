//! Where pods and containers are in their lives.
//!
//! ```text
//! pod:        making ──> ready ──> stopped ──> (removed)
//!                │         └─ lost (its shim died) ─┘
//!                └──> (undone)
//!
//! container:  making ──> created ──> starting ──> running ──> exited ──> (removed)
//!                │          │            └── start failed ───────┤
//!                │          └───── evicted ────────────────────┘
//!                └──> (undone)                  unknown ──> exited
//! ```
//!
//! **Invariant:** the transition tables are the only code that makes a phase out of another.
//! Live events, the replies of a shim after a reconnect and recovery all come through here.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a pod is doing. Data that exists only in one phase lives in that phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodPhase {
    /// Its steps are being taken; `step` was begun. Not visible.
    Making {
        step: String,
    },
    Ready,
    /// The shim or the PID 1 of the pod died by itself.
    Lost {
        at: Timestamp,
    },
    Stopped {
        at: Timestamp,
    },
    /// On its way out; finished by whoever finds it.
    Removing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodEvent {
    Begun { step: &'static str },
    Made,
    Lost { at: Timestamp },
    Stopped { at: Timestamp },
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerPhase {
    /// Not visible.
    Making {
        step: String,
    },
    Created,
    /// A start was begun: there may be a task. Visible as created.
    Starting,
    Running {
        pid: u32,
        since: Timestamp,
    },
    Exited(Exited),
    /// What became of it cannot be learnt now. Left only by a stop or a removal.
    Unknown {
        started: Option<Timestamp>,
    },
    Removing,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    pub code: i32,
    pub at: Timestamp,
    /// `None` if it never ran.
    pub started: Option<Timestamp>,
    pub reason: Reason,
    /// What went wrong, for people.
    pub message: String,
}

/// Why a container ended, in the words the kubelet knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    Completed,
    Error,
    OOMKilled,
    StartError,
    /// A plugin wanted it gone.
    Evicted,
    /// The shim died and the kernel could not tell the code either.
    ShimLost,
    Unknown,
}

/// The code of a container that could not be started.
pub const START_ERROR_CODE: i32 = 128;
/// The code of a container that was killed, as shells tell it.
pub const KILLED_CODE: i32 = 137;
/// The code of a container whose end nobody saw.
pub const UNKNOWN_CODE: i32 = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerEvent {
    Begun {
        step: &'static str,
    },
    Made,
    Starting,
    /// The start did not get as far as a task.
    NotStarted,
    Started {
        pid: u32,
        at: Timestamp,
    },
    StartFailed {
        at: Timestamp,
        message: String,
    },
    Exited {
        code: i32,
        at: Timestamp,
        oom: bool,
    },
    /// It is not to be started any more.
    Evicted {
        at: Timestamp,
    },
    /// Nobody can say how it ended.
    Vanished {
        at: Timestamp,
        reason: Reason,
    },
    Doubt,
    Remove,
}

/// An event that a phase does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} does not happen to what is {phase}")]
pub struct Illegal {
    pub(crate) phase: String,
    pub(crate) event: String,
}

impl PodPhase {
    pub(crate) fn on(&self, event: &PodEvent) -> Result<Self, Illegal> {
        use PodEvent as E;
        match (self, event) {
            (Self::Making { .. }, E::Begun { step }) => Ok(Self::Making { step: (*step).into() }),
            (Self::Making { .. }, E::Made) => Ok(Self::Ready),
            (Self::Ready, E::Lost { at }) => Ok(Self::Lost { at: *at }),
            // What was stopped on purpose is not lost when its shim ends.
            (Self::Stopped { .. } | Self::Lost { .. } | Self::Removing, E::Lost { .. }) => {
                Ok(self.clone())
            }
            (Self::Ready | Self::Lost { .. }, E::Stopped { at }) => Ok(Self::Stopped { at: *at }),
            (Self::Stopped { .. } | Self::Removing, E::Stopped { .. }) => Ok(self.clone()),
            (_, E::Remove) => Ok(Self::Removing),
            (phase, event) => Err(illegal(phase, event)),
        }
    }

    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }

    /// Whether a client may see it, if it knows of it at all.
    pub fn is_made(&self) -> bool {
        !matches!(self, Self::Making { .. })
    }
}

impl ContainerPhase {
    pub(crate) fn on(&self, event: &ContainerEvent) -> Result<Self, Illegal> {
        use ContainerEvent as E;
        match (self, event) {
            (Self::Making { .. }, E::Begun { step }) => Ok(Self::Making { step: (*step).into() }),
            (Self::Making { .. }, E::Made) => Ok(Self::Created),
            (Self::Created, E::Starting) => Ok(Self::Starting),
            (Self::Starting, E::NotStarted) => Ok(Self::Created),
            (Self::Created | Self::Starting | Self::Unknown { .. }, E::Started { pid, at }) => {
                Ok(Self::Running { pid: *pid, since: *at })
            }
            // Told twice, by the reply and by recovery; the first one wins.
            (Self::Running { .. }, E::Started { .. }) => Ok(self.clone()),
            (Self::Created | Self::Starting, E::StartFailed { at, message }) => {
                Ok(Self::Exited(Exited {
                    code: START_ERROR_CODE,
                    at: *at,
                    started: None,
                    reason: Reason::StartError,
                    message: message.clone(),
                }))
            }
            (Self::Created, E::Evicted { at }) => {
                Ok(Self::Exited(self.exited(KILLED_CODE, *at, Reason::Evicted)))
            }
            // Shims repeat an exit after a reconnect.
            (
                Self::Exited(_) | Self::Removing,
                E::Exited { .. } | E::Vanished { .. } | E::Doubt,
            ) => Ok(self.clone()),
            (_, E::Exited { code, at, oom }) if self.had_task() => {
                Ok(Self::Exited(self.exited(*code, *at, exit_reason(*code, *oom))))
            }
            (_, E::Vanished { at, reason }) if self.had_task() => {
                Ok(Self::Exited(self.exited(UNKNOWN_CODE, *at, *reason)))
            }
            (Self::Running { .. } | Self::Starting | Self::Unknown { .. }, E::Doubt) => {
                Ok(Self::Unknown { started: self.started() })
            }
            (_, E::Remove) if !self.is_live() => Ok(Self::Removing),
            (phase, event) => Err(illegal(phase, event)),
        }
    }

    fn exited(&self, code: i32, at: Timestamp, reason: Reason) -> Exited {
        Exited { code, at, started: self.started(), reason, message: String::new() }
    }

    /// When it began to run, if it ever did.
    pub fn started(&self) -> Option<Timestamp> {
        match self {
            Self::Running { since, .. } => Some(*since),
            Self::Exited(exited) => exited.started,
            Self::Unknown { started } => *started,
            _ => None,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Running { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    /// A process may be running.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Running { .. } | Self::Starting | Self::Unknown { .. })
    }

    fn had_task(&self) -> bool {
        self.is_live()
    }

    pub fn is_made(&self) -> bool {
        !matches!(self, Self::Making { .. })
    }
}

fn exit_reason(code: i32, oom: bool) -> Reason {
    match (code, oom) {
        (_, true) => Reason::OOMKilled,
        (0, false) => Reason::Completed,
        _ => Reason::Error,
    }
}

fn illegal(phase: &impl fmt::Display, event: &impl fmt::Debug) -> Illegal {
    Illegal { phase: phase.to_string(), event: format!("{event:?}") }
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Error => "Error",
            Self::OOMKilled => "OOMKilled",
            Self::StartError => "StartError",
            Self::Evicted => "Evicted",
            Self::ShimLost => "ShimLost",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Making { .. } => "being made",
            Self::Ready => "ready",
            Self::Lost { .. } => "lost",
            Self::Stopped { .. } => "stopped",
            Self::Removing => "being removed",
        })
    }
}

impl fmt::Display for ContainerPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Making { .. } => "being made",
            Self::Created => "created",
            Self::Starting => "starting",
            Self::Running { .. } => "running",
            Self::Exited(_) => "exited",
            Self::Unknown { .. } => "unknown",
            Self::Removing => "being removed",
        })
    }
}

#[cfg(test)]
mod tests {
    use ContainerEvent as E;

    use super::*;

    const T: Timestamp = Timestamp::UNIX_EPOCH;

    #[track_caller]
    fn check(events: &[E], want: &str) {
        let mut phase = ContainerPhase::Making { step: "begin".into() };
        for event in events {
            match phase.on(event) {
                Ok(next) => phase = next,
                Err(error) => return assert_eq!(error.to_string(), want, "after {events:?}"),
            }
        }
        assert_eq!(phase.to_string(), want, "after {events:?}");
    }

    fn exit(code: i32, oom: bool) -> E {
        E::Exited { code, at: T, oom }
    }

    #[test]
    fn container_transitions() {
        let started = || E::Started { pid: 7, at: T };
        check(&[E::Begun { step: "bundle" }], "being made");
        check(&[E::Made], "created");
        check(&[E::Made, E::Starting], "starting");
        check(&[E::Made, E::Starting, E::NotStarted], "created");
        check(&[E::Made, E::Starting, started()], "running");
        check(&[E::Made, E::Starting, exit(1, false)], "exited");
        check(&[E::Made, E::Starting, started(), exit(0, false), exit(1, false)], "exited");
        check(&[E::Made, E::Starting, E::StartFailed { at: T, message: "x".into() }], "exited");
        check(&[E::Made, E::Starting, started(), E::Doubt], "unknown");
        check(&[E::Made, E::Starting, started(), E::Doubt, exit(0, false)], "exited");
        check(&[E::Made, E::Evicted { at: T }], "exited");
        check(&[E::Made, E::Evicted { at: T }, E::Remove], "being removed");
        check(&[E::Made, E::Remove], "being removed");
        check(
            &[E::Made, exit(0, false)],
            "\"Exited { code: 0, at: 1970-01-01T00:00:00Z, oom: false }\" does not happen to what is created",
        );
        check(
            &[E::Made, E::Starting, started(), E::Remove],
            "\"Remove\" does not happen to what is running",
        );
    }

    #[test]
    fn the_first_exit_wins_and_keeps_when_it_started() {
        let running = ContainerPhase::Running { pid: 7, since: T };
        let exited = running.on(&exit(137, true)).unwrap();
        let ContainerPhase::Exited(how) = exited.on(&exit(0, false)).unwrap() else {
            panic!("exited")
        };
        assert_eq!((how.code, how.reason, how.started), (137, Reason::OOMKilled, Some(T)));
    }

    #[test]
    fn a_pod_that_was_stopped_is_not_lost_afterwards() {
        let ready = PodPhase::Making { step: "files".into() }.on(&PodEvent::Made).unwrap();
        let lost = ready.on(&PodEvent::Lost { at: T }).unwrap();
        assert_eq!(lost.to_string(), "lost");
        let stopped = ready.on(&PodEvent::Stopped { at: T }).unwrap();
        assert_eq!(stopped.on(&PodEvent::Lost { at: T }).unwrap(), stopped);
        assert!(stopped.on(&PodEvent::Made).is_err());
    }
}
