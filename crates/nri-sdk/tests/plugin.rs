//! A plugin and its runtime, over the real protocol.

use std::{io, sync::Arc, time::Duration};

use nri_sdk::{
    Adjustment, Answer, BuildError, Changes, Configuration, Container, Context, Creation,
    Environment, Event, EventMask, Handlers, Plugin, PodResources, PodSandbox, Proposal, Resources,
    RunError, Stub, Subscription, Update, UpdateError, UpdateErrorKind, Updates, Verdict, World,
    testing::{FakeConfig, FakeError, FakeRuntime, container, pod},
    ttrpc::{Code, Error, Status},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

fn event(ctx: &Context) -> &'static str {
    ctx.event().map_or("none", Event::method)
}

/// Handles everything and writes it down.
#[derive(Default)]
struct Recorder {
    seen: Mutex<Vec<String>>,
    subscription: Subscription,
}

impl Recorder {
    fn note(&self, what: &str, who: &str) {
        self.seen.lock().push(format!("{what} {who}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock())
    }

    async fn configure(
        self: Arc<Self>,
        _: Context,
        configuration: Configuration,
    ) -> Answer<Subscription> {
        self.note("configure", &configuration.text);
        Ok(self.subscription)
    }

    async fn synchronize(self: Arc<Self>, _: Context, world: World) -> Answer<Updates> {
        let counts = format!("{} {}", world.pods.len(), world.containers.len());
        self.note("synchronize", &counts);
        Ok(world.containers.into_iter().map(|container| Update::of(container.id)).collect())
    }

    async fn shutdown(self: Arc<Self>, _: Context) -> Answer {
        self.note("shutdown", "");
        Ok(())
    }

    async fn pod(self: Arc<Self>, ctx: Context, pod: PodSandbox) -> Answer {
        self.note(event(&ctx), &pod.name);
        Ok(())
    }

    async fn update_pod(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        resources: PodResources,
    ) -> Answer {
        let cpus = resources.resources.cpu.cpus + "+" + &resources.overhead.cpu.cpus;
        self.note(event(&ctx), &(pod.name + " " + &cpus));
        Ok(())
    }

    async fn container(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer {
        self.note(event(&ctx), &format!("{}/{}", pod.name, container.name));
        Ok(())
    }

    async fn create(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Creation> {
        let mut creation = Creation::default();
        creation.adjustment.env.set("POD", pod.name.as_str());
        creation.updates.add(Update::of("other"));
        creation.evictions.insert("noisy".into(), "too loud".into());
        self.container(ctx, pod, container).await?;
        Ok(creation)
    }

    async fn update(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
        resources: Resources,
    ) -> Answer<Changes> {
        let mut update = Update::of(container.id.as_str());
        update.resources = resources;
        update.resources.cpu.shares = Some(7);
        self.container(ctx, pod, container).await?;
        Ok(update.into())
    }

    async fn stop(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Updates> {
        self.container(ctx, pod, container).await?;
        Ok(Update::of("heir").into())
    }

    async fn validate(self: Arc<Self>, ctx: Context, proposal: Proposal) -> Answer<Verdict> {
        self.note(event(&ctx), &proposal.container.name);
        match proposal.adjustment.env.value("POD").map(String::as_str) {
            Some("bad") => Ok(Verdict::Reject("bad pod".into())),
            Some("broken") => Err("cannot judge".into()),
            _ => Ok(Verdict::Accept),
        }
    }
}

impl Plugin for Recorder {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .configure(Self::configure)
            .synchronize(Self::synchronize)
            .shutdown(Self::shutdown)
            .run_pod_sandbox(Self::pod)
            .update_pod_sandbox(Self::update_pod)
            .post_update_pod_sandbox(Self::pod)
            .stop_pod_sandbox(Self::pod)
            .remove_pod_sandbox(Self::pod)
            .create_container(Self::create)
            .post_create_container(Self::container)
            .start_container(Self::container)
            .post_start_container(Self::container)
            .update_container(Self::update)
            .post_update_container(Self::container)
            .stop_container(Self::stop)
            .remove_container(Self::container)
            .validate_container_adjustment(Self::validate)
    }
}

/// One pod and one container through their whole life.
async fn live(runtime: &FakeRuntime<Recorder>) -> Result<(), Error> {
    let (web, mut resources) = (pod("web"), Resources::new());
    let nginx = container(&web, "nginx");
    runtime.run_pod_sandbox(&web).await?;
    resources.cpu.cpus = "0-1".into();
    let mut of_pod = PodResources::default();
    of_pod.resources = resources.clone();
    runtime.update_pod_sandbox(&web, &of_pod).await?;
    runtime.post_update_pod_sandbox(&web).await?;
    let created = runtime.create_container(&web, &nginx).await?;
    runtime.post_create_container(&web, &nginx).await?;
    runtime.start_container(&web, &nginx).await?;
    runtime.post_start_container(&web, &nginx).await?;
    let changed = runtime.update_container(&web, &nginx, &resources).await?;
    runtime.post_update_container(&web, &nginx).await?;
    let freed = runtime.stop_container(&web, &nginx).await?;
    runtime.remove_container(&web, &nginx).await?;
    runtime.stop_pod_sandbox(&web).await?;
    runtime.remove_pod_sandbox(&web).await?;
    if runtime.events() == EventMask::ALL {
        assert_eq!(created.adjustment.env.value("POD").map(String::as_str), Some("web"));
        assert!(created.updates.get("other").is_some());
        assert_eq!(created.evictions["noisy"], "too loud");
        let update = changed.updates.get(&nginx.id).expect("an update of what is updated");
        assert_eq!(update.resources.cpu.cpus, "0-1");
        assert_eq!(update.resources.cpu.shares, Some(7));
        assert!(freed.get("heir").is_some());
    }
    Ok(())
}

const LIFE: [&str; 13] = [
    "RunPodSandbox web",
    "UpdatePodSandbox web 0-1+",
    "PostUpdatePodSandbox web",
    "CreateContainer web/nginx",
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

#[tokio::test]
async fn every_event_reaches_its_handler_in_both_dialects() {
    for state_change in [false, true] {
        let config = FakeConfig { state_change, config: "text".into(), ..Default::default() };
        let runtime = FakeRuntime::start_with(Recorder::default(), config).await.unwrap();
        assert_eq!(runtime.events(), EventMask::ALL);
        assert_eq!(runtime.registered().plugin_idx, "00");
        assert_eq!(runtime.plugin().take(), ["configure text", "synchronize 0 0"]);
        live(&runtime).await.unwrap();
        assert_eq!(runtime.plugin().take(), LIFE);
        runtime.shutdown().await.unwrap();
        assert_eq!(runtime.plugin().take(), ["shutdown "]);
        runtime.stop().await.unwrap();
    }
}

#[tokio::test]
async fn only_what_was_subscribed_to_is_called() {
    let events = EventMask::NONE.with(Event::StartContainer).with(Event::StopPodSandbox);
    let subscription = Subscription::Only(events);
    let runtime =
        FakeRuntime::start(Recorder { subscription, ..Default::default() }).await.unwrap();
    assert_eq!(runtime.events(), events);
    runtime.plugin().take();
    live(&runtime).await.unwrap();
    assert_eq!(runtime.plugin().take(), ["StartContainer web/nginx", "StopPodSandbox web"]);
}

/// Handles nothing but creations.
struct Creator<F>(F);

impl<F: Fn(Container) -> Answer<Creation> + Send + Sync + 'static> Creator<F> {
    async fn create(
        self: Arc<Self>,
        _: Context,
        _: PodSandbox,
        container: Container,
    ) -> Answer<Creation> {
        (self.0)(container)
    }
}

impl<F: Fn(Container) -> Answer<Creation> + Send + Sync + 'static> Plugin for Creator<F> {
    fn handlers() -> Handlers<Self> {
        Handlers::new().create_container(Self::create)
    }
}

#[tokio::test]
async fn what_has_no_handler_is_not_subscribed_to() {
    let runtime = FakeRuntime::start(Creator(|_| Ok(Creation::default()))).await.unwrap();
    assert_eq!(runtime.events(), EventMask::NONE.with(Event::CreateContainer));
    let web = pod("web");
    let created = runtime.create_container(&web, &container(&web, "a")).await.unwrap();
    assert_eq!(created, Creation::default());
    runtime.run_pod_sandbox(&web).await.unwrap();
}

#[tokio::test]
async fn a_plugin_must_handle_something() {
    #[derive(Debug)]
    struct Idle;
    impl Plugin for Idle {
        fn handlers() -> Handlers<Self> {
            Handlers::new()
        }
    }
    let built = Stub::builder(Idle).name("idle").index("00").build();
    assert!(matches!(built, Err(BuildError::NoEvents)));
}

/// What a creation by this plugin fails with.
async fn refusal(create: impl Fn(Container) -> Answer<Creation> + Send + Sync + 'static) -> Status {
    let runtime = FakeRuntime::start(Creator(create)).await.expect("a plugin that starts");
    let web = pod("web");
    let refused = runtime.create_container(&web, &container(&web, "a")).await;
    let Err(Error::Status(status)) = refused else { panic!("{refused:?}") };
    status
}

#[tokio::test]
async fn failures_of_handlers_keep_their_code_and_their_causes() {
    let status = refusal(|_| Err(Status::not_found("no such class").into())).await;
    assert_eq!((status.code, status.message.as_str()), (Code::NotFound, "no such class"));

    #[derive(Debug, thiserror::Error)]
    #[error("read classes")]
    struct Outer(#[source] io::Error);
    let status = refusal(|_| Err(Outer(io::Error::other("disk on fire")).into())).await;
    let want = (Code::Unknown, "read classes: disk on fire");
    assert_eq!((status.code, status.message.as_str()), want);
    let status = refusal(|_| Err(anyhow::anyhow!("inner").context("outer").into())).await;
    assert_eq!(status.message, "outer: inner");
}

#[tokio::test]
async fn answers_that_no_runtime_would_take_are_refused_here() {
    let status = refusal(|container| {
        let updates = Update::of(container.id).into();
        Ok(Creation { updates, ..Default::default() })
    });
    let status = status.await;
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.contains("has an adjustment, not an update"), "{status}");
    let status = refusal(|_| {
        let mut adjustment = Adjustment::new();
        adjustment.sysctl.set("-net", "1");
        Ok(adjustment.into())
    });
    let status = status.await;
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.contains("sysctl: key \"-net\""), "{status}");
}

#[tokio::test]
async fn validators_accept_reject_and_fail_closed() {
    let runtime = FakeRuntime::start(Recorder::default()).await.unwrap();
    let judge = async |value: &str| {
        let mut proposal = Proposal::default();
        proposal.container = container(&pod("web"), "nginx");
        proposal.adjustment.env.set("POD", value);
        runtime.validate_container_adjustment(&proposal).await.unwrap()
    };
    assert_eq!(judge("good").await, Verdict::Accept);
    assert_eq!(judge("bad").await, Verdict::Reject("bad pod".into()));
    assert_eq!(judge("broken").await, Verdict::Reject("cannot judge".into()));
}

fn world(pods: usize, containers: usize) -> World {
    let pods: Vec<_> = (0..pods).map(|i| pod(&i.to_string())).collect();
    let container = |i: usize| container(&pods[i % pods.len()], &format!("c{i}"));
    let containers = (0..containers).map(container).collect();
    World { pods, containers }
}

#[tokio::test]
async fn a_world_in_parts_arrives_whole_and_once() {
    for parts in [1, 2, 7, 100] {
        let config = FakeConfig { world: world(5, 23), parts, ..Default::default() };
        let runtime = FakeRuntime::start_with(Recorder::default(), config).await.unwrap();
        let seen = runtime.plugin().take();
        assert_eq!(seen, ["configure ", "synchronize 5 23"], "in {parts} parts");
        assert_eq!(runtime.sync_updates().len(), 23);
    }
}

#[tokio::test]
async fn a_plugin_without_a_sync_handler_takes_parts_too() {
    let config = FakeConfig { world: world(5, 23), parts: 4, ..Default::default() };
    let plugin = Creator(|_| Ok(Creation::default()));
    let runtime = FakeRuntime::start_with(plugin, config).await.unwrap();
    assert!(runtime.sync_updates().is_empty());
}

#[tokio::test]
async fn a_lost_connection_is_replaced_and_synchronised_anew() {
    let mut runtime = FakeRuntime::start(Recorder::default()).await.unwrap();
    let handle = runtime.handle().clone();
    for round in 1..4 {
        runtime.plugin().take();
        runtime.restart(world(1, round)).await.unwrap();
        let sync = format!("synchronize 1 {round}");
        assert_eq!(runtime.plugin().take(), ["configure ", &sync]);
        live(&runtime).await.unwrap();
        assert_eq!(runtime.plugin().take(), LIFE);
        handle.update_containers(Update::of("c")).await.unwrap();
        assert_eq!(runtime.unsolicited().len(), 1, "the handle lives on");
    }
    runtime.stop().await.unwrap();
    let gone = handle.update_containers(Update::of("c")).await.unwrap_err();
    assert!(matches!(gone, UpdateError::NotConnected));
    assert_eq!(handle.info(), None);
}

/// Updates another container while it is asked about one.
struct Mover;

impl Mover {
    async fn start(self: Arc<Self>, ctx: Context, _: PodSandbox, container: Container) -> Answer {
        ctx.runtime().update_containers(Update::of(container.id)).await?;
        Ok(())
    }
}

impl Plugin for Mover {
    fn handlers() -> Handlers<Self> {
        Handlers::new().start_container(Self::start)
    }
}

#[tokio::test]
async fn updates_from_inside_a_handler_and_their_partial_failure() {
    let runtime = FakeRuntime::start(Mover).await.unwrap();
    let web = pod("web");
    let (a, b) = (container(&web, "a"), container(&web, "b"));
    runtime.start_container(&web, &a).await.unwrap();
    let unsolicited = runtime.unsolicited();
    assert_eq!(unsolicited, [Changes::from(Update::of(a.id.as_str()))]);

    runtime.refuse_updates_of(a.id.as_str());
    let both = vec![Update::of(a.id.as_str()), Update::of(b.id.as_str())];
    let error = runtime.handle().update_containers(both).await.unwrap_err();
    assert_eq!(error.kind(), UpdateErrorKind::Partial);
    let UpdateError::Partial { failed } = error else { panic!("{error}") };
    assert_eq!(failed, Update::of(a.id.as_str()).into());
    let mut ignored = Update::of(a.id.as_str());
    ignored.ignore_failure = true;
    runtime.handle().update_containers(ignored).await.unwrap();
    // The handler passes the failure on, and the request fails with it.
    let failed = runtime.start_container(&web, &a).await.unwrap_err();
    assert!(failed.to_string().contains(&a.id), "{failed}");
    runtime.handle().update_containers(()).await.unwrap();
}

/// Waits in its handler.
#[derive(Default)]
struct Sleeper {
    go: Notify,
    begun: Notify,
    remaining: Mutex<Option<Duration>>,
}

impl Sleeper {
    async fn start(self: Arc<Self>, ctx: Context, _: PodSandbox, _: Container) -> Answer {
        *self.remaining.lock() = ctx.remaining();
        self.begun.notify_one();
        self.go.notified().await;
        Ok(())
    }
}

impl Plugin for Sleeper {
    fn handlers() -> Handlers<Self> {
        Handlers::new().start_container(Self::start)
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_its_deadline_and_is_held_to_it() {
    let request_timeout = Duration::from_millis(700);
    let config = FakeConfig { request_timeout, ..Default::default() };
    let runtime = FakeRuntime::start_with(Sleeper::default(), config).await.unwrap();
    let web = pod("web");
    let late = runtime.start_container(&web, &container(&web, "a")).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let remaining = runtime.plugin().remaining.lock().unwrap();
    assert!(remaining <= request_timeout && remaining > request_timeout / 2, "{remaining:?}");
}

#[tokio::test]
async fn a_plugin_that_is_asked_to_end_answers_first() {
    let runtime = FakeRuntime::start(Sleeper::default()).await.unwrap();
    let plugin = Arc::clone(runtime.plugin());
    let web = pod("web");
    let container = container(&web, "a");
    let call = async { runtime.start_container(&web, &container).await };
    let end = async {
        plugin.begun.notified().await;
        runtime.end();
        // Long enough for the plugin to have begun its end.
        tokio::time::sleep(Duration::from_millis(20)).await;
        plugin.go.notify_one();
    };
    let (answered, ()) = tokio::join!(call, end);
    answered.unwrap();
    runtime.stop().await.unwrap();
}

#[tokio::test]
async fn a_configuration_that_the_plugin_refuses_ends_it() {
    let refuse = |subscription| async move {
        let plugin = Picky(subscription);
        match FakeRuntime::start(plugin).await {
            Err(FakeError::Ended(RunError::Configure(error))) => error.to_string(),
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    let unhandled = EventMask::NONE.with(Event::StartContainer).with(Event::StopContainer);
    assert_eq!(refuse(Ok(unhandled)).await, "events without a handler: StopContainer");
    assert_eq!(refuse(Ok(EventMask::NONE)).await, "no event is subscribed to");
    assert_eq!(refuse(Err("bad file")).await, "bad file");
}

struct Picky(Result<EventMask, &'static str>);

impl Picky {
    async fn configure(self: Arc<Self>, _: Context, _: Configuration) -> Answer<EventMask> {
        Ok(self.0?)
    }

    async fn start(self: Arc<Self>, _: Context, _: PodSandbox, _: Container) -> Answer {
        Ok(())
    }
}

impl Plugin for Picky {
    fn handlers() -> Handlers<Self> {
        Handlers::new().configure(Self::configure).start_container(Self::start)
    }
}

#[tokio::test]
async fn old_runtimes_are_recognised() {
    let config = FakeConfig {
        name: "containerd".into(),
        version: "v1.7.20".into(),
        nri_version: String::new(),
        ..Default::default()
    };
    let runtime = FakeRuntime::start_with(Recorder::default(), config).await.unwrap();
    let info = runtime.handle().info().unwrap();
    assert_eq!((info.name.as_str(), info.nri_version.as_str()), ("containerd", "v0.6.1"));
}

#[test]
fn flags_reach_the_builder() {
    use clap::Parser;
    #[derive(clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        nri: nri_sdk::Flags,
    }
    let parse = |arguments: &[&str]| {
        let all = std::iter::once("plugin").chain(arguments.iter().copied());
        let flags = Arguments::parse_from(all).nri;
        let environment =
            Environment { command: Some("/opt/30-recorder".into()), ..Default::default() };
        let builder = Stub::builder(Recorder::default()).environment(environment);
        flags.apply(builder).build().unwrap().id().to_string()
    };
    assert_eq!(parse(&[]), "30-recorder");
    assert_eq!(parse(&["--name", "x", "--idx", "07"]), "07-x");
    assert_eq!(parse(&["--index", "08", "--socket", "/tmp/s", "--no-reconnect"]), "08-30-recorder");
}
