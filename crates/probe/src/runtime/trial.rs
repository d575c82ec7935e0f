//! One container, from `create` to `delete`, and the cleaning after it.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::time::Instant;

use super::{
    Broken,
    bundle::{Bundle, MARK, Shell, cgroup_dir, cgroups_path},
    sweep,
};
use crate::{
    cgroup::Hierarchies,
    host::{Driver, HostPaths, Settings},
    program::{Deadline, Ended, run},
    scratch::Scratch,
};

/// Cleaning has its own time: a trial that used up its limit must still be undone.
const UNDO_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn container(
    host: &HostPaths,
    settings: &Settings,
    found: &Hierarchies,
    program: &Path,
    spec_version: &str,
) -> Result<Duration, Broken> {
    let scratch = Scratch::below(settings.root_or_ancestor()).map_err(Broken::Prepare)?;
    let driver = settings.driver.unwrap_or_else(|| host.default_driver());
    let nonce = &scratch.nonce;
    let trial = Trial {
        program,
        driver,
        nonce,
        id: format!("longshore-check-{nonce}"),
        state: scratch.dir("state").map_err(Broken::Prepare)?,
        bundle: scratch.dir("bundle").map_err(Broken::Prepare)?,
        deadline: Deadline::after(settings.limit),
    };
    let shell = Shell::find(host);
    let cgroups_path = cgroups_path(driver, nonce);
    let bundle = Bundle { shell: &shell, nonce, spec_version, cgroups_path: &cgroups_path };
    bundle.write(&trial.bundle).map_err(Broken::Prepare)?;

    let result = trial.run(&bundle);
    if result.is_err() {
        trial.undo();
    }
    let cgroups = found.points(host).map(|point| point.join(cgroup_dir(driver, nonce)));
    let swept = sweep::remove_cgroups(cgroups).map_err(Broken::Litter);
    // The first failure explains the second.
    result.and_then(|took| swept.map(|()| took))
}

struct Trial<'a> {
    program: &'a Path,
    driver: Driver,
    nonce: &'a str,
    id: String,
    state: PathBuf,
    bundle: PathBuf,
    deadline: Deadline,
}

// === impl Trial ===

impl Trial<'_> {
    fn run(&self, bundle: &Bundle<'_>) -> Result<Duration, Broken> {
        let begin = Instant::now();
        let pid_file = self.bundle.join("pid");
        let created = self.step("create", |command| {
            command.arg("--bundle").arg(&self.bundle).arg("--pid-file").arg(&pid_file);
        })?;
        let init = self.init(&pid_file)?;
        self.step("start", |_| ())?;
        if !self.deadline.wait_readable(&init).map_err(Broken::Watch)? {
            return Err(Broken::ContainerHung(self.deadline.limit()));
        }
        // The container has the stdout that `create` was given.
        let said = created.stdout.text();
        if said != bundle.answer() {
            return Err(Broken::WrongOutput(said));
        }
        self.step("delete", |_| ())?;
        Ok(begin.elapsed())
    }

    /// Opened between `create` and `start`, when the process waits and its id cannot be reused.
    fn init(&self, pid_file: &Path) -> Result<OwnedFd, Broken> {
        let pid = fs::read_to_string(pid_file).map_err(Broken::Watch)?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Broken::Watch(io::ErrorKind::InvalidData.into()))?;
        pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| Broken::Watch(errno.into()))
    }

    fn step(&self, step: &'static str, extra: impl Fn(&mut Command)) -> Result<Ended, Broken> {
        let mut command = self.command(step);
        extra(&mut command);
        let ended =
            run(command.arg(&self.id), self.deadline).map_err(|error| Broken::by(step, error))?;
        if ended.status.success() {
            return Ok(ended);
        }
        Err(Broken::Refused { step, said: ended.complaint() })
    }

    fn command(&self, step: &str) -> Command {
        let mut command = Command::new(self.program);
        command.env(MARK, self.nonce).arg("--root").arg(&self.state);
        if self.driver == Driver::Systemd {
            command.arg("--systemd-cgroup");
        }
        command.arg(step);
        command
    }

    fn undo(&self) {
        let mut command = self.command("delete");
        // Its failure is no news: there may be nothing to delete.
        let _ = run(command.arg("--force").arg(&self.id), Deadline::after(UNDO_LIMIT));
        sweep::kill_marked(self.nonce);
    }
}
