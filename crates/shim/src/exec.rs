//! A process added to a container that runs.
//!
//! Without a terminal the client's pipes are handed straight to the process. With one, two
//! small tasks of the control thread pass bytes between the terminal and the pipes.
//!
//! A process outlives the client that started it: its output is then read here and thrown away,
//! its input ends, and it is forgotten when it has ended.

use std::{
    ffi::OsString,
    fs::{self, File},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use api_shim::{longshore::Exit, process::Status, task::v3::ExecProcessRequest};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    console::{self, ConsoleSocket, copy_of},
    error::{Error, Result},
    note, oom,
    process::{Ended, Process},
    runtime::{Call, Streams},
    stdio,
    task::{Phase, Task, check_id},
    tasks::{SIGKILL, Tasks},
};

/// Our ends of the pipes of an exec with a terminal: what is typed, what is shown.
type Ends = (Option<File>, Option<File>);

/// What ends the input of a terminal: Ctrl-D.
const END_OF_INPUT: u8 = 4;

#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: String,
    tty: bool,
    stdio: [Option<PathBuf>; 3],
    pub(crate) process: Process,
    /// Our side of its terminal.
    pub(crate) console: OnceLock<OwnedFd>,
    /// An OCI process in JSON; taken when it is started, which happens once.
    spec: Mutex<Option<Vec<u8>>>,
    /// Second readers of its output, for the case that its client dies.
    spares: Mutex<Vec<File>>,
    /// Cancelled when nobody can ask for it any more.
    pub(crate) forgotten: CancellationToken,
}

impl Exec {
    pub(crate) fn new(request: ExecProcessRequest) -> Result<Self> {
        check_id("exec_id", &request.exec_id)?;
        let missing = || Error::Invalid { field: "spec", why: "is missing".to_owned() };
        let spec = request.spec.ok_or_else(missing)?.value;
        let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
        Ok(Self {
            id: request.exec_id,
            tty: request.terminal,
            stdio: [path(request.stdin), path(request.stdout), path(request.stderr)],
            process: Process::new(),
            console: OnceLock::new(),
            spec: Mutex::new(Some(spec)),
            spares: Mutex::default(),
            forgotten: CancellationToken::new(),
        })
    }

    pub(crate) fn exit(ended: &Ended) -> Exit {
        let at = Some(clock::to_wire(ended.at));
        Exit { status: ended.status, at, oom: false, log_errors: 0 }
    }

    /// `outlives`: the process is to outlive its client.
    fn streams(&self, outlives: bool) -> Result<Streams> {
        let [stdin, stdout, stderr] = self.stdio.each_ref().map(Option::as_ref);
        if self.tty {
            return Ok(Streams::default());
        }
        let streams = Streams::of(stdio::exec_ends([stdin, stdout, stderr])?);
        if outlives {
            *self.spares.lock() = stdio::exec_spares([stdout, stderr])?;
        }
        Ok(streams)
    }

    fn terminal_ends(&self) -> Result<Option<Ends>> {
        let [stdin, stdout, _] = &self.stdio;
        self.tty.then(|| stdio::terminal_ends(stdin.as_ref(), stdout.as_ref())).transpose()
    }

    pub(crate) fn status(&self) -> Status {
        match (self.process.ended(), self.spec.lock().is_some()) {
            (Some(_), _) => Status::Stopped,
            (None, true) => Status::Created,
            (None, false) => Status::Running,
        }
    }

    fn is_under_way(&self) -> bool {
        self.spec.lock().is_none() && self.process.ended().is_none()
    }
}

impl Tasks {
    pub(crate) fn add_exec(&self, request: ExecProcessRequest) -> Result<()> {
        let task = self.get(&request.id)?;
        let exec = Exec::new(request)?;
        let mut execs = task.execs.lock();
        if execs.contains_key(&exec.id) {
            return Err(Error::Exists { what: "process", id: exec.id });
        }
        execs.insert(exec.id.clone(), Arc::new(exec));
        Ok(())
    }

    /// `client` is cancelled when whoever starts it has gone away. Not cancel safe: to be awaited
    /// in a task of its own.
    pub(crate) async fn start_exec(
        self: &Arc<Self>,
        id: &str,
        exec_id: &str,
        deadline: Option<Instant>,
        client: CancellationToken,
    ) -> Result<u32> {
        let task = self.get(id)?;
        let exec = task.exec(exec_id)?;
        task.require("start a process", &[Phase::Running])?;
        let Some(spec) = exec.spec.lock().take() else {
            let (wanted, what, id) = ("start", "process", exec_id.to_owned());
            return Err(Error::Phase { wanted, what, id, phase: "started already".to_owned() });
        };
        let started = self.run_exec(&task, &exec, &spec, deadline).await;
        if started.is_err() && exec.process.live().is_none() {
            // What never ran has an end too, or whoever waits for it waits for ever.
            let ended = Ended { status: 255, at: std::time::SystemTime::now() };
            exec.process.end(ended);
        }
        if task.keeps_streams() {
            self.work.spawn(outlive(task, exec, client));
        }
        started
    }

    async fn run_exec(
        self: &Arc<Self>,
        task: &Arc<Task>,
        exec: &Arc<Exec>,
        spec: &[u8],
        deadline: Option<Instant>,
    ) -> Result<u32> {
        let file = |suffix: &str| task.bundle.join(format!("x{}.{suffix}", exec.id));
        let (spec_file, pid_file) = (file("json"), file("pid"));
        let streams = exec.streams(task.keeps_streams())?;
        let ends = exec.terminal_ends()?;
        fs::write(&spec_file, spec).map_err(Error::on("write", &spec_file))?;
        let console = match exec.tty {
            true => Some(ConsoleSocket::bind(&task.bundle, format!("x{}.sock", exec.id))?),
            false => None,
        };
        let mut args: Vec<OsString> = vec!["--detach".into(), "--process".into()];
        args.extend([spec_file.clone().into(), "--pid-file".into(), pid_file.clone().into()]);
        if let Some(socket) = &console {
            args.extend(["--console-socket".into(), socket.address.clone().into()]);
        }
        args.push(task.id.clone().into());
        let birth = self.runtime.reaper.birth();
        let mut call = Call::silent("exec", &task.bundle, args, deadline);
        call.streams = streams;
        let (inherited, late) = task.priorities.for_added();
        call.priorities = inherited;
        let born = self.runtime.bear(birth, call, &pid_file).await;
        let _ = fs::remove_file(&spec_file);
        let (live, ended) = born?;
        let pid = live.pid;
        exec.process.begin(live.clone());
        let exec_of = Arc::clone(exec);
        self.work.spawn(async move {
            if let Ok(ended) = ended.await {
                exec_of.process.end(ended);
            }
        });
        let score = oom::of_process(spec);
        let given = late.give(&live).and_then(|()| oom::give(&live, score));
        let ready = given.and_then(|()| match (console, ends) {
            (Some(socket), Some(ends)) => {
                socket.receive().and_then(|tty| self.serve_terminal(exec, tty, ends))
            }
            _ => Ok(()),
        });
        if let Err(error) = ready {
            // It runs, but not as it should, or nobody could talk to it.
            let _ = self.kill_exec(&task.id, &exec.id, SIGKILL);
            return Err(error);
        }
        Ok(pid)
    }

    fn serve_terminal(&self, exec: &Exec, master: OwnedFd, ends: Ends) -> Result<()> {
        let (stdin, stdout) = ends;
        if let Some(stdin) = stdin {
            self.work.spawn(console::type_in(copy_of(&master)?, stdin));
        }
        self.work.spawn(console::show(copy_of(&master)?, stdout));
        let _ = exec.console.set(master);
        Ok(())
    }

    pub(crate) async fn delete_exec(&self, id: &str, exec_id: &str) -> Result<Exit> {
        let task = self.get(id)?;
        let exec = task.exec(exec_id)?;
        if exec.is_under_way() {
            let (wanted, what, id) = ("delete", "process", exec_id.to_owned());
            return Err(Error::Phase { wanted, what, id, phase: "running".to_owned() });
        }
        task.forget_exec(&exec);
        // One that was never started did not end; nobody asks how.
        let never = Ended { status: 0, at: std::time::SystemTime::now() };
        Ok(Exec::exit(&exec.process.ended().unwrap_or(never)))
    }
}

/// Types the end of input, for a shell that nobody can talk to any more to end as other commands
/// do. More than once, because it may be read by a program that the shell waits for, or be lost
/// when a program changes the mode of the terminal. Never returns.
async fn end_input(terminal: Option<&OwnedFd>) {
    const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];
    let [mut pause, longest] = PAUSES;
    let Some(terminal) = terminal else { return std::future::pending().await };
    loop {
        // One that is full has enough to read.
        let _ = rustix::io::write(terminal, &[END_OF_INPUT]);
        sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

/// Takes over an exec whose client goes away before it has asked for the end.
async fn outlive(task: Arc<Task>, exec: Arc<Exec>, client: CancellationToken) {
    tokio::select! {
        biased;
        () = exec.forgotten.cancelled() => return,
        () = client.cancelled() => {}
    }
    note::debug(format_args!("the client of process {} in {} is gone", exec.id, task.id));
    let mut output: JoinSet<_> = exec.spares.lock().drain(..).map(stdio::discard).collect();
    tokio::select! {
        _ = exec.process.wait() => {}
        () = end_input(exec.console.get()) => {}
    }
    task.forget_exec(&exec);
    // Its children may still write.
    while output.join_next().await.is_some() {}
}
