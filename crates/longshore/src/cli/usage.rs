//! What containers use, as `longshore stats` and `longshore top` show it.
//!
//! A rate is made of two readings of a counter: [`rows`] takes both.

use std::cmp::Reverse;

use api_cri::v1::{
    ContainerStats, ListContainerStatsRequest, ListPodSandboxStatsRequest, PodSandboxStats,
    UInt64Value,
};
use base::time;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    client::{Client, Told},
    find::short,
    size::Size,
    table::Table,
};

/// What the table is sorted by, the largest first; names in their own order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum SortBy {
    #[default]
    Cpu,
    Memory,
    Disk,
    Name,
}

/// The counters of all containers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Readings(Vec<Reading>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Reading {
    /// `pod/container`.
    name: String,
    id: String,
    /// When the time of CPUs was read, in nanoseconds, and how many of them were used so far.
    at: i64,
    cpu_nanos: Option<u64>,
    memory: Option<u64>,
    memory_available: Option<u64>,
    swap: Option<u64>,
    disk: Option<u64>,
    /// Bytes received and sent by the container's pod.
    network: Option<(u64, u64)>,
}

/// What is shown of one container. What is not known is not shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    reading: Reading,
    /// In percent of one CPU, since the reading before.
    cpu: Option<f64>,
}

impl Readings {
    pub(super) async fn take(client: &Client) -> anyhow::Result<Self> {
        let request = ListContainerStatsRequest::default();
        let containers = client.cri().list_container_stats(request).await;
        let request = ListPodSandboxStatsRequest::default();
        let pods = client.cri().list_pod_sandbox_stats(request).await;
        let (containers, pods) =
            (containers.told("list stats of containers")?, pods.told("list stats of pods")?);
        Ok(Self::new(&containers.stats, &pods.stats))
    }

    fn new(containers: &[ContainerStats], pods: &[PodSandboxStats]) -> Self {
        let readings = containers.iter().map(|stats| {
            let id = stats.attributes.as_ref().map(|it| it.id.as_str()).unwrap_or_default();
            let pod = pods.iter().find(|pod| holds(pod, id));
            Reading::new(stats, pod)
        });
        Self(readings.collect())
    }
}

fn holds(pod: &PodSandboxStats, container: &str) -> bool {
    let containers = pod.linux.iter().flat_map(|linux| &linux.containers);
    let mut ids = containers.filter_map(|stats| stats.attributes.as_ref());
    ids.any(|attributes| attributes.id == container)
}

impl Reading {
    fn new(stats: &ContainerStats, pod: Option<&PodSandboxStats>) -> Self {
        let attributes = stats.attributes.clone().unwrap_or_default();
        let pod_name =
            pod.and_then(|pod| pod.attributes.clone()?.metadata).unwrap_or_default().name;
        let name = attributes.metadata.unwrap_or_default().name;
        let memory = stats.memory.as_ref();
        let network = pod.and_then(|pod| {
            let interface = pod.linux.as_ref()?.network.as_ref()?.default_interface.as_ref()?;
            Some((interface.rx_bytes?.value, interface.tx_bytes?.value))
        });
        let value = |it: Option<UInt64Value>| it.map(|it| it.value);
        Self {
            name: format!("{pod_name}/{name}"),
            id: attributes.id,
            at: stats.cpu.as_ref().map_or(0, |cpu| cpu.timestamp),
            cpu_nanos: stats.cpu.as_ref().and_then(|cpu| value(cpu.usage_core_nano_seconds)),
            memory: memory.and_then(|memory| value(memory.working_set_bytes)),
            memory_available: memory.and_then(|memory| value(memory.available_bytes)),
            swap: stats.swap.as_ref().and_then(|swap| value(swap.swap_usage_bytes)),
            disk: stats.writable_layer.as_ref().and_then(|layer| value(layer.used_bytes)),
            network,
        }
    }

    fn cpu_since(&self, before: &Self) -> Option<f64> {
        let passed = u64::try_from(self.at.checked_sub(before.at)?).ok().filter(|it| *it > 0)?;
        // A container that was restarted begins anew.
        let used = self.cpu_nanos?.checked_sub(before.cpu_nanos?)?;
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
        Some(used as f64 * 100.0 / passed as f64)
    }

    /// What it may have at most: what it has and what is left.
    fn memory_limit(&self) -> Option<u64> {
        self.memory?.checked_add(self.memory_available?)
    }
}

/// Returns what was used between two readings, sorted.
pub(super) fn rows(before: &Readings, now: &Readings, by: SortBy) -> Vec<Row> {
    let earlier = |id: &str| before.0.iter().find(|reading| reading.id == id);
    let row = |reading: &Reading| Row {
        cpu: earlier(&reading.id).and_then(|before| reading.cpu_since(before)),
        reading: reading.clone(),
    };
    let mut rows: Vec<_> = now.0.iter().map(row).collect();
    rows.sort_by(|a, b| a.reading.name.cmp(&b.reading.name));
    match by {
        SortBy::Name => {}
        SortBy::Cpu => {
            rows.sort_by(|a, b| b.cpu.unwrap_or_default().total_cmp(&a.cpu.unwrap_or_default()))
        }
        SortBy::Memory => rows.sort_by_key(|row| Reverse(row.reading.memory)),
        SortBy::Disk => rows.sort_by_key(|row| Reverse(row.reading.disk)),
    }
    rows
}

/// The rows as a table, at most so many; the last line tells how many are left out.
pub(super) fn table(rows: &[Row], most: usize) -> String {
    let mut table =
        Table::new(["NAME", "ID", "CPU %", "MEMORY", "LIMIT", "SWAP", "DISK", "NET IN", "NET OUT"]);
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Size(bytes).to_string());
    for Row { reading, cpu } in rows.iter().take(most) {
        table.row([
            reading.name.clone(),
            short(&reading.id).to_owned(),
            cpu.map_or("-".to_owned(), |cpu| format!("{cpu:.1}")),
            size(reading.memory),
            size(reading.memory_limit()),
            size(reading.swap),
            size(reading.disk),
            size(reading.network.map(|(received, _)| received)),
            size(reading.network.map(|(_, sent)| sent)),
        ]);
    }
    let mut text = table.to_string();
    if let Some(more @ 1..) = rows.len().checked_sub(most) {
        text.push_str(&format!("… and {more} more\n"));
    }
    text
}

pub(super) fn json(rows: &[Row]) -> Value {
    let object = |Row { reading, cpu }: &Row| {
        json!({
            "name": reading.name,
            "id": reading.id,
            "time": time::from_unix_nanos(reading.at).to_string(),
            "cpuPercent": cpu,
            "cpuNanoseconds": reading.cpu_nanos,
            "memoryBytes": reading.memory,
            "memoryLimitBytes": reading.memory_limit(),
            "swapBytes": reading.swap,
            "diskBytes": reading.disk,
            "podReceivedBytes": reading.network.map(|(received, _)| received),
            "podSentBytes": reading.network.map(|(_, sent)| sent),
        })
    };
    rows.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use api_cri::v1::{
        ContainerAttributes, ContainerMetadata, CpuUsage, FilesystemUsage, LinuxPodSandboxStats,
        MemoryUsage, NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes, PodSandboxMetadata,
    };

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn value(value: u64) -> Option<UInt64Value> {
        Some(UInt64Value { value })
    }

    fn stats(id: char, name: &str, seconds: i64, used_millis: u64) -> ContainerStats {
        let timestamp = seconds * SECOND;
        let usage_core_nano_seconds = value(used_millis * 1_000_000);
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: id.to_string().repeat(64),
                metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
                ..Default::default()
            }),
            cpu: Some(CpuUsage { timestamp, usage_core_nano_seconds, ..Default::default() }),
            memory: Some(MemoryUsage {
                working_set_bytes: value(1_000_000 * u64::from(id)),
                ..Default::default()
            }),
            writable_layer: Some(FilesystemUsage { used_bytes: value(4096), ..Default::default() }),
            ..Default::default()
        }
    }

    fn pod(name: &str, containers: Vec<ContainerStats>) -> PodSandboxStats {
        let interface = NetworkInterfaceUsage {
            rx_bytes: value(10),
            tx_bytes: value(20),
            ..Default::default()
        };
        PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                metadata: Some(PodSandboxMetadata { name: name.to_owned(), ..Default::default() }),
                ..Default::default()
            }),
            linux: Some(LinuxPodSandboxStats {
                containers,
                network: Some(NetworkUsage {
                    default_interface: Some(interface),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn readings(all: &[ContainerStats]) -> Readings {
        Readings::new(all, &[pod("web", all.to_vec())])
    }

    #[test]
    fn rates_are_made_of_two_readings() {
        let before = readings(&[stats('a', "app", 10, 1000), stats('b', "side", 10, 5000)]);
        let now = readings(&[
            stats('a', "app", 12, 1500),
            stats('b', "side", 12, 100),
            stats('c', "new", 12, 7),
        ]);
        let rates = |by| -> Vec<_> {
            let rows = rows(&before, &now, by);
            rows.into_iter().map(|row| (row.reading.name, row.cpu)).collect()
        };
        // One that counts from the beginning again, and one that is new, have no rate yet.
        let app = ("web/app".to_owned(), Some(25.0));
        let (new, side) = (("web/new".to_owned(), None), ("web/side".to_owned(), None));
        assert_eq!(rates(SortBy::Cpu), [app.clone(), new.clone(), side.clone()]);
        assert_eq!(rates(SortBy::Memory), [new.clone(), side.clone(), app.clone()]);
        assert_eq!(rates(SortBy::Name), [app, new, side]);
    }

    #[test]
    fn the_table_ends_where_the_screen_does() {
        let before = readings(&[stats('a', "app", 10, 0)]);
        let now = readings(&[stats('a', "app", 11, 10), stats('b', "side", 11, 10)]);
        let rows = rows(&before, &now, SortBy::Cpu);
        let want = "\
NAME     ID            CPU %  MEMORY   LIMIT  SWAP  DISK    NET IN  NET OUT
web/app  aaaaaaaaaaaa  1.0    97.0 MB  -      -     4.0 kB  10 B    20 B
… and 1 more
";
        assert_eq!(table(&rows, 1), want);
        assert!(!table(&rows, 2).contains("more"));
    }

    #[test]
    fn json_has_whole_ids_and_what_is_not_known_is_null() {
        let now = readings(&[stats('a', "app", 11, 10)]);
        let json = json(&rows(&Readings::default(), &now, SortBy::Name));
        assert_eq!(json[0]["id"], "a".repeat(64));
        assert_eq!((&json[0]["cpuPercent"], &json[0]["diskBytes"]), (&Value::Null, &json!(4096)));
        assert_eq!(json[0]["time"], "1970-01-01T00:00:11Z");
    }
}
