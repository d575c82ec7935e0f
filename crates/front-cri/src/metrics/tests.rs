use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use engine::{
    request::PodRequest,
    stats::{
        ContainerStats, Cpu, CpuUsage, Device, Hugetlb, IoDevice, Memory, MemoryDetails, Network,
        Pids, Pressures, Processes, Space, Usage,
    },
    storage::LayerUsage,
};

use super::*;
use crate::sample;

/// What a kubelet without cAdvisor counts on.
const EXPECTED: &str = "
    container_blkio_device_usage_total container_cpu_cfs_periods_total
    container_cpu_cfs_throttled_periods_total container_cpu_cfs_throttled_seconds_total
    container_cpu_system_seconds_total container_cpu_usage_seconds_total
    container_cpu_user_seconds_total container_file_descriptors container_fs_inodes_free
    container_fs_inodes_total container_fs_limit_bytes container_fs_reads_bytes_total
    container_fs_reads_total container_fs_usage_bytes container_fs_writes_bytes_total
    container_fs_writes_total container_hugetlb_max_usage_bytes container_hugetlb_usage_bytes
    container_last_seen container_memory_cache container_memory_failcnt
    container_memory_failures_total container_memory_kernel_usage container_memory_mapped_file
    container_memory_max_usage_bytes container_memory_rss container_memory_swap
    container_memory_usage_bytes container_memory_working_set_bytes
    container_network_receive_bytes_total container_network_receive_errors_total
    container_network_receive_packets_dropped_total container_network_receive_packets_total
    container_network_transmit_bytes_total container_network_transmit_errors_total
    container_network_transmit_packets_dropped_total container_network_transmit_packets_total
    container_oom_events_total container_pressure_cpu_stalled_seconds_total
    container_pressure_cpu_waiting_seconds_total container_pressure_io_stalled_seconds_total
    container_pressure_io_waiting_seconds_total container_pressure_memory_stalled_seconds_total
    container_pressure_memory_waiting_seconds_total container_processes container_sockets
    container_spec_cpu_period container_spec_cpu_quota container_spec_cpu_shares
    container_spec_memory_limit_bytes container_spec_memory_reservation_limit_bytes
    container_spec_memory_swap_limit_bytes container_start_time_seconds container_threads
    container_threads_max container_ulimits_soft
";

/// Every reading there is.
fn everything() -> PodDetails {
    let at = time::from_unix_nanos(5_000_000_000);
    let stall = Stall { total_us: 9_000_000, ..Stall::default() };
    let pressure = Some(Pressure { some: stall, full: Some(stall) });
    let number = Some(7);
    let usage = Usage {
        at,
        cpu: Some(CpuUsage { total_ns: 0, nano_cores: None }),
        memory: Some(Memory { peak: number, swap_usage: number, usage: 11, ..Memory::default() }),
        pressure: Pressures { cpu: pressure, memory: pressure, io: pressure },
    };
    let layer = LayerUsage { mountpoint: "/s".into(), bytes: 12, inodes: 1, at };
    let stats = ContainerStats {
        container: Arc::new(sample::container_record(Default::default())),
        usage: Some(usage.clone()),
        writable_layer: Some(layer),
    };
    let io = IoDevice { read_bytes: 1, write_bytes: 2, reads: 3, writes: 4, ..Default::default() };
    let device = Device { major: 254, minor: 0, name: "/dev/vda".into(), io };
    let page_size = "2MB".to_owned();
    let huge = Hugetlb { page_size, usage: 1, peak: number, limit: None, failures: None };
    let space = Space { bytes: 1, bytes_free: 1, bytes_available: 1, inodes: 1, inodes_free: 1 };
    let container = ContainerDetails {
        stats,
        usage,
        cpu: Some(Cpu {
            usage_ns: 3_999_999_999,
            user_ns: number,
            system_ns: number,
            periods: number,
            throttled_periods: number,
            throttled_ns: number,
        }),
        memory: Some(MemoryDetails { failures: number, kernel: number }),
        oom_kills: number,
        io: vec![device],
        hugetlb: vec![huge],
        tasks: Some(Pids { current: 1, limit: None }),
        processes: Processes {
            count: 1,
            descriptors: 3,
            sockets: 0,
            soft_limits: vec![("Max open files".to_owned(), 1024)],
        },
        file_system: Some(space),
    };
    let eth0 = Interface { name: "eth0".into(), ..Interface::default() };
    PodDetails {
        pod: Arc::new(sample::pod_record(PodRequest::default())),
        network: Some(Network { at, interfaces: vec![eth0] }),
        containers: vec![container],
        at,
    }
}

fn all(metrics: &v1::PodSandboxMetrics) -> impl Iterator<Item = &v1::Metric> {
    let of_containers = metrics.container_metrics.iter().flat_map(|of| &of.metrics);
    metrics.metrics.iter().chain(of_containers)
}

#[test]
fn every_name_is_described_and_has_a_value() {
    let descriptors = descriptors();
    let described: BTreeMap<_, _> =
        descriptors.iter().map(|d| (d.name.as_str(), d.label_keys.len())).collect();
    assert_eq!(described.len(), descriptors.len(), "no name twice");
    assert!(descriptors.iter().all(|d| !d.help.is_empty() && d.label_keys[..5] == LABELS));
    let expected: BTreeSet<_> = EXPECTED.split_whitespace().collect();
    let missing: Vec<_> = expected.iter().filter(|name| !described.contains_key(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");

    let metrics = pod(&everything());
    let mut valued = BTreeSet::new();
    for metric in all(&metrics) {
        let name = metric.name.as_str();
        assert_eq!(metric.label_values.len(), described[name], "{metric:?}");
        assert!(metric.value.is_some() && metric.timestamp == 5_000_000_000, "{metric:?}");
        valued.insert(name);
    }
    let dumb: Vec<_> = described.keys().filter(|name| !valued.contains(*name)).collect();
    assert!(dumb.is_empty(), "without a value: {dumb:?}");
}

#[test]
fn values_and_labels_are_the_right_ones() {
    let details = everything();
    let metrics = pod(&details);
    let find = |name: &str| {
        let found = all(&metrics).find(|metric| metric.name == name).unwrap();
        (found.value.unwrap().value, found.label_values[5..].join(","))
    };
    assert_eq!(find("container_cpu_usage_seconds_total"), (3, String::new()));
    assert_eq!(find("container_pressure_io_stalled_seconds_total").0, 9);
    assert_eq!(find("container_memory_usage_bytes").0, 11);
    assert_eq!(find("container_fs_usage_bytes"), (12, "/".to_owned()));
    assert_eq!(find("container_fs_writes_bytes_total"), (2, "/dev/vda".to_owned()));
    assert_eq!(find("container_blkio_device_usage_total").1, "/dev/vda,254,0,Read");
    assert_eq!(find("container_ulimits_soft"), (1024, "max_open_files".to_owned()));
    assert_eq!(find("container_threads_max").0, 0);
    assert_eq!(find("container_spec_cpu_shares").0, 1024);
    assert_eq!(find("container_last_seen").0, 5);
    assert_eq!(find("container_network_receive_bytes_total").1, "eth0");
    let of_pod = &metrics.metrics[0].label_values;
    assert_eq!(of_pod[2..5], [String::new(), details.pod.id.to_string(), String::new()]);
    let container = &details.containers[0].stats.container;
    let of_container = &metrics.container_metrics[0].metrics[0].label_values;
    assert_eq!(of_container[3..5], [container.id.to_string(), container.image.name.clone()]);
}

#[test]
fn what_the_kernel_does_not_offer_has_no_value() {
    let mut details = everything();
    details.network = None;
    details.containers[0].cpu = None;
    details.containers[0].usage.pressure = Pressures::default();
    let metrics = pod(&details);
    assert!(metrics.metrics.is_empty());
    for metric in all(&metrics) {
        assert!(!metric.name.contains("_cpu_usage") && !metric.name.contains("pressure"));
    }
}
