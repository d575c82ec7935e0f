//! What only our shim does: it keeps exits, writes logs and lists its containers, behind a
//! service of its own.

use std::time::Duration;

use api_shim::{
    longshore::{
        self as wire, CreateOptions, CreatePrioritized, IoClient, ListRequest, ReopenLogRequest,
    },
    name,
    process::Status,
    task::v3::{CreateTaskRequest, CreateTaskResponse, DeleteRequest, WaitRequest},
};
use jiff::Timestamp;
use prost::Message;
use prost_types::Any;
use ttrpc::Context;

use crate::{
    CreateTask, Exit, LogFormat, LogTarget, Priorities, ShimError, TaskState, TaskStatus,
    shim::{any, garbled, text},
    task::Task,
};

#[derive(Debug)]
pub(crate) struct Io(IoClient);

impl Io {
    pub(crate) fn new(client: ttrpc::Client) -> Self {
        Self(IoClient::new(client))
    }

    pub(crate) async fn create(
        task: &Task,
        limit: Duration,
        wanted: CreateTask,
    ) -> Result<u32, ShimError> {
        let CreateTask { id, bundle, stdio, log, priorities } = wanted;
        let options = CreateOptions {
            stdin: stdio.stdin,
            stdin_once: stdio.stdin_once,
            log: log.map(log_to_wire).transpose()?,
        };
        let request = CreateTaskRequest {
            id,
            bundle: text(bundle)?,
            terminal: stdio.tty,
            options: Some(options_to_wire(options, &priorities)),
            ..CreateTaskRequest::default()
        };
        let created: Result<CreateTaskResponse, _> = task.call("Create", limit, &request).await;
        created.map(|created| created.pid).map_err(|error| say_age(error, &priorities))
    }

    pub(crate) async fn wait(&self, id: &str, exec_id: &str) -> Result<Exit, ShimError> {
        let request = WaitRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let exit = self.0.wait(&Context::new(), &request).await;
        exit_from_wire("Wait", exit.map_err(|e| ShimError::of_call("Wait", Duration::MAX, e))?)
    }

    pub(crate) async fn delete(
        &self,
        limit: Duration,
        id: &str,
        exec_id: &str,
    ) -> Result<Exit, ShimError> {
        let call = "Delete";
        let request = DeleteRequest { id: id.to_owned(), exec_id: exec_id.to_owned() };
        let exit = self.0.delete(&Context::timeout(limit), &request).await;
        exit_from_wire(call, exit.map_err(|e| ShimError::of_call(call, limit, e))?)
    }

    pub(crate) async fn states(
        &self,
        call: &'static str,
        limit: Duration,
        id: &str,
    ) -> Result<Vec<TaskState>, ShimError> {
        let request = ListRequest { id: id.to_owned(), exec_id: String::new() };
        let response = self.0.list(&Context::timeout(limit), &request).await;
        let response = response.map_err(|e| ShimError::of_call(call, limit, e))?;
        response.tasks.into_iter().map(|task| state_from_wire(call, task)).collect()
    }

    pub(crate) async fn reopen_log(&self, limit: Duration, id: &str) -> Result<(), ShimError> {
        let request = ReopenLogRequest { id: id.to_owned() };
        let done = self.0.reopen_log(&Context::timeout(limit), &request).await;
        done.map_err(|e| ShimError::of_call("ReopenLog", limit, e)).map(drop)
    }
}

fn options_to_wire(options: CreateOptions, priorities: &Priorities) -> Any {
    if *priorities == Priorities::default() {
        return any(name::CREATE_OPTIONS, options.encode_to_vec());
    }
    let io =
        priorities.io.map(|io| wire::IoPriority { class: io.class.into(), level: io.level.into() });
    let scheduler = priorities.scheduler.map(|s| wire::Scheduler {
        policy: s.policy,
        flags: s.flags,
        nice: s.nice,
        priority: s.priority,
        runtime: s.runtime,
        deadline: s.deadline,
        period: s.period,
    });
    let priorities = Some(wire::Priorities { io, scheduler });
    let prioritized = CreatePrioritized { options: Some(options), priorities };
    any(name::CREATE_PRIORITIZED, prioritized.encode_to_vec())
}

/// A shim that an older daemon started does not know the options; it says so by their name.
fn say_age(error: ShimError, priorities: &Priorities) -> ShimError {
    match error {
        ShimError::Refused { call, kind: base::Kind::Invalid, message }
            if message.contains(name::CREATE_PRIORITIZED) =>
        {
            let fields = priorities.fields().collect::<Vec<_>>().join(", ");
            let why = "the pod's shim is of an older version and cannot set it; make the pod anew";
            let message = format!("{fields}: {why}");
            ShimError::Refused { call, kind: base::Kind::Unimplemented, message }
        }
        error => error,
    }
}

fn log_to_wire(log: LogTarget) -> Result<wire::Log, ShimError> {
    let format = match log.format {
        LogFormat::Cri => wire::log::Format::Cri,
        LogFormat::JsonFile => wire::log::Format::JsonFile,
    };
    let max_line = u32::try_from(log.max_line).unwrap_or(u32::MAX);
    Ok(wire::Log { path: text(log.path)?, format: format.into(), max_line })
}

fn state_from_wire(call: &'static str, task: wire::TaskInfo) -> Result<TaskState, ShimError> {
    Ok(TaskState {
        status: status(call, task.status())?,
        id: task.id,
        bundle: task.bundle.into(),
        pid: task.pid,
        exit: task.exit.map(|exit| exit_from_wire(call, exit)).transpose()?,
        execs: task.execs,
    })
}

pub(crate) fn status(call: &'static str, status: Status) -> Result<TaskStatus, ShimError> {
    match status {
        Status::Created => Ok(TaskStatus::Created),
        Status::Running => Ok(TaskStatus::Running),
        Status::Paused | Status::Pausing => Ok(TaskStatus::Paused),
        Status::Stopped => Ok(TaskStatus::Stopped),
        Status::Unknown => Err(garbled(call, "task without a status")),
    }
}

fn exit_from_wire(call: &'static str, exit: wire::Exit) -> Result<Exit, ShimError> {
    Ok(Exit {
        code: exit.status,
        at: time(call, exit.at)?,
        oom: exit.oom,
        log_errors: exit.log_errors,
    })
}

pub(crate) fn time(
    call: &'static str,
    at: Option<prost_types::Timestamp>,
) -> Result<Timestamp, ShimError> {
    let at = at.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
    at.ok_or_else(|| garbled(call, "exit without a time"))
}

#[cfg(test)]
mod tests {
    use sys::sched::IoPriority;
    use tokio_util::task::TaskTracker;
    use ttrpc::{Client, Server, ServerContext, Service, Status};

    use super::*;

    /// A shim that knows no priorities, as the first of ours were.
    fn old_shim(tracker: &TaskTracker) -> Task {
        let create = |_: ServerContext, request: CreateTaskRequest| async {
            match request.options.unwrap_or_default() {
                any if any.type_url == name::CREATE_OPTIONS => Ok(CreateTaskResponse { pid: 7 }),
                any => {
                    let why = format!("options: {} is unknown", any.type_url);
                    Err(Status::new(ttrpc::Code::InvalidArgument, why))
                }
            }
        };
        let server = Server::builder().service(Service::new(name::TASK_V3).unary("Create", create));
        let (server, (theirs, ours)) = (server.build(), tokio::io::duplex(4096));
        tracker.spawn(async move { server.serve_connection(theirs).await });
        Task::new(Client::new(ours), 3).unwrap()
    }

    #[tokio::test]
    async fn an_older_shim_drops_no_priorities() {
        let tracker = TaskTracker::new();
        let task = old_shim(&tracker);
        let limit = Duration::from_secs(60);
        let plain = CreateTask { id: "c".to_owned(), ..CreateTask::default() };
        assert_eq!(Io::create(&task, limit, plain.clone()).await.unwrap(), 7);
        let io = Some(IoPriority { class: 2, level: 6 });
        let priorities = Priorities { io, scheduler: Some(Default::default()) };
        let prioritized = CreateTask { priorities, ..plain };
        let error = Io::create(&task, limit, prioritized).await.unwrap_err();
        assert_eq!(error.kind(), base::Kind::Unimplemented);
        let want = "Create: io_priority, scheduler: the pod's shim is of an older version";
        assert!(error.to_string().starts_with(want), "{error}");
    }
}
