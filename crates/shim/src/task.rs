//! One container, as long as the shim knows it.
//!
//! ```text
//!   Creating ──> Created ──start──> Running <──resume, pause──> Paused
//!                   └──────────────────┴────── its first process ends ──> Stopped ──delete──>
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use api_shim::{
    longshore::{Exit, TaskInfo},
    process::Status,
    start::TaskRecord,
};
use parking_lot::Mutex;

use crate::{
    cgroup::Group,
    clock,
    error::{Error, Result},
    exec::Exec,
    note,
    priority::Priorities,
    process::{Ended, Process},
    record::{self, Record},
    stdio::Held,
    tasks::Create,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Creating,
    Created,
    Running,
    Paused,
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) tty: bool,
    pub(crate) priorities: Priorities,
    pub(crate) init: Process,
    phase: Mutex<Phase>,
    /// Held by whatever changes the phase, other than the end of the container.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) group: OnceLock<Group>,
    /// The end of the first process is the end of all others.
    pub(crate) has_own_pids: AtomicBool,
    /// Our side of its terminal.
    pub(crate) console: OnceLock<OwnedFd>,
    /// There if its streams are a client's.
    pub(crate) fifos: OnceLock<Held>,
    pub(crate) execs: Mutex<BTreeMap<String, Arc<Exec>>>,
    pub(crate) record: Record,
    oom: AtomicBool,
    pub(crate) log_errors: AtomicU64,
}

impl Task {
    pub(crate) fn new(create: &Create, records: &Path) -> Self {
        Self {
            record: Record::new(records, &create.id),
            id: create.id.clone(),
            bundle: create.bundle.clone(),
            tty: create.tty,
            priorities: create.priorities,
            init: Process::new(),
            phase: Mutex::new(Phase::Creating),
            turn: tokio::sync::Mutex::new(()),
            group: OnceLock::new(),
            has_own_pids: AtomicBool::new(false),
            console: OnceLock::new(),
            fifos: OnceLock::new(),
            execs: Mutex::default(),
            oom: AtomicBool::new(false),
            log_errors: AtomicU64::new(0),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// The end of a container is final, whatever was under way.
    pub(crate) fn set_phase(&self, phase: Phase) {
        let mut now = self.phase.lock();
        if *now != Phase::Stopped {
            *now = phase;
        }
    }

    /// Refuses what cannot be done in this phase.
    pub(crate) fn require(&self, wanted: &'static str, allowed: &[Phase]) -> Result<()> {
        let phase = self.phase();
        if allowed.contains(&phase) {
            return Ok(());
        }
        let id = self.id.clone();
        Err(Error::Phase { wanted, what: "container", id, phase: phase.to_string() })
    }

    pub(crate) fn exec(&self, id: &str) -> Result<Arc<Exec>> {
        let missing = || Error::NotFound { what: "process", id: id.to_owned() };
        self.execs.lock().get(id).cloned().ok_or_else(missing)
    }

    pub(crate) fn forget_exec(&self, exec: &Exec) {
        exec.forgotten.cancel();
        self.execs.lock().remove(&exec.id);
    }

    /// Whether we read its output ourselves. Else its client has pipes, and those of its execs may
    /// have readers that we know nothing of.
    pub(crate) fn keeps_streams(&self) -> bool {
        self.fifos.get().is_none()
    }

    /// The process of an exec, or with an empty id the first.
    pub(crate) fn terminal(&self, exec_id: &str) -> Result<OwnedFd> {
        let none = || Error::Invalid { field: "id", why: "has no terminal".to_owned() };
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(Error::io("copy a terminal"));
        match exec_id {
            "" => copy(self.console.get().ok_or_else(none)?),
            id => copy(self.exec(id)?.console.get().ok_or_else(none)?),
        }
    }

    /// Publishes the end, with all that was learnt about it.
    pub(crate) fn end(&self, ended: Ended, oom: bool) {
        self.oom.store(oom, Ordering::Relaxed);
        self.set_phase(Phase::Stopped);
        self.write_record(Some((&ended, oom)));
        self.init.end(ended);
    }

    /// For the case that we are killed; without it we still do our work.
    pub(crate) fn write_record(&self, ended: Option<(&Ended, bool)>) {
        let pid = self.init.pid();
        let written = self.record.write(&TaskRecord {
            bundle: self.bundle.clone(),
            pid,
            start_time: record::start_time_of(pid).unwrap_or_default(),
            cgroup: self.group.get().map(|group| group.path.clone()),
            exit: ended.map(|(ended, oom)| record::exit(ended, oom)),
        });
        if let Err(error) = written {
            note::warn(error);
        }
    }

    pub(crate) fn exit(&self, ended: &Ended) -> Exit {
        Exit {
            status: ended.status,
            at: Some(clock::to_wire(ended.at)),
            oom: self.oom.load(Ordering::Relaxed),
            log_errors: self.log_errors.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn info(&self) -> TaskInfo {
        TaskInfo {
            id: self.id.clone(),
            bundle: self.bundle.display().to_string(),
            pid: self.init.pid(),
            status: Status::from(self.phase()).into(),
            exit: self.init.ended().map(|ended| self.exit(&ended)),
            execs: self.execs.lock().keys().cloned().collect(),
        }
    }
}

impl From<Phase> for Status {
    fn from(phase: Phase) -> Self {
        match phase {
            // The runtime is at it: nothing that can be started yet.
            Phase::Creating | Phase::Created => Self::Created,
            Phase::Running => Self::Running,
            Phase::Paused => Self::Paused,
            Phase::Stopped => Self::Stopped,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "being created",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}

/// An id becomes part of file names.
pub(crate) fn check_id(field: &'static str, id: &str) -> Result<()> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=128).contains(&id.len()) && !id.starts_with('.') && id.bytes().all(sound) {
        return Ok(());
    }
    Err(Error::Invalid { field, why: format!("{id:?} is no id") })
}

#[cfg(test)]
mod tests {
    use api_shim::longshore::CreateOptions;

    use super::*;
    use crate::tasks::Output;

    #[test]
    fn ids_are_safe_file_names() {
        for good in ["a", "0", "web-1_x.y", &"f".repeat(64)] {
            assert!(check_id("id", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ä", &"f".repeat(129)] {
            assert!(check_id("id", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_stopped_container_stays_stopped() {
        let create = Create {
            id: "c".to_owned(),
            bundle: "/b".into(),
            tty: false,
            output: Output::Log(CreateOptions::default()),
            priorities: Priorities::default(),
        };
        let task = Task::new(&create, Path::new("/nowhere"));
        task.set_phase(Phase::Created);
        assert!(task.require("start", &[Phase::Created]).is_ok());
        task.set_phase(Phase::Stopped);
        task.set_phase(Phase::Running);
        let refused = task.require("start", &[Phase::Created]).unwrap_err();
        assert_eq!(refused.to_string(), "cannot start: container \"c\" is stopped");
    }
}
