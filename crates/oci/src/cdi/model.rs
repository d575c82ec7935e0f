//! A CDI file as written. What newer versions of the format add is ignored when it is unknown
//! here, as vendors expect.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{is_device_name, is_kind_part};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    pub(super) cdi_version: String,
    pub(super) kind: String,
    pub(super) devices: Vec<Device>,
    pub(super) container_edits: Edits,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) container_edits: Edits,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Edits {
    pub(crate) env: Vec<String>,
    pub(crate) device_nodes: Vec<Node>,
    pub(crate) net_devices: Vec<NetDevice>,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) intel_rdt: Option<IntelRdt>,
    pub(crate) additional_gids: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    pub(crate) path: PathBuf,
    host_path: Option<PathBuf>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) major: Option<u32>,
    pub(crate) minor: Option<u32>,
    pub(crate) file_mode: Option<u32>,
    pub(crate) permissions: Option<String>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl Node {
    pub(crate) fn host_path(&self) -> &Path {
        self.host_path.as_deref().filter(|p| !p.as_os_str().is_empty()).unwrap_or(&self.path)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetDevice {
    pub(crate) host_interface_name: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Hook {
    #[serde(rename = "hookName")]
    pub(crate) stage: Stage,
    pub(crate) path: PathBuf,
    pub(crate) args: Option<Vec<String>>,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) timeout: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Mount {
    pub(crate) host_path: PathBuf,
    pub(crate) container_path: PathBuf,
    pub(crate) options: Vec<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct IntelRdt {
    #[serde(rename = "closID")]
    pub(crate) clos_id: Option<String>,
    pub(crate) l3_cache_schema: Option<String>,
    pub(crate) mem_bw_schema: Option<String>,
    pub(crate) schemata: Option<Vec<String>>,
    pub(crate) enable_monitoring: Option<bool>,
}

/// When an OCI runtime runs a hook.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    Prestart,
    CreateRuntime,
    CreateContainer,
    StartContainer,
    Poststart,
    Poststop,
}

impl File {
    /// What is wrong with it, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        let numbers: Vec<_> = self.cdi_version.split('.').map(str::parse::<u32>).collect();
        if !matches!(numbers.as_slice(), [Ok(0), Ok(3..), Ok(_)] | [Ok(1), Ok(_), Ok(_)]) {
            return Some(format!("cdiVersion {:?} is not one we know", self.cdi_version));
        }
        if !self.kind.split_once('/').is_some_and(|(v, c)| is_kind_part(v) && is_kind_part(c)) {
            return Some(format!("kind {:?} is not of the form vendor/class", self.kind));
        }
        if self.devices.is_empty() {
            return Some("it has no devices".to_owned());
        }
        for (i, device) in self.devices.iter().enumerate() {
            if !is_device_name(&device.name) {
                return Some(format!("{:?} is not the name of a device", device.name));
            }
            if self.devices[..i].iter().any(|other| other.name == device.name) {
                return Some(format!("device {:?} is there twice", device.name));
            }
            if device.container_edits == Edits::default() {
                return Some(format!("device {:?} has no edits", device.name));
            }
        }
        let devices = self.devices.iter().map(|device| &device.container_edits);
        devices.chain([&self.container_edits]).find_map(Edits::fault)
    }
}

impl Edits {
    fn fault(&self) -> Option<String> {
        let env = self.env.iter().find(|pair| pair.find('=').is_none_or(|at| at == 0));
        if let Some(pair) = env {
            return Some(format!("env {pair:?} is not of the form NAME=value"));
        }
        if self.hooks.iter().any(|hook| !hook.path.is_absolute()) {
            return Some("the path of a hook is not absolute".to_owned());
        }
        let relative = |mount: &Mount| !mount.container_path.is_absolute();
        if self.mounts.iter().any(|mount| relative(mount) || mount.host_path.as_os_str().is_empty())
        {
            return Some("a mount needs a hostPath and an absolute containerPath".to_owned());
        }
        let empty = |d: &NetDevice| d.name.is_empty() || d.host_interface_name.is_empty();
        if self.net_devices.iter().any(empty) {
            return Some("a network device needs a hostInterfaceName and a name".to_owned());
        }
        self.device_nodes.iter().find_map(Node::fault)
    }
}

impl Node {
    fn fault(&self) -> Option<String> {
        if !self.path.is_absolute() {
            return Some(format!("the device path {:?} is not absolute", self.path.display()));
        }
        let kind = self.kind.as_deref().unwrap_or("c");
        if !["b", "c", "u", "p", ""].contains(&kind) {
            return Some(format!("{kind:?} is not a type of device"));
        }
        let permissions = self.permissions.as_deref().unwrap_or_default();
        let known = permissions == "none" || permissions.chars().all(|c| "rwm".contains(c));
        (!known).then(|| format!("permissions {permissions:?} are not made of r, w and m"))
    }
}
