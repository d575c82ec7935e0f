//! The cgroups of a daemon's pods, called as its driver wants them and found as this kernel
//! has them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use api_cri::v1::{self, RuntimeConfigRequest};
use base::Id;
use oci::CgroupDriver;

use crate::{Cri, DaemonProcess, Pod};

const ROOT: &str = "/sys/fs/cgroup";

/// A parent for cgroups of pods, which nobody else uses.
#[derive(Clone, Debug)]
pub struct Cgroups {
    driver: CgroupDriver,
    name: String,
}

impl Cgroups {
    /// Asks which driver the daemon has.
    pub async fn of(daemon: &DaemonProcess, name: &str) -> Result<Self> {
        let cri = Cri::connect(&daemon.cri_socket()).await?;
        let config = cri.runtime().runtime_config(RuntimeConfigRequest::default()).await?;
        let linux = config.into_inner().linux.context("an answer without a driver")?;
        let driver = match linux.cgroup_driver() {
            v1::CgroupDriver::Systemd => CgroupDriver::Systemd,
            v1::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
        };
        Ok(Self { driver, name: name.to_owned() })
    }

    pub fn is_systemd(&self) -> bool {
        self.driver == CgroupDriver::Systemd
    }

    /// For `cgroup_parent` of a pod.
    pub fn parent(&self) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", self.name),
            CgroupDriver::Systemd => format!("{}.slice", self.name),
        }
    }

    /// One of its own below that.
    pub fn child(&self, name: &str) -> Self {
        let between = if self.is_systemd() { '-' } else { '/' };
        Self { driver: self.driver, name: format!("{}{between}{name}", self.name) }
    }

    /// Below the root of each hierarchy.
    pub(crate) fn dir(&self) -> PathBuf {
        dir_of(self.driver, &self.parent())
    }

    /// What a file of a container's cgroup says: of v1 by controller and name, or of v2.
    pub fn file(&self, pod: &Pod, id: &str, v1: (&str, &str), v2: &str) -> Option<String> {
        let path = oci::container_cgroup_path(
            self.driver,
            Some(parent_of(pod)),
            &parse(&pod.id),
            &parse(id),
        );
        read(&path.expect("the daemon took it").dir, v1, v2)
    }

    /// The same of the pod's own.
    pub fn pod_file(&self, pod: &Pod, v1: (&str, &str), v2: &str) -> Option<String> {
        read(&dir_of(self.driver, parent_of(pod)), v1, v2)
    }

    /// As the kubelet does with its pods' when they are gone.
    pub fn remove(&self) -> Result<()> {
        if self.is_systemd() {
            let parent = self.parent();
            let stopped = Command::new("systemctl").args(["stop", &parent]).output()?;
            if !stopped.status.success() {
                bail!("systemctl stop {parent}: {}", String::from_utf8_lossy(&stopped.stderr));
            }
        }
        for dir in hierarchies().map(|root| root.join(below(&self.dir()))) {
            if dir.exists() {
                fs::remove_dir(&dir).with_context(|| format!("remove {}", dir.display()))?;
            }
        }
        Ok(())
    }
}

fn dir_of(driver: CgroupDriver, parent: &str) -> PathBuf {
    let nobody = parse(&"0".repeat(64));
    oci::pod_cgroup_path(driver, Some(parent), &nobody).expect("a name we made")
}

fn parent_of(pod: &Pod) -> &str {
    &pod.config.linux.as_ref().expect("a pod of ours has it").cgroup_parent
}

fn parse(id: &str) -> Id {
    id.parse().expect("an id of the daemon")
}

fn below(dir: &Path) -> &Path {
    dir.strip_prefix("/").unwrap_or(dir)
}

/// Each controller's of v1, and that of v2.
fn hierarchies() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir() && !path.is_symlink()).chain([ROOT.into()])
}

fn read(dir: &Path, v1: (&str, &str), v2: &str) -> Option<String> {
    let root = Path::new(ROOT);
    let paths = [root.join(v1.0).join(below(dir)).join(v1.1), root.join(below(dir)).join(v2)];
    let text = paths.iter().find_map(|path| fs::read_to_string(path).ok())?;
    Some(text.trim().to_owned())
}
