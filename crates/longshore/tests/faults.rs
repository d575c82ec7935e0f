//! What goes wrong is said at the call, leaves nothing, and the retry works.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use api_cri::v1::{
    ContainerConfig, ContainerMetadata, ContainerState, Device, LinuxContainerConfig,
    LinuxContainerSecurityContext, Mount, PodSandboxState,
};
use rustix::process::Signal;
use testkit::{
    Node, Pod,
    image::{ImageBuilder, LayerBuilder},
};
use tokio::task::JoinSet;
use tonic::{Code, Status};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &[&str]) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    for word in words {
        assert!(status.message().contains(word), "{:?} lacks {word:?}", status.message());
    }
}

/// The same container as its next attempt.
fn again(config: &ContainerConfig) -> ContainerConfig {
    let mut config = config.clone();
    let metadata = config.metadata.get_or_insert_with(ContainerMetadata::default);
    metadata.attempt += 1;
    config
}

// === bad requests ===

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_named_and_nothing_is_made() {
    let Some(node) = Node::start("what_does_not_exist_is_named", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let handler = cri.run_pod_with("no-such", &node.pod("p")).await;
    refused(handler, Code::InvalidArgument, &["no-such"]);
    assert!(node.left().is_empty(), "{:?}", node.left());

    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let good = node.sh("c", "echo fine");
    let mut image = good.clone();
    image.image.as_mut().unwrap().image = "localhost/no/such:1".to_owned();
    refused(cri.create(&pod, image).await, Code::NotFound, &["localhost/no/such:1"]);

    let device = Device {
        host_path: "/dev/no-such".to_owned(),
        container_path: "/dev/x".to_owned(),
        permissions: "rw".to_owned(),
    };
    let with_device = ContainerConfig { devices: vec![device], ..good.clone() };
    let status = cri.create(&pod, with_device).await.unwrap_err();
    assert!(status.message().contains("/dev/no-such"), "{status}");

    let mount = |host_path: &str| Mount {
        host_path: host_path.to_owned(),
        container_path: "/mnt".to_owned(),
        ..Mount::default()
    };
    let with_mount =
        |host_path: &str| ContainerConfig { mounts: vec![mount(host_path)], ..good.clone() };
    // A file is in the way of what would be made.
    let status = cri.create(&pod, with_mount("/proc/version/x")).await.unwrap_err();
    assert!(status.message().contains("/proc/version/x"), "{status}");

    let user = LinuxContainerConfig {
        security_context: Some(LinuxContainerSecurityContext {
            run_as_username: "nobody-knows".to_owned(),
            ..LinuxContainerSecurityContext::default()
        }),
        ..LinuxContainerConfig::default()
    };
    let with_user = ContainerConfig { linux: Some(user), ..good.clone() };
    let status = cri.create(&pod, with_user).await.unwrap_err();
    assert!(status.message().contains("nobody-knows"), "{status}");

    // None of these took the name.
    assert_eq!(cri.containers().await.unwrap(), []);
    cri.run_to_end(&pod, good.clone()).await.unwrap();
    assert_eq!(node.said(&pod, "c").unwrap(), ["fine"]);
    // A source that is not there is made, as the kubelet expects.
    let made = node.daemon.home().join("made/by/mount");
    let config = again(&with_mount(made.to_str().unwrap()));
    assert_eq!(cri.run_to_end(&pod, config).await.unwrap().exit_code, 0);
    assert!(made.is_dir());
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_there_is_a_start_error() {
    let Some(node) = Node::start("a_command_that_is_not_there", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let absent =
        ContainerConfig { command: vec!["/no/such/command".to_owned()], ..node.sh("c", "") };
    let id = cri.create(&pod, absent).await.unwrap();
    let status = cri.start(&id).await.unwrap_err();
    assert!(status.message().contains("/no/such/command"), "{status}");
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    assert!(status.message.contains("/no/such/command"), "{}", status.message);
    refused(cri.start(&id).await, Code::FailedPrecondition, &["exited"]);
    cri.remove(&id).await.unwrap();

    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let status = cri.exec(&id, &["/no/such/command"]).await;
    let told = match status {
        Ok(ran) => format!("{} {}", ran.exit_code, String::from_utf8_lossy(&ran.stderr)),
        Err(status) => status.message().to_owned(),
    };
    assert!(told.contains("/no/such/command"), "{told}");
    assert_eq!(cri.exec(&id, &["/bin/sh", "-c", "exit 9"]).await.unwrap().exit_code, 9);
    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerRunning);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_users_has_numbers_only() {
    let Some(node) = Node::start("an_image_without_users", LONGSHORE).await else { return };
    let busybox = fs::read("/bin/busybox").unwrap();
    let layer = LayerBuilder::default()
        .dir("bin", 0o755)
        .file("bin/busybox", 0o755, &busybox)
        .symlink("bin/sh", "busybox");
    node.registry.push("test/bare", "1", &ImageBuilder::default().layer(layer.build()).build());
    let image = format!("{}/test/bare:1", node.registry.host());
    let cri = node.cri().await.unwrap();
    cri.pull(&image).await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let config = |name: &str, security: LinuxContainerSecurityContext| {
        let mut config = node.sh(name, "busybox id -u");
        config.image.as_mut().unwrap().image.clone_from(&image);
        config.linux.get_or_insert_default().security_context = Some(security);
        config
    };
    let named = LinuxContainerSecurityContext {
        run_as_username: "www-data".to_owned(),
        ..LinuxContainerSecurityContext::default()
    };
    let status = cri.create(&pod, config("c", named)).await.unwrap_err();
    assert!(status.message().contains("www-data"), "{status}");
    let numbered = LinuxContainerSecurityContext {
        run_as_user: Some(api_cri::v1::Int64Value { value: 77 }),
        ..LinuxContainerSecurityContext::default()
    };
    assert_eq!(cri.run_to_end(&pod, config("c", numbered)).await.unwrap().exit_code, 0);
    assert_eq!(node.said(&pod, "c").unwrap(), ["77"]);
    node.finish().await.unwrap();
}

// === runtimes ===

/// runc, except that it does what it is told to whenever it is to create a container.
struct OddRuntime {
    dir: tempfile::TempDir,
}

impl OddRuntime {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("odd-").tempdir().unwrap();
        let script = r#"#!/bin/sh
            mode=$(cat "${0%/*}/mode" 2>/dev/null)
            log=/dev/null
            previous=
            for arg in "$@"; do
              [ "$previous" = --log ] && log=$arg
              [ "$arg" = create ] && command=create
              previous=$arg
            done
            [ "$command" = create ] || exec runc "$@"
            case $mode in
              fail) echo '{"level":"error","msg":"the moon is full"}' > $log; exit 1;;
              garbage) head -c 3000 /dev/urandom | tee $log; exit 0;;
              late) runc "$@"; exit 1;;
              hang) exec sleep 98765;;
              *) exec runc "$@";;
            esac"#;
        let binary = dir.path().join("runc");
        testkit::program(&binary, script);
        Self { dir }
    }

    async fn node(&self, test: &str) -> Option<Node> {
        let handler = format!("odd={}", self.dir.path().join("runc").display());
        Node::start_with(test, LONGSHORE, |command| {
            command.args(["--handler", &handler]);
        })
        .await
    }

    fn behave(&self, mode: &str) {
        fs::write(self.dir.path().join("mode"), mode).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_fails_is_quoted_and_the_next_attempt_works() {
    let odd = OddRuntime::new();
    let Some(node) = odd.node("a_runtime_that_fails_is_quoted").await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let mut config = node.sh("c", "echo ran");
    for (mode, words) in [("fail", "the moon is full"), ("garbage", ""), ("late", "create")] {
        odd.behave(mode);
        let id = cri.create(&pod, config.clone()).await.unwrap();
        let status = cri.start(&id).await.unwrap_err();
        assert!(status.message().contains(words), "{mode}: {status}");
        let status = cri.status(&id).await.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerExited, "{mode}");
        assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{mode}");
        let state = node.daemon.state().join("oci/odd").join(&id);
        assert!(!state.exists(), "{mode}: the runtime forgot it");

        odd.behave("well");
        config = again(&config);
        let next = cri.run(&pod, config.clone()).await.unwrap();
        assert_eq!(cri.exited(&next).await.unwrap().exit_code, 0, "{mode}");
        config = again(&config);
        cri.remove(&id).await.unwrap();
    }
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_hangs_holds_up_neither_others_nor_the_end_of_its_pod() {
    let odd = OddRuntime::new();
    let Some(mut node) = odd.node("a_runtime_that_hangs").await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let other = cri.run(&pod, node.sh("other", "exec sleep 1000")).await.unwrap();
    let id = cri.create(&pod, node.sh("c", "echo never")).await.unwrap();
    odd.behave("hang");
    let hangs = tokio::time::timeout(Duration::from_secs(2), cri.start(&id)).await;
    assert!(hangs.is_err(), "{hangs:?}");
    odd.behave("well");
    node.note_processes();
    let hanging = |node: &Node| node.processes().iter().any(|p| p.command == "sleep 98765");
    assert!(hanging(&node), "the caller went away, the work goes on");

    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerCreated);
    assert_eq!(cri.exec(&other, &["true"]).await.unwrap().exit_code, 0);
    cri.stop(&other, 0).await.unwrap();
    let next = cri.run(&pod, node.sh("next", "echo fine")).await.unwrap();
    cri.exited(&next).await.unwrap();

    cri.stop_pod(&pod.id).await.unwrap();
    assert!(!hanging(&node), "ended with its pod");
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    node.finish().await.unwrap();
}

// === shims ===

async fn not_ready(node: &Node, pod: &Pod) {
    let cri = node.cri().await.unwrap();
    for _ in 0..1500 {
        let status = cri.pod_status(&pod.id).await.unwrap().status.unwrap();
        if status.state() == PodSandboxState::SandboxNotready {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the pod is ready without its shim: {}", node.daemon.stderr());
}

/// After the death of its shim: what ran was ended, and what ended before is remembered.
async fn check_shim_lost(node: &Node, pod: &Pod, ran: &str, ended: &str) {
    let cri = node.cri().await.unwrap();
    not_ready(node, pod).await;
    let status = cri.exited(ran).await.unwrap();
    let told = (status.exit_code, status.reason.as_str());
    // The kernel tells the code from Linux 6.15 on.
    assert!([(255, "ShimLost"), (137, "Error")].contains(&told), "{told:?}");
    assert_eq!(cri.status(ended).await.unwrap().exit_code, 5);
    refused(cri.create(pod, node.sh("more", "")).await, Code::FailedPrecondition, &["lost"]);
    refused(cri.exec(ran, &["true"]).await, Code::FailedPrecondition, &["exited"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_a_shim_is_noticed_told_and_cleaned() {
    let Some(mut node) = Node::start("the_death_of_a_shim", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let mut config = node.pod("p");
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options.as_mut().unwrap().pid = api_cri::v1::NamespaceMode::Pod.into();
    for round in ["alive", "down"] {
        let pod = cri_of(&node).await.run_pod(&config).await.unwrap();
        let cri = cri_of(&node).await;
        let ended = cri.run(&pod, node.sh("ended", "exit 5")).await.unwrap();
        cri.exited(&ended).await.unwrap();
        let ran = cri.run(&pod, node.sh("ran", "sleep 1000 & sleep 1000")).await.unwrap();
        node.note_processes();
        let shim = node.shim(&pod).unwrap();
        if round == "down" {
            node.daemon.kill().unwrap();
        }
        shim.signal(Signal::KILL);
        if round == "down" {
            node.daemon.start_again().await.unwrap();
        } else {
            node.daemon.logged("the pod's shim died").await.unwrap();
        }
        check_shim_lost(&node, &pod, &ran, &ended).await;
        cri_of(&node).await.remove_pod(&pod.id).await.unwrap();
        node.settled().await.unwrap();
    }
    drop(cri);
    node.finish().await.unwrap();
}

async fn cri_of(node: &Node) -> testkit::Cri {
    node.cri().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_does_not_answer_times_out_and_recovers() {
    let Some(mut node) = Node::start("a_shim_that_does_not_answer", LONGSHORE).await else {
        return;
    };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let shim = node.shim(&pod).unwrap();
    shim.signal(Signal::STOP);
    let doomed = cri.run_pod(&node.pod("doomed")).await.unwrap();
    let ran = cri.run(&doomed, node.sh("c", "exec sleep 1000")).await.unwrap();
    node.note_processes();
    node.shim(&doomed).unwrap().signal(Signal::STOP);

    // Reads wait for nobody.
    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerRunning);
    let ready = cri.pod_status(&pod.id).await.unwrap().status.unwrap().state();
    assert_eq!(ready, PodSandboxState::SandboxReady);
    let (exec, log, stopped) =
        tokio::join!(cri.exec(&id, &["true"]), cri.reopen_log(&id), cri.stop_pod(&doomed.id));
    refused(exec, Code::DeadlineExceeded, &["no answer within"]);
    refused(log, Code::DeadlineExceeded, &["no answer within"]);
    // A pod ends without its shim's consent.
    stopped.unwrap();
    let status = cri.status(&ran).await.unwrap();
    let told = (status.exit_code, status.reason.as_str());
    assert!([(255, "ShimLost"), (137, "Error")].contains(&told), "{status:?}");

    shim.signal(Signal::CONT);
    assert_eq!(cri.exec(&id, &["true"]).await.unwrap().exit_code, 0);
    cri.stop(&id, 0).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap().exit_code, 137);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_does_not_answer_a_new_daemon_is_taken_over_later() {
    let Some(mut node) = Node::start("a_shim_taken_over_later", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let shim = node.shim(&pod).unwrap();
    shim.signal(Signal::STOP);
    node.daemon.kill().unwrap();
    node.daemon.start_again().await.unwrap();
    let cri = node.cri().await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerUnknown);
    shim.signal(Signal::CONT);
    for _ in 0..1500 {
        if cri.status(&id).await.unwrap().state() == ContainerState::ContainerRunning {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(cri.exec(&id, &["echo", "back"]).await.unwrap().exit_code, 0);
    cri.stop(&id, 0).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap().exit_code, 137);
    node.finish().await.unwrap();
}

// === a full disk ===

/// Takes all room that is left; dropping it gives it back.
struct Filler(PathBuf);

impl Filler {
    fn fill(dir: &Path) -> Self {
        let path = dir.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        let block = [0; 4096];
        let full = loop {
            if let Err(error) = file.write_all(&block) {
                break error;
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
        Self(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_the_retry_works_when_there_is_room() {
    const DISK: u64 = 48 << 20;
    let test = "a_full_disk_is_said";
    let Some(node) = Node::start_on_disk_of(test, LONGSHORE, DISK).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let config = node.sh("c", "echo written > /file && cat /file");
    cri.run_to_end(&pod, config.clone()).await.unwrap();
    let config = again(&config);
    let created = cri.create(&pod, node.sh("created", "echo > /file")).await.unwrap();
    let runs = cri.run(&pod, node.sh("runs", "exec sleep 1000")).await.unwrap();
    let before = node.left();

    let filler = Filler::fill(&node.daemon.root());
    // Twice: what failed must not be in the way of what fails next.
    for _ in 0..2 {
        refused(cri.run_pod(&node.pod("q")).await, Code::ResourceExhausted, &["run-pod"]);
        refused(
            cri.create(&pod, config.clone()).await,
            Code::ResourceExhausted,
            &["create-container"],
        );
    }
    let status = cri.start(&created).await.unwrap_err();
    assert!(status.message().to_lowercase().contains("no space left"), "{status}");
    // Before anything ends: a process that does has another command line.
    let mut left = node.left();
    // The shell may have been about to run it when `before` was made.
    left.retain(|thing| !before.contains(thing) && !thing.contains("sleep 1000"));
    assert!(left.is_empty(), "all of it undone: {left:?}");
    let mut stopping = JoinSet::new();
    let stopper = cri.clone();
    let stopped = runs.clone();
    stopping.spawn(async move { stopper.stop(&stopped, 0).await });
    assert_eq!(cri.pods().await.unwrap().len(), 1, "reads go on");
    drop(filler);

    // An exit that could not be recorded is recorded now.
    stopping.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(cri.status(&runs).await.unwrap().exit_code, 137);
    cri.run_pod(&node.pod("q")).await.unwrap();
    let status = cri.run_to_end(&pod, config).await.unwrap();
    assert_eq!(status.exit_code, 0);
    if cri.status(&created).await.unwrap().state() == ContainerState::ContainerCreated {
        cri.start(&created).await.unwrap();
        assert_eq!(cri.exited(&created).await.unwrap().exit_code, 0);
    }
    node.finish().await.unwrap();
}

// === the death of a shim ===

/// Nobody knows of the death yet, or it is being cleaned up: the call waits for that.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_shim_ran_is_stopped_and_removed_at_the_first_call() {
    let Some(mut node) = Node::start("what_a_killed_shim_ran", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    for round in 0..5_u64 {
        let pod = cri.run_pod(&node.pod(&format!("p{round}"))).await.unwrap();
        let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
        let ended = cri.run(&pod, node.sh("ended", "exit 3")).await.unwrap();
        assert_eq!(cri.exited(&ended).await.unwrap().exit_code, 3);
        node.note_processes();
        node.shim(&pod).unwrap().signal(Signal::KILL);
        // From before the daemon hears of it to the midst of the cleaning.
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        let (removed, stopped) = tokio::join!(cri.remove(&ended), cri.stop(&id, 20));
        removed.unwrap_or_else(|error| panic!("{round}: remove: {error}"));
        stopped.unwrap_or_else(|error| panic!("{round}: stop: {error}"));
        let status = cri.status(&id).await.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerExited, "{round}");
        match round % 3 {
            0 => cri.remove(&id).await.unwrap(),
            1 => cri.stop_pod(&pod.id).await.unwrap(),
            _ => cri.remove_pod(&pod.id).await.unwrap(),
        }
    }
    let pod = cri.run_pod(&node.pod("removed")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    node.note_processes();
    node.shim(&pod).unwrap().signal(Signal::KILL);
    cri.remove(&id).await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();
    node.finish().await.unwrap();
}
