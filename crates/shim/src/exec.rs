//! A process added to a container that runs.
//!
//! Without a terminal the client's pipes are handed straight to the process. With one, two
//! small tasks of the control thread pass bytes between the terminal and the pipes.

use std::{
    ffi::OsString,
    fs::{self, File},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use api_shim::{longshore::Exit, process::Status, task::v3::ExecProcessRequest};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    clock,
    console::{self, ConsoleSocket, copy_of},
    error::{Error, Result},
    process::{Ended, Process},
    runtime::{Call, Streams},
    stdio,
    task::{Phase, Task, check_id},
    tasks::{SIGKILL, Tasks},
};

/// Our ends of the pipes of an exec with a terminal: what is typed, what is shown.
type Ends = (Option<File>, Option<File>);

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
        })
    }

    pub(crate) fn exit(ended: &Ended) -> Exit {
        let at = Some(clock::to_wire(ended.at));
        Exit { status: ended.status, at, oom: false, log_errors: 0 }
    }

    fn streams(&self) -> Result<Streams> {
        let [stdin, stdout, stderr] = &self.stdio;
        match self.tty {
            true => Ok(Streams::default()),
            false => {
                let ends = [stdin.as_ref(), stdout.as_ref(), stderr.as_ref()];
                Ok(Streams::of(stdio::exec_ends(ends)?))
            }
        }
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

    /// Not cancel safe: to be awaited in a task of its own.
    pub(crate) async fn start_exec(
        self: &Arc<Self>,
        id: &str,
        exec_id: &str,
        deadline: Option<Instant>,
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
        let streams = exec.streams()?;
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
        let ready = late.give(&live).and_then(|()| match (console, ends) {
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
        task.execs.lock().remove(exec_id);
        // One that was never started did not end; nobody asks how.
        let never = Ended { status: 0, at: std::time::SystemTime::now() };
        Ok(Exec::exit(&exec.process.ended().unwrap_or(never)))
    }
}
