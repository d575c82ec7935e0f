//! A Unix socket as a trunk wants it.
//!
//! tokio's own wakes its task also whenever the peer has taken something: once per message sent,
//! for nothing. This one asks to be told of room only when there was none. And it can be made to
//! look for what has come without having been told, by who would rather look than sleep.

use std::{
    io::{self, IoSlice},
    mem,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use rustix::{io::Errno, net::Shutdown};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::unix::pipe,
};

/// One end of a connection between two processes of a host.
#[derive(Debug)]
pub struct Socket {
    io: Reading,
    /// The same socket, registered for writing, while there is no room in it.
    room: Option<pipe::Sender>,
    look: Look,
}

#[derive(Debug)]
enum Reading {
    /// We are told of what comes. The type for pipes is the one of tokio's that is registered for
    /// reading alone; reading is the same.
    Told(pipe::Receiver),
    /// Somebody looks. To be told as well would wake a thread for nothing.
    Looked(OwnedFd),
    /// Between the two, and for ever if that fails.
    Lost,
}

/// Makes a [`Socket`] look for bytes at its next read, and not wait to be told of them if there
/// are none: who asks has to have it read once more when nobody looks any longer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look(Arc<AtomicBool>);

impl Look {
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// What one look takes in: most answers, and little to be made ready for nothing.
const LOOK: usize = 2048;

impl Reading {
    /// From here on nobody is told.
    fn looked(&mut self) -> io::Result<&OwnedFd> {
        if let Self::Told(_) = self {
            let Self::Told(io) = mem::replace(self, Self::Lost) else { return Err(lost()) };
            *self = Self::Looked(io.into_nonblocking_fd()?);
        }
        match self {
            Self::Looked(fd) => Ok(fd),
            Self::Told(_) | Self::Lost => Err(lost()),
        }
    }

    fn told(&mut self) -> io::Result<&mut pipe::Receiver> {
        if let Self::Looked(_) = self {
            let Self::Looked(fd) = mem::replace(self, Self::Lost) else { return Err(lost()) };
            *self = Self::Told(pipe::Receiver::from_owned_fd_unchecked(fd)?);
        }
        match self {
            Self::Told(io) => Ok(io),
            Self::Looked(_) | Self::Lost => Err(lost()),
        }
    }

    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Self::Told(io) => Ok(io.as_fd()),
            Self::Looked(fd) => Ok(fd.as_fd()),
            Self::Lost => Err(lost()),
        }
    }
}

fn lost() -> io::Error {
    io::Error::other("the socket could not be registered")
}

impl Socket {
    /// Must be called inside a tokio runtime with I/O.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let io = pipe::Receiver::from_owned_fd_unchecked(OwnedFd::from(socket))?;
        Ok(Self { io: Reading::Told(io), room: None, look: Look::default() })
    }

    /// Ends it in both directions, also for those who hold another descriptor of it.
    pub fn end(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.io.fd()?, Shutdown::Both)?)
    }

    pub(crate) fn look(&self) -> Look {
        self.look.clone()
    }

    /// Writes at once by `write`; where there is no room, by `write_later` when there is.
    fn poll_send(
        &mut self,
        write: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<usize>,
        write_later: impl FnOnce(Pin<&mut pipe::Sender>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        while self.room.is_none() {
            match write(self.io.fd()?) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let again = self.io.fd()?.try_clone_to_owned()?;
                    self.room = Some(pipe::Sender::from_owned_fd_unchecked(again)?);
                }
                written => return Poll::Ready(Ok(written?)),
            }
        }
        match &mut self.room {
            Some(room) => write_later(Pin::new(room)),
            None => Poll::Pending,
        }
    }
}

impl TryFrom<tokio::net::UnixStream> for Socket {
    type Error = io::Error;

    fn try_from(socket: tokio::net::UnixStream) -> io::Result<Self> {
        Self::new(socket.into_std()?)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.look.is_asked() {
            let room = buf.remaining().min(LOOK);
            return match rustix::io::read(self.io.looked()?, buf.initialize_unfilled_to(room)) {
                Err(Errno::AGAIN | Errno::INTR) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error.into())),
                Ok(read) => {
                    buf.advance(read);
                    Poll::Ready(Ok(()))
                }
            };
        }
        Pin::new(self.io.told()?).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(|fd| rustix::io::write(fd, bytes), |room| room.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(
            |fd| rustix::io::writev(fd, bytes),
            |room| room.poll_write_vectored(cx, bytes),
        )
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// All that there was has found room.
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.room = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(self.io.fd()?, Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (Socket, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Socket::new(near).unwrap(), far)
    }

    #[tokio::test]
    async fn bytes_pass_in_both_directions_and_the_end_is_seen() {
        let (mut near, far) = pair();
        let mut far = Socket::new(far).unwrap();
        near.write_all(b"there").await.unwrap();
        let mut got = [0; 5];
        far.read_exact(&mut got).await.unwrap();
        far.write_all(b"and back").await.unwrap();
        drop(far);
        let mut back = Vec::new();
        near.read_to_end(&mut back).await.unwrap();
        assert_eq!((&got, &back[..]), (b"there", &b"and back"[..]));
        assert!(near.write_all(b"x").await.is_err());
    }

    #[tokio::test]
    async fn more_than_the_socket_holds_waits_for_the_reader() {
        let (mut near, far) = pair();
        let mut far = Socket::new(far).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut got = Vec::new();
        let send = async {
            near.write_all(&sent).await.unwrap();
            near.flush().await.unwrap();
            assert!(near.room.is_none());
            near.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, far.read_to_end(&mut got));
        read.unwrap();
        assert!(got == sent);
    }

    #[tokio::test]
    async fn who_asks_sees_what_nobody_told_of() {
        let (mut near, mut far) = pair();
        let look = near.look();
        let mut buf = [0; 16];
        assert!(near.read(&mut buf).now_or_never().is_none());
        Write::write_all(&mut far, b"now").unwrap();
        // Nothing ran that could have been told by the kernel.
        assert!(near.read(&mut buf).now_or_never().is_none());
        look.ask();
        assert_eq!(near.read(&mut buf).now_or_never().unwrap().unwrap(), 3);
        look.ask();
        assert!(near.read(&mut buf).now_or_never().is_none());
        assert!(near.read(&mut buf).now_or_never().is_none(), "it waits as before");
        Write::write_all(&mut far, b"later").unwrap();
        assert_eq!(near.read(&mut buf).await.unwrap(), 5);
    }
}
