//! Finding a shim that runs.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use api_shim::{
    start::{Bootstrap, Files},
    task::v3::{ConnectRequest, ConnectResponse},
};
use sys::pidfd::Pidfd;
use tokio::net::UnixStream;

use crate::{
    Shim, ShimError, ShimInfo,
    bury::running,
    own::Io,
    shim::{Side, garbled},
    task::Task,
};

const CALL: &str = "Connect";

/// Connects to the shim of the pod whose directory this is.
/// [`ShimError::NotFound`]: none was ever ready there; [`ShimError::Gone`]: it has ended.
///
/// Cancel safe.
pub async fn connect(dir: &Path, limit: Duration) -> Result<Shim, ShimError> {
    let bootstrap = read_bootstrap(dir)?;
    let timeout = ShimError::Timeout { call: CALL, limit };
    tokio::time::timeout(limit, connect_to(dir, bootstrap, limit)).await.unwrap_or(Err(timeout))
}

/// A few hundred bytes on a tmpfs: not worth a blocking thread.
pub(crate) fn read_bootstrap(dir: &Path) -> Result<Bootstrap, ShimError> {
    let path = Files::of(dir).bootstrap;
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let message = format!("no shim in {}", dir.display());
            return Err(ShimError::NotFound { call: CALL, message });
        }
        Err(e) => return Err(ShimError::io(format!("read {}", path.display()))(e)),
    };
    serde_json::from_slice(&bytes).map_err(ShimError::io(format!("read {}", path.display())))
}

pub(crate) async fn connect_to(
    dir: &Path,
    bootstrap: Bootstrap,
    limit: Duration,
) -> Result<Shim, ShimError> {
    let stream = open(CALL, &Files::of(dir).socket).await?;
    // The kernel names the process that listens. Its id stays its own until it ends, and
    // it answers us below: so the descriptor we open in between is of that process.
    let peer = sys::fd::peer(&stream).map_err(ShimError::io("ask who listens"))?;
    let gone = |e: sys::Error| ShimError::Gone { call: CALL, source: Some(e.into()) };
    let pidfd: OwnedFd = Pidfd::open(peer.pid).map_err(gone)?.into();
    let client = ttrpc::Client::new(stream);
    let task = Task::new(client.clone(), bootstrap.version);
    let task = task.ok_or_else(|| garbled("start", "an unknown version of the Task API"))?;
    let answer: ConnectResponse = task.call(CALL, limit, &ConnectRequest::default()).await?;
    if (answer.shim_pid, bootstrap.pid) != (peer.pid, peer.pid) {
        let said = format!(
            "process {} listens, but the shim is {} and was to be {}",
            peer.pid, answer.shim_pid, bootstrap.pid
        );
        let source = io::Error::new(io::ErrorKind::InvalidData, said);
        return Err(ShimError::Io { doing: format!("connect to {}", dir.display()), source });
    }
    let mut keepers = vec![pidfd];
    keepers.extend(unwatched_first(&bootstrap)?.map(OwnedFd::from));
    let info = ShimInfo {
        pid: bootstrap.pid,
        pod_pid: bootstrap.pod_pid,
        address: bootstrap.address,
        namespaces: bootstrap.namespaces,
    };
    Shim::new(dir, info, task, Side::Own(Io::new(client)), keepers)
}

/// Returns the first process of a shared PID namespace if the pod's shim is of a version that does
/// not watch it, and so does not end with it: those did not pin the namespace either.
fn unwatched_first(bootstrap: &Bootstrap) -> Result<Option<Pidfd>, ShimError> {
    let Some(pid) = bootstrap.pod_pid.filter(|_| bootstrap.namespaces.pid_pin.is_none()) else {
        return Ok(None);
    };
    let ended = || {
        let source = io::Error::new(io::ErrorKind::NotFound, "the pod's first process has ended");
        ShimError::Gone { call: CALL, source: Some(source) }
    };
    running(pid, bootstrap.pod_start_time).ok_or_else(ended).map(Some)
}

pub(crate) async fn open(call: &'static str, socket: &Path) -> Result<UnixStream, ShimError> {
    let (path, _dir) = reachable(socket).map_err(|e| gone(call, e))?;
    UnixStream::connect(path).await.map_err(|e| gone(call, e))
}

fn gone(call: &'static str, source: io::Error) -> ShimError {
    ShimError::Gone { call, source: Some(source) }
}

/// The same socket under a name short enough for a socket address; good while the
/// directory is held open.
pub(crate) fn reachable(socket: &Path) -> io::Result<(PathBuf, Option<File>)> {
    const MAX: usize = 107;
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if socket.as_os_str().len() <= MAX {
        return Ok((socket.to_owned(), None));
    }
    let dir = File::open(dir)?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    Ok((short, Some(dir)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_version_wrote_is_understood() {
        let written = r#"{"version": 3, "address": "unix:///s", "protocol": "ttrpc", "pid": 7,
            "pod_pid": 8, "pod_start_time": 9, "namespaces": {"ipc": "/i", "pid": true},
            "runtime": {"binary": "/runc", "root": "/r"}}"#;
        let bootstrap: Bootstrap = serde_json::from_str(written).unwrap();
        assert_eq!((bootstrap.pod_pid, bootstrap.namespaces.pid), (Some(8), true));
        assert_eq!(bootstrap.namespaces.pid_pin, None);
        assert_eq!(bootstrap.pid1, crate::FirstProcess::default());
    }

    #[tokio::test]
    async fn an_empty_directory_has_no_shim() {
        let dir = tempfile::tempdir().unwrap();
        let error = connect(dir.path(), Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(error, ShimError::NotFound { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn long_socket_paths_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let socket = deep.join("s");
        let (short, _dir) = reachable(&socket).unwrap();
        let listener = tokio::net::UnixListener::bind(short).unwrap();
        let (connected, accepted) = tokio::join!(open(CALL, &socket), listener.accept());
        connected.unwrap();
        accepted.unwrap();
    }

    #[tokio::test]
    async fn a_socket_nobody_listens_on_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = open(CALL, &socket).await.unwrap_err();
        assert!(matches!(error, ShimError::Gone { .. }), "{error:?}");
    }
}
