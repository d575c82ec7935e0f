//! A runtime for the unit tests of plugins.
//!
//! [`FakeRuntime`] talks to a plugin as a real one does, over the real protocol and inside
//! the test: nothing is mocked but the containers. It never sleeps, so it works with paused
//! time.
//!
//! ```
//! # use std::sync::Arc;
//! # use nri_sdk::{Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox};
//! use nri_sdk::testing::{FakeRuntime, container, pod};
//!
//! # struct Greeter;
//! # impl Plugin for Greeter {
//! #     fn handlers() -> Handlers<Self> {
//! #         Handlers::new().create_container(Self::create_container)
//! #     }
//! # }
//! # impl Greeter {
//! #     async fn create_container(
//! #         self: Arc<Self>, _: Context, pod: PodSandbox, _: Container,
//! #     ) -> Answer<Adjustment> {
//! #         let mut adjustment = Adjustment::new();
//! #         adjustment.env.set("GREETING", format!("hello {}", pod.name));
//! #         Ok(adjustment)
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = FakeRuntime::start(Greeter).await?;
//! let web = pod("web");
//! let created = runtime.create_container(&web, &container(&web, "nginx")).await?;
//! assert_eq!(created.adjustment.env.value("GREETING").unwrap(), "hello web");
//! runtime.stop().await?;
//! # Ok(())
//! # }
//! ```

mod calls;
mod service;

use std::{io, sync::Arc, time::Duration};

use nri_wire::{
    EventMask, Trunk,
    api::{
        ConfigureRequest, Container, ContainerState, LinuxContainer, LinuxPodSandbox, PluginClient,
        PodSandbox, RegisterPluginRequest, SynchronizeRequest,
    },
    defaults,
};
use parking_lot::Mutex;
use service::{Received, Service};
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    task::JoinHandle,
    time::{error::Elapsed, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Changes, Environment, Plugin, Reconnect, RunError, Runtime, Stub, Updates, World};

/// Connections that wait to be taken.
const BACKLOG: usize = 4;

/// What a [`FakeRuntime`] says about itself and what it has at the beginning.
#[derive(Clone, Debug)]
pub struct FakeConfig {
    /// The plugin's configuration file.
    pub config: String,
    pub name: String,
    pub version: String,
    pub nri_version: String,
    pub registration_timeout: Duration,
    pub request_timeout: Duration,
    /// What exists before the plugin connects.
    pub world: World,
    /// In how many messages the plugin learns of it.
    pub parts: usize,
    /// Speaks as runtimes did before NRI 0.12: events that only tell are `StateChange`s.
    pub state_change: bool,
}

/// A runtime with one plugin.
#[derive(Debug)]
pub struct FakeRuntime<P> {
    config: FakeConfig,
    plugin: Arc<P>,
    /// The plugin's own handle on us.
    handle: Runtime,
    dialed: mpsc::Receiver<DuplexStream>,
    received: Arc<Mutex<Received>>,
    session: Session,
    stop: CancellationToken,
    running: JoinHandle<Result<(), RunError>>,
}

/// One connection.
#[derive(Debug)]
struct Session {
    plugin: PluginClient,
    trunk: Trunk,
    registered: RegisterPluginRequest,
    events: EventMask,
    updates: Updates,
}

/// Why a plugin did not get as far as serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FakeError {
    #[error(transparent)]
    Build(#[from] crate::BuildError),
    #[error("the plugin did not {0} in time")]
    Late(&'static str),
    #[error("the plugin ended")]
    Ended(#[from] RunError),
    #[error("the plugin failed to {step}")]
    Call { step: &'static str, source: ttrpc::Error },
    #[error("the plugin broke the protocol: {0}")]
    Protocol(String),
}

/// A pod with the given name, ready to have containers.
pub fn pod(name: &str) -> PodSandbox {
    PodSandbox {
        id: format!("pod-{name}"),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "default".into(),
        linux: Some(LinuxPodSandbox::default()),
        ..Default::default()
    }
}

/// A container of a pod, about to be created.
pub fn container(pod: &PodSandbox, name: &str) -> Container {
    Container {
        id: format!("{}-{name}", pod.id),
        pod_sandbox_id: pod.id.clone(),
        name: name.to_owned(),
        state: ContainerState::ContainerCreated.into(),
        linux: Some(LinuxContainer::default()),
        ..Default::default()
    }
}

impl Default for FakeConfig {
    fn default() -> Self {
        Self {
            config: String::new(),
            name: "fake".into(),
            version: "v1.0.0".into(),
            nri_version: defaults::NRI_VERSION.into(),
            registration_timeout: defaults::REGISTRATION_TIMEOUT,
            request_timeout: defaults::REQUEST_TIMEOUT,
            world: World::default(),
            parts: 1,
            state_change: false,
        }
    }
}

// === impl FakeRuntime ===

impl<P: Plugin> FakeRuntime<P> {
    /// Connects, configures and synchronises a plugin.
    ///
    /// Not cancel safe: dropping it ends the plugin.
    pub async fn start(plugin: P) -> Result<Self, FakeError> {
        Self::start_with(plugin, FakeConfig::default()).await
    }

    /// Not cancel safe: dropping it ends the plugin.
    pub async fn start_with(plugin: P, config: FakeConfig) -> Result<Self, FakeError> {
        let (dial, mut dialed) = mpsc::channel(BACKLOG);
        let at_once = Reconnect { first: Duration::ZERO, max: Duration::ZERO };
        let stub = Stub::builder(plugin)
            .environment(Environment::default())
            .name("plugin")
            .index("00")
            .reconnect(at_once)
            .dialer(move || connect(dial.clone()))
            .build()?;
        let (plugin, handle) = (Arc::clone(stub.plugin()), stub.runtime());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let running = TaskTracker::new().spawn(stub.run_until(stopped));
        let received = Arc::default();
        match Session::open(&config, &mut dialed, &received).await {
            Ok(session) => {
                let running =
                    Self { config, plugin, handle, dialed, received, session, stop, running };
                running.handle.connected().await;
                Ok(running)
            }
            Err(error) => {
                // A plugin that has ended by itself knows better what was wrong.
                stop.cancel();
                match running.await {
                    Ok(Err(ended)) => Err(ended.into()),
                    _ => Err(error),
                }
            }
        }
    }

    /// Loses the connection, as a runtime that is restarted does, and takes the plugin's
    /// next one. `world` is what exists by then.
    ///
    /// Not cancel safe.
    pub async fn restart(&mut self, world: World) -> Result<(), FakeError> {
        self.config.world = world;
        self.session.trunk.close();
        self.handle.disconnected().await;
        self.session = Session::open(&self.config, &mut self.dialed, &self.received).await?;
        self.handle.connected().await;
        Ok(())
    }

    /// Asks the plugin to end, as its own process would on a signal.
    pub fn end(&self) {
        self.stop.cancel();
    }

    /// Ends the plugin and tells how it ended.
    ///
    /// Not cancel safe.
    pub async fn stop(mut self) -> Result<(), RunError> {
        self.end();
        match (&mut self.running).await {
            Ok(ended) => ended,
            Err(failure) => std::panic::resume_unwind(failure.into_panic()),
        }
    }

    pub fn plugin(&self) -> &Arc<P> {
        &self.plugin
    }

    /// The handle the plugin has on us.
    pub fn handle(&self) -> &Runtime {
        &self.handle
    }

    /// What the plugin subscribed to.
    pub fn events(&self) -> EventMask {
        self.session.events
    }

    pub fn registered(&self) -> &RegisterPluginRequest {
        &self.session.registered
    }

    /// What the plugin asked for when it was synchronised.
    pub fn sync_updates(&self) -> &Updates {
        &self.session.updates
    }

    /// What the plugin has asked for by itself since the last look.
    pub fn unsolicited(&self) -> Vec<Changes> {
        std::mem::take(&mut self.received.lock().changes)
    }

    /// From now on, updates of this container fail.
    pub fn refuse_updates_of(&self, container_id: impl Into<String>) {
        self.received.lock().refused.insert(container_id.into());
    }
}

impl<P> Drop for FakeRuntime<P> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn connect(dial: mpsc::Sender<DuplexStream>) -> io::Result<DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    match dial.send(theirs).await {
        Ok(()) => Ok(ours),
        Err(_) => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

// === impl Session ===

impl Session {
    async fn open(
        config: &FakeConfig,
        dialed: &mut mpsc::Receiver<DuplexStream>,
        received: &Arc<Mutex<Received>>,
    ) -> Result<Self, FakeError> {
        let limit = config.registration_timeout;
        let late = |step| move |_: Elapsed| FakeError::Late(step);
        let io = timeout(limit, dialed.recv()).await.map_err(late("connect"))?;
        let io = io.ok_or(FakeError::Late("connect"))?;
        let (service, mut registrations) = Service::new(Arc::clone(received));
        let (plugin, trunk) = Trunk::runtime(io, service);
        let registered = timeout(limit, registrations.recv()).await.map_err(late("register"))?;
        let registered = registered.ok_or(FakeError::Late("register"))?;
        let answer = plugin.configure(&config.ctx(), &config.configure()).await;
        let answer = answer.map_err(|source| FakeError::Call { step: "configure", source })?;
        let events = EventMask::from_wire(answer.events)
            .map_err(|error| FakeError::Protocol(error.to_string()))?;
        let updates = synchronize(config, &plugin).await?;
        Ok(Self { plugin, trunk, registered, events, updates })
    }
}

impl FakeConfig {
    fn ctx(&self) -> ttrpc::Context {
        ttrpc::Context::timeout(self.request_timeout)
    }

    fn configure(&self) -> ConfigureRequest {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        ConfigureRequest {
            config: self.config.clone(),
            runtime_name: self.name.clone(),
            runtime_version: self.version.clone(),
            nri_version: self.nri_version.clone(),
            registration_timeout: ms(self.registration_timeout),
            request_timeout: ms(self.request_timeout),
        }
    }

    /// The world in parts; there is always a last one.
    fn sync_parts(&self) -> Vec<SynchronizeRequest> {
        let parts = self.parts.max(1);
        let World { pods, containers } = &self.world;
        let slice = |len: usize, part: usize| len * part / parts..len * (part + 1) / parts;
        let request = |part| SynchronizeRequest {
            pods: pods[slice(pods.len(), part)].to_vec(),
            containers: containers[slice(containers.len(), part)].to_vec(),
            more: part + 1 < parts,
        };
        (0..parts).map(request).collect()
    }
}

async fn synchronize(config: &FakeConfig, plugin: &PluginClient) -> Result<Updates, FakeError> {
    let mut updates = Updates::new();
    for request in config.sync_parts() {
        let answer = plugin.synchronize(&config.ctx(), &request).await;
        let answer = answer.map_err(|source| FakeError::Call { step: "synchronize", source })?;
        if answer.more != request.more || (request.more && !answer.update.is_empty()) {
            let why = "it does not take a world in several parts".to_owned();
            return Err(FakeError::Protocol(why));
        }
        updates = answer.update.into();
    }
    Ok(updates)
}
