//! RuntimeService: each method translates, calls and translates back.

use std::collections::BTreeMap;

use api_cri::{
    KUBE_API_VERSION, RUNTIME_API_VERSION, v1, v1::runtime_service_server::RuntimeService,
};
use engine::{
    Engine,
    health::{Condition, Deprecations, Told},
    view::HandlerView,
};
use oci::CgroupDriver;
use tonic::{Request, Response, Status};

use crate::{
    absent::unimplemented_rpcs,
    container, events,
    field::{Under, not_empty, not_windows},
    filter, metrics, namespace, pod, resources,
    service::Slot,
    stats,
    status::{busy, gone_is_done, status},
    stream,
    streaming::{self, Streaming},
};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Debug)]
pub(crate) struct Runtime {
    slot: Slot,
    streaming: Streaming,
}

impl Runtime {
    pub(crate) fn new(slot: Slot, streaming: Streaming) -> Self {
        Self { slot, streaming }
    }

    fn engine(&self) -> Result<&Engine, Status> {
        Ok(self.slot.engine()?)
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    // === the runtime itself ===

    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: KUBE_API_VERSION.to_owned(),
            runtime_name: "longshore".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: RUNTIME_API_VERSION.to_owned(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let engine = self.engine()?;
        let health = engine.health();
        let conditions = vec![
            condition("RuntimeReady", &health.runtime),
            condition("NetworkReady", &health.network),
            deprecations(&health.deprecations),
        ];
        let info = if request.into_inner().verbose {
            BTreeMap::from([
                ("config".to_owned(), engine.details().to_string()),
                ("network".to_owned(), engine.network_details().to_string()),
            ])
        } else {
            BTreeMap::new()
        };
        let handlers = engine.handlers();
        let features = v1::RuntimeFeatures {
            supplemental_groups_policy: true,
            user_namespaces_host_network: handlers
                .iter()
                .any(|handler| handler.user_namespaces && handler.recursive_readonly),
            mount_options: true,
        };
        Ok(Response::new(v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            features: Some(features),
            runtime_handlers: self::handlers(&handlers),
            info,
        }))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        let driver = match self.engine()?.cgroup_driver() {
            CgroupDriver::Systemd => v1::CgroupDriver::Systemd,
            CgroupDriver::Cgroupfs => v1::CgroupDriver::Cgroupfs,
        };
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() });
        Ok(Response::new(v1::RuntimeConfigResponse { linux }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let config = request.into_inner().runtime_config.unwrap_or_default();
        let cidrs = config.network_config.unwrap_or_default().pod_cidr;
        self.engine()?.set_pod_cidrs(&cidrs).await.map_err(status)?;
        Ok(Response::new(v1::UpdateRuntimeConfigResponse {}))
    }

    // === pods ===

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let asked = pod::request(request.into_inner())?;
        let id = self.engine()?.run_pod(asked).await.map_err(status)?;
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: id.to_string() }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = not_empty(POD_ID, request.into_inner().pod_sandbox_id)?;
        gone_is_done(self.engine()?.stop_pod(&id).await)?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = not_empty(POD_ID, request.into_inner().pod_sandbox_id)?;
        gone_is_done(self.engine()?.remove_pod(&id).await)?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let v1::PodSandboxStatusRequest { pod_sandbox_id, verbose } = request.into_inner();
        let id = not_empty(POD_ID, pod_sandbox_id)?;
        let engine = self.engine()?;
        let view = engine.pod(&id).map_err(status)?;
        let info = if verbose {
            info(&engine.pod_details(&id).await.map_err(status)?)
        } else {
            BTreeMap::new()
        };
        Ok(Response::new(pod::response(&view, info)))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = filter::pods(request.into_inner().filter)?;
        let items = self.engine()?.pods(&filter).iter().map(|p| pod::item(p)).collect();
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    type StreamPodSandboxesStream = stream::Messages<v1::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let filter = filter::pods(request.into_inner().filter)?;
        let items = self.engine()?.pods(&filter).into_iter().map(|p| pod::item(&p));
        Ok(Response::new(stream::messages(items, |pod_sandboxes| v1::StreamPodSandboxesResponse {
            pod_sandboxes,
        })))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        let v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id, overhead, resources } =
            request.into_inner();
        let id = not_empty(POD_ID, pod_sandbox_id)?;
        let given = |asked: Option<_>| asked.map(|r| resources::of_pod(Some(r))).transpose();
        let (overhead, resources) =
            (given(overhead).under("overhead")?, given(resources).under("resources")?);
        self.engine()?.update_pod(&id, overhead, resources).await.map_err(status)?;
        Ok(Response::new(v1::UpdatePodSandboxResourcesResponse {}))
    }

    // === containers ===

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let v1::CreateContainerRequest { pod_sandbox_id, mut config, sandbox_config } =
            request.into_inner();
        if let Some(target) = namespace::target_of(config.as_mut()) {
            *target = self.engine()?.container(target).map_err(status)?.id.to_string();
        }
        let pod = not_empty(POD_ID, pod_sandbox_id)?;
        pod::check_repeated(sandbox_config)?;
        let outdated = container::outdated(config.as_ref());
        let asked = container::request(config)?;
        for (field, advice) in outdated {
            self.engine()?.health().deprecations.note(field, advice);
        }
        let id = self.engine()?.create_container(&pod, asked).await.map_err(status)?;
        Ok(Response::new(v1::CreateContainerResponse { container_id: id.to_string() }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let id = not_empty(CONTAINER_ID, request.into_inner().container_id)?;
        self.engine()?.start_container(&id).await.map_err(status)?;
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let v1::StopContainerRequest { container_id, timeout } = request.into_inner();
        let id = not_empty(CONTAINER_ID, container_id)?;
        gone_is_done(self.engine()?.stop_container(&id, container::grace(timeout)).await)?;
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = not_empty(CONTAINER_ID, request.into_inner().container_id)?;
        gone_is_done(self.engine()?.remove_container(&id).await)?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let v1::ContainerStatusRequest { container_id, verbose } = request.into_inner();
        let id = not_empty(CONTAINER_ID, container_id)?;
        let engine = self.engine()?;
        let record = engine.container(&id).map_err(status)?;
        let info = if verbose {
            info(&engine.container_details(&id).await.map_err(status)?)
        } else {
            BTreeMap::new()
        };
        let status = Some(container::status(&record));
        Ok(Response::new(v1::ContainerStatusResponse { status, info }))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let filter = filter::containers(request.into_inner().filter)?;
        let found = self.engine()?.containers(&filter);
        let containers = found.iter().map(|c| container::item(c)).collect();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    type StreamContainersStream = stream::Messages<v1::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let filter = filter::containers(request.into_inner().filter)?;
        let items = self.engine()?.containers(&filter).into_iter().map(|c| container::item(&c));
        Ok(Response::new(stream::messages(items, |containers| v1::StreamContainersResponse {
            containers,
        })))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let v1::UpdateContainerResourcesRequest { container_id, linux, windows, annotations: _ } =
            request.into_inner();
        let id = not_empty(CONTAINER_ID, container_id)?;
        not_windows(windows)?;
        let engine = self.engine()?;
        match linux {
            Some(_) => {
                let asked = resources::request(linux).under("linux")?;
                engine.update_container(&id, asked).await.map_err(status)?;
            }
            // Nothing to change, but of a container that must exist.
            None => drop(engine.container(&id).map_err(status)?),
        }
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        let id = not_empty(CONTAINER_ID, request.into_inner().container_id)?;
        self.engine()?.reopen_log(&id).await.map_err(status)?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn checkpoint_container(
        &self,
        request: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        let (id, asked) = container::checkpoint(request.into_inner())?;
        self.engine()?.checkpoint_container(&id, asked).await.map_err(status)?;
        Ok(Response::new(v1::CheckpointContainerResponse {}))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        let v1::ExecSyncRequest { container_id, cmd, timeout } = request.into_inner();
        let id = not_empty(CONTAINER_ID, container_id)?;
        let (command, limit) = container::exec(cmd, timeout)?;
        let output = self.engine()?.exec_sync(&id, command, limit).await.map_err(status)?;
        Ok(Response::new(container::exec_response(output)))
    }

    // === events ===

    type GetContainerEventsStream = events::Events;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        Ok(Response::new(events::messages(self.engine()?.subscribe())))
    }

    // === what is used ===

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let id = not_empty(CONTAINER_ID, request.into_inner().container_id)?;
        let found = self.engine()?.container_stats(&id).await.map_err(status)?;
        let stats = Some(stats::container(&found));
        Ok(Response::new(v1::ContainerStatsResponse { stats }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let filter = filter::container_stats(request.into_inner().filter);
        let found = self.engine()?.list_container_stats(&filter).await.map_err(status)?;
        let stats = found.iter().map(stats::container).collect();
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    type StreamContainerStatsStream = stream::Messages<v1::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let filter = filter::container_stats(request.into_inner().filter);
        let found = self.engine()?.list_container_stats(&filter).await.map_err(status)?;
        let items = found.into_iter().map(|found| stats::container(&found));
        Ok(Response::new(stream::messages(items, |container_stats| {
            v1::StreamContainerStatsResponse { container_stats }
        })))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let id = not_empty(POD_ID, request.into_inner().pod_sandbox_id)?;
        let found = self.engine()?.pod_stats(&id).await.map_err(status)?;
        Ok(Response::new(v1::PodSandboxStatsResponse { stats: Some(stats::pod(&found)) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let filter = filter::pod_stats(request.into_inner().filter);
        let found = self.engine()?.list_pod_stats(&filter).await.map_err(status)?;
        let stats = found.iter().map(stats::pod).collect();
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    type StreamPodSandboxStatsStream = stream::Messages<v1::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let filter = filter::pod_stats(request.into_inner().filter);
        let found = self.engine()?.list_pod_stats(&filter).await.map_err(status)?;
        let items = found.into_iter().map(|found| stats::pod(&found));
        Ok(Response::new(stream::messages(items, |pod_sandbox_stats| {
            v1::StreamPodSandboxStatsResponse { pod_sandbox_stats }
        })))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        let descriptors = metrics::descriptors();
        Ok(Response::new(v1::ListMetricDescriptorsResponse { descriptors }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        let found = self.engine()?.list_pod_usage_details().await.map_err(status)?;
        let pod_metrics = found.iter().map(metrics::pod).collect();
        Ok(Response::new(v1::ListPodSandboxMetricsResponse { pod_metrics }))
    }

    type StreamPodSandboxMetricsStream = stream::Messages<v1::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        let found = self.engine()?.list_pod_usage_details().await.map_err(status)?;
        let items = found.into_iter().map(|found| metrics::pod(&found));
        Ok(Response::new(stream::messages(items, |pod_sandbox_metrics| {
            v1::StreamPodSandboxMetricsResponse { pod_sandbox_metrics }
        })))
    }

    // === streams ===

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let mut asked = streaming::exec(request.into_inner())?;
        let record = self.engine()?.running_container(&asked.container).map_err(status)?;
        asked.container = record.id.to_string();
        let url = self.streaming.exec(asked).map_err(busy)?;
        Ok(Response::new(v1::ExecResponse { url }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let mut asked = streaming::attach(request.into_inner())?;
        let record = self.engine()?.running_container(&asked.container).map_err(status)?;
        asked.container = record.id.to_string();
        let url = self.streaming.attach(asked).map_err(busy)?;
        Ok(Response::new(v1::AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let mut asked = streaming::port_forward(request.into_inner())?;
        asked.pod = self.engine()?.ready_pod(&asked.pod).map_err(status)?.id.to_string();
        let url = self.streaming.port_forward(asked).map_err(busy)?;
        Ok(Response::new(v1::PortForwardResponse { url }))
    }

    unimplemented_rpcs! {
        unary {
            checkpoint_pod(CheckpointPodRequest) -> CheckpointPodResponse = "CheckpointPod";
            restore_pod(RestorePodRequest) -> RestorePodResponse = "RestorePod";
        }
        stream {
        }
    }
}

const POD_ID: &str = "pod_sandbox_id";
const CONTAINER_ID: &str = "container_id";

/// By name, and the default once more under no name.
fn handlers(known: &[HandlerView]) -> Vec<v1::RuntimeHandler> {
    let wire = |name: &str, handler: &HandlerView| v1::RuntimeHandler {
        name: name.to_owned(),
        features: Some(v1::RuntimeHandlerFeatures {
            recursive_read_only_mounts: handler.recursive_readonly,
            user_namespaces: handler.user_namespaces,
        }),
    };
    let mut handlers: Vec<_> = known.iter().map(|handler| wire(&handler.name, handler)).collect();
    handlers.extend(known.iter().filter(|h| h.is_default).map(|handler| wire("", handler)));
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    handlers
}

fn condition(name: &str, condition: &Condition) -> v1::RuntimeCondition {
    let Told { holds, reason, message } = condition.told();
    v1::RuntimeCondition {
        r#type: name.to_owned(),
        status: holds,
        reason: reason.to_owned(),
        message,
    }
}

/// Holds while nothing deprecated was met; else the message is a JSON object of it.
fn deprecations(deprecations: &Deprecations) -> v1::RuntimeCondition {
    let met = deprecations.met();
    let reason = if met.is_empty() { "" } else { "LongshoreHasDeprecationWarnings" };
    v1::RuntimeCondition {
        r#type: "LongshoreHasNoDeprecationWarnings".to_owned(),
        status: met.is_empty(),
        reason: reason.to_owned(),
        message: if met.is_empty() { String::new() } else { serde_json::json!(met).to_string() },
    }
}

/// What verbose answers carry, under the key that crictl reads.
fn info(details: &impl ToString) -> BTreeMap<String, String> {
    BTreeMap::from([("info".to_owned(), details.to_string())])
}

#[cfg(test)]
mod tests;
