//! External plugins: sockets they connect to.
//!
//! The directory of a socket is made for its owner alone: that is the only access control
//! the protocol has. Every connection is taken in by a task of its own.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use nri_wire::{Socket, Trunk};
use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use super::{
    Shared, StartError,
    join::{self, Arrival, JoinError},
    status::Absence,
};
use crate::{
    peer::{Origin, Scope},
    settings::Settings,
    watch::{Notice, whole},
};

/// Connections of one socket that have not registered yet. One more is closed at once.
const MAX_SILENT: usize = 256;

/// An open socket; dropping it closes it. Plugins that came by it stay.
pub(super) struct Listener {
    path: PathBuf,
    /// Of the file, which somebody may have replaced.
    inode: u64,
    scope: Scope,
    _accepting: DropGuard,
}

/// Opens and closes sockets so that those of the settings are open. Opens first: a socket
/// that cannot be opened changes nothing.
pub(super) fn follow(shared: &Arc<Shared>, settings: &Settings) -> Result<(), StartError> {
    let wanted = wanted(settings);
    let mut services = shared.services.lock();
    let mut opened = Vec::new();
    for (path, scope) in &wanted {
        let open = services.listeners.get(path).is_some_and(|have| have.scope == *scope);
        if !open {
            // Ours already, for other plugins: it may be replaced.
            let ours = services.listeners.contains_key(path);
            let bound = if ours { rebind(path) } else { bind(path) };
            let bound =
                bound.map_err(|source| StartError::Listen { path: path.clone(), source })?;
            opened.push((path.clone(), scope.clone(), bound));
        }
    }
    services
        .listeners
        .retain(|path, have| wanted.iter().any(|(p, s)| p == path && *s == have.scope));
    for (path, scope, (listener, inode)) in opened {
        let stop = shared.stop.child_token();
        let accepting = accept_all(Arc::clone(shared), listener, scope.clone(), stop.clone());
        shared.tasks.spawn(accepting);
        let accepting = stop.drop_guard();
        let listener = Listener { path: path.clone(), inode, scope, _accepting: accepting };
        services.listeners.insert(path, listener);
    }
    Ok(())
}

fn wanted(settings: &Settings) -> Vec<(PathBuf, Scope)> {
    if !settings.enabled {
        return Vec::new();
    }
    let open = settings.socket.iter().map(|path| (path.clone(), Scope::Open));
    let own = settings
        .domains
        .iter()
        .filter_map(|(name, domain)| Some((domain.socket.clone()?, Scope::Domain(name.clone()))));
    open.chain(own).collect()
}

/// Replaces a socket that nobody listens on, and no other file.
fn bind(path: &Path) -> io::Result<(UnixListener, u64)> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => clear(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    open(path)
}

/// Takes away what a runtime that was killed has left. Any other answer than a refusal, a full
/// queue for one, means that somebody is there.
fn clear(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => {
            let why = "another runtime serves it: stop that one, or choose another socket";
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
    }
}

fn rebind(path: &Path) -> io::Result<(UnixListener, u64)> {
    fs::remove_file(path)?;
    open(path)
}

fn open(path: &Path) -> io::Result<(UnixListener, u64)> {
    let listener = UnixListener::bind(path)?;
    Ok((listener, fs::symlink_metadata(path)?.ino()))
}

async fn accept_all(
    shared: Arc<Shared>,
    listener: UnixListener,
    scope: Scope,
    stop: CancellationToken,
) {
    let silent = Arc::new(Semaphore::new(MAX_SILENT));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, or a client that left too early: it may be better soon.
                warn!(%error, "accept a plugin");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&silent).try_acquire_owned() else {
            warn!("too many connections that have not registered a plugin");
            continue;
        };
        let (shared, scope) = (Arc::clone(&shared), scope.clone());
        shared.tasks.clone().spawn(async move {
            let origin = origin(&stream);
            let claimed = Arc::new(OnceLock::new());
            let arrival = Arrival {
                id: None,
                config: String::new(),
                origin: origin.clone(),
                scope,
                claimed: Arc::clone(&claimed),
            };
            let joined = take_in(&shared, stream, arrival).await;
            drop(permit);
            match joined {
                Ok(peer) => join::stay(&shared, peer).await,
                Err(error) => shared.not_taken_in(origin, claimed.get(), &error),
            }
        });
    }
}

fn origin(stream: &UnixStream) -> Origin {
    match stream.peer_cred() {
        Ok(cred) => {
            let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
            Origin::External { pid, uid: cred.uid() }
        }
        Err(error) => {
            debug!(%error, "ask who connected");
            Origin::External { pid: None, uid: u32::MAX }
        }
    }
}

impl Shared {
    /// Tells that a connection did not become a plugin; one that was just closed is no news.
    fn not_taken_in(&self, origin: Origin, claimed: Option<&String>, error: &JoinError) {
        let plugin = claimed.cloned().unwrap_or_else(|| origin.to_string());
        warn!(plugin, %origin, error = whole(error), "plugin did not join");
        if !matches!(error, JoinError::Closed) {
            let (reason, now) = (whole(error), Instant::now());
            self.absentees.lock().note(&plugin, origin, Absence::Rejected, &reason, now);
        }
        self.feed.tell(|| Notice::NotJoined { plugin, why: whole(error) });
    }
}

async fn take_in(
    shared: &Arc<Shared>,
    stream: UnixStream,
    arrival: Arrival,
) -> Result<Arc<crate::peer::Peer>, JoinError> {
    let socket = Socket::try_from(stream).map_err(JoinError::Socket)?;
    let connect = |desk| Trunk::runtime_on(socket, desk);
    tokio::select! {
        joined = join::join(shared, connect, arrival) => joined,
        () = shared.stop.cancelled() => Err(JoinError::Closed),
    }
}

/// The program a process runs, if it still runs when we have looked.
pub(super) fn executable(pid: u32) -> Option<PathBuf> {
    let raw = i32::try_from(pid).ok()?;
    let process = pidfd_open(Pid::from_raw(raw)?, PidfdFlags::empty()).ok()?;
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let ready = rustix::event::poll(&mut ended, Some(&rustix::event::Timespec::default())).ok()?;
    (ready == 0).then_some(program)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|now| now.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
