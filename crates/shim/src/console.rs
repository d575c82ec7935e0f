//! Terminals: how we get one from the runtime, and how an exec's is served.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest, unix::AsyncFd},
    net::unix::pipe,
};

use crate::{
    error::{Error, Result},
    serve::short_path,
};

/// Where the runtime sends the terminal it made.
#[derive(Debug)]
pub(crate) struct ConsoleSocket {
    /// For the runtime. The full path may be too long for a socket, and a name in the bundle is
    /// none to youki, which connects from elsewhere.
    pub(crate) address: PathBuf,
    _dir: Option<File>,
    path: PathBuf,
    listener: UnixListener,
}

impl ConsoleSocket {
    pub(crate) fn bind(bundle: &Path, name: String) -> Result<Self> {
        let path = bundle.join(&name);
        let _ = std::fs::remove_file(&path);
        let (short, dir) = short_path(&path)?;
        let listener = UnixListener::bind(short).map_err(Error::on("bind", &path))?;
        listener.set_nonblocking(true).map_err(Error::on("bind", &path))?;
        let address = match &dir {
            Some(dir) => {
                let ours = format!("/proc/{}/fd/{}", std::process::id(), dir.as_raw_fd());
                Path::new(&ours).join(name)
            }
            None => path.clone(),
        };
        Ok(Self { address, _dir: dir, path, listener })
    }

    /// To be called when the runtime has ended well: what it sent is here by then.
    pub(crate) fn receive(self) -> Result<OwnedFd> {
        const DOING: &str = "receive the terminal";
        let (stream, _) = self.listener.accept().map_err(Error::io(DOING))?;
        stream.set_nonblocking(true).map_err(Error::io(DOING))?;
        let (_, mut fds) = sys::fd::recv_fds(&stream, &mut [0; 4096]).map_err(Error::io(DOING))?;
        let none = || Error::io(DOING)(io::Error::other("the runtime sent none"));
        let master = fds.pop().ok_or_else(none)?;
        let flags = fcntl_getfl(&master).map_err(Error::io(DOING))?;
        fcntl_setfl(&master, flags | OFlags::NONBLOCK).map_err(Error::io(DOING))?;
        Ok(master)
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn copy_of(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(Error::io(format!("copy descriptor {}", fd.as_raw_fd())))
}

#[expect(deprecated, reason = "its unsafe twin is for descriptors that others may close")]
fn watch(master: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(master, Interest::READABLE | Interest::WRITABLE)
}

/// What the terminal shows goes to the pipe until nobody has the terminal any more. A
/// client that is gone does not stop the process: its output is dropped.
pub(crate) async fn show(master: OwnedFd, stdout: Option<File>) -> io::Result<()> {
    let master = watch(master)?;
    let mut stdout = stdout.map(pipe::Sender::from_file).transpose()?;
    let mut buffer = vec![0; 4096];
    loop {
        let read =
            master.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer[..])?));
        let len = match read.await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(len) => len,
        };
        if let Some(pipe) = &mut stdout
            && pipe.write_all(&buffer[..len]).await.is_err()
        {
            stdout = None;
        }
    }
}

/// What the client types goes to the terminal until the pipe ends.
pub(crate) async fn type_in(master: OwnedFd, stdin: File) -> io::Result<()> {
    let master = watch(master)?;
    let mut stdin = pipe::Receiver::from_file(stdin)?;
    let mut buffer = vec![0; 4096];
    loop {
        let len = stdin.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..len];
        while !rest.is_empty() {
            let write = master.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, rest)?));
            rest = &rest[write.await?..];
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixStream};

    use super::*;

    #[test]
    fn a_terminal_arrives_and_the_socket_goes() {
        let dir = tempfile::tempdir().unwrap();
        let socket = ConsoleSocket::bind(dir.path(), "c".to_owned()).unwrap();
        let runtime = UnixStream::connect(dir.path().join("c")).unwrap();
        let pty = sys::pty::Pty::open().unwrap();
        sys::fd::send_fds(&runtime, b"/dev/ptmx", &[pty.master.as_fd()]).unwrap();
        let master = socket.receive().unwrap();
        assert!(fcntl_getfl(&master).unwrap().contains(OFlags::NONBLOCK));
        assert!(!dir.path().join("c").exists());
    }

    #[test]
    fn a_runtime_that_sends_none_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let socket = ConsoleSocket::bind(dir.path(), "c".to_owned()).unwrap();
        assert!(socket.receive().is_err());
        let socket = ConsoleSocket::bind(dir.path(), "c".to_owned()).unwrap();
        drop(UnixStream::connect(dir.path().join("c")).unwrap());
        assert!(socket.receive().unwrap_err().to_string().contains("sent none"));
    }

    #[tokio::test]
    async fn typing_and_showing_pass_through() {
        use std::io::Write;
        let pty = sys::pty::Pty::open().unwrap();
        fcntl_setfl(&pty.master, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        let (stdin, mut typed) = std::io::pipe().unwrap();
        let (shown, stdout) = std::io::pipe().unwrap();
        for fd in [stdin.as_fd(), stdout.as_fd(), shown.as_fd()] {
            let flags = fcntl_getfl(fd).unwrap();
            fcntl_setfl(fd, flags | OFlags::NONBLOCK).unwrap();
        }
        typed.write_all(b"hello\n").unwrap();
        drop(typed);
        let master = copy_of(&pty.master).unwrap();
        type_in(master, OwnedFd::from(stdin).into()).await.unwrap();
        // The echo of what was typed; then nobody has the terminal any more.
        let mut text = vec![0; 7];
        let read = async {
            let mut shown = pipe::Receiver::from_file(OwnedFd::from(shown).into()).unwrap();
            shown.read_exact(&mut text).await.unwrap();
            drop(pty.terminal);
            shown.read(&mut [0]).await.unwrap()
        };
        let showing = show(pty.master, Some(OwnedFd::from(stdout).into()));
        let (ended, after) = tokio::join!(showing, read);
        ended.unwrap();
        assert_eq!((text.as_slice(), after), (&b"hello\r\n"[..], 0));
    }

    #[test]
    fn the_address_holds_outside_of_the_bundle_however_long_its_path() {
        let dir = tempfile::tempdir().unwrap();
        for bundle in ["b".to_owned(), "b".repeat(120)] {
            let bundle = dir.path().join(bundle);
            std::fs::create_dir(&bundle).unwrap();
            let socket = ConsoleSocket::bind(&bundle, "tty.sock".to_owned()).unwrap();
            assert!(socket.address.is_absolute());
            // As youki does it, through a link that lies elsewhere.
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(&socket.address, &link).unwrap();
            std::os::unix::net::UnixStream::connect(&link).unwrap();
            std::fs::remove_file(link).unwrap();
        }
    }
}
