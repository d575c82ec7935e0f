//! After the death of a shim: ending and removing what it left.
//!
//! Works from what the shim wrote into the pod's directory, and removes that last: a bury
//! that was interrupted is simply done again.

use std::{
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use api_shim::start::{Bootstrap, ExitRecord, Files, OciRuntime, TaskRecord, start_time};
use jiff::Timestamp;
use serde::Deserialize;
use sys::{
    cgroup::{Cgroup, Layout},
    namespace::unpin,
    pidfd::Pidfd,
};
use tokio::time::Instant;

use crate::{Exit, Foreign, Namespaces, ShimError, connect::read_bootstrap, foreign};

/// A container that its shim left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buried {
    pub id: String,
    /// As the shim recorded it, or as the kernel tells (Linux 6.15 on). `None`: nobody
    /// knows any more.
    pub exit: Option<Exit>,
}

const SIGKILL: i32 = 9;

/// The kernel tells how a process ended once it is reaped. That is the business of whoever
/// is its parent now; some poll, so it may take a while.
const REAPING: Duration = Duration::from_secs(3);

/// Kills the shim if it still runs, then its containers and its PID 1, removes them from
/// the OCI runtime, releases the namespaces and the cgroups of the shim and of PID 1. Only the network
/// namespace stays pinned: whoever attached it to networks detaches it first. Goes on after
/// a failure and returns the first. [`ShimError::NotFound`]: no shim was ever ready in `dir`.
///
/// Cancel safe: the work goes on.
pub async fn bury(dir: &Path, limit: Duration) -> Result<Vec<Buried>, ShimError> {
    if Foreign::is_in(dir) {
        return foreign::bury(dir, limit).await;
    }
    let bootstrap = read_bootstrap(dir)?;
    let dir = dir.to_owned();
    let work = move || Undertaker::new(limit).bury(&dir, &bootstrap);
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| ShimError::io("bury a shim")(io::Error::other(e)))?
}

/// Goes on after a failure, and tells the first at the end.
#[derive(Debug)]
pub(crate) struct Undertaker {
    until: Instant,
    failure: Option<ShimError>,
}

impl Undertaker {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { until: Instant::now() + limit, failure: None }
    }

    pub(crate) fn left(&self) -> Duration {
        // What has no time left at all is still tried once.
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(10))
    }

    pub(crate) fn note<T, E: Into<io::Error>>(
        &mut self,
        doing: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                let error = ShimError::io(doing)(e);
                tracing::warn!(error = %base::Chain(&error), "bury");
                self.failure.get_or_insert(error);
                None
            }
        }
    }

    fn bury(mut self, dir: &Path, bootstrap: &Bootstrap) -> Result<Vec<Buried>, ShimError> {
        let files = Files::of(dir);
        let killed = kill_listener(&files.socket, bootstrap.pod_pid, self.left());
        if self.note("kill the shim", killed).unwrap_or(true) {
            let ended = end_calls(bootstrap.pid, dir, self.until);
            self.note("end the OCI runtime", ended);
        }
        let layout = self.note("find the cgroups", Layout::detect());
        let tasks = read_tasks(&files.tasks);
        let processes: Vec<_> = tasks
            .iter()
            .map(|(id, record)| {
                let delete = |_| delete(&bootstrap.runtime, id);
                self.bury_task(record, layout.as_ref(), &delete)
            })
            .collect();
        self.end_pod(bootstrap, layout.as_ref());
        let buried = tasks.into_iter().zip(processes).map(|((id, record), process)| {
            let told = || self.exit_of(process.as_ref());
            Buried { id, exit: record.exit.map(recorded).or_else(told) }
        });
        let buried = buried.collect();
        self.finish()?;
        let gone = remove_all(&files);
        gone.map_err(ShimError::io("remove the files of a shim"))?;
        Ok(buried)
    }

    /// The first failure, if there was one.
    pub(crate) fn finish(self) -> Result<(), ShimError> {
        self.failure.map_or(Ok(()), Err)
    }

    /// As the kernel tells it.
    pub(crate) fn exit_of(&self, process: Option<&Pidfd>) -> Option<Exit> {
        exit_of(process?, Instant::now() + REAPING.min(self.left()))
    }

    /// `delete` takes it out of the runtime, within the time it is given.
    pub(crate) fn bury_task(
        &mut self,
        record: &TaskRecord,
        layout: Option<&Layout>,
        delete: &dyn Fn(Duration) -> io::Result<()>,
    ) -> Option<Pidfd> {
        let process = held(record.pid, record.start_time);
        if let Some(process) = &process {
            let killed = process.signal(SIGKILL);
            self.note("kill a container", killed);
        }
        let intended = intended_cgroup(record);
        if let (Some(path), Some(layout)) = (record.cgroup.as_ref().or(intended.as_ref()), layout)
            && let Some(Some(group)) = self.note("open a cgroup", Cgroup::open(layout, path))
        {
            let killed = group.kill(self.left());
            self.note("kill a container's processes", killed);
        }
        if let Some(process) = &process {
            let ended = process.wait_end(Some(self.left()));
            self.note("wait for a container", ended);
        }
        let deleted = delete(self.left());
        self.note("delete a container", deleted);
        // The runtime, if it was cut off early, does not know what it made.
        if let (Some(path), Some(layout)) = (&intended, layout) {
            self.remove_cgroup(path, layout);
        }
        process
    }

    fn remove_cgroup(&mut self, path: &Path, layout: &Layout) {
        if let Some(Some(group)) = self.note("open a cgroup", Cgroup::open(layout, path)) {
            let removed = group.remove(self.left());
            self.note("remove a cgroup", removed);
        }
    }

    fn end_pod(&mut self, bootstrap: &Bootstrap, layout: Option<&Layout>) {
        let first = bootstrap.pod_pid.and_then(|pid| held(pid, bootstrap.pod_start_time));
        if let Some(first) = first {
            let killed = first.signal(SIGKILL);
            self.note("kill PID 1", killed);
            let ended = first.wait_end(Some(self.left()));
            self.note("wait for PID 1", ended);
        }
        self.release(&bootstrap.namespaces);
        if let Some(layout) = layout {
            let groups = [&bootstrap.pid1.cgroup, &bootstrap.cgroup];
            groups.into_iter().flatten().for_each(|path| self.remove_cgroup(path, layout));
        }
    }

    /// All but that of the network.
    pub(crate) fn release(&mut self, spaces: &Namespaces) {
        let user = spaces.user.as_ref().map(|user| &user.pin);
        let pins = [spaces.ipc.as_ref(), spaces.uts.as_ref(), spaces.pid_pin.as_ref(), user];
        for pin in pins.into_iter().flatten() {
            self.note("release a namespace", unpin(pin));
        }
    }
}

/// Returns the cgroup that the spec of a task asks for, if the task was being created when its
/// shim was killed: then nobody recorded where its processes are. They may outlive the runtime
/// that made them and work in no directory of ours.
fn intended_cgroup(record: &TaskRecord) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Spec {
        linux: Linux,
    }
    #[derive(Deserialize)]
    struct Linux {
        #[serde(rename = "cgroupsPath")]
        cgroups_path: String,
    }
    if record.pid != 0 {
        return None;
    }
    let spec: Spec =
        serde_json::from_slice(&fs::read(record.bundle.join("config.json")).ok()?).ok()?;
    base::cgroup::dir_of_spec(&spec.linux.cgroups_path).filter(|path| path != Path::new("/"))
}

/// Nobody there is fine. Returns whether it may have left a process beside PID 1 of the pod:
/// to look through all there are takes longer than the rest of most burials.
fn kill_listener(socket: &Path, first: Option<u32>, limit: Duration) -> sys::Result<bool> {
    let Ok(stream) = UnixStream::connect(socket) else { return Ok(true) };
    let pid = sys::fd::peer(&stream)?.pid;
    let Ok(shim) = Pidfd::open(pid) else { return Ok(true) };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    shim.signal(SIGKILL)?;
    shim.wait_end(Some(limit))?;
    let first = first.map(|pid| pid.to_string());
    Ok(children
        .map_or(true, |pids| pids.split_whitespace().any(|pid| Some(pid) != first.as_deref())))
}

/// Ends OCI runtimes that the shim had called and that outlived it: they are of its session
/// and work in a bundle of the pod. Containers have sessions of their own.
fn end_calls(session: u32, dir: &Path, until: Instant) -> io::Result<()> {
    loop {
        let calls = calls_of(session, dir)?;
        if calls.is_empty() {
            return Ok(());
        }
        for call in calls {
            call.signal(SIGKILL)?;
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // One that is just being killed may have started another.
        sleep(Duration::from_millis(1));
    }
}

fn calls_of(session: u32, dir: &Path) -> io::Result<Vec<Pidfd>> {
    working_in(dir, |own| own == Some(session))
}

/// Every process that works in `dir` or below it.
pub(crate) fn processes_in(dir: &Path) -> io::Result<Vec<Pidfd>> {
    working_in(dir, |_| true)
}

fn working_in(dir: &Path, session: impl Fn(Option<u32>) -> bool) -> io::Result<Vec<Pidfd>> {
    let pids = fs::read_dir("/proc")?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_call = |pid: u32| {
        let proc = Path::new("/proc").join(pid.to_string());
        let stat = fs::read_to_string(proc.join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        // State, parent, group, session. What ended and waits for its parent is harmless.
        let mut fields = fields.split_whitespace();
        let ended = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
        let of_session = session(fields.nth(2).and_then(|text| text.parse().ok()));
        !ended
            && of_session
            && fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir))
    };
    // Looked at again once it is held: the number may be another's by now.
    let held = |pid: u32| Pidfd::open(pid).ok().filter(|_| is_call(pid));
    Ok(pids.filter(|pid| is_call(*pid)).filter_map(held).collect())
}

pub(crate) fn read_tasks(dir: &Path) -> Vec<(String, TaskRecord)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let id = entry.file_name().into_string().ok()?;
        let record = serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?;
        Some((id, record))
    };
    entries.filter_map(read).collect()
}

/// The process itself, not a later one of the same number.
pub(crate) fn held(pid: u32, started: u64) -> Option<Pidfd> {
    let process = Pidfd::open(pid).ok()?;
    (started_at(pid) == Some(started)).then_some(process)
}

/// The same of one that has not ended: what waits for its parent to reap it is not of use.
pub(crate) fn running(pid: u32, started: u64) -> Option<Pidfd> {
    held(pid, started).filter(|process| !matches!(process.wait_end(Some(Duration::ZERO)), Ok(true)))
}

pub(crate) fn started_at(pid: u32) -> Option<u64> {
    start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

pub(crate) fn recorded(exit: ExitRecord) -> Exit {
    let at = base::time::from_unix_nanos(exit.at);
    Exit { code: exit.status, at, oom: exit.oom, log_errors: 0 }
}

fn exit_of(process: &Pidfd, until: Instant) -> Option<Exit> {
    loop {
        if let Some(exit) = process.exit_info().ok()? {
            let code = u32::try_from(exit.status()).unwrap_or(255);
            return Some(Exit { code, at: Timestamp::now(), oom: false, log_errors: 0 });
        }
        if Instant::now() >= until {
            return None;
        }
        sleep(Duration::from_millis(2));
    }
}

/// Forced only if need be: that makes runc sleep. A container it does not know is fine.
fn delete(runtime: &OciRuntime, id: &str) -> io::Result<()> {
    let mut last = String::new();
    for force in [false, true] {
        let mut command = Command::new(&runtime.binary);
        command.arg("--root").arg(&runtime.root).stdin(Stdio::null());
        if runtime.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command.args(&runtime.args).arg("delete").args(force.then_some("--force")).arg(id);
        let output = command.output()?;
        if output.status.success() || !runtime.root.join(id).exists() {
            return Ok(());
        }
        last = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    }
    Err(io::Error::other(last))
}

fn remove_all(files: &Files) -> io::Result<()> {
    let absent_is_fine = |result: io::Result<()>| match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    absent_is_fine(fs::remove_dir_all(&files.tasks))?;
    // The bootstrap goes last: with it the rest could not be found again.
    [&files.socket, &files.attach, &files.bootstrap]
        .into_iter()
        .try_for_each(|file| absent_is_fine(fs::remove_file(file)))
}
