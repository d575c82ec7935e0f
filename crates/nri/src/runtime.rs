//! The live side: plugins come and go, requests pass through them.
//!
//! ```text
//!   engine --> Nri::create_container --.                     .-- join: register, configure,
//!                                       > State (one lock) <        synchronise
//!   plugin calls end, turns are given -'   Pipeline,         '-- leave
//!                                          Registry
//! ```
//!
//! One lock holds the model and the registry; it is held for the lines in which the model
//! decides and never during a call. Each request is flown by its caller ([`flight`]), who does
//! what the model gives it a turn for and reports back. A caller that goes away or has no time
//! left is answered at once, and what it began is undone; a task brings a call that has begun
//! to its end.
//!
//! **Invariants:** `state.flights` and the model's requests are the same set. An object is in
//! the registry from the moment its creation leaves the pipeline, in the same critical
//! section, so that no join falls between the two.

mod absent;
mod announce;
mod changes;
mod dispatch;
mod flight;
mod join;
mod launch;
mod listen;
mod program;
mod requests;
mod status;
mod sync;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use nri_wire::{PluginId, Trunk, api};
use parking_lot::{Mutex, RwLock};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, Semaphore, oneshot, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use join::JoinError;
pub use launch::LaunchError;
pub use requests::{Ask, Created};
pub use status::{Absence, AbsentPlugin, PluginStatus};

use self::{announce::Announcement, flight::Flight, join::Arrival};
use crate::{
    domain::Domain,
    journal::Journal,
    mailbag::Mailbag,
    metrics::Metrics,
    model::{Lane, Pipeline, Place},
    object::{Container, Pod, State as ContainerState},
    peer::{Origin, Peer, Scope},
    registry::Table,
    settings::{Settings, SettingsError},
    watch::{Feed, Watch},
};

/// Requests on their way, those nobody waits for included. One more waits for room before it
/// gets its place.
const MAX_IN_FLIGHT: usize = 4096;
/// Requests that are kept to be announced to plugins that are still being synchronised. Beyond
/// them such plugins are dropped.
const MAX_LATE: usize = 4096;

/// How long requests on their way have to end when we stop.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a plugin has to answer `Shutdown`.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// The plugins of a runtime. Clones share them.
///
/// ```
/// use std::sync::Arc;
/// use nri::{Ask, Nri, Pod, RuntimeInfo, Settings};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let settings = Settings { socket: None, plugin_dirs: vec![], ..Settings::default() };
/// let nri = Nri::new(settings, RuntimeInfo::new("example", "1.0"))?;
/// nri.start().await?;
/// let pod = Pod { domain: "k8s.io".into(), id: "p0".into(), ..Pod::default() };
/// nri.run_pod(&pod, &Ask::default()).await?;
/// nri.stop_pod(&pod, &Ask::default()).await?;
/// nri.remove_pod(&pod).await;
/// nri.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Nri {
    shared: Arc<Shared>,
}

/// Who we are, as plugins are told.
#[derive(Clone, Debug)]
pub struct RuntimeInfo {
    pub name: String,
    pub version: String,
}

/// What [`Nri::restart`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restarted {
    Joined(PluginId),
    Disconnected(PluginId),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    #[error("no plugin {0:?} is here")]
    Unknown(String),
    #[error("several plugins are called {0:?}: say which by NN-name")]
    Ambiguous(String),
    #[error("plugin {0} is a part of this program")]
    BuiltIn(PluginId),
    #[error("plugin {0} was started and did not join: the log says why")]
    NotJoined(PluginId),
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("listen for plugins on {path:?}")]
    Listen {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

pub(crate) struct Shared {
    state: Mutex<State>,
    settings: ArcSwap<Settings>,
    info: RuntimeInfo,
    metrics: Metrics,
    mailbag: Mailbag,
    feed: Feed,
    domains: RwLock<BTreeMap<String, Arc<dyn Domain>>>,
    /// One set of changes at a time, so that what is put back is what was there.
    changes: tokio::sync::Mutex<()>,
    room: Arc<Semaphore>,
    /// Told whenever nothing is on its way.
    idle: Notify,
    /// Counts the comings and goings of active plugins.
    members: watch::Sender<u64>,
    services: Mutex<Services>,
    absentees: Mutex<absent::Absentees>,
    since: Instant,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What runs by the settings, to be changed with them.
#[derive(Default)]
struct Services {
    listeners: BTreeMap<PathBuf, listen::Listener>,
    launched: BTreeMap<PathBuf, launch::Launched>,
    /// Files among plugins that are none.
    left_out: Vec<AbsentPlugin>,
}

#[derive(Default)]
struct State {
    pipeline: Pipeline,
    pods: Table<PodRecord>,
    containers: Table<ContainerRecord>,
    flights: HashMap<Place, Flight>,
    /// Requests that have left, and that a plugin they passed is still to be told of.
    late: BTreeMap<Place, Arc<Announcement>>,
    peers: BTreeMap<Lane, Arc<Peer>>,
    active: BTreeSet<Lane>,
    /// Those who wait for a plugin to be synchronised.
    syncing: HashMap<Lane, oneshot::Sender<Result<(), JoinError>>>,
    journals: HashMap<String, Box<Journal>>,
}

#[derive(Debug)]
pub(crate) struct PodRecord {
    domain: Arc<str>,
    wire: Arc<api::PodSandbox>,
}

#[derive(Debug)]
pub(crate) struct ContainerRecord {
    domain: Arc<str>,
    wire: Arc<api::Container>,
}

impl RuntimeInfo {
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into() }
    }
}

impl Nri {
    /// Starts nothing yet.
    pub fn new(settings: Settings, info: RuntimeInfo) -> Result<Self, SettingsError> {
        settings.check()?;
        let tasks = TaskTracker::new();
        let shared = Shared {
            state: Mutex::default(),
            settings: ArcSwap::from_pointee(settings),
            info,
            metrics: Metrics::default(),
            mailbag: Mailbag::new(tasks.clone()),
            feed: Feed::default(),
            domains: RwLock::default(),
            changes: tokio::sync::Mutex::default(),
            room: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            idle: Notify::new(),
            members: watch::Sender::new(0),
            services: Mutex::default(),
            absentees: Mutex::default(),
            since: Instant::now(),
            tasks,
            stop: CancellationToken::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Counts in these, which may be registered before there is an `Nri`. Before anything
    /// else is done with it: what others share keeps its own.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Metrics) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.metrics = metrics;
        }
        self
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Makes a front end's containers known: those that exist, and how they are changed.
    /// Before [`Nri::start`], or plugins are not told of them.
    pub fn add_domain(
        &self,
        domain: Arc<dyn Domain>,
        pods: &[(Pod, ContainerState)],
        containers: &[Container],
    ) {
        let name: Arc<str> = domain.name().into();
        let mut state = self.shared.state.lock();
        for (pod, pod_state) in pods {
            let record = PodRecord { domain: Arc::clone(&name), wire: Arc::new(pod.to_wire()) };
            let stopped = *pod_state == ContainerState::Stopped;
            state.pods.seed(&pod.id, Arc::new(record), stopped);
        }
        for container in containers {
            let record =
                ContainerRecord { domain: Arc::clone(&name), wire: Arc::new(container.to_wire()) };
            let stopped = container.state == ContainerState::Stopped;
            state.containers.seed(&container.id, Arc::new(record), stopped);
        }
        drop(state);
        self.shared.domains.write().insert(name.to_string(), domain);
    }

    /// Listens, starts plugins and waits until each of them has joined or failed. Plugins
    /// that fail are reported and left out; only a socket that cannot be bound is an error.
    ///
    /// Not cancel safe: some plugins may be started and others not.
    pub async fn start(&self) -> Result<(), StartError> {
        let settings = self.shared.settings.load_full();
        if !settings.enabled {
            return Ok(());
        }
        listen::follow(&self.shared, &settings)?;
        launch::follow(&self.shared, &settings).await;
        Ok(())
    }

    /// Runs by other settings from now on. They are checked first; then sockets are opened
    /// and closed, programs started and ended, and policies changed. A plugin whose program,
    /// configuration and socket are the same keeps its connection.
    ///
    /// Not cancel safe: what has been changed so far stays.
    pub async fn reload(&self, settings: Settings) -> Result<(), StartError> {
        settings.check()?;
        let settings = Arc::new(settings);
        listen::follow(&self.shared, &settings)?;
        self.shared.settings.store(Arc::clone(&settings));
        for peer in self.shared.state.lock().peers.values() {
            peer.treat(join::treatment(&settings, &peer.id));
        }
        if !settings.enabled {
            self.close_plugins().await;
        }
        launch::follow(&self.shared, &settings).await;
        Ok(())
    }

    /// Takes in a plugin that runs inside this process and speaks over `io`. Returns when it
    /// is synchronised; it is part of the set until either side closes.
    ///
    /// Not cancel safe: dropping it may leave the plugin in the set or not.
    pub async fn attach<T>(&self, id: PluginId, config: &str, io: T) -> Result<(), JoinError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let arrival = Arrival {
            id: Some(id),
            config: config.to_owned(),
            origin: Origin::BuiltIn,
            scope: Scope::Open,
            claimed: Arc::default(),
        };
        let connect = |desk| Trunk::runtime(io, desk);
        let peer = join::join(&self.shared, connect, arrival).await?;
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move { join::stay(&shared, peer).await });
        Ok(())
    }

    /// Ends a plugin and starts it anew, if we started it, and returns when it has joined or
    /// failed. One that connected is disconnected; it comes back by itself or not at all.
    /// By `NN-name` or name.
    ///
    /// Cancel safe.
    pub async fn restart(&self, name: &str) -> Result<Restarted, RestartError> {
        let called = |id: &PluginId| id.is_called(name);
        let launched = {
            let services = self.shared.services.lock();
            let mut found = services.launched.values().filter(|one| called(one.id()));
            match (found.next(), found.next()) {
                (Some(_), Some(_)) => return Err(RestartError::Ambiguous(name.to_owned())),
                (one, _) => one.map(|one| (one.id().clone(), one.again())),
            }
        };
        if let Some((id, again)) = launched {
            let (tried, joined) = oneshot::channel();
            let _ = again.send(tried).await;
            let _ = joined.await;
            let state = self.shared.state.lock();
            let mut active = state.active.iter().filter_map(|lane| state.peers.get(lane));
            return match active.any(|peer| peer.id == id && !peer.is_gone()) {
                true => Ok(Restarted::Joined(id)),
                false => Err(RestartError::NotJoined(id)),
            };
        }
        let peers: Vec<_> = {
            let state = self.shared.state.lock();
            let here = state.peers.values().filter(|peer| called(&peer.id) && !peer.is_gone());
            here.cloned().collect()
        };
        match peers.as_slice() {
            [] => Err(RestartError::Unknown(name.to_owned())),
            [peer] if peer.origin == Origin::BuiltIn => Err(RestartError::BuiltIn(peer.id.clone())),
            [peer] => {
                peer.blame("it was disconnected by an operator".to_owned());
                peer.shutdown(SHUTDOWN).await;
                self.shared.leave(peer);
                Ok(Restarted::Disconnected(peer.id.clone()))
            }
            _ => Err(RestartError::Ambiguous(name.to_owned())),
        }
    }

    /// Returns when nothing is on its way, what nobody waits for included.
    ///
    /// Cancel safe.
    pub async fn idle(&self) {
        self.shared.idle().await;
    }

    /// What happens from now on, as it happens.
    pub fn watch(&self) -> Watch {
        self.shared.feed.watch()
    }

    /// What plugins did to a container.
    pub fn journal(&self, container: &str) -> Option<Journal> {
        self.shared.state.lock().journals.get(container).map(|journal| Journal::clone(journal))
    }

    /// Lets what is on its way end, tells plugins that we stop, closes their connections and
    /// ends those we started. Containers are not touched. Requests from here on fail.
    ///
    /// Not cancel safe: call it again to finish.
    pub async fn shutdown(&self) {
        self.shared.room.close();
        // What was told already, such as that a container is gone, still arrives.
        let _ = tokio::time::timeout(DRAIN, self.shared.idle()).await;
        self.shared.stop.cancel();
        self.close_plugins().await;
        let services = std::mem::take(&mut *self.shared.services.lock());
        drop(services);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    async fn close_plugins(&self) {
        let peers: Vec<_> = self.shared.state.lock().peers.values().cloned().collect();
        let goodbyes = peers.iter().map(|peer| async {
            peer.shutdown(SHUTDOWN).await;
            peer.trunk.close();
        });
        futures_util::future::join_all(goodbyes).await;
    }
}

impl Shared {
    /// Nothing is on its way.
    async fn idle(&self) {
        loop {
            let told = self.idle.notified();
            if self.state.lock().is_idle() {
                return;
            }
            told.await;
        }
    }

    fn is_hidden(&self, domain: &str) -> bool {
        let settings = self.settings.load();
        settings.domains.get(domain).is_some_and(|domain| domain.hidden)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nri").field("info", &self.info).finish_non_exhaustive()
    }
}
