//! Where connections come from.

use std::{
    io,
    os::fd::RawFd,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use nri_wire::Socket;
use parking_lot::Mutex;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};

/// Any byte stream.
pub(super) trait Io: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Io for T {}
pub(super) type BoxIo = Pin<Box<dyn Io>>;

type Dial = dyn Fn() -> BoxFuture<'static, io::Result<BoxIo>> + Send + Sync;

/// Some sources are good for one connection, the others for any number.
pub(super) enum Source {
    Socket(PathBuf),
    Dialer(Arc<Dial>),
    Given(Mutex<Option<BoxIo>>),
    /// The number of a descriptor that was inherited, as the environment writes it.
    Inherited(String),
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error("connect to {path}")]
    Socket { path: String, source: io::Error },
    #[error("dial the runtime")]
    Dial(#[source] io::Error),
    #[error("take over descriptor {fd:?} of the environment")]
    Inherited { fd: String, source: io::Error },
    #[error("the connection was used already")]
    Used,
}

// === impl Source ===

impl Source {
    pub(super) fn dialer<F, Fut, T>(dial: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<T>> + Send + 'static,
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        Self::Dialer(Arc::new(move || {
            let dialing = dial();
            Box::pin(async move { Ok(Box::pin(dialing.await?) as BoxIo) })
        }))
    }

    pub(super) fn given<T: AsyncRead + AsyncWrite + Send + 'static>(io: T) -> Self {
        Self::Given(Mutex::new(Some(Box::pin(io))))
    }

    /// Whether there is no second connection.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Self::Given(_) | Self::Inherited(_))
    }

    pub(super) async fn connect(&self) -> Result<BoxIo, ConnectError> {
        match self {
            Self::Socket(path) => {
                match UnixStream::connect(path).await.and_then(Socket::try_from) {
                    Ok(socket) => Ok(Box::pin(socket)),
                    Err(source) => {
                        Err(ConnectError::Socket { path: path.display().to_string(), source })
                    }
                }
            }
            Self::Dialer(dial) => dial().await.map_err(ConnectError::Dial),
            Self::Given(io) => io.lock().take().ok_or(ConnectError::Used),
            Self::Inherited(fd) => match Inherited::open(fd) {
                Ok(stream) => Ok(Box::pin(stream)),
                Err(source) => Err(ConnectError::Inherited { fd: fd.clone(), source }),
            },
        }
    }
}

// === impl Inherited ===

/// A socket that was open when the process began.
///
/// Its number says nothing about who owns it, so we do not take it: we copy it, and shut the
/// socket down at the end, since closing the copy alone would not reach the peer.
struct Inherited(Socket);

impl Inherited {
    fn open(fd: &str) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let fd: RawFd = fd.parse().ok().filter(|fd| *fd >= 0).ok_or_else(invalid)?;
        let this_process = pidfd_open(getpid(), PidfdFlags::empty())?;
        let copy = pidfd_getfd(this_process, fd, PidfdGetfdFlags::empty())?;
        Ok(Self(Socket::new(copy.into())?))
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        // Fails only where the peer has gone.
        let _ = self.0.end();
    }
}

impl AsyncRead for Inherited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Inherited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.0).poll_shutdown(cx))?;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn an_inherited_socket_is_used_and_shut_down() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut theirs = UnixStream::from_std(theirs).unwrap();
        let source = Source::Inherited(ours.as_raw_fd().to_string());
        let mut io = source.connect().await.unwrap();
        io.write_all(b"ping").await.unwrap();
        let mut four = [0; 4];
        theirs.read_exact(&mut four).await.unwrap();
        assert_eq!(&four, b"ping");
        drop(io);
        // `ours` is still open, as descriptor 3 of a launched plugin would be.
        assert_eq!(theirs.read(&mut four).await.unwrap(), 0, "the peer sees the end");
        drop(ours);
    }

    #[tokio::test]
    async fn what_is_no_descriptor_is_refused() {
        for fd in ["x", "-1", "99999"] {
            let error = Source::Inherited(fd.into()).connect().await.err().unwrap();
            assert!(matches!(error, ConnectError::Inherited { .. }), "{error}");
        }
    }

    #[tokio::test]
    async fn a_given_connection_is_good_for_one() {
        let source = Source::given(tokio::io::duplex(16).0);
        assert!(source.is_single() && source.connect().await.is_ok());
        assert!(matches!(source.connect().await, Err(ConnectError::Used)));
    }
}
