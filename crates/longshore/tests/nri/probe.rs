//! A plugin that remembers all it is told and answers as a test wants.

use std::{path::PathBuf, sync::Arc, time::Duration};

use nri_sdk::{
    Answer, Changes, Container, Context, Creation, Environment, Event, Handlers, Plugin,
    PodResources, PodSandbox, Resources, RunError, Runtime, Stub, Updates, World,
};
use parking_lot::Mutex;
use testkit::Node;
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::task::TaskTracker;

/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

type Do<A, T> = Mutex<Option<Box<dyn Fn(A) -> Answer<T> + Send + Sync>>>;

/// What a plugin was told.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) event: &'static str,
    pub(crate) pod: PodSandbox,
    pub(crate) container: Container,
}

#[derive(Default)]
pub(crate) struct Probe {
    told: Mutex<Vec<Told>>,
    worlds: Mutex<Vec<World>>,
    pub(crate) on_sync: Do<World, Updates>,
    pub(crate) on_pod: Do<PodSandbox, ()>,
    pub(crate) on_pod_update: Do<PodResources, ()>,
    pod_limits: Mutex<Vec<PodResources>>,
    pub(crate) on_create: Do<Container, Creation>,
    pub(crate) on_start: Do<Container, ()>,
    pub(crate) on_update: Do<(Container, Resources), Changes>,
    pub(crate) on_stop: Do<Container, Updates>,
    /// Synchronize is answered once it has permits.
    pub(crate) sync_gate: Mutex<Option<Arc<Semaphore>>>,
    /// Handlers of pods, creations and starts wait while it is set.
    pub(crate) hold: tokio::sync::Mutex<()>,
}

impl Probe {
    fn note(&self, ctx: &Context, pod: &PodSandbox, container: &Container) {
        let event = ctx.event().map_or("?", Event::method);
        let (pod, container) = (pod.clone(), container.clone());
        self.told.lock().push(Told { event, pod, container });
    }

    pub(crate) fn told(&self) -> Vec<Told> {
        self.told.lock().clone()
    }

    /// What pods were to get.
    pub(crate) fn pod_limits(&self) -> Vec<PodResources> {
        self.pod_limits.lock().clone()
    }

    pub(crate) fn forget(&self) {
        self.told.lock().clear();
    }

    pub(crate) fn worlds(&self) -> Vec<World> {
        self.worlds.lock().clone()
    }

    /// Events of one object, in order: of a container by its id, else of a pod.
    pub(crate) fn events(&self, id: &str) -> Vec<&'static str> {
        let told = self.told.lock();
        let of = |told: &&Told| match told.container.id.as_str() {
            "" => told.pod.id == id,
            container => container == id,
        };
        told.iter().filter(of).map(|told| told.event).collect()
    }

    /// Waits until it has been told `event` of an object.
    pub(crate) async fn heard(&self, event: &str, id: &str) -> Told {
        until(&format!("{event} of {id}"), || {
            let of = |told: &&Told| {
                told.event == event && (told.container.id == id || told.pod.id == id)
            };
            self.told.lock().iter().find(of).cloned()
        })
        .await
    }

    async fn synchronize(self: Arc<Self>, _: Context, world: World) -> Answer<Updates> {
        self.worlds.lock().push(world.clone());
        let gate = self.sync_gate.lock().clone();
        if let Some(gate) = gate {
            drop(gate.acquire().await);
        }
        run(&self.on_sync, world)
    }

    async fn pod(self: Arc<Self>, ctx: Context, pod: PodSandbox) -> Answer {
        self.note(&ctx, &pod, &Container::default());
        if ctx.event() != Some(Event::RunPodSandbox) {
            return Ok(());
        }
        drop(self.hold.lock().await);
        run(&self.on_pod, pod)
    }

    async fn update_pod(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        asked: PodResources,
    ) -> Answer {
        self.note(&ctx, &pod, &Container::default());
        self.pod_limits.lock().push(asked.clone());
        run(&self.on_pod_update, asked)
    }

    async fn container(self: Arc<Self>, ctx: Context, pod: PodSandbox, c: Container) -> Answer {
        self.note(&ctx, &pod, &c);
        match ctx.event() {
            Some(Event::StartContainer) => {
                drop(self.hold.lock().await);
                run(&self.on_start, c)
            }
            _ => Ok(()),
        }
    }

    async fn create(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        c: Container,
    ) -> Answer<Creation> {
        self.note(&ctx, &pod, &c);
        drop(self.hold.lock().await);
        run(&self.on_create, c)
    }

    async fn update(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        c: Container,
        asked: Resources,
    ) -> Answer<Changes> {
        self.note(&ctx, &pod, &c);
        run(&self.on_update, (c, asked))
    }

    async fn stop(self: Arc<Self>, ctx: Context, pod: PodSandbox, c: Container) -> Answer<Updates> {
        self.note(&ctx, &pod, &c);
        run(&self.on_stop, c)
    }
}

fn run<A, T: Default>(script: &Do<A, T>, argument: A) -> Answer<T> {
    match &*script.lock() {
        Some(script) => script(argument),
        None => Ok(T::default()),
    }
}

impl Plugin for Probe {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .synchronize(Self::synchronize)
            .run_pod_sandbox(Self::pod)
            .stop_pod_sandbox(Self::pod)
            .remove_pod_sandbox(Self::pod)
            .update_pod_sandbox(Self::update_pod)
            .post_update_pod_sandbox(Self::pod)
            .create_container(Self::create)
            .post_create_container(Self::container)
            .start_container(Self::container)
            .post_start_container(Self::container)
            .update_container(Self::update)
            .post_update_container(Self::container)
            .stop_container(Self::stop)
            .remove_container(Self::container)
    }
}

/// A probe that is connected to a daemon; it comes back when the daemon does.
pub(crate) struct Connected {
    probe: Arc<Probe>,
    pub(crate) runtime: Runtime,
    running: JoinHandle<Result<(), RunError>>,
}

impl std::ops::Deref for Connected {
    type Target = Probe;

    fn deref(&self) -> &Probe {
        &self.probe
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub(crate) fn socket(node: &Node) -> PathBuf {
    node.daemon.state().join("nri.sock")
}

/// Connects a plugin and waits until it knows what exists.
pub(crate) async fn connect(node: &Node, id: &str) -> Connected {
    connect_with(node, id, |_| ()).await
}

/// One that is told what to do before it is told anything else.
pub(crate) async fn connect_with(node: &Node, id: &str, prepare: impl FnOnce(&Probe)) -> Connected {
    let (index, name) = id.split_once('-').unwrap();
    let stub = Stub::builder(Probe::default())
        .environment(Environment::default())
        .name(name)
        .index(index)
        .socket(socket(node))
        .build()
        .unwrap();
    let (probe, runtime) = (Arc::clone(stub.plugin()), stub.runtime());
    prepare(&probe);
    let running = TaskTracker::new().spawn(stub.run());
    let connected = Connected { probe, runtime, running };
    until("Synchronize", || (!connected.worlds.lock().is_empty()).then_some(())).await;
    connected
}

/// Waits for a condition that others bring about.
pub(crate) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "{what} did not come in {LIMIT:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Sets what a probe does.
pub(crate) fn script<A, T>(into: &Do<A, T>, act: impl Fn(A) -> Answer<T> + Send + Sync + 'static) {
    *into.lock() = Some(Box::new(act));
}
