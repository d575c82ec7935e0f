//! Calls of the OCI runtime.
//!
//! **Invariant:** the runtime's stderr is never read through a pipe. A container inherits
//! it, so the pipe would end with the container; what went wrong is read from the
//! runtime's log file instead, of which every call has its own.

use std::{
    ffi::OsString,
    fs,
    io::{Read, Seek, SeekFrom},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api_shim::start::OciRuntime;
use rustix::{
    fs::Mode,
    process::{Pid, Signal, kill_process_group, test_kill_process_group, umask},
};
use serde::Deserialize;
use sys::pidfd::Pidfd;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    error::{Error, Result},
    priority::Priorities,
    process::{Ended, Live},
    reaper::{Birth, Reaper},
};

/// Of the runtime's log; the last words are what counts.
const TAIL: u64 = 16 << 10;

#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) config: OciRuntime,
    pub(crate) reaper: Arc<Reaper>,
    calls: AtomicU64,
}

/// What the new process gets as 0, 1 and 2.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
}

impl Default for Streams {
    fn default() -> Self {
        Self { stdin: Stdio::null(), stdout: Stdio::null(), stderr: Stdio::null() }
    }
}

impl Streams {
    pub(crate) fn of(fds: [Option<OwnedFd>; 3]) -> Self {
        let [stdin, stdout, stderr] = fds.map(|fd| fd.map_or_else(Stdio::null, Stdio::from));
        Self { stdin, stdout, stderr }
    }
}

/// One call: its step by name, and what follows.
pub(crate) struct Call<'a> {
    pub(crate) step: &'static str,
    /// Also where the call keeps its log for as long as it takes.
    pub(crate) bundle: &'a Path,
    pub(crate) args: Vec<OsString>,
    pub(crate) streams: Streams,
    /// Of the runtime, for what it makes to inherit.
    pub(crate) priorities: Priorities,
    /// When the caller stops waiting. The runtime is killed then.
    pub(crate) deadline: Option<Instant>,
    /// Does the work, where the runtime does not do it by itself.
    pub(crate) helper: Option<Helper>,
}

/// A program that the runtime starts, and that does not end with it.
pub(crate) struct Helper {
    /// Names its configuration.
    pub(crate) env: (&'static str, PathBuf),
    /// How long it may take to leave its work in good order after the runtime was killed.
    pub(crate) grace: Duration,
}

impl<'a> Call<'a> {
    /// One whose process has nothing to say and nothing to hear.
    pub(crate) fn silent(
        step: &'static str,
        bundle: &'a Path,
        args: Vec<OsString>,
        deadline: Option<Instant>,
    ) -> Self {
        let (streams, priorities) = (Streams::default(), Priorities::default());
        Self { step, bundle, args, streams, priorities, deadline, helper: None }
    }
}

impl Runtime {
    pub(crate) fn new(config: OciRuntime, reaper: Arc<Reaper>) -> Self {
        Self { config, reaper, calls: AtomicU64::new(0) }
    }

    /// Runs to the end of the runtime. Not cancel safe: to be awaited in a task of its own.
    pub(crate) async fn run(&self, call: Call<'_>) -> Result<()> {
        let step = call.step;
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let log = call.bundle.join(format!("rt{number}.log"));
        let ended = self.spawn(call, &log).await;
        let said = last_error(&log);
        let _ = fs::remove_file(&log);
        match ended? {
            Ended { status: 0, .. } => Ok(()),
            Ended { status, .. } => {
                let said = said.unwrap_or_else(|| format!("ended with {status}"));
                Err(Error::Runtime { runtime: self.name(), step, said })
            }
        }
    }

    async fn spawn(&self, call: Call<'_>, log: &Path) -> Result<Ended> {
        let Call { step, bundle, args, streams, priorities, deadline, helper } = call;
        let doing = || format!("run {}", self.config.binary.display());
        let mut command = Command::new(&self.config.binary);
        command.arg("--root").arg(&self.config.root).arg("--log").arg(log);
        command.args(["--log-format", "json"]);
        if self.config.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command.args(&self.config.args).arg(step).args(args).current_dir(bundle);
        command.stdin(streams.stdin).stdout(streams.stdout).stderr(streams.stderr);
        priorities.start_with(&mut command);
        if let Some(Helper { env: (name, value), .. }) = &helper {
            command.process_group(0).env(name, value);
        }
        let child = with_usual_umask(|| command.spawn()).map_err(Error::io(doing()))?;
        // The command holds our copies of the streams.
        drop(command);
        let mut ended = self.reaper.expect(child.id());
        let over = match deadline {
            None => return Ok((&mut ended).await.unwrap_or_else(|_| lost())),
            Some(deadline) => timeout_at(deadline, &mut ended).await,
        };
        if let Ok(ended) = over {
            return Ok(ended.unwrap_or_else(|_| lost()));
        }
        // Not reaped yet, so the number is still its own.
        if let Ok(process) = Pidfd::open(child.id()) {
            let _ = process.signal(9);
        }
        let _ = ended.await;
        if let Some(Helper { grace, .. }) = helper {
            end_group(child.id(), grace).await;
        }
        Err(Error::Timeout { doing: step })
    }

    /// Runs a call that makes a process, and finds that process. The birth must have been
    /// begun before the call.
    pub(crate) async fn bear(
        &self,
        birth: Birth,
        call: Call<'_>,
        pid_file: &Path,
    ) -> Result<(Live, tokio::sync::oneshot::Receiver<Ended>)> {
        self.run(call).await?;
        let text = fs::read_to_string(pid_file).map_err(Error::on("read", pid_file))?;
        let _ = fs::remove_file(pid_file);
        let odd = || Error::Runtime {
            runtime: self.name(),
            step: "pid file",
            said: format!("{:?} is no process", text.trim()),
        };
        let pid: u32 = text.trim().parse().map_err(|_| odd())?;
        let ended = self.reaper.expect(pid);
        drop(birth);
        // Until it is reaped, which only this thread does, the number is the process's own.
        let live = match ended.is_empty() {
            true if !is_child(pid) => return Err(odd()),
            true => Live::open(pid)?,
            false => Live { pid, pidfd: None },
        };
        Ok((live, ended))
    }

    pub(crate) fn name(&self) -> String {
        let name = self.config.binary.file_name().unwrap_or(self.config.binary.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Whether the runtime has state of the container.
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.state_dir(id).exists()
    }

    fn state_dir(&self, id: &str) -> PathBuf {
        self.config.root.join(id)
    }
}

/// The runtime makes cgroups, through which the root of a user namespace has to pass; ours would
/// keep it out. What our other thread makes meanwhile has its mode by name.
fn with_usual_umask<T>(work: impl FnOnce() -> T) -> T {
    let ours = umask(Mode::from_raw_mode(0o022));
    let done = work();
    umask(ours);
    done
}

/// Returns when none of the group is left, or cannot be ended. Its number is not given to others
/// as long as there is one.
async fn end_group(leader: u32, grace: Duration) {
    const LOOK: Duration = Duration::from_millis(50);
    /// For the kernel to do what it was told.
    const KILLED: Duration = Duration::from_secs(5);
    let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) else { return };
    let gone = async || {
        while test_kill_process_group(group).is_ok() {
            sleep(LOOK).await;
        }
    };
    if timeout(grace, gone()).await.is_err() {
        let _ = kill_process_group(group, Signal::KILL);
        let _ = timeout(KILLED, gone()).await;
    }
}

/// What a runtime names must be ours to wait for.
fn is_child(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
    parent.and_then(|parent| parent.parse().ok()) == Some(std::process::id())
}

/// The reaper is gone only with the whole shim.
fn lost() -> Ended {
    Ended { status: 255, at: std::time::SystemTime::now() }
}

/// As runc and crun write it, and as youki does.
#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    level: String,
    #[serde(alias = "message")]
    msg: String,
}

/// The last error of a runtime's JSON log; if there is none, its last words.
fn last_error(log: &Path) -> Option<String> {
    let mut file = fs::File::open(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    said(&String::from_utf8_lossy(&bytes))
}

fn said(text: &str) -> Option<String> {
    let entry = |line: &str| serde_json::from_str::<Entry>(line).ok();
    let is_error = |entry: &Entry| {
        matches!(entry.level.to_lowercase().as_str(), "error" | "fatal" | "panic" | "")
    };
    let error = text.lines().rev().filter_map(entry).find(is_error).map(|entry| entry.msg);
    let last =
        || text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    error.or_else(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_what_was_said() {
        let check = |text: &str, want: Option<&str>| assert_eq!(said(text).as_deref(), want);
        check("", None);
        check("\n", None);
        check("not json\n", Some("not json"));
        let log = "{\"level\":\"error\",\"msg\":\"first\",\"time\":\"x\"}\n\
                   {\"level\":\"error\",\"msg\":\"exec: \\\"x\\\" not found\"}\n\
                   {\"level\":\"warning\",\"msg\":\"cgroup left\"}\n";
        check(log, Some("exec: \"x\" not found"));
        // crun writes no level in some versions.
        check("{\"msg\":\"cannot clone\",\"time\":\"x\"}", Some("cannot clone"));
        let youki = "{\"timestamp\":\"x\",\"level\":\"ERROR\",\"message\":\"'/x' not found\"}\n\
                     {\"timestamp\":\"x\",\"level\":\"DEBUG\",\"message\":\"cleaned\"}\n";
        check(youki, Some("'/x' not found"));
    }
}
