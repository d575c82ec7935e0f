//! Our plugins at the runtime side of the Go library. Where there is no Go the tests say so
//! and pass.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "interop/everything.rs"]
mod everything;
#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "interop/runtime.rs"]
mod runtime;

use std::{sync::Arc, time::Duration};

use everything::{Everything, every_field};
use nri_sdk::{
    Adjustment, Builder, Changes, Creation, Environment, Plugin, Resources, RunError, Stub, Update,
    UpdateErrorKind, Verdict,
    api::{
        Container, CreateContainerRequest, CreateContainerResponse, Empty, PodSandbox,
        RunPodSandboxRequest, StopContainerRequest, StopContainerResponse, SynchronizeRequest,
        SynchronizeResponse, UpdateContainerRequest, UpdateContainerResponse,
        UpdateContainersRequest, UpdatePodSandboxRequest, UpdatePodSandboxResponse,
    },
    testing::{container, pod},
};
use runtime::GoRuntime;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tokio_util::task::TaskTracker;

/// A plugin of ours that is connected to a Go runtime.
struct Connected<P> {
    plugin: Arc<P>,
    handle: nri_sdk::Runtime,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), RunError>>,
}

impl<P: Plugin> Connected<P> {
    fn start(builder: Builder<P>, go: &GoRuntime) -> Self {
        let stub = builder.environment(Environment::default()).socket(go.socket()).build().unwrap();
        let (plugin, handle) = (Arc::clone(stub.plugin()), stub.runtime());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = TaskTracker::new().spawn(stub.run_until(async { _ = stopped.await }));
        Self { plugin, handle, stop, running }
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        timeout(Duration::from_secs(20), self.running).await.unwrap().unwrap().unwrap();
    }
}

fn everything(index: &str) -> Builder<Everything> {
    Stub::builder(Everything::default()).name("everything").index(index)
}

async fn started(go: &mut GoRuntime) -> Connected<Everything> {
    go.tell("start", &Empty {}).await;
    let connected = Connected::start(everything("10"), go);
    go.ask::<_, SynchronizeResponse>("synced", &Empty {}).await.unwrap();
    connected
}

fn web() -> (PodSandbox, Container) {
    let web = pod("web");
    let nginx = container(&web, "nginx");
    (web, nginx)
}

fn creation(pod: &PodSandbox, container: &Container) -> CreateContainerRequest {
    CreateContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) }
}

#[tokio::test]
async fn every_event_arrives() {
    let Some(mut go) = GoRuntime::spawn("every event").await else { return };
    let connected = started(&mut go).await;
    let info = connected.handle.info().unwrap();
    assert_eq!((info.name.as_str(), info.version.as_str()), ("interop", "v1.2.3"));
    assert_eq!(info.request_timeout, Duration::from_secs(60));
    let (pod, container) = web();
    let pod = Some(pod);
    // All of these have the pod first and the container second.
    let both = StopContainerRequest { pod: pod.clone(), container: Some(container.clone()) };
    let alone = RunPodSandboxRequest { pod: pod.clone() };
    go.tell("RunPodSandbox", &alone).await;
    let request = UpdatePodSandboxRequest { pod: pod.clone(), ..Default::default() };
    go.ask::<_, UpdatePodSandboxResponse>("UpdatePodSandbox", &request).await.unwrap();
    go.tell("PostUpdatePodSandbox", &alone).await;
    go.ask::<_, CreateContainerResponse>("CreateContainer", &both).await.unwrap();
    go.tell("PostCreateContainer", &both).await;
    go.tell("StartContainer", &both).await;
    go.tell("PostStartContainer", &both).await;
    go.ask::<_, UpdateContainerResponse>("UpdateContainer", &both).await.unwrap();
    go.tell("PostUpdateContainer", &both).await;
    go.ask::<_, StopContainerResponse>("StopContainer", &both).await.unwrap();
    go.tell("RemoveContainer", &both).await;
    go.tell("StopPodSandbox", &alone).await;
    go.tell("RemovePodSandbox", &alone).await;
    let want = [
        "Synchronize 0 0",
        "RunPodSandbox web",
        "UpdatePodSandbox web",
        "PostUpdatePodSandbox web",
        "CreateContainer web/nginx",
        "ValidateContainerAdjustment web/nginx",
        "PostCreateContainer web/nginx",
        "StartContainer web/nginx",
        "PostStartContainer web/nginx",
        "UpdateContainer web/nginx",
        "PostUpdateContainer web/nginx",
        "StopContainer web/nginx",
        "RemoveContainer web/nginx",
        "StopPodSandbox web",
        "RemovePodSandbox web",
    ];
    assert_eq!(connected.plugin.take_seen(), want);
    connected.end().await;
    go.end().await;
}

#[tokio::test]
async fn every_field_of_an_adjustment_arrives() {
    let Some(mut go) = GoRuntime::spawn("every field of an adjustment").await else { return };
    let connected = started(&mut go).await;
    let (pod, nginx) = web();
    let asked = every_field();
    connected.plugin.script(|script| script.creation.adjustment = asked.clone());
    let answer: CreateContainerResponse =
        go.ask("CreateContainer", &creation(&pod, &nginx)).await.unwrap();
    let mut got = Adjustment::from(answer.adjust.unwrap());
    // The Go runtime forwards no removal of variables and devices to whoever applies it.
    got.env.remove("REMOVED");
    got.devices.remove("/dev/removed");
    // It knows a take-over only while it merges.
    let mut want = asked;
    want.env.set("TAKEN", "over");
    want.mounts.set("/taken", want.mounts.value("/taken").unwrap().clone());
    want.devices.set("/dev/taken", *want.devices.value("/dev/taken").unwrap());
    want.args = Some(nri_sdk::Args::Set(vec!["sh".into(), "-c".into(), "true".into()]));
    want.rdt.take_over = false;
    assert_eq!(got, want);
    connected.end().await;
    go.end().await;
}

#[tokio::test]
async fn a_second_plugin_takes_over_what_it_says_and_no_more() {
    let Some(mut go) = GoRuntime::spawn("taking over").await else { return };
    go.tell("start", &Empty {}).await;
    let mut connected = Vec::new();
    for index in ["10", "20"] {
        connected.push(Connected::start(everything(index), &go));
        go.ask::<_, SynchronizeResponse>("synced", &Empty {}).await.unwrap();
    }
    let (pod, nginx) = web();
    let first = every_field();
    connected[0].plugin.script(|script| script.creation.adjustment = first);
    connected[1].plugin.script(|script| {
        script.creation.adjustment.env.take_over("SET", "second");
        script.creation.adjustment.annotations.take_over("set", "second");
    });
    let request = creation(&pod, &nginx);
    let answer: CreateContainerResponse = go.ask("CreateContainer", &request).await.unwrap();
    let got = Adjustment::from(answer.adjust.unwrap());
    assert_eq!(got.env.value("SET").unwrap(), "second");
    assert_eq!(got.annotations.value("set").unwrap(), "second");
    connected[1].plugin.script(|script| {
        script.creation = Creation::default();
        script.creation.adjustment.env.set("SET", "second");
    });
    let refused = go.ask::<_, CreateContainerResponse>("CreateContainer", &request).await;
    let error = refused.unwrap_err();
    assert!(error.contains("10-everything") && error.contains("20-everything"), "{error}");
    for connected in connected {
        connected.end().await;
    }
    go.end().await;
}

#[tokio::test]
async fn updates_with_answers_and_without_being_asked() {
    let Some(mut go) = GoRuntime::spawn("updates").await else { return };
    let connected = started(&mut go).await;
    let (pod, nginx) = web();
    let mut other = Update::of("other");
    other.resources.cpu.cpus = "4-7".into();
    let mut own = Update::of(nginx.id.as_str());
    own.resources.memory.limit = Some(1 << 30);
    connected.plugin.script(|script| {
        script.creation.updates.add(other.clone());
        script.changes = vec![other.clone(), own.clone()].into();
        script.freed = other.clone().into();
    });
    let answer: CreateContainerResponse =
        go.ask("CreateContainer", &creation(&pod, &nginx)).await.unwrap();
    assert_eq!(Creation::from(answer).updates, other.clone().into());
    let mut resources = Resources::new();
    resources.cpu.shares = Some(512);
    let request = UpdateContainerRequest {
        pod: Some(pod.clone()),
        container: Some(nginx.clone()),
        linux_resources: resources.to_wire(),
    };
    let answer: UpdateContainerResponse = go.ask("UpdateContainer", &request).await.unwrap();
    let changes = Changes::from(answer);
    assert_eq!(changes.updates.get("other"), Some(&other));
    let merged = &changes.updates.get(&nginx.id).unwrap().resources;
    assert_eq!((merged.memory.limit, merged.cpu.shares), (Some(1 << 30), Some(512)));
    let request = StopContainerRequest { pod: Some(pod), container: Some(nginx) };
    let answer: StopContainerResponse = go.ask("StopContainer", &request).await.unwrap();
    assert_eq!(nri_sdk::Updates::from(answer.update), other.clone().into());

    connected.handle.update_containers(vec![other.clone(), own.clone()]).await.unwrap();
    let received: UpdateContainersRequest = go.ask("updates", &Empty {}).await.unwrap();
    assert_eq!(Changes::from(received), vec![other.clone(), own.clone()].into());
    go.send("refuse", b"other").await.unwrap();
    let error = connected.handle.update_containers(vec![other.clone(), own]).await.unwrap_err();
    assert_eq!(error.kind(), UpdateErrorKind::Partial, "{error}");
    let nri_sdk::UpdateError::Partial { failed } = error else { panic!("{error}") };
    assert_eq!(failed, other.into());
    connected.end().await;
    go.end().await;
}

#[tokio::test]
async fn a_world_of_4000_containers_comes_in_parts_and_arrives_whole() {
    let Some(mut go) = GoRuntime::spawn("split synchronisation").await else { return };
    let pods: Vec<_> = (0..1000).map(|i| pod(&format!("pod{i}"))).collect();
    let containers: Vec<_> = (0..4000)
        .map(|i| {
            let mut container = container(&pods[i % 1000], &format!("c{i}"));
            // Well above one message in all.
            container.env = vec![format!("FILLER={}", "x".repeat(2500))];
            container
        })
        .collect();
    let world = SynchronizeRequest { pods, containers, more: false };
    assert!(prost::Message::encoded_len(&world) > 2 * (4 << 20));
    go.tell("world", &world).await;
    go.tell("start", &Empty {}).await;
    let builder = everything("10");
    let connected = Connected::start(builder, &go);
    connected.plugin.script(|script| script.update_all = true);
    let synced: SynchronizeResponse = go.ask("synced", &Empty {}).await.unwrap();
    assert_eq!(connected.plugin.take_seen(), ["Synchronize 1000 4000"]);
    let ids: std::collections::BTreeSet<_> =
        synced.update.iter().map(|update| update.container_id.as_str()).collect();
    assert_eq!(ids.len(), 4000);
    connected.end().await;
    go.end().await;
}

#[tokio::test]
async fn messages_of_every_size_cross_in_both_directions() {
    let Some(mut go) = GoRuntime::spawn("sizes of messages").await else { return };
    let connected = started(&mut go).await;
    let (pod, mut nginx) = web();
    // About one frame, about two, and just below the largest message.
    for size in [0, 3900, 4086, 4096, 5000, 70_000, 1 << 20, (4 << 20) - 4096] {
        let text: String = "y".repeat(size);
        // There: in the request. The answer is small.
        nginx.args = vec![text.clone()];
        connected.plugin.script(|script| {
            script.creation = Creation::default();
            script.creation.adjustment.env.set("SIZE", "small");
        });
        let request = creation(&pod, &nginx);
        let answer = go.ask::<_, CreateContainerResponse>("CreateContainer", &request).await;
        assert!(answer.is_ok(), "request of {size}: {answer:?}");
        // Back: in the answer. The request is small, and no validator gets it on top.
        nginx.args.clear();
        connected.plugin.script(|script| {
            script.changes = Changes::default();
            let mut update = Update::of("other");
            update.resources.unified.insert("k".into(), text.clone());
            script.changes.updates.add(update);
        });
        let request = UpdateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(nginx.clone()),
            ..Default::default()
        };
        let answer = go.ask::<_, UpdateContainerResponse>("UpdateContainer", &request).await;
        let changes = Changes::from(answer.unwrap());
        let other = changes.updates.get("other").unwrap();
        assert_eq!(other.resources.unified["k"].len(), size, "answer of {size}");
    }
    assert!(!connected.running.is_finished());
    connected.end().await;
    go.end().await;
}

#[tokio::test]
async fn a_validator_judges_and_names_its_reason() {
    let Some(mut go) = GoRuntime::spawn("validator").await else { return };
    let connected = started(&mut go).await;
    let (pod, nginx) = web();
    let request = creation(&pod, &nginx);
    connected.plugin.script(|script| {
        script.creation.adjustment.env.set("A", "1");
        script.verdict = Verdict::Reject("not on my node".into());
    });
    let refused = go.ask::<_, CreateContainerResponse>("CreateContainer", &request).await;
    let error = refused.unwrap_err();
    assert!(error.contains("not on my node") && error.contains("10-everything"), "{error}");
    let proposal = connected.plugin.take_proposal().unwrap();
    assert_eq!(proposal.adjustment.env.value("A").unwrap(), "1");
    let owners: Vec<_> = proposal.owners.of(&nginx.id, nri_sdk::Field::Env).collect();
    assert_eq!(owners, [(Some("A"), "10-everything")]);
    assert_eq!(proposal.plugins[0].index, "10");
    connected.plugin.script(|script| script.verdict = Verdict::Accept);
    go.ask::<_, CreateContainerResponse>("CreateContainer", &request).await.unwrap();
    connected.end().await;
    go.end().await;
}

#[tokio::test]
async fn a_plugin_comes_back_to_a_new_runtime() {
    let Some(mut go) = GoRuntime::spawn("reconnection").await else { return };
    let connected = started(&mut go).await;
    go.restart().await;
    let (pods, containers) = (vec![pod("web")], vec![container(&pod("web"), "a")]);
    go.tell("world", &SynchronizeRequest { pods, containers, more: false }).await;
    go.tell("start", &Empty {}).await;
    go.ask::<_, SynchronizeResponse>("synced", &Empty {}).await.unwrap();
    assert_eq!(connected.plugin.take_seen(), ["Synchronize 0 0", "Synchronize 1 1"]);
    let (pod, nginx) = web();
    let request = creation(&pod, &nginx);
    go.ask::<_, CreateContainerResponse>("CreateContainer", &request).await.unwrap();
    connected.end().await;
    go.end().await;
}
