//! The calls of the front ends: reads answered here, changes handed to the owner.

use std::{sync::Arc, time::Duration};

use base::Id;
use jiff::Timestamp;
use net::Networks;
use oci::{ExecRequest, Resources};
use shim_client::AttachIo;
use store::Store;
use tokio::sync::{OnceCell, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    attach::{Attaching, Waiter},
    config::EngineConfig,
    container,
    error::{EngineError, Result},
    events::{self, Events, Subscription},
    exec::{self, ExecSession, ExecStdio},
    files::{blocking, read_json},
    forward,
    health::Health,
    images::Images,
    layout::Layout,
    names::{Claim, Names, Outcome},
    network,
    owner::{Ask, Begin, Life, Message, Owner, Reply, StopWith},
    phase::PodPhase,
    plugins::Plugins,
    pod::spec,
    record::{ContainerRecord, PodRecord},
    recover,
    request::{CheckpointRequest, NewContainer, PodRequest},
    shared::{Live, Shared},
    stages::{Stage, Stages},
    stats::{ContainerStats, Groups, PodDetails, PodStats},
    storage::Storage,
    view::{ContainerFilter, ExecOutput, HandlerView, PodFilter, PodView},
};

const CGROUP_V1: &str = "Kubernetes and systemd give up cgroup v1: boot this host with cgroup v2";

async fn prepare_profiles(
    config: EngineConfig,
    health: Arc<Health>,
) -> Result<(EngineConfig, Arc<Health>)> {
    if !config.host.apparmor {
        return Ok((config, health));
    }
    blocking(move || {
        config.profiles().prepare(&health);
        Ok((config, health))
    })
    .await
}

/// The engine that both front ends call. Ids may be given as unique prefixes.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    health: Arc<Health>,
    images: Option<Arc<Images>>,
}

impl Engine {
    /// Takes over what is on record. Returns when every pod was looked at.
    pub async fn open(
        config: EngineConfig,
        store: Store,
        storage: Arc<dyn Storage>,
    ) -> Result<Self> {
        let health = Arc::new(Health::default());
        if config.handlers.is_empty() {
            health.runtime.fail("NoRuntime", "no OCI runtime works here: see `longshore check`");
        }
        let (config, health) = prepare_profiles(config, health).await?;
        let events = Events::new(config.event_discard_age, config.metrics.clone());
        let networks = Networks::open(config.network.clone(), &store).await?;
        let shared = Arc::new(Shared {
            groups: blocking(Groups::new).await?,
            events,
            plugins: Plugins::new(&config.plugins)?,
            stories: store.table()?,
            layout: Layout::new(&config),
            pods: store.table()?,
            containers: store.table()?,
            store,
            storage,
            networks,
            config,
            pod_names: Names::default(),
            container_names: Names::default(),
            stages: Stages::default(),
            live: Live::default(),
            foreign: OnceCell::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            stopping: CancellationToken::new(),
        });
        if !shared.groups.is_unified() {
            health.deprecations.note("cgroup-v1", CGROUP_V1);
        }
        // First: what recovery finds out is news.
        events::watch(&shared);
        recover::recover(&shared).await;
        let engine = Self { shared, health, images: None };
        engine.follow_networks();
        if let Err(error) = engine.shared.plugins.open(&engine.shared).await {
            engine.close().await;
            return Err(error);
        }
        recover::forget_orphans(&engine.shared).await;
        Ok(engine)
    }

    fn follow_networks(&self) {
        let Shared { networks, config, tasks, stop, .. } = &*self.shared;
        // Of pods that name no handler.
        let default = config.handlers.first().map_or("", |handler| &handler.name);
        let readiness = networks.readiness(default);
        network::show(&self.health, &readiness.borrow());
        let telling = network::tell(Arc::clone(&self.health), readiness);
        tasks.spawn(stop.clone().run_until_cancelled_owned(telling));
        tasks.spawn(network::collect_garbage(Arc::clone(&self.shared)));
    }

    /// As [`Engine::open`], with images to be served too.
    pub async fn open_with_images(
        config: EngineConfig,
        store: Store,
        images: Arc<Images>,
    ) -> Result<Self> {
        let storage: Arc<dyn Storage> = Arc::clone(&images) as _;
        let engine = Self::open(config, store, storage).await?;
        Ok(Self { images: Some(images), ..engine })
    }

    pub fn images(&self) -> Result<&Images> {
        self.images.as_deref().ok_or(EngineError::Unimplemented("images"))
    }

    /// Returns when no task of the engine is left. Containers run on.
    pub async fn close(&self) {
        self.leave_commands();
        self.shared.stop.cancel();
        // What waits for a CNI program is told that it ended.
        self.shared.networks.close().await;
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        if let Some(foreign) = self.shared.foreign.get() {
            foreign.close().await;
        }
        // What the last tasks told still reaches plugins.
        self.shared.plugins.nri().shutdown().await;
        if let Some(images) = &self.images {
            images.close().await;
        }
    }

    /// Runs plugins by other settings. What did not change keeps its connection.
    ///
    /// Not cancel safe: what has been changed so far stays.
    pub async fn reload_plugins(&self, settings: nri::Settings) -> Result<()> {
        self.shared.plugins.reload(settings).await
    }

    /// Who is there, in the order in which they are asked.
    pub fn plugins(&self) -> Vec<nri::PluginStatus> {
        self.shared.plugins.nri().plugins()
    }

    /// NRI plugins that should be there and are not.
    pub fn absent_plugins(&self) -> Vec<nri::AbsentPlugin> {
        self.shared.plugins.nri().absent_plugins()
    }

    /// What happens between the daemon and plugins, from now on.
    pub fn watch_plugins(&self) -> nri::Watch {
        self.shared.plugins.nri().watch()
    }

    /// Ends a plugin, by `NN-name` or name, and starts it anew if the daemon launched it.
    ///
    /// Cancel safe.
    pub async fn restart_plugin(&self, name: &str) -> Result<nri::Restarted> {
        let restarted = self.shared.plugins.nri().restart(name).await;
        restarted.map_err(|error| {
            let kind = match &error {
                nri::RestartError::Unknown(_) => base::Kind::NotFound,
                nri::RestartError::Ambiguous(_) => base::Kind::Invalid,
                nri::RestartError::BuiltIn(_) | nri::RestartError::NotJoined(_) => {
                    base::Kind::FailedPrecondition
                }
            };
            EngineError::failed("restart a plugin", kind, &error)
        })
    }

    /// What plugins made of a container, from the record alone.
    pub fn explain(&self, container: &str) -> Result<nri::Story> {
        let container = self.shared.find_container(container)?;
        let story = self.shared.stories.get(&container.id);
        Ok(story.map(|record| record.story.clone()).unwrap_or_default())
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// All events from now on, and those that nobody was there for.
    pub fn subscribe(&self) -> Subscription {
        self.shared.events.subscribe()
    }

    /// Ends all subscriptions: who serves them need not wait for their clients.
    pub fn end_subscriptions(&self) {
        self.shared.events.close();
    }

    /// To be called before the callers of commands are ended because the daemon stops: from now
    /// on commands are left running, and whoever waits for one is told so.
    pub fn leave_commands(&self) {
        self.shared.stopping.cancel();
    }

    /// Resolves when commands are left. Cancel safe.
    pub async fn stopping(&self) {
        self.shared.stopping.cancelled().await;
    }

    /// What is in flight now.
    pub fn stages(&self) -> Vec<Stage> {
        self.shared.stages.list()
    }

    /// Who owns the cgroups of all pods.
    pub fn cgroup_driver(&self) -> oci::CgroupDriver {
        self.shared.config.cgroup_driver
    }

    /// For people who debug: what the engine works with, as JSON.
    pub fn details(&self) -> serde_json::Value {
        let config = &self.shared.config;
        let handler = |handler: &crate::config::Handler| {
            serde_json::json!({
                "name": handler.name,
                "binary": handler.binary,
                "shim": handler.shim.as_ref().map_or(&config.shim_binary, |shim| &shim.binary),
                "snapshotter": handler.snapshotter,
                "ociVersion": handler.facts.oci_version,
            })
        };
        serde_json::json!({
            "stateDir": config.state,
            "rootDir": config.root,
            "shim": config.shim_binary,
            "cgroupDriver": format!("{:?}", config.cgroup_driver).to_lowercase(),
            "cgroupUnified": self.shared.groups.is_unified(),
            "handlers": config.handlers.iter().map(handler).collect::<Vec<_>>(),
            "maxLogLine": config.max_log_line,
            "eventDiscardAgeSeconds": config.event_discard_age.as_secs(),
        })
    }

    /// The default first.
    pub fn handlers(&self) -> Vec<HandlerView> {
        let handlers = self.shared.config.handlers.iter().enumerate();
        let view = |(at, handler): (usize, &crate::config::Handler)| HandlerView {
            name: handler.name.clone(),
            is_default: at == 0,
            recursive_readonly: handler.facts.abilities.recursive_readonly,
            user_namespaces: handler.facts.abilities.user_namespaces
                && handler.facts.abilities.idmapped_mounts,
        };
        handlers.map(view).collect()
    }

    /// The node learnt its pod networks, as a list with commas. Not cancel safe: some of the
    /// configurations that wait for it may be written.
    pub async fn set_pod_cidrs(&self, cidrs: &str) -> Result<()> {
        Ok(self.shared.networks.set_pod_cidrs(cidrs).await?)
    }

    /// For people who debug: the networks of each handler, and pods that DEL is still to be
    /// done for, as JSON.
    pub fn network_details(&self) -> serde_json::Value {
        network::details(&self.shared)
    }

    // === pods ===

    /// Those of a pod being made at the same time are not seen: that it is given the same is
    /// as unlikely as that two random ids begin alike.
    fn new_categories(&self, id: &Id) -> Option<String> {
        self.shared.config.selinux.as_ref()?;
        let pods = self.shared.pods.list();
        let taken = pods.iter().filter_map(|pod| pod.selinux_categories.as_deref()).collect();
        Some(oci::pod_categories(id, &taken))
    }

    /// Makes a pod that is ready when this returns. A request with the name of one in
    /// flight waits for that one. Cancel safe: the work goes on.
    pub async fn run_pod(&self, request: PodRequest) -> Result<Id> {
        let handler = self.shared.handler(&request.handler)?;
        crate::pod::check::check(&self.shared.config, handler, &request)?;
        let handler = handler.name.clone();
        let (name, new) = (request.name.to_string(), Id::random());
        let id = match self.shared.pod_names.claim(&name, new) {
            Claim::New(tell) => {
                let outcome = tell.subscribe();
                let mut pod = new_pod(new, handler, request);
                pod.selinux_categories = self.new_categories(&new);
                Owner::spawn(&self.shared, Arc::new(pod), Begin::Make { tell });
                made(new, outcome).await?
            }
            Claim::Join(id, outcome) => made(id, outcome).await?,
            Claim::Undelivered(id) => id,
            Claim::Taken(id) => return Err(EngineError::NameTaken { name, id }),
        };
        self.ask(id, |reply| Ask::Deliver { container: None, reply }).await?;
        Ok(id)
    }

    /// Kills its containers and releases what it holds; of a stopped one, nothing.
    /// Cancel safe.
    pub async fn stop_pod(&self, id: &str) -> Result<()> {
        let pod = self.shared.find_pod(id)?;
        self.ask(pod.id, |reply| Ask::StopPod { reply }).await
    }

    /// Stops it and forgets it with its containers. Cancel safe.
    pub async fn remove_pod(&self, id: &str) -> Result<()> {
        let pod = self.shared.find_pod(id)?;
        self.ask(pod.id, |reply| Ask::RemovePod { reply }).await
    }

    /// New limits for the pod as a whole; what is `None` stays as it is. Cancel safe.
    pub async fn update_pod(
        &self,
        id: &str,
        overhead: Option<Resources>,
        resources: Option<Resources>,
    ) -> Result<()> {
        let pod = self.shared.find_pod(id)?;
        let (overhead, resources) = (overhead.map(Box::new), resources.map(Box::new));
        self.ask(pod.id, |reply| Ask::UpdatePod { overhead, resources, reply }).await
    }

    pub fn pod(&self, id: &str) -> Result<PodView> {
        let pod = self.shared.find_pod(id)?;
        let mut containers = self.shared.containers_of(pod.id);
        containers.retain(|container| container.is_visible());
        Ok(PodView { pod, containers, at: Timestamp::now() })
    }

    pub fn pods(&self, filter: &PodFilter) -> Vec<Arc<PodRecord>> {
        let mut pods = self.shared.pods.list();
        pods.retain(|pod| pod.is_visible() && filter.matches(pod));
        pods
    }

    /// For people who debug: what the pod is made of, as JSON.
    pub async fn pod_details(&self, id: &str) -> Result<serde_json::Value> {
        let pod = self.shared.find_pod(id)?;
        let shim = self.shared.live.shim(pod.id);
        Ok(serde_json::json!({
            "pid": shim.as_ref().map(|shim| shim.info().pid),
            "processStatus": if shim.is_some() { "running" } else { "deleted" },
            "runtimeHandler": pod.handler,
            "directory": self.shared.layout.pod(&pod.id),
            "networkNamespace": pod.own_network().then(|| self.shared.layout.netns(&pod.id)),
            "cniResult": network::results(&self.shared, &pod.id),
            "overhead": pod.overhead,
            "resources": pod.resources,
            "runtimeSpec": spec::shown(&self.shared, &pod).await?,
            "config": pod.request,
        }))
    }

    /// For work that needs a pod that is ready.
    pub fn ready_pod(&self, id: &str) -> Result<Arc<PodRecord>> {
        let pod = self.shared.find_pod(id)?;
        if pod.phase.is_ready() {
            return Ok(pod);
        }
        let (what, id, state) = ("pod", pod.id, pod.phase.to_string());
        Err(EngineError::State { what, id, state, action: "connect to it" })
    }

    // === containers ===

    /// Cancel safe: the work goes on, and a retry joins it.
    pub async fn create_container(&self, pod: &str, request: NewContainer) -> Result<Id> {
        let pod = self.shared.find_pod(pod)?;
        let image = Box::new(self.shared.storage.image(&request.image.reference).await?);
        let (name, new) = (request.full_name(&pod.request.name), Id::random());
        let id = match self.shared.container_names.claim(&name, new) {
            Claim::New(tell) => {
                let outcome = tell.subscribe();
                let request = Box::new(request);
                let ask = Ask::Create { id: new, name: name.clone(), request, image, tell };
                if let Err(error) = self.send(pod.id, ask).await {
                    self.shared.container_names.release(&name, new);
                    return Err(error);
                }
                made(new, outcome).await?
            }
            Claim::Join(id, outcome) => made(id, outcome).await?,
            Claim::Undelivered(id) => id,
            Claim::Taken(id) => return Err(EngineError::NameTaken { name, id }),
        };
        self.ask(pod.id, |reply| Ask::Deliver { container: Some(id), reply }).await?;
        Ok(id)
    }

    /// Cancel safe.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let container = self.shared.find_container(id)?;
        let id = container.id;
        self.ask(container.pod, |reply| Ask::Start { id, reply }).await
    }

    /// The stop signal, then SIGKILL after `grace`. Returns when the exit is on record and
    /// plugins know of it.
    /// Cancel safe: a caller that gives up within the grace causes no SIGKILL.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let container = self.shared.find_container(id)?;
        if !grace.is_zero() {
            let Some(mut exited) = self.signal(&container, StopWith::Politeness).await? else {
                return Ok(());
            };
            let ended = exited.wait_for(|life| *life >= Life::Ended);
            let ended = matches!(tokio::time::timeout(grace, ended).await, Ok(Ok(_)));
            if !ended {
                self.kill(&container).await?;
            }
            return told(exited).await;
        }
        match self.kill(&container).await? {
            Some(exited) => told(exited).await,
            None => Ok(()),
        }
    }

    /// Kills it if it runs, and forgets it. Its log file stays. Cancel safe.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let container = self.shared.find_container(id)?;
        self.kill(&container).await?;
        let id = container.id;
        self.ask(container.pod, |reply| Ask::Remove { id, reply }).await
    }

    /// Returns when its exit is on record, if it ran.
    async fn kill(&self, container: &ContainerRecord) -> Result<Option<watch::Receiver<Life>>> {
        let Some(mut exited) = self.signal(container, StopWith::Kill).await? else {
            return Ok(None);
        };
        exited.wait_for(|life| *life >= Life::Ended).await.map_err(|_| EngineError::Closing)?;
        Ok(Some(exited))
    }

    async fn signal(
        &self,
        container: &ContainerRecord,
        with: StopWith,
    ) -> Result<Option<watch::Receiver<Life>>> {
        let id = container.id;
        self.ask(container.pod, |reply| Ask::Signal { id, with, reply }).await
    }

    pub fn container(&self, id: &str) -> Result<Arc<ContainerRecord>> {
        self.shared.find_container(id)
    }

    /// For work that needs a container that runs.
    pub fn running_container(&self, id: &str) -> Result<Arc<ContainerRecord>> {
        let container = self.shared.find_container(id)?;
        if container.phase.pid().is_some() {
            return Ok(container);
        }
        let (what, id, state) = ("container", container.id, container.phase.to_string());
        Err(EngineError::State { what, id, state, action: "connect to it" })
    }

    pub fn containers(&self, filter: &ContainerFilter) -> Vec<Arc<ContainerRecord>> {
        let mut containers = self.shared.containers.list();
        containers.retain(|container| container.is_visible() && filter.matches(container));
        containers
    }

    /// For people who debug: the runtime spec and the rest, as JSON. Reads files.
    pub async fn container_details(&self, id: &str) -> Result<serde_json::Value> {
        let container = self.shared.find_container(id)?;
        let path = self.shared.layout.spec(&container.pod, &container.id);
        let spec: serde_json::Value = blocking(move || read_json(&path)).await?;
        Ok(serde_json::json!({
            "sandboxID": container.pod,
            "pid": container.phase.pid().unwrap_or(0),
            "snapshotKey": container.id,
            "config": container.request,
            "runtimeSpec": spec,
        }))
    }

    /// What is absent stays as it is. Cancel safe.
    pub async fn update_container(&self, id: &str, resources: Resources) -> Result<()> {
        let container = self.shared.find_container(id)?;
        let (id, resources) = (container.id, Box::new(resources));
        self.ask(container.pod, |reply| Ask::Update { id, resources, reply }).await
    }

    /// Writes an archive of what it has in memory and of what it changed of its image; it runs
    /// on. Refused where criu is missing or does not work, before anything is begun.
    /// Cancel safe.
    pub async fn checkpoint_container(&self, id: &str, request: CheckpointRequest) -> Result<()> {
        let container = self.shared.find_container(id)?;
        container::checkpoint::check(&self.shared, &container, &request).await?;
        let (id, request) = (container.id, Box::new(request));
        self.ask(container.pod, |reply| Ask::Checkpoint { id, request, reply }).await
    }

    // === what is used ===

    /// Of a container that does not run, only its writable layer.
    pub async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        let container = self.shared.find_container(id)?;
        self.read(move |shared| shared.stats_of(container)).await
    }

    pub async fn list_container_stats(
        &self,
        filter: &ContainerFilter,
    ) -> Result<Vec<ContainerStats>> {
        let containers = self.containers(filter);
        let stats = |shared: &Shared| containers.into_iter().map(|c| shared.stats_of(c)).collect();
        self.read(stats).await
    }

    /// Only of a pod that is ready.
    pub async fn pod_stats(&self, id: &str) -> Result<PodStats> {
        let pod = self.shared.find_pod(id)?;
        if !pod.phase.is_ready() {
            let (id, state) = (pod.id, pod.phase.to_string());
            return Err(EngineError::NotReady { id, state });
        }
        let mut stats = self.read(move |shared| shared.pod_stats_of(vec![pod])).await?;
        Ok(stats.remove(0))
    }

    /// Of those pods that are ready.
    pub async fn list_pod_stats(&self, filter: &PodFilter) -> Result<Vec<PodStats>> {
        let pods = self.pods(&PodFilter { ready: Some(true), ..filter.clone() });
        self.read(move |shared| shared.pod_stats_of(pods)).await
    }

    /// All there is to know about pods that are ready.
    pub async fn list_pod_usage_details(&self) -> Result<Vec<PodDetails>> {
        let pods = self.pods(&PodFilter { ready: Some(true), ..PodFilter::default() });
        self.read(move |shared| shared.details_of(pods)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        blocking(move || read(&shared)).await
    }

    /// Cancel safe.
    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        let container = self.shared.find_container(id)?;
        if container.phase.pid().is_none() {
            let (what, id, action) = ("container", container.id, "reopen its log");
            let state = container.phase.to_string();
            return Err(EngineError::State { what, id, state, action });
        }
        let shim = self.shared.shim(container.pod)?;
        Ok(shim.reopen_log(container.id.as_str()).await?)
    }

    /// Runs a command to its end; each stream is cut at 16 MiB. Past `limit` it is killed
    /// and the error is of kind `Deadline`. A caller that goes away kills it too.
    pub async fn exec_sync(
        &self,
        id: &str,
        request: ExecRequest,
        limit: Option<Duration>,
    ) -> Result<ExecOutput> {
        let container = self.shared.find_container(id)?;
        exec::run_to_end(&self.shared, container, request, limit).await
    }

    /// Starts a command; dropping the session kills it. Cancel safe.
    pub async fn exec(
        &self,
        id: &str,
        request: ExecRequest,
        stdio: ExecStdio,
    ) -> Result<ExecSession> {
        let container = self.shared.find_container(id)?;
        exec::start(&self.shared, container, request, stdio).await
    }

    /// The streams of a running container, from now on. A reader that falls behind is cut
    /// off. Cancel safe.
    pub async fn attach(&self, id: &str, stdio: ExecStdio) -> Result<AttachIo> {
        let container = self.shared.find_container(id)?;
        let shim = self.shared.shim(container.pod)?;
        let ExecStdio { stdin, stdout, stderr } = stdio;
        Ok(shim.attach(container.id.as_str(), stdin, stdout, stderr).await?)
    }

    /// The same from the first byte on, of a container that is not started yet: once this has
    /// returned, its start waits for the connection. Cancel safe.
    pub async fn attach_from_start(&self, id: &str, stdio: ExecStdio) -> Result<Attaching> {
        let container = self.shared.find_container(id)?;
        let id = container.id;
        let (waiter, attaching) = Waiter::new(id, stdio);
        self.ask(container.pod, |reply| Ask::Attach { id, waiter, reply }).await?;
        Ok(attaching)
    }

    /// A connection to a port of the pod's localhost. Cancel safe.
    pub async fn port_forward(&self, pod: &str, port: u16) -> Result<tokio::net::TcpStream> {
        let pod = self.ready_pod(pod)?;
        forward::connect(&self.shared, &pod, port).await
    }

    /// Of a container's own terminal.
    pub async fn resize(&self, id: &str, width: u16, height: u16) -> Result<()> {
        let container = self.shared.find_container(id)?;
        let shim = self.shared.shim(container.pod)?;
        Ok(shim.resize(container.id.as_str(), "", width, height).await?)
    }

    // === owners ===

    async fn send(&self, pod: Id, ask: Ask) -> Result<()> {
        let owner = self.shared.owner(pod).map_err(|_| self.gone(pod))?;
        owner.send(Message::Ask(ask)).await.map_err(|_| self.gone(pod))
    }

    async fn ask<T>(&self, pod: Id, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(pod, ask(reply)).await?;
        answer.await.map_err(|_| self.gone(pod))?
    }

    /// Who asks for a stop takes "not found" for done: at our own end that would be a lie.
    fn gone(&self, pod: Id) -> EngineError {
        if self.shared.stop.is_cancelled() {
            EngineError::Closing
        } else {
            EngineError::NotFound { what: "pod", id: pod.to_string() }
        }
    }
}

/// Its exit is on record; that plugins know, too, is waited for as long as somebody tells.
async fn told(mut life: watch::Receiver<Life>) -> Result<()> {
    let _ = life.wait_for(|life| *life >= Life::Told).await;
    Ok(())
}

/// Waits for the outcome that all who asked for this name wait for.
async fn made(id: Id, mut outcome: watch::Receiver<Outcome>) -> Result<Id> {
    let told = outcome.wait_for(Option::is_some).await;
    match told.as_deref() {
        Ok(Some(Ok(()))) => Ok(id),
        Ok(Some(Err(error))) => Err(error.clone()),
        _ => Err(EngineError::Closing),
    }
}

fn new_pod(id: Id, handler: String, request: PodRequest) -> PodRecord {
    PodRecord {
        id,
        handler,
        phase: PodPhase::Making { step: String::new() },
        created_at: Timestamp::now(),
        delivered: false,
        pid1: None,
        pid_namespace: None,
        ips: Vec::new(),
        last_ips: Vec::new(),
        selinux_categories: None,
        overhead: request.overhead.clone(),
        resources: request.resources.clone(),
        request,
    }
}
