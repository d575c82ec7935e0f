//! RuntimeService.

use api_cri::{
    KUBE_API_VERSION, RUNTIME_API_VERSION,
    v1::{
        RuntimeCondition, RuntimeStatus, StatusRequest, StatusResponse, VersionRequest,
        VersionResponse, runtime_service_server::RuntimeService,
    },
};
use engine::health::Condition;
use tonic::{Request, Response, Status};

use crate::{absent::unimplemented_rpcs, service::Slot};

#[derive(Debug)]
pub(crate) struct Runtime {
    slot: Slot,
}

impl Runtime {
    pub(crate) fn new(slot: Slot) -> Self {
        Self { slot }
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        Ok(Response::new(VersionResponse {
            version: KUBE_API_VERSION.to_owned(),
            runtime_name: "longshore".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: RUNTIME_API_VERSION.to_owned(),
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let health = self.slot.engine()?.health();
        let conditions = vec![
            condition("RuntimeReady", &health.runtime),
            condition("NetworkReady", &health.network),
        ];
        let status = Some(RuntimeStatus { conditions });
        Ok(Response::new(StatusResponse { status, ..Default::default() }))
    }

    unimplemented_rpcs! {
        unary {
            run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse = "RunPodSandbox";
            stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse = "StopPodSandbox";
            remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse = "RemovePodSandbox";
            pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse = "PodSandboxStatus";
            list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse = "ListPodSandbox";
            create_container(CreateContainerRequest) -> CreateContainerResponse = "CreateContainer";
            start_container(StartContainerRequest) -> StartContainerResponse = "StartContainer";
            stop_container(StopContainerRequest) -> StopContainerResponse = "StopContainer";
            remove_container(RemoveContainerRequest) -> RemoveContainerResponse = "RemoveContainer";
            list_containers(ListContainersRequest) -> ListContainersResponse = "ListContainers";
            container_status(ContainerStatusRequest) -> ContainerStatusResponse = "ContainerStatus";
            update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse = "UpdateContainerResources";
            reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse = "ReopenContainerLog";
            exec_sync(ExecSyncRequest) -> ExecSyncResponse = "ExecSync";
            exec(ExecRequest) -> ExecResponse = "Exec";
            attach(AttachRequest) -> AttachResponse = "Attach";
            port_forward(PortForwardRequest) -> PortForwardResponse = "PortForward";
            container_stats(ContainerStatsRequest) -> ContainerStatsResponse = "ContainerStats";
            list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse = "ListContainerStats";
            pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse = "PodSandboxStats";
            list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse = "ListPodSandboxStats";
            update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse = "UpdateRuntimeConfig";
            checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse = "CheckpointContainer";
            checkpoint_pod(CheckpointPodRequest) -> CheckpointPodResponse = "CheckpointPod";
            restore_pod(RestorePodRequest) -> RestorePodResponse = "RestorePod";
            list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse = "ListMetricDescriptors";
            list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse = "ListPodSandboxMetrics";
            runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse = "RuntimeConfig";
            update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse = "UpdatePodSandboxResources";
        }
        stream {
            stream_pod_sandboxes(StreamPodSandboxesRequest) -> StreamPodSandboxesResponse as StreamPodSandboxesStream = "StreamPodSandboxes";
            stream_containers(StreamContainersRequest) -> StreamContainersResponse as StreamContainersStream = "StreamContainers";
            stream_container_stats(StreamContainerStatsRequest) -> StreamContainerStatsResponse as StreamContainerStatsStream = "StreamContainerStats";
            stream_pod_sandbox_stats(StreamPodSandboxStatsRequest) -> StreamPodSandboxStatsResponse as StreamPodSandboxStatsStream = "StreamPodSandboxStats";
            get_container_events(GetEventsRequest) -> ContainerEventResponse as GetContainerEventsStream = "GetContainerEvents";
            stream_pod_sandbox_metrics(StreamPodSandboxMetricsRequest) -> StreamPodSandboxMetricsResponse as StreamPodSandboxMetricsStream = "StreamPodSandboxMetrics";
        }
    }
}

fn condition(name: &str, condition: &Condition) -> RuntimeCondition {
    let trouble = condition.trouble();
    RuntimeCondition {
        r#type: name.to_owned(),
        status: trouble.is_none(),
        reason: trouble.as_ref().map(|t| t.reason.to_owned()).unwrap_or_default(),
        message: trouble.map(|t| t.message).unwrap_or_default(),
    }
}
