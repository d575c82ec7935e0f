//! The two daemons, each under a directory of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tempfile::TempDir;
use testkit::Cri;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// Dropping it leaves its pods to [`Peer::end`].
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Short: sockets lie in it.
    home: TempDir,
    command: Command,
    child: Child,
    socket: PathBuf,
    bridge: String,
    /// In the command line of each of its shims.
    shim: &'static str,
}

/// Why nothing can be compared here.
pub(crate) fn missing() -> Option<&'static str> {
    if !testkit::is_root() {
        return Some("needs root");
    }
    let there = |name: &str| Path::new("/usr/bin").join(name).exists();
    (!there("containerd") || !there("containerd-shim-runc-v2"))
        .then_some("containerd is not installed: apt-get install containerd")
}

impl Peer {
    pub(crate) async fn longshore() -> Result<Self> {
        let home = home()?;
        let bins = home.path().join("bin");
        fs::create_dir(&bins)?;
        fs::copy(env!("CARGO_BIN_EXE_longshore"), bins.join("longshore"))?;
        fs::copy(build_shim()?, bins.join("longshore-shim"))?;
        let networks = home.path().join("net.d");
        let bridge = network(home.path(), &networks, "lsb-ours", "198.18.78.0/24")?;
        let mut command = Command::new(bins.join("longshore"));
        command.arg("daemon").args(["--handler", "runc=runc"]);
        command.arg("--root").arg(home.path().join("lib"));
        command.arg("--state").arg(home.path().join("run"));
        command.arg("--cni-conf-dir").arg(&networks);
        let socket = home.path().join("run/longshore.sock");
        Self::start("longshore", home, command, socket, bridge, "longshore-shim").await
    }

    pub(crate) async fn containerd(registry: &str) -> Result<Self> {
        let home = home()?;
        let at = home.path().display();
        let networks = home.path().join("net.d");
        let bridge = network(home.path(), &networks, "lsb-theirs", "198.18.79.0/24")?;
        let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
        let config = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
             [grpc]\naddress = \"{at}/c.sock\"\n[ttrpc]\naddress = \"{at}/t.sock\"\n\
             [{cri}]\nsandbox_image = \"{registry}/pause:1\"\n\
             restrict_oom_score_adj = true\n\
             [{cri}.cni]\nbin_dir = \"/usr/lib/cni\"\nconf_dir = \"{at}/net.d\"\n\
             [{cri}.containerd]\ndefault_runtime_name = \"runc\"\n\
             [{cri}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [{cri}.containerd.runtimes.runc.options]\nBinaryName = \"runc\"\n"
        );
        fs::write(home.path().join("config.toml"), config)?;
        let mut command = Command::new("/usr/bin/containerd");
        command.arg("--config").arg(home.path().join("config.toml"));
        let socket = home.path().join("c.sock");
        Self::start("containerd", home, command, socket, bridge, "containerd-shim-runc-v2").await
    }

    async fn start(
        name: &'static str,
        home: TempDir,
        mut command: Command,
        socket: PathBuf,
        bridge: String,
        shim: &'static str,
    ) -> Result<Self> {
        let log = fs::File::options().create(true).append(true).open(home.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let peer = Self { name, home, command, child, socket, bridge, shim };
        peer.serving(0).await?;
        Ok(peer)
    }

    pub(crate) async fn cri(&self) -> Result<Cri> {
        Cri::connect(&self.socket).await
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.home.path().join("logs")
    }

    /// SIGTERM, and the next one; until it lists `running` containers.
    pub(crate) async fn restart(&mut self, running: usize) -> Result<Duration> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        let begun = Instant::now();
        self.child = self.command.spawn()?;
        self.serving(running).await?;
        Ok(begun.elapsed())
    }

    async fn serving(&self, running: usize) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            if let Ok(cri) = self.cri().await
                && let Ok(containers) = cri.containers().await
                && containers.len() >= running
            {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        bail!("{} does not serve {running} containers in {LIMIT:?}: {log}", self.name)
    }

    pub(crate) fn daemon_kib(&self) -> Result<u64> {
        pss_kib(self.child.id())
    }

    /// Its peak so far no longer counts.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }

    pub(crate) fn peak_kib(&self) -> Result<u64> {
        kib_in(&format!("/proc/{}/status", self.child.id()), "VmHWM:")
    }

    /// Its own client, where images lie that CRI sees.
    pub(crate) fn ctr(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(&self.socket).args(["--namespace", "k8s.io"]);
        command
    }

    /// The mean of its shims.
    pub(crate) fn shim_kib(&self) -> Result<u64> {
        let shims = processes_of(self.home.path(), self.shim)?;
        ensure!(!shims.is_empty(), "{} has no shim", self.name);
        let sum = shims.iter().map(|pid| pss_kib(*pid)).sum::<Result<u64>>()?;
        Ok(sum / shims.len() as u64)
    }

    /// Ends the daemon, and its pods where a row was broken off.
    pub(crate) async fn end(mut self) {
        if let Ok(cri) = self.cri().await {
            for pod in cri.pods().await.unwrap_or_default() {
                let _ = cri.stop_pod(&pod.id).await;
                let _ = cri.remove_pod(&pod.id).await;
            }
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).output();
    }
}

fn home() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("lsb").tempdir_in("/var/tmp")?)
}

/// As it ships: small, and not of the profile that benches are built with.
fn build_shim() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let built = Command::new("cargo")
        .current_dir(&root)
        .args(["build", "--locked", "--quiet", "--package=shim", "--profile=shim"])
        .status()
        .context("run cargo build")?;
    ensure!(built.success(), "build the shim: {built}");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("shim/longshore-shim"))
}

fn network(home: &Path, networks: &Path, bridge: &str, subnet: &str) -> Result<String> {
    let list = json!({ "cniVersion": "0.4.0", "name": bridge, "plugins": [
        { "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true,
          "ipam": { "type": "host-local", "dataDir": home.join("leases"),
                    "ranges": [[{ "subnet": subnet }]], "routes": [{ "dst": "0.0.0.0/0" }] } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
    ]});
    fs::create_dir(networks)?;
    fs::write(networks.join("10-bench.conflist"), list.to_string())?;
    Ok(bridge.to_owned())
}

fn pss_kib(pid: u32) -> Result<u64> {
    kib_in(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

fn kib_in(path: &str, field: &str) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    Ok(number.with_context(|| format!("no {field} in {path}"))?.parse()?)
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Those whose command is `name` and that speak of `home`, by arguments, environment,
/// directory or open files.
fn processes_of(home: &Path, name: &str) -> Result<Vec<u32>> {
    let home = home.to_str().context("a home is UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|text| text.parse().ok()) else {
            continue;
        };
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
        let about = format!("{command}{}", String::from_utf8_lossy(&read("environ")));
        let is_named = command.split('\0').next().is_some_and(|first| first.contains(name));
        if is_named && (about.contains(home) || holds(&entry.path(), home)) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn holds(process: &Path, home: &str) -> bool {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links = open.map(|entry| entry.path()).chain([process.join("cwd")]);
    links.any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(home)))
}
