//! All containers of the pod, and what can be done with them.
//!
//! **Invariants:** what changes a container runs in a task of its own and comes to its end,
//! whoever still waits for it. A creation that fails leaves nothing, and its id is free
//! again. The end of a container is published after the ends of its added processes, and
//! when what it wrote is in its log.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api_shim::{
    longshore::{CreateOptions, Exit, TaskInfo, log},
    metrics::Metrics,
    start::{Description, IdMap, UserNs},
};
use parking_lot::Mutex;
use rustix::fs::{Gid, Uid};
use shim_io::{Format, IoThread, LogFile, Source, Stream};
use sys::cgroup::Layout;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    cgroup::{self, Group, off_thread},
    console::{self, ConsoleSocket, copy_of},
    error::{Error, Result},
    note, oom,
    priority::Priorities,
    process::{Ended, Live},
    reaper::Reaper,
    runtime::{Call, Runtime, Streams},
    stats,
    stdio::{Fifos, Held, Pipes},
    task::{Phase, Task, check_id},
    update,
};

/// How long the end of a container may wait for its last words to reach the log. A disk
/// that is slower than this must not hide the end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The same for the ends of added processes, which the kernel kills with the first.
const LAST_EXECS: Duration = Duration::from_secs(2);
/// To clean up after a runtime that failed, by the same runtime.
const UNDO: Duration = Duration::from_secs(10);

pub(crate) const SIGKILL: i32 = 9;

#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) runtime: Runtime,
    /// Everything that must come to its end.
    pub(crate) work: TaskTracker,
    io: IoThread,
    layout: Layout,
    records: PathBuf,
    /// Root of the pod's user namespace, as the host numbers it.
    root: Option<(Uid, Gid)>,
    /// PID namespaces that are not a container's own: ours, and the pod's.
    shared_pids: Vec<(u64, u64)>,
    all: Mutex<BTreeMap<String, Arc<Task>>>,
    /// Counts ends and deletions, for whoever waits for there to be none.
    changed: watch::Sender<u64>,
}

/// A container to create.
#[derive(Debug)]
pub(crate) struct Create {
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) tty: bool,
    pub(crate) priorities: Priorities,
    pub(crate) output: Output,
}

/// What becomes of its streams.
#[derive(Debug)]
pub(crate) enum Output {
    /// They are read here, into a log and for attached clients.
    Log(CreateOptions),
    /// A client has pipes for them.
    Fifos(Fifos),
}

impl Tasks {
    pub(crate) fn new(
        description: &Description,
        pod_pid: Option<u32>,
        io: IoThread,
        reaper: Arc<Reaper>,
        records: PathBuf,
    ) -> Result<Self> {
        let pids = pod_pid.into_iter().chain([std::process::id()]);
        Ok(Self {
            runtime: Runtime::new(description.runtime.clone(), reaper),
            work: TaskTracker::new(),
            io,
            layout: cgroup::layout(&description.hierarchies)?,
            records,
            root: description.namespaces.user.as_ref().and_then(root_of),
            shared_pids: pids.filter_map(pid_namespace).collect(),
            all: Mutex::default(),
            changed: watch::Sender::new(0),
        })
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Task>> {
        let missing = || Error::NotFound { what: "container", id: id.to_owned() };
        self.all.lock().get(id).cloned().ok_or_else(missing)
    }

    pub(crate) fn list(&self, id: &str) -> Result<Vec<TaskInfo>> {
        match id {
            "" => Ok(self.all.lock().values().map(|task| task.info()).collect()),
            id => Ok(vec![self.get(id)?.info()]),
        }
    }

    /// Whether there are containers: any that run, any at all.
    pub(crate) fn census(&self) -> (bool, bool) {
        let all = self.all.lock();
        (all.values().any(|task| task.phase() != Phase::Stopped), !all.is_empty())
    }

    /// Cancel safe.
    pub(crate) async fn none_runs(&self) {
        let mut changed = self.changed.subscribe();
        while self.census().0 && changed.changed().await.is_ok() {}
    }

    // === create ===

    /// Not cancel safe: to be awaited in a task of its own.
    pub(crate) async fn create(
        self: &Arc<Self>,
        create: Create,
        deadline: Option<Instant>,
    ) -> Result<u32> {
        check_id("id", &create.id)?;
        let task = self.enter(&create)?;
        match self.bear(&task, create, deadline).await {
            Ok(pid) => Ok(pid),
            Err(error) => {
                self.undo_create(&task).await;
                Err(error)
            }
        }
    }

    fn enter(&self, create: &Create) -> Result<Arc<Task>> {
        let mut all = self.all.lock();
        if all.contains_key(&create.id) {
            return Err(Error::Exists { what: "container", id: create.id.clone() });
        }
        let task = Arc::new(Task::new(create, &self.records));
        let id = &create.id;
        all.insert(id.clone(), Arc::clone(&task));
        Ok(task)
    }

    async fn bear(
        self: &Arc<Self>,
        task: &Arc<Task>,
        create: Create,
        deadline: Option<Instant>,
    ) -> Result<u32> {
        let (streams, console) = self.connect_streams(task, &create)?;
        task.write_record(None);
        let pid_file = task.bundle.join("init.pid");
        let mut args: Vec<OsString> = vec!["--bundle".into(), task.bundle.clone().into()];
        args.extend(["--pid-file".into(), pid_file.clone().into()]);
        if let Some(socket) = &console {
            args.extend(["--console-socket".into(), socket.address.clone().into()]);
        }
        args.push(task.id.clone().into());
        let birth = self.runtime.reaper.birth();
        let mut call = Call::silent("create", &task.bundle, args, deadline);
        call.streams = streams;
        let (live, ended) = self.runtime.bear(birth, call, &pid_file).await?;
        let pid = live.pid;
        self.adopt(task, live.clone(), ended);
        task.priorities.give(&live)?;
        oom::give(&live, oom::of_bundle(&task.bundle))?;
        if let Some(socket) = console {
            let master = socket.receive()?;
            self.connect_terminal(task, &create.output, &master)?;
            let _ = task.console.set(master);
        }
        task.set_phase(Phase::Created);
        Ok(pid)
    }

    /// Output is being read before there is any.
    fn connect_streams(
        &self,
        task: &Task,
        create: &Create,
    ) -> Result<(Streams, Option<ConsoleSocket>)> {
        if task.tty {
            let socket = ConsoleSocket::bind(&task.bundle, "tty.sock".to_owned())?;
            return Ok((Streams::default(), Some(socket)));
        }
        let options = match &create.output {
            Output::Log(options) => options,
            Output::Fifos(fifos) => {
                let (theirs, held) = fifos.theirs(self.root)?;
                let _ = task.fifos.set(held);
                return Ok((Streams::of(theirs), None));
            }
        };
        let pipes = Pipes::make(&task.bundle, options.stdin, self.root)?;
        let source = source(task, options)?
            .with_output(Stream::Stdout, pipes.stdout)
            .with_output(Stream::Stderr, pipes.stderr)
            .with_input(pipes.stdin);
        self.io.add(source)?;
        Ok((Streams::of(pipes.theirs), None))
    }

    fn connect_terminal(&self, task: &Arc<Task>, output: &Output, master: &OwnedFd) -> Result<()> {
        let options = match output {
            Output::Log(options) => options,
            Output::Fifos(fifos) => return self.show_terminal(task, fifos, master),
        };
        let source = source(task, options)?
            .with_output(Stream::Stdout, copy_of(master)?)
            .with_input(options.stdin.then(|| copy_of(master)).transpose()?);
        Ok(self.io.add(source)?)
    }

    fn show_terminal(&self, task: &Arc<Task>, fifos: &Fifos, master: &OwnedFd) -> Result<()> {
        let (stdin, stdout) = fifos.of_terminal()?;
        let _ = task.fifos.set(Held(Mutex::new(None)));
        self.work.spawn(console::show(copy_of(master)?, stdout));
        if let Some(stdin) = stdin {
            let (typed, task) = (console::type_in(copy_of(master)?, stdin), Arc::clone(task));
            self.work.spawn(async move {
                // The pipe does not end before the container.
                tokio::select! {
                    typed = typed => typed,
                    _ = task.init.wait() => Ok(()),
                }
            });
        }
        Ok(())
    }

    /// From here on its end is ours to tell.
    fn adopt(self: &Arc<Self>, task: &Arc<Task>, live: Live, ended: oneshot::Receiver<Ended>) {
        let pid = live.pid;
        task.init.begin(live);
        match Group::of(&self.layout, pid) {
            Ok(Some(group)) => {
                if self.runtime.config.systemd_cgroup
                    && let Some(watch) = group.watch()
                {
                    self.work.spawn(watch);
                }
                let _ = task.group.set(group);
            }
            Ok(None) => {}
            // It may have ended already.
            Err(error) => note::debug(error),
        }
        let own = pid_namespace(pid).is_some_and(|own| !self.shared_pids.contains(&own));
        task.has_own_pids.store(own, Ordering::Relaxed);
        task.write_record(None);
        let (tasks, task) = (Arc::clone(self), Arc::clone(task));
        self.work.spawn(async move {
            if let Ok(ended) = ended.await {
                tasks.on_end(&task, ended).await;
            }
        });
    }

    async fn undo_create(&self, task: &Task) {
        if let Some(live) = task.init.live() {
            let _ = live.signal(SIGKILL);
        }
        if self.runtime.knows(&task.id) {
            let args = vec!["--force".into(), task.id.clone().into()];
            let deadline = Some(Instant::now() + UNDO);
            let call = Call::silent("delete", &task.bundle, args, deadline);
            if let Err(error) = self.runtime.run(call).await {
                note::warn(format_args!("undo the creation of {}: {error}", task.id));
            }
        }
        if task.init.live().is_some() {
            // Its end is recorded; only then can the record be removed.
            let _ = timeout(UNDO, task.init.wait()).await;
        }
        if timeout(LAST_WORDS, self.io.finish(&task.id)).await.is_err() {
            note::warn(format_args!("log of {} is behind", task.id));
        }
        self.forget(task);
    }

    fn forget(&self, task: &Task) {
        if task.keeps_streams() {
            Pipes::remove(&task.bundle);
        }
        task.execs.lock().values().for_each(|exec| exec.forgotten.cancel());
        task.record.remove();
        self.all.lock().remove(&task.id);
        self.changed.send_modify(|count| *count += 1);
    }

    // === the end ===

    async fn on_end(&self, task: &Task, ended: Ended) {
        // Before anyone can remove the group.
        let oom = task.group.get().is_some_and(Group::was_oom);
        if !task.has_own_pids.load(Ordering::Relaxed)
            && let Some(group) = task.group.get()
            && let Err(error) = group.kill().await
        {
            note::warn(error);
        }
        let execs: Vec<_> = task.execs.lock().values().cloned().collect();
        let running = execs.iter().filter(|exec| exec.process.pid() != 0);
        for exec in running {
            let _ = timeout(LAST_EXECS, exec.process.wait()).await;
        }
        match timeout(LAST_WORDS, self.io.drain(&task.id)).await {
            Ok(Ok(errors)) => task.log_errors.store(errors, Ordering::Relaxed),
            _ => note::warn(format_args!("log of {} is behind", task.id)),
        }
        task.end(ended, oom);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Not cancel safe: to be awaited in a task of its own.
    pub(crate) async fn delete(&self, id: &str, deadline: Option<Instant>) -> Result<Exit> {
        let task = self.get(id)?;
        let _turn = task.turn.lock().await;
        // Another may have been quicker.
        self.get(id)?;
        task.require("delete", &[Phase::Stopped])?;
        // The end is published a moment after the phase says so.
        let ended = task.init.wait().await;
        if self.runtime.knows(id) {
            let call = Call::silent("delete", &task.bundle, vec![id.into()], deadline);
            match self.runtime.run(call).await {
                Err(error) if self.runtime.knows(id) => return Err(error),
                _ => {}
            }
        }
        // If the log thread is too busy the caller tries again; the rest is done by then.
        let errors = self.io.finish(id).await?;
        task.log_errors.store(errors, Ordering::Relaxed);
        self.forget(&task);
        Ok(task.exit(&ended))
    }

    // === what is done with one that lives ===

    /// Returns when the container's program runs, so that it can be signalled. Not cancel safe:
    /// to be awaited in a task of its own.
    pub(crate) async fn start(&self, id: &str, deadline: Option<Instant>) -> Result<u32> {
        let task = self.get(id)?;
        let turn = task.turn.lock().await;
        task.require("start", &[Phase::Created])?;
        let call = Call::silent("start", &task.bundle, vec![id.into()], deadline);
        self.runtime.run(call).await?;
        task.set_phase(Phase::Running);
        drop(turn);
        if let Some(live) = task.init.live() {
            live.executed().await;
        }
        Ok(task.init.pid())
    }

    pub(crate) async fn kill(&self, id: &str, signal: i32, all: bool) -> Result<()> {
        let task = self.get(id)?;
        let group = task.group.get();
        match group {
            Some(group) if all && signal == SIGKILL => return group.kill().await,
            Some(group) if all => return signal_each(group, signal),
            _ => {}
        }
        let reached = match task.init.live().filter(|_| task.phase() != Phase::Stopped) {
            Some(live) => live.signal(signal)?,
            None => false,
        };
        if !reached {
            return Err(Error::NotFound {
                what: "running process of container",
                id: id.to_owned(),
            });
        }
        // Whoever froze it: version 1 holds a frozen process even from its death.
        match group {
            Some(group) if signal == SIGKILL => group.thaw(),
            _ => Ok(()),
        }
    }

    /// Sends SIGKILL to every process of every container that runs. Their ends tell of success.
    pub(crate) async fn kill_all(&self) {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        for task in all.iter().filter(|task| task.phase() != Phase::Stopped) {
            if let Err(error) = self.kill(&task.id, SIGKILL, true).await {
                note::debug(error);
            }
        }
    }

    pub(crate) fn kill_exec(&self, id: &str, exec_id: &str, signal: i32) -> Result<()> {
        let exec = self.get(id)?.exec(exec_id)?;
        let reached = match exec.process.live().filter(|_| exec.process.ended().is_none()) {
            Some(live) => live.signal(signal)?,
            None => false,
        };
        let missing = || Error::NotFound { what: "running process", id: exec_id.to_owned() };
        reached.then_some(()).ok_or_else(missing)
    }

    pub(crate) async fn set_paused(&self, id: &str, paused: bool) -> Result<()> {
        let task = self.get(id)?;
        let _turn = task.turn.lock().await;
        let (wanted, from, to) = match paused {
            true => ("pause", Phase::Running, Phase::Paused),
            false => ("resume", Phase::Paused, Phase::Running),
        };
        task.require(wanted, &[from])?;
        group_of(&task)?.freeze(paused).await?;
        task.set_phase(to);
        Ok(())
    }

    pub(crate) fn pids(&self, id: &str) -> Result<Vec<u32>> {
        let task = self.get(id)?;
        match (task.phase(), task.group.get()) {
            (Phase::Stopped, _) => Ok(Vec::new()),
            (_, Some(group)) => group.pids(),
            (_, None) => Ok(vec![task.init.pid()]),
        }
    }

    pub(crate) fn stats(&self, id: &str) -> Result<Metrics> {
        let task = self.get(id)?;
        task.require("measure", &[Phase::Created, Phase::Running, Phase::Paused])?;
        stats::of(&group_of(&task)?.cgroup())
    }

    /// Not cancel safe: to be awaited in a task of its own.
    pub(crate) async fn update(
        &self,
        id: &str,
        resources: Vec<u8>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let task = self.get(id)?;
        let _turn = task.turn.lock().await;
        task.require("update", &[Phase::Created, Phase::Running, Phase::Paused])?;
        if self.runtime.config.systemd_cgroup {
            return self.update_by_runtime(&task, &resources, deadline).await;
        }
        let group = group_of(&task)?.cgroup();
        let wanted = update::parse(&resources)?;
        // Lowering a memory limit may take the kernel a while.
        let applied = off_thread("update", move || Ok(update::apply(&group, &wanted))).await?;
        applied.map_err(|why| Error::Invalid { field: "resources", why })
    }

    /// systemd writes back what it knows: it must hear of changes.
    async fn update_by_runtime(
        &self,
        task: &Task,
        resources: &[u8],
        deadline: Option<Instant>,
    ) -> Result<()> {
        let file = task.bundle.join("update.json");
        std::fs::write(&file, resources).map_err(Error::on("write", &file))?;
        let args = vec!["--resources".into(), file.clone().into(), task.id.clone().into()];
        let call = Call::silent("update", &task.bundle, args, deadline);
        let done = self.runtime.run(call).await;
        let _ = std::fs::remove_file(&file);
        done
    }

    pub(crate) fn close_stdin(&self, id: &str, exec_id: &str) -> Result<()> {
        let task = self.get(id)?;
        match (exec_id, task.fifos.get()) {
            ("", None) => Ok(self.io.close_stdin(id)?),
            ("", Some(held)) => {
                held.0.lock().take();
                Ok(())
            }
            // Its pipe is the client's own, who closes it.
            (exec_id, _) => task.exec(exec_id).map(drop),
        }
    }

    /// Cancel safe.
    pub(crate) async fn reopen_log(&self, id: &str) -> Result<()> {
        self.get(id)?;
        Ok(self.io.reopen(id).await?)
    }
}

fn root_of(user: &UserNs) -> Option<(Uid, Gid)> {
    let outside = |maps: &[IdMap]| maps.iter().find(|map| map.inside == 0).map(|map| map.outside);
    Some((Uid::from_raw(outside(&user.uids)?), Gid::from_raw(outside(&user.gids)?)))
}

fn source(task: &Task, options: &CreateOptions) -> Result<Source> {
    let log = options.log.as_ref().map(|wanted| {
        let format = match wanted.format() {
            log::Format::Cri => Format::Cri,
            log::Format::JsonFile => Format::JsonFile,
        };
        let path = PathBuf::from(&wanted.path);
        let max_line = usize::try_from(wanted.max_line).unwrap_or(usize::MAX);
        let opened = LogFile::open(path.clone(), format, max_line, |text| note::warn(text));
        opened.map_err(Error::on("open the log", &path))
    });
    // A terminal has no end of input to give.
    let stdin_once = options.stdin_once && !task.tty;
    Ok(Source::new(task.id.clone(), stdin_once, log.transpose()?))
}

fn group_of(task: &Task) -> Result<&Group> {
    let why = || format!("container {:?} has no cgroup of its own", task.id);
    task.group.get().ok_or_else(|| Error::Invalid { field: "id", why: why() })
}

/// A process that ends meanwhile needs no signal.
fn signal_each(group: &Group, signal: i32) -> Result<()> {
    for pid in group.pids()? {
        if let Ok(process) = Live::open(pid)
            && group.pids()?.contains(&pid)
        {
            process.signal(signal)?;
        }
    }
    Ok(())
}

fn pid_namespace(pid: u32) -> Option<(u64, u64)> {
    sys::namespace::identity(Path::new(&format!("/proc/{pid}/ns/pid"))).ok()
}
