//! Readings of a group in one set of units: nanoseconds, bytes, counts.

use std::collections::BTreeMap;

use super::{
    Cgroup, Group, Version,
    parse::{self, Device, Pressure},
};
use crate::error::Result;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    pub usage_ns: u64,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    /// Of the quota; `None` where no quota can be set.
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub usage: u64,
    /// What cannot be taken away at once: `usage` without the inactive file cache.
    pub working_set: u64,
    pub limit: Option<u64>,
    /// The highest `usage` so far.
    pub peak: Option<u64>,
    pub swap_usage: Option<u64>,
    pub swap_limit: Option<u64>,
    pub anon: u64,
    pub file: u64,
    pub mapped_file: u64,
    pub inactive_file: u64,
    pub active_file: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
}

/// What is asked for less often than [`Memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryDetails {
    /// How often the limit was hit. Linux 6.18 has the file on v1, and counts nothing.
    pub failures: Option<u64>,
    /// What the kernel took for the group: page tables, socket buffers.
    pub kernel: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pids {
    pub current: u64,
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Io {
    pub devices: BTreeMap<Device, IoDevice>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoDevice {
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub discard_bytes: u64,
    pub reads: u64,
    pub writes: u64,
    pub discards: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hugetlb {
    /// As the files spell it: `2MB`.
    pub page_size: String,
    pub usage: u64,
    /// The highest `usage` so far; v2 does not tell.
    pub peak: Option<u64>,
    pub limit: Option<u64>,
    /// How often the limit was hit.
    pub failures: Option<u64>,
}

/// Each is `None` where the controller, or in the root group the file, is missing.
impl Cgroup {
    pub fn cpu(&self) -> Result<Option<Cpu>> {
        match self.with("cpu").filter(|dir| dir.version == Version::V2) {
            Some(dir) => Ok(dir.read("cpu.stat")?.as_deref().and_then(cpu_v2)),
            None => self.cpu_v1(),
        }
    }

    /// `usage_ns` alone, in one read where that is possible.
    pub fn cpu_usage_ns(&self) -> Result<Option<u64>> {
        match self.with("cpuacct") {
            Some(dir) => dir.number("cpuacct.usage"),
            None => Ok(self.cpu()?.map(|cpu| cpu.usage_ns)),
        }
    }

    fn cpu_v1(&self) -> Result<Option<Cpu>> {
        let Some(dir) = self.with("cpuacct") else { return Ok(None) };
        let Some(usage_ns) = dir.number("cpuacct.usage")? else { return Ok(None) };
        let stat = self.with("cpu").map_or(Ok(None), |cpu| cpu.read("cpu.stat"))?;
        let field = |name| stat.as_deref().and_then(|text| parse::field(text, name));
        Ok(Some(Cpu {
            usage_ns,
            user_ns: dir.number("cpuacct.usage_user")?,
            system_ns: dir.number("cpuacct.usage_sys")?,
            periods: field("nr_periods"),
            throttled_periods: field("nr_throttled"),
            throttled_ns: field("throttled_time"),
        }))
    }

    pub fn memory(&self) -> Result<Option<Memory>> {
        let Some(dir) = self.with("memory") else { return Ok(None) };
        match dir.version {
            Version::V1 => dir.memory_v1(),
            Version::V2 => dir.memory_v2(),
        }
    }

    pub fn memory_details(&self) -> Result<Option<MemoryDetails>> {
        let Some(dir) = self.with("memory") else { return Ok(None) };
        let field = |file: &str, name| {
            Ok::<_, crate::error::Error>(dir.read(file)?.and_then(|text| parse::field(&text, name)))
        };
        let (failures, kernel) = match dir.version {
            Version::V1 => {
                (dir.number("memory.failcnt")?, dir.number("memory.kmem.usage_in_bytes")?)
            }
            Version::V2 => (field("memory.events", "max")?, field("memory.stat", "kernel")?),
        };
        Ok(Some(MemoryDetails { failures, kernel }))
    }

    /// Every line of `memory.stat`, for those who show them all.
    pub fn memory_stat(&self) -> Result<Option<BTreeMap<String, u64>>> {
        let text = self.read("memory", "memory.stat")?;
        Ok(text.map(|text| parse::flat(&text).map(|(name, n)| (name.to_owned(), n)).collect()))
    }

    /// How many processes of the group (on v2: and those below) the OOM killer took.
    pub fn oom_kills(&self) -> Result<Option<u64>> {
        let Some(dir) = self.with("memory") else { return Ok(None) };
        let file = match dir.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        Ok(dir.read(file)?.and_then(|text| parse::field(&text, "oom_kill")))
    }

    /// Counts tasks, threads included.
    pub fn pids_usage(&self) -> Result<Option<Pids>> {
        let Some(dir) = self.with("pids") else { return Ok(None) };
        let Some(current) = dir.number("pids.current")? else { return Ok(None) };
        Ok(Some(Pids { current, limit: dir.limit("pids.max")? }))
    }

    pub fn io(&self) -> Result<Option<Io>> {
        if let Some(dir) = self.with("io") {
            return Ok(dir.read("io.stat")?.map(|text| io_v2(&text)));
        }
        let Some(dir) = self.with("blkio") else { return Ok(None) };
        // The scheduler's own files count all where it is in use; else the throttler's do.
        for prefix in ["blkio.bfq", "blkio.throttle", "blkio"] {
            let bytes = dir.read(&format!("{prefix}.io_service_bytes_recursive"))?;
            let counts = dir.read(&format!("{prefix}.io_serviced_recursive"))?;
            if let (Some(bytes), Some(counts)) = (bytes, counts) {
                let io = io_v1(&bytes, &counts);
                if !io.devices.is_empty() {
                    return Ok(Some(io));
                }
            }
        }
        Ok(Some(Io::default()))
    }

    pub fn hugetlb(&self) -> Result<Option<Vec<Hugetlb>>> {
        let Some(dir) = self.with("hugetlb") else { return Ok(None) };
        let usage = match dir.version {
            Version::V1 => "usage_in_bytes",
            Version::V2 => "current",
        };
        let mut all = Vec::new();
        for (name, _) in dir.names()? {
            let size = name.to_str().and_then(|name| {
                let size = name.strip_prefix("hugetlb.")?.strip_suffix(usage)?;
                // `hugetlb.2MB.rsvd.current` counts reservations, not pages.
                size.strip_suffix('.').filter(|size| !size.contains('.'))
            });
            if let Some(size) = size
                && let Some(reading) = dir.hugetlb_of(size, usage)?
            {
                all.push(reading);
            }
        }
        all.sort_by(|a, b| a.page_size.cmp(&b.page_size));
        Ok(Some(all))
    }

    pub fn cpu_pressure(&self) -> Result<Option<Pressure>> {
        self.pressure("cpu.pressure")
    }

    pub fn memory_pressure(&self) -> Result<Option<Pressure>> {
        self.pressure("memory.pressure")
    }

    pub fn io_pressure(&self) -> Result<Option<Pressure>> {
        self.pressure("io.pressure")
    }

    fn pressure(&self, file: &str) -> Result<Option<Pressure>> {
        let Some(dir) = self.unified() else { return Ok(None) };
        Ok(dir.read(file)?.and_then(|text| parse::pressure(&text)))
    }
}

impl Group {
    fn number(&self, file: &str) -> Result<Option<u64>> {
        Ok(self.read(file)?.and_then(|text| parse::number(&text)))
    }

    fn limit(&self, file: &str) -> Result<Option<u64>> {
        Ok(self.read(file)?.and_then(|text| parse::limit(&text)))
    }

    fn memory_v1(&self) -> Result<Option<Memory>> {
        let Some(usage) = self.number("memory.usage_in_bytes")? else { return Ok(None) };
        let Some(stat) = self.read("memory.stat")? else { return Ok(None) };
        // `memsw` counts memory and swap together, and is missing without swap accounting.
        let both = self.number("memory.memsw.usage_in_bytes")?;
        let limit = self.limit("memory.limit_in_bytes")?;
        let both_limit = self.limit("memory.memsw.limit_in_bytes")?;
        Ok(Some(Memory {
            limit,
            peak: self.number("memory.max_usage_in_bytes")?,
            swap_usage: both.map(|both| both.saturating_sub(usage)),
            swap_limit: both_limit.zip(limit).map(|(both, limit)| both.saturating_sub(limit)),
            ..memory_of(&stat, usage, "total_")
        }))
    }

    fn memory_v2(&self) -> Result<Option<Memory>> {
        let Some(usage) = self.number("memory.current")? else { return Ok(None) };
        let Some(stat) = self.read("memory.stat")? else { return Ok(None) };
        Ok(Some(Memory {
            limit: self.limit("memory.max")?,
            peak: self.number("memory.peak")?,
            swap_usage: self.number("memory.swap.current")?,
            swap_limit: self.limit("memory.swap.max")?,
            ..memory_of(&stat, usage, "")
        }))
    }

    fn hugetlb_of(&self, size: &str, usage: &str) -> Result<Option<Hugetlb>> {
        let file = |suffix: &str| format!("hugetlb.{size}.{suffix}");
        let Some(usage) = self.number(&file(usage))? else { return Ok(None) };
        let (limit, failures, peak) = match self.version {
            Version::V1 => (
                self.limit(&file("limit_in_bytes"))?,
                self.number(&file("failcnt"))?,
                self.number(&file("max_usage_in_bytes"))?,
            ),
            Version::V2 => {
                let events = self.read(&file("events"))?;
                let failures = events.and_then(|text| parse::field(&text, "max"));
                (self.limit(&file("max"))?, failures, None)
            }
        };
        Ok(Some(Hugetlb { page_size: size.to_owned(), usage, peak, limit, failures }))
    }
}

fn cpu_v2(text: &str) -> Option<Cpu> {
    let micros = |name| parse::field(text, name).map(|us| us.saturating_mul(1000));
    Some(Cpu {
        usage_ns: micros("usage_usec")?,
        user_ns: micros("user_usec"),
        system_ns: micros("system_usec"),
        periods: parse::field(text, "nr_periods"),
        throttled_periods: parse::field(text, "nr_throttled"),
        throttled_ns: micros("throttled_usec"),
    })
}

/// `memory.stat` of both versions; v1 has sums over the groups below under `total_`.
fn memory_of(stat: &str, usage: u64, prefix: &str) -> Memory {
    let v1 = !prefix.is_empty();
    let mut memory = Memory { usage, ..Memory::default() };
    for (name, value) in parse::flat(stat) {
        let Some(name) = name.strip_prefix(prefix) else { continue };
        match name {
            "anon" if !v1 => memory.anon = value,
            "rss" if v1 => memory.anon = value,
            "file" if !v1 => memory.file = value,
            "cache" if v1 => memory.file = value,
            "file_mapped" if !v1 => memory.mapped_file = value,
            "mapped_file" if v1 => memory.mapped_file = value,
            "inactive_file" => memory.inactive_file = value,
            "active_file" => memory.active_file = value,
            "pgfault" => memory.page_faults = value,
            "pgmajfault" => memory.major_page_faults = value,
            _ => {}
        }
    }
    memory.working_set = usage.saturating_sub(memory.inactive_file);
    memory
}

fn io_v2(text: &str) -> Io {
    let mut io = Io::default();
    for (device, name, value) in parse::keyed(text) {
        let entry = io.devices.entry(device).or_default();
        match name {
            "rbytes" => entry.read_bytes = value,
            "wbytes" => entry.write_bytes = value,
            "dbytes" => entry.discard_bytes = value,
            "rios" => entry.reads = value,
            "wios" => entry.writes = value,
            "dios" => entry.discards = value,
            _ => {}
        }
    }
    io
}

fn io_v1(bytes: &str, counts: &str) -> Io {
    let mut io = Io::default();
    for (device, name, value) in parse::blkio(bytes) {
        let entry = io.devices.entry(device).or_default();
        match name {
            "Read" => entry.read_bytes = value,
            "Write" => entry.write_bytes = value,
            "Discard" => entry.discard_bytes = value,
            _ => {}
        }
    }
    for (device, name, value) in parse::blkio(counts) {
        let entry = io.devices.entry(device).or_default();
        match name {
            "Read" => entry.reads = value,
            "Write" => entry.writes = value,
            "Discard" => entry.discards = value,
            _ => {}
        }
    }
    io
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
