//! Metrics of pods and containers, under the names that cAdvisor made known.
//!
//! One table says it all: name, meaning, labels, and where the number comes from. Both RPCs
//! are made of it, so that a metric without a descriptor cannot be.

use api_cri::v1;
use base::time;
use engine::stats::{ContainerDetails, Interface, PodDetails, Pressure, Stall};
use v1::MetricType::{Counter, Gauge};

/// What every metric is labelled with, in this order.
const LABELS: [&str; 5] = ["pod", "namespace", "container", "id", "image"];
const INTERFACE: &[&str] = &["interface"];
const DEVICE: &[&str] = &["device"];

/// Each with the values of its own labels.
type Values = Vec<(Vec<String>, u64)>;

const SECOND: u64 = 1_000_000_000;

/// What the kernel has where nobody asked for another.
const DEFAULT_CPU_SHARES: u64 = 1024;
const DEFAULT_CPU_PERIOD: u64 = 100_000;

struct Metric<T> {
    name: &'static str,
    help: &'static str,
    kind: v1::MetricType,
    /// Beside [`LABELS`].
    labels: &'static [&'static str],
    read: Read<T>,
}

enum Read<T> {
    One(fn(&T) -> Option<u64>),
    /// A value for each set of labels.
    Each(fn(&T) -> Values),
}

const fn one<T>(
    kind: v1::MetricType,
    name: &'static str,
    help: &'static str,
    read: fn(&T) -> Option<u64>,
) -> Metric<T> {
    Metric { name, help, kind, labels: &[], read: Read::One(read) }
}

const fn each<T>(
    kind: v1::MetricType,
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&T) -> Values,
) -> Metric<T> {
    Metric { name, help, kind, labels, read: Read::Each(read) }
}

type D = ContainerDetails;

const CPU: &[Metric<D>] = &[
    one(Counter, "container_cpu_usage_seconds_total", "CPU time used, in seconds", |d| {
        Some(d.cpu?.usage_ns / SECOND)
    }),
    one(Counter, "container_cpu_user_seconds_total", "CPU time in user mode, in seconds", |d| {
        Some(d.cpu?.user_ns? / SECOND)
    }),
    one(Counter, "container_cpu_system_seconds_total", "CPU time in the kernel, in seconds", |d| {
        Some(d.cpu?.system_ns? / SECOND)
    }),
    one(Counter, "container_cpu_cfs_periods_total", "Periods of the CPU quota", |d| d.cpu?.periods),
    one(
        Counter,
        "container_cpu_cfs_throttled_periods_total",
        "Periods in which the CPU quota was used up",
        |d| d.cpu?.throttled_periods,
    ),
    one(
        Counter,
        "container_cpu_cfs_throttled_seconds_total",
        "Time spent waiting for the next period of the CPU quota, in seconds",
        |d| Some(d.cpu?.throttled_ns? / SECOND),
    ),
];

const MEMORY: &[Metric<D>] = &[
    one(Gauge, "container_memory_cache", "Page cache, in bytes", |d| Some(d.usage.memory?.file)),
    one(Gauge, "container_memory_rss", "Anonymous memory, in bytes", |d| {
        Some(d.usage.memory?.anon)
    }),
    one(Gauge, "container_memory_kernel_usage", "Memory of the kernel, in bytes", |d| {
        d.memory?.kernel
    }),
    one(Gauge, "container_memory_mapped_file", "Mapped files, in bytes", |d| {
        Some(d.usage.memory?.mapped_file)
    }),
    one(Gauge, "container_memory_swap", "Swap in use, in bytes", |d| d.usage.memory?.swap_usage),
    one(Counter, "container_memory_failcnt", "How often the memory limit was hit", |d| {
        d.memory?.failures
    }),
    one(Gauge, "container_memory_usage_bytes", "Memory in use, with caches, in bytes", |d| {
        Some(d.usage.memory?.usage)
    }),
    one(Gauge, "container_memory_max_usage_bytes", "The most memory ever in use, in bytes", |d| {
        d.usage.memory?.peak
    }),
    one(
        Gauge,
        "container_memory_working_set_bytes",
        "Memory in use without the cache that can be dropped, in bytes",
        |d| Some(d.usage.memory?.working_set),
    ),
    one(
        Gauge,
        "container_memory_total_active_file_bytes",
        "Page cache used lately, in bytes",
        |d| Some(d.usage.memory?.active_file),
    ),
    one(
        Gauge,
        "container_memory_total_inactive_file_bytes",
        "Page cache not used lately, in bytes",
        |d| Some(d.usage.memory?.inactive_file),
    ),
    each(
        Counter,
        "container_memory_failures_total",
        "Page faults, by kind",
        &["failure_type", "scope"],
        |d| {
            let Some(memory) = d.usage.memory else { return Vec::new() };
            let fault = |kind: &str, count| (vec![kind.to_owned(), "container".to_owned()], count);
            vec![
                fault("pgfault", memory.page_faults),
                fault("pgmajfault", memory.major_page_faults),
            ]
        },
    ),
    one(Counter, "container_oom_events_total", "Processes ended for want of memory", |d| {
        d.oom_kills
    }),
    each(
        Gauge,
        "container_hugetlb_usage_bytes",
        "Huge pages in use, in bytes",
        &["pagesize"],
        |d| d.hugetlb.iter().map(|h| (vec![h.page_size.clone()], h.usage)).collect(),
    ),
    each(
        Gauge,
        "container_hugetlb_max_usage_bytes",
        "The most huge pages ever in use, in bytes",
        &["pagesize"],
        |d| d.hugetlb.iter().filter_map(|h| Some((vec![h.page_size.clone()], h.peak?))).collect(),
    ),
];

const PRESSURE: &[Metric<D>] = &[
    one(
        Counter,
        "container_pressure_cpu_waiting_seconds_total",
        "Time in which some task waited for a CPU, in seconds",
        |d| some(d.usage.pressure.cpu),
    ),
    one(
        Counter,
        "container_pressure_cpu_stalled_seconds_total",
        "Time in which no task got a CPU, in seconds",
        |d| full(d.usage.pressure.cpu),
    ),
    one(
        Counter,
        "container_pressure_memory_waiting_seconds_total",
        "Time in which some task waited for memory, in seconds",
        |d| some(d.usage.pressure.memory),
    ),
    one(
        Counter,
        "container_pressure_memory_stalled_seconds_total",
        "Time in which all tasks waited for memory, in seconds",
        |d| full(d.usage.pressure.memory),
    ),
    one(
        Counter,
        "container_pressure_io_waiting_seconds_total",
        "Time in which some task waited for a device, in seconds",
        |d| some(d.usage.pressure.io),
    ),
    one(
        Counter,
        "container_pressure_io_stalled_seconds_total",
        "Time in which all tasks waited for a device, in seconds",
        |d| full(d.usage.pressure.io),
    ),
];

const DISK: &[Metric<D>] = &[
    each(
        Gauge,
        "container_fs_usage_bytes",
        "What the writable layer takes of its file system, in bytes",
        DEVICE,
        |d| root(d.stats.writable_layer.as_ref().map(|layer| layer.bytes)),
    ),
    each(
        Gauge,
        "container_fs_limit_bytes",
        "The size of the file system of the writable layer, in bytes",
        DEVICE,
        |d| root(d.file_system.map(|fs| fs.bytes)),
    ),
    each(
        Gauge,
        "container_fs_inodes_total",
        "Inodes of the file system of the writable layer",
        DEVICE,
        |d| root(d.file_system.map(|fs| fs.inodes)),
    ),
    each(
        Gauge,
        "container_fs_inodes_free",
        "Free inodes of the file system of the writable layer",
        DEVICE,
        |d| root(d.file_system.map(|fs| fs.inodes_free)),
    ),
    each(Counter, "container_fs_reads_bytes_total", "Bytes read from a device", DEVICE, |d| {
        d.io.iter().map(|device| (vec![device.name.clone()], device.io.read_bytes)).collect()
    }),
    each(Counter, "container_fs_reads_total", "Reads from a device", DEVICE, |d| {
        d.io.iter().map(|device| (vec![device.name.clone()], device.io.reads)).collect()
    }),
    each(Counter, "container_fs_writes_bytes_total", "Bytes written to a device", DEVICE, |d| {
        d.io.iter().map(|device| (vec![device.name.clone()], device.io.write_bytes)).collect()
    }),
    each(Counter, "container_fs_writes_total", "Writes to a device", DEVICE, |d| {
        d.io.iter().map(|device| (vec![device.name.clone()], device.io.writes)).collect()
    }),
    each(
        Counter,
        "container_blkio_device_usage_total",
        "Bytes to and from a device, by operation",
        &["device", "major", "minor", "operation"],
        blkio,
    ),
];

const PROCESSES: &[Metric<D>] = &[
    one(Gauge, "container_processes", "Processes", |d| Some(d.processes.count)),
    one(Gauge, "container_file_descriptors", "Open descriptors of all processes", |d| {
        Some(d.processes.descriptors)
    }),
    one(Gauge, "container_sockets", "Open sockets of all processes", |d| Some(d.processes.sockets)),
    one(Gauge, "container_threads", "Threads", |d| Some(d.tasks?.current)),
    one(Gauge, "container_threads_max", "How many threads there may be; 0 is no limit", |d| {
        Some(d.tasks?.limit.unwrap_or_default())
    }),
    each(
        Gauge,
        "container_ulimits_soft",
        "Soft limits of the first process, those that limit",
        &["ulimit"],
        |d| {
            let name = |name: &str| name.to_lowercase().replace(' ', "_");
            d.processes.soft_limits.iter().map(|(of, soft)| (vec![name(of)], *soft)).collect()
        },
    ),
];

const SPEC: &[Metric<D>] = &[
    one(Gauge, "container_last_seen", "When the container was last seen, in Unix time", |d| {
        seconds(time::to_unix_nanos(d.usage.at))
    }),
    one(Gauge, "container_start_time_seconds", "When it was started, in Unix time", |d| {
        seconds(time::to_wire(d.stats.container.phase.started()))
    }),
    one(Gauge, "container_spec_cpu_period", "The period of its CPU quota, in microseconds", |d| {
        Some(d.stats.container.made.resources.cpu_period.unwrap_or(DEFAULT_CPU_PERIOD))
    }),
    one(
        Gauge,
        "container_spec_cpu_quota",
        "CPU time per period, in microseconds; 0 is no limit",
        |d| limit(d.stats.container.made.resources.cpu_quota),
    ),
    one(Gauge, "container_spec_cpu_shares", "Its weight among those that want the CPU", |d| {
        Some(d.stats.container.made.resources.cpu_shares.unwrap_or(DEFAULT_CPU_SHARES))
    }),
    one(
        Gauge,
        "container_spec_memory_limit_bytes",
        "Its memory limit, in bytes; 0 is no limit",
        |d| limit(d.stats.container.made.resources.memory_limit),
    ),
    one(
        Gauge,
        "container_spec_memory_reservation_limit_bytes",
        "Memory it is to keep when memory is short, in bytes; 0 is none",
        |d| limit(d.stats.container.made.resources.memory_reservation),
    ),
    one(
        Gauge,
        "container_spec_memory_swap_limit_bytes",
        "Its limit of memory and swap together, in bytes; 0 is no limit",
        |d| limit(d.stats.container.made.resources.memory_swap),
    ),
];

const OF_CONTAINERS: &[&[Metric<D>]] = &[CPU, MEMORY, PRESSURE, DISK, PROCESSES, SPEC];

/// The network is the pod's.
const OF_PODS: &[Metric<PodDetails>] = &[
    each(Counter, "container_network_receive_bytes_total", "Bytes received", INTERFACE, |p| {
        interfaces(p, |i| i.received.bytes)
    }),
    each(Counter, "container_network_receive_packets_total", "Packets received", INTERFACE, |p| {
        interfaces(p, |i| i.received.packets)
    }),
    each(
        Counter,
        "container_network_receive_packets_dropped_total",
        "Packets that were dropped when they came",
        INTERFACE,
        |p| interfaces(p, |i| i.received.dropped),
    ),
    each(
        Counter,
        "container_network_receive_errors_total",
        "Errors while receiving",
        INTERFACE,
        |p| interfaces(p, |i| i.received.errors),
    ),
    each(Counter, "container_network_transmit_bytes_total", "Bytes sent", INTERFACE, |p| {
        interfaces(p, |i| i.sent.bytes)
    }),
    each(Counter, "container_network_transmit_packets_total", "Packets sent", INTERFACE, |p| {
        interfaces(p, |i| i.sent.packets)
    }),
    each(
        Counter,
        "container_network_transmit_packets_dropped_total",
        "Packets that were dropped instead of being sent",
        INTERFACE,
        |p| interfaces(p, |i| i.sent.dropped),
    ),
    each(
        Counter,
        "container_network_transmit_errors_total",
        "Errors while sending",
        INTERFACE,
        |p| interfaces(p, |i| i.sent.errors),
    ),
];

pub(crate) fn descriptors() -> Vec<v1::MetricDescriptor> {
    let containers = OF_CONTAINERS.iter().copied().flatten().map(Metric::descriptor);
    containers.chain(OF_PODS.iter().map(Metric::descriptor)).collect()
}

pub(crate) fn pod(details: &PodDetails) -> v1::PodSandboxMetrics {
    let PodDetails { pod, containers, .. } = details;
    let name = &pod.request.name;
    let labels = |container: &str, id: &str, image: &str| {
        [&name.name, &name.namespace, container, id, image].map(str::to_owned).to_vec()
    };
    let now = time::to_unix_nanos(details.at);
    let of_container = |d: &ContainerDetails| {
        let container = &d.stats.container;
        let (own, image) = (&container.request.container.name, &container.image.name);
        let labels = labels(own, container.id.as_str(), image);
        let (all, at) = (OF_CONTAINERS.iter().copied().flatten(), time::to_unix_nanos(d.usage.at));
        v1::ContainerMetrics {
            container_id: container.id.to_string(),
            metrics: all.flat_map(|metric| metric.values(d, &labels, at)).collect(),
        }
    };
    let pod_labels = labels("", pod.id.as_str(), "");
    v1::PodSandboxMetrics {
        pod_sandbox_id: pod.id.to_string(),
        metrics: OF_PODS.iter().flat_map(|m| m.values(details, &pod_labels, now)).collect(),
        container_metrics: containers.iter().map(of_container).collect(),
    }
}

impl<T> Metric<T> {
    fn descriptor(&self) -> v1::MetricDescriptor {
        v1::MetricDescriptor {
            name: self.name.to_owned(),
            help: self.help.to_owned(),
            label_keys: LABELS.iter().chain(self.labels).map(|&key| key.to_owned()).collect(),
        }
    }

    fn values(&self, of: &T, labels: &[String], timestamp: i64) -> Vec<v1::Metric> {
        let values = match self.read {
            Read::One(read) => read(of).map(|value| (Vec::new(), value)).into_iter().collect(),
            Read::Each(read) => read(of),
        };
        let metric = |(own, value): (Vec<String>, u64)| v1::Metric {
            name: self.name.to_owned(),
            timestamp,
            metric_type: self.kind.into(),
            label_values: labels.iter().cloned().chain(own).collect(),
            value: Some(v1::UInt64Value { value }),
        };
        values.into_iter().map(metric).collect()
    }
}

// === where numbers come from ===

fn some(pressure: Option<Pressure>) -> Option<u64> {
    Some(stalled(pressure?.some))
}

fn full(pressure: Option<Pressure>) -> Option<u64> {
    Some(stalled(pressure?.full?))
}

fn stalled(stall: Stall) -> u64 {
    const MICROS: u64 = 1_000_000;
    stall.total_us / MICROS
}

/// Of the file system that the container sees as its root.
fn root(value: Option<u64>) -> Values {
    value.map(|value| (vec!["/".to_owned()], value)).into_iter().collect()
}

fn blkio(details: &ContainerDetails) -> Values {
    let of_device = |device: &engine::stats::Device| {
        let io = device.io;
        [("Read", io.read_bytes), ("Write", io.write_bytes), ("Discard", io.discard_bytes)].map(
            |(operation, bytes)| {
                let (major, minor) = (device.major.to_string(), device.minor.to_string());
                (vec![device.name.clone(), major, minor, operation.to_owned()], bytes)
            },
        )
    };
    details.io.iter().flat_map(of_device).collect()
}

fn interfaces(pod: &PodDetails, read: fn(&Interface) -> u64) -> Values {
    let all = pod.network.iter().flat_map(|network| &network.interfaces);
    all.map(|interface| (vec![interface.name.clone()], read(interface))).collect()
}

/// No limit, or −1, is 0 here.
fn limit(value: Option<i64>) -> Option<u64> {
    Some(value.and_then(|value| u64::try_from(value).ok()).unwrap_or_default())
}

fn seconds(nanos: i64) -> Option<u64> {
    u64::try_from(nanos).ok().map(|nanos| nanos / SECOND)
}

#[cfg(test)]
mod tests;
