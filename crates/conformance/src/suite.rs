//! critest itself and what is around it: registry names, a network, its digest.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::report::Report;

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

impl Suite {
    /// To its end, whatever fails. What it prints goes through. A few specs that fail are run
    /// once more, and shown as unreliable if they pass then.
    pub(crate) fn run(&self) -> Result<Report> {
        let mut report = self.run_once(self.focus.as_deref())?;
        if let Some(failed) = report.failed(SECOND_CHANCES) {
            report.mend(&self.run_once(Some(&failed))?);
        }
        Ok(report)
    }

    fn run_once(&self, focus: Option<&str>) -> Result<Report> {
        let images = self.dir.join("images.yaml");
        fs::write(
            &images,
            "defaultTestContainerImage: registry.k8s.io/e2e-test-images/busybox:1.29-2\n\
             webServerTestImage: registry.k8s.io/e2e-test-images/nginx:1.14-2\n",
        )?;
        let report = self.dir.join("report.json");
        let mut command = Command::new(&self.program);
        command
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
        let status = command.status().context("run critest")?;
        let json = fs::read_to_string(&report)
            .with_context(|| format!("critest ended with {status} and wrote no report"))?;
        Report::parse(&json)
    }
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
