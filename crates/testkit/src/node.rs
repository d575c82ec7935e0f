//! A node of one's own: a daemon, an image it can run, a client, and at the end the proof
//! that nothing is left.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use api_cri::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata,
};
use tokio::time::Instant;

use crate::{
    Cgroups, Cri, DaemonProcess, Pod, is_root,
    leftovers::{Marks, Process},
    registry::Registry,
    skip,
};

/// For what ends by itself soon after the call that ended it.
fn settle() -> Duration {
    Duration::from_secs(60) * crate::slowness()
}
const POLL: Duration = Duration::from_millis(20);

/// Dropping it ends and removes everything, also that of a test that failed half-way.
#[derive(Debug)]
pub struct Node {
    pub daemon: DaemonProcess,
    pub registry: Registry,
    image: String,
    pub cgroups: Cgroups,
    /// Processes seen on the way: none of them may be left at the end.
    known: BTreeSet<Process>,
}

impl Node {
    /// `None`, loudly, where containers cannot be run.
    pub async fn start(test: &str, binary: impl AsRef<OsStr>) -> Option<Self> {
        Self::start_with(test, binary, |_| ()).await
    }

    pub async fn start_with(
        test: &str,
        binary: impl AsRef<OsStr>,
        more: impl FnOnce(&mut Command),
    ) -> Option<Self> {
        let binary = binary.as_ref();
        Self::of(test, binary, DaemonProcess::start_with(binary, more)).await
    }

    /// See [`DaemonProcess::start_on_disk_of`].
    pub async fn start_on_disk_of(
        test: &str,
        binary: impl AsRef<OsStr>,
        bytes: u64,
    ) -> Option<Self> {
        let binary = binary.as_ref();
        Self::of(test, binary, DaemonProcess::start_on_disk_of(binary, bytes)).await
    }

    async fn of(
        test: &str,
        binary: &OsStr,
        daemon: impl Future<Output = Result<DaemonProcess>>,
    ) -> Option<Self> {
        if !is_root() {
            skip(test, "needs root");
            return None;
        }
        let shim = Path::new(binary).with_file_name("longshore-shim");
        assert!(shim.exists(), "{} is missing: cargo build -p shim", shim.display());
        Some(Box::pin(Self::open(daemon)).await.expect("a node with an image"))
    }

    async fn open(daemon: impl Future<Output = Result<DaemonProcess>>) -> Result<Self> {
        let registry = Registry::start().await?;
        registry.push("test/busybox", "1", &crate::image::busybox()?);
        let image = format!("{}/test/busybox:1", registry.host());
        let daemon = daemon.await?;
        // As the directory: nobody else has the name.
        let name = daemon.home().file_name().context("a home has a name")?;
        let cgroups = Cgroups::of(&daemon, &name.to_string_lossy()).await?;
        let node = Self { daemon, registry, image, cgroups, known: BTreeSet::new() };
        node.cri().await?.pull(&node.image).await?;
        Ok(node)
    }

    /// A new connection, as after a restart of the daemon.
    pub async fn cri(&self) -> Result<Cri> {
        Cri::connect(&self.daemon.cri_socket()).await
    }

    pub fn image(&self) -> &str {
        &self.image
    }

    /// Where the logs of pods are. Not on the daemon's disk.
    pub fn logs(&self) -> PathBuf {
        self.daemon.home().join("logs")
    }

    /// A pod on the host's network, in the node's cgroup.
    pub fn pod(&self, name: &str) -> PodSandboxConfig {
        let network = NamespaceOption {
            network: NamespaceMode::Node.into(),
            pid: NamespaceMode::Container.into(),
            ..NamespaceOption::default()
        };
        let security = LinuxSandboxSecurityContext {
            namespace_options: Some(network),
            ..LinuxSandboxSecurityContext::default()
        };
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "test".to_owned(),
                attempt: 0,
            }),
            log_directory: self.logs().join(name).display().to_string(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.cgroups.parent(),
                security_context: Some(security),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    /// A container that runs a script of the shell.
    pub fn sh(&self, name: &str, script: &str) -> ContainerConfig {
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(ImageSpec { image: self.image.clone(), ..ImageSpec::default() }),
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            log_path: format!("{name}.log"),
            ..ContainerConfig::default()
        }
    }

    pub fn log_path(&self, pod: &Pod, container: &str) -> PathBuf {
        Path::new(&pod.config.log_directory).join(format!("{container}.log"))
    }

    /// What a container said, without the frame of the log.
    pub fn said(&self, pod: &Pod, container: &str) -> Result<Vec<String>> {
        let path = self.log_path(pod, container);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let said = |line: &str| Some(line.splitn(4, ' ').nth(3)?.to_owned());
        text.lines().map(|line| said(line).context("a line of a log has four parts")).collect()
    }

    fn marks(&self) -> Marks {
        self.daemon.marks(Some(self.cgroups.dir()))
    }

    /// The processes of the daemon's pods now.
    pub fn processes(&self) -> BTreeSet<Process> {
        self.marks().processes()
    }

    /// Takes note of all processes that there are: none may be left at the end.
    pub fn note_processes(&mut self) {
        self.known.extend(self.marks().processes());
    }

    /// The shim that keeps `pod`.
    pub fn shim(&self, pod: &Pod) -> Result<Process> {
        let dir = self.daemon.home().join("run/pods").join(&pod.id);
        let has_open = |process: &Process| {
            let fds = fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten();
            let mut links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
            links.any(|to| to.starts_with(&dir))
        };
        let names = [
            "longshore-shim",
            "containerd-shim-runc-v2",
            "containerd-shim-runc-v2-rs",
            "sandbox-shim",
        ];
        let is_shim = |process: &Process| {
            let program = process.command.split(' ').next().unwrap_or_default();
            Path::new(program).file_name().is_some_and(|file| names.iter().any(|n| file == *n))
        };
        let found =
            self.processes().into_iter().find(|process| is_shim(process) && has_open(process));
        found.with_context(|| format!("no shim has anything of pod {} open", pod.id))
    }

    /// Everything of the daemon's pods that is there now: mounts, files, processes, cgroups.
    pub fn left(&self) -> Vec<String> {
        let mut left = self.daemon.left_of(&self.marks());
        let alive = self.known.iter().filter(|process| process.is_alive());
        left.extend(alive.map(|process| process.command.clone()));
        left
    }

    /// Waits until nothing of any pod is left, which is to be brought about by others.
    pub async fn settled(&self) -> Result<()> {
        let until = Instant::now() + settle();
        loop {
            let left = self.left();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("left behind: {left:#?}\n{}", self.daemon.stderr());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Removes all pods as a client does; afterwards nothing may be left, and the daemon
    /// ends well.
    pub async fn finish(mut self) -> Result<()> {
        self.note_processes();
        let cri = self.cri().await?;
        for pod in cri.pods().await? {
            cri.remove_pod(&pod.id).await.with_context(|| self.daemon.stderr())?;
        }
        if !cri.containers().await?.is_empty() {
            bail!("containers are left without pods");
        }
        self.settled().await?;
        let exit = self.daemon.stop().await?;
        if exit.code != Some(0) {
            bail!("the daemon ended with {:?}: {}", exit.code, exit.stderr);
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let marks = self.marks();
        let _ = self.daemon.kill();
        marks.sweep();
        let _ = self.cgroups.remove();
        self.known.iter().for_each(|process| process.signal(rustix::process::Signal::KILL));
    }
}
