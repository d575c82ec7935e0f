//! Pods whose containers share a PID namespace, and the first process of that namespace.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use api_cri::v1::{
    ContainerConfig, ContainerEventType, GetEventsRequest, LinuxContainerSecurityContext,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxState, PodSandboxStatusRequest,
};
use rustix::process::Signal;
use serde_json::Value;
use testkit::{Cri, Node, Pod, Process};
use tokio::time::Instant;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(60);

fn spaces(pid: NamespaceMode) -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: pid.into(),
        ..NamespaceOption::default()
    }
}

fn shared(node: &Node, name: &str) -> PodSandboxConfig {
    let mut config = node.pod(name);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options = Some(spaces(NamespaceMode::Pod));
    config
}

/// A container that sleeps in the PID namespace that `pid` means.
fn sleeper(node: &Node, name: &str, pid: NamespaceMode) -> ContainerConfig {
    let mut config = node.sh(name, "exec sleep 1000");
    let namespace_options = Some(spaces(pid));
    config.linux.get_or_insert_default().security_context =
        Some(LinuxContainerSecurityContext { namespace_options, ..Default::default() });
    config
}

/// The first process of the one PID namespace that is shared on the node.
fn first_process(node: &Node) -> Process {
    let is_first = |process: &Process| {
        fs::read_to_string(format!("/proc/{}/comm", process.pid))
            .is_ok_and(|name| name.trim() == "longshore-pod")
    };
    node.processes().into_iter().find(is_first).expect("a first process")
}

async fn not_ready(cri: &Cri, pod: &Pod) {
    let end = Instant::now() + LIMIT;
    loop {
        let status = cri.pod_status(&pod.id).await.unwrap().status.unwrap();
        if status.state() == PodSandboxState::SandboxNotready {
            return;
        }
        assert!(Instant::now() < end, "the pod is still ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The pod's spec, as a verbose status shows it.
async fn spec_of(cri: &Cri, pod: &Pod) -> Value {
    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true };
    let answer = cri.runtime().pod_sandbox_status(request).await.unwrap().into_inner();
    let info: Value = serde_json::from_str(&answer.info["info"]).unwrap();
    info["runtimeSpec"].clone()
}

fn pid_path(spec: &Value) -> &str {
    let all = spec["linux"]["namespaces"].as_array().unwrap();
    let pid = all.iter().find(|namespace| namespace["type"] == "pid").expect("a PID namespace");
    pid["path"].as_str().expect("a path to join it by")
}

/// A pod with a container in the shared namespace and one in a namespace of its own.
async fn run(node: &Node, cri: &Cri, name: &str) -> (Pod, [String; 2]) {
    let pod = cri.run_pod(&shared(node, name)).await.unwrap();
    let joined = cri.run(&pod, sleeper(node, "joined", NamespaceMode::Pod)).await.unwrap();
    let apart = cri.run(&pod, sleeper(node, "apart", NamespaceMode::Container)).await.unwrap();
    (pod, [joined, apart])
}

/// Of a pod whose first process was killed: it is not ready, its containers were killed, it takes
/// no new ones, and nothing of it is left when it is removed.
async fn check_dead(node: &Node, cri: &Cri, pod: &Pod, containers: &[String]) {
    not_ready(cri, pod).await;
    for id in containers {
        let status = cri.exited(id).await.unwrap();
        assert_eq!((status.exit_code, &*status.reason), (137, "Error"), "{status:?}");
    }
    let error = cri.create(pod, sleeper(node, "late", NamespaceMode::Pod)).await.unwrap_err();
    assert!(error.message().contains("is lost"), "{error}");
    cri.stop_pod(&pod.id).await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();
    node.settled().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_first_process_is_the_end_of_its_pod() {
    let Some(mut node) = Node::start("the_death_of_the_first_process", LONGSHORE).await else {
        return;
    };
    let cri = node.cri().await.unwrap();
    let (pod, containers) = run(&node, &cri, "p").await;
    let events = cri.runtime().get_container_events(GetEventsRequest {}).await;
    let mut events = events.unwrap().into_inner();
    node.note_processes();
    first_process(&node).signal(Signal::KILL);
    check_dead(&node, &cri, &pod, &containers).await;

    let mut stopped = Vec::new();
    loop {
        let event = tokio::time::timeout(LIMIT, events.message()).await.unwrap().unwrap().unwrap();
        match event.container_event_type() {
            ContainerEventType::ContainerStoppedEvent => stopped.push(event.container_id),
            ContainerEventType::ContainerDeletedEvent if event.container_id == pod.id => break,
            _ => {}
        }
    }
    stopped.sort();
    let mut want = [&containers[..], std::slice::from_ref(&pod.id)].concat();
    want.sort();
    assert_eq!(stopped, want, "each end is told once");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_daemon_learns_of_the_death_of_a_first_process() {
    let Some(mut node) = Node::start("a_new_daemon_learns", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (pod, containers) = run(&node, &cri, "p").await;
    node.note_processes();
    let first = first_process(&node);
    node.daemon.kill().unwrap();
    first.signal(Signal::KILL);
    let end = Instant::now() + LIMIT;
    while first.is_alive() {
        assert!(Instant::now() < end, "the first process lives");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.daemon.start_again().await.unwrap();
    let cri = node.cri().await.unwrap();
    check_dead(&node, &cri, &pod, &containers).await;
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_pid_namespace_is_joined_by_a_pinned_file() {
    let Some(node) = Node::start("a_shared_pid_namespace", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (pod, [joined, _]) = run(&node, &cri, "p").await;
    let spec = spec_of(&cri, &pod).await;
    let path = Path::new(pid_path(&spec));
    assert!(path.starts_with(node.daemon.state()), "{}", path.display());
    let identity = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.dev(), meta.ino())
    };
    let first = first_process(&node).pid;
    assert_eq!(identity(path), identity(Path::new(&format!("/proc/{first}/ns/pid"))));

    let bundle = node.daemon.state().join("pods").join(&pod.id).join("c").join(&joined);
    let config = fs::read(bundle.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(Path::new(pid_path(&config)), path);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_counts_to_its_pod() {
    let Some(node) = Node::start("the_first_process_counts", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&shared(&node, "p")).await.unwrap();
    let first = first_process(&node).pid;
    let said = node.cgroups.pod_file(&pod, ("memory", &in_child(&pod)), &in_child(&pod));
    assert_eq!(said, Some(first.to_string()), "it is in a cgroup named by the pod");
    // With CAP_SYS_RESOURCE it is what containerd gives; else not below that of the daemon.
    let score = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse::<i32>().unwrap()
    };
    let daemon = u32::try_from(node.daemon.pid().as_raw_nonzero().get()).unwrap();
    let floor = if may_lower(daemon) { -998 } else { score(daemon) };
    assert_eq!(score(first), floor.max(-998));
    cri.remove_pod(&pod.id).await.unwrap();
    node.settled().await.unwrap();

    // One that nobody gave a cgroup leaves none.
    let mut config = shared(&node, "alone");
    config.linux.as_mut().unwrap().cgroup_parent.clear();
    let pod = cri.run_pod(&config).await.unwrap();
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", first_process(&node).pid)).unwrap();
    assert!(groups.lines().any(|line| line.ends_with(&format!("/{}", pod.id))), "{groups}");
    cri.remove_pod(&pod.id).await.unwrap();
    let left: Vec<_> = walkdir(Path::new("/sys/fs/cgroup"), 5)
        .into_iter()
        .filter(|dir| dir.to_string_lossy().contains(&pod.id))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    node.finish().await.unwrap();
}

fn in_child(pod: &Pod) -> String {
    format!("{}/cgroup.procs", pod.id)
}

fn may_lower(pid: u32) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1
}

fn walkdir(dir: &Path, depth: usize) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path());
    let below = |dir: std::path::PathBuf| {
        let deeper = if depth > 0 { walkdir(&dir, depth - 1) } else { Vec::new() };
        [dir].into_iter().chain(deeper)
    };
    dirs.flat_map(below).collect()
}
