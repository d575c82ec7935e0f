//! The stdio of an exec: named pipes, one end ours, the other the process's.
//!
//! The shim opens the names and hands the descriptors to the process, so that nothing is
//! copied on the way. A pipe without a writer reads as ended, also before the first one:
//! so the streams are given out only when the process runs.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::{
    io::AsyncWrite,
    net::unix::pipe::{OpenOptions, Receiver, Sender},
    sync::oneshot,
};

use crate::ShimError;

/// Names made for one exec; dropping it removes them, which does not touch open ends.
#[derive(Debug)]
pub struct ExecFifos {
    pub stdin: Option<PathBuf>,
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
    input: Option<Sender>,
    output: Option<Receiver>,
    error: Option<Receiver>,
}

/// Our ends. Reading ends when the last process that has the stream does; dropping `stdin`
/// ends the input of the process.
#[derive(Debug)]
pub struct ExecStreams {
    pub stdin: Option<ExecInput>,
    pub stdout: Option<Receiver>,
    pub stderr: Option<Receiver>,
}

/// The input of an exec; dropping it ends it.
#[derive(Debug)]
pub struct ExecInput {
    pipe: Sender,
    /// Its drop tells a shim that holds the pipe open itself.
    _ended: Option<oneshot::Sender<()>>,
}

impl AsyncWrite for ExecInput {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

impl ExecFifos {
    /// Makes the wanted pipes in `dir`, whose names begin with `name`, and opens our ends.
    /// Must be called inside a tokio runtime.
    pub fn create(
        dir: &Path,
        name: &str,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    ) -> Result<Self, ShimError> {
        let mut fifos = Self {
            stdin: None,
            stdout: None,
            stderr: None,
            input: None,
            output: None,
            error: None,
        };
        let path = |suffix: &str| dir.join(format!("{name}.{suffix}"));
        if stdin {
            // Read-write: it opens before there is a reader, and keeps the pipe from
            // looking ended.
            let path = fifos.stdin.insert(make(path("in"))?);
            let opened = OpenOptions::new().read_write(true).open_sender(&path);
            fifos.input = Some(opened.map_err(opening(path))?);
        }
        if stdout {
            let path = fifos.stdout.insert(make(path("out"))?);
            fifos.output = Some(OpenOptions::new().open_receiver(&path).map_err(opening(path))?);
        }
        if stderr {
            let path = fifos.stderr.insert(make(path("err"))?);
            fifos.error = Some(OpenOptions::new().open_receiver(&path).map_err(opening(path))?);
        }
        Ok(fifos)
    }

    /// For a shim that hands the pipes themselves to the process, which has been started.
    pub(crate) fn into_streams(mut self) -> Result<ExecStreams, ShimError> {
        let stdin = match (&self.stdin, self.input.take()) {
            // An end that only writes learns when the last reader is gone. Until it is open
            // the other one stays, lest the process see the end of its input.
            (Some(path), Some(_other)) => {
                let pipe = OpenOptions::new().open_sender(path).map_err(opening(path))?;
                Some(ExecInput { pipe, _ended: None })
            }
            _ => None,
        };
        Ok(ExecStreams { stdin, stdout: self.output.take(), stderr: self.error.take() })
    }
}

impl ExecFifos {
    /// For a shim that copies. It opens the input late and holds it open itself: ours stays
    /// one that needs no reader, and `ended` resolves when it is dropped.
    pub(crate) fn into_copied(mut self) -> (ExecStreams, oneshot::Receiver<()>) {
        let (tell, ended) = oneshot::channel();
        let stdin = self.input.take().map(|pipe| ExecInput { pipe, _ended: Some(tell) });
        let (stdout, stderr) = (self.output.take(), self.error.take());
        (ExecStreams { stdin, stdout, stderr }, ended)
    }
}

fn make(path: PathBuf) -> Result<PathBuf, ShimError> {
    match mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) => Ok(path),
        Err(e) => Err(ShimError::io(format!("make fifo {}", path.display()))(e)),
    }
}

fn opening(path: &Path) -> impl FnOnce(io::Error) -> ShimError + use<> {
    ShimError::io(format!("open fifo {}", path.display()))
}

impl Drop for ExecFifos {
    fn drop(&mut self) {
        for path in [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten() {
            // Gone already is fine, and the directory goes with the pod anyway.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions as FileOptions};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn both_directions_end_with_their_writers() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = ExecFifos::create(dir.path(), "x", true, true, false).unwrap();
        // What the shim and the process do.
        let stdin = File::open(fifos.stdin.as_ref().unwrap()).unwrap();
        let stdout = FileOptions::new().write(true).open(fifos.stdout.as_ref().unwrap()).unwrap();
        let mut streams = fifos.into_streams().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let copy = std::thread::spawn(move || {
            let (mut stdin, mut stdout) = (stdin, stdout);
            std::io::copy(&mut stdin, &mut stdout).unwrap()
        });
        let mut input = streams.stdin.take().unwrap();
        input.write_all(b"there and back").await.unwrap();
        drop(input);
        let mut text = String::new();
        streams.stdout.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), copy.join().unwrap()), ("there and back", 14));
    }

    #[tokio::test]
    async fn input_of_a_process_that_is_gone_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = ExecFifos::create(dir.path(), "x", true, false, false).unwrap();
        let mut streams = fifos.into_streams().unwrap();
        let error = streams.stdin.take().unwrap().write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_name_taken_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let _first = ExecFifos::create(dir.path(), "x", false, true, false).unwrap();
        assert!(ExecFifos::create(dir.path(), "x", false, true, false).is_err());
    }
}
