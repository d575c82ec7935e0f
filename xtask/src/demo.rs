//! A tour of the daemon that leaves nothing behind.
//!
//! Everything it writes lies under `.demo` in the project, which is removed at the end, whatever
//! the end was. The tour fails when the daemon does not answer, does not stop with code 0, or
//! leaves a socket, a mount or a process.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::bin_dir;

mod walk;

const DIR: &str = ".demo";

const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "demo", "plugins": [
  {"type": "bridge", "bridge": "lsdemo0", "isGateway": true, "ipMasq": true, "ipam":
    {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/24"}]], "dataDir": "LEASES"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;

const TICK: Duration = Duration::from_millis(50);
/// For the daemon to answer, and again for it to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds, and then tours in a network namespace of its own: bridges and rules go with it.
pub(crate) fn run(root: &Path) -> Result<()> {
    say("building the daemon");
    let status = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--locked", "--package", "longshore", "--package", "shim"])
        .status()
        .context("run cargo build")?;
    ensure!(status.success(), "cargo build: {status}");
    let status = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--locked", "--package", "nri-sdk", "--example", walk::PLUGIN])
        .status()
        .context("run cargo build of a plugin")?;
    ensure!(status.success(), "cargo build of a plugin: {status}");
    let own = std::env::current_exe().context("find the path of xtask")?;
    let up = "ip link set lo up && exec \"$0\" demo-inside";
    let mut inside = Command::new("unshare");
    inside.args(["--net", "sh", "-c", up]).arg(own);
    let status = inside.status().context("run unshare")?;
    ensure!(status.success(), "the tour: {status}");
    Ok(())
}

/// The tour itself.
pub(crate) fn run_inside(root: &Path) -> Result<()> {
    let demo = Demo::prepare(root, bin_dir()?.join("longshore"))?;
    let result = demo.tour(walk::walk);
    if result.is_err() {
        eprintln!("--- log of the daemon\n{}---", demo.log());
    }
    let removed = demo.remove();
    result.and(removed)?;
    say("done, and nothing is left behind");
    Ok(())
}

struct Demo {
    program: PathBuf,
    dir: PathBuf,
}

impl Demo {
    fn prepare(root: &Path, program: PathBuf) -> Result<Self> {
        let demo = Self { program, dir: root.join(DIR) };
        let alive = UnixStream::connect(demo.socket()).is_ok();
        ensure!(!alive, "a daemon is already running under {}", demo.dir.display());
        demo.remove()?;
        fs::create_dir(&demo.dir).with_context(|| format!("create {}", demo.dir.display()))?;
        // Empty, so that the host's own file does not take part.
        fs::write(demo.config(), "").context("write the demo's configuration")?;
        demo.network().context("write the demo's network")?;
        Ok(demo)
    }

    fn network(&self) -> Result<()> {
        let dir = self.dir.join("net.d");
        fs::create_dir(&dir)?;
        let conf = NETWORK.replace("LEASES", &self.dir.join("leases").to_string_lossy());
        Ok(fs::write(dir.join("10-demo.conflist"), conf)?)
    }

    /// `walk` is what is shown between the start and the end.
    fn tour(&self, walk: impl Fn(&Self, &mut Daemon) -> Result<()>) -> Result<()> {
        let mut daemon = self.start()?;
        let answer = self.wait_for_answer(&mut daemon)?;
        ensure!(!answer.trim().is_empty(), "longshore info had nothing to say");
        print!("{answer}");
        walk(self, &mut daemon)?;
        say("SIGTERM");
        let status = daemon.stop()?;
        ensure!(status.success(), "the daemon ended with {status} after SIGTERM");
        let leftovers = self.leftovers()?;
        ensure!(leftovers.is_empty(), "the daemon left behind: {}", leftovers.join(", "));
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("run/longshore.sock")
    }

    fn config(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// Without settings that the environment happens to hold for another daemon.
    fn longshore(&self) -> Command {
        let mut command = Command::new(&self.program);
        for (key, _) in std::env::vars_os() {
            if key.as_encoded_bytes().starts_with(b"LONGSHORE_") {
                command.env_remove(key);
            }
        }
        command.stdin(Stdio::null());
        command
    }

    /// Without its socket's own flag: below `--state` is where it belongs by itself.
    fn daemon(&self) -> Command {
        let mut command = self.longshore();
        command.arg("daemon").arg("--config").arg(self.config());
        command.arg("--root").arg(self.dir.join("lib"));
        command.arg("--state").arg(self.dir.join("run"));
        command.arg("--cni-conf-dir").arg(self.dir.join("net.d"));
        command
    }

    fn info(&self) -> Command {
        let mut command = self.longshore();
        command.arg("info").arg("--cri-socket").arg(self.socket());
        command
    }

    fn start(&self) -> Result<Daemon> {
        let log = File::create(self.dir.join("daemon.log")).context("create the daemon's log")?;
        let errors = log.try_clone().context("share the daemon's log")?;
        let mut command = self.daemon();
        say(&line(&command));
        let child = command.stdout(log).stderr(errors).spawn();
        Ok(Daemon { child: child.context("start the daemon")? })
    }

    /// The daemon answers `Unavailable` until it has initialised, so asking is how to wait.
    fn wait_for_answer(&self, daemon: &mut Daemon) -> Result<String> {
        let mut last = String::new();
        for _ in 0..ticks(PATIENCE) {
            if let Some(status) = daemon.child.try_wait().context("look after the daemon")? {
                bail!("the daemon ended with {status} before it answered");
            }
            let mut command = self.info();
            let output = command.output().context("run longshore info")?;
            if output.status.success() {
                say(&line(&command));
                return String::from_utf8(output.stdout).context("read the daemon's answer");
            }
            last = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            thread::sleep(TICK);
        }
        bail!("the daemon did not answer within {PATIENCE:?}: {last}")
    }

    fn leftovers(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        sockets(&self.dir, &mut found)?;
        found.extend(self.mounts()?);
        found.extend(processes_inside(&self.dir)?);
        Ok(found)
    }

    fn mounts(&self) -> Result<Vec<String>> {
        let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
        Ok(mounts_below(&table, &self.dir.to_string_lossy()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("daemon.log")).unwrap_or_default()
    }

    fn remove(&self) -> Result<()> {
        // Deleting through a mount would delete what is mounted.
        let mounts = self.mounts()?;
        ensure!(mounts.is_empty(), "not removed, unmount first: {}", mounts.join(", "));
        match fs::remove_dir_all(&self.dir) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).with_context(|| format!("remove {}", self.dir.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Ends with its owner, however that one ends.
struct Daemon {
    child: Child,
}

impl Daemon {
    /// As by the kernel, or an impatient operator.
    fn kill_9(&mut self) -> Result<()> {
        self.child.kill().context("kill the daemon")?;
        self.child.wait().context("wait for the daemon")?;
        Ok(())
    }

    /// By the shell's own kill: a minimal Debian has no program of that name.
    fn signal(&self, name: &str) -> Result<()> {
        let (pid, kill) = (self.child.id().to_string(), format!("kill -{name} \"$0\""));
        let sent = Command::new("sh").args(["-c", &kill, &pid]).status().context("run kill")?;
        ensure!(sent.success(), "could not signal the daemon");
        Ok(())
    }

    fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait().context("look after the daemon")? {
            bail!("the daemon ended with {status} before it was told to");
        }
        self.signal("TERM")?;
        for _ in 0..ticks(PATIENCE) {
            if let Some(status) = self.child.try_wait().context("wait for the daemon")? {
                return Ok(status);
            }
            thread::sleep(TICK);
        }
        bail!("the daemon did not stop within {PATIENCE:?}")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sockets(dir: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry.with_context(|| format!("list {}", dir.display()))?;
        let kind = entry.file_type().context("look at a leftover")?;
        if kind.is_dir() {
            sockets(&entry.path(), found)?;
        } else if kind.is_socket() {
            found.push(format!("socket {}", entry.path().display()));
        }
    }
    Ok(())
}

/// The mount point is the fifth field of a line of mountinfo.
fn mounts_below(mountinfo: &str, dir: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.filter(|point| Path::new(point).starts_with(dir));
    below.map(|point| format!("mount {point}")).collect()
}

/// Processes with a file of the demo open: their log, at least.
fn processes_inside(dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let process = entry.context("list /proc")?.path();
        let is_process = process
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        if !is_process {
            continue;
        }
        // Gone meanwhile, or not ours to look at.
        let Ok(open) = fs::read_dir(process.join("fd")) else { continue };
        let mut targets = open.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        if targets.any(|target| target.starts_with(dir)) {
            found.push(format!("process {}", process.display()));
        }
    }
    Ok(found)
}

fn ticks(time: Duration) -> u128 {
    time.as_millis() / TICK.as_millis()
}

/// A command as one would type it.
fn line(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = [name].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn say(what: &str) {
    println!("demo: {what}");
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_socket_left_behind_is_found() {
        let dir = scratch("socket");
        fs::create_dir(dir.join("run")).unwrap();
        let path = dir.join("run/x.sock");
        drop(UnixListener::bind(&path).unwrap());
        let mut found = Vec::new();
        sockets(&dir, &mut found).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [format!("socket {}", path.display())]);
    }

    #[test]
    fn a_process_with_an_open_file_is_found() {
        let dir = scratch("open");
        assert!(processes_inside(&dir).unwrap().is_empty());
        let file = File::create(dir.join("log")).unwrap();
        let found = processes_inside(&dir).unwrap();
        drop(file);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [format!("process /proc/{}", std::process::id())]);
    }

    #[test]
    fn mounts_below_the_directory_are_found() {
        let table = "36 35 98:0 / /src/.demo/run/ns rw - nsfs nsfs rw\n\
                     37 35 98:0 / /src/.demolition rw - ext4 /dev/x rw\n";
        assert_eq!(mounts_below(table, "/src/.demo"), ["mount /src/.demo/run/ns"]);
    }

    /// Runs the tour with a shell script in place of `longshore`.
    #[track_caller]
    fn tour(name: &str, daemon: &str, want: &str) {
        let root = scratch(name);
        let program = root.join("longshore");
        let info = "if [ $1 = info ]; then test -e .demo/ready && echo up; exit; fi";
        let script = format!("#!/bin/sh\ncd ${{0%/*}}\n{info}\n{daemon}\n");
        // Written by another process: a program that a fork of ours still has open for writing
        // could not be run.
        let write = "printf %s \"$1\" >\"$0\" && chmod +x \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status();
        assert!(written.unwrap().success());

        let demo = Demo::prepare(&root, program).unwrap();
        let got = demo.tour(|_, _| Ok(())).map_or_else(|e| e.to_string(), |()| "fine".to_owned());
        demo.remove().unwrap();
        if let Ok(child) = fs::read_to_string(root.join("child")) {
            let killed = Command::new("sh").args(["-c", "kill $0", child.trim()]).status();
            assert!(killed.unwrap().success());
        }
        fs::remove_dir_all(&root).unwrap();
        assert!(got.contains(want), "{got}");
    }

    const UNTIL_TERM: &str = "trap 'exit 0' TERM; touch .demo/ready; while :; do sleep 0.1; done";

    #[test]
    fn a_good_daemon_passes() {
        tour("good", UNTIL_TERM, "fine");
    }

    #[test]
    fn a_daemon_that_dies_early_is_reported() {
        tour("early", "exit 7", "exit status: 7 before it answered");
    }

    #[test]
    fn a_daemon_that_is_gone_before_the_signal_is_reported() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let error = Daemon { child }.stop().unwrap_err().to_string();
        assert!(error.contains("before it was told to"), "{error}");
    }

    #[test]
    fn a_daemon_that_stops_with_an_error_is_reported() {
        tour("error", &UNTIL_TERM.replace("exit 0", "exit 3"), "exit status: 3 after SIGTERM");
    }

    #[test]
    fn a_child_left_running_is_reported() {
        // It keeps the log open.
        tour(
            "child",
            &format!("sleep 60 & echo $! >child; {UNTIL_TERM}"),
            "left behind: process /proc/",
        );
    }
}
