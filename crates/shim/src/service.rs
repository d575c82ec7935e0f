//! The methods of Task and Io: translate, call, translate back.
//!
//! Everything that changes something runs in a task of its own: a client that goes away
//! ends its call, not the work.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use api_shim::{
    longshore::{
        CreateOptions, CreatePrioritized, Exit, ListRequest, ListResponse, ReopenLogRequest,
    },
    name,
    process::ProcessInfo,
    runc,
    task::v3::{
        CheckpointTaskRequest, CloseIoRequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
        CreateTaskResponse, DeleteRequest, DeleteResponse, ExecProcessRequest, KillRequest,
        PauseRequest, PidsRequest, PidsResponse, ResizePtyRequest, ResumeRequest, ShutdownRequest,
        StartRequest, StartResponse, StateRequest, StateResponse, StatsRequest, StatsResponse,
        UpdateTaskRequest, WaitRequest, WaitResponse,
    },
};
use prost::Message;
use prost_types::Any;
use sys::pty::Window;
use tokio::time::Instant;
use ttrpc::{ServerContext, Service, Status};

use crate::{
    checkpoint::Checkpoint,
    error::{Error, Result},
    exec::Exec,
    priority::Priorities,
    serve::Shim,
    stdio::Fifos,
    tasks::{Create, Output},
};

/// The Task service, under the name of one of its versions: the messages are the same.
pub(crate) fn task(name: &str, shim: &Arc<Shim>) -> Service {
    let service = Service::new(name)
        .unary("State", quick(shim, |shim, request| state(&shim, &request)))
        .unary("Create", steady(shim, create))
        .unary("Start", attended(shim, start))
        .unary(
            "Delete",
            steady(shim, async |shim, request, deadline| {
                let (pid, exit) = delete(shim, request, deadline).await?;
                Ok(DeleteResponse { pid, exit_status: exit.status, exited_at: exit.at })
            }),
        )
        .unary("Pids", quick(shim, |shim, request: PidsRequest| pids(&shim, &request)))
        .unary(
            "Pause",
            steady(shim, async |shim, request: PauseRequest, _| {
                shim.tasks.set_paused(&request.id, true).await
            }),
        )
        .unary(
            "Resume",
            steady(shim, async |shim, request: ResumeRequest, _| {
                shim.tasks.set_paused(&request.id, false).await
            }),
        )
        .unary("Kill", steady(shim, kill))
        .unary(
            "Exec",
            quick(shim, |shim, request: ExecProcessRequest| shim.tasks.add_exec(request)),
        );
    service
        .unary("ResizePty", quick(shim, |shim, request| resize(&shim, &request)))
        .unary("CloseIO", quick(shim, |shim, request| close_io(&shim, &request)))
        .unary("Update", steady(shim, update))
        .unary(
            "Wait",
            waiting(shim, async |shim, request| {
                let exit = wait(shim, request).await?;
                Ok(WaitResponse { exit_status: exit.status, exited_at: exit.at })
            }),
        )
        .unary("Connect", quick(shim, |shim, request| connect(&shim, &request)))
        .unary("Shutdown", steady(shim, shutdown))
        .unary(
            "Checkpoint",
            steady(shim, async |shim, request: CheckpointTaskRequest, deadline| {
                let wanted = Checkpoint::from_wire(&request)?;
                shim.tasks.checkpoint(&request.id, &wanted, deadline).await
            }),
        )
        .unary("Stats", quick(shim, |shim, request| stats(&shim, &request)))
}

pub(crate) fn io(shim: &Arc<Shim>) -> Service {
    Service::new(name::IO)
        .unary("Wait", waiting(shim, wait))
        .unary(
            "Delete",
            steady(shim, async |shim, request, deadline| {
                delete(shim, request, deadline).await.map(|(_, exit)| exit)
            }),
        )
        .unary(
            "List",
            quick(shim, |shim, request: ListRequest| {
                Ok(ListResponse { tasks: shim.tasks.list(&request.id)? })
            }),
        )
        .unary(
            "ReopenLog",
            steady(shim, async |shim, request: ReopenLogRequest, _| {
                shim.tasks.reopen_log(&request.id).await
            }),
        )
}

// === the three kinds of handlers ===

type Answer<Res> = std::result::Result<Res, Status>;

/// Answers at once.
fn quick<Req, Res>(
    shim: &Arc<Shim>,
    act: impl Fn(Arc<Shim>, Req) -> Result<Res> + Clone + Send + Sync + 'static,
) -> impl Fn(ServerContext, Req) -> std::future::Ready<Answer<Res>> + Send + Sync + 'static {
    let shim = Arc::clone(shim);
    move |_, request| std::future::ready(act(Arc::clone(&shim), request).map_err(Status::from))
}

/// Changes something, and finishes whoever waits.
fn steady<Req, Res, Fut>(
    shim: &Arc<Shim>,
    act: impl Fn(Arc<Shim>, Req, Option<Instant>) -> Fut + Send + Sync + 'static,
) -> impl Fn(ServerContext, Req) -> std::pin::Pin<Box<dyn Future<Output = Answer<Res>> + Send>>
+ Send
+ Sync
+ 'static
where
    Req: 'static,
    Res: Send + 'static,
    Fut: Future<Output = Result<Res>> + Send + 'static,
{
    attended(shim, move |shim, request, ctx| act(shim, request, ctx.deadline))
}

/// The same for work that has to know when its client goes away.
fn attended<Req, Res, Fut>(
    shim: &Arc<Shim>,
    act: impl Fn(Arc<Shim>, Req, ServerContext) -> Fut + Send + Sync + 'static,
) -> impl Fn(ServerContext, Req) -> std::pin::Pin<Box<dyn Future<Output = Answer<Res>> + Send>>
+ Send
+ Sync
+ 'static
where
    Req: 'static,
    Res: Send + 'static,
    Fut: Future<Output = Result<Res>> + Send + 'static,
{
    let shim = Arc::clone(shim);
    move |ctx, request| {
        let work = shim.tasks.work.spawn(act(Arc::clone(&shim), request, ctx));
        Box::pin(async move {
            let panicked = |e| Status::internal(format!("the call died: {e}"));
            work.await.map_err(panicked)?.map_err(Status::from)
        })
    }
}

/// Only looks on, and ends with its client.
fn waiting<Req, Res, Fut>(
    shim: &Arc<Shim>,
    act: impl Fn(Arc<Shim>, Req) -> Fut + Send + Sync + 'static,
) -> impl Fn(ServerContext, Req) -> std::pin::Pin<Box<dyn Future<Output = Answer<Res>> + Send>>
+ Send
+ Sync
+ 'static
where
    Req: 'static,
    Res: Send + 'static,
    Fut: Future<Output = Result<Res>> + Send + 'static,
{
    let shim = Arc::clone(shim);
    move |_, request| {
        let work = act(Arc::clone(&shim), request);
        Box::pin(async move { work.await.map_err(Status::from) })
    }
}

// === methods ===

async fn create(
    shim: Arc<Shim>,
    request: CreateTaskRequest,
    deadline: Option<Instant>,
) -> Result<CreateTaskResponse> {
    let invalid = |field, why: &str| Error::Invalid { field, why: why.to_owned() };
    if !request.rootfs.is_empty() {
        return Err(invalid("rootfs", "is to be mounted by the caller"));
    }
    if !request.checkpoint.is_empty() {
        return Err(Error::Unimplemented("restoring a checkpoint"));
    }
    let (output, priorities) = wanted(&shim, &request)?;
    let (id, bundle, tty) = (request.id, request.bundle.into(), request.terminal);
    let create = Create { id, bundle, tty, priorities, output };
    Ok(CreateTaskResponse { pid: shim.tasks.create(create, deadline).await? })
}

/// Our daemon leaves the streams to us; other clients have pipes for them, and repeat what the
/// shim was told of its runtime.
fn wanted(shim: &Shim, request: &CreateTaskRequest) -> Result<(Output, Priorities)> {
    let path = |text: &String| (!text.is_empty()).then(|| PathBuf::from(text));
    let [stdin, stdout, stderr] = [&request.stdin, &request.stdout, &request.stderr].map(path);
    let piped = stdin.is_some() || stdout.is_some() || stderr.is_some();
    match &request.options {
        None => {}
        Some(any) if any.type_url == name::RUNC_OPTIONS => check_runtime(shim, any)?,
        Some(any) => {
            let CreatePrioritized { options, priorities } = prioritized(any)?;
            if piped {
                let why = "streams go to a log or to pipes, not to both".to_owned();
                return Err(Error::Invalid { field: "stdin, stdout, stderr", why });
            }
            let priorities = Priorities::from_wire(priorities.unwrap_or_default())?;
            return Ok((Output::Log(options.unwrap_or_default()), priorities));
        }
    }
    Ok((Output::Fifos(Fifos { stdin, stdout, stderr }), Priorities::default()))
}

/// Options of either kind.
fn prioritized(Any { type_url, value }: &Any) -> Result<CreatePrioritized> {
    let decoded = match type_url.as_str() {
        name::CREATE_OPTIONS => CreateOptions::decode(value.as_slice())
            .map(|options| CreatePrioritized { options: Some(options), priorities: None }),
        name::CREATE_PRIORITIZED => CreatePrioritized::decode(value.as_slice()),
        other => return Err(bad_options(format!("{other} is unknown"))),
    };
    decoded.map_err(|e| bad_options(e.to_string()))
}

fn check_runtime(shim: &Shim, any: &Any) -> Result<()> {
    let given = runc::Options::decode(&*any.value).map_err(|e| bad_options(e.to_string()))?;
    let ours = &shim.tasks.runtime.config;
    match (Path::new(&given.binary_name), given.systemd_cgroup)
        == (&ours.binary, ours.systemd_cgroup)
    {
        true => Ok(()),
        false => Err(bad_options("are not those of the shim's own runtime".to_owned())),
    }
}

fn bad_options(why: String) -> Error {
    Error::Invalid { field: "options", why }
}

async fn start(
    shim: Arc<Shim>,
    request: StartRequest,
    ctx: ServerContext,
) -> Result<StartResponse> {
    let StartRequest { id, exec_id } = request;
    let pid = match exec_id.as_str() {
        "" => shim.tasks.start(&id, ctx.deadline).await?,
        exec_id => {
            let client = ctx.disconnected();
            shim.tasks.start_exec(&id, exec_id, ctx.deadline, client).await?
        }
    };
    Ok(StartResponse { pid })
}

async fn delete(
    shim: Arc<Shim>,
    request: DeleteRequest,
    deadline: Option<Instant>,
) -> Result<(u32, Exit)> {
    let DeleteRequest { id, exec_id } = request;
    let task = shim.tasks.get(&id)?;
    match exec_id.as_str() {
        "" => Ok((task.init.pid(), shim.tasks.delete(&id, deadline).await?)),
        exec_id => {
            let pid = task.exec(exec_id)?.process.pid();
            Ok((pid, shim.tasks.delete_exec(&id, exec_id).await?))
        }
    }
}

async fn wait(shim: Arc<Shim>, request: WaitRequest) -> Result<Exit> {
    let task = shim.tasks.get(&request.id)?;
    match request.exec_id.as_str() {
        "" => Ok(task.exit(&task.init.wait().await)),
        exec_id => Ok(Exec::exit(&task.exec(exec_id)?.process.wait().await)),
    }
}

async fn kill(shim: Arc<Shim>, request: KillRequest, _: Option<Instant>) -> Result<()> {
    let KillRequest { id, exec_id, signal, all } = request;
    let signal = i32::try_from(signal).ok().filter(|signal| (0..=64).contains(signal));
    let invalid = || Error::Invalid { field: "signal", why: "is none".to_owned() };
    let signal = signal.ok_or_else(invalid)?;
    match exec_id.as_str() {
        "" => shim.tasks.kill(&id, signal, all).await,
        exec_id => shim.tasks.kill_exec(&id, exec_id, signal),
    }
}

async fn update(
    shim: Arc<Shim>,
    request: UpdateTaskRequest,
    deadline: Option<Instant>,
) -> Result<()> {
    let missing = || Error::Invalid { field: "resources", why: "are missing".to_owned() };
    let resources = request.resources.ok_or_else(missing)?.value;
    shim.tasks.update(&request.id, resources, deadline).await
}

async fn shutdown(shim: Arc<Shim>, request: ShutdownRequest, _: Option<Instant>) -> Result<()> {
    shim.shutdown(request.now).await
}

fn state(shim: &Shim, request: &StateRequest) -> Result<StateResponse> {
    let task = shim.tasks.get(&request.id)?;
    let (id, bundle) = (task.id.clone(), task.bundle.display().to_string());
    let base = StateResponse { id, bundle, terminal: task.tty, ..StateResponse::default() };
    if request.exec_id.is_empty() {
        let (info, ended) = (task.info(), task.init.ended());
        let exit = ended.map(|ended| task.exit(&ended)).unwrap_or_default();
        let (exit_status, exited_at) = (exit.status, exit.at);
        return Ok(StateResponse {
            pid: info.pid,
            status: info.status,
            exit_status,
            exited_at,
            ..base
        });
    }
    let exec = task.exec(&request.exec_id)?;
    let exit = exec.process.ended().map(|ended| Exec::exit(&ended)).unwrap_or_default();
    Ok(StateResponse {
        exec_id: request.exec_id.clone(),
        pid: exec.process.pid(),
        status: exec.status().into(),
        exit_status: exit.status,
        exited_at: exit.at,
        ..base
    })
}

fn pids(shim: &Shim, request: &PidsRequest) -> Result<PidsResponse> {
    let info = |pid| ProcessInfo { pid, info: None };
    let processes = shim.tasks.pids(&request.id)?.into_iter().map(info).collect();
    Ok(PidsResponse { processes })
}

fn stats(shim: &Shim, request: &StatsRequest) -> Result<StatsResponse> {
    let metrics = shim.tasks.stats(&request.id)?.encode_to_vec();
    let stats = Any { type_url: name::METRICS_V2.to_owned(), value: metrics };
    Ok(StatsResponse { stats: Some(stats) })
}

fn resize(shim: &Shim, request: &ResizePtyRequest) -> Result<()> {
    let terminal = shim.tasks.get(&request.id)?.terminal(&request.exec_id)?;
    let side = |size: u32| u16::try_from(size).unwrap_or(u16::MAX);
    let window = Window { rows: side(request.height), columns: side(request.width) };
    sys::pty::resize(&terminal, window).map_err(Error::io("resize"))
}

fn close_io(shim: &Shim, request: &CloseIoRequest) -> Result<()> {
    match request.stdin {
        true => shim.tasks.close_stdin(&request.id, &request.exec_id),
        false => Ok(()),
    }
}

fn connect(shim: &Shim, request: &ConnectRequest) -> Result<ConnectResponse> {
    // Who asks for none, or for one that is to come, wants to know who we are.
    let task_pid = shim.tasks.get(&request.id).map_or(0, |task| task.init.pid());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(ConnectResponse { shim_pid: std::process::id(), task_pid, version })
}
