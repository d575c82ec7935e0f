//! A client of the CRI services, in the words of tests.

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use api_cri::{
    client::connect,
    v1::{
        Container, ContainerConfig, ContainerState, ContainerStatus, ContainerStatusRequest,
        CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, ImageSpec,
        ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxConfig,
        PodSandboxStatusRequest, PodSandboxStatusResponse, PullImageRequest,
        RemoveContainerRequest, RemoveImageRequest, RemovePodSandboxRequest,
        ReopenContainerLogRequest, RunPodSandboxRequest, StartContainerRequest,
        StopContainerRequest, StopPodSandboxRequest, image_service_client::ImageServiceClient,
        runtime_service_client::RuntimeServiceClient,
    },
};
use tokio::time::Instant;
use tonic::{Status, transport::Channel};

/// Generous: the machine may be busy with a build.
fn limit() -> Duration {
    Duration::from_secs(60) * crate::slowness()
}
const POLL: Duration = Duration::from_millis(20);

/// Clones share the connection.
#[derive(Clone, Debug)]
pub struct Cri {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

/// A pod that runs, and what it was asked to be.
#[derive(Clone, Debug)]
pub struct Pod {
    pub id: String,
    pub config: PodSandboxConfig,
}

impl Cri {
    pub async fn connect(socket: &Path) -> Result<Self> {
        let channel = connect(socket).await?;
        let runtime = RuntimeServiceClient::new(channel.clone());
        Ok(Self { runtime, images: ImageServiceClient::new(channel) })
    }

    /// For calls that are not here.
    pub fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    /// The image service, for calls that are not here.
    pub fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    pub async fn pull(&self, image: &str) -> Result<(), Status> {
        let image = Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() });
        let request = PullImageRequest { image, ..PullImageRequest::default() };
        self.images.clone().pull_image(request).await.map(drop)
    }

    pub async fn remove_image(&self, image: &str) -> Result<(), Status> {
        let image = Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() });
        self.images.clone().remove_image(RemoveImageRequest { image }).await.map(drop)
    }

    // === pods ===

    pub async fn run_pod(&self, config: &PodSandboxConfig) -> Result<Pod, Status> {
        self.run_pod_with("", config).await
    }

    pub async fn run_pod_with(
        &self,
        handler: &str,
        config: &PodSandboxConfig,
    ) -> Result<Pod, Status> {
        let config = config.clone();
        let runtime_handler = handler.to_owned();
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler };
        let answer = Box::pin(self.runtime().run_pod_sandbox(request)).await?.into_inner();
        Ok(Pod { id: answer.pod_sandbox_id, config })
    }

    pub async fn stop_pod(&self, id: &str) -> Result<(), Status> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime().stop_pod_sandbox(request).await.map(drop)
    }

    /// Stops it first, as the kubelet does.
    pub async fn remove_pod(&self, id: &str) -> Result<(), Status> {
        self.stop_pod(id).await?;
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime().remove_pod_sandbox(request).await.map(drop)
    }

    pub async fn pod_status(&self, id: &str) -> Result<PodSandboxStatusResponse, Status> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        Ok(self.runtime().pod_sandbox_status(request).await?.into_inner())
    }

    pub async fn pods(&self) -> Result<Vec<PodSandbox>, Status> {
        let request = ListPodSandboxRequest::default();
        Ok(self.runtime().list_pod_sandbox(request).await?.into_inner().items)
    }

    // === containers ===

    pub async fn create(&self, pod: &Pod, config: ContainerConfig) -> Result<String, Status> {
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let answer = Box::pin(self.runtime().create_container(request)).await?;
        Ok(answer.into_inner().container_id)
    }

    pub async fn start(&self, id: &str) -> Result<(), Status> {
        let request = StartContainerRequest { container_id: id.to_owned() };
        self.runtime().start_container(request).await.map(drop)
    }

    /// Creates and starts it.
    pub async fn run(&self, pod: &Pod, config: ContainerConfig) -> Result<String, Status> {
        let id = self.create(pod, config).await?;
        self.start(&id).await?;
        Ok(id)
    }

    pub async fn stop(&self, id: &str, grace_secs: i64) -> Result<(), Status> {
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: grace_secs };
        self.runtime().stop_container(request).await.map(drop)
    }

    pub async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        self.runtime().remove_container(request).await.map(drop)
    }

    pub async fn status(&self, id: &str) -> Result<ContainerStatus, Status> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = self.runtime().container_status(request).await?.into_inner();
        answer.status.ok_or_else(|| Status::internal("an answer without a status"))
    }

    pub async fn containers(&self) -> Result<Vec<Container>, Status> {
        let request = ListContainersRequest::default();
        Ok(self.runtime().list_containers(request).await?.into_inner().containers)
    }

    pub async fn reopen_log(&self, id: &str) -> Result<(), Status> {
        let request = ReopenContainerLogRequest { container_id: id.to_owned() };
        self.runtime().reopen_container_log(request).await.map(drop)
    }

    pub async fn exec(&self, id: &str, command: &[&str]) -> Result<ExecSyncResponse, Status> {
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&arg| arg.to_owned()).collect(),
            timeout: 0,
        };
        Ok(self.runtime().exec_sync(request).await?.into_inner())
    }

    /// Its status once it has ended.
    pub async fn exited(&self, id: &str) -> Result<ContainerStatus> {
        let until = Instant::now() + limit();
        loop {
            let status = self.status(id).await?;
            if status.state() == ContainerState::ContainerExited {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("container {id} did not end in {:?}: {status:?}", limit());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Runs it to its end.
    pub async fn run_to_end(&self, pod: &Pod, config: ContainerConfig) -> Result<ContainerStatus> {
        let id = self.run(pod, config).await?;
        self.exited(&id).await
    }
}
