//! Annotations, and what they ask for.

use std::collections::BTreeMap;

use anyhow::Context;
use nri_sdk::{
    Adjustment, Container, Device, Mount, PodSandbox, Setting,
    api::{
        IoPrioClass, LinuxIoPriority, LinuxMemoryPolicy, LinuxScheduler, LinuxSchedulerFlag,
        LinuxSchedulerPolicy, MpolFlag, MpolMode,
    },
};
use serde::{Deserialize, de::DeserializeOwned};

/// The second is what the first was called before.
const DOMAINS: [&str; 2] = ["noderesource.dev", "nri.io"];

/// A container, and the pod that says what it should get.
pub(crate) struct Asked<'a> {
    pub(crate) pod: &'a PodSandbox,
    pub(crate) container: &'a Container,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceAsked {
    path: String,
    #[serde(rename = "type")]
    kind: String,
    major: i64,
    minor: i64,
    file_mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MountAsked {
    source: String,
    destination: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetDeviceAsked {
    #[serde(rename = "hostIf", alias = "HostIf")]
    host: String,
    #[serde(alias = "Name")]
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IoPriorityAsked {
    class: String,
    #[serde(default)]
    priority: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulerAsked {
    policy: String,
    #[serde(default)]
    nice: i32,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    runtime: u64,
    #[serde(default)]
    deadline: u64,
    #[serde(default)]
    period: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryPolicyAsked {
    mode: String,
    #[serde(default)]
    nodes: String,
    #[serde(default)]
    flags: Vec<String>,
}

impl Asked<'_> {
    pub(crate) fn adjustment(&self) -> anyhow::Result<Adjustment> {
        let mut adjustment = Adjustment::new();
        let all = &mut adjustment;
        self.with("devices", |devices: Vec<DeviceAsked>| {
            devices.into_iter().try_for_each(|device| {
                let (path, device) = device.check()?;
                all.devices.set(path, device);
                Ok(())
            })
        })?;
        self.with("mounts", |mounts: Vec<MountAsked>| {
            for MountAsked { source, destination, kind, options } in mounts {
                all.mounts.set(destination, Mount { kind, source, options });
            }
            Ok(())
        })?;
        self.with("cdi-devices", |names: Vec<String>| {
            all.cdi_devices.extend(names);
            Ok(())
        })?;
        self.with("network-devices", |devices: Vec<NetDeviceAsked>| {
            for NetDeviceAsked { host, name } in devices {
                all.net_devices.set(host, name);
            }
            Ok(())
        })?;
        self.with("sysctl", |settings: BTreeMap<String, String>| {
            for (key, value) in settings {
                all.sysctl.set(key, value);
            }
            Ok(())
        })?;
        self.policies(all)?;
        Ok(adjustment)
    }

    fn policies(&self, all: &mut Adjustment) -> anyhow::Result<()> {
        self.with("io-priority", |asked: IoPriorityAsked| {
            all.io_priority = Some(Setting::Set(asked.check()?));
            Ok(())
        })?;
        self.with("scheduling-policy", |asked: SchedulerAsked| {
            all.scheduler = Some(Setting::Set(asked.check()?));
            Ok(())
        })?;
        self.with("memory-policy", |asked: MemoryPolicyAsked| {
            all.memory_policy = Some(asked.check()?);
            Ok(())
        })
    }

    /// Does `apply` with what the annotation for `what` says, if there is one.
    fn with<T: DeserializeOwned>(
        &self,
        what: &str,
        apply: impl FnOnce(T) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some((key, text)) = self.annotation(what) else { return Ok(()) };
        let asked = serde_saphyr::from_str(text).map_err(anyhow::Error::from);
        asked.and_then(apply).with_context(|| format!("annotation {key}"))
    }

    /// The narrowest, and of two as narrow the newer name.
    fn annotation(&self, what: &str) -> Option<(String, &str)> {
        let suffixes =
            [format!("/container.{}", self.container.name), "/pod".into(), String::new()];
        let keys = suffixes.iter().flat_map(|suffix| {
            DOMAINS.iter().map(move |domain| format!("{what}.{domain}{suffix}"))
        });
        keys.into_iter().find_map(|key| {
            let text = self.pod.annotations.get(&key)?;
            Some((key, text.as_str()))
        })
    }
}

impl DeviceAsked {
    fn check(self) -> anyhow::Result<(String, Device)> {
        let mut device = Device::new(self.kind.parse()?, self.major, self.minor);
        (device.mode, device.uid, device.gid) = (self.file_mode, self.uid, self.gid);
        Ok((self.path, device))
    }
}

impl IoPriorityAsked {
    fn check(self) -> anyhow::Result<LinuxIoPriority> {
        let class = named(IoPrioClass::from_str_name, &self.class)?;
        Ok(LinuxIoPriority { class: class.into(), priority: self.priority })
    }
}

impl SchedulerAsked {
    fn check(self) -> anyhow::Result<LinuxScheduler> {
        let policy = named(LinuxSchedulerPolicy::from_str_name, &self.policy)?;
        let flag = |flag: &String| named(LinuxSchedulerFlag::from_str_name, flag).map(Into::into);
        Ok(LinuxScheduler {
            policy: policy.into(),
            nice: self.nice,
            priority: self.priority,
            flags: self.flags.iter().map(flag).collect::<anyhow::Result<_>>()?,
            runtime: self.runtime,
            deadline: self.deadline,
            period: self.period,
        })
    }
}

impl MemoryPolicyAsked {
    fn check(self) -> anyhow::Result<LinuxMemoryPolicy> {
        let mode = named(MpolMode::from_str_name, &self.mode)?;
        let flag = |flag: &String| named(MpolFlag::from_str_name, flag).map(Into::into);
        let flags = self.flags.iter().map(flag).collect::<anyhow::Result<_>>()?;
        Ok(LinuxMemoryPolicy { mode: mode.into(), nodes: self.nodes, flags })
    }
}

fn named<T>(parse: impl Fn(&str) -> Option<T>, name: &str) -> anyhow::Result<T> {
    parse(name).with_context(|| format!("{name} is not known"))
}
