//! A container's use of resources, in the shape of cgroup v2 whatever the host has.
//!
//! Our daemon reads the cgroups itself, of all containers at once; this is for others who
//! speak the Task API.

use api_shim::metrics::{
    CpuStat, HugeTlbStat, IoEntry, IoStat, MemoryEvents, MemoryStat, Metrics, PidsStat, PsiData,
    PsiStats,
};
use sys::cgroup::{
    Cgroup, Cpu, Memory,
    parse::{Pressure, Stall},
};

use crate::error::{Error, Result};

/// "No limit" is the largest number there.
const UNLIMITED: u64 = u64::MAX;

pub(crate) fn of(group: &Cgroup) -> Result<Metrics> {
    read(group).map_err(Error::io("read the container's cgroup"))
}

fn read(group: &Cgroup) -> sys::Result<Metrics> {
    let cpu_psi = group.cpu_pressure()?.map(psi);
    let memory_psi = group.memory_pressure()?.map(psi);
    let io_psi = group.io_pressure()?.map(psi);
    let pids = group.pids_usage()?.map(|pids| PidsStat {
        current: pids.current,
        // Version 2 says 0 for none here.
        limit: pids.limit.unwrap_or_default(),
    });
    let io = group.io()?.map(|io| {
        let entry = |((major, minor), device): (_, sys::cgroup::IoDevice)| IoEntry {
            major: u32::into(major),
            minor: u32::into(minor),
            rbytes: device.read_bytes,
            wbytes: device.write_bytes,
            rios: device.reads,
            wios: device.writes,
        };
        IoStat { usage: io.devices.into_iter().map(entry).collect(), psi: io_psi }
    });
    let hugetlb = group.hugetlb()?.unwrap_or_default().into_iter().map(|pages| HugeTlbStat {
        current: pages.usage,
        max: pages.limit.unwrap_or(UNLIMITED),
        pagesize: pages.page_size,
        failcnt: pages.failures.unwrap_or_default(),
    });
    Ok(Metrics {
        pids,
        cpu: group.cpu()?.map(|reading| cpu(reading, cpu_psi)),
        memory: group.memory()?.map(|reading| memory(reading, memory_psi)),
        io,
        hugetlb: hugetlb.collect(),
        memory_events: group.oom_kills()?.map(|oom_kill| MemoryEvents { oom_kill }),
    })
}

fn cpu(reading: Cpu, psi: Option<PsiStats>) -> CpuStat {
    let micros = |nanos: Option<u64>| nanos.unwrap_or_default() / 1000;
    CpuStat {
        usage_usec: reading.usage_ns / 1000,
        user_usec: micros(reading.user_ns),
        system_usec: micros(reading.system_ns),
        nr_periods: reading.periods.unwrap_or_default(),
        nr_throttled: reading.throttled_periods.unwrap_or_default(),
        throttled_usec: micros(reading.throttled_ns),
        psi,
    }
}

fn memory(reading: Memory, psi: Option<PsiStats>) -> MemoryStat {
    MemoryStat {
        anon: reading.anon,
        file: reading.file,
        file_mapped: reading.mapped_file,
        inactive_file: reading.inactive_file,
        pgfault: reading.page_faults,
        pgmajfault: reading.major_page_faults,
        usage: reading.usage,
        usage_limit: reading.limit.unwrap_or(UNLIMITED),
        swap_usage: reading.swap_usage.unwrap_or_default(),
        swap_limit: reading.swap_limit.unwrap_or(UNLIMITED),
        max_usage: reading.peak.unwrap_or_default(),
        psi,
    }
}

fn psi(pressure: Pressure) -> PsiStats {
    let data = |stall: Stall| PsiData {
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
        total: stall.total_us,
    };
    PsiStats { some: Some(data(pressure.some)), full: pressure.full.map(data) }
}
