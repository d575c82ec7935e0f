//! The daemon under a root of its own, driven from outside as an operator would.

use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::fd::OwnedFd,
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

/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A running daemon; killed, if it still runs, when dropped.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    home: TempDir,
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
        let home = tempfile::Builder::new().prefix("ls-").tempdir()?;
        let mut command = Self::command(binary.as_ref(), home.path())?;
        more(&mut command);
        let mut daemon = Self { child: command.spawn().context("start the daemon")?, home };
        daemon.wait_ready().await?;
        Ok(daemon)
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
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                bail!("the daemon ended with {status}: {}", self.stderr());
            }
            if self.serves().await {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("the daemon did not serve in {LIMIT:?}: {}", self.stderr())
    }

    async fn serves(&self) -> bool {
        use api_cri::{
            client::connect,
            v1::{VersionRequest, runtime_service_client::RuntimeServiceClient},
        };
        let Ok(channel) = connect(&self.cri_socket()).await else { return false };
        RuntimeServiceClient::new(channel).version(VersionRequest::default()).await.is_ok()
    }

    pub fn root(&self) -> PathBuf {
        self.home.path().join("lib")
    }

    pub fn state(&self) -> PathBuf {
        self.home.path().join("run")
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
        let until = Instant::now() + LIMIT;
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
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Exit { code: status.code(), stderr: self.stderr() });
            }
            if Instant::now() > until {
                bail!("the daemon did not end in {LIMIT:?}: {}", self.stderr());
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

/// What lies in the daemon's directories or in the kernel and should not.
impl DaemonProcess {
    /// Mounts and pod directories under the state directory, and processes of shims. Empty
    /// when all pods have been removed.
    pub fn left_behind(&self) -> Vec<String> {
        let state = self.state().to_string_lossy().into_owned();
        let mut left = Vec::new();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        left.extend(mounts.lines().filter(|line| line.contains(&state)).map(str::to_owned));
        let pods = fs::read_dir(self.state().join("pods")).into_iter().flatten().flatten();
        left.extend(pods.map(|entry| entry.path().display().to_string()));
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let cmdline = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
            if cmdline.contains(&state) && !cmdline.contains(" daemon ") {
                left.push(cmdline);
            }
        }
        left
    }
}
