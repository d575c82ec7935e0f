//! The daemon under a root of its own, driven from outside as an operator would.

use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use tempfile::TempDir;
use tokio::time::Instant;

/// Generous: the machine may be busy with a build, or emulated.
fn limit() -> Duration {
    Duration::from_secs(150) * crate::slowness()
}
const POLL: Duration = Duration::from_millis(10);

/// A running daemon; killed, if it still runs, when dropped.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    /// What it was started with, to be started with again.
    command: Command,
    home: TempDir,
    /// Root and state lie here; not always visible from outside, see [`Self::seen`].
    disk: PathBuf,
    private: bool,
}

/// How a daemon ended.
#[derive(Debug)]
pub struct Exit {
    pub code: Option<i32>,
    pub stderr: String,
}

impl DaemonProcess {
    /// Starts `binary daemon` below a fresh directory and waits until it serves.
    pub async fn start(binary: impl AsRef<OsStr>) -> anyhow::Result<Self> {
        Self::start_with(binary, |_| ()).await
    }

    /// `more` may add flags and environment.
    pub async fn start_with(
        binary: impl AsRef<OsStr>,
        more: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let home = new_home()?;
        let mut command = Self::command(binary.as_ref(), home.path())?;
        more(&mut command);
        let disk = home.path().to_owned();
        Self::spawn(command, home, disk, false).await
    }

    /// Its root and state are on a disk of `bytes`, which nobody else sees and which goes
    /// with the last of its processes.
    pub async fn start_on_disk_of(binary: impl AsRef<OsStr>, bytes: u64) -> anyhow::Result<Self> {
        let home = new_home()?;
        let disk = home.path().join("disk");
        fs::create_dir(&disk)?;
        let inner = Self::command(binary.as_ref(), &disk)?;
        let mount = format!("mount -t tmpfs -o size={bytes} none \"$0\" && exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &mount]).arg(&disk);
        command.arg(inner.get_program()).args(inner.get_args());
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command.stderr(fs::File::create(home.path().join("stderr"))?);
        Self::spawn(command, home, disk, true).await
    }

    async fn spawn(
        mut command: Command,
        home: TempDir,
        disk: PathBuf,
        private: bool,
    ) -> anyhow::Result<Self> {
        let child = command.spawn().context("start the daemon")?;
        let mut daemon = Self { child, command, home, disk, private };
        daemon.wait_ready().await?;
        Ok(daemon)
    }

    /// SIGKILL; its pods go on without it.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The next one over the same directories, after the end of the last.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = self.command.spawn().context("start the daemon again")?;
        self.wait_ready().await
    }

    /// The command line of a daemon whose every path is below `home`.
    pub fn command(binary: &OsStr, home: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(binary);
        command
            .arg("daemon")
            .arg("--root")
            .arg(home.join("lib"))
            .arg("--state")
            .arg(home.join("run"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stderr(fs::File::create(home.join("stderr"))?);
        Ok(command)
    }

    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + limit();
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                bail!("the daemon ended with {status}: {}", self.stderr());
            }
            if self.serves().await {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("the daemon did not serve in {:?}: {}", limit(), self.stderr())
    }

    async fn serves(&self) -> bool {
        use api_cri::{
            client::connect,
            v1::{VersionRequest, runtime_service_client::RuntimeServiceClient},
        };
        let Ok(channel) = connect(&self.cri_socket()).await else { return false };
        RuntimeServiceClient::new(channel).version(VersionRequest::default()).await.is_ok()
    }

    /// A directory for this daemon alone, removed with it.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn root(&self) -> PathBuf {
        self.seen(&self.disk.join("lib"))
    }

    pub fn state(&self) -> PathBuf {
        self.seen(&self.disk.join("run"))
    }

    /// What the daemon calls `path`, as others find it.
    pub fn seen(&self, path: &Path) -> PathBuf {
        match (self.private, path.strip_prefix("/")) {
            (true, Ok(path)) => PathBuf::from(format!("/proc/{}/root", self.child.id())).join(path),
            _ => path.to_owned(),
        }
    }

    pub fn cri_socket(&self) -> PathBuf {
        self.state().join("longshore.sock")
    }

    pub fn metrics_socket(&self) -> PathBuf {
        self.state().join("metrics.sock")
    }

    /// What it logged so far.
    pub fn stderr(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(self.home.path().join("stderr")) {
            let _ = file.read_to_string(&mut text);
        }
        text
    }

    /// Waits until the log contains `text`.
    pub async fn logged(&self, text: &str) -> anyhow::Result<()> {
        let until = Instant::now() + limit();
        while !self.stderr().contains(text) {
            if Instant::now() > until {
                bail!("{text:?} did not appear in the log: {}", self.stderr());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    /// The daemon's own listening TCP socket: a way to break it from outside.
    pub fn steal_tcp_listener(&self) -> anyhow::Result<OwnedFd> {
        let pidfd = pidfd_open(self.pid(), PidfdFlags::empty())?;
        let listening = tcp_listeners()?;
        for entry in fs::read_dir(format!("/proc/{}/fd", self.child.id()))? {
            let entry = entry?;
            let target = fs::read_link(entry.path())?.to_string_lossy().into_owned();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            if inode.is_some_and(|inode| listening.iter().any(|known| known == inode)) {
                let fd = entry.file_name().to_string_lossy().parse()?;
                return Ok(pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty())?);
            }
        }
        bail!("the daemon listens on no TCP port")
    }

    /// Waits for the end of the daemon, which the test has brought about.
    pub async fn exited(&mut self) -> anyhow::Result<Exit> {
        let until = Instant::now() + limit();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Exit { code: status.code(), stderr: self.stderr() });
            }
            if Instant::now() > until {
                bail!("the daemon did not end in {:?}: {}", limit(), self.stderr());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// SIGTERM, and its end.
    pub async fn stop(&mut self) -> anyhow::Result<Exit> {
        self.signal(Signal::TERM)?;
        self.exited().await
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The inodes of all listening sockets in /proc/net/tcp.
fn tcp_listeners() -> anyhow::Result<Vec<String>> {
    const LISTEN: &str = "0A";
    let table = fs::read_to_string("/proc/net/tcp")?;
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    Ok(rows.filter(|row| row.get(3) == Some(&LISTEN)).map(|row| row[9].to_owned()).collect())
}

/// The root of a user namespace passes through it, as through any directory of a host.
fn new_home() -> anyhow::Result<TempDir> {
    let passable = fs::Permissions::from_mode(0o711);
    Ok(tempfile::Builder::new().prefix("ls-").permissions(passable).tempdir()?)
}
