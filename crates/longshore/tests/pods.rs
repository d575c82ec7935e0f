//! Pods and containers as a kubelet asks for them, on real runtimes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use api_cri::v1::{
    Capability, ContainerConfig, ContainerMetadata, ContainerState, ImageSpec, Int64Value,
    KeyValue, LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxStatusRequest, SecurityProfile,
    Signal, UpdatePodSandboxResourcesRequest, security_profile::ProfileType,
};
use serde_json::json;
use testkit::{
    Cri, Node, Pod,
    image::{ImageBuilder, LayerBuilder},
};
use tokio::task::JoinSet;
use tonic::{Code, Status};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

// === what is asked for ===

fn spaces(pid: NamespaceMode, ipc: NamespaceMode) -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: pid.into(),
        ipc: ipc.into(),
        ..NamespaceOption::default()
    }
}

fn pod_with(node: &Node, name: &str, spaces: NamespaceOption) -> PodSandboxConfig {
    let mut config = node.pod(name);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options = Some(spaces);
    config
}

fn secured(
    mut config: ContainerConfig,
    security: LinuxContainerSecurityContext,
) -> ContainerConfig {
    config.linux.get_or_insert_default().security_context = Some(security);
    config
}

/// What a script says, line by line, when it is run to its end in `pod`.
async fn said(node: &Node, cri: &Cri, pod: &Pod, config: ContainerConfig) -> Vec<String> {
    let name = config.metadata.as_ref().unwrap().name.clone();
    Box::pin(cri.run_to_end(pod, config)).await.unwrap();
    node.said(pod, &name).unwrap()
}

/// Waits until a container's log has this line.
async fn until_said(node: &Node, pod: &Pod, container: &str, line: &str) {
    for _ in 0..3000 {
        if node.said(pod, container).is_ok_and(|said| said.iter().any(|l| l == line)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{container} never said {line:?}: {:?}", node.said(pod, container));
}

fn values(said: &[String]) -> Vec<(&str, &str)> {
    said.iter().map(|line| line.split_once('=').unwrap_or((line, "?"))).collect()
}

// === namespaces ===

/// What of a process leads out of the container.
fn look_at(pid: u32) -> String {
    format!(
        "for link in root cwd; do echo $link=$(ls -A /proc/{pid}/$link/ 2>/dev/null); done
         echo write=$(touch /proc/{pid}/root/tmp/ls-seen-{pid} 2>/dev/null && echo done)
         echo fds=$(for fd in /proc/{pid}/fd/*; do busybox readlink $fd; done 2>/dev/null |
           grep -v -e ^pipe: -e ^socket: -e ^anon_inode:)
         echo environ=$(cat /proc/{pid}/environ 2>/dev/null | busybox tr '\\0' '\\n' | grep -v ^PATH=)
         echo name=$(cat /proc/{pid}/comm)"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_of_a_shared_pid_namespace_shows_nothing_of_the_host() {
    let Some(node) = Node::start("the_first_process", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let shared = spaces(NamespaceMode::Pod, NamespaceMode::Pod);
    let pod = cri.run_pod(&pod_with(&node, "shared", shared.clone())).await.unwrap();
    for (name, add) in [("plain", vec![]), ("ptrace", vec!["SYS_PTRACE".to_owned()])] {
        let security = LinuxContainerSecurityContext {
            capabilities: Some(Capability { add_capabilities: add, ..Capability::default() }),
            namespace_options: Some(shared.clone()),
            ..LinuxContainerSecurityContext::default()
        };
        let config = secured(node.sh(name, &look_at(1)), security);
        let said = said(&node, &cri, &pod, config).await;
        let want = [
            ("root", ""),
            ("cwd", ""),
            ("write", ""),
            ("fds", ""),
            ("environ", ""),
            ("name", "longshore-pod"),
        ];
        assert_eq!(values(&said), want, "{name}");
    }

    // They see each other, and the end of one is not that of the pod.
    let config = |name: &str, script: &str| {
        let namespace_options = Some(shared.clone());
        let security = LinuxContainerSecurityContext { namespace_options, ..Default::default() };
        secured(node.sh(name, script), security)
    };
    let other = cri.run(&pod, config("other", "exec sleep 54321")).await.unwrap();
    let seen = said(&node, &cri, &pod, config("looker", "ps")).await;
    assert!(seen.iter().any(|line| line.contains("sleep 54321")), "{seen:?}");
    let state = cri.status(&other).await.unwrap().state();
    assert_eq!(state, ContainerState::ContainerRunning);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_those_asked_for() {
    let Some(node) = Node::start("namespaces_are_those_asked_for", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let host = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
    let script =
        "for kind in ipc pid uts net; do echo $kind=$(busybox readlink /proc/self/ns/$kind); done";
    let look = |name: &str, spaces: &NamespaceOption, more: &str| {
        let security = LinuxContainerSecurityContext {
            namespace_options: Some(spaces.clone()),
            capabilities: Some(Capability {
                add_capabilities: vec!["SYS_PTRACE".to_owned()],
                ..Capability::default()
            }),
            // Our AppArmor profile lets nobody look at processes outside of it.
            apparmor: Some(SecurityProfile {
                profile_type: ProfileType::Unconfined.into(),
                ..SecurityProfile::default()
            }),
            ..LinuxContainerSecurityContext::default()
        };
        secured(node.sh(name, &format!("{script}\n{more}")), security)
    };
    let is_host = |said: &[String], kind: &str| {
        let own = format!("{kind}={}", host(kind).display());
        said.contains(&own)
    };

    let of_host = spaces(NamespaceMode::Node, NamespaceMode::Node);
    let pod = cri.run_pod(&pod_with(&node, "host", of_host.clone())).await.unwrap();
    // Looking at a process of the host, this one, shows that the test above can fail.
    let at_us = look_at(std::process::id());
    let seen = said(&node, &cri, &pod, look("c", &of_host, &at_us)).await;
    assert!(is_host(&seen, "ipc") && is_host(&seen, "pid"), "{seen:?}");
    assert!(is_host(&seen, "net") && is_host(&seen, "uts"), "{seen:?}");
    fs::remove_file(format!("/tmp/ls-seen-{}", std::process::id())).unwrap();
    let empty: Vec<_> = values(&seen).into_iter().filter(|(_, value)| value.is_empty()).collect();
    assert_eq!(empty, [], "all of it can be seen");

    let own = spaces(NamespaceMode::Container, NamespaceMode::Pod);
    let pod = cri.run_pod(&pod_with(&node, "own", own.clone())).await.unwrap();
    cri.run(&pod, look("first", &own, "echo all; exec sleep 1000")).await.unwrap();
    until_said(&node, &pod, "first", "all").await;
    let first = node.said(&pod, "first").unwrap();
    let second = said(&node, &cri, &pod, look("second", &own, "")).await;
    assert!(!is_host(&first, "ipc") && !is_host(&first, "pid"), "{first:?}");
    assert_eq!(first[0], second[0], "one IPC namespace");
    assert_ne!(first[1], second[1], "a PID namespace each");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_the_hosts_network_has_the_hosts_name() {
    let Some(node) = Node::start("a_pod_on_the_hosts_network", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    // A kubelet gives none.
    for (name, hostname) in [("none", ""), ("same", &*host)] {
        let config = PodSandboxConfig { hostname: hostname.to_owned(), ..node.pod(name) };
        let pod = cri.run_pod(&config).await.unwrap();
        let script = "hostname; cat /etc/hostname; echo $HOSTNAME";
        let said = said(&node, &cri, &pod, node.sh("c", script)).await;
        assert_eq!(said, [&*host; 3], "{name}");
    }
    let config = PodSandboxConfig { hostname: "another".to_owned(), ..node.pod("other") };
    let refused = cri.run_pod(&config).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let why = format!("hostname: \"another\" is not {host:?}, the name of the host");
    assert!(refused.message().contains(&why), "{refused}");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_no_descriptor_of_ours() {
    let Some(node) = Node::start("a_container_has_no_descriptor", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    // The shell's own look at the directory is over when it checks what is there.
    let script = "for fd in /proc/self/fd/*; do [ -e $fd ] && echo ${fd##*/}; done";
    for (name, tty, stdin) in [("plain", false, false), ("tty", true, true), ("in", false, true)] {
        let config = ContainerConfig { tty, stdin, ..node.sh(name, script) };
        assert_eq!(said(&node, &cri, &pod, config).await, ["0", "1", "2"], "{name}");
    }
    let id = cri.run(&pod, node.sh("sleeper", "exec sleep 1000")).await.unwrap();
    let ran = cri.exec(&id, &["/bin/sh", "-c", script]).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "0\n1\n2\n");
    node.finish().await.unwrap();
}

// === what a process gets ===

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_whom_and_where_it_was_asked_to_be() {
    let Some(node) = Node::start("a_process_is_whom", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = |value| Some(Int64Value { value });
    let who = "echo $(id -u) $(id -g) $(id -G)";

    let numbers = LinuxContainerSecurityContext {
        run_as_user: id(1000),
        run_as_group: id(2000),
        supplemental_groups: vec![3000, 4000],
        ..LinuxContainerSecurityContext::default()
    };
    let got = said(&node, &cri, &pod, secured(node.sh("numbers", who), numbers)).await;
    assert_eq!(got, ["1000 2000 2000 3000 4000"]);
    let named = LinuxContainerSecurityContext {
        run_as_username: "www-data".to_owned(),
        ..LinuxContainerSecurityContext::default()
    };
    assert_eq!(said(&node, &cri, &pod, secured(node.sh("named", who), named)).await, ["33 33 33"]);

    let (key, value) = ("GREETING".to_owned(), "hello you".into());
    let env = ContainerConfig {
        envs: vec![KeyValue { key, value }],
        working_dir: "/var".to_owned(),
        ..node.sh("env", "echo $GREETING; pwd; echo $HOSTNAME; echo $PATH")
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(said(&node, &cri, &pod, env).await, ["hello you", "/var", &host, path]);

    let tty = ContainerConfig { tty: true, ..node.sh("tty", "busybox tty; echo two >&2") };
    assert_eq!(said(&node, &cri, &pod, tty).await, ["/dev/pts/0", "two"]);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_masked_or_read_only_is_so() {
    let Some(node) = Node::start("what_is_masked", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let script = "
        echo file=$(cat /etc/passwd); echo dir=$(ls -A /bin/)
        echo group=$(head -n 1 /etc/group)
        for file in /x /tmp/x /etc/x; do touch $file 2>/dev/null && echo $file=; done
        [ -w /dev/null ] && echo end=";
    let plain = said(&node, &cri, &pod, node.sh("plain", script)).await;
    let keys = |said: &[String]| values(said).into_iter().map(|(key, _)| key.to_owned()).collect();
    let got: Vec<String> = keys(&plain);
    assert_eq!(got, ["file", "dir", "group", "/x", "/tmp/x", "/etc/x", "end"], "{plain:?}");
    assert!(plain[0].contains("root:x:0") && plain[1].contains("busybox"), "{plain:?}");

    let security = LinuxContainerSecurityContext {
        readonly_rootfs: true,
        masked_paths: vec!["/etc/passwd".to_owned(), "/no/such/path".to_owned()],
        ..LinuxContainerSecurityContext::default()
    };
    let got = said(&node, &cri, &pod, secured(node.sh("sealed", script), security)).await;
    let values: Vec<_> = values(&got).into_iter().filter(|(key, _)| *key != "dir").collect();
    assert_eq!(values, [("file", ""), ("group", "root:x:0:"), ("end", "")]);

    let security = LinuxContainerSecurityContext {
        masked_paths: vec!["/root".to_owned()],
        readonly_paths: vec!["/etc".to_owned()],
        ..LinuxContainerSecurityContext::default()
    };
    let got = said(&node, &cri, &pod, secured(node.sh("partly", script), security)).await;
    let got: Vec<String> = keys(&got);
    assert_eq!(got, ["file", "dir", "group", "/x", "/tmp/x", "end"]);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_takes_too_much_memory_is_oom_killed() {
    let Some(node) = Node::start("a_container_that_takes_too_much", LONGSHORE).await else {
        return;
    };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let limited = |name: &str, script: &str| {
        let resources = LinuxContainerResources {
            memory_limit_in_bytes: 32 << 20,
            memory_swap_limit_in_bytes: 32 << 20,
            ..LinuxContainerResources::default()
        };
        let linux = LinuxContainerConfig { resources: Some(resources), security_context: None };
        ContainerConfig { linux: Some(linux), ..node.sh(name, script) }
    };
    // tail keeps all of an endless line.
    let status = cri.run_to_end(&pod, limited("greedy", "exec tail /dev/zero")).await.unwrap();
    assert_eq!((status.reason.as_str(), status.exit_code), ("OOMKilled", 137));
    let status = cri.run_to_end(&pod, limited("modest", "exit 7")).await.unwrap();
    assert_eq!((status.reason.as_str(), status.exit_code), ("Error", 7));
    // Killed by somebody, but not by its memory.
    let status = cri.run_to_end(&pod, limited("killed", "kill -9 $$")).await.unwrap();
    assert_ne!(status.reason, "OOMKilled");
    node.finish().await.unwrap();
}

// === stopping ===

const IGNORES: &str = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done";

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_polite_first() {
    let Some(node) = Node::start("a_stop_is_polite_first", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let loops = "while :; do sleep 0.05; done";

    let traps = format!("trap 'echo bye; exit 3' USR1; trap 'exit 4' TERM; echo ready; {loops}");
    let config =
        ContainerConfig { stop_signal: Signal::Sigusr1.into(), ..node.sh("own-signal", &traps) };
    let id = cri.run(&pod, config).await.unwrap();
    until_said(&node, &pod, "own-signal", "ready").await;
    assert_eq!(cri.status(&id).await.unwrap().stop_signal(), Signal::Sigusr1);
    cri.stop(&id, 60).await.unwrap();
    let status = cri.status(&id).await.unwrap();
    assert_eq!((status.exit_code, status.state()), (3, ContainerState::ContainerExited));
    assert_eq!(node.said(&pod, "own-signal").unwrap(), ["ready", "bye"]);
    cri.stop(&id, 0).await.expect("to stop what has ended is done");

    let id = cri.run(&pod, node.sh("default", &traps)).await.unwrap();
    until_said(&node, &pod, "default", "ready").await;
    cri.stop(&id, 60).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap().exit_code, 4);

    let id = cri.run(&pod, node.sh("stubborn", IGNORES)).await.unwrap();
    until_said(&node, &pod, "stubborn", "ready").await;
    cri.stop(&id, 1).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap().exit_code, 137);
    assert_eq!(node.said(&pod, "stubborn").unwrap(), ["ready", "term"], "asked before killed");
    node.finish().await.unwrap();
}

/// A program whose first act is the handler.
const CATCHES: &str = "
#include <signal.h>
#include <unistd.h>
static void on(int signal) { _exit(42); }
int main(void) {
    signal(SIGTERM, on);
    for (;;) pause();
}
";

/// An OCI runtime that always does what others do now and then: its `start` ends before the
/// container's process has executed its program.
const EARLY: &str = "#!/bin/sh
for word in \"$@\"; do
    if [ \"$word\" = start ]; then (sleep 0.1; runc \"$@\") & exit 0; fi
done
exec runc \"$@\"
";

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_right_after_a_start_reaches_the_program() {
    let name = "a_stop_right_after_a_start_reaches_the_program";
    for program in ["cc", "runc"] {
        if std::process::Command::new(program).arg("--version").output().is_err() {
            return testkit::skip(name, &format!("{program} is not installed"));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let early = dir.path().join("early");
    testkit::program(&early, EARLY);
    let handler = format!("early={}", early.display());
    let with_handler = |daemon: &mut std::process::Command| {
        daemon.args(["--handler", &handler]);
    };
    let node = Node::start_with(name, LONGSHORE, with_handler).await;
    let Some(node) = node else { return };
    let layer = LayerBuilder::default().file("catch", 0o755, &testkit::compiled(CATCHES).unwrap());
    let image = ImageBuilder::default().layer(layer.build()).build();
    node.registry.push("catch", "1", &image);
    let image = format!("{}/catch:1", node.registry.host());
    let cri = node.cri().await.unwrap();
    cri.pull(&image).await.unwrap();
    let pod = cri.run_pod_with("early", &node.pod("p")).await.unwrap();
    let (rounds, mut lost) = (testkit::rounds(10), 0);
    for round in 0..rounds {
        let mut config = node.sh(&format!("c{round}"), "");
        config.image = Some(ImageSpec { image: image.clone(), ..ImageSpec::default() });
        config.command = vec!["/catch".to_owned()];
        let id = cri.run(&pod, config).await.unwrap();
        cri.stop(&id, 1).await.unwrap();
        // Killed at the end of its grace, or while it was still a copy of the OCI runtime.
        lost += u32::from(cri.status(&id).await.unwrap().exit_code != 42);
        cri.remove(&id).await.unwrap();
    }
    // Between its first instruction and its handler a program may be kept waiting on a busy machine.
    assert!(lost <= rounds / 10, "{lost} of {rounds} signals were lost");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_gives_up_within_the_grace_kills_nobody() {
    let Some(node) = Node::start("a_caller_that_gives_up", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", IGNORES)).await.unwrap();
    until_said(&node, &pod, "c", "ready").await;
    let grace = 1;
    {
        let mut stop = std::pin::pin!(cri.stop(&id, grace));
        tokio::select! {
            done = &mut stop => panic!("{done:?}"),
            () = until_said(&node, &pod, "c", "term") => {}
        }
    }
    // What is not to happen would happen by then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerRunning);
    cri.stop(&id, grace).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap().exit_code, 137);
    let terms = node.said(&pod, "c").unwrap().iter().filter(|line| *line == "term").count();
    assert_eq!(terms, 1, "the signal is sent once in a life");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_is_being_stopped_others_are_made_used_and_stopped() {
    let Some(node) = Node::start("while_one_is_being_stopped", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let slow = cri.run(&pod, node.sh("slow", IGNORES)).await.unwrap();
    until_said(&node, &pod, "slow", "ready").await;
    let mut stopping = JoinSet::new();
    let (stopper, id) = (cri.clone(), slow.clone());
    // Far longer than this test is ready to wait for.
    stopping.spawn(async move { stopper.stop(&id, 3600).await });
    until_said(&node, &pod, "slow", "term").await;

    let other = cri.run(&pod, node.sh("other", "exec sleep 1000")).await.unwrap();
    assert_eq!(&cri.exec(&other, &["echo", "hi"]).await.unwrap().stdout[..], b"hi\n");
    assert_eq!(&cri.exec(&slow, &["echo", "ho"]).await.unwrap().stdout[..], b"ho\n");
    cri.stop(&other, 0).await.unwrap();
    cri.remove(&other).await.unwrap();
    assert!(stopping.try_join_next().is_none(), "all that was during the stop");
    assert_eq!(cri.status(&slow).await.unwrap().state(), ContainerState::ContainerRunning);
    cri.stop(&slow, 0).await.unwrap();
    stopping.join_next().await.unwrap().unwrap().unwrap();
    node.finish().await.unwrap();
}

// === names, retries, removal ===

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_name_in_flight_get_one_answer() {
    const ASKS: usize = 8;
    let Some(node) = Node::start("requests_of_one_name", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let config = node.pod("p");
    let mut asking = JoinSet::new();
    for _ in 0..ASKS {
        let (cri, config) = (cri.clone(), config.clone());
        asking.spawn(async move { cri.run_pod(&config).await.map(|pod| pod.id) });
    }
    let pod = Pod { id: one_answer(asking.join_all().await), config };
    assert_eq!(cri.pods().await.unwrap().len(), 1);

    let mut asking = JoinSet::new();
    for attempt in 0..ASKS {
        // As a kubelet's: the retry differs in a path.
        let mut config = node.sh("c", "exec sleep 1000");
        config.annotations.insert("retry".to_owned(), attempt.to_string());
        let (cri, pod) = (cri.clone(), pod.clone());
        asking.spawn(async move { cri.create(&pod, config).await });
    }
    let id = one_answer(asking.join_all().await);
    assert_eq!(cri.containers().await.unwrap().len(), 1);
    cri.start(&id).await.unwrap();
    node.finish().await.unwrap();
}

/// Those that came while it was being made have its id; those that came too late were told.
#[track_caller]
fn one_answer(answers: Vec<Result<String, Status>>) -> String {
    let (good, late): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert!(good.len() > 1, "nobody joined: {late:?}");
    let ids: BTreeSet<_> = good.into_iter().map(Result::unwrap).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    for status in late.into_iter().map(Result::unwrap_err) {
        assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    }
    ids.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_free_for_the_next_attempt_and_after_removal() {
    let Some(node) = Node::start("a_name_is_free", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let attempt = |attempt| ContainerConfig {
        metadata: Some(ContainerMetadata { name: "c".to_owned(), attempt }),
        ..node.sh("c", "exit 1")
    };
    let first = cri.run(&pod, attempt(0)).await.unwrap();
    cri.exited(&first).await.unwrap();
    let taken = cri.create(&pod, attempt(0)).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
    assert!(taken.message().contains(&first), "{taken}");
    let second = cri.run(&pod, attempt(1)).await.unwrap();
    cri.exited(&second).await.unwrap();
    assert_ne!(first, second);
    cri.remove(&first).await.unwrap();
    cri.remove(&first).await.expect("to remove what is gone is done");
    let again = cri.create(&pod, attempt(0)).await.unwrap();
    assert_ne!(again, first);

    let taken = cri.run_pod(&node.pod("p")).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
    cri.remove_pod(&pod.id).await.unwrap();
    let next = cri.run_pod(&node.pod("p")).await.unwrap();
    assert_ne!(next.id, pod.id);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_just_ending_can_be_removed() {
    let Some(node) = Node::start("what_is_just_ending", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    // From "has not begun" to "has ended": the removal meets every moment.
    let mut removing = JoinSet::new();
    for number in 0..testkit::rounds(12) {
        let (cri, pod) = (cri.clone(), pod.clone());
        let config = node.sh(&format!("c{number}"), "exit 0");
        removing.spawn(async move {
            let id = cri.run(&pod, config).await.unwrap();
            tokio::time::sleep(Duration::from_millis(u64::from(number % 12))).await;
            cri.remove(&id).await.unwrap_or_else(|e| panic!("c{number}: {e}"));
            let gone = cri.status(&id).await.unwrap_err();
            assert_eq!(gone.code(), Code::NotFound, "{gone}");
        });
        if removing.len() == 4 {
            removing.join_next().await.unwrap().unwrap();
        }
    }
    removing.join_all().await;
    assert_eq!(cri.containers().await.unwrap(), []);
    let running = cri.run(&pod, node.sh("runs", "exec sleep 1000")).await.unwrap();
    cri.remove(&running).await.expect("one that runs is killed first");
    node.finish().await.unwrap();
}

// === the cgroup of a pod ===

#[tokio::test(flavor = "multi_thread")]
async fn a_cgroup_nobody_gave_goes_with_its_pod() {
    let Some(node) = Node::start("a_cgroup_nobody_gave", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let mut config = node.pod("orphan");
    config.linux.as_mut().unwrap().cgroup_parent = String::new();
    let pod = cri.run_pod(&config).await.unwrap();
    cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    assert_ne!(groups_named(&pod.id), [] as [PathBuf; 0], "it has one while it runs");
    cri.stop_pod(&pod.id).await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();
    assert_eq!(groups_named(&pod.id), [] as [PathBuf; 0]);
    node.finish().await.unwrap();
}

/// Wherever cgroups are mounted: below the root with v2, one level deeper with v1.
fn groups_named(pod: &str) -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let below = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let names = [format!("longshore/{pod}"), format!("longshore.slice/longshore-{pod}.slice")];
    let mounts: Vec<_> = below.chain([root.clone()]).collect();
    let groups = mounts.iter().flat_map(|mount| names.iter().map(|name| mount.join(name)));
    groups.filter(|group| group.exists()).collect()
}

// === limits of a pod ===

/// The kubelet owns the pod's cgroup. It calls before it writes there itself, takes an error for a
/// rejected resize, and calls again with the old values if its own write fails.
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_pod_are_recorded_and_its_cgroup_is_left_alone() {
    let Some(mut node) = Node::start("limits_of_a_pod", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let config = node.pod("limits");
    let pod = cri.run_pod(&config).await.unwrap();
    cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let limits = |shares: i64, quota: i64, memory: i64| LinuxContainerResources {
        cpu_shares: shares,
        cpu_quota: quota,
        cpu_period: 100_000,
        memory_limit_in_bytes: memory,
        ..Default::default()
    };
    let update = async |cri: &Cri, id: &str, overhead, resources| {
        let pod_sandbox_id = id.to_owned();
        let asked = UpdatePodSandboxResourcesRequest { pod_sandbox_id, overhead, resources };
        cri.runtime().update_pod_sandbox_resources(asked).await.map(drop)
    };
    let cgroups = node.cgroups.clone();
    let files = || {
        let memory = ("memory", "memory.limit_in_bytes");
        [
            cgroups.pod_file(&pod, memory, "memory.max"),
            cgroups.pod_file(&pod, ("cpu", "cpu.shares"), "cpu.weight"),
            cgroups.pod_file(&pod, ("cpu", "cpu.cfs_quota_us"), "cpu.max"),
        ]
    };
    let before = files();
    assert!(before.iter().any(Option::is_some), "{before:?}");
    let overhead = Some(limits(100, 1000, 1 << 20));
    let old = Some(limits(900, 50_000, 255 << 20));
    update(&cri, &pod.id, overhead.clone(), old.clone()).await.unwrap();
    // Less than the pod has in use, and less than any kernel takes: not ours to judge.
    update(&cri, &pod.id, None, Some(limits(2, 1, 4096))).await.unwrap();
    update(&cri, &pod.id, overhead.clone(), old).await.unwrap();
    // The kubelet takes the overhead off what has no limit, too.
    update(&cri, &pod.id, overhead, Some(limits(700, -1001, -4097))).await.unwrap();
    assert_eq!(files(), before);

    let missing = update(&cri, &"f".repeat(64), None, None).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let bad = update(&cri, &pod.id, Some(limits(-1, 0, 0)), None).await.unwrap_err();
    assert_eq!(
        (bad.code(), bad.message()),
        (Code::InvalidArgument, "overhead.cpu_shares: -1 is out of range")
    );

    node.daemon.kill().unwrap();
    node.daemon.start_again().await.unwrap();
    let cri = node.cri().await.unwrap();
    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true };
    let status = cri.runtime().pod_sandbox_status(request).await.unwrap().into_inner();
    let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
    let told = &info["resources"];
    assert_eq!((&told["cpu_shares"], &told["memory_limit"]), (&json!(700), &json!(-1)), "{info}");
    assert_eq!(told["cpu_quota"], -1, "{info}");
    assert_eq!(info["overhead"]["cpu_shares"], 100, "{info}");
    node.finish().await.unwrap();
}
