//! Limits, where the kernel keeps them, and settings of namespaces.

use std::fs;

use api_cri::v1::{
    ContainerConfig, HugepageLimit, LinuxContainerConfig, LinuxContainerResources, NamespaceMode,
};
use testkit::cni::on_own_network;
use tonic::Code;

use crate::world::{World, bridge, pod_spaces, refusal, spaces};

fn limited(config: ContainerConfig, resources: LinuxContainerResources) -> ContainerConfig {
    let linux = LinuxContainerConfig { resources: Some(resources), security_context: None };
    ContainerConfig { linux: Some(linux), ..config }
}

fn is_v1() -> bool {
    std::path::Path::new("/sys/fs/cgroup/memory").is_dir()
}

#[tokio::test(flavor = "multi_thread")]
async fn swap_is_what_the_limit_leaves() {
    let Some(world) = World::start("swap_is_what_the_limit_leaves").await else { return };
    let counted = std::path::Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes");
    if is_v1() && !counted.exists() {
        return testkit::skip("swap_is_what_the_limit_leaves", "this kernel does not count swap");
    }
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let mib = |n: i64| n << 20;
    for (name, memory, swap, want) in [
        ("limit-alone", mib(64), 0, (mib(64), mib(64))),
        ("with-swap", mib(64), mib(96), (mib(64), mib(96))),
    ] {
        let resources = LinuxContainerResources {
            memory_limit_in_bytes: memory,
            memory_swap_limit_in_bytes: swap,
            ..LinuxContainerResources::default()
        };
        let config = limited(world.node.sh(name, "exec sleep 1000"), resources);
        let id = world.cri.run(&pod, config).await.unwrap();
        let read = |v1: &str, v2: &str| -> i64 {
            let text = world.node.cgroups.file(&pod, &id, ("memory", v1), v2).unwrap();
            text.parse().unwrap()
        };
        let memory = read("memory.limit_in_bytes", "memory.max");
        // v1 counts both together, v2 swap alone.
        let swap = read("memory.memsw.limit_in_bytes", "memory.swap.max");
        let both = if is_v1() { swap } else { memory + swap };
        assert_eq!((memory, both), want, "{name}");
    }
    let less = LinuxContainerResources {
        memory_limit_in_bytes: mib(64),
        memory_swap_limit_in_bytes: mib(32),
        ..LinuxContainerResources::default()
    };
    let config = limited(world.node.sh("less", "true"), less);
    let why = (Code::InvalidArgument, "resources.memory_swap: 33554432 is less than the memory");
    world.refused(&pod, config, why).await;
    world.node.finish().await.unwrap();
}

fn pages(config: ContainerConfig) -> ContainerConfig {
    let limit = HugepageLimit { page_size: "2MB".to_owned(), limit: 4 << 20 };
    let hugepage_limits = vec![limit];
    limited(config, LinuxContainerResources { hugepage_limits, ..Default::default() })
}

/// Where the runtimes can limit them. A controller of v2 on a host of v1 is out of their reach.
fn has_hugetlb() -> bool {
    let root = std::path::Path::new("/sys/fs/cgroup");
    let v2 = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    root.join("hugetlb").is_dir() || v2.split_whitespace().any(|name| name == "hugetlb")
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_huge_pages_are_set_ignored_or_refused_as_configured() {
    let Some(world) = World::start("limits_of_huge_pages").await else { return };
    // Off, as everywhere: the limit is neither set nor missed.
    assert_eq!(world.look(pages(world.node.sh("off", "echo ran"))).await, ["ran"]);
    world.node.finish().await.unwrap();

    let on = |_: &tempfile::TempDir| {
        "[containers]\nhugepages = true\nhugepages_required = true\n".to_owned()
    };
    let Some(world) = World::configured("limits_of_huge_pages", on).await else { return };
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let config = pages(world.node.sh("on", "exec sleep 1000"));
    if has_hugetlb() {
        let id = world.cri.run(&pod, config).await.unwrap();
        let v1 = ("hugetlb", "hugetlb.2MB.limit_in_bytes");
        let read = world.node.cgroups.file(&pod, &id, v1, "hugetlb.2MB.max");
        assert_eq!(read.unwrap(), (4 << 20).to_string());
    } else {
        let why = "resources.hugepages: the hugetlb controller is not available on this host";
        world.refused(&pod, config, (Code::FailedPrecondition, why)).await;
    }
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_cgroup_v2_are_for_hosts_of_cgroup_v2() {
    let Some(world) = World::start("files_of_cgroup_v2").await else { return };
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let unified = [("memory.high".to_owned(), "33554432".to_owned())].into();
    let resources = LinuxContainerResources { unified, ..LinuxContainerResources::default() };
    let config = limited(world.node.sh("c", "exec sleep 1000"), resources);
    if is_v1() {
        let why = "resources.unified: cgroup v2 is not available on this host";
        world.refused(&pod, config, (Code::FailedPrecondition, why)).await;
    } else {
        let id = world.cri.run(&pod, config).await.unwrap();
        let high = world.node.cgroups.file(&pod, &id, ("", "memory.high"), "memory.high");
        assert_eq!(high.unwrap(), "33554432");
    }
    world.node.finish().await.unwrap();
}

// === classes ===

#[tokio::test(flavor = "multi_thread")]
async fn classes_are_named_by_annotation() {
    let configured = |dir: &tempfile::TempDir| {
        format!("[containers]\nblockio_classes = '{}/classes.yaml'\n", dir.path().display())
    };
    let Some(world) = World::configured("classes_are_named", configured).await else { return };
    let class = |kind: &str, name: &str| {
        let mut config = world.node.sh(kind, "exec sleep 1000");
        let key = format!("io.kubernetes.cri.{kind}-class");
        config.annotations.insert(key, name.to_owned());
        config
    };
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let why = (Code::NotFound, "no block I/O class \"slow\"");
    world.refused(&pod, class("blockio", "slow"), why).await;

    // Defined while the daemon runs.
    let Some((device, number)) = block_device() else {
        return testkit::skip("classes_are_named_by_annotation", "needs a disk");
    };
    let classes =
        format!("Classes:\n  slow:\n    - Devices: [\"{device}\"]\n      ThrottleReadBps: 50M\n");
    fs::write(world.dir.path().join("classes.yaml"), classes).unwrap();
    let id = world.cri.run(&pod, class("blockio", "slow")).await.unwrap();
    let v1 = ("blkio", "blkio.throttle.read_bps_device");
    let read = world.node.cgroups.file(&pod, &id, v1, "io.max").unwrap();
    assert!(read.contains(&number) && read.contains("50000000"), "{number}: {read:?}");

    // By the pod, for all its containers.
    let mut asked = world.node.pod("annotated");
    let key = "blockio.resources.beta.kubernetes.io/pod".to_owned();
    asked.annotations.insert(key, "fast".to_owned());
    let pod = world.cri.run_pod(&asked).await.unwrap();
    let why = (Code::NotFound, "no block I/O class \"fast\"");
    world.refused(&pod, world.node.sh("c", "true"), why).await;

    if std::path::Path::new("/sys/fs/resctrl/schemata").exists() {
        testkit::skip("classes_are_named_by_annotation: RDT", "this host has resctrl");
    } else {
        let pod = world.cri.run_pod(&world.node.pod("rdt")).await.unwrap();
        let why = (Code::FailedPrecondition, "resctrl is not available on this host");
        world.refused(&pod, class("rdt", "gold"), why).await;
    }
    world.node.finish().await.unwrap();
}

/// A disk that can be throttled: its path and its number.
fn block_device() -> Option<(String, String)> {
    let disks = fs::read_dir("/sys/block").ok()?.flatten();
    disks
        .filter_map(|disk| {
            let name = disk.file_name().into_string().ok()?;
            let number = fs::read_to_string(disk.path().join("dev")).ok()?.trim().to_owned();
            let path = format!("/dev/{name}");
            let usable = !name.starts_with("loop") && std::path::Path::new(&path).exists();
            usable.then_some((path, number))
        })
        .next()
}

// === sysctls ===

#[test]
fn pods_with_a_network_bind_low_ports_and_ping() {
    on_own_network("pods_with_a_network", || async {
        let off = |dir: &tempfile::TempDir| {
            format!("{}[containers]\nunprivileged_ports = false\n", bridge(dir))
        };
        let Some(open) = World::configured("pods_with_a_network", bridge).await else { return };
        let Some(shut) = World::configured("pods_with_a_network", off).await else { return };
        for (world, low) in [(open, "0"), (shut, "1024")] {
            let options = spaces(NamespaceMode::Pod, NamespaceMode::Container);
            let mut asked = pod_spaces(world.node.pod("p"), options);
            asked.hostname = "p".to_owned();
            let sysctls = &mut asked.linux.as_mut().unwrap().sysctls;
            sysctls.insert("net.core.somaxconn".to_owned(), "77".to_owned());
            let pod = world.cri.run_pod(&asked).await.unwrap();
            let script = "cd /proc/sys/net; cat ipv4/ip_unprivileged_port_start core/somaxconn
                echo $(cat ipv4/ping_group_range)";
            let said = world.said(&pod, world.node.sh("c", script)).await;
            assert_eq!(said, [low, "77", "0 2147483647"]);
            world.node.finish().await.unwrap();
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn sysctls_are_set_in_the_pods_namespaces_and_nowhere_else() {
    let Some(world) = World::start("sysctls_are_set").await else { return };
    let host = || fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    let before = host();
    let asking = |name: &str, sysctls: &[(&str, &str)]| {
        let mut asked = world.node.pod(name);
        let sysctls = sysctls.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        asked.linux.as_mut().unwrap().sysctls = sysctls;
        asked
    };
    let asked = asking("set", &[("kernel.shm_rmid_forced", "1"), ("fs/mqueue/msg_max", "15")]);
    let pod = world.cri.run_pod(&asked).await.unwrap();
    let script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/fs/mqueue/msg_max";
    assert_eq!(world.said(&pod, world.node.sh("c", script)).await, ["1", "15"]);
    assert_eq!(host(), before);

    for (name, value, why) in [
        ("net.core.somaxconn", "9", "its namespace is the host's"),
        ("vm.swappiness", "9", "belongs to no namespace"),
    ] {
        let refused = world.cri.run_pod(&asking("refused", &[(name, value)])).await.unwrap_err();
        refusal(&refused, Code::InvalidArgument, &format!("sysctls[{name:?}]: {why}"));
    }
    let refused = world.cri.run_pod(&asking("odd", &[("kernel.msgmax", "many")])).await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("set sysctl kernel.msgmax=many"), "{refused}");
    world.node.finish().await.unwrap();
}
