//! Ending a pod of a foreign shim, whether the shim lives or not.
//!
//! One that answers is asked to end its tasks and itself. Whatever it left, or one that does
//! not answer, is ended from what is on record: the shim and its calls by the directory they
//! work in, containers by process and cgroup, the state of the runtime by the shim's binary.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use api_shim::{
    start::Files,
    task::v3::{
        DeleteRequest, DeleteResponse, KillRequest, ShutdownRequest, WaitRequest, WaitResponse,
    },
};
use jiff::Timestamp;
use sys::{cgroup::Layout, pidfd::Pidfd};
use tokio::time::{Instant, timeout};

use super::{
    Line, SandboxService, dial, launch, no_shim,
    record::{NAMESPACE, PodFile, Running, RuntimeOptions, absent_is_fine},
    streams,
};
use crate::{
    Buried, Exit, ShimError,
    bury::{Undertaker, held, processes_in, read_tasks},
    own::time,
};

/// What a shim that lives answers within.
const QUICK: Duration = Duration::from_secs(2);

/// Like [`crate::bury`]. [`ShimError::NotFound`]: no pod was prepared in `dir`.
///
/// Cancel safe: the forced part goes on.
pub(crate) async fn bury(dir: &Path, limit: Duration) -> Result<Vec<Buried>, ShimError> {
    let Some(pod) = PodFile::read(dir)? else { return Err(no_shim(dir)) };
    let mut told = Vec::new();
    if let Some(Running { version, address, .. }) = &pod.running
        && let Ok(Ok(line)) = timeout(QUICK, dial(&pod.id, *version, address, QUICK)).await
    {
        told = end(dir, &pod, &line, limit).await;
    }
    let dir = dir.to_owned();
    let work = move || force(&dir, &pod, &told, limit);
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| ShimError::io("bury a shim")(io::Error::other(e)))?
}

/// In good order: containers, the sandbox, the shim. What fails here is forced later.
async fn end(dir: &Path, pod: &PodFile, line: &Line, limit: Duration) -> Vec<(String, Exit)> {
    let mut told = Vec::new();
    let mut tasks = read_tasks(&Files::of(dir).tasks);
    tasks.sort_by_key(|(id, _)| *id == pod.id);
    let service = line.service(pod);
    let layout = Layout::detect().ok();
    for (id, task) in tasks.iter().filter(|(id, _)| service.is_none() || *id != pod.id) {
        let thaw = || layout.iter().for_each(|layout| streams::thaw(layout, id, task));
        match timeout(limit, end_task(line, id, thaw)).await {
            Ok(Ok(exit)) => told.push((id.clone(), exit)),
            Ok(Err(error)) => {
                tracing::debug!(task = id, error = %base::Chain(&error), "end a task");
            }
            Err(_) => return told,
        }
    }
    let asked: Result<(), _> = match &service {
        Some(service) => {
            let ended = end_sandbox(service, limit).await;
            ended.map(|exit| told.push((pod.id.clone(), exit)))
        }
        None => {
            let request = ShutdownRequest { id: pod.id.clone(), now: true };
            line.task.call("Shutdown", QUICK, &request).await
        }
    };
    if asked.is_ok() {
        let ended = async {
            while !matches!(line.process.wait_end(Some(Duration::ZERO)), Ok(true)) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = timeout(QUICK, ended).await;
    }
    told
}

/// Some OCI runtimes leave what they kill frozen: `thaw` lets it end.
async fn end_task(line: &Line, id: &str, thaw: impl FnOnce()) -> Result<Exit, ShimError> {
    let (id, exec_id) = (id.to_owned(), String::new());
    let kill = KillRequest { id: id.clone(), exec_id: String::new(), signal: 9, all: true };
    // One that ended by itself cannot be killed; its end is what counts.
    let _: Result<(), _> = line.task.call("Kill", QUICK, &kill).await;
    thaw();
    let wait = WaitRequest { id: id.clone(), exec_id: String::new() };
    let WaitResponse { exit_status, exited_at } = line.task.wait("Wait", &wait).await?;
    let at = time("Wait", exited_at)?;
    let delete = DeleteRequest { id, exec_id };
    let _: DeleteResponse = line.task.call("Delete", QUICK * 5, &delete).await?;
    Ok(Exit { code: exit_status, at, oom: false, log_errors: 0 })
}

/// With it the shim ends. How it ended nobody asks.
async fn end_sandbox(service: &SandboxService, limit: Duration) -> Result<Exit, ShimError> {
    service.stop(limit).await?;
    let late = ShimError::Timeout { call: "WaitSandbox", limit };
    match timeout(limit, service.wait()).await.unwrap_or(Err(late)) {
        Ok(()) | Err(ShimError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    service.shutdown(limit).await?;
    Ok(Exit { code: 0, at: Timestamp::now(), oom: false, log_errors: 0 })
}

/// Blocking.
fn force(
    dir: &Path,
    pod: &PodFile,
    told: &[(String, Exit)],
    limit: Duration,
) -> Result<Vec<Buried>, ShimError> {
    let mut undertaker = Undertaker::new(limit);
    let killed = kill_shim(pod, &mut undertaker);
    undertaker.note("kill the shim", killed);
    let layout = undertaker.note("find the cgroups", Layout::detect());
    let files = Files::of(dir);
    let mut buried = Vec::new();
    for (id, record) in read_tasks(&files.tasks) {
        let known = told.iter().find(|(name, _)| *name == id).map(|(_, exit)| *exit);
        let delete = |left| match known {
            Some(_) => Ok(()),
            None => delete(pod, &id, &record.bundle, left),
        };
        let process = undertaker.bury_task(&record, layout.as_ref(), &delete);
        // The shim's own record says more than the kill that came after it.
        let exit = record.exit.map(crate::bury::recorded).or(known);
        let exit = exit.or_else(|| undertaker.exit_of(process.as_ref()));
        if id != pod.id {
            buried.push(Buried { id, exit });
        }
    }
    undertaker.release(&pod.namespaces);
    for socket in sockets(pod) {
        let removed = absent_is_fine(fs::remove_file(socket));
        undertaker.note("remove the socket of a shim", removed);
    }
    undertaker.finish()?;
    let gone = absent_is_fine(fs::remove_dir_all(&files.tasks))
        .and_then(|()| absent_is_fine(fs::remove_file(&files.attach)))
        .and_then(|()| PodFile::remove(dir));
    gone.map_err(ShimError::io("remove the files of a shim"))?;
    Ok(buried)
}

/// Where it listened: as it answered, or as it wrote down before it could.
fn sockets(pod: &PodFile) -> Vec<PathBuf> {
    let told = pod.running.as_ref().map(|running| running.address.clone());
    let written =
        ["address", ".address"].map(|name| fs::read_to_string(pod.bundle.join(name)).ok());
    let all = [told].into_iter().chain(written).flatten();
    all.filter_map(|address| Some(address.trim().strip_prefix("unix://")?.into())).collect()
}

/// The shim, and what it or its starter had called: all work in a bundle of the pod.
fn kill_shim(pod: &PodFile, undertaker: &mut Undertaker) -> io::Result<()> {
    let bundles = pod.bundle.parent().unwrap_or(&pod.bundle);
    let shim = pod.running.as_ref().and_then(|running| held(running.pid, running.start_time));
    if let Some(shim) = shim {
        shim.signal(9)?;
        shim.wait_end(Some(undertaker.left()))?;
    }
    let until = Instant::now() + undertaker.left();
    loop {
        let calls: Vec<Pidfd> = processes_in(bundles)?;
        if calls.is_empty() {
            return Ok(());
        }
        for call in calls {
            call.signal(9)?;
            call.wait_end(Some(undertaker.left()))?;
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn delete(pod: &PodFile, id: &str, bundle: &Path, limit: Duration) -> io::Result<()> {
    let deleted = launch::delete(pod, id, bundle, limit);
    // Some complain about what they did not find.
    match &pod.options {
        RuntimeOptions::Runc { root, .. } if !state_dir(root, id).exists() => Ok(()),
        _ if !bundle.exists() => Ok(()),
        _ => deleted,
    }
}

fn state_dir(root: &Path, id: &str) -> PathBuf {
    root.join(NAMESPACE).join(id)
}
