//! What pods and containers use: every figure moves under a load made for it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use api_cri::v1::{
    ContainerStats, ContainerStatsFilter, ContainerStatsRequest, FilesystemUsage,
    LinuxContainerConfig, LinuxContainerResources, ListContainerStatsRequest,
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest,
    NamespaceMode, PodSandboxMetrics, PodSandboxStats, PodSandboxStatsFilter,
    PodSandboxStatsRequest, StreamContainerStatsRequest, StreamPodSandboxMetricsRequest,
    StreamPodSandboxStatsRequest, UInt64Value,
};
use testkit::{Cri, Node, Pod};
use tokio::time::Instant;
use tonic::Code;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

const MIB: u64 = 1 << 20;

fn value(number: Option<UInt64Value>) -> u64 {
    number.expect("a number").value
}

async fn stats(cri: &Cri, id: &str) -> ContainerStats {
    let request = ContainerStatsRequest { container_id: id.to_owned() };
    cri.runtime().container_stats(request).await.unwrap().into_inner().stats.unwrap()
}

async fn pod_stats(cri: &Cri, id: &str) -> PodSandboxStats {
    let request = PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() };
    cri.runtime().pod_sandbox_stats(request).await.unwrap().into_inner().stats.unwrap()
}

async fn list(cri: &Cri, filter: Option<ContainerStatsFilter>) -> Vec<ContainerStats> {
    let request = ListContainerStatsRequest { filter };
    cri.runtime().list_container_stats(request).await.unwrap().into_inner().stats
}

/// Looks until it is so.
async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !look().await {
        assert!(Instant::now() < until, "never: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// A pod in a cgroup of its own, as the kubelet makes it.
async fn run_pod(node: &Node, cri: &Cri, name: &str) -> Pod {
    let mut config = node.pod(name);
    let linux = config.linux.as_mut().unwrap();
    linux.cgroup_parent = node.cgroups.child(name).parent();
    config.labels.insert("pod".to_owned(), name.to_owned());
    cri.run_pod(&config).await.unwrap()
}

/// Ends the pods and, as their owner does, removes the cgroups that were theirs.
async fn finish(node: Node, cri: &Cri) {
    for pod in cri.pods().await.unwrap() {
        cri.remove_pod(&pod.id).await.unwrap();
        let name = pod.metadata.unwrap().name;
        node.cgroups.child(&name).remove().unwrap();
    }
    node.finish().await.unwrap();
}

fn nano_cores(stats: &ContainerStats) -> Option<u64> {
    stats.cpu.as_ref().unwrap().usage_nano_cores.map(|cores| cores.value)
}

// === figures of containers ===

#[tokio::test(flavor = "multi_thread")]
async fn cpu_time_and_its_rate_are_those_of_the_load() {
    let Some(node) = Node::start("cpu_time", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "cpu").await;
    let idle = cri.run(&pod, node.sh("idle", "exec sleep 1000")).await.unwrap();
    let busy = cri.run(&pod, node.sh("busy", "while :; do :; done")).await.unwrap();
    let first = stats(&cri, &busy).await;
    assert_eq!(nano_cores(&first), None, "no rate at the first look");
    assert_eq!(nano_cores(&stats(&cri, &idle).await), None);
    pod_stats(&cri, &pod.id).await;
    let used = |stats: &ContainerStats| value(stats.cpu.as_ref().unwrap().usage_core_nano_seconds);
    until("a second of CPU time more", async || {
        used(&stats(&cri, &busy).await) > used(&first) + 1_000_000_000
    })
    .await;
    let (now, calm) = (stats(&cri, &busy).await, stats(&cri, &idle).await);
    let rate = nano_cores(&now).expect("a rate at the second look");
    // One loop takes one CPU, or what others leave of it.
    assert!((50_000_000..1_300_000_000).contains(&rate), "{rate}");
    assert!(nano_cores(&calm).unwrap() < 20_000_000, "{calm:?}");
    assert!(used(&calm) < used(&now) / 2);
    assert!(now.cpu.as_ref().unwrap().timestamp > first.cpu.as_ref().unwrap().timestamp);
    let cpu = pod_stats(&cri, &pod.id).await.linux.unwrap().cpu.unwrap();
    assert!(value(cpu.usage_core_nano_seconds) >= used(&now), "all containers together");
    assert!(value(cpu.usage_nano_cores) > 50_000_000);
    finish(node, &cri).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_figures_grow_with_what_they_count() {
    let Some(node) = Node::start("memory_figures", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "memory").await;
    // Anonymous memory in a shell's variable; page cache by a file.
    let script = "read x < /go; v=$(busybox head -c 8388608 /dev/zero | busybox tr '\\0' x); \
                  busybox head -c 16777216 /dev/zero > /file; echo full; read x < /go; echo ${#v}";
    let mut config = node.sh("c", &format!("mkfifo /go; {script}"));
    let resources =
        LinuxContainerResources { memory_limit_in_bytes: 256 << 20, ..Default::default() };
    config.linux = Some(LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    let id = cri.run(&pod, config).await.unwrap();
    until("it waits", async || cri.exec(&id, &["test", "-p", "/go"]).await.unwrap().exit_code == 0)
        .await;
    let before = stats(&cri, &id).await.memory.unwrap();
    cri.exec(&id, &["sh", "-c", "echo > /go"]).await.unwrap();
    until("full", async || node.said(&pod, "c").is_ok_and(|said| said == ["full"])).await;
    let full = stats(&cri, &id).await;
    let after = full.memory.unwrap();
    let grown = |of: fn(&api_cri::v1::MemoryUsage) -> Option<UInt64Value>| {
        value(of(&after)).saturating_sub(value(of(&before)))
    };
    assert!(grown(|m| m.rss_bytes) >= 8 * MIB, "{before:?} {after:?}");
    assert!(grown(|m| m.usage_bytes) >= 24 * MIB, "{before:?} {after:?}");
    assert!(grown(|m| m.working_set_bytes) >= 8 * MIB, "{before:?} {after:?}");
    assert!(grown(|m| m.page_faults) >= 1000, "{before:?} {after:?}");
    assert!(after.major_page_faults.is_some());
    let available = value(before.available_bytes) - value(after.available_bytes);
    assert_eq!(available, grown(|m| m.working_set_bytes), "of the limit");
    if fs::exists("/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes").unwrap() {
        let swap = full.swap.expect("the kernel counts swap");
        assert!(swap.timestamp > 0 && swap.swap_usage_bytes.is_some());
    }
    let of_pod = pod_stats(&cri, &pod.id).await.linux.unwrap().memory.unwrap();
    assert!(value(of_pod.usage_bytes) >= value(after.usage_bytes) / 2, "{of_pod:?}");
    finish(node, &cri).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writable_layer_is_counted_in_the_background() {
    let Some(node) = Node::start("the_writable_layer", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "layer").await;
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let layer = async || -> FilesystemUsage {
        stats(&cri, &id).await.writable_layer.expect("from the first moment on")
    };
    let before = layer().await;
    assert!(before.timestamp > 0);
    let root = before.fs_id.as_ref().unwrap().mountpoint.clone();
    assert!(Path::new(&root).starts_with(node.daemon.root()), "{root}");
    let script = "mkdir /d; for i in 1 2 3 4 5 6 7 8 9; do : > /d/$i; done; \
                  busybox head -c 5242880 /dev/zero > /big";
    assert_eq!(cri.exec(&id, &["sh", "-c", script]).await.unwrap().exit_code, 0);
    until("5 MiB and 11 inodes more", async || {
        let now = layer().await;
        value(now.used_bytes) >= value(before.used_bytes) + 5 * MIB
            && value(now.inodes_used) >= value(before.inodes_used) + 11
            && now.timestamp > before.timestamp
    })
    .await;
    // It is told of a container that has ended, too.
    cri.stop(&id, 0).await.unwrap();
    let ended = stats(&cri, &id).await;
    assert!(ended.cpu.is_none() && ended.memory.is_none(), "{ended:?}");
    assert_eq!(ended.attributes.unwrap().metadata.unwrap().name, "c");
    assert!(value(ended.writable_layer.unwrap().used_bytes) >= 5 * MIB);
    finish(node, &cri).await;
}

// === figures of pods ===

#[tokio::test(flavor = "multi_thread")]
async fn processes_and_traffic_are_those_of_the_pod() {
    let Some(node) = Node::start("processes_and_traffic", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "count").await;
    let script = "mkfifo /go; sleep 1000 & sleep 1000 & read x < /go; sleep 1000 & wait";
    let id = cri.run(&pod, node.sh("c", script)).await.unwrap();
    let count = async || {
        value(pod_stats(&cri, &pod.id).await.linux.unwrap().process.unwrap().process_count)
    };
    until("a shell and two children", async || count().await == 3).await;
    cri.exec(&id, &["sh", "-c", "echo > /go"]).await.unwrap();
    until("three children", async || count().await == 4).await;
    let linux = pod_stats(&cri, &pod.id).await.linux.unwrap();
    assert_eq!(linux.network, None, "it is on the host's network");
    assert_eq!(linux.containers.len(), 1);
    assert_eq!(linux.containers[0].attributes.as_ref().unwrap().id, id);
    finish(node, &cri).await;
}

#[test]
fn traffic_is_told_by_interface() {
    testkit::cni::on_own_network("traffic_is_told_by_interface", || async {
        let dir = tempfile::tempdir().unwrap();
        let conf = testkit::cni::bridge(&dir.path().join("ipam"), &["10.199.0.0/24"]);
        let conf_dir = dir.path().join("net.d");
        testkit::cni::configure(&conf_dir, "10.conflist", &conf.to_string());
        let flags = |command: &mut Command| {
            command.arg("--cni-conf-dir").arg(&conf_dir);
        };
        let node = Node::start_with("traffic_is_told", LONGSHORE, flags).await.expect("root");
        traffic(&node, &node.cri().await.unwrap()).await;
        node.finish().await.unwrap();
    });
}

async fn traffic(node: &Node, cri: &Cri) {
    let mut config = node.pod("net");
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options.as_mut().unwrap().set_network(NamespaceMode::Pod);
    config.hostname = "net".to_owned();
    let pod = cri.run_pod(&config).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let look = async || {
        let network = pod_stats(cri, &pod.id).await.linux.unwrap().network.unwrap();
        let names: Vec<_> = network.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["eth0"]);
        assert!(network.timestamp > 0);
        let eth0 = network.default_interface.unwrap();
        assert_eq!((value(eth0.rx_errors), value(eth0.tx_errors)), (0, 0));
        (value(eth0.tx_bytes), value(eth0.rx_bytes))
    };
    let before = look().await;
    let ping = ["busybox", "ping", "-c", "3", "-i", "0.1", "-s", "1000", "10.199.0.1"];
    let pinged = cri.exec(&id, &ping).await.unwrap();
    assert_eq!(pinged.exit_code, 0, "{pinged:?}");
    let after = look().await;
    assert!(after.0 >= before.0 + 3000 && after.1 >= before.1 + 3000, "{before:?} {after:?}");
    let metrics = metrics(cri, &pod.id).await.metrics;
    for direction in ["transmit", "receive"] {
        let name = format!("container_network_{direction}_packets_total");
        let packets = metrics.iter().find(|metric| metric.name == name).unwrap();
        assert_eq!(packets.label_values[5], "eth0");
        assert!(value(packets.value) >= 3);
    }
}

// === loads for what needs more than a process ===

/// The disk that holds `path`, as the kernel numbers it; `None` where there is no single one.
fn disk_of(path: &Path) -> Option<String> {
    let device = fs::metadata(path).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let block = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let whole =
        if block.join("partition").exists() { block.join("../dev") } else { block.join("dev") };
    Some(fs::read_to_string(whole).ok()?.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_disks_read_and_write_is_counted() {
    const TEST: &str = "what_disks_read_and_write_is_counted";
    let Some(node) = Node::start(TEST, LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "disks").await;
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let Some(disk) = disk_of(&node.daemon.root()) else {
        finish(node, &cri).await;
        return testkit::skip(TEST, "containers are not on a disk");
    };
    // On cgroup v1 newer kernels count only where there is a limit, however high.
    let group = format!("/sys/fs/cgroup/blkio{}", node.cgroups.child("disks").parent());
    for way in ["read", "write"] {
        let file = Path::new(&group).join(format!("blkio.throttle.{way}_bps_device"));
        if file.exists() {
            fs::write(file, format!("{disk} {}", 1u64 << 40)).unwrap();
        }
    }
    // Past the page cache, of which disks know nothing.
    let script = "busybox dd if=/dev/zero of=/disk bs=1M count=8 oflag=direct && \
                  busybox dd if=/disk of=/dev/null bs=1M iflag=direct";
    let copied = cri.exec(&id, &["sh", "-c", script]).await.unwrap();
    assert_eq!(copied.exit_code, 0, "{}", String::from_utf8_lossy(&copied.stderr));
    for (name, least) in [
        ("container_fs_writes_bytes_total", 8 * MIB),
        ("container_fs_writes_total", 8),
        ("container_fs_reads_bytes_total", 8 * MIB),
        ("container_fs_reads_total", 8),
        ("container_blkio_device_usage_total", 16 * MIB),
    ] {
        until(name, async || metric(&cri, &pod.id, name).await >= least).await;
    }
    finish(node, &cri).await;
}

/// A file to swap to, for as long as this lives.
struct Swap(PathBuf);

impl Swap {
    fn on(dir: &Path) -> Result<Self, String> {
        let file = dir.join("swap");
        let script = "dd if=/dev/zero of=$0 bs=1M count=64 status=none && chmod 600 $0 && \
                      mkswap $0 > /dev/null && swapon $0";
        let made = Command::new("sh").args(["-c", script]).arg(&file).output().unwrap();
        match made.status.success() {
            true => Ok(Self(file)),
            false => Err(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let off = Command::new("swapoff").arg(&self.0).status();
        assert!(off.is_ok_and(|off| off.success()), "swapoff {}", self.0.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_swapped_out_is_counted() {
    const TEST: &str = "what_is_swapped_out_is_counted";
    let Some(node) = Node::start(TEST, LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "swap").await;
    // Twice of what it may have in memory is held by one process.
    let script = "read x; (busybox head -c 33554432 /dev/zero; sleep 1000) | \
                  busybox tail -c 33554432";
    let mut config = node.sh("c", &format!("mkfifo /go; exec < /go; {script}"));
    let resources = LinuxContainerResources {
        memory_limit_in_bytes: 16 << 20,
        memory_swap_limit_in_bytes: 128 << 20,
        ..Default::default()
    };
    config.linux = Some(LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    let id = cri.run(&pod, config).await.unwrap();
    let swapped = async || stats(&cri, &id).await.swap.map(|swap| value(swap.swap_usage_bytes));
    let (before, swap) = (swapped().await, Swap::on(&node.daemon.root()));
    match (before, &swap) {
        (Some(before), Ok(_)) => {
            assert_eq!(before, 0);
            cri.exec(&id, &["sh", "-c", "echo > /go"]).await.unwrap();
            until("swapped out", async || swapped().await > Some(8 * MIB)).await;
            assert!(metric(&cri, &pod.id, "container_memory_swap").await > 8 * MIB);
        }
        (None, _) => testkit::skip(TEST, "the kernel counts no swap"),
        (_, Err(why)) => testkit::skip(TEST, &format!("no swap to be had: {why}")),
    }
    // What is in it has to go somewhere when it ends.
    cri.remove(&id).await.unwrap();
    drop(swap);
    finish(node, &cri).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_is_counted_where_the_kernel_does() {
    const TEST: &str = "waiting_is_counted_where_the_kernel_does";
    let Some(node) = Node::start(TEST, LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "waiting").await;
    // Two loops share less than a CPU, a file is read through less memory than it has.
    let script = "busybox dd if=/dev/zero of=/file bs=1M count=48; \
                  (while :; do :; done) & while :; do busybox cat /file > /dev/null; done";
    let mut config = node.sh("c", script);
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        memory_limit_in_bytes: 16 << 20,
        ..Default::default()
    };
    config.linux = Some(LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    let id = cri.run(&pod, config).await.unwrap();
    // Of CPU, memory and disks.
    let waited = async || -> Option<[u64; 3]> {
        let stats = stats(&cri, &id).await;
        let psi = [stats.cpu.unwrap().psi?, stats.memory.unwrap().psi?, stats.io?.psi?];
        Some(psi.map(|psi| psi.some.unwrap().total))
    };
    if waited().await.is_none() {
        finish(node, &cri).await;
        return testkit::skip(TEST, "the kernel counts no pressure of cgroups");
    }
    until("all three", async || waited().await.unwrap().iter().all(|total| *total > 0)).await;
    let of_pod = pod_stats(&cri, &pod.id).await.linux.unwrap();
    assert!(of_pod.cpu.unwrap().psi.unwrap().some.unwrap().total > 0);
    let seconds = "container_pressure_cpu_waiting_seconds_total";
    until(seconds, async || metric(&cri, &pod.id, seconds).await > 0).await;
    finish(node, &cri).await;
}

// === lists ===

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_streams_say_the_same() {
    let Some(node) = Node::start("lists_are_filtered", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let mut ids = Vec::new();
    let mut pods = Vec::new();
    for name in ["a", "b"] {
        let pod = run_pod(&node, &cri, name).await;
        let mut config = node.sh("c", "exec sleep 1000");
        config.labels.insert("of".to_owned(), name.to_owned());
        ids.push(cri.run(&pod, config).await.unwrap());
        pods.push(pod);
    }
    let listed = async |filter| {
        let mut found: Vec<_> =
            list(&cri, filter).await.into_iter().map(|s| s.attributes.unwrap().id).collect();
        found.sort();
        found
    };
    let mut both = ids.clone();
    both.sort();
    assert_eq!(listed(None).await, both);
    let filter = |change: fn(&mut ContainerStatsFilter, &str, &str)| {
        let mut filter = ContainerStatsFilter::default();
        change(&mut filter, &ids[0], &pods[0].id);
        Some(filter)
    };
    let first = vec![ids[0].clone()];
    assert_eq!(listed(filter(|f, id, _| f.id = id[..12].to_owned())).await, first);
    assert_eq!(listed(filter(|f, _, pod| f.pod_sandbox_id = pod.to_owned())).await, first);
    let labelled = filter(|f, _, _| drop(f.label_selector.insert("of".into(), "a".into())));
    assert_eq!(listed(labelled.clone()).await, first);
    let mut runtime = cri.runtime();
    let stream = StreamContainerStatsRequest { filter: labelled };
    let mut stream = runtime.stream_container_stats(stream).await.unwrap().into_inner();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.container_stats[0].attributes.as_ref().unwrap().id, ids[0]);
    assert!(message.container_stats[0].cpu.as_ref().unwrap().timestamp > 0);
    assert!(message.container_stats[0].memory.as_ref().unwrap().timestamp > 0);
    assert_eq!(stream.message().await.unwrap(), None);

    let filter = PodSandboxStatsFilter {
        label_selector: BTreeMap::from([("pod".to_owned(), "b".to_owned())]),
        ..Default::default()
    };
    let of_b = ListPodSandboxStatsRequest { filter: Some(filter.clone()) };
    let of_b = runtime.list_pod_sandbox_stats(of_b).await.unwrap().into_inner().stats;
    assert_eq!(of_b.len(), 1);
    assert_eq!(of_b[0].attributes.as_ref().unwrap().id, pods[1].id);
    let stream = StreamPodSandboxStatsRequest { filter: Some(filter) };
    let mut stream = runtime.stream_pod_sandbox_stats(stream).await.unwrap().into_inner();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.pod_sandbox_stats[0].attributes.as_ref().unwrap().id, pods[1].id);

    // A pod that is not ready has none: asked for by name it is an error, else left out.
    cri.stop_pod(&pods[1].id).await.unwrap();
    let request = PodSandboxStatsRequest { pod_sandbox_id: pods[1].id.clone() };
    let refused = runtime.pod_sandbox_stats(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let all = ListPodSandboxStatsRequest::default();
    let all = runtime.list_pod_sandbox_stats(all).await.unwrap().into_inner().stats;
    assert_eq!(all.len(), 1);
    let request = ContainerStatsRequest { container_id: "f".repeat(64) };
    let missing = runtime.container_stats(request).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    finish(node, &cri).await;
}

// === metrics ===

async fn metrics(cri: &Cri, pod: &str) -> PodSandboxMetrics {
    let request = ListPodSandboxMetricsRequest {};
    let all = cri.runtime().list_pod_sandbox_metrics(request).await.unwrap().into_inner();
    all.pod_metrics.into_iter().find(|metrics| metrics.pod_sandbox_id == pod).unwrap()
}

/// The value of a metric of the pod's one container, summed over its labels.
async fn metric(cri: &Cri, pod: &str, name: &str) -> u64 {
    let metrics = metrics(cri, pod).await;
    let of_container = &metrics.container_metrics[0].metrics;
    let found = of_container.iter().filter(|metric| metric.name == name);
    found.map(|metric| metric.value.unwrap().value).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_move_and_match_their_descriptors() {
    let Some(node) = Node::start("metrics_move", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = run_pod(&node, &cri, "metrics").await;
    // A quota that a busy loop uses up, and a limit that one process dies of.
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 32 << 20,
        memory_swap_limit_in_bytes: 32 << 20,
        ..Default::default()
    };
    let script = "busybox head -c 67108864 /dev/zero | busybox tail -c 60000000 > /dev/null; \
                  busybox head -c 67108864 /dev/zero > /file; exec 7< /file; while :; do :; done";
    let mut config = node.sh("c", script);
    config.linux = Some(LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    cri.run(&pod, config).await.unwrap();
    for name in [
        "container_cpu_usage_seconds_total",
        "container_cpu_user_seconds_total",
        "container_cpu_cfs_periods_total",
        "container_cpu_cfs_throttled_periods_total",
        "container_cpu_cfs_throttled_seconds_total",
        "container_memory_cache",
        "container_memory_failures_total",
        "container_memory_kernel_usage",
        "container_oom_events_total",
        "container_fs_usage_bytes",
    ] {
        until(name, async || metric(&cri, &pod.id, name).await > 0).await;
    }
    for (name, want) in [
        ("container_spec_cpu_quota", 20_000),
        ("container_spec_cpu_period", 100_000),
        ("container_spec_cpu_shares", 512),
        ("container_spec_memory_limit_bytes", 32 << 20),
        ("container_processes", 1),
        ("container_threads", 1),
        ("container_sockets", 0),
    ] {
        // The file may still be growing.
        until(name, async || metric(&cri, &pod.id, name).await == want).await;
    }
    let given = metrics(&cri, &pod.id).await.container_metrics.remove(0).metrics;
    for name in ["container_memory_failcnt", "container_memory_swap", "container_ulimits_soft"] {
        assert!(given.iter().any(|metric| metric.name == name), "{name}");
    }
    assert!(metric(&cri, &pod.id, "container_file_descriptors").await >= 4);
    assert!(metric(&cri, &pod.id, "container_fs_limit_bytes").await > 64 << 20);
    assert!(metric(&cri, &pod.id, "container_memory_max_usage_bytes").await > 30 << 20);

    let mut runtime = cri.runtime();
    let described = runtime.list_metric_descriptors(ListMetricDescriptorsRequest {}).await.unwrap();
    let described: BTreeMap<_, _> = described
        .into_inner()
        .descriptors
        .into_iter()
        .map(|descriptor| (descriptor.name, descriptor.label_keys.len()))
        .collect();
    let mut stream = runtime
        .stream_pod_sandbox_metrics(StreamPodSandboxMetricsRequest {})
        .await
        .unwrap()
        .into_inner();
    let message = stream.message().await.unwrap().unwrap();
    let all = message.pod_sandbox_metrics.iter().flat_map(|pod| &pod.container_metrics);
    for metric in all.flat_map(|container| &container.metrics) {
        assert_eq!(metric.label_values.len(), described[&metric.name], "{metric:?}");
        assert_eq!(metric.label_values[..3], ["metrics", "test", "c"], "{metric:?}");
    }
    finish(node, &cri).await;
}
