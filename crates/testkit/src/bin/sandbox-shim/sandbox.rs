//! The Sandbox service, by calls of the Task service beside it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use api_cri::v1::{NamespaceMode, PodSandboxConfig};
use api_shim::{
    process,
    sandbox::{
        CreateSandboxRequest, CreateSandboxResponse, PingRequest, PingResponse, PlatformRequest,
        PlatformResponse, Sandbox, SandboxMetricsRequest, SandboxMetricsResponse, SandboxServer,
        SandboxStatusRequest, SandboxStatusResponse, ShutdownSandboxRequest,
        ShutdownSandboxResponse, StartSandboxRequest, StartSandboxResponse, StopSandboxRequest,
        StopSandboxResponse, WaitSandboxRequest, WaitSandboxResponse,
    },
    start::{Description, Files},
    task::v3::{
        CreateTaskRequest, DeleteRequest, KillRequest, ShutdownRequest, StartRequest, StateRequest,
        StatsRequest, TaskClient, WaitRequest,
    },
    types::{Metric, Platform},
};
use prost::Message;
use serde_json::{Value, json};
use tokio::{net::UnixStream, sync::OnceCell};
use ttrpc::{Client, Code, Context, Error, ServerContext, Status};

const LIMIT: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Service {
    id: String,
    /// Of the sandbox; the shim's sockets are in it.
    bundle: PathBuf,
    systemd_cgroup: bool,
    task: OnceCell<TaskClient>,
}

type Answer<T> = Result<T, Status>;

impl From<Service> for ttrpc::Service {
    fn from(service: Service) -> Self {
        SandboxServer::new(service).into()
    }
}

impl Service {
    pub(crate) fn new(description: &Description) -> Self {
        Self {
            id: description.id.clone(),
            bundle: description.dir.clone(),
            systemd_cgroup: description.runtime.systemd_cgroup,
            task: OnceCell::new(),
        }
    }

    /// Of the Task service; the path of the socket may be too long for an address.
    async fn task(&self, id: &str) -> Answer<&TaskClient> {
        if id != self.id {
            return Err(Status::not_found(format!("no sandbox {id:?}")));
        }
        let open = async || {
            let dir = fs::File::open(&self.bundle)?;
            let name = Files::of(Path::new("")).socket;
            let fd = std::os::fd::AsRawFd::as_raw_fd(&dir).to_string();
            let stream =
                UnixStream::connect(Path::new("/proc/self/fd").join(fd).join(name)).await?;
            Ok(TaskClient::new(Client::new(stream)))
        };
        let opened = self.task.get_or_try_init(open).await;
        opened.map_err(|e: std::io::Error| Status::internal(format!("reach the tasks: {e}")))
    }

    fn exec_id() -> String {
        String::new()
    }
}

fn within() -> Context {
    Context::timeout(LIMIT)
}

fn told(error: Error) -> Status {
    match error {
        Error::Status(status) => status,
        other => Status::internal(other.to_string()),
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Status(status) if status.code == Code::NotFound)
}

impl Sandbox for Service {
    async fn create_sandbox(
        &self,
        _: ServerContext,
        request: CreateSandboxRequest,
    ) -> Answer<CreateSandboxResponse> {
        let task = self.task(&request.sandbox_id).await?;
        let config = pod_config(&request);
        let config = config.map_err(|e| Status::invalid_argument(format!("{e:#}")))?;
        let bundle = Path::new(&request.bundle_path);
        let spec = self.spec(&config, &request.netns_path);
        make_bundle(bundle, &spec).map_err(|e| Status::internal(format!("{e:#}")))?;
        let create = CreateTaskRequest {
            id: request.sandbox_id,
            bundle: request.bundle_path,
            ..CreateTaskRequest::default()
        };
        task.create(&within(), &create).await.map_err(told)?;
        Ok(CreateSandboxResponse {})
    }

    async fn start_sandbox(
        &self,
        _: ServerContext,
        StartSandboxRequest { sandbox_id: id }: StartSandboxRequest,
    ) -> Answer<StartSandboxResponse> {
        let task = self.task(&id).await?;
        let start = StartRequest { id, exec_id: Self::exec_id() };
        let pid = task.start(&within(), &start).await.map_err(told)?.pid;
        Ok(StartSandboxResponse { pid, created_at: Some(SystemTime::now().into()), spec: None })
    }

    async fn platform(
        &self,
        _: ServerContext,
        request: PlatformRequest,
    ) -> Answer<PlatformResponse> {
        self.task(&request.sandbox_id).await?;
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let (os, architecture) = ("linux".to_owned(), architecture.to_owned());
        let platform = Some(Platform { os, architecture, ..Platform::default() });
        Ok(PlatformResponse { platform })
    }

    /// It sleeps, and does not hear anything but SIGKILL.
    async fn stop_sandbox(
        &self,
        _: ServerContext,
        StopSandboxRequest { sandbox_id: id, .. }: StopSandboxRequest,
    ) -> Answer<StopSandboxResponse> {
        let task = self.task(&id).await?;
        let kill = KillRequest { id: id.clone(), exec_id: Self::exec_id(), signal: 9, all: true };
        let wait = WaitRequest { id, exec_id: Self::exec_id() };
        loop {
            match task.kill(&within(), &kill).await {
                Err(error) if !is_missing(&error) => return Err(told(error)),
                _ => {}
            }
            // One that is just being created has no process to kill yet.
            match task.wait(&Context::timeout(AGAIN), &wait).await {
                Err(Error::Timeout) => {}
                Err(error) if !is_missing(&error) => return Err(told(error)),
                _ => return Ok(StopSandboxResponse {}),
            }
        }
    }

    async fn wait_sandbox(
        &self,
        _: ServerContext,
        WaitSandboxRequest { sandbox_id: id }: WaitSandboxRequest,
    ) -> Answer<WaitSandboxResponse> {
        let task = self.task(&id).await?;
        let wait = WaitRequest { id, exec_id: Self::exec_id() };
        let ended = task.wait(&Context::new(), &wait).await.map_err(told)?;
        let (exit_status, exited_at) = (ended.exit_status, ended.exited_at);
        Ok(WaitSandboxResponse { exit_status, exited_at })
    }

    async fn sandbox_status(
        &self,
        _: ServerContext,
        request: SandboxStatusRequest,
    ) -> Answer<SandboxStatusResponse> {
        let sandbox_id = request.sandbox_id;
        let task = self.task(&sandbox_id).await?;
        let ask = StateRequest { id: sandbox_id.clone(), exec_id: Self::exec_id() };
        let state = task.state(&within(), &ask).await.map_err(told)?;
        let ready = state.status() == process::Status::Running;
        Ok(SandboxStatusResponse {
            sandbox_id,
            pid: state.pid,
            state: if ready { "SANDBOX_READY" } else { "SANDBOX_NOTREADY" }.to_owned(),
            exited_at: state.exited_at,
            ..SandboxStatusResponse::default()
        })
    }

    async fn ping_sandbox(&self, _: ServerContext, request: PingRequest) -> Answer<PingResponse> {
        self.task(&request.sandbox_id).await?;
        Ok(PingResponse {})
    }

    async fn shutdown_sandbox(
        &self,
        _: ServerContext,
        ShutdownSandboxRequest { sandbox_id: id }: ShutdownSandboxRequest,
    ) -> Answer<ShutdownSandboxResponse> {
        let task = self.task(&id).await?;
        let delete = DeleteRequest { id: id.clone(), exec_id: Self::exec_id() };
        match task.delete(&within(), &delete).await {
            Err(error) if !is_missing(&error) => return Err(told(error)),
            _ => {}
        }
        task.shutdown(&within(), &ShutdownRequest { id, now: true }).await.map_err(told)?;
        Ok(ShutdownSandboxResponse {})
    }

    async fn sandbox_metrics(
        &self,
        _: ServerContext,
        SandboxMetricsRequest { sandbox_id: id }: SandboxMetricsRequest,
    ) -> Answer<SandboxMetricsResponse> {
        let task = self.task(&id).await?;
        let stats = task.stats(&within(), &StatsRequest { id: id.clone() }).await.map_err(told)?;
        let timestamp = Some(SystemTime::now().into());
        Ok(SandboxMetricsResponse { metrics: Some(Metric { timestamp, id, data: stats.stats }) })
    }
}

// === the sandbox ===

fn pod_config(request: &CreateSandboxRequest) -> anyhow::Result<PodSandboxConfig> {
    let options = request.options.as_ref().context("options: nothing is said of the pod")?;
    let name = options.type_url.rsplit('/').next().unwrap_or_default();
    anyhow::ensure!(name == "runtime.v1.PodSandboxConfig", "options: {name:?} is no pod");
    let config = PodSandboxConfig::decode(&*options.value)?;
    config.metadata.as_ref().context("the pod has no name")?;
    Ok(config)
}

impl Service {
    /// All that it needs is in the request: nothing of the daemon's files is looked at.
    fn spec(&self, config: &PodSandboxConfig, netns: &str) -> Value {
        let linux = config.linux.clone().unwrap_or_default();
        let options = linux.security_context.and_then(|context| context.namespace_options);
        let pid = options.unwrap_or_default().pid();
        let mut spaces = vec![json!({ "type": "mount" }), json!({ "type": "ipc" })];
        if pid != NamespaceMode::Node {
            spaces.push(json!({ "type": "pid" }));
        }
        if !netns.is_empty() {
            spaces.push(json!({ "type": "network", "path": netns }));
        }
        let group = match (linux.cgroup_parent.as_str(), self.systemd_cgroup) {
            (parent, true) => format!("{parent}:sandbox:{}", self.id),
            ("", false) => format!("/sandbox/{}", self.id),
            (parent, false) => format!("{parent}/{}", self.id),
        };
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "args": ["/pause"],
                "cwd": "/",
                "user": { "uid": 65535, "gid": 65535 },
                "noNewPrivileges": true,
            },
            "root": { "path": "rootfs", "readonly": true },
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
            "linux": { "namespaces": spaces, "cgroupsPath": group },
        })
    }
}

fn make_bundle(bundle: &Path, spec: &Value) -> anyhow::Result<()> {
    let arch = oci::Arch::of_machine(std::env::consts::ARCH);
    let program = arch.and_then(oci::pause_program).context("no program for this machine")?;
    let (rootfs, pause) = (bundle.join("rootfs"), bundle.join("rootfs/pause"));
    let dirs = [rootfs.clone(), rootfs.join("dev"), rootfs.join("proc")];
    dirs.iter().try_for_each(fs::create_dir_all)?;
    fs::write(&pause, program)?;
    // The shim makes what only root sees; the sandbox is nobody's.
    for path in dirs.iter().chain([&pause]) {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    fs::write(bundle.join("config.json"), spec.to_string())?;
    Ok(())
}
