//! The running daemon: start, run, close.
//!
//! ```text
//! start:  directories + lock → sockets → CRI served (UNAVAILABLE) → store → engine → ready
//! close:  parts told to stop → calls in flight drained → sockets removed → store → lock
//! ```
//!
//! **Invariant:** [`Daemon::close`] returns when nothing of the daemon is left: no socket, no
//! task, no open store. Containers are not touched by it.

mod ground;
mod handlers;
mod metrics;
mod parts;
mod serve;
mod socket;
mod streaming;

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use content::{ContentConfig, Proxies};
use engine::{Engine, EngineConfig, Handler, Images, Limits, Metrics};
use front_admin::{Admin, Paths, Streams};
use oci::CgroupDriver;
use parts::Parts;
use serve::Protocol;
use store::Store;
use telemetry::{
    logs::Logs,
    metrics::{Exposition, Registry},
};
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::{Signal, SignalKind, signal},
};

use self::{ground::Ground, socket::SocketPath};
use crate::config::{ConfigError, Settings};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longer lines of a container's log are cut into parts.
const MAX_LOG_LINE: usize = 16384;

#[derive(Debug)]
pub struct Daemon {
    settings: Settings,
    parts: Parts,
    engine: Arc<Engine>,
    store: Store,
    // Dropped in this order, after everything that uses them.
    sockets: Vec<SocketPath>,
    ground: Ground,
}

/// What happens to be listened on before the first part runs, so that a refused start
/// has served nobody.
struct Listeners {
    cri: UnixListener,
    metrics: UnixListener,
    metrics_tcp: Option<TcpListener>,
}

/// What is counted by parts that are opened after the metrics are served.
struct Counters {
    engine: Metrics,
    nri: engine::nri::Metrics,
}

impl Counters {
    fn register(registry: &mut Registry) -> Self {
        let nri = engine::nri::Metrics::default();
        nri.register(registry);
        Self { engine: Metrics::register(registry), nri }
    }
}

impl Daemon {
    /// Returns when the daemon serves. Not cancel safe.
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        let ground = Ground::take(&settings)?;
        let (listeners, sockets) = listen(&settings).await?;
        let streaming = streaming::listen(&settings.streaming).await?;

        let mut registry =
            telemetry::metrics::registry(VERSION, jiff::Timestamp::now().as_second());
        let counters = Counters::register(&mut registry);
        let slot = front_cri::Slot::default();
        let mut parts = Parts::default();
        let streams = Streams::new(parts.stop_token());
        let paths = Paths { root: settings.root.clone(), state: settings.state.clone() };
        let admin = Admin::service(slot.cell(), paths, streams.clone());
        let streaming = streaming.serve(&mut parts, slot.clone());
        let cri = front_cri::Service::new(slot.clone(), streaming, &mut registry).with(admin);
        parts.spawn("streams", async move {
            streams.ended().await;
            Ok(())
        });
        spawn_servers(&mut parts, listeners, cri, &Exposition::new(registry));

        // From here on a failure has servers to stop.
        let store = match Store::open(settings.root.join("store")) {
            Ok(store) => store,
            Err(e) => {
                parts.close().await;
                return Err(e.into());
            }
        };
        watch_store(&mut parts, &store);
        match open_engine(&settings, &store, counters).await {
            Ok(engine) => {
                slot.fill(Arc::clone(&engine));
                let mut daemon = Self { settings, parts, engine, store, sockets, ground };
                daemon.ground.keep();
                Ok(daemon)
            }
            Err(error) => {
                parts.close().await;
                store.close().await?;
                Err(error)
            }
        }
    }

    /// Serves until a signal ends it, or a critical part dies: then with that error.
    ///
    /// `reread` gives the settings anew; it is called at each SIGHUP.
    pub async fn run(
        mut self,
        logs: Option<Logs>,
        reread: impl Fn() -> Result<Settings, ConfigError>,
    ) -> anyhow::Result<()> {
        let mut signals = Signals::listen()?;
        notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!(version = VERSION, socket = %self.settings.cri_socket.display(), "serving");
        let failure = loop {
            tokio::select! {
                error = self.parts.failed() => break Some(error),
                _ = signals.terminate.recv() => break None,
                _ = signals.interrupt.recv() => break None,
                _ = signals.hangup.recv() => self.reload(logs.as_ref(), &reread).await,
            }
        };
        notify(&[sd_notify::NotifyState::Stopping]);
        let errors = self.close().await;
        for error in &errors {
            tracing::error!("while stopping: {error:#}");
        }
        match failure.or(errors.into_iter().next()) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Ends everything in order; the errors are what could not be ended well.
    pub async fn close(self) -> Vec<anyhow::Error> {
        let Self { parts, engine, store, sockets, ground, .. } = self;
        // Else the server would give their readers its grace.
        engine.end_subscriptions();
        engine.leave_commands();
        let mut errors = parts.close().await;
        drop(sockets);
        engine.close().await;
        if let Err(e) = store.close().await {
            errors.push(anyhow::Error::from(e).context("close the store"));
        }
        drop(ground);
        errors
    }

    /// All or nothing: a broken file changes nothing.
    async fn reload(
        &mut self,
        logs: Option<&Logs>,
        reread: impl Fn() -> Result<Settings, ConfigError>,
    ) {
        let now = sd_notify::NotifyState::monotonic_usec_now();
        let mut states = vec![sd_notify::NotifyState::Reloading];
        states.extend(now);
        notify(&states);
        match reread() {
            Err(error) => tracing::error!("configuration not reloaded: {error}"),
            Ok(new) => {
                if let Some(logs) = logs {
                    logs.set_level(&new.log_level);
                }
                for key in self.settings.fixed_changes(&new) {
                    tracing::warn!(key, "changed, but takes effect only after a restart");
                }
                self.settings.log_level = new.log_level;
                if let Err(error) = self.engine.reload_plugins(new.nri.settings.clone()).await {
                    tracing::error!(error = %base::Chain(&error), "plugins not reloaded");
                } else {
                    self.settings.nri = new.nri;
                }
                tracing::info!(log_level = %self.settings.log_level, "configuration reloaded");
            }
        }
        notify(&[sd_notify::NotifyState::Ready]);
    }
}

/// Looks at the host and takes over what an earlier daemon left.
async fn open_engine(
    settings: &Settings,
    store: &Store,
    counters: Counters,
) -> anyhow::Result<Arc<Engine>> {
    let cgroup_driver = handlers::cgroup_driver(settings);
    let handlers = handlers::find(settings, cgroup_driver, store).await?;
    let looked = settings.clone();
    let look = move || engine_config(&looked, cgroup_driver, handlers, counters);
    let config = tokio::task::spawn_blocking(look).await??;
    let mut content = ContentConfig::new(settings.root.join("content"));
    content.registry.hosts_dirs = vec![settings.registry.config_dir.clone()];
    let environment = Proxies::from_vars(|name| std::env::var(name).ok());
    content.registry.proxies = settings.registry.proxies.clone().or(environment);
    let images = Images::open(&settings.root, content, store).await?;
    Ok(Arc::new(Engine::open_with_images(config, store.clone(), Arc::new(images)).await?))
}

fn engine_config(
    settings: &Settings,
    cgroup_driver: CgroupDriver,
    handlers: Vec<Handler>,
    counters: Counters,
) -> anyhow::Result<EngineConfig> {
    Ok(EngineConfig {
        root: settings.root.clone(),
        state: settings.state.clone(),
        netns: settings.cni.netns_dir.clone(),
        network: settings.cni.client(std::env::var_os("PATH").unwrap_or_default()),
        shim_binary: shim_binary()?,
        handlers,
        host: engine::host::look()?,
        policy: settings.containers.policy.clone(),
        cdi_dirs: settings.containers.cdi_dirs.clone(),
        block_io_classes: settings.containers.blockio_classes.clone(),
        selinux: engine::host::selinux_contexts(),
        program_dirs: program_dirs(),
        apparmor_parser: engine::find_apparmor_parser(),
        cgroup_driver,
        limits: Limits::default(),
        max_log_line: MAX_LOG_LINE,
        event_discard_age: settings.event_discard_age,
        metrics: counters.engine,
        plugins: engine::PluginsConfig { metrics: counters.nri, ..settings.nri.engine() },
    })
}

/// Where the programs are that OCI runtimes start: on the path that our shims get from us.
fn program_dirs() -> Vec<PathBuf> {
    match std::env::var_os("PATH") {
        Some(path) => std::env::split_paths(&path).collect(),
        None => probe::HostPaths::real(std::ffi::OsStr::new("")).path_dirs,
    }
}

/// Beside this program, where the package puts it.
fn shim_binary() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    Ok(own.with_file_name("longshore-shim"))
}

async fn listen(settings: &Settings) -> anyhow::Result<(Listeners, Vec<SocketPath>)> {
    let (cri, cri_path) = socket::bind_owned(&settings.cri_socket)?;
    let (metrics, metrics_path) = socket::bind_owned(&settings.metrics_socket)?;
    let metrics_tcp = match settings.metrics_tcp {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .with_context(|| format!("metrics.tcp: listen on {address}"))?,
        ),
        None => None,
    };
    Ok((Listeners { cri, metrics, metrics_tcp }, vec![cri_path, metrics_path]))
}

fn spawn_servers(
    parts: &mut Parts,
    listeners: Listeners,
    cri: front_cri::Service,
    exposition: &Exposition,
) {
    let stop = parts.stop_token();
    let serve_cri = serve::serve(listeners.cri, Protocol::Http2, cri, stop.clone());
    parts.spawn("CRI server", async { Ok(serve_cri.await?) });

    let exposition = exposition.clone();
    let pages = tower::service_fn(move |request| metrics::answer(exposition.clone(), request));
    let serve_metrics =
        serve::serve(listeners.metrics, Protocol::Http1, pages.clone(), stop.clone());
    parts.spawn("metrics server", async { Ok(serve_metrics.await?) });
    if let Some(tcp) = listeners.metrics_tcp {
        let serve_tcp = serve::serve(tcp, Protocol::Http1, pages, stop);
        parts.spawn("metrics TCP server", async { Ok(serve_tcp.await?) });
    }
}

fn watch_store(parts: &mut Parts, store: &Store) {
    let (store, stop) = (store.clone(), parts.stop_token());
    parts.spawn("store", async move {
        tokio::select! {
            error = store.failed() => Err(error.into()),
            () = stop.cancelled() => Ok(()),
        }
    });
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }
}

/// Without systemd this does nothing.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
