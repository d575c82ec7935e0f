//! Calls from a client's side, on an engine whose pods and containers were left by an
//! earlier daemon: they can be read and named, and no process is needed.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use api_cri::v1::runtime_service_client::RuntimeServiceClient;
use base::{Id, Labels, time};
use engine::{
    EngineConfig, EngineError, Limits, host,
    phase::{ContainerPhase, Exited, PodPhase, Reason},
    record::{ContainerRecord, PinnedImage, PodRecord},
    request::{NewContainer, PodRequest},
    storage::{Boxed, NewRootfs, NewView, Storage},
};
use oci::{CgroupDriver, Policy};
use store::Store;
use telemetry::metrics::Registry;
use tonic::Code;

use super::*;
use crate::{Service, sample};

/// A node without images and without OCI runtimes.
struct Node {
    client: RuntimeServiceClient<Service>,
    engine: Arc<Engine>,
    store: Store,
    _home: tempfile::TempDir,
}

#[derive(Debug)]
struct NoImages;

impl Storage for NoImages {
    fn diff(
        &self,
        _: Id,
        _: std::fs::File,
        _: engine::storage::GoOn,
    ) -> Boxed<'_, engine::Result<engine::storage::Diff>> {
        Box::pin(async { Err(EngineError::Unimplemented("changes of files")) })
    }

    fn usage(&self, _: Id) -> Option<engine::storage::LayerUsage> {
        None
    }

    fn image<'a>(&'a self, reference: &'a str) -> Boxed<'a, engine::Result<PinnedImage>> {
        Box::pin(
            async move { Err(EngineError::NotFound { what: "image", id: reference.to_owned() }) },
        )
    }

    fn mount(&self, _: NewRootfs) -> Boxed<'_, engine::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn release(&self, _: Id, _: PathBuf) -> Boxed<'_, engine::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn show(&self, _: NewView) -> Boxed<'_, engine::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn hide(&self, _: Id, _: usize) -> Boxed<'_, engine::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

impl Node {
    async fn with(pods: Vec<PodRecord>, containers: Vec<ContainerRecord>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path().join("store")).unwrap();
        let mut batch = store.batch();
        let (pod_table, container_table) = (store.table().unwrap(), store.table().unwrap());
        for pod in pods {
            batch.put(&pod_table, pod);
        }
        for container in containers {
            batch.put(&container_table, container);
        }
        batch.commit().await.unwrap();
        let config = EngineConfig {
            root: home.path().join("lib"),
            state: home.path().join("run"),
            netns: home.path().join("netns"),
            network: net::NetConfig {
                default: net::SourceConfig {
                    conf_dir: home.path().join("net.d"),
                    max_conf: 1,
                    template: None,
                },
                ..net::NetConfig::default()
            },
            shim_binary: "/nowhere/shim".into(),
            handlers: Vec::new(),
            host: host::look().unwrap(),
            policy: Policy::default(),
            cdi_dirs: Vec::new(),
            block_io_classes: "/nowhere/classes".into(),
            selinux: None,
            program_dirs: Vec::new(),
            apparmor_parser: None,
            cgroup_driver: CgroupDriver::Systemd,
            limits: Limits::default(),
            max_log_line: 16384,
            event_discard_age: std::time::Duration::from_secs(300),
            metrics: engine::Metrics::default(),
            plugins: engine::PluginsConfig::default(),
        };
        let engine = Engine::open(config, store.clone(), Arc::new(NoImages)).await.unwrap();
        let (engine, slot) = (Arc::new(engine), Slot::default());
        slot.fill(Arc::clone(&engine));
        let streams = crate::EngineStreams::new(slot.clone());
        let streaming = Streaming::new(streams, "http://node", Default::default());
        let service = Service::new(slot, streaming, &mut Registry::default());
        let client = RuntimeServiceClient::new(service);
        Self { client, engine, store, _home: home }
    }

    async fn empty() -> Self {
        Self::with(Vec::new(), Vec::new()).await
    }

    async fn close(self) {
        self.engine.close().await;
        self.store.close().await.unwrap();
    }
}

fn stopped_pod(id: Id, app: &str) -> PodRecord {
    let mut request = PodRequest::default();
    request.name.name = id.to_string();
    request.labels = Labels::from_iter([("app", app)]);
    let phase = PodPhase::Stopped { at: time::from_unix_nanos(2) };
    PodRecord { id, phase, ..sample::pod_record(request) }
}

fn exited_container(id: Id, pod: Id, app: &str) -> ContainerRecord {
    let labels = Labels::from_iter([("app", app)]);
    let exited = Exited {
        code: 1,
        at: time::from_unix_nanos(3),
        started: Some(time::from_unix_nanos(2)),
        reason: Reason::Error,
        message: String::new(),
    };
    ContainerRecord {
        id,
        pod,
        name: id.to_string(),
        phase: ContainerPhase::Exited(exited),
        ..sample::container_record(NewContainer { labels, ..Default::default() })
    }
}

/// Ids that differ in their last digits only.
fn id(number: usize) -> Id {
    format!("{number:064x}").parse().unwrap()
}

#[track_caller]
fn check<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, message: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

#[tokio::test]
async fn lists_of_nothing_are_empty_and_streams_end_without_a_message() {
    let mut node = Node::empty().await;
    let client = &mut node.client;
    let pods = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap();
    assert_eq!(pods.into_inner().items, []);
    let all = client.list_containers(v1::ListContainersRequest::default()).await.unwrap();
    assert_eq!(all.into_inner().containers, []);
    let pods = client.stream_pod_sandboxes(v1::StreamPodSandboxesRequest::default()).await;
    assert_eq!(pods.unwrap().into_inner().message().await.unwrap(), None);
    let all = client.stream_containers(v1::StreamContainersRequest::default()).await;
    assert_eq!(all.unwrap().into_inner().message().await.unwrap(), None);
    node.close().await;
}

#[tokio::test]
async fn what_is_gone_is_stopped_and_removed_and_else_not_found() {
    let mut node = Node::empty().await;
    let client = &mut node.client;
    let (pod_sandbox_id, container_id) = (id(1).to_string(), "abc".to_owned());
    let pod = pod_sandbox_id.clone();
    client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod }).await.unwrap();
    let pod = pod_sandbox_id.clone();
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: pod }).await.unwrap();
    let stop = v1::StopContainerRequest { container_id: container_id.clone(), timeout: 9 };
    client.stop_container(stop).await.unwrap();
    let remove = v1::RemoveContainerRequest { container_id: container_id.clone() };
    client.remove_container(remove).await.unwrap();

    let no_pod = format!("no pod \"{pod_sandbox_id}\"");
    let asked =
        v1::PodSandboxStatusRequest { pod_sandbox_id: pod_sandbox_id.clone(), verbose: true };
    check(client.pod_sandbox_status(asked).await, Code::NotFound, &no_pod);
    let asked = v1::CreateContainerRequest {
        pod_sandbox_id,
        config: Some(sample::container_config()),
        sandbox_config: sample::run_pod().config,
    };
    check(client.create_container(asked).await, Code::NotFound, &no_pod);

    let not_found = "no container \"abc\"";
    let id = || container_id.clone();
    let asked = v1::ContainerStatusRequest { container_id: id(), verbose: false };
    check(client.container_status(asked).await, Code::NotFound, not_found);
    let asked = v1::StartContainerRequest { container_id: id() };
    check(client.start_container(asked).await, Code::NotFound, not_found);
    let asked = v1::ReopenContainerLogRequest { container_id: id() };
    check(client.reopen_container_log(asked).await, Code::NotFound, not_found);
    let asked = v1::ExecSyncRequest { container_id: id(), cmd: vec!["x".into()], timeout: 0 };
    check(client.exec_sync(asked).await, Code::NotFound, not_found);
    for linux in [None, Some(v1::LinuxContainerResources::default())] {
        let asked =
            v1::UpdateContainerResourcesRequest { container_id: id(), linux, ..Default::default() };
        check(client.update_container_resources(asked).await, Code::NotFound, not_found);
    }
    node.close().await;
}

#[tokio::test]
async fn an_id_must_be_given() {
    let mut node = Node::empty().await;
    let client = &mut node.client;
    let check = |answer: Result<(), Status>, field: &str| {
        check(answer, Code::InvalidArgument, &format!("{field}: must not be empty"));
    };
    check(client.stop_pod_sandbox(v1::StopPodSandboxRequest::default()).await.map(drop), POD_ID);
    let asked = v1::RemovePodSandboxRequest::default();
    check(client.remove_pod_sandbox(asked).await.map(drop), POD_ID);
    let asked = v1::PodSandboxStatusRequest::default();
    check(client.pod_sandbox_status(asked).await.map(drop), POD_ID);
    let asked = v1::CreateContainerRequest::default();
    check(client.create_container(asked).await.map(drop), POD_ID);
    let asked = v1::StartContainerRequest::default();
    check(client.start_container(asked).await.map(drop), CONTAINER_ID);
    let asked = v1::StopContainerRequest::default();
    check(client.stop_container(asked).await.map(drop), CONTAINER_ID);
    let asked = v1::RemoveContainerRequest::default();
    check(client.remove_container(asked).await.map(drop), CONTAINER_ID);
    let asked = v1::ContainerStatusRequest::default();
    check(client.container_status(asked).await.map(drop), CONTAINER_ID);
    let asked = v1::UpdateContainerResourcesRequest::default();
    check(client.update_container_resources(asked).await.map(drop), CONTAINER_ID);
    let asked = v1::ReopenContainerLogRequest::default();
    check(client.reopen_container_log(asked).await.map(drop), CONTAINER_ID);
    check(client.exec_sync(v1::ExecSyncRequest::default()).await.map(drop), CONTAINER_ID);
    node.close().await;
}

#[tokio::test]
async fn refusals_come_before_the_engine_and_its_own_pass_through() {
    let mut node = Node::empty().await;
    let client = &mut node.client;
    let invalid = Code::InvalidArgument;
    let no_metadata = "sandbox config must include metadata";
    let asked = v1::RunPodSandboxRequest::default();
    check(client.run_pod_sandbox(asked).await, invalid, no_metadata);
    let asked = v1::CreateContainerRequest { pod_sandbox_id: "a".into(), ..Default::default() };
    check(client.create_container(asked).await, invalid, no_metadata);
    let asked = v1::ExecSyncRequest { container_id: "a".into(), ..Default::default() };
    check(client.exec_sync(asked).await, invalid, "cmd: must not be empty");
    let asked = v1::UpdateContainerResourcesRequest {
        container_id: "a".into(),
        linux: Some(v1::LinuxContainerResources { cpu_shares: -1, ..Default::default() }),
        ..Default::default()
    };
    let negative = "linux.cpu_shares: -1 is out of range";
    check(client.update_container_resources(asked).await, invalid, negative);

    let no_handler = "no runtime for \"kata\" is configured";
    check(client.run_pod_sandbox(sample::run_pod()).await, invalid, no_handler);
    node.close().await;
}

#[tokio::test]
async fn what_is_deprecated_is_a_condition_and_details_are_for_those_who_ask() {
    let mut node = Node::empty().await;
    let health = node.engine.health();
    health.deprecations.note("old-way", "use the new one");
    let brief = node.client.status(v1::StatusRequest::default()).await.unwrap().into_inner();
    let condition = &brief.status.unwrap().conditions[2];
    assert!(!condition.status);
    assert_eq!(condition.reason, "LongshoreHasDeprecationWarnings");
    let met: serde_json::Value = serde_json::from_str(&condition.message).unwrap();
    assert_eq!(met["old-way"], "use the new one");
    assert!(brief.info.is_empty());
    let verbose = v1::StatusRequest { verbose: true };
    let verbose = node.client.status(verbose).await.unwrap().into_inner();
    let config: serde_json::Value = serde_json::from_str(&verbose.info["config"]).unwrap();
    assert!(config["stateDir"].as_str().unwrap().ends_with("/run"), "{config}");
    assert_eq!(config["cgroupDriver"], "systemd");
    node.close().await;
}

#[tokio::test]
async fn the_runtime_says_what_it_is() {
    let mut node = Node::empty().await;
    let client = &mut node.client;
    let config = client.runtime_config(v1::RuntimeConfigRequest {}).await.unwrap().into_inner();
    assert_eq!(config.linux.unwrap().cgroup_driver(), v1::CgroupDriver::Systemd);
    let status = client.status(v1::StatusRequest::default()).await.unwrap().into_inner();
    assert!(status.features.unwrap().supplemental_groups_policy);
    let conditions = status.status.unwrap().conditions;
    let names: Vec<_> = conditions.iter().map(|c| c.r#type.as_str()).collect();
    assert_eq!(names, ["RuntimeReady", "NetworkReady", "LongshoreHasNoDeprecationWarnings"]);
    assert_eq!((conditions[0].status, conditions[0].reason.as_str()), (false, "NoRuntime"));
    node.close().await;
}

#[tokio::test]
async fn a_status_holds_the_pod_its_containers_and_the_moment() {
    let (pod, other) = (id(0xa0), id(0xb0));
    let pods = vec![stopped_pod(pod, "web"), stopped_pod(other, "db")];
    let containers = vec![
        exited_container(id(1), pod, "web"),
        exited_container(id(2), pod, "log"),
        exited_container(id(3), other, "db"),
    ];
    let mut node = Node::with(pods, containers).await;
    let client = &mut node.client;
    let asked = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.to_string(), verbose: true };
    let got = client.pod_sandbox_status(asked).await.unwrap().into_inner();
    let status = got.status.unwrap();
    assert_eq!(
        (status.id.as_str(), status.state()),
        (pod.as_str(), v1::PodSandboxState::SandboxNotready)
    );
    let ids: BTreeSet<_> = got.containers_statuses.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids, BTreeSet::from([id(1).as_str(), id(2).as_str()]));
    assert!(got.timestamp > sample::CREATED_AT);
    let keys: Vec<_> = got.info.keys().collect();
    assert_eq!(keys, ["info"]);
    assert!(got.info["info"].contains("\"processStatus\":\"deleted\""), "{}", got.info["info"]);

    let asked = v1::ContainerStatusRequest { container_id: id(3).to_string(), verbose: false };
    let got = client.container_status(asked).await.unwrap().into_inner();
    assert_eq!(got.info, BTreeMap::new());
    let status = got.status.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (1, "Error"));

    // Nothing asked for is nothing changed; a prefix of all ids names none of them.
    let asked =
        |container_id| v1::UpdateContainerResourcesRequest { container_id, ..Default::default() };
    client.update_container_resources(asked(id(3).to_string())).await.unwrap();
    let ambiguous = "container id \"0\" is ambiguous";
    let answer = client.update_container_resources(asked("0".into())).await;
    check(answer, Code::NotFound, ambiguous);
    let asked = v1::StopContainerRequest { container_id: "0".into(), timeout: 0 };
    check(client.stop_container(asked).await, Code::NotFound, ambiguous);
    node.close().await;
}

#[tokio::test]
async fn streams_carry_what_lists_carry_in_messages_of_a_thousand() {
    let app = |i| if i % 2 == 0 { "web" } else { "db" };
    let pods = (0..1100).map(|i| stopped_pod(id(i), app(i))).collect();
    let containers = (0..1100).map(|i| exited_container(id(i + 4096), id(i), app(i))).collect();
    let mut node = Node::with(pods, containers).await;
    let client = &mut node.client;

    let list = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap();
    let mut stream = client
        .stream_pod_sandboxes(v1::StreamPodSandboxesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        messages.push(message.pod_sandboxes);
    }
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 100]);
    assert_eq!(messages.concat(), list.into_inner().items);

    let list = client.list_containers(v1::ListContainersRequest::default()).await.unwrap();
    let mut stream = client
        .stream_containers(v1::StreamContainersRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        messages.push(message.containers);
    }
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 100]);
    assert_eq!(messages.concat(), list.into_inner().containers);

    let label_selector = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
    let filter = Some(v1::ContainerFilter {
        label_selector,
        pod_sandbox_id: id(7).to_string(),
        ..Default::default()
    });
    let found = client.list_containers(v1::ListContainersRequest { filter }).await.unwrap();
    let found: Vec<_> = found.into_inner().containers.into_iter().map(|c| c.id).collect();
    assert_eq!(found, [id(7 + 4096).to_string()]);
    let state = Some(v1::PodSandboxStateValue { state: 0 });
    let filter = Some(v1::PodSandboxFilter { state, ..Default::default() });
    let found = client.list_pod_sandbox(v1::ListPodSandboxRequest { filter }).await.unwrap();
    assert_eq!(found.into_inner().items, [], "none is ready");
    node.close().await;
}
