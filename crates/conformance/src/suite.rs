//! critest itself and what is around it: registry names, a network, its digest.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Child;

use crate::{interrupt::Interrupt, report::Report};

/// The specs compare full public names, so that these come from loopback.
const REGISTRIES: [&str; 5] =
    ["docker.io", "gcr.io", "k8s.gcr.io", "public.ecr.aws", "registry.k8s.io"];

/// The one thing that cannot be had offline: an image by a digest that nobody can make again.
const PUBLIC_DIGEST: &str = "9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf";

/// Which address the suite's pods get. Nobody routes these.
const SUBNET: &str = "198.18.77.0/24";

#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) program: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) focus: Option<String>,
    pub(crate) websocket: bool,
}

/// More failed specs than this are no accident.
const SECOND_CHANCES: usize = 3;

/// Limit for one run of the suite, which takes one to two minutes. A spec that hangs is named by
/// the suite itself, by then many times.
const RUN_LIMIT: Duration = Duration::from_secs(1800);

/// How long an interrupted suite may take for the clean-up of its spec.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(45);

impl Suite {
    /// Runs the suite to its end, whatever fails. A few specs that fail are run once more, and
    /// shown as unreliable if they pass then. Output of the suite is passed through.
    pub(crate) async fn run(&self, interrupt: &mut Interrupt) -> Result<Report> {
        let mut report = self.run_once(self.focus.as_deref(), interrupt).await?;
        if let Some(failed) = report.failed(SECOND_CHANCES) {
            report.mend(&self.run_once(Some(&failed), interrupt).await?);
        }
        Ok(report)
    }

    async fn run_once(&self, focus: Option<&str>, interrupt: &mut Interrupt) -> Result<Report> {
        let images = self.dir.join("images.yaml");
        fs::write(
            &images,
            "defaultTestContainerImage: registry.k8s.io/e2e-test-images/busybox:1.29-2\n\
             webServerTestImage: registry.k8s.io/e2e-test-images/nginx:1.14-2\n",
        )?;
        let report = self.dir.join("report.json");
        let mut command = tokio::process::Command::new(&self.program);
        // A group of its own: an interrupt from a terminal reaches it once, by us.
        command
            .process_group(0)
            .kill_on_drop(true)
            .arg("-ginkgo.poll-progress-after=120s")
            .arg(format!("-runtime-endpoint=unix://{}", self.socket.display()))
            .arg(format!("-test-images-file={}", images.display()))
            .arg(format!("-ginkgo.json-report={}", report.display()))
            .arg("-ginkgo.no-color")
            .stdin(Stdio::null());
        if let Some(focus) = focus {
            command.arg(format!("-ginkgo.focus={focus}"));
        }
        if self.websocket {
            command.args(["-websocket-exec", "-websocket-attach", "-websocket-portforward"]);
        }
        // That specs failed is in the report.
        let mut critest = command.spawn().context("run critest")?;
        let status = tokio::select! {
            status = critest.wait() => status.context("wait for critest")?,
            () = interrupt.wait() => bail!("interrupted; critest {}", end(&mut critest, interrupt).await?),
            () = tokio::time::sleep(RUN_LIMIT) => {
                end(&mut critest, interrupt).await?;
                bail!("critest did not end within {RUN_LIMIT:?}: the last spec it reported hangs");
            }
        };
        let json = fs::read_to_string(&report)
            .with_context(|| format!("critest ended with {status} and wrote no report"))?;
        Report::parse(&json)
    }
}

/// Interrupts the suite, which then removes what its spec has made; kills it at a second interrupt
/// or after a while.
async fn end(critest: &mut Child, interrupt: &mut Interrupt) -> Result<ExitStatus> {
    if let Some(pid) = critest.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        kill_process(pid, Signal::INT).context("interrupt critest")?;
    }
    tokio::select! {
        status = critest.wait() => return Ok(status?),
        () = interrupt.wait() => {}
        () = tokio::time::sleep(INTERRUPT_LIMIT) => {}
    }
    critest.kill().await.context("kill critest")?;
    Ok(critest.wait().await?)
}

/// A copy of critest that asks for the digest of our image in the stead of the public one.
pub(crate) fn with_digest(critest: &Path, dir: &Path, digest: &str) -> Result<PathBuf> {
    ensure!(digest.len() == PUBLIC_DIGEST.len(), "{digest:?} is no digest");
    let mut program = fs::read(critest)?;
    let places: Vec<usize> = program
        .windows(PUBLIC_DIGEST.len())
        .enumerate()
        .filter(|(_, window)| *window == PUBLIC_DIGEST.as_bytes())
        .map(|(at, _)| at)
        .collect();
    ensure!(!places.is_empty(), "this critest asks for another digest");
    for at in places {
        program[at..at + digest.len()].copy_from_slice(digest.as_bytes());
    }
    let path = dir.join("critest");
    fs::write(&path, program)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The public names lead to the registry at `url`.
pub(crate) fn map_registries(certs: &Path, url: &str) -> Result<()> {
    let hosts =
        format!("server = \"{url}\"\n[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
    for name in REGISTRIES {
        let dir = certs.join(name);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("hosts.toml"), &hosts)?;
    }
    Ok(())
}

/// A network with port mappings; returns the name of its bridge.
pub(crate) fn bridge(networks: &Path, dir: &Path) -> Result<String> {
    let bridge = format!("ls-conf{}", std::process::id() % 100_000);
    let list = json!({
        "cniVersion": "1.0.0",
        "name": bridge,
        "plugins": [
            { "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true,
              "ipam": { "type": "host-local", "dataDir": dir.join("leases"),
                        "ranges": [[{ "subnet": SUBNET }]], "routes": [{ "dst": "0.0.0.0/0" }] } },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    });
    fs::create_dir_all(networks)?;
    fs::write(networks.join("10-bridge.conflist"), list.to_string())?;
    Ok(bridge)
}

/// CNI leaves the bridge itself. Without a single pod on the network there is none.
pub(crate) fn remove_bridge(bridge: &str) {
    let _ = Command::new("ip").args(["link", "delete", bridge]).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_replaced_everywhere() {
        let dir = tempfile::tempdir().unwrap();
        let original = dir.path().join("original");
        fs::write(&original, format!("a{PUBLIC_DIGEST}b{PUBLIC_DIGEST}c")).unwrap();
        let ours = "0".repeat(64);
        let patched = with_digest(&original, dir.path(), &ours).unwrap();
        assert_eq!(fs::read_to_string(patched).unwrap(), format!("a{ours}b{ours}c"));
        fs::write(&original, "nothing").unwrap();
        assert!(with_digest(&original, dir.path(), &ours).is_err());
    }
}
