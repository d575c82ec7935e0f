//! Plugins and domains made of closures.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt};
use nri::{
    Ask, BareHost, Container, Created, Domain, DomainError, Nri, NriError, Pod, Resources,
    RuntimeInfo, Settings, api::*,
};
use nri_wire::{Trunk, api};
use parking_lot::Mutex;
use ttrpc::{ServerContext, Status};

pub(crate) const DOMAIN: &str = "k8s.io";

/// Long enough for anything that works; what does not is found by it.
pub(crate) const SOON: Duration = Duration::from_secs(20);

type Handler<Req, Res> = Arc<dyn Fn(Req) -> BoxFuture<'static, Result<Res, Status>> + Send + Sync>;

/// A plugin. What it is not told to do it answers with nothing.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) events: i32,
    /// Whether it knows nothing but StateChange.
    pub(crate) old: bool,
    pub(crate) no_parts: bool,
    pub(crate) wishes: Option<FailurePolicy>,
    pub(crate) told: Told,
    pub(crate) on_create: Option<Handler<CreateContainerRequest, CreateContainerResponse>>,
    pub(crate) on_update: Option<Handler<UpdateContainerRequest, UpdateContainerResponse>>,
    pub(crate) on_stop: Option<Handler<StopContainerRequest, StopContainerResponse>>,
    pub(crate) on_sync: Option<Handler<SynchronizeRequest, SynchronizeResponse>>,
    pub(crate) on_validate:
        Option<Handler<ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse>>,
    pub(crate) on_event: Option<Handler<StateChangeEvent, ()>>,
    pub(crate) on_configure: Option<Handler<ConfigureRequest, ()>>,
}

/// What plugins were told, in the order in which they were: `plugin event object`.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub(crate) fn push(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// How often a line that begins so was told.
    pub(crate) fn count(&self, start: &str) -> usize {
        self.0.lock().iter().filter(|line| line.starts_with(start)).count()
    }

    /// Waits until a line that begins so was told.
    pub(crate) async fn wait_for(&self, start: &str) {
        let told = async {
            while self.count(start) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = tokio::time::timeout(SOON, told).await;
        in_time.unwrap_or_else(|_| panic!("{start:?} was never told: {:#?}", self.all()));
    }
}

macro_rules! handler {
    ($name:ident, $field:ident, $req:ty, $res:ty) => {
        pub(crate) fn $name<F, Fut>(mut self, handler: F) -> Self
        where
            F: Fn($req) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<$res, Status>> + Send + 'static,
        {
            self.$field = Some(Arc::new(move |request| handler(request).boxed()));
            self
        }
    };
}

impl Script {
    /// Asks for the events named.
    pub(crate) fn new(events: &str) -> Self {
        let events: nri::EventMask = events.parse().unwrap();
        Self { events: events.to_wire(), ..Self::default() }
    }

    pub(crate) fn telling(mut self, told: &Told) -> Self {
        self.told = told.clone();
        self
    }

    handler!(on_create, on_create, CreateContainerRequest, CreateContainerResponse);
    handler!(on_update, on_update, UpdateContainerRequest, UpdateContainerResponse);
    handler!(on_stop, on_stop, StopContainerRequest, StopContainerResponse);
    handler!(on_sync, on_sync, SynchronizeRequest, SynchronizeResponse);
    handler!(
        on_validate,
        on_validate,
        ValidateContainerAdjustmentRequest,
        ValidateContainerAdjustmentResponse
    );
    handler!(on_event, on_event, StateChangeEvent, ());
    handler!(on_configure, on_configure, ConfigureRequest, ());

    /// Answers creations with this.
    pub(crate) fn adjusting(
        self,
        adjust: impl Fn(&Container_) -> ContainerAdjustment + Send + Sync + 'static,
    ) -> Self {
        self.on_create(move |request| {
            let adjust = adjust(&request.container.unwrap_or_default());
            async move { Ok(CreateContainerResponse { adjust: Some(adjust), ..Default::default() }) }
        })
    }

    /// Takes this long for everything but Configure and Synchronize.
    pub(crate) fn slow(self, time: Duration) -> Self {
        let pause = move || tokio::time::sleep(time);
        self.on_create(move |_| async move {
            pause().await;
            Ok(CreateContainerResponse::default())
        })
        .on_update(move |_| async move {
            pause().await;
            Ok(UpdateContainerResponse::default())
        })
        .on_stop(move |_| async move {
            pause().await;
            Ok(StopContainerResponse::default())
        })
        .on_validate(move |_| async move {
            pause().await;
            Ok(ValidateContainerAdjustmentResponse::default())
        })
        .on_event(move |_| async move {
            pause().await;
            Ok(())
        })
    }

    /// Connects over any stream, registers, and serves as long as the end is held.
    pub(crate) async fn connect<T>(
        self,
        io: T,
        index: &str,
        name: &str,
    ) -> Result<Live, ttrpc::Error>
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    {
        let plugin =
            ScriptServer { script: self, name: format!("{index}-{name}"), parts: Arc::default() };
        let (runtime, trunk) = Trunk::plugin(io, plugin);
        let request = RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
            nri_version: "v0.12.5".to_owned(),
        };
        runtime.register_plugin(&ttrpc::Context::timeout(SOON), &request).await?;
        Ok(Live { runtime, trunk })
    }
}

/// The wire's container, beside the one of the runtime.
pub(crate) type Container_ = api::Container;

/// A plugin that runs; it is gone when dropped.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) runtime: RuntimeClient,
    pub(crate) trunk: Trunk,
}

impl Live {
    pub(crate) async fn update(
        &self,
        update: Vec<ContainerUpdate>,
        evict: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, ttrpc::Error> {
        let request = UpdateContainersRequest { update, evict };
        let ctx = ttrpc::Context::timeout(SOON);
        Ok(self.runtime.update_containers(&ctx, &request).await?.failed)
    }
}

struct ScriptServer {
    script: Script,
    name: String,
    parts: Arc<Mutex<SynchronizeRequest>>,
}

impl ScriptServer {
    fn tell(&self, event: &str, id: &str) {
        self.script.told.push(format!("{} {event} {id}", self.name));
    }

    async fn event(
        &self,
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container_>,
    ) -> Result<(), Status> {
        if self.script.old {
            return Err(Status::unimplemented("method"));
        }
        self.change(StateChangeEvent { event: event.into(), pod, container }).await
    }

    async fn change(&self, change: StateChangeEvent) -> Result<(), Status> {
        let id = match (&change.container, &change.pod) {
            (Some(container), _) => container.id.clone(),
            (None, Some(pod)) => pod.id.clone(),
            (None, None) => String::new(),
        };
        self.tell(change.event().method(), &id);
        match &self.script.on_event {
            Some(handler) => handler(change).await,
            None => Ok(()),
        }
    }
}

macro_rules! events {
    ($($method:ident $request:ident $response:ident $event:ident ( $pod:ident $(, $container:ident)? );)*) => { $(
        async fn $method(&self, _: ServerContext, request: $request) -> Result<$response, Status> {
            let container = None$( .or(request.$container) )?;
            self.event(Event::$event, request.$pod, container).await.map(|()| $response {})
        }
    )* };
}

impl Plugin for ScriptServer {
    events! {
        run_pod_sandbox RunPodSandboxRequest RunPodSandboxResponse RunPodSandbox (pod);
        stop_pod_sandbox StopPodSandboxRequest StopPodSandboxResponse StopPodSandbox (pod);
        remove_pod_sandbox RemovePodSandboxRequest RemovePodSandboxResponse RemovePodSandbox (pod);
        post_update_pod_sandbox PostUpdatePodSandboxRequest PostUpdatePodSandboxResponse PostUpdatePodSandbox (pod);
        post_create_container PostCreateContainerRequest PostCreateContainerResponse PostCreateContainer (pod, container);
        start_container StartContainerRequest StartContainerResponse StartContainer (pod, container);
        post_start_container PostStartContainerRequest PostStartContainerResponse PostStartContainer (pod, container);
        post_update_container PostUpdateContainerRequest PostUpdateContainerResponse PostUpdateContainer (pod, container);
        remove_container RemoveContainerRequest RemoveContainerResponse RemoveContainer (pod, container);
    }

    async fn configure(
        &self,
        _: ServerContext,
        request: ConfigureRequest,
    ) -> Result<ConfigureResponse, Status> {
        if let Some(handler) = &self.script.on_configure {
            handler(request).await?;
        }
        Ok(ConfigureResponse { events: self.script.events, failure_policy: self.script.wishes })
    }

    async fn synchronize(
        &self,
        _: ServerContext,
        request: SynchronizeRequest,
    ) -> Result<SynchronizeResponse, Status> {
        let all = {
            let mut parts = self.parts.lock();
            parts.pods.extend(request.pods);
            parts.containers.extend(request.containers);
            if request.more {
                self.tell("part", "");
                return Ok(SynchronizeResponse { update: vec![], more: !self.script.no_parts });
            }
            std::mem::take(&mut *parts)
        };
        for pod in &all.pods {
            self.tell("sync", &pod.id);
        }
        for container in &all.containers {
            self.tell("sync", &container.id);
        }
        self.tell("synced", "");
        match &self.script.on_sync {
            Some(handler) => handler(all).await,
            None => Ok(SynchronizeResponse::default()),
        }
    }

    async fn shutdown(&self, _: ServerContext, _: Empty) -> Result<Empty, Status> {
        self.tell("Shutdown", "");
        Ok(Empty {})
    }

    async fn update_pod_sandbox(
        &self,
        _: ServerContext,
        request: UpdatePodSandboxRequest,
    ) -> Result<UpdatePodSandboxResponse, Status> {
        let change = StateChangeEvent {
            event: Event::UpdatePodSandbox.into(),
            pod: request.pod,
            container: None,
        };
        self.change(change).await.map(|()| UpdatePodSandboxResponse {})
    }

    async fn create_container(
        &self,
        _: ServerContext,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        self.tell("CreateContainer", &request.container.clone().unwrap_or_default().id);
        match &self.script.on_create {
            Some(handler) => handler(request).await,
            None => Ok(CreateContainerResponse::default()),
        }
    }

    async fn update_container(
        &self,
        _: ServerContext,
        request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        self.tell("UpdateContainer", &request.container.clone().unwrap_or_default().id);
        match &self.script.on_update {
            Some(handler) => handler(request).await,
            None => Ok(UpdateContainerResponse::default()),
        }
    }

    async fn stop_container(
        &self,
        _: ServerContext,
        request: StopContainerRequest,
    ) -> Result<StopContainerResponse, Status> {
        self.tell("StopContainer", &request.container.clone().unwrap_or_default().id);
        match &self.script.on_stop {
            Some(handler) => handler(request).await,
            None => Ok(StopContainerResponse::default()),
        }
    }

    async fn state_change(
        &self,
        _: ServerContext,
        change: StateChangeEvent,
    ) -> Result<Empty, Status> {
        self.change(change).await.map(|()| Empty {})
    }

    async fn validate_container_adjustment(
        &self,
        _: ServerContext,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, Status> {
        self.tell("Validate", &request.container.clone().unwrap_or_default().id);
        match &self.script.on_validate {
            Some(handler) => handler(request).await,
            None if self.script.events == 0 => Err(Status::unimplemented("method")),
            None => Ok(ValidateContainerAdjustmentResponse::default()),
        }
    }
}

type OnEvict = Arc<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

/// Containers that remember what was done to them.
#[derive(Default)]
pub(crate) struct FakeDomain {
    pub(crate) shares: Mutex<BTreeMap<String, u64>>,
    pub(crate) evicted: Mutex<Vec<(String, String)>>,
    /// Updates to these values of shares fail.
    pub(crate) refuses: Mutex<BTreeSet<u64>>,
    pub(crate) on_evict: Mutex<Option<OnEvict>>,
}

impl Domain for FakeDomain {
    fn name(&self) -> &str {
        DOMAIN
    }

    fn resources<'a>(
        &'a self,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Resources>, DomainError>> {
        let value = self.shares.lock().get(id).copied();
        async move { Ok(value.map(resources)) }.boxed()
    }

    fn update<'a>(
        &'a self,
        id: &'a str,
        resources: &'a Resources,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        let value = resources.linux.cpu().as_ref().and_then(|cpu| cpu.shares()).unwrap_or_default();
        async move {
            if self.refuses.lock().contains(&value) {
                return Err(DomainError::Failed("no such shares".into()));
            }
            self.shares.lock().insert(id.to_owned(), value);
            Ok(())
        }
        .boxed()
    }

    fn evict<'a>(&'a self, id: &'a str, reason: &'a str) -> BoxFuture<'a, Result<(), DomainError>> {
        async move {
            if reason == "refuse" {
                return Err(DomainError::Failed("cannot stop".into()));
            }
            self.evicted.lock().push((id.to_owned(), reason.to_owned()));
            let hook = self.on_evict.lock().clone();
            if let Some(hook) = hook {
                hook(id.to_owned()).await;
            }
            Ok(())
        }
        .boxed()
    }
}

/// A runtime with one domain and no plugins.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) nri: Nri,
    pub(crate) domain: Arc<FakeDomain>,
    pub(crate) told: Told,
}

/// No sockets, no directories.
pub(crate) fn quiet() -> Settings {
    Settings { socket: None, plugin_dirs: vec![], config_dirs: vec![], ..Settings::default() }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(quiet()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        let nri = Nri::new(settings, RuntimeInfo::new("test", "1.2")).unwrap();
        let domain = Arc::new(FakeDomain::default());
        nri.add_domain(Arc::clone(&domain) as Arc<dyn Domain>, &[], &[]);
        nri.start().await.unwrap();
        Self { nri, domain, told: Told::default() }
    }

    /// A plugin inside the process, joined.
    pub(crate) async fn plugin(&self, id: &str, script: Script) -> Live {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (index, name) = id.split_once('-').unwrap();
        let script = script.telling(&self.told);
        let attach = self.nri.attach(id.parse().unwrap(), "", near);
        let (joined, live) = tokio::join!(attach, script.connect(far, index, name));
        joined.unwrap();
        live.unwrap()
    }

    pub(crate) async fn run(&self, id: &str) -> Result<(), NriError> {
        self.nri.run_pod(&pod(id), &Ask::default()).await
    }

    pub(crate) async fn create(&self, id: &str) -> Result<Created, NriError> {
        self.create_with(&container(id), &Ask::default()).await
    }

    pub(crate) async fn create_with(
        &self,
        container: &Container,
        ask: &Ask,
    ) -> Result<Created, NriError> {
        let pod = pod("pod");
        let created = self.nri.create_container(&pod, container, Arc::new(BareHost), ask).await?;
        self.domain.shares.lock().insert(container.id.clone(), 1);
        Ok(created)
    }

    pub(crate) async fn stop(&self, id: &str) -> Result<(), NriError> {
        self.nri.stop_container(&pod("pod"), &container(id), &Ask::default()).await
    }

    pub(crate) async fn remove(&self, id: &str) {
        self.nri.remove_container(&pod("pod"), &container(id)).await;
    }

    pub(crate) fn shares(&self, id: &str) -> Option<u64> {
        self.domain.shares.lock().get(id).copied()
    }

    /// Waits until nothing is on its way.
    pub(crate) async fn settle(&self) {
        let idle = async {
            while !self.metrics().contains("nri_requests_in_flight 0\n") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, idle).await.expect("requests end");
    }

    pub(crate) fn metrics(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        self.nri.metrics().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    pub(crate) fn plugins(&self) -> Vec<String> {
        self.nri.plugins().iter().map(|plugin| plugin.id.to_string()).collect()
    }

    pub(crate) async fn wait_for_plugins(&self, want: &[&str]) {
        let there = async {
            while self
                .nri
                .plugins()
                .iter()
                .filter(|p| p.active)
                .map(|p| p.id.to_string())
                .collect::<Vec<_>>()
                != want
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = tokio::time::timeout(SOON, there).await;
        in_time.unwrap_or_else(|_| panic!("wanted {want:?}, there are {:?}", self.plugins()));
    }
}

/// A task of a test, which ends with it.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio_util::task::TaskTracker::new().spawn(work)
}

pub(crate) fn pod(id: &str) -> Pod {
    Pod {
        domain: DOMAIN.to_owned(),
        id: id.to_owned(),
        name: format!("name-{id}"),
        ..Pod::default()
    }
}

pub(crate) fn container(id: &str) -> Container {
    Container {
        id: id.to_owned(),
        pod_id: "pod".to_owned(),
        name: format!("name-{id}"),
        ..Container::default()
    }
}

pub(crate) fn resources(shares: u64) -> Resources {
    let mut cpu = oci_spec::runtime::LinuxCpu::default();
    cpu.set_shares(Some(shares));
    let mut resources = Resources::default();
    resources.linux.set_cpu(Some(cpu));
    resources
}

pub(crate) fn update(id: &str, shares: u64) -> ContainerUpdate {
    let shares = Some(OptionalUInt64 { value: shares });
    let cpu = Some(LinuxCpu { shares, ..Default::default() });
    let resources = Some(LinuxResources { cpu, ..Default::default() });
    ContainerUpdate {
        container_id: id.to_owned(),
        linux: Some(LinuxContainerUpdate { resources }),
        ignore_failure: false,
    }
}

pub(crate) fn eviction(id: &str, reason: &str) -> ContainerEviction {
    ContainerEviction { container_id: id.to_owned(), reason: reason.to_owned() }
}

pub(crate) fn env(key: &str, value: &str) -> ContainerAdjustment {
    let env = vec![KeyValue { key: key.to_owned(), value: value.to_owned() }];
    ContainerAdjustment { env, ..Default::default() }
}

pub(crate) fn has_env(created: &Created, entry: &str) -> bool {
    let process = created.spec.process().as_ref().unwrap();
    process.env().as_ref().unwrap().iter().any(|have| have == entry)
}
