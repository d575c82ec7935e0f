//! Limits, their changes, and what happens above them.

use std::{fs, time::Duration};

use tokio::time::Instant;

use crate::world::{LIMIT, Wish, World};

#[tokio::test]
async fn a_container_above_its_memory_is_told_apart() {
    let Some(world) = World::new("a_container_above_its_memory_is_told_apart") else { return };
    let pod = world.start().await;
    let wish = Wish { memory: Some(16 << 20), ..Wish::default() };
    let exit = pod.outcome("fat", &["sh", "-c", "x=a; while :; do x=$x$x; done"], wish).await;
    assert_eq!((exit.code, exit.oom), (137, true));
    let wish = Wish { memory: Some(16 << 20), ..Wish::default() };
    let exit = pod.outcome("thin", &["sh", "-c", "kill -9 $$; exit 1"], wish).await;
    assert!(!exit.oom);
    pod.finish().await;
}

/// A file of the container's cgroup, of whichever version holds the controller.
fn value(pod: &crate::world::Pod, id: &str, controller: &str, v1: &str, v2: &str) -> String {
    let layout = sys::cgroup::Layout::detect().unwrap();
    let path = format!("{}/{id}", pod.world.cgroup());
    let group = sys::cgroup::Cgroup::open(&layout, path.as_ref()).unwrap().unwrap();
    let file = match group.version_of(controller).unwrap() {
        sys::cgroup::Version::V1 => v1,
        sys::cgroup::Version::V2 => v2,
    };
    group.read(controller, file).unwrap().unwrap().trim().to_owned()
}

#[tokio::test]
async fn limits_change_all_or_not_at_all() {
    let Some(world) = World::new("limits_change_all_or_not_at_all") else { return };
    let pod = world.start().await;
    let wish = Wish { memory: Some(64 << 20), ..Wish::default() };
    let id = pod.run("c", &["sleep", "1000"], wish).await;
    let memory = || value(&pod, &id, "memory", "memory.limit_in_bytes", "memory.max");
    let pids = || value(&pod, &id, "pids", "pids.max", "pids.max");
    assert_eq!(memory(), (64 << 20).to_string());

    let grown = r#"{"memory":{"limit":134217728,"swap":134217728},"pids":{"limit":77}}"#;
    pod.shim.update(&id, grown.as_bytes()).await.unwrap();
    assert_eq!((memory(), pids()), ((128 << 20).to_string(), "77".to_owned()));

    // The kernel has no such CPU: what was written before it is taken back.
    let refused = r#"{"memory":{"limit":33554432},"cpu":{"cpus":"4000"},"pids":{"limit":5}}"#;
    let error = pod.shim.update(&id, refused.as_bytes()).await.unwrap_err();
    assert_eq!(error.kind(), base::Kind::Invalid, "{error}");
    assert!(error.to_string().contains("cpuset.cpus"), "{error}");
    assert_eq!((memory(), pids()), ((128 << 20).to_string(), "77".to_owned()));

    let unknown = pod.shim.update(&id, br#"{"rdma":{"mlx5_1":{"hcaHandles":3}}}"#).await;
    assert!(unknown.unwrap_err().to_string().contains("rdma cannot be changed"));
    pod.end(&id).await;
    pod.finish().await;
}

#[tokio::test]
async fn the_shim_sits_in_a_cgroup_of_its_own() {
    let Some(world) = World::new("the_shim_sits_in_a_cgroup_of_its_own") else { return };
    let mut spec = world.spec();
    let group = format!("{}/shim", world.cgroup());
    spec.cgroup = Some(group.clone().into());
    let pod = world.start_with(&spec).await;
    let own = fs::read_to_string(format!("/proc/{}/cgroup", pod.shim.info().pid)).unwrap();
    assert!(own.contains(&group), "{own}");
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let pid = pod.shim.state(&id).await.unwrap().pid;
    let theirs = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(!theirs.contains(&group), "{theirs}");
    pod.end(&id).await;
    let died = pod.shim.died();
    pod.shim.shutdown().await.unwrap();
    died.await;
    let layout = sys::cgroup::Layout::detect().unwrap();
    let left = sys::cgroup::Cgroup::open(&layout, group.as_ref()).unwrap().unwrap();
    left.remove(LIMIT).unwrap();
    pod.world.check_empty().await;
}

/// A figure to read, of the binary that `LONGSHORE_SHIM` names: one built to be debugged is
/// several times larger.
#[tokio::test]
async fn how_much_memory_an_idle_pod_takes() {
    const PODS: usize = 30;
    let mut pods = Vec::new();
    for _ in 0..PODS {
        let Some(world) = World::new("how_much_memory_an_idle_pod_takes") else { return };
        let mut spec = world.spec();
        spec.namespaces.ipc = Some(world.pod_dir().join("ipc"));
        spec.namespaces.uts = Some(world.pod_dir().join("uts"));
        let pod = world.start_with(&spec).await;
        let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
        let id = pod.run("c", &["sh", "-c", "echo up; exec sleep 1000"], wish).await;
        pods.push((pod, id));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pss = |pid: u32| -> u64 {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let sum: u64 = pods.iter().map(|(pod, _)| pss(pod.shim.info().pid)).sum();
    eprintln!("{PODS} pods with a container each: {} KiB of PSS per shim", sum / PODS as u64);
    for (pod, id) in pods {
        pod.end(&id).await;
        pod.finish().await;
    }
}

/// As any client of the Task API would ask.
#[tokio::test]
async fn metrics_of_a_container_by_the_task_api() {
    use api_shim::{
        metrics::Metrics,
        name,
        task::v3::{StatsRequest, TaskClient},
    };
    use prost::Message;

    let Some(world) = World::new("metrics_of_a_container_by_the_task_api") else { return };
    let pod = world.start().await;
    let wish = Wish { memory: Some(64 << 20), ..Wish::default() };
    let id = pod.run("c", &["sleep", "1000"], wish).await;
    let socket = tokio::net::UnixStream::connect(pod.world.pod_dir().join("shim.sock")).await;
    let client = TaskClient::new(ttrpc::Client::new(socket.unwrap()));
    let limit = ttrpc::Context::timeout(LIMIT);
    // Until it has become the program, the runtime's process has threads.
    let until = Instant::now() + LIMIT;
    let metrics = loop {
        let answer = client.stats(&limit, &StatsRequest { id: id.clone() }).await.unwrap();
        let stats = answer.stats.unwrap();
        assert_eq!(stats.type_url, name::METRICS_V2);
        let metrics = Metrics::decode(stats.value.as_slice()).unwrap();
        if metrics.pids.as_ref().unwrap().current == 1 {
            break metrics;
        }
        assert!(Instant::now() < until, "{:?}", metrics.pids);
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(metrics.memory.unwrap().usage_limit, 64 << 20);
    assert!(metrics.cpu.unwrap().usage_usec > 0);
    pod.end(&id).await;
    pod.finish().await;
}
