//! Real pods and containers, through the engine alone.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::time::Duration;

use base::Kind;
use engine::{
    phase::Reason,
    request::{PodNamespace, PodRequest},
    view::ContainerState,
};
use oci::ExecRequest;
use support::{Host, sh};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_logs_and_is_gone() {
    let Some(host) = Host::new("a_container_runs_logs_and_is_gone") else { return };
    let (engine, store) = host.open().await;
    let pod = engine.run_pod(host.pod("one")).await.unwrap();
    let id = engine
        .create_container(pod.as_str(), sh("hello", "echo hi; sleep 0.1; exit 3"))
        .await
        .unwrap();
    assert_eq!(engine.container(id.as_str()).unwrap().state(), ContainerState::Created);
    engine.start_container(id.as_str()).await.unwrap();
    let exited = wait_for(&engine, &id, ContainerState::Exited).await;
    let engine::phase::ContainerPhase::Exited(how) = &exited.phase else { panic!("exited") };
    assert_eq!((how.code, how.reason), (3, Reason::Error));
    let log = std::fs::read_to_string(exited.log_path.as_ref().unwrap()).unwrap();
    assert!(log.ends_with(" stdout F hi\n"), "{log:?}");

    engine.remove_pod(pod.as_str()).await.unwrap();
    assert!(engine.pods(&Default::default()).is_empty());
    assert!(engine.containers(&Default::default()).is_empty());
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

/// What is only made and removed must not be remembered for long.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_leaves_no_task() {
    let Some(host) = Host::new("what_is_gone_leaves_no_task") else { return };
    let (engine, store) = host.open().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let churn = async |times: usize| {
        let pod = engine.run_pod(host.pod("churn")).await.unwrap();
        for _ in 0..times {
            let id = engine.create_container(pod.as_str(), sh("c", "true")).await.unwrap();
            engine.remove_container(id.as_str()).await.unwrap();
        }
        engine.remove_pod(pod.as_str()).await.unwrap();
    };
    churn(1).await;
    let few = tasks();
    churn(10).await;
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while tasks() > few {
        assert!(tokio::time::Instant::now() < until, "{few} tasks became {}", tasks());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_an_address_until_it_stops() {
    let Some(host) = Host::new("a_pod_has_an_address_until_it_stops") else { return };
    let (engine, store) = host.open().await;
    assert!(engine.health().network.told().holds, "{:?}", engine.health().network.told());
    let pod = engine.run_pod(host.pod("addressed")).await.unwrap();
    let ips = || engine.pod(pod.as_str()).unwrap().pod.ips.clone();
    assert_eq!(ips(), ["10.240.0.7".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(host.leases().len(), 1);
    engine.stop_pod(pod.as_str()).await.unwrap();
    assert_eq!((ips().len(), host.leases().len()), (0, 0));
    engine.remove_pod(pod.as_str()).await.unwrap();

    let on_host = PodRequest { network: PodNamespace::Node, ..host.pod("on-host") };
    let pod = engine.run_pod(on_host).await.unwrap();
    assert_eq!(host.leases().len(), 0, "nobody asked CNI");
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_is_stopped_for_long_the_other_is_made_run_and_stopped() {
    let name = "while_one_is_stopped_for_long_the_other_is_made_run_and_stopped";
    let Some(host) = Host::new(name) else { return };
    let (engine, store) = host.open().await;
    let engine = std::sync::Arc::new(engine);
    let pod = engine.run_pod(host.pod("two")).await.unwrap();
    let deaf = sh("deaf", "trap '' TERM; while true; do sleep 1; done");
    let a = engine.create_container(pod.as_str(), deaf).await.unwrap();
    engine.start_container(a.as_str()).await.unwrap();
    let stopping = {
        let (engine, a) = (std::sync::Arc::clone(&engine), a);
        tokio_util::task::TaskTracker::new()
            .spawn(async move { engine.stop_container(a.as_str(), Duration::from_secs(30)).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;

    let b = engine.create_container(pod.as_str(), sh("b", "sleep 1000")).await.unwrap();
    engine.start_container(b.as_str()).await.unwrap();
    let ask = ExecRequest { command: vec!["/bin/echo".into(), "x".into()], ..Default::default() };
    let output = engine.exec_sync(b.as_str(), ask, None).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.code), (b"x\n".as_slice(), 0));
    engine.stop_container(b.as_str(), Duration::ZERO).await.unwrap();
    assert!(!stopping.is_finished(), "the other stop is still in its grace");
    assert_eq!(engine.container(a.as_str()).unwrap().state(), ContainerState::Running);

    // A caller that gives up causes no SIGKILL.
    stopping.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(engine.container(a.as_str()).unwrap().state(), ContainerState::Running);
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_engine_left_is_taken_over() {
    let Some(host) = Host::new("what_an_earlier_engine_left_is_taken_over") else { return };
    let (engine, store) = host.open().await;
    let pod = engine.run_pod(host.pod("three")).await.unwrap();
    let long = engine.create_container(pod.as_str(), sh("long", "sleep 1000")).await.unwrap();
    let short =
        engine.create_container(pod.as_str(), sh("short", "sleep 0.3; exit 7")).await.unwrap();
    engine.start_container(long.as_str()).await.unwrap();
    engine.start_container(short.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;

    let (engine, store) = host.open().await;
    let ended = wait_for(&engine, &short, ContainerState::Exited).await;
    let engine::phase::ContainerPhase::Exited(how) = &ended.phase else { panic!("exited") };
    assert_eq!(how.code, 7, "the shim kept it");
    assert_eq!(engine.container(long.as_str()).unwrap().state(), ContainerState::Running);
    let again = engine.run_pod(host.pod("three")).await.unwrap_err();
    assert_eq!(again.kind(), Kind::AlreadyExists, "{again}");
    engine.stop_container(long.as_str(), Duration::ZERO).await.unwrap();
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_is_refused_and_undone() {
    let Some(host) = Host::new("what_cannot_be_made_is_refused_and_undone") else { return };
    let (engine, store) = host.open().await;
    let pod = engine.run_pod(host.pod("four")).await.unwrap();
    let mut unknown = sh("x", "true");
    unknown.image.reference = "nothing".into();
    let error = engine.create_container(pod.as_str(), unknown).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");

    let mut missing = sh("x", "true");
    missing.container.command = vec!["/no/such/program".into()];
    let id = engine.create_container(pod.as_str(), missing).await.unwrap();
    engine.start_container(id.as_str()).await.unwrap_err();
    let failed = engine.container(id.as_str()).unwrap();
    let engine::phase::ContainerPhase::Exited(how) = &failed.phase else {
        panic!("{:?}", failed.phase)
    };
    assert_eq!((how.code, how.reason), (128, Reason::StartError));
    assert!(how.message.contains("no such file"), "{}", how.message);

    let error = engine.start_container(id.as_str()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("container {id} is exited: cannot start it"));
    engine.remove_container(id.as_str()).await.unwrap();
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

async fn wait_for(
    engine: &engine::Engine,
    id: &base::Id,
    state: ContainerState,
) -> std::sync::Arc<engine::record::ContainerRecord> {
    for _ in 0..1000 {
        let container = engine.container(id.as_str()).unwrap();
        if container.state() == state {
            return container;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{id} never was {state:?}");
}
