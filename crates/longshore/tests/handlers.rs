//! One suite for all that can keep a pod: our own shim, one that others wrote, which knows only
//! tasks, and one that makes the pod itself.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use api_cri::v1::{
    ContainerConfig, ContainerState, ContainerStatsRequest, LinuxContainerConfig,
    LinuxContainerResources, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxState,
    StatusRequest, UpdateContainerResourcesRequest, UserNamespace,
};
use rustix::process::Signal;
use testkit::{Cri, Node, Pod, RustTool};
use tokio::time::Instant;
use tonic::Code;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
const LIMIT: Duration = Duration::from_secs(60);

const CONFIG: &str = "
default_handler = 'own'
[handlers.own]
binary = 'runc'
[handlers.tasks]
binary = 'runc'
shim = 'io.containerd.runc.v2'
[handlers.sandbox]
binary = 'runc'
sandboxer = 'shim'
";

/// Handlers that pass the suite together, on one node.
#[derive(Clone, Copy)]
struct Cast {
    handlers: &'static [&'static str],
    /// Those whose pods end with a process that sleeps.
    sandboxed: &'static [&'static str],
    config: fn(&str) -> Option<String>,
}

/// What a host has.
const INSTALLED: Cast = Cast {
    handlers: &["own", "tasks", "sandbox"],
    sandboxed: &["tasks", "sandbox"],
    config: installed,
};

/// What takes minutes to build.
const BUILT: Cast = Cast { handlers: &["youki", "rust"], sandboxed: &["rust"], config: built };

fn installed(test: &str) -> Option<String> {
    if !Path::new("/usr/bin/containerd-shim-runc-v2").exists() {
        testkit::skip(test, "no containerd-shim-runc-v2");
        return None;
    }
    let shim = testkit::sandbox_shim(LONGSHORE);
    Some(format!("{CONFIG}shim = {shim:?}\n"))
}

fn built(test: &str) -> Option<String> {
    let (youki, shim) = (RustTool::Youki.find(test)?, RustTool::RuncShim.find(test)?);
    Some(format!(
        "default_handler = 'youki'\n[handlers.youki]\nbinary = {youki:?}\n\
         [handlers.rust]\nbinary = 'runc'\nshim = {shim:?}\n"
    ))
}

async fn node(test: &str, cast: Cast) -> Option<Node> {
    let text = (cast.config)(test)?;
    let config = |command: &mut Command| {
        // Beside the daemon's root: it is read again after a restart, and goes with the daemon.
        let root = command.get_args().skip_while(|arg| *arg != "--root").nth(1).unwrap();
        let file = Path::new(root).with_file_name("config.toml");
        fs::write(&file, text).unwrap();
        command.arg("--config").arg(file);
    };
    Node::start_with(test, LONGSHORE, config).await
}

/// The tests of one cast each.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod installed_handlers {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let cast = super::INSTALLED;
                if let Some(node) = super::node(stringify!($test), cast).await {
                    super::$test(node, cast).await;
                }
            })*
        }

        mod built_handlers {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "builds youki and a shim, which takes minutes"]
            async fn $test() {
                let cast = super::BUILT;
                if let Some(node) = super::node(stringify!($test), cast).await {
                    super::$test(node, cast).await;
                }
            })*
        }
    };
}

suite!(
    a_life_from_create_to_shutdown,
    ends_are_told_as_they_were,
    the_death_of_a_shim_is_the_end_of_its_pod_alone,
    the_death_of_a_sandbox_is_the_end_of_its_pod,
    a_pod_is_furnished_whoever_keeps_it,
    a_new_daemon_takes_over,
);

/// A pod whose containers share their processes.
fn shared(node: &Node, name: &str) -> PodSandboxConfig {
    let mut config = node.pod(name);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options.as_mut().unwrap().pid = NamespaceMode::Pod.into();
    config
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn not_ready(cri: &Cri, pod: &Pod) {
    until("the pod is not ready", async || {
        let status = cri.pod_status(&pod.id).await.unwrap().status.unwrap();
        status.state() == PodSandboxState::SandboxNotready
    })
    .await;
}

fn limited(mut config: ContainerConfig, memory: i64) -> ContainerConfig {
    let resources = LinuxContainerResources {
        memory_limit_in_bytes: memory,
        memory_swap_limit_in_bytes: memory,
        ..LinuxContainerResources::default()
    };
    let linux = config.linux.get_or_insert_with(LinuxContainerConfig::default);
    linux.resources = Some(resources);
    config
}

async fn a_life_from_create_to_shutdown(node: Node, cast: Cast) {
    let cri = node.cri().await.unwrap();
    for handler in cast.handlers.iter().copied() {
        let pod = cri.run_pod_with(handler, &shared(&node, handler)).await.unwrap();
        let pin = node.daemon.state().join("pods").join(&pod.id).join("ns/pid");
        assert!(pin.exists(), "{handler}: containers join a file, not the number of a process");
        let status = cri.pod_status(&pod.id).await.unwrap().status.unwrap();
        assert_eq!(
            (status.state(), &*status.runtime_handler),
            (PodSandboxState::SandboxReady, handler)
        );
        let script = "echo out; echo err >&2; exec sleep 1000";
        let id = cri.run(&pod, limited(node.sh("c", script), 64 << 20)).await.unwrap();
        // The other containers of the pod are seen, and what is PID 1 is none of them.
        let seen = cri.exec(&id, &["ps"]).await.unwrap();
        let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
        assert!(seen.contains("sleep 1000"), "{handler}: {seen}");
        until("both lines are logged", async || {
            node.said(&pod, "c").is_ok_and(|said| said.len() == 2)
        })
        .await;

        let linux = LinuxContainerResources {
            memory_limit_in_bytes: 128 << 20,
            memory_swap_limit_in_bytes: 128 << 20,
            ..LinuxContainerResources::default()
        };
        let update = UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(linux),
            ..UpdateContainerResourcesRequest::default()
        };
        cri.runtime().update_container_resources(update).await.unwrap();
        let now = cri.status(&id).await.unwrap().resources.unwrap().linux.unwrap();
        assert_eq!(now.memory_limit_in_bytes, 128 << 20, "{handler}");
        let stats = ContainerStatsRequest { container_id: id.clone() };
        let stats = cri.runtime().container_stats(stats).await.unwrap().into_inner();
        assert!(stats.stats.unwrap().memory.unwrap().working_set_bytes.unwrap().value > 0);

        cri.stop(&id, 0).await.unwrap();
        assert_eq!(cri.status(&id).await.unwrap().exit_code, 137, "{handler}");
        cri.remove(&id).await.unwrap();
        cri.stop_pod(&pod.id).await.unwrap();
        not_ready(&cri, &pod).await;
        cri.remove_pod(&pod.id).await.unwrap();
        node.settled().await.unwrap();
    }
    node.finish().await.unwrap();
}

async fn ends_are_told_as_they_were(node: Node, cast: Cast) {
    let cri = node.cri().await.unwrap();
    for handler in cast.handlers.iter().copied() {
        let pod = cri.run_pod_with(handler, &node.pod(handler)).await.unwrap();
        let status = cri.run_to_end(&pod, node.sh("seven", "exit 7")).await.unwrap();
        assert_eq!((status.exit_code, &*status.reason), (7, "Error"), "{handler}");
        let eater = node.sh("eater", "x=0123456789abcdef; while :; do x=$x$x; done");
        let status = cri.run_to_end(&pod, limited(eater, 16 << 20)).await.unwrap();
        assert_eq!(status.reason, "OOMKilled", "{handler}: {status:?}");
        let absent = ContainerConfig { command: vec!["/no/such".to_owned()], ..node.sh("no", "") };
        let id = cri.create(&pod, absent).await.unwrap();
        let error = cri.start(&id).await.unwrap_err();
        assert!(error.message().contains("/no/such"), "{handler}: {error}");
    }
    node.finish().await.unwrap();
}

async fn the_death_of_a_shim_is_the_end_of_its_pod_alone(mut node: Node, cast: Cast) {
    let cri = node.cri().await.unwrap();
    for handler in cast.handlers.iter().copied() {
        let pod = cri.run_pod_with(handler, &node.pod(&format!("{handler}-dies"))).await.unwrap();
        let other =
            cri.run_pod_with(handler, &node.pod(&format!("{handler}-lives"))).await.unwrap();
        let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
        let lives = cri.run(&other, node.sh("c", "exec sleep 1000")).await.unwrap();
        node.note_processes();
        node.shim(&pod).unwrap().signal(Signal::KILL);
        not_ready(&cri, &pod).await;
        let status = cri.exited(&id).await.unwrap();
        assert!([137, 255].contains(&status.exit_code), "{handler}: {status:?}");
        let running = cri.status(&lives).await.unwrap().state();
        assert_eq!(running, ContainerState::ContainerRunning, "{handler}");
        assert_eq!(cri.exec(&lives, &["true"]).await.unwrap().exit_code, 0);
    }
    node.finish().await.unwrap();
}

async fn the_death_of_a_sandbox_is_the_end_of_its_pod(mut node: Node, cast: Cast) {
    let cri = node.cri().await.unwrap();
    for handler in cast.sandboxed.iter().copied() {
        let pod = cri.run_pod_with(handler, &shared(&node, handler)).await.unwrap();
        let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
        node.note_processes();
        let sandbox = node.processes().into_iter().find(|process| process.command == "/pause");
        sandbox.unwrap().signal(Signal::KILL);
        not_ready(&cri, &pod).await;
        cri.exited(&id).await.unwrap();
        cri.remove_pod(&pod.id).await.unwrap();
        node.settled().await.unwrap();
    }
    node.finish().await.unwrap();
}

/// What a shim makes of it is not asked: containers find themselves in a pod as it was described.
async fn a_pod_is_furnished_whoever_keeps_it(node: Node, cast: Cast) {
    let cri = node.cri().await.unwrap();
    for handler in cast.handlers.iter().copied() {
        let mut config = node.pod(handler);
        let linux = config.linux.as_mut().unwrap();
        linux.sysctls.insert("kernel.shm_rmid_forced".to_owned(), "1".to_owned());
        let pod = cri.run_pod_with(handler, &config).await.unwrap();
        let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
        let read = cri.exec(&id, &["cat", "/proc/sys/kernel/shm_rmid_forced"]).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&read.stdout), "1\n", "{handler}");
    }
    node.finish().await.unwrap();
}

async fn a_new_daemon_takes_over(mut node: Node, cast: Cast) {
    let mut cri = node.cri().await.unwrap();
    let mut pods = Vec::new();
    for handler in cast.handlers.iter().copied() {
        let pod = cri.run_pod_with(handler, &node.pod(handler)).await.unwrap();
        let script = "echo before; while [ ! -e /gate/open ]; do sleep 0.05; done; echo after";
        let gate = node.daemon.home().join(format!("gate-{handler}"));
        fs::create_dir(&gate).unwrap();
        let mount = api_cri::v1::Mount {
            host_path: gate.display().to_string(),
            container_path: "/gate".to_owned(),
            ..api_cri::v1::Mount::default()
        };
        let config = ContainerConfig { mounts: vec![mount], ..node.sh("gated", script) };
        let gated = cri.run(&pod, config).await.unwrap();
        let short = cri.run(&pod, node.sh("short", "sleep 0.3; exit 5")).await.unwrap();
        let long = cri.run(&pod, node.sh("long", "exec sleep 1000")).await.unwrap();
        pods.push((handler, pod, gate, gated, short, long));
    }
    node.daemon.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    node.daemon.start_again().await.unwrap();
    cri = node.cri().await.unwrap();
    for (handler, pod, gate, gated, short, long) in pods {
        assert_eq!(cri.exited(&short).await.unwrap().exit_code, 5, "{handler}");
        assert_eq!(cri.exec(&long, &["true"]).await.unwrap().exit_code, 0, "{handler}");
        fs::write(gate.join("open"), "").unwrap();
        assert_eq!(cri.exited(&gated).await.unwrap().exit_code, 0, "{handler}");
        assert_eq!(node.said(&pod, "gated").unwrap(), ["before", "after"], "{handler}");
        cri.stop(&long, 0).await.unwrap();
        let status = cri.pod_status(&pod.id).await.unwrap().status.unwrap();
        assert_eq!(status.state(), PodSandboxState::SandboxReady, "{handler}");
    }
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_cannot_do_is_refused_by_name() {
    const TEST: &str = "what_a_handler_cannot_do_is_refused_by_name";
    let Some(node) = node(TEST, INSTALLED).await else { return };
    let cri = node.cri().await.unwrap();
    let mut config = node.pod("p");
    let ids = api_cri::v1::IdMapping { host_id: 100_000, container_id: 0, length: 65_536 };
    let user = UserNamespace { mode: NamespaceMode::Pod.into(), uids: vec![ids], gids: vec![ids] };
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options =
        Some(NamespaceOption { userns_options: Some(user), ..NamespaceOption::default() });
    for handler in ["tasks", "sandbox"] {
        let error = cri.run_pod_with(handler, &config).await.unwrap_err();
        assert!(error.message().contains(&format!("{handler:?} cannot do that")), "{error}");
    }
    let error = cri.run_pod_with("absent", &node.pod("p")).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    // And said before anybody asks.
    let status = cri.runtime().status(StatusRequest::default()).await.unwrap().into_inner();
    let tasks = status.runtime_handlers.iter().find(|handler| handler.name == "tasks").unwrap();
    assert!(!tasks.features.as_ref().unwrap().user_namespaces);
    node.finish().await.unwrap();
}

/// Directories of cgroups that are named by this pod, in all hierarchies.
fn cgroups_of(pod: &str) -> Vec<PathBuf> {
    let dirs = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.map(|entry| entry.path()).collect()
    };
    let root = PathBuf::from("/sys/fs/cgroup");
    let parents = dirs(&root).into_iter().chain([root]);
    let ours = ["longshore", "longshore.slice"];
    let pods = parents.flat_map(|parent| ours.map(|name| parent.join(name)));
    let pods = pods.flat_map(|parent| dirs(&parent));
    pods.filter(|dir| dir.to_string_lossy().contains(pod)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_shim_that_fails_to_start_leaves_nothing() {
    const TEST: &str = "a_foreign_shim_that_fails_to_start_leaves_nothing";
    if installed(TEST).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // They work until the daemon has looked at them.
    let broken = dir.path().join("broken");
    let runtime = dir.path().join("runtime");
    let script = format!(
        "#!/bin/sh\nfor arg; do [ $arg = start -a -e {broken:?} ] && \
         {{ echo never started >&2; exit 1; }}; done\nexec runc \"$@\"\n"
    );
    testkit::program(&runtime, &script);
    let shim = dir.path().join("containerd-shim-ends-v2");
    let script = format!(
        "#!/bin/sh\n[ -e {broken:?} ] && {{ echo out of order >&2; exit 1; }}\n\
         exec containerd-shim-runc-v2 \"$@\"\n"
    );
    testkit::program(&shim, &script);
    let text = format!(
        "default_handler = 'own'\n[handlers.own]\nbinary = 'runc'\n\
         [handlers.task]\nbinary = {runtime:?}\nshim = 'io.containerd.runc.v2'\n\
         [handlers.ends]\nbinary = 'runc'\nshim = {shim:?}\n"
    );
    let config = |command: &mut Command| {
        let file = dir.path().join("config.toml");
        fs::write(&file, text).unwrap();
        command.arg("--config").arg(file);
    };
    let Some(node) = Node::start_with(TEST, LONGSHORE, config).await else { return };
    let cri = node.cri().await.unwrap();
    fs::write(&broken, "").unwrap();
    for (handler, why) in [("task", "never started"), ("ends", "out of order")] {
        // Of its own: what nobody gave the pod goes with it.
        let mut config = node.pod(handler);
        config.linux.as_mut().unwrap().cgroup_parent.clear();
        let error = cri.run_pod_with(handler, &config).await.unwrap_err();
        let message = error.message();
        assert!(message.contains("at step \"start-shim\""), "{handler}: {message}");
        assert!(message.contains(why), "{handler}: {message}");
        let words = message.split(|c: char| !c.is_ascii_hexdigit());
        let id = words.max_by_key(|word| word.len()).unwrap();
        assert_eq!(id.len(), 64, "{message}");
        assert_eq!(cgroups_of(id), Vec::<PathBuf>::new(), "{handler}");
        assert_eq!(cri.pods().await.unwrap(), [], "{handler}");
    }
    node.finish().await.unwrap();
}
