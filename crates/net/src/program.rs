//! One call of a CNI program: JSON in, JSON out, within limits.
//!
//! ```text
//!   environment + stdin ──> program (own process group) ──> stdout, stderr, status
//!                              └── time or output used up, or stopped: the group is killed
//! ```
//! **Invariant:** a program starts in the network namespace the daemon began in, at `/`, with
//! an environment made here and no descriptor but its three pipes. A program that did not end
//! by itself is dead when [`run`] returns, and its group has been sent SIGKILL.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::error::ProgramError;

/// What a program is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

/// What every call has in common.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) bin_dirs: Vec<PathBuf>,
    /// `PATH`: CNI programs start others, like iptables.
    pub(crate) path: OsString,
    /// The network namespace the daemon is in.
    pub(crate) namespace: (u64, u64),
    pub(crate) limit: Duration,
    pub(crate) max_output: usize,
}

#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) program: &'a str,
    pub(crate) verb: Verb,
    /// The variables that belong to the pod.
    pub(crate) env: Vec<(&'static str, OsString)>,
    pub(crate) stdin: Vec<u8>,
}

#[derive(Debug)]
struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Enough for a stack trace; the rest is read and forgotten.
const KEPT_STDERR: usize = 16 << 10;
/// A program may leave a child behind that holds its pipes. What the program itself wrote is
/// in the pipe when it ends, so this is only about reading it.
const AFTER_EXIT: Duration = Duration::from_millis(200);
/// A process the kernel does not let go of within this is left to it.
const AFTER_KILL: Duration = Duration::from_secs(2);
/// A program that is just being installed cannot be started for a moment.
const BUSY_RETRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Runs a program to its end and gives what it printed.
///
/// Not cancel safe: a program in flight is killed, its children are not.
pub(crate) async fn run(
    host: &Host,
    call: Call<'_>,
    limit: Duration,
    stop: &CancellationToken,
) -> Result<Vec<u8>, ProgramError> {
    if stop.is_cancelled() {
        return Err(ProgramError::Stopped);
    }
    let limit = limit.min(host.limit);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let path = find(&host.bin_dirs, call.program)?;
    let mut child = start(host, &call, &path).await?;
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Err(ProgramError::Stopped),
        ended = timeout(limit, talk(&mut child, call.stdin, host.max_output, &mut stdout, &mut stderr)) => {
            ended.unwrap_or_else(|_| Err(ProgramError::Timeout { limit, stderr: String::new() }))
        }
    };
    if ended.is_err() {
        kill(&mut child).await;
    }
    if !stderr.is_empty() {
        let (program, verb) = (call.program, call.verb);
        tracing::debug!(program, %verb, stderr = excerpt(&stderr), "said by a CNI program");
    }
    match ended {
        Ok(status) => judge(Output { status, stdout, stderr }),
        Err(ProgramError::Timeout { limit, .. }) => {
            Err(ProgramError::Timeout { limit, stderr: excerpt(&stderr) })
        }
        Err(error) => Err(error),
    }
}

fn find(dirs: &[PathBuf], program: &str) -> Result<PathBuf, ProgramError> {
    let found = dirs.iter().map(|dir| dir.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        ProgramError::Missing { dirs: dirs.join(", ") }
    })
}

async fn start(host: &Host, call: &Call<'_>, path: &Path) -> Result<Child, ProgramError> {
    let cni_path = std::env::join_paths(&host.bin_dirs)
        .map_err(|e| ProgramError::Start(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("PATH", &host.path)
        .env("CNI_COMMAND", call.verb.as_str())
        .env("CNI_PATH", cni_path)
        .envs(call.env.iter().map(|(key, value)| (key, value)))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut tries = 0;
    loop {
        match spawn(&mut command, host.namespace)? {
            Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_RETRIES => {
                tries += 1;
                sleep(BUSY_PAUSE).await;
            }
            result => return result.map_err(ProgramError::Start),
        }
    }
}

/// The child begins where this thread is and with what this process lets it inherit: both
/// are looked at here, with no `await` between look and start.
fn spawn(command: &mut Command, home: (u64, u64)) -> Result<io::Result<Child>, ProgramError> {
    let here = own_namespace().map_err(|e| ProgramError::Start(e.into()))?;
    if here != home {
        return Err(ProgramError::WrongNamespace);
    }
    // What we open ourselves is marked from birth; this is about what the daemon was
    // started with, and about libraries.
    sys::fd::cloexec_from(3).map_err(|e| ProgramError::Start(e.into()))?;
    Ok(command.spawn())
}

/// The network namespace of the calling thread.
pub(crate) fn own_namespace() -> Result<(u64, u64), sys::Error> {
    sys::namespace::identity(Path::new("/proc/thread-self/ns/net"))
}

/// Feeds and reads until the program has ended.
async fn talk(
    child: &mut Child,
    input: Vec<u8>,
    max_output: usize,
    stdout: &mut Vec<u8>,
    stderr: &mut Vec<u8>,
) -> Result<ExitStatus, ProgramError> {
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A program that does not want to hear it all may still answer.
            let _ = stdin.write_all(&input).await;
        }
        Ok(())
    };
    let answer = read_up_to(out, max_output, stdout);
    let pipes = async { tokio::try_join!(feed, answer, read_head(err, stderr)) };
    tokio::pin!(pipes);
    let (status, read) = tokio::select! {
        read = &mut pipes => {
            read?;
            (child.wait().await, Ok(Ok(((), (), ()))))
        }
        status = child.wait() => (status, timeout(AFTER_EXIT, &mut pipes).await),
    };
    if let Ok(Err(too_much)) = read {
        return Err(too_much);
    }
    status.map_err(ProgramError::Talk)
}

/// Reads to the end, but not past `max`: nobody wants half an answer.
async fn read_up_to(
    pipe: Option<impl AsyncRead + Unpin>,
    max: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), ProgramError> {
    let Some(pipe) = pipe else { return Ok(()) };
    let mut pipe = pipe.take(u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1));
    // A pipe that breaks is a program that ended; its status says how.
    let _ = pipe.read_to_end(bytes).await;
    if bytes.len() > max { Err(ProgramError::TooMuch { limit: max }) } else { Ok(()) }
}

/// Reads to the end and keeps the beginning, so that a talkative program is not blocked.
async fn read_head(
    pipe: Option<impl AsyncRead + Unpin>,
    kept: &mut Vec<u8>,
) -> Result<(), ProgramError> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buf = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buf).await {
        let room = KEPT_STDERR.saturating_sub(kept.len());
        kept.extend_from_slice(&buf[..read.min(room)]);
    }
    Ok(())
}

/// The child is not reaped yet, so its group's number cannot belong to anybody else.
async fn kill(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Fails only if all of them are gone.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let _ = timeout(AFTER_KILL, child.wait()).await;
}

fn judge(output: Output) -> Result<Vec<u8>, ProgramError> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(match Complaint::parse(&output.stdout) {
        Some(complaint) => complaint.into(),
        None => {
            let said =
                if output.stderr.trim_ascii().is_empty() { &output.stdout } else { &output.stderr };
            ProgramError::Failed { status: output.status, said: excerpt(said) }
        }
    })
}

/// What CNI prescribes for a failure.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Complaint {
    pub code: u32,
    #[serde(default)]
    pub msg: String,
    #[serde(default)]
    pub details: String,
}

impl Complaint {
    /// `None` for what is no complaint.
    pub fn parse(stdout: &[u8]) -> Option<Self> {
        serde_json::from_slice(stdout).ok()
    }
}

impl From<Complaint> for ProgramError {
    fn from(complaint: Complaint) -> Self {
        let Complaint { code, msg, details } = complaint;
        let message = match (msg.is_empty(), details.is_empty()) {
            (_, true) => msg,
            (true, false) => details,
            (false, false) => format!("{msg}; {details}"),
        };
        Self::Refused { code, message: excerpt(message.as_bytes()) }
    }
}

/// For a line in an error: the end of a long text, where the reason usually is.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const KEPT: usize = 2048;
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    let start = text.ceil_char_boundary(text.len().saturating_sub(KEPT));
    if start == 0 { text.to_owned() } else { format!("… {}", &text[start..]) }
}

// === impl Verb ===

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
