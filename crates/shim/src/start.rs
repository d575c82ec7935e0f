//! From a description to a shim in the background.
//!
//! ```text
//!   starter: read description ─fork─┐                      wait ── print bootstrap, end
//!   shim:                           └─ session, cgroup, namespaces, sockets ─ report ─ serve
//! ```
//! The starter ends as soon as the shim is ready, so that the daemon has no child to reap
//! and the shim belongs to nobody. If the starter is gone before the report, nobody knows of
//! the shim, and it undoes itself.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write},
    os::{fd::IntoRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    time::Duration,
};

use api_shim::start::{Bootstrap, Description, Files};
use rustix::fs::Mode;
use sys::{
    cgroup::Cgroup,
    namespace::{Spaces, clone_into},
};
use ttrpc::Service;

use crate::{
    cgroup,
    error::{Error, Result},
    note,
    pod::Pod,
    record,
    serve::{self, End, Sockets},
};

/// A description is a few kilobytes.
const MAX_DESCRIPTION: u64 = 4 << 20;

const READY: u8 = b'+';
const FAILED: u8 = b'-';

/// Returns the bootstrap to print, or why there is no shim.
pub(crate) fn run() -> std::result::Result<String, String> {
    start(&read_description().map_err(|e| e.to_string())?, Vec::new)
}

/// The same of a pod that is described, with services beside ours; they are made in the shim.
/// Only for a process with one thread.
pub fn start(
    description: &Description,
    more: impl FnOnce() -> Vec<Service>,
) -> std::result::Result<String, String> {
    let (reader, writer) = std::io::pipe().map_err(|e| format!("make a pipe: {e}"))?;
    let shim = clone_into(&Spaces::default(), vec![writer.into()], |fds| {
        become_shim(description, fds.into_iter().next().map(PipeWriter::from), more)
    })
    .map_err(|e| Error::io("fork")(e).to_string())?;
    let said = read_report(reader);
    if let Some(Ok(bootstrap)) = said {
        return Ok(bootstrap);
    }
    let ended = shim.pidfd.wait().map_or(-1, |exit| exit.status());
    leave_cgroup(description);
    let silent = || Err(format!("the shim ended with {ended} before it was ready"));
    said.unwrap_or_else(silent)
}

/// Nobody can remove the group he is in; but we are not in that of the shim.
fn leave_cgroup(description: &Description) {
    let Some(path) = &description.cgroup else { return };
    let group = cgroup::layout(&description.hierarchies)
        .ok()
        .and_then(|layout| Cgroup::open(&layout, path).ok().flatten());
    if let Some(group) = group {
        // Others may be in it.
        let _ = group.remove(Duration::from_millis(100));
    }
}

fn read_description() -> Result<Description> {
    let mut bytes = Vec::new();
    // Not by std's handle: it keeps a buffer, which would live as long as the shim.
    let read = File::open("/dev/stdin")
        .and_then(|stdin| stdin.take(MAX_DESCRIPTION).read_to_end(&mut bytes));
    read.map_err(Error::io("read the description"))?;
    let description: Description =
        serde_json::from_slice(&bytes).map_err(Error::io("understand the description"))?;
    if !description.dir.is_absolute() {
        return Err(Error::Invalid { field: "dir", why: "must be absolute".to_owned() });
    }
    Ok(description)
}

/// One line: whether, and what.
fn read_report(reader: PipeReader) -> Option<std::result::Result<String, String>> {
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).ok()?;
    let text = line.get(1..)?;
    match *line.as_bytes().first()? {
        READY => Some(Ok(text.to_owned())),
        _ => Some(Err(text.trim_end().to_owned())),
    }
}

/// Closes the pipe with it.
fn write_report(to: Option<PipeWriter>, how: u8, text: &str) -> std::io::Result<()> {
    let line = text.trim_end().replace('\n', "; ");
    let mut to = to.ok_or(std::io::ErrorKind::BrokenPipe)?;
    to.write_all(&[&[how], line.as_bytes(), b"\n"].concat())
}

// === in the background ===

fn become_shim(
    description: &Description,
    report: Option<PipeWriter>,
    more: impl FnOnce() -> Vec<Service>,
) -> i32 {
    let files = Files::of(&description.dir);
    let Prepared { pod, sockets, bootstrap } = match prepare(description, &files) {
        Ok(prepared) => prepared,
        Err(error) => {
            if !matches!(error, Error::Exists { .. }) {
                remove_files(&files);
            }
            let _ = write_report(report, FAILED, &error.to_string());
            return 1;
        }
    };
    if write_report(report, READY, &bootstrap).is_err() {
        note::warn("nobody waits for this shim: undoing it");
        drop(pod);
        remove_files(&files);
        return 1;
    }
    let served = serve::run(description, pod, sockets, more);
    if !matches!(served, Ok(End::PodDied)) {
        remove_files(&files);
    }
    match served {
        Ok(End::Released) => 0,
        Ok(End::PodDied) => 1,
        Err(error) => {
            note::warn(error);
            1
        }
    }
}

struct Prepared {
    pod: Pod,
    sockets: Sockets,
    bootstrap: String,
}

/// All that can fail; what is dropped on the way undoes itself.
fn prepare(description: &Description, files: &Files) -> Result<Prepared> {
    detach(files)?;
    note::set_level(description.log_level);
    if let Some(group) = &description.cgroup {
        join_cgroup(description, group)?;
    }
    sys::process::become_subreaper().map_err(Error::io("prepare"))?;
    let sockets = Sockets::bind(&description.dir, files)?;
    match fs::create_dir(&files.tasks) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::on("create", &files.tasks)(e));
        }
        _ => {}
    }
    let pod = Pod::make(description)?;
    let bootstrap = bootstrap(description, files, &pod)?;
    record::replace(&files.bootstrap, bootstrap.as_bytes())?;
    Ok(Prepared { pod, sockets, bootstrap })
}

/// A session of our own, nothing of the daemon's: the fork has closed every descriptor.
fn detach(files: &Files) -> Result<()> {
    rustix::process::setsid().map_err(Error::io("begin a session"))?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    // We run from a descriptor, whose number would be our name.
    rustix::thread::set_name(c"longshore-shim").map_err(Error::io("set the name"))?;
    for write in [false, true] {
        let null = OpenOptions::new().read(!write).write(write).open("/dev/null");
        leave_open(null.map_err(Error::io("open /dev/null"))?);
    }
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&files.log);
    leave_open(log.map_err(Error::on("open", &files.log))?);
    Ok(())
}

/// The lowest free numbers are given first: 0, 1 and 2.
fn leave_open(file: File) {
    let _ = file.into_raw_fd();
}

fn join_cgroup(description: &Description, group: &Path) -> Result<()> {
    let layout = cgroup::layout(&description.hierarchies)?;
    let own = Cgroup::create(&layout, group, &["cpu", "memory", "pids"]);
    let joined = own.and_then(|own| own.add(std::process::id()));
    joined.map_err(Error::on("join cgroup", group))
}

fn bootstrap(description: &Description, files: &Files, pod: &Pod) -> Result<String> {
    let pod_pid = pod.first_pid();
    let bootstrap = Bootstrap {
        version: 3,
        address: format!("unix://{}", files.socket.display()),
        protocol: "ttrpc".to_owned(),
        pid: std::process::id(),
        pod_pid,
        pod_start_time: pod_pid.and_then(record::start_time_of).unwrap_or_default(),
        namespaces: description.namespaces.clone(),
        runtime: description.runtime.clone(),
        cgroup: description.cgroup.clone(),
        pid1: description.pid1.clone(),
    };
    serde_json::to_string(&bootstrap).map_err(Error::io("describe the shim"))
}

/// The log stays, for whoever wonders.
fn remove_files(files: &Files) {
    for file in [&files.socket, &files.attach, &files.bootstrap] {
        let _ = fs::remove_file(file);
    }
    let _ = fs::remove_dir(&files.tasks);
}
