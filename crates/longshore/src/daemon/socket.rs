//! Unix sockets that belong to this daemon alone.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt},
        net::{UnixListener as StdListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, fchmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use tokio::net::UnixListener;

/// More waiting connections than a node has clients.
const BACKLOG: i32 = 128;

#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error(
        "{} is served by another process: stop it, or give this daemon another socket",
        .0.display()
    )]
    Live(PathBuf),
    #[error("{} exists and is no socket: move it away, or choose another path", .0.display())]
    NotASocket(PathBuf),
    #[error("bind socket {}: {source}", path.display())]
    Bind { path: PathBuf, source: io::Error },
}

/// A bound path; dropping it removes the file, if it is still ours.
#[derive(Debug)]
pub(super) struct SocketPath {
    path: PathBuf,
    inode: u64,
}

/// Binds `path` with mode 0600. Replaces a socket nobody listens on, refuses a live one.
pub(super) fn bind_owned(path: &Path) -> Result<(UnixListener, SocketPath), SocketError> {
    clear(path)?;
    let failed = |source: io::Error| SocketError::Bind { path: path.to_owned(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    let listener = bind_private(path).map_err(failed)?;
    let inode = inode(path).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    Ok((listener, SocketPath { path: path.to_owned(), inode }))
}

fn clear(path: &Path) -> Result<(), SocketError> {
    let failed = |source: io::Error| SocketError::Bind { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        // Any other answer, a full queue for one, means that somebody is there.
        _ => Err(SocketError::Live(path.to_owned())),
    }
}

/// The mode is set before the name exists, so that nobody can connect in between.
fn bind_private(path: &Path) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

fn inode(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::symlink_metadata(path)?.ino())
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Somebody may have put another socket in its place by hand.
        if inode(&self.path).is_ok_and(|now| now == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn a_socket_is_private_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/a.sock");
        let owned = bind_owned(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        UnixStream::connect(&path).unwrap();
        drop(owned);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the file behind");
        let owned = bind_owned(&path).unwrap();
        let error = bind_owned(&path).unwrap_err();
        assert!(matches!(error, SocketError::Live(_)), "{error}");
        drop(owned);
    }

    #[tokio::test]
    async fn a_file_of_another_kind_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        fs::write(&path, b"precious").unwrap();
        assert!(matches!(bind_owned(&path).unwrap_err(), SocketError::NotASocket(_)));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_socket_put_in_its_place_by_somebody_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let owned = bind_owned(&path).unwrap();
        fs::remove_file(&path).unwrap();
        // Kept bound, so that the inode number is not given out again at once.
        let _other = StdListener::bind(&path).unwrap();
        drop(owned);
        assert!(path.exists());
    }
}
