//! Adjustments as messages.

use nri_wire::api::{
    CdiDevice, ContainerAdjustment, Hooks, IoPrioClass, KeyValue, LinuxContainerAdjustment,
    LinuxDevice, LinuxIoPriority, LinuxNamespace, LinuxNetDevice, LinuxRdt, LinuxScheduler,
    LinuxSchedulerPolicy, OptionalBool, OptionalFileMode, OptionalInt, OptionalRepeatedString,
    OptionalString, OptionalUInt32, PosixRlimit,
};

use super::{
    Adjustment, AdjustmentError, Args, Device, DeviceKind, Keyed, Mount, Namespace, NamespaceKind,
    Rdt, Rlimit, Setting,
};
use crate::Resources;

// === out ===

impl TryFrom<Adjustment> for ContainerAdjustment {
    type Error = AdjustmentError;

    fn try_from(adjustment: Adjustment) -> Result<Self, AdjustmentError> {
        adjustment.check()?;
        let texts = |keyed: &Keyed<String>| {
            keyed
                .to_wire(|key| (key, String::new()), |key, value| (key.to_owned(), value.clone()))
                .collect()
        };
        let pair = |key: String, value: String| KeyValue { key, value };
        let linux = adjustment.to_linux();
        Ok(Self {
            annotations: texts(&adjustment.annotations),
            mounts: adjustment.mounts.to_wire(mount_removal, mount_to_wire).collect(),
            env: adjustment
                .env
                .to_wire(
                    |key| pair(key, String::new()),
                    |key, value| pair(key.to_owned(), value.clone()),
                )
                .collect(),
            args: adjustment.args.map(Args::into_wire).unwrap_or_default(),
            rlimits: adjustment.rlimits.into_iter().map(rlimit_to_wire).collect(),
            cdi_devices: adjustment
                .cdi_devices
                .into_iter()
                .map(|name| CdiDevice { name })
                .collect(),
            hooks: Some(adjustment.hooks).filter(|hooks| *hooks != Hooks::default()),
            linux: Some(linux).filter(|linux| *linux != LinuxContainerAdjustment::default()),
        })
    }
}

impl Adjustment {
    fn check(&self) -> Result<(), AdjustmentError> {
        let bad = [
            ("annotations", self.annotations.bad_key()),
            ("mounts", self.mounts.bad_key()),
            ("env", self.env.bad_key()),
            ("devices", self.devices.bad_key()),
            ("sysctl", self.sysctl.bad_key()),
            ("net_devices", self.net_devices.bad_key()),
        ];
        if let Some((field, key)) = bad.iter().find_map(|(field, key)| Some((*field, (*key)?))) {
            return Err(AdjustmentError::Key { field, key: key.to_owned() });
        }
        if let Some((name, _)) = self.env.iter().find(|(name, _)| name.contains('=')) {
            return Err(AdjustmentError::EnvName(name.to_owned()));
        }
        match &self.args {
            Some(Args::Set(args) | Args::TakeOver(args))
                if args.first().is_none_or(String::is_empty) =>
            {
                Err(AdjustmentError::Args)
            }
            _ => Ok(()),
        }
    }

    fn to_linux(&self) -> LinuxContainerAdjustment {
        let no_priority =
            LinuxIoPriority { class: IoPrioClass::IoprioClassNone.into(), priority: 0 };
        let no_scheduler =
            LinuxScheduler { policy: LinuxSchedulerPolicy::SchedNone.into(), ..Default::default() };
        let net_device = |name: &str| LinuxNetDevice { name: name.to_owned() };
        LinuxContainerAdjustment {
            devices: self.devices.to_wire(device_removal, device_to_wire).collect(),
            resources: self.resources.to_wire(),
            cgroups_path: self.cgroups_path.clone().unwrap_or_default(),
            oom_score_adj: self.oom_score_adj.map(|value| OptionalInt { value }),
            io_priority: self.io_priority.as_ref().map(|set| set.or(&no_priority)),
            seccomp_policy: self.seccomp.clone(),
            namespaces: self.namespaces.iter().map(namespace_to_wire).collect(),
            sysctl: self
                .sysctl
                .to_wire(|key| (key, String::new()), |key, value| (key.to_owned(), value.clone()))
                .collect(),
            net_devices: self
                .net_devices
                .to_wire(
                    |key| (key, net_device("")),
                    |key, name| (key.to_owned(), net_device(name)),
                )
                .collect(),
            scheduler: self.scheduler.as_ref().map(|set| set.or(&no_scheduler)),
            rdt: self.rdt.to_wire(),
            memory_policy: self.memory_policy.clone(),
        }
    }
}

impl<T: Clone> Setting<T> {
    fn or(&self, removed: &T) -> T {
        match self {
            Self::Set(value) => value.clone(),
            Self::Remove => removed.clone(),
        }
    }
}

impl Args {
    fn into_wire(self) -> Vec<String> {
        match self {
            Self::Set(args) => args,
            Self::TakeOver(args) => std::iter::once(String::new()).chain(args).collect(),
        }
    }
}

impl Rdt {
    fn to_wire(&self) -> Option<LinuxRdt> {
        let text = |value: &String| OptionalString { value: value.clone() };
        let wire = LinuxRdt {
            clos_id: self.clos_id.as_ref().map(text),
            schemata: self.schemata.clone().map(|value| OptionalRepeatedString { value }),
            enable_monitoring: self.enable_monitoring.map(|value| OptionalBool { value }),
            remove: self.take_over,
        };
        Some(wire).filter(|wire| *wire != LinuxRdt::default())
    }
}

fn mount_removal(destination: String) -> nri_wire::api::Mount {
    nri_wire::api::Mount { destination, ..Default::default() }
}

pub(crate) fn mount_to_wire(destination: &str, mount: &Mount) -> nri_wire::api::Mount {
    let Mount { kind, source, options } = mount.clone();
    nri_wire::api::Mount { destination: destination.to_owned(), r#type: kind, source, options }
}

fn device_removal(path: String) -> LinuxDevice {
    LinuxDevice { path, ..Default::default() }
}

pub(crate) fn device_to_wire(path: &str, device: &Device) -> LinuxDevice {
    LinuxDevice {
        path: path.to_owned(),
        r#type: device.kind.as_str().to_owned(),
        major: device.major,
        minor: device.minor,
        file_mode: device.mode.map(|value| OptionalFileMode { value }),
        uid: device.uid.map(|value| OptionalUInt32 { value }),
        gid: device.gid.map(|value| OptionalUInt32 { value }),
    }
}

fn rlimit_to_wire((kind, limit): (String, Rlimit)) -> PosixRlimit {
    PosixRlimit { r#type: kind, hard: limit.hard, soft: limit.soft }
}

fn namespace_to_wire((kind, setting): (&NamespaceKind, &Setting<Namespace>)) -> LinuxNamespace {
    let (kind, path) = match setting {
        Setting::Set(Namespace::New) => (kind.to_string(), String::new()),
        Setting::Set(Namespace::Join(path)) => (kind.to_string(), path.clone()),
        Setting::Remove => (format!("-{kind}"), String::new()),
    };
    LinuxNamespace { r#type: kind, path }
}

// === in ===

/// What a runtime sends to validators, and what tests compare. Values of kinds that are not
/// known here are left out.
impl From<ContainerAdjustment> for Adjustment {
    fn from(wire: ContainerAdjustment) -> Self {
        let linux = wire.linux.unwrap_or_default();
        let class = |set: &LinuxIoPriority| set.class() == IoPrioClass::IoprioClassNone;
        let policy = |set: &LinuxScheduler| set.policy() == LinuxSchedulerPolicy::SchedNone;
        let devices = linux.devices.into_iter().filter_map(device_from_wire);
        Self {
            annotations: Keyed::from_wire(wire.annotations),
            mounts: Keyed::from_wire(wire.mounts.into_iter().map(mount_from_wire)),
            env: Keyed::from_wire(wire.env.into_iter().map(|pair| (pair.key, pair.value))),
            args: Args::from_wire(wire.args),
            hooks: wire.hooks.unwrap_or_default(),
            rlimits: wire.rlimits.into_iter().map(rlimit_from_wire).collect(),
            cdi_devices: wire.cdi_devices.into_iter().map(|device| device.name).collect(),
            devices: Keyed::from_wire(devices),
            resources: linux.resources.as_ref().map(Resources::from).unwrap_or_default(),
            cgroups_path: Some(linux.cgroups_path).filter(|path| !path.is_empty()),
            oom_score_adj: linux.oom_score_adj.map(|set| set.value),
            io_priority: linux.io_priority.map(|set| Setting::unless(class(&set), set)),
            seccomp: linux.seccomp_policy,
            namespaces: linux.namespaces.into_iter().filter_map(namespace_from_wire).collect(),
            sysctl: Keyed::from_wire(linux.sysctl),
            net_devices: Keyed::from_wire(
                linux.net_devices.into_iter().map(|(host, device)| (host, device.name)),
            ),
            scheduler: linux.scheduler.map(|set| Setting::unless(policy(&set), set)),
            rdt: linux.rdt.map(Rdt::from_wire).unwrap_or_default(),
            memory_policy: linux.memory_policy,
        }
    }
}

impl<T> Setting<T> {
    fn unless(removed: bool, value: T) -> Self {
        if removed { Self::Remove } else { Self::Set(value) }
    }
}

impl Args {
    fn from_wire(mut args: Vec<String>) -> Option<Self> {
        match args.first() {
            None => None,
            Some(first) if first.is_empty() => Some(Self::TakeOver(args.split_off(1))),
            Some(_) => Some(Self::Set(args)),
        }
    }
}

impl Rdt {
    fn from_wire(wire: LinuxRdt) -> Self {
        Self {
            take_over: wire.remove,
            clos_id: wire.clos_id.map(|set| set.value),
            schemata: wire.schemata.map(|set| set.value),
            enable_monitoring: wire.enable_monitoring.map(|set| set.value),
        }
    }
}

pub(crate) fn mount_from_wire(wire: nri_wire::api::Mount) -> (String, Mount) {
    let mount = Mount { kind: wire.r#type, source: wire.source, options: wire.options };
    (wire.destination, mount)
}

pub(crate) fn device_from_wire(wire: LinuxDevice) -> Option<(String, Device)> {
    let kind = match wire.r#type.parse() {
        Ok(kind) => kind,
        // A marker of removal has a path and nothing else.
        Err(_) if wire.path.starts_with('-') => DeviceKind::Character,
        Err(_) => return None,
    };
    let device = Device {
        kind,
        major: wire.major,
        minor: wire.minor,
        mode: wire.file_mode.map(|set| set.value),
        uid: wire.uid.map(|set| set.value),
        gid: wire.gid.map(|set| set.value),
    };
    Some((wire.path, device))
}

fn rlimit_from_wire(wire: PosixRlimit) -> (String, Rlimit) {
    (wire.r#type, Rlimit { hard: wire.hard, soft: wire.soft })
}

fn namespace_from_wire(wire: LinuxNamespace) -> Option<(NamespaceKind, Setting<Namespace>)> {
    if let Some(kind) = wire.r#type.strip_prefix('-') {
        return Some((kind.parse().ok()?, Setting::Remove));
    }
    let namespace = if wire.path.is_empty() { Namespace::New } else { Namespace::Join(wire.path) };
    Some((wire.r#type.parse().ok()?, Setting::Set(namespace)))
}
