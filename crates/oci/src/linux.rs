//! The same limits in the words of a request and in those of OCI.

use oci_spec::runtime::{
    LinuxBlockIo, LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources,
    LinuxThrottleDevice, Spec,
};

use crate::{
    error::{OciError, Result},
    request::{BlockIo, DeviceRate, DeviceWeight, HugepageLimit, Resources},
    resources::{self, Limits, Updated},
};

/// What a spec says, in the words of a request: for a status.
pub fn resources_of(spec: &Spec) -> Resources {
    let linux = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    Resources {
        oom_score_adj: spec.process().as_ref().and_then(|process| process.oom_score_adj()),
        ..linux.map(from_linux).unwrap_or_default()
    }
}

pub fn from_linux(linux: &LinuxResources) -> Resources {
    let mut resources = Resources::default();
    if let Some(cpu) = linux.cpu() {
        resources.cpu_shares = cpu.shares();
        resources.cpu_quota = cpu.quota();
        resources.cpu_period = cpu.period();
        resources.cpu_realtime_runtime = cpu.realtime_runtime();
        resources.cpu_realtime_period = cpu.realtime_period();
        resources.cpuset_cpus.clone_from(cpu.cpus());
        resources.cpuset_mems.clone_from(cpu.mems());
    }
    if let Some(memory) = linux.memory() {
        resources.memory_limit = memory.limit();
        resources.memory_reservation = memory.reservation();
        resources.memory_swap = memory.swap();
        resources.memory_swappiness = memory.swappiness();
        resources.oom_kill_disable = memory.disable_oom_killer();
    }
    resources.pids_limit = linux.pids().map(|pids| pids.limit());
    let hugepages = linux.hugepage_limits().iter().flatten().map(|limit| HugepageLimit {
        page_size: limit.page_size().clone(),
        limit: u64::try_from(limit.limit()).unwrap_or(0),
    });
    resources.hugepages = hugepages.collect();
    resources.unified = linux.unified().iter().flatten().map(owned).collect();
    resources.block_io = linux.block_io().as_ref().map(block_io_of);
    resources
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

fn block_io_of(linux: &LinuxBlockIo) -> BlockIo {
    // The kernel numbers devices by 32 bits; a spec that has more is nobody's device.
    let number = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    let weights = linux.weight_device().iter().flatten().map(|device| DeviceWeight {
        major: number(device.major()),
        minor: number(device.minor()),
        weight: device.weight().unwrap_or(0),
    });
    let rates = |devices: &Option<Vec<LinuxThrottleDevice>>| -> Vec<DeviceRate> {
        let rate = |device: &LinuxThrottleDevice| DeviceRate {
            major: number(device.major()),
            minor: number(device.minor()),
            rate: device.rate(),
        };
        devices.iter().flatten().map(rate).collect()
    };
    BlockIo {
        weight: linux.weight(),
        weight_devices: weights.collect(),
        read_bps: rates(linux.throttle_read_bps_device()),
        write_bps: rates(linux.throttle_write_bps_device()),
        read_iops: rates(linux.throttle_read_iops_device()),
        write_iops: rates(linux.throttle_write_iops_device()),
    }
}

/// Nothing is checked: what is asked for is only said.
pub fn to_linux(asked: &Resources) -> Result<LinuxResources> {
    let mut linux = LinuxResources::default();
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(asked.cpu_shares)
        .set_quota(asked.cpu_quota)
        .set_period(asked.cpu_period)
        .set_realtime_runtime(asked.cpu_realtime_runtime)
        .set_realtime_period(asked.cpu_realtime_period)
        .set_cpus(asked.cpuset_cpus.clone())
        .set_mems(asked.cpuset_mems.clone());
    let mut memory = LinuxMemory::default();
    memory
        .set_limit(asked.memory_limit)
        .set_reservation(asked.memory_reservation)
        .set_swap(asked.memory_swap)
        .set_swappiness(asked.memory_swappiness)
        .set_disable_oom_killer(asked.oom_kill_disable);
    let hugepages = asked.hugepages.iter().map(|asked| {
        let mut limit = LinuxHugepageLimit::default();
        limit
            .set_page_size(asked.page_size.clone())
            .set_limit(i64::try_from(asked.limit).unwrap_or(i64::MAX));
        limit
    });
    let hugepages: Vec<_> = hugepages.collect();
    let unified = asked.unified.iter().map(owned).collect::<std::collections::HashMap<_, _>>();
    linux
        .set_cpu((cpu != LinuxCpu::default()).then_some(cpu))
        .set_memory((memory != LinuxMemory::default()).then_some(memory))
        .set_hugepage_limits((!hugepages.is_empty()).then_some(hugepages))
        .set_unified((!unified.is_empty()).then_some(unified))
        .set_pids(asked.pids_limit.map(|limit| {
            let mut pids = LinuxPids::default();
            pids.set_limit(limit);
            pids
        }))
        .set_block_io(asked.block_io.as_ref().map(resources::block_io).transpose()?);
    Ok(linux)
}

/// As [`update`](crate::update), asked for in the words of OCI, which has some that no
/// kernel or no runtime listens to any more: these are refused.
pub fn update_linux(
    spec: &mut Spec,
    asked: &LinuxResources,
    limits: Limits<'_>,
) -> Result<Updated> {
    check_heard(asked)?;
    resources::update(spec, &from_linux(asked), limits)
}

/// That nothing is asked for that would be dropped without a word.
pub(crate) fn check_heard(asked: &LinuxResources) -> Result<()> {
    let memory = asked.memory().unwrap_or_default();
    let unheard = [
        ("resources.memory.kernel", memory.kernel().is_some()),
        ("resources.memory.kernel_tcp", memory.kernel_tcp().is_some()),
        ("resources.memory.use_hierarchy", memory.use_hierarchy() == Some(false)),
    ];
    match unheard.into_iter().find(|(_, asked)| *asked) {
        Some((field, _)) => {
            Err(OciError::Host { field: field.to_owned(), what: "a kernel that takes it" })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Resources {
        let rate = |rate| vec![DeviceRate { major: 8, minor: 1, rate }];
        Resources {
            cpu_shares: Some(1),
            cpu_quota: Some(-1),
            cpu_period: Some(100_000),
            cpu_realtime_runtime: Some(2),
            cpu_realtime_period: Some(3),
            cpuset_cpus: Some("0-1".into()),
            cpuset_mems: Some("0".into()),
            memory_limit: Some(4),
            memory_reservation: Some(5),
            memory_swap: Some(6),
            memory_swappiness: Some(7),
            oom_kill_disable: Some(true),
            oom_score_adj: None,
            hugepages: vec![HugepageLimit { page_size: "2MB".into(), limit: 8 }],
            unified: [("memory.high".to_owned(), "9".to_owned())].into(),
            pids_limit: Some(-1),
            block_io: Some(BlockIo {
                weight: Some(100),
                weight_devices: vec![DeviceWeight { major: 8, minor: 0, weight: 10 }],
                read_bps: rate(1),
                write_bps: rate(2),
                read_iops: rate(3),
                write_iops: rate(4),
            }),
        }
    }

    #[test]
    fn limits_say_the_same_in_both_words() {
        assert_eq!(from_linux(&to_linux(&everything()).unwrap()), everything());
        assert_eq!(to_linux(&Resources::default()).unwrap(), LinuxResources::default());
    }

    #[test]
    fn what_nobody_listens_to_is_refused_by_name() {
        let mut linux = to_linux(&everything()).unwrap();
        check_heard(&linux).unwrap();
        let mut memory = LinuxMemory::default();
        memory.set_kernel_tcp(Some(1));
        linux.set_memory(Some(memory));
        let error = check_heard(&linux).unwrap_err().to_string();
        assert!(error.starts_with("resources.memory.kernel_tcp: "), "{error}");
    }
}
