//! What pods and containers use, on the wire.

use api_cri::v1;
use base::time;
use engine::{
    stats::{
        ContainerStats, Interface, Memory, Network, PodStats, Pressure, Pressures, Stall, Usage,
    },
    storage::LayerUsage,
};

use crate::{container, pod};

pub(crate) fn container(stats: &ContainerStats) -> v1::ContainerStats {
    let usage = stats.usage.as_ref();
    v1::ContainerStats {
        attributes: Some(container::attributes(&stats.container)),
        cpu: usage.and_then(cpu),
        memory: usage.and_then(memory),
        writable_layer: stats.writable_layer.as_ref().map(layer),
        swap: usage.and_then(swap),
        io: usage.and_then(io),
    }
}

pub(crate) fn pod(stats: &PodStats) -> v1::PodSandboxStats {
    let usage = stats.usage.as_ref();
    let process = |count| v1::ProcessUsage {
        timestamp: time::to_unix_nanos(stats.at),
        process_count: number(count),
    };
    v1::PodSandboxStats {
        attributes: Some(pod::attributes(&stats.pod)),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu: usage.and_then(cpu),
            memory: usage.and_then(memory),
            network: stats.network.as_ref().map(network),
            process: stats.processes.map(process),
            containers: stats.containers.iter().map(container).collect(),
            io: usage.and_then(io),
        }),
        windows: None,
    }
}

fn cpu(usage: &Usage) -> Option<v1::CpuUsage> {
    usage.cpu.map(|cpu| v1::CpuUsage {
        timestamp: time::to_unix_nanos(usage.at),
        usage_core_nano_seconds: number(cpu.total_ns),
        usage_nano_cores: cpu.nano_cores.and_then(number),
        psi: usage.pressure.cpu.as_ref().map(psi),
    })
}

fn memory(usage: &Usage) -> Option<v1::MemoryUsage> {
    let memory = usage.memory?;
    let available = memory.limit.map(|limit| limit.saturating_sub(memory.working_set));
    Some(v1::MemoryUsage {
        timestamp: time::to_unix_nanos(usage.at),
        working_set_bytes: number(memory.working_set),
        available_bytes: available.and_then(number),
        usage_bytes: number(memory.usage),
        rss_bytes: number(memory.anon),
        page_faults: number(memory.page_faults),
        major_page_faults: number(memory.major_page_faults),
        psi: usage.pressure.memory.as_ref().map(psi),
    })
}

fn swap(usage: &Usage) -> Option<v1::SwapUsage> {
    let Memory { swap_usage, swap_limit, .. } = usage.memory?;
    let used = swap_usage?;
    Some(v1::SwapUsage {
        timestamp: time::to_unix_nanos(usage.at),
        swap_available_bytes: swap_limit.and_then(|limit| number(limit.saturating_sub(used))),
        swap_usage_bytes: number(used),
    })
}

fn io(usage: &Usage) -> Option<v1::IoUsage> {
    let Pressures { io, .. } = &usage.pressure;
    io.as_ref()
        .map(|io| v1::IoUsage { timestamp: time::to_unix_nanos(usage.at), psi: Some(psi(io)) })
}

fn psi(pressure: &Pressure) -> v1::PsiStats {
    let data = |stall: &Stall| v1::PsiData {
        // The wire has nanoseconds.
        total: stall.total_us.saturating_mul(1000),
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    v1::PsiStats { full: pressure.full.as_ref().map(data), some: Some(data(&pressure.some)) }
}

fn network(network: &Network) -> v1::NetworkUsage {
    v1::NetworkUsage {
        timestamp: time::to_unix_nanos(network.at),
        default_interface: network.default_interface().map(interface),
        interfaces: network.interfaces.iter().map(interface).collect(),
    }
}

fn interface(interface: &Interface) -> v1::NetworkInterfaceUsage {
    v1::NetworkInterfaceUsage {
        name: interface.name.clone(),
        rx_bytes: number(interface.received.bytes),
        rx_errors: number(interface.received.errors),
        tx_bytes: number(interface.sent.bytes),
        tx_errors: number(interface.sent.errors),
    }
}

fn layer(layer: &LayerUsage) -> v1::FilesystemUsage {
    file_system(time::to_unix_nanos(layer.at), &layer.mountpoint, layer.bytes, layer.inodes)
}

pub(crate) fn file_system(
    timestamp: i64,
    mountpoint: &std::path::Path,
    bytes: u64,
    inodes: u64,
) -> v1::FilesystemUsage {
    let mountpoint = mountpoint.to_string_lossy().into_owned();
    v1::FilesystemUsage {
        timestamp,
        fs_id: Some(v1::FilesystemIdentifier { mountpoint }),
        used_bytes: number(bytes),
        inodes_used: number(inodes),
    }
}

/// Always there, so that zero is told apart from what is not known.
#[expect(clippy::unnecessary_wraps, reason = "every field of this kind is optional")]
fn number(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::{request::PodRequest, stats::CpuUsage};

    use super::*;
    use crate::sample;

    fn value(wire: Option<v1::UInt64Value>) -> Option<u64> {
        wire.map(|wire| wire.value)
    }

    fn usage() -> Usage {
        let some = Stall { avg10: 1.5, avg60: 2.5, avg300: 3.5, total_us: 7 };
        let pressure = Pressure { some, full: None };
        Usage {
            at: time::from_unix_nanos(42),
            cpu: Some(CpuUsage { total_ns: 9, nano_cores: None }),
            memory: Some(Memory {
                usage: 100,
                working_set: 60,
                limit: Some(200),
                swap_usage: Some(5),
                swap_limit: None,
                anon: 50,
                page_faults: 3,
                major_page_faults: 2,
                ..Memory::default()
            }),
            pressure: Pressures { io: Some(pressure), ..Pressures::default() },
        }
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let container = Arc::new(sample::container_record(Default::default()));
        let stats = ContainerStats { container, usage: Some(usage()), writable_layer: None };
        let got = super::container(&stats);
        let cpu = got.cpu.unwrap();
        assert_eq!((cpu.timestamp, value(cpu.usage_core_nano_seconds)), (42, Some(9)));
        assert_eq!((value(cpu.usage_nano_cores), cpu.psi), (None, None));
        let memory = got.memory.unwrap();
        assert_eq!(
            (value(memory.working_set_bytes), value(memory.usage_bytes)),
            (Some(60), Some(100))
        );
        assert_eq!((value(memory.available_bytes), value(memory.rss_bytes)), (Some(140), Some(50)));
        assert_eq!(
            (value(memory.page_faults), value(memory.major_page_faults)),
            (Some(3), Some(2))
        );
        let swap = got.swap.unwrap();
        assert_eq!(
            (value(swap.swap_usage_bytes), value(swap.swap_available_bytes)),
            (Some(5), None)
        );
        let psi = got.io.unwrap().psi.unwrap();
        assert_eq!(psi.full, None);
        let want = v1::PsiData { total: 7000, avg10: 1.5, avg60: 2.5, avg300: 3.5 };
        assert_eq!(psi.some, Some(want));
        assert_eq!(got.writable_layer, None);
    }

    #[test]
    fn a_container_that_does_not_run_still_has_a_name_and_a_layer() {
        let container = Arc::new(sample::container_record(Default::default()));
        let layer = LayerUsage {
            mountpoint: "/snapshots".into(),
            bytes: 4096,
            inodes: 3,
            at: time::from_unix_nanos(7),
        };
        let id = container.id.to_string();
        let stats = ContainerStats { container, usage: None, writable_layer: Some(layer) };
        let got = super::container(&stats);
        assert_eq!(got.attributes.unwrap().id, id);
        assert_eq!((got.cpu, got.memory, got.swap, got.io), (None, None, None, None));
        let layer = got.writable_layer.unwrap();
        assert_eq!(
            (layer.timestamp, value(layer.used_bytes), value(layer.inodes_used)),
            (7, Some(4096), Some(3))
        );
        assert_eq!(layer.fs_id.unwrap().mountpoint, "/snapshots");
    }

    #[test]
    fn a_pod_has_its_interfaces_and_their_default() {
        let interface = |name: &str, bytes| {
            let traffic = engine::stats::Traffic { bytes, ..Default::default() };
            Interface { name: name.into(), received: traffic, sent: Default::default() }
        };
        let stats = |interfaces| PodStats {
            pod: Arc::new(sample::pod_record(PodRequest::default())),
            usage: None,
            network: Some(Network { at: time::from_unix_nanos(1), interfaces }),
            processes: Some(0),
            at: time::from_unix_nanos(2),
            containers: Vec::new(),
        };
        let default = |interfaces| {
            let linux = super::pod(&stats(interfaces)).linux.unwrap();
            assert_eq!(value(linux.process.unwrap().process_count), Some(0));
            linux.network.unwrap().default_interface.map(|i| (i.name, value(i.rx_bytes)))
        };
        let (a, b) = (interface("net1", 5), interface("eth0", 6));
        assert_eq!(default(vec![a.clone(), b]), Some(("eth0".into(), Some(6))));
        assert_eq!(default(vec![a]), Some(("net1".into(), Some(5))));
        assert_eq!(default(vec![]), None);
    }
}
