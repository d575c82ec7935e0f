//! Device nodes, and the rules of who may use which.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType};

use crate::{
    builder::Inputs,
    cdi::{self, Registry},
    error::{OciError, Result},
    facts::{DeviceNode, PrivilegedDevices},
    mounts::clean,
    request::{ContainerRequest, DeviceKind, DeviceRequest},
    user::ResolvedUser,
};

#[derive(Debug, Default)]
pub(crate) struct Devices {
    nodes: Vec<LinuxDevice>,
    rules: Vec<LinuxDeviceCgroup>,
}

/// Every path of the host somebody must look at before this container can be built: the devices
/// it asks for and those its CDI devices bring.
pub fn device_paths(request: &ContainerRequest, cdi: &Registry) -> Result<BTreeSet<PathBuf>> {
    let mut paths: BTreeSet<_> = request.devices.iter().map(|d| d.host_path.clone()).collect();
    for edits in cdi.edits(&cdi::names(request)?)? {
        paths.extend(edits.device_nodes.iter().map(|node| node.host_path().to_owned()));
    }
    Ok(paths)
}

impl Devices {
    pub(crate) fn build(
        inputs: &Inputs<'_>,
        base: Option<Vec<LinuxDevice>>,
        base_rules: Option<Vec<LinuxDeviceCgroup>>,
        user: &ResolvedUser,
    ) -> Result<Self> {
        let mut devices = Self {
            nodes: base.unwrap_or_default(),
            rules: base_rules.unwrap_or_else(ordinary_rules),
        };
        if inputs.request.security.privileged {
            devices.add_privileged(inputs);
        }
        for (i, asked) in inputs.request.devices.iter().enumerate() {
            devices.add_requested(inputs, asked, &format!("devices[{i}]"), user)?;
        }
        for (i, rule) in inputs.request.device_rules.iter().enumerate() {
            let access = access(&rule.permissions, &format!("device_rules[{i}].permissions"))?;
            let number = |n: Option<u32>| n.map(i64::from);
            let (major, minor) = (number(rule.major), number(rule.minor));
            devices.rules.push(self::rule(rule.allow, rule.kind, major, minor, access));
        }
        Ok(devices)
    }

    /// Those of a spec.
    pub(crate) fn of(nodes: Vec<LinuxDevice>, rules: Option<Vec<LinuxDeviceCgroup>>) -> Self {
        Self { nodes, rules: rules.unwrap_or_default() }
    }

    pub(crate) fn finish(self) -> (Vec<LinuxDevice>, Vec<LinuxDeviceCgroup>) {
        (self.nodes, self.rules)
    }

    /// Takes the place of a node at the same path.
    pub(crate) fn add(&mut self, node: LinuxDevice, access: &str) {
        let kind = match node.typ() {
            LinuxDeviceType::B => Some(DeviceKind::Block),
            LinuxDeviceType::C | LinuxDeviceType::U => Some(DeviceKind::Char),
            LinuxDeviceType::A | LinuxDeviceType::P => None,
        };
        if let Some(kind) = kind.filter(|_| !access.is_empty()) {
            let (major, minor) = (Some(node.major()), Some(node.minor()));
            self.rules.push(rule(true, kind, major, minor, access));
        }
        self.nodes.retain(|other| other.path() != node.path());
        self.nodes.push(node);
    }

    fn add_privileged(&mut self, inputs: &Inputs<'_>) {
        let policy = inputs.handler.privileged_devices;
        if policy == PrivilegedDevices::Host {
            let nodes = inputs.container.devices.host.iter();
            self.nodes.extend(nodes.map(|node| to_spec(node, &node.path)));
        }
        if policy != PrivilegedDevices::Own {
            self.rules.push(rule(true, DeviceKind::All, None, None, "rwm"));
        }
    }

    fn add_requested(
        &mut self,
        inputs: &Inputs<'_>,
        asked: &DeviceRequest,
        field: &str,
        user: &ResolvedUser,
    ) -> Result<()> {
        let access = access(&asked.permissions, &format!("{field}.permissions"))?;
        let nodes = inputs.container.devices.by_path.get(&asked.host_path);
        let Some(nodes) = nodes.filter(|nodes| !nodes.is_empty()) else {
            let why = format!("no device at {}", asked.host_path.display());
            return Err(OciError::NotFound { field: format!("{field}.host_path"), why });
        };
        for node in nodes {
            let path = inside(asked, node, nodes.len() > 1, field)?;
            let mut device = to_spec(node, &path);
            if inputs.policy.device_ownership {
                own(&mut device, user);
            }
            self.add(device, access);
        }
        Ok(())
    }
}

/// Where a node is to be in the container. A directory keeps its inner structure; a single node
/// whose path differs was behind a link and has the name that was asked for.
fn inside(asked: &DeviceRequest, node: &DeviceNode, many: bool, field: &str) -> Result<PathBuf> {
    let unsaid = asked.container_path.as_os_str().is_empty();
    let to = if unsaid { &asked.host_path } else { &asked.container_path };
    if !to.is_absolute() {
        let why = format!("{:?} is not an absolute path", to.display());
        return Err(OciError::invalid(format!("{field}.container_path"), why));
    }
    let below = node.path.strip_prefix(&asked.host_path).ok();
    match below {
        Some(rest) if !rest.as_os_str().is_empty() => Ok(clean(&to.join(rest))),
        _ if many => {
            let name = node.path.file_name().map_or(Path::new(""), Path::new);
            Ok(clean(&to.join(name)))
        }
        _ => Ok(clean(to)),
    }
}

/// Root's stay root's.
fn own(device: &mut LinuxDevice, user: &ResolvedUser) {
    if user.uid != 0 {
        device.set_uid(Some(user.uid));
    }
    if user.gid != 0 {
        device.set_gid(Some(user.gid));
    }
}

pub(crate) fn to_spec(node: &DeviceNode, path: &Path) -> LinuxDevice {
    let mut device = LinuxDevice::default();
    device
        .set_path(path.to_owned())
        .set_typ(typ(node.kind))
        .set_major(i64::from(node.major))
        .set_minor(i64::from(node.minor))
        .set_file_mode(Some(node.mode & 0o7777))
        .set_uid(Some(node.uid))
        .set_gid(Some(node.gid));
    device
}

fn typ(kind: DeviceKind) -> LinuxDeviceType {
    match kind {
        DeviceKind::All => LinuxDeviceType::A,
        DeviceKind::Block => LinuxDeviceType::B,
        DeviceKind::Char => LinuxDeviceType::C,
        DeviceKind::Fifo => LinuxDeviceType::P,
    }
}

fn access<'a>(permissions: &'a str, field: &str) -> Result<&'a str> {
    let sound = permissions.chars().all(|c| "rwm".contains(c))
        && "rwm".chars().all(|c| permissions.matches(c).count() <= 1);
    match (sound, permissions) {
        (true, "") => Ok("rwm"),
        (true, some) => Ok(some),
        (false, _) => {
            let why = format!("{permissions:?} is not made of r, w and m");
            Err(OciError::invalid(field, why))
        }
    }
}

fn rule(
    allow: bool,
    kind: DeviceKind,
    major: Option<i64>,
    minor: Option<i64>,
    access: &str,
) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(allow)
        .set_typ((kind != DeviceKind::All).then(|| typ(kind)))
        .set_major(major)
        .set_minor(minor)
        .set_access(Some(access.to_owned()));
    rule
}

/// Nothing, but for what every program expects to be able to open; and any node may be made, which
/// is no leave to open it.
fn ordinary_rules() -> Vec<LinuxDeviceCgroup> {
    const NULL: (i64, Option<i64>) = (1, Some(3));
    const ZERO: (i64, Option<i64>) = (1, Some(5));
    const FULL: (i64, Option<i64>) = (1, Some(7));
    const RANDOM: (i64, Option<i64>) = (1, Some(8));
    const URANDOM: (i64, Option<i64>) = (1, Some(9));
    const TTY: (i64, Option<i64>) = (5, Some(0));
    const CONSOLE: (i64, Option<i64>) = (5, Some(1));
    const PTMX: (i64, Option<i64>) = (5, Some(2));
    const PTS: (i64, Option<i64>) = (136, None);
    let mut rules = vec![rule(false, DeviceKind::All, None, None, "rwm")];
    rules.extend([DeviceKind::Char, DeviceKind::Block].map(|k| rule(true, k, None, None, "m")));
    let open = [NULL, ZERO, FULL, RANDOM, URANDOM, TTY, CONSOLE, PTMX, PTS];
    rules
        .extend(open.map(|(major, minor)| rule(true, DeviceKind::Char, Some(major), minor, "rwm")));
    rules
}
