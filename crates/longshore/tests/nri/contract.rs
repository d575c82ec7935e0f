//! What every runtime with NRI promises its plugins: order, visibility, undo, no losses.

use std::{sync::Arc, time::Duration};

use api_cri::v1::ContainerState;
use nri_sdk::api::{Hook, Hooks};
use testkit::Node;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tonic::Code;

use crate::{
    LONGSHORE,
    probe::{connect, connect_with, script, until},
};

const LIFE: [&str; 6] = [
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "RemoveContainer",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_life_is_told_in_order_with_all_there_is_to_know() {
    let Some(node) = Node::start("a_life_is_told_in_order", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let mut config = node.pod("p");
    config.labels.insert("l".into(), "1".into());
    config.annotations.insert("a".into(), "2".into());
    let pod = cri.run_pod(&config).await.unwrap();
    let mut asked = node.sh("c", "exec sleep 1000");
    asked.labels.insert("cl".into(), "3".into());
    asked.annotations.insert("ca".into(), "4".into());
    asked.envs.push(api_cri::v1::KeyValue { key: "E".into(), value: "5".into() });
    let id = cri.run(&pod, asked).await.unwrap();
    cri.stop(&id, 0).await.unwrap();
    cri.remove(&id).await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();
    probe.heard("RemovePodSandbox", &pod.id).await;
    assert_eq!(probe.events(&id), LIFE);
    let life = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    assert_eq!(probe.events(&pod.id), life);
    let order: Vec<_> = probe.told().iter().map(|told| told.event).collect();
    assert_eq!(order.first(), Some(&"RunPodSandbox"));
    assert_eq!(order[order.len() - 2..], ["StopPodSandbox", "RemovePodSandbox"]);

    let of_pod = probe.heard("RunPodSandbox", &pod.id).await.pod;
    assert_eq!((of_pod.name.as_str(), of_pod.namespace.as_str()), ("p", "test"));
    assert_eq!(of_pod.uid, "uid-p");
    assert_eq!((of_pod.labels["l"].as_str(), of_pod.annotations["a"].as_str()), ("1", "2"));
    let linux = of_pod.linux.unwrap();
    assert_eq!(linux.cgroup_parent, config.linux.as_ref().unwrap().cgroup_parent);
    assert!(linux.namespaces.iter().any(|ns| ns.r#type == "ipc" && !ns.path.is_empty()));

    let created = probe.heard("CreateContainer", &id).await.container;
    assert_eq!((created.name.as_str(), created.pod_sandbox_id.as_str()), ("c", &*pod.id));
    assert_eq!((created.labels["cl"].as_str(), created.annotations["ca"].as_str()), ("3", "4"));
    assert_eq!(created.args, ["/bin/sh", "-c", "exec sleep 1000"]);
    assert!(created.env.contains(&"E=5".to_owned()), "{:?}", created.env);
    assert_eq!(created.image.unwrap().name, node.image());
    assert!(created.created_at > 0);
    let running = probe.heard("PostStartContainer", &id).await.container;
    let at_start = probe.heard("StartContainer", &id).await.container;
    assert!(at_start.pid > 0 && at_start.pid == running.pid);
    assert!(running.started_at >= running.created_at);
    assert_eq!(running.state(), nri_sdk::api::ContainerState::ContainerRunning);
    let stopped = probe.heard("StopContainer", &id).await.container;
    assert_eq!(stopped.state(), nri_sdk::api::ContainerState::ContainerStopped);
    assert_eq!((stopped.exit_code, stopped.status_reason.as_str()), (137, "Error"));
    assert!(stopped.finished_at >= stopped.started_at);
    drop(probe);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ends_by_itself_is_told_with_its_code() {
    let Some(node) = Node::start("one_that_ends_by_itself", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exit 7")).await.unwrap();
    let ended = probe.heard("StopContainer", &id).await.container;
    assert_eq!((ended.exit_code, ended.status_reason.as_str()), (7, "Error"));
    cri.stop(&id, 5).await.unwrap();
    cri.remove(&id).await.unwrap();
    probe.heard("RemoveContainer", &id).await;
    assert_eq!(probe.events(&id), LIFE);

    // One that cannot even start ends too, and one that never starts is only removed.
    let mut bad = node.sh("bad", "");
    bad.command = vec!["/no/such/program".into()];
    let bad = cri.create(&pod, bad).await.unwrap();
    cri.start(&bad).await.unwrap_err();
    let ended = probe.heard("StopContainer", &bad).await.container;
    assert_eq!((ended.exit_code, ended.status_reason.as_str()), (128, "StartError"));
    let idle = cri.create(&pod, node.sh("idle", "true")).await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();
    probe.heard("RemovePodSandbox", &pod.id).await;
    assert_eq!(probe.events(&bad).last(), Some(&"RemoveContainer"));
    let want = ["CreateContainer", "PostCreateContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(probe.events(&idle), want);
    drop(probe);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_seen_of_what_plugins_are_being_asked_about() {
    let Some(node) = Node::start("nothing_is_seen", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let held = probe.hold.lock().await;
    let (again, config) = (cri.clone(), node.pod("p"));
    let running = TaskTracker::new().spawn(async move { again.run_pod(&config).await });
    let id = until("the hook", || probe.told().first().map(|told| told.pod.id.clone())).await;
    assert_eq!(cri.pods().await.unwrap(), []);
    assert_eq!(cri.pod_status(&id).await.unwrap_err().code(), Code::NotFound);
    drop(held);
    let pod = running.await.unwrap().unwrap();
    assert_eq!(pod.id, id);

    probe.forget();
    let held = probe.hold.lock().await;
    let (again, config, of) = (cri.clone(), node.sh("c", "exec sleep 1000"), pod.clone());
    let creating = TaskTracker::new().spawn(async move { again.create(&of, config).await });
    let id = until("the hook", || probe.told().first().map(|t| t.container.id.clone())).await;
    assert_eq!(cri.containers().await.unwrap(), []);
    assert_eq!(cri.status(&id).await.unwrap_err().code(), Code::NotFound);
    drop(held);
    assert_eq!(creating.await.unwrap().unwrap(), id);
    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerCreated);
    drop(probe);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_refuses_leaves_nothing_and_can_be_tried_again() {
    let Some(node) = Node::start("what_a_plugin_refuses", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let second = connect(&node, "20-second").await;
    script(&second.on_pod, |_| Err("not today".into()));
    let error = cri.run_pod(&node.pod("p")).await.unwrap_err();
    assert!(
        error.message().contains("20-second") && error.message().contains("not today"),
        "{error}"
    );
    assert_eq!(node.left(), [""; 0]);
    let undone = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    let refused = until("undo", || probe.told().first().map(|told| told.pod.id.clone())).await;
    probe.heard("RemovePodSandbox", &refused).await;
    assert_eq!(probe.events(&refused), undone);
    *second.on_pod.lock() = None;
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();

    script(&second.on_create, |_| Err("no such thing".into()));
    let error = cri.create(&pod, node.sh("c", "exec sleep 1000")).await.unwrap_err();
    assert!(
        error.message().contains("20-second refused CreateContainer: no such thing"),
        "{error}"
    );
    assert_eq!(cri.containers().await.unwrap(), []);
    let bundles = node.daemon.state().join("pods").join(&pod.id).join("c");
    assert_eq!(std::fs::read_dir(&bundles).unwrap().count(), 0);
    *second.on_create.lock() = None;
    let id = cri.create(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();

    script(&second.on_start, |_| Err("stay".into()));
    let error = cri.start(&id).await.unwrap_err();
    assert!(error.message().contains("stay"), "{error}");
    let status = cri.status(&id).await.unwrap();
    assert_eq!(
        (status.state(), status.reason.as_str()),
        (ContainerState::ContainerExited, "StartError")
    );
    probe.heard("StopContainer", &id).await;
    drop((probe, second));
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_stop_of_a_pod_its_containers_have_ended_and_it_is_still_there() {
    let Some(node) = Node::start("at_the_stop_of_a_pod", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    cri.stop_pod(&pod.id).await.unwrap();
    cri.stop_pod(&pod.id).await.unwrap();
    let told = probe.heard("StopPodSandbox", &pod.id).await;
    assert_eq!(probe.events(&pod.id), ["RunPodSandbox", "StopPodSandbox"], "told once");
    let order: Vec<_> = probe.told().iter().map(|told| told.event).collect();
    let at = |event| order.iter().position(|told| *told == event).unwrap();
    assert!(at("StopContainer") < at("StopPodSandbox"), "{order:?}");
    assert_eq!(told.pod.name, "p");
    let error = cri.create(&pod, node.sh("late", "true")).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerExited);
    drop(probe);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_comes_late_is_told_what_exists_also_by_the_next_daemon() {
    let Some(mut node) = Node::start("a_plugin_that_comes_late", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let runs = cri.run(&pod, node.sh("runs", "exec sleep 1000")).await.unwrap();
    let idle = cri.create(&pod, node.sh("idle", "true")).await.unwrap();
    let short = cri.run(&pod, node.sh("short", "sleep 2")).await.unwrap();
    let over = cri.run(&pod, node.sh("over", "true")).await.unwrap();
    cri.exited(&over).await.unwrap();
    let probe = connect(&node, "10-probe").await;
    let ids = |world: &nri_sdk::World| {
        let mut ids: Vec<_> = world.containers.iter().map(|c| c.id.clone()).collect();
        ids.sort();
        (world.pods.iter().map(|pod| pod.id.clone()).collect::<Vec<_>>(), ids)
    };
    let mut live = vec![runs.clone(), idle.clone(), short.clone()];
    live.sort();
    assert_eq!(ids(&probe.worlds()[0]), (vec![pod.id.clone()], live.clone()));

    node.daemon.kill().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.daemon.start_again().await.unwrap();
    until("the second Synchronize", || (probe.worlds().len() == 2).then_some(())).await;
    // What ended meanwhile was not told yet: it is there, and its end is told.
    let known = ids(&probe.worlds()[1]).1;
    assert!(known.contains(&runs) && known.contains(&idle), "{known:?}");
    if known.contains(&short) {
        let ended = probe.heard("StopContainer", &short).await.container;
        assert_eq!(ended.exit_code, 0);
    }
    assert!(!known.contains(&over), "its end was told before anybody came");
    let cri = node.cri().await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();
    probe.heard("RemovePodSandbox", &pod.id).await;
    for id in [&runs, &idle] {
        assert_eq!(probe.events(id), ["StopContainer", "RemoveContainer"]);
    }
    drop(probe);
    node.finish().await.unwrap();
}

/// Synchronize takes longer than one request may: what is created before, during and after it is
/// known to the plugin once, and creations do not wait for its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_slow_to_synchronise_misses_nothing() {
    let Some(node) = Node::start("a_plugin_slow_to_synchronise", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let sleeps = |name: &str| node.sh(name, "exec sleep 1000");
    let early = cri.run_pod(&node.pod("early")).await.unwrap();
    let before = cri.run(&early, sleeps("before")).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let probe = connect_with(&node, "10-slow", |probe| *probe.sync_gate.lock() = Some(held)).await;

    let late = cri.run_pod(&node.pod("late")).await.unwrap();
    let during = cri.run(&late, sleeps("during")).await.unwrap();
    let short = cri.run(&late, sleeps("short")).await.unwrap();
    cri.stop(&short, 0).await.unwrap();
    cri.remove(&short).await.unwrap();
    cri.stop(&before, 0).await.unwrap();
    assert_eq!(probe.told().len(), 0, "nothing is told before Synchronize was answered");
    gate.add_permits(1);
    let after = cri.run(&late, sleeps("after")).await.unwrap();
    probe.heard("PostStartContainer", &after).await;

    let world = probe.worlds().pop().unwrap();
    assert_eq!(world.pods.iter().map(|pod| &pod.id).collect::<Vec<_>>(), [&early.id]);
    assert_eq!(world.containers.iter().map(|c| &c.id).collect::<Vec<_>>(), [&before]);
    assert_eq!(probe.events(&early.id), [""; 0]);
    assert_eq!(probe.events(&before), ["StopContainer"]);
    assert_eq!(probe.events(&late.id), ["RunPodSandbox"]);
    assert_eq!(probe.events(&during), LIFE[..4]);
    assert_eq!(probe.events(&short), LIFE);
    assert_eq!(probe.events(&after), LIFE[..4]);
    drop(probe);
    node.finish().await.unwrap();
}

/// A start that the daemon's death cut off is taken back whole before others are answered.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_a_death_cut_off_can_be_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[nri]\nrequest_timeout = '5m'\n").unwrap();
    let with = |command: &mut std::process::Command| {
        command.arg("--config").arg(&config);
    };
    let Some(mut node) = Node::start_with("starts_that_a_death_cut_off", LONGSHORE, with).await
    else {
        return;
    };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    // One whose creation takes as long as we like.
    let (begun, go_on) = (dir.path().join("begun"), dir.path().join("go-on"));
    let hook =
        format!("touch {}; until [ -e {} ]; do sleep 0.05; done", begun.display(), go_on.display());
    script(&probe.on_create, move |container| {
        let mut creation = nri_sdk::Creation::default();
        let args = ["sh", "-c", &hook].map(str::to_owned).to_vec();
        let hook = Hook { path: "/bin/sh".into(), args, ..Hook::default() };
        if container.name == "slow" {
            creation.adjustment.hooks = Hooks { create_runtime: vec![hook], ..Hooks::default() };
        }
        Ok(creation)
    });
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "slow"] {
        ids.push(cri.create(&pod, node.sh(name, "exec sleep 1000")).await.unwrap());
    }
    let held = probe.hold.lock().await;
    let mut starting = tokio::task::JoinSet::new();
    for id in ids.clone() {
        let cri = node.cri().await.unwrap();
        starting.spawn(async move { cri.start(&id).await });
    }
    for id in &ids {
        let pids = || node.cgroups.file(&pod, id, ("pids", "pids.current"), "pids.current");
        until("its task", || pids().filter(|pids| pids != "0").map(drop)).await;
    }
    until("the hook", || begun.exists().then_some(())).await;
    node.daemon.kill().unwrap();
    drop(held);
    while let Some(started) = starting.join_next().await {
        started.unwrap().unwrap_err();
    }
    let later = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        std::fs::write(&go_on, "").unwrap();
    };
    tokio::join!(later, async { node.daemon.start_again().await.unwrap() });
    let log = node.daemon.stderr();
    assert!(!log.contains("take over"), "{log}");
    let cri = node.cri().await.unwrap();
    for id in &ids {
        cri.start(id).await.unwrap();
    }
    drop(probe);
    node.finish().await.unwrap();
}
