//! Plugins that we start: found in directories, given a socket, watched and started again.
//!
//! ```text
//!   found --> started --> joined --> gone --.
//!                ^          `-> failed --.   |
//!                `---- backoff <---------'<--'
//! ```
//!
//! A plugin gets one end of a socket pair as descriptor 3, three variables that say so, and
//! nothing else of ours. One bad file in a directory costs itself only.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ffi::OsString,
    fs, io,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use command_fds::{CommandFdExt, FdMapping};
use nri_wire::{IdentityError, PluginId, Socket, Trunk, defaults};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

use super::{
    SHUTDOWN, Shared,
    join::{self, Arrival, JoinError},
    program::{Phase, Program},
    status::{Absence, AbsentPlugin},
};
use crate::{
    output::printable_text,
    peer::{Origin, Scope},
    settings::{Backoff, Settings},
    watch::{Notice, whole},
};

/// The descriptor a plugin finds its socket at.
const SOCKET_FD: i32 = 3;
/// How every WebAssembly module of version 1 begins.
const WASM: [u8; 8] = *b"\0asm\x01\0\0\0";
/// For a process whose connection is closed to end by itself.
const LAST_BREATH: Duration = Duration::from_millis(200);
/// A plugin that lived this long starts again without delay.
const SETTLED: Duration = Duration::from_secs(60);

/// Why a file in a plugin directory is not a plugin of ours.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    #[error("list plugins in {path:?}")]
    List {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("plugin {path:?}")]
    Name {
        path: PathBuf,
        #[source]
        source: IdentityError,
    },
    #[error("plugin {0:?}: its name is no text")]
    NotText(OsString),
    #[error("look at plugin {path:?}")]
    Look {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("plugin {0:?} is WebAssembly, which is not supported")]
    Wasm(PathBuf),
    #[error("read configuration {path:?}")]
    Config {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("start plugin {path:?}")]
    Start {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A program to be started.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    id: PluginId,
    path: PathBuf,
    config: String,
    scope: Scope,
}

/// A program that is kept running; dropping it ends the program.
pub(super) struct Launched {
    found: Found,
    program: Arc<Program>,
    again: mpsc::Sender<Tried>,
    _running: DropGuard,
}

/// Dropped when an attempt has come to something: the plugin has joined, or not.
pub(super) type Tried = oneshot::Sender<()>;

impl Launched {
    pub(super) fn id(&self) -> &PluginId {
        &self.found.id
    }

    /// What became of it, and what it printed.
    pub(super) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Where to ask for an end and a new start.
    pub(super) fn again(&self) -> mpsc::Sender<Tried> {
        self.again.clone()
    }
}

/// Starts and ends programs so that those of the settings run, and waits until each new one
/// has joined or failed once, or is still being synchronised after the time of one request.
pub(super) async fn follow(shared: &Arc<Shared>, settings: &Arc<Settings>) {
    let asked = Arc::clone(settings);
    let found = tokio::task::spawn_blocking(move || discover_all(&asked)).await;
    let (found, errors) = found.unwrap_or_default();
    for error in &errors {
        error!(error = whole(error), "plugin is left out");
    }
    let mut first_attempts = Vec::new();
    {
        let mut services = shared.services.lock();
        services.left_out = errors.iter().map(left_out).collect();
        let wanted: BTreeMap<_, _> = found.into_iter().map(|f| (f.path.clone(), f)).collect();
        services.launched.retain(|path, have| wanted.get(path) == Some(&have.found));
        for (path, found) in wanted {
            if let Entry::Vacant(free) = services.launched.entry(path) {
                let limit = join::treatment(settings, &found.id).limit;
                let (launched, first) = keep_running(shared, found);
                free.insert(launched);
                // To register, to be configured, to be synchronised.
                let until = Instant::now() + settings.registration_timeout + limit * 2;
                first_attempts.push(timeout_at(until, first));
            }
        }
    }
    for first in first_attempts {
        let _ = first.await;
    }
}

/// A file that is no plugin, for people.
fn left_out(error: &LaunchError) -> AbsentPlugin {
    AbsentPlugin {
        name: printable_text(&error.name()),
        origin: Origin::Launched { pid: 0 },
        absence: Absence::Rejected,
        reason: printable_text(&whole(error)),
        age: Duration::ZERO,
        output: Vec::new(),
    }
}

impl LaunchError {
    /// What the file is called, or the directory that cannot be read.
    fn name(&self) -> String {
        match self {
            Self::List { path, .. } => path.display().to_string(),
            Self::NotText(name) => name.to_string_lossy().into_owned(),
            Self::Name { path, .. }
            | Self::Look { path, .. }
            | Self::Wasm(path)
            | Self::Config { path, .. }
            | Self::Start { path, .. } => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        }
    }
}

// === finding ===

fn discover_all(settings: &Settings) -> (Vec<Found>, Vec<LaunchError>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    if !settings.enabled {
        return (found, errors);
    }
    let open = (&settings.plugin_dirs, &settings.config_dirs, Scope::Open);
    let own = settings.domains.iter().map(|(name, domain)| {
        (&domain.plugin_dirs, &domain.config_dirs, Scope::Domain(name.clone()))
    });
    for (dirs, configs, scope) in std::iter::once(open).chain(own) {
        for dir in dirs {
            discover(dir, configs, &scope, &mut found, &mut errors);
        }
    }
    (found, errors)
}

fn discover(
    dir: &Path,
    configs: &[PathBuf],
    scope: &Scope,
    found: &mut Vec<Found>,
    errors: &mut Vec<LaunchError>,
) {
    let list = |source| LaunchError::List { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // Nobody has installed a plugin.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return errors.push(list(error)),
    };
    for entry in entries {
        match entry.map_err(list).and_then(|entry| examine(&entry.path(), configs, scope)) {
            Ok(plugin) => found.extend(plugin),
            Err(error) => errors.push(error),
        }
    }
}

/// `None` for what does not look like a plugin: directories and files nobody may execute.
fn examine(path: &Path, configs: &[PathBuf], scope: &Scope) -> Result<Option<Found>, LaunchError> {
    let look = |source| LaunchError::Look { path: path.to_owned(), source };
    let kind = fs::symlink_metadata(path).map_err(look)?;
    if kind.is_dir() || kind.permissions().mode() & 0o111 == 0 {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default();
    let name = name.to_str().ok_or_else(|| LaunchError::NotText(name.to_owned()))?;
    let id: PluginId =
        name.parse().map_err(|source| LaunchError::Name { path: path.to_owned(), source })?;
    let mut start = Vec::new();
    fs::File::open(path).and_then(|f| f.take(8).read_to_end(&mut start)).map_err(look)?;
    if start == WASM {
        return Err(LaunchError::Wasm(path.to_owned()));
    }
    let config = configuration(&id, configs)?;
    Ok(Some(Found { id, path: path.to_owned(), config, scope: scope.clone() }))
}

/// The first there is of `NN-name.conf` and `name.conf`, directory by directory.
fn configuration(id: &PluginId, dirs: &[PathBuf]) -> Result<String, LaunchError> {
    for dir in dirs {
        for name in [format!("{id}.conf"), format!("{}.conf", id.name())] {
            let path = dir.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => return Ok(text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(LaunchError::Config { path, source }),
            }
        }
    }
    Ok(String::new())
}

// === running ===

fn keep_running(shared: &Arc<Shared>, found: Found) -> (Launched, oneshot::Receiver<()>) {
    let (tried, first) = oneshot::channel();
    let (again, restarts) = mpsc::channel(1);
    let stop = shared.stop.child_token();
    let shared = Arc::clone(shared);
    let program = Arc::new(Program::new(found.id.clone()));
    let supervisor = Supervisor {
        found: found.clone(),
        program: Arc::clone(&program),
        stop: stop.clone(),
        restarts,
    };
    shared.tasks.clone().spawn(async move { supervisor.supervise(&shared, tried).await });
    (Launched { found, program, again, _running: stop.drop_guard() }, first)
}

struct Supervisor {
    found: Found,
    program: Arc<Program>,
    stop: CancellationToken,
    restarts: mpsc::Receiver<Tried>,
}

impl Supervisor {
    async fn supervise(mut self, shared: &Arc<Shared>, tried: Tried) {
        let mut tried = Some(tried);
        let mut attempt = 0;
        loop {
            let begun = Instant::now();
            let mut wanted = self.live(shared, &mut tried).await;
            if wanted.is_none() {
                attempt = if begun.elapsed() >= SETTLED { 0 } else { attempt + 1 };
                let policy = shared.settings.load().policy(&self.found.id);
                let pause = policy.restart.map(|backoff| backoff.pause(attempt));
                self.program.set(match pause {
                    Some(pause) => Phase::BackingOff { until: Instant::now() + pause },
                    None => Phase::Down,
                });
                drop(tried.take());
                wanted = match self.pause(pause).await {
                    Some(wanted) => wanted,
                    None => return,
                };
            }
            if self.stop.is_cancelled() {
                return;
            }
            attempt = if wanted.is_some() { 0 } else { attempt };
            tried = wanted;
            self.program.set(Phase::Starting { pid: 0 });
            info!(plugin = %self.found.id, attempt, "starting plugin again");
        }
    }

    /// One life; whether somebody wants another.
    async fn live(&mut self, shared: &Arc<Shared>, tried: &mut Option<Tried>) -> Option<Tried> {
        let life = self.stop.child_token();
        let mut running =
            std::pin::pin!(run_once(shared, &self.found, &self.program, &life, tried));
        tokio::select! {
            () = &mut running => None,
            Some(wanted) = self.restarts.recv() => {
                life.cancel();
                running.await;
                Some(wanted)
            }
        }
    }

    /// Between two lives; for ever, where it is to stay dead. `None` if there is no other.
    async fn pause(&mut self, pause: Option<Duration>) -> Option<Option<Tried>> {
        let over = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            Some(wanted) = self.restarts.recv() => Some(Some(wanted)),
            () = over => Some(None),
        }
    }
}

impl Backoff {
    /// Before the given attempt; the first is not waited for.
    fn pause(&self, attempt: u32) -> Duration {
        match attempt.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
                self.first.saturating_mul(factor).min(self.most)
            }
        }
    }
}

/// One life of the plugin, from its start to the end of its process.
async fn run_once(
    shared: &Arc<Shared>,
    found: &Found,
    program: &Arc<Program>,
    stop: &CancellationToken,
    tried: &mut Option<Tried>,
) {
    let plugin = &found.id;
    let show_stderr = shared.settings.load().show_stderr;
    let (mut child, socket) = match start(found, show_stderr) {
        Ok(started) => started,
        Err(error) => {
            error!(%plugin, error = whole(&error), "plugin does not start");
            program.failed(whole(&error));
            return shared.not_joined(plugin, whole(&error));
        }
    };
    shared.metrics.started(plugin);
    let pid = child.id().unwrap_or_default();
    program.set(Phase::Starting { pid });
    let readers = program.read(&shared.tasks, &mut child);
    let origin = Origin::Launched { pid };
    let (id, config) = (Some(plugin.clone()), found.config.clone());
    let scope = found.scope.clone();
    let arrival = Arrival { id, config, origin, scope, claimed: Arc::default() };
    let connect = |desk| Trunk::runtime_on(socket, desk);
    let joined = tokio::select! {
        joined = join::join(shared, connect, arrival) => joined,
        () = stop.cancelled() => Err(JoinError::Closed),
    };
    let mut why = match joined {
        Ok(peer) => {
            program.set(Phase::Joined { pid });
            drop(tried.take());
            tokio::select! {
                () = join::stay(shared, Arc::clone(&peer)) => {}
                () = stop.cancelled() => {
                    peer.shutdown(SHUTDOWN).await;
                    shared.leave(&peer);
                }
            }
            peer.gone_because()
        }
        Err(error) => {
            warn!(%plugin, error = whole(&error), "plugin did not join");
            shared.not_joined(plugin, whole(&error));
            format!("it did not join: {}", whole(&error))
        }
    };
    if let Some(status) = end(shared, plugin, child, stop).await {
        why = format!("{why}; its process ended: {status}");
    }
    program.failed(why);
    readers.finish().await;
}

/// Ends the process of a plugin that we have no use for. Returns the status of one that ended
/// by itself.
async fn end(
    shared: &Shared,
    plugin: &PluginId,
    mut child: Child,
    stop: &CancellationToken,
) -> Option<String> {
    let itself = match stop.is_cancelled() {
        true => None,
        false => timeout(LAST_BREATH, child.wait()).await.ok().and_then(Result::ok),
    };
    if let Some(status) = itself {
        warn!(%plugin, %status, "the plugin's process has ended");
        let status = status.to_string();
        shared.feed.tell(|| Notice::Ended { plugin: plugin.to_string(), status: status.clone() });
        return Some(status);
    }
    // Also what has ended has to be waited for.
    if let Err(error) = child.kill().await {
        warn!(%plugin, %error, "end the plugin's process");
    }
    None
}

impl Shared {
    fn not_joined(&self, plugin: &PluginId, why: String) {
        self.feed.tell(|| Notice::NotJoined { plugin: plugin.to_string(), why });
    }
}

fn start(found: &Found, show_stderr: bool) -> Result<(Child, Socket), LaunchError> {
    let fail = |source| LaunchError::Start { path: found.path.clone(), source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(fail)?;
    let ours = Socket::new(ours).map_err(fail)?;
    let mut command = std::process::Command::new(&found.path);
    command
        .env_clear()
        .env(defaults::NAME_ENV, found.id.name())
        .env(defaults::INDEX_ENV, found.id.index())
        .env(defaults::SOCKET_ENV, SOCKET_FD.to_string())
        .stdin(Stdio::null())
        .stdout(if show_stderr { Stdio::null() } else { Stdio::piped() })
        .stderr(if show_stderr { Stdio::inherit() } else { Stdio::piped() });
    let mapping = FdMapping { parent_fd: theirs.into(), child_fd: SOCKET_FD };
    command
        .fd_mappings(vec![mapping])
        .map_err(|_| fail(io::Error::other("descriptors collide")))?;
    let child = Command::from(command).kill_on_drop(true).spawn().map_err(fail)?;
    Ok((child, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_second_attempt_on() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(5) };
        let pauses: Vec<_> = (0..6).map(|attempt| backoff.pause(attempt).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 5, 5]);
        assert_eq!(backoff.pause(u32::MAX).as_secs(), 5);
    }

    #[test]
    fn a_bad_file_costs_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        let conf = tempfile::tempdir().unwrap();
        let put = |name: &str, mode: u32, content: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        put("10-good", 0o755, b"#!/bin/sh\n");
        put("20-other", 0o700, b"#!/bin/sh\n");
        put("30-plain", 0o644, b"text");
        put("badname", 0o755, b"#!/bin/sh\n");
        put("5-short", 0o755, b"#!/bin/sh\n");
        put("40-wasm", 0o755, &WASM);
        put("50-config", 0o755, b"#!/bin/sh\n");
        fs::create_dir(dir.path().join("60-dir")).unwrap();
        fs::write(conf.path().join("10-good.conf"), "long").unwrap();
        fs::write(conf.path().join("good.conf"), "short").unwrap();
        fs::write(conf.path().join("other.conf"), "other").unwrap();
        fs::create_dir(conf.path().join("config.conf")).unwrap();
        let settings = Settings {
            plugin_dirs: vec![dir.path().to_owned(), dir.path().join("absent")],
            config_dirs: vec![conf.path().to_owned()],
            ..Settings::default()
        };
        let (mut found, errors) = discover_all(&settings);
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let got: Vec<_> = found.iter().map(|f| (f.id.to_string(), f.config.as_str())).collect();
        assert_eq!(got, [("10-good".to_owned(), "long"), ("20-other".to_owned(), "other")]);
        let mut kinds: Vec<_> = errors
            .iter()
            .map(|error| match error {
                LaunchError::Name { .. } => "name",
                LaunchError::Wasm(_) => "wasm",
                LaunchError::Config { .. } => "config",
                _ => "other",
            })
            .collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["config", "name", "name", "wasm"]);
        assert_eq!(discover_all(&Settings::off()).0, []);
    }
}
