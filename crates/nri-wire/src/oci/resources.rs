//! Resources of a container. Classes of block I/O and RDT are names only a runtime can
//! resolve; they have no place in OCI resources.

use oci_spec::runtime as oci;

use super::{UnknownName, named, non_empty, text};
use crate::api::{
    HugepageLimit, LinuxCpu, LinuxDeviceCgroup, LinuxMemory, LinuxPids, LinuxRdt, LinuxResources,
    OptionalBool, OptionalInt64, OptionalRepeatedString, OptionalString, OptionalUInt64,
};

fn int(value: Option<i64>) -> Option<OptionalInt64> {
    value.map(|value| OptionalInt64 { value })
}

fn uint(value: Option<u64>) -> Option<OptionalUInt64> {
    value.map(|value| OptionalUInt64 { value })
}

fn boolean(value: Option<bool>) -> Option<OptionalBool> {
    value.map(|value| OptionalBool { value })
}

impl From<&oci::LinuxResources> for LinuxResources {
    fn from(resources: &oci::LinuxResources) -> Self {
        let huge = resources.hugepage_limits().iter().flatten();
        let unified = resources.unified().iter().flatten();
        // Both 0 and below mean no limit to OCI; 0 would be a limit to NRI.
        let limit = |limit: i64| if limit > 0 { limit } else { -1 };
        Self {
            memory: resources.memory().as_ref().map(Into::into),
            cpu: resources.cpu().as_ref().map(Into::into),
            hugepage_limits: huge
                .map(|huge| HugepageLimit {
                    page_size: huge.page_size().clone(),
                    limit: u64::try_from(huge.limit()).unwrap_or(u64::MAX),
                })
                .collect(),
            blockio_class: None,
            rdt_class: None,
            unified: unified.map(|(key, value)| (key.clone(), value.clone())).collect(),
            devices: resources.devices().iter().flatten().map(Into::into).collect(),
            pids: resources.pids().as_ref().map(|pids| LinuxPids { limit: limit(pids.limit()) }),
        }
    }
}

impl TryFrom<&LinuxResources> for oci::LinuxResources {
    type Error = UnknownName;

    fn try_from(resources: &LinuxResources) -> Result<Self, UnknownName> {
        let devices: Result<Vec<_>, _> = resources.devices.iter().map(TryInto::try_into).collect();
        let unified = resources.unified.iter().map(|(key, value)| (key.clone(), value.clone()));
        let huge = resources.hugepage_limits.iter().map(Into::into).collect();
        let mut out = Self::default();
        out.set_memory(resources.memory.as_ref().map(Into::into))
            .set_cpu(resources.cpu.as_ref().map(Into::into))
            .set_hugepage_limits(non_empty(huge))
            .set_unified((!resources.unified.is_empty()).then(|| unified.collect()))
            .set_devices(non_empty(devices?))
            .set_pids(resources.pids.as_ref().map(Into::into));
        Ok(out)
    }
}

impl From<&LinuxPids> for oci::LinuxPids {
    fn from(pids: &LinuxPids) -> Self {
        let mut out = Self::default();
        out.set_limit(pids.limit.max(-1));
        out
    }
}

impl From<&HugepageLimit> for oci::LinuxHugepageLimit {
    fn from(huge: &HugepageLimit) -> Self {
        let mut out = Self::default();
        out.set_page_size(huge.page_size.clone())
            .set_limit(i64::try_from(huge.limit).unwrap_or(i64::MAX));
        out
    }
}

impl From<&oci::LinuxMemory> for LinuxMemory {
    fn from(memory: &oci::LinuxMemory) -> Self {
        Self {
            limit: int(memory.limit()),
            reservation: int(memory.reservation()),
            swap: int(memory.swap()),
            kernel: int(memory.kernel()),
            kernel_tcp: int(memory.kernel_tcp()),
            swappiness: uint(memory.swappiness()),
            disable_oom_killer: boolean(memory.disable_oom_killer()),
            use_hierarchy: boolean(memory.use_hierarchy()),
        }
    }
}

impl From<&LinuxMemory> for oci::LinuxMemory {
    fn from(memory: &LinuxMemory) -> Self {
        let mut out = Self::default();
        out.set_limit(memory.limit.map(|v| v.value))
            .set_reservation(memory.reservation.map(|v| v.value))
            .set_swap(memory.swap.map(|v| v.value))
            .set_kernel(memory.kernel.map(|v| v.value))
            .set_kernel_tcp(memory.kernel_tcp.map(|v| v.value))
            .set_swappiness(memory.swappiness.map(|v| v.value))
            .set_disable_oom_killer(memory.disable_oom_killer.map(|v| v.value))
            .set_use_hierarchy(memory.use_hierarchy.map(|v| v.value));
        out
    }
}

impl From<&oci::LinuxCpu> for LinuxCpu {
    fn from(cpu: &oci::LinuxCpu) -> Self {
        Self {
            shares: uint(cpu.shares()),
            quota: int(cpu.quota()),
            period: uint(cpu.period()),
            realtime_runtime: int(cpu.realtime_runtime()),
            realtime_period: uint(cpu.realtime_period()),
            cpus: cpu.cpus().clone().unwrap_or_default(),
            mems: cpu.mems().clone().unwrap_or_default(),
        }
    }
}

impl From<&LinuxCpu> for oci::LinuxCpu {
    fn from(cpu: &LinuxCpu) -> Self {
        let mut out = Self::default();
        out.set_shares(cpu.shares.map(|v| v.value))
            .set_quota(cpu.quota.map(|v| v.value))
            .set_period(cpu.period.map(|v| v.value))
            .set_realtime_runtime(cpu.realtime_runtime.map(|v| v.value))
            .set_realtime_period(cpu.realtime_period.map(|v| v.value))
            .set_cpus(text(&cpu.cpus))
            .set_mems(text(&cpu.mems));
        out
    }
}

impl From<&oci::LinuxDeviceCgroup> for LinuxDeviceCgroup {
    fn from(rule: &oci::LinuxDeviceCgroup) -> Self {
        Self {
            allow: rule.allow(),
            r#type: rule.typ().map(|kind| kind.as_str().to_owned()).unwrap_or_default(),
            major: int(rule.major()),
            minor: int(rule.minor()),
            access: rule.access().clone().unwrap_or_default(),
        }
    }
}

impl TryFrom<&LinuxDeviceCgroup> for oci::LinuxDeviceCgroup {
    type Error = UnknownName;

    fn try_from(rule: &LinuxDeviceCgroup) -> Result<Self, UnknownName> {
        let kind = text(&rule.r#type).map(|kind| named("device type", &kind)).transpose()?;
        let mut out = Self::default();
        out.set_allow(rule.allow)
            .set_typ(kind)
            .set_major(rule.major.map(|v| v.value))
            .set_minor(rule.minor.map(|v| v.value))
            .set_access(text(&rule.access));
        Ok(out)
    }
}

impl From<&oci::LinuxIntelRdt> for LinuxRdt {
    fn from(rdt: &oci::LinuxIntelRdt) -> Self {
        let schemata = rdt.schemata().clone();
        Self {
            clos_id: rdt.clos_id().clone().map(|value| OptionalString { value }),
            schemata: schemata.map(|value| OptionalRepeatedString { value }),
            enable_monitoring: boolean(*rdt.enable_monitoring()),
            remove: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*};

    use super::*;

    prop_compose! {
        fn resources()(
            a in option::of(any::<i64>()), b in option::of(any::<u64>()), c in option::of(any::<bool>()),
            cpus in "[0-9]{0,2}", key in "[a-z]{1,3}", limit in 1..i64::MAX, huge in 0..i64::MAX as u64,
            kind in prop::sample::select(&["", "a", "b", "c", "u", "p"][..]),
        ) -> LinuxResources {
            let memory = LinuxMemory {
                limit: int(a), reservation: int(a), swap: int(a), kernel: int(a), kernel_tcp: int(a),
                swappiness: uint(b), disable_oom_killer: boolean(c), use_hierarchy: boolean(c),
            };
            let cpu = LinuxCpu {
                shares: uint(b), quota: int(a), period: uint(b), realtime_runtime: int(a),
                realtime_period: uint(b), cpus: cpus.clone(), mems: cpus,
            };
            let rule = LinuxDeviceCgroup {
                allow: c.unwrap_or_default(), r#type: kind.to_owned(), major: int(a), minor: int(None),
                access: "rw".to_owned(),
            };
            LinuxResources {
                memory: Some(memory), cpu: Some(cpu),
                hugepage_limits: vec![HugepageLimit { page_size: "2MB".to_owned(), limit: huge }],
                unified: [(key.clone(), key)].into(), devices: vec![rule],
                pids: Some(LinuxPids { limit }), blockio_class: None, rdt_class: None,
            }
        }
    }

    proptest! {
        #[test]
        fn resources_round_trip(resources in resources()) {
            let spec = oci::LinuxResources::try_from(&resources).unwrap();
            prop_assert_eq!(LinuxResources::from(&spec), resources);
        }
    }

    #[test]
    fn what_is_empty_stays_absent() {
        let spec = oci::LinuxResources::try_from(&LinuxResources::default()).unwrap();
        assert_eq!(spec.unified(), &None);
        assert_eq!(spec.hugepage_limits(), &None);
        assert_eq!(LinuxResources::from(&spec), LinuxResources::default());
    }
}
