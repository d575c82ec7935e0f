//! A container's stdio: named pipes in its bundle.
//!
//! The container gets its output pipes open for reading *and* writing. It never reads them,
//! but a pipe with a reader does not break: when the shim dies the container goes on, and
//! what it wrote stays in the pipe for the next reader. Its input it can only read, so that
//! it sees the end when we close ours.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rustix::{
    fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fchown, fcntl_getfl, fcntl_setfl, mknodat},
    pipe::fcntl_setpipe_size,
};
use tokio::net::unix::pipe;

use crate::error::{Error, Result};

/// More room makes fewer switches between a container that writes much and us. A wish: an
/// unprivileged shim may not get it.
const PIPE_SIZE: usize = 256 << 10;

/// Both sides of a container's pipes.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// For the container, as 0, 1 and 2.
    pub(crate) theirs: [Option<OwnedFd>; 3],
    /// For us; nothing of it blocks.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

impl Pipes {
    /// They belong to `owner`: what a container's user has as its stdio it may also open by
    /// name (`/dev/stdout`), which needs more than having it.
    pub(crate) fn make(bundle: &Path, with_stdin: bool, owner: Option<(Uid, Gid)>) -> Result<Self> {
        let [stdin, stdout, stderr] = Self::names(bundle);
        let input = with_stdin.then(|| Self::input(&stdin)).transpose()?;
        let (our_in, their_in) = input.unzip();
        let (our_out, their_out) = output(&stdout)?;
        let (our_err, their_err) = output(&stderr)?;
        let theirs = [their_in, Some(their_out), Some(their_err)];
        give(&theirs, owner)?;
        Ok(Self { theirs, stdin: our_in, stdout: our_out, stderr: our_err })
    }

    fn input(path: &Path) -> Result<(OwnedFd, OwnedFd)> {
        let both = both_ends(path)?;
        let ours = open(path, OFlags::WRONLY)?;
        let theirs = open(path, OFlags::RDONLY)?;
        block(&theirs)?;
        drop(both);
        Ok((ours, theirs))
    }

    /// Where they are, if they are.
    pub(crate) fn names(bundle: &Path) -> [PathBuf; 3] {
        NAMES.map(|name| bundle.join(name))
    }

    pub(crate) fn remove(bundle: &Path) {
        for path in Self::names(bundle) {
            // The bundle goes with the container anyway.
            let _ = fs::remove_file(path);
        }
    }
}

fn give(theirs: &[Option<OwnedFd>], owner: Option<(Uid, Gid)>) -> Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    for fd in theirs.iter().flatten() {
        fchown(fd, Some(uid), Some(gid)).map_err(Error::io("give away a pipe"))?;
    }
    Ok(())
}

fn output(path: &Path) -> Result<(OwnedFd, OwnedFd)> {
    let theirs = both_ends(path)?;
    let ours = open(path, OFlags::RDONLY)?;
    let _ = fcntl_setpipe_size(&ours, PIPE_SIZE);
    Ok((ours, theirs))
}

/// A new pipe, held open so that it opens from either side without waiting.
fn both_ends(path: &Path) -> Result<OwnedFd> {
    // One left by a creation that failed may hold somebody's bytes.
    let _ = fs::remove_file(path);
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).map_err(Error::on("make pipe", path))?;
    let both = OpenOptions::new().read(true).write(true).open(path);
    both.map(OwnedFd::from).map_err(Error::on("open pipe", path))
}

fn open(path: &Path, access: OFlags) -> Result<OwnedFd> {
    let (read, write) = (access != OFlags::WRONLY, access != OFlags::RDONLY);
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(read).write(write).custom_flags(nonblock).open(path);
    file.map(OwnedFd::from).map_err(Error::on("open pipe", path))
}

/// Flags belong to the open file: the container must not find its stdio non-blocking.
fn block(fd: &OwnedFd) -> Result<()> {
    let flags = fcntl_getfl(fd).map_err(Error::io("prepare a pipe"))?;
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).map_err(Error::io("prepare a pipe"))
}

/// Pipes of a client that reads and writes them itself, in the place of a log. An absent one is
/// /dev/null.
#[derive(Clone, Debug)]
pub(crate) struct Fifos {
    pub(crate) stdin: Option<PathBuf>,
    pub(crate) stdout: Option<PathBuf>,
    pub(crate) stderr: Option<PathBuf>,
}

/// What we keep of them: the container's input ends when the client and we have closed it, so
/// that a client may come and go.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) Mutex<Option<OwnedFd>>);

impl Fifos {
    /// The container's, as 0, 1 and 2. It has its outputs like those of [`Pipes`], and for the
    /// same reasons.
    pub(crate) fn theirs(&self, owner: Option<(Uid, Gid)>) -> Result<([Option<OwnedFd>; 3], Held)> {
        let output = |path: &PathBuf| {
            let both = OpenOptions::new().read(true).write(true).open(path);
            both.map(OwnedFd::from).map_err(Error::on("open pipe", path))
        };
        let input = self.stdin.as_ref().map(|path| -> Result<_> {
            let theirs = open(path, OFlags::RDONLY)?;
            block(&theirs)?;
            Ok((theirs, open(path, OFlags::WRONLY)?))
        });
        let (stdin, ours) = input.transpose()?.unzip();
        let stdout = self.stdout.as_ref().map(output).transpose()?;
        let stderr = self.stderr.as_ref().map(output).transpose()?;
        let theirs = [stdin, stdout, stderr];
        give(&theirs, owner)?;
        Ok((theirs, Held(Mutex::new(ours))))
    }

    /// Ours, of a container with a terminal: what is typed, what is shown. Neither ends with the
    /// client.
    pub(crate) fn of_terminal(&self) -> Result<(Option<File>, Option<File>)> {
        let end = |path: &Option<PathBuf>| {
            path.as_ref().map(|path| open(path, OFlags::RDWR).map(File::from)).transpose()
        };
        Ok((end(&self.stdin)?, end(&self.stdout)?))
    }
}

/// The ends of an exec's pipes, whose other ends the client holds already. Handed to the
/// process as they are: nothing is copied on the way.
pub(crate) fn exec_ends(paths: [Option<&PathBuf>; 3]) -> Result<[Option<OwnedFd>; 3]> {
    let [stdin, stdout, stderr] = paths;
    let end = |path: Option<&PathBuf>, access: OFlags| -> Result<Option<OwnedFd>> {
        let Some(path) = path else { return Ok(None) };
        // Without a reader on the other side this fails at once instead of waiting.
        let fd = open(path, access)?;
        block(&fd)?;
        Ok(Some(fd))
    };
    Ok([end(stdin, OFlags::RDONLY)?, end(stdout, OFlags::WRONLY)?, end(stderr, OFlags::WRONLY)?])
}

/// Reading ends of an exec's output, beside the client's. Held, they keep a command that writes
/// alive after its client died; they are read only then.
pub(crate) fn exec_spares(outputs: [Option<&PathBuf>; 2]) -> Result<Vec<File>> {
    let open = |path: &PathBuf| open(path, OFlags::RDONLY).map(File::from);
    outputs.into_iter().flatten().map(open).collect()
}

/// Reads a pipe to its end, so that nobody waits for room in it.
pub(crate) async fn discard(pipe: File) -> io::Result<()> {
    let mut pipe = pipe::Receiver::from_file(pipe)?;
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await.map(drop)
}

/// The same for an exec with a terminal, which we serve ourselves and must not block on.
pub(crate) fn terminal_ends(
    stdin: Option<&PathBuf>,
    stdout: Option<&PathBuf>,
) -> Result<(Option<File>, Option<File>)> {
    let end = |path: Option<&PathBuf>, access| path.map(|path| open(path, access)).transpose();
    Ok((end(stdin, OFlags::RDONLY)?.map(File::from), end(stdout, OFlags::WRONLY)?.map(File::from)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn output_outlives_its_reader() {
        let dir = tempfile::tempdir().unwrap();
        let pipes = Pipes::make(dir.path(), false, None).unwrap();
        let [none, Some(out), _] = pipes.theirs else { panic!("no stdout") };
        assert!(none.is_none());
        let mut container = File::from(out);
        container.write_all(b"before ").unwrap();
        drop(pipes.stdout);
        container.write_all(b"and after").unwrap();
        let mut again = File::from(open(&dir.path().join("stdout"), OFlags::RDONLY).unwrap());
        let mut text = [0; 32];
        let len = again.read(&mut text).unwrap();
        assert_eq!(&text[..len], b"before and after");
        drop(container);
        assert_eq!(again.read(&mut text).unwrap(), 0);
    }

    #[test]
    fn input_ends_when_we_close_it() {
        let dir = tempfile::tempdir().unwrap();
        let pipes = Pipes::make(dir.path(), true, None).unwrap();
        let [Some(stdin), _, _] = pipes.theirs else { panic!("no stdin") };
        File::from(pipes.stdin.unwrap()).write_all(b"typed").unwrap();
        let mut text = String::new();
        File::from(stdin).read_to_string(&mut text).unwrap();
        assert_eq!(text, "typed");
    }

    #[test]
    fn the_containers_ends_block_and_ours_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let pipes = Pipes::make(dir.path(), true, None).unwrap();
        let nonblocking = |fd: &OwnedFd| fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK);
        assert!(pipes.theirs.iter().flatten().all(|fd| !nonblocking(fd)));
        assert!(
            [pipes.stdin.as_ref().unwrap(), &pipes.stdout, &pipes.stderr]
                .into_iter()
                .all(nonblocking)
        );
    }

    #[test]
    fn the_pipes_of_a_client_outlive_it() {
        let dir = tempfile::tempdir().unwrap();
        let [stdin, stdout] = ["stdin", "stdout"].map(|name| {
            let path = dir.path().join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            path
        });
        let fifos =
            Fifos { stdin: Some(stdin.clone()), stdout: Some(stdout.clone()), stderr: None };
        let ([Some(input), Some(output), None], held) = fifos.theirs(None).unwrap() else {
            panic!("other pipes than those given")
        };
        let (mut input, mut output) = (File::from(input), File::from(output));
        output.write_all(b"nobody is there").unwrap();
        let mut client = File::from(open(&stdout, OFlags::RDONLY).unwrap());
        let mut text = [0; 32];
        let len = client.read(&mut text).unwrap();
        assert_eq!(&text[..len], b"nobody is there");
        // A client that goes does not end the input; one that asks for it does.
        File::from(open(&stdin, OFlags::WRONLY).unwrap()).write_all(b"typed").unwrap();
        drop(held.0.lock().take());
        let mut typed = String::new();
        input.read_to_string(&mut typed).unwrap();
        assert_eq!(typed, "typed");
    }

    #[test]
    fn an_exec_without_a_reader_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(exec_ends([None, Some(&path), None]).is_err());
        let _reader = open(&path, OFlags::RDONLY).unwrap();
        assert!(exec_ends([None, Some(&path), None]).unwrap()[1].is_some());
    }
}
