//! SIGKILL at every step of every operation; then the client asks again, as a kubelet would.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::{os::unix::process::ExitStatusExt, process::Command, time::Duration};

use base::{Id, Kind};
use engine::{
    Engine,
    view::{ContainerFilter, ContainerState, PodFilter},
};
use support::{Host, Keeper, sh};

const DIR: &str = "LONGSHORE_TEST_DIR";
const CGROUP: &str = "LONGSHORE_TEST_CGROUP";
const KEEPER: &str = "LONGSHORE_TEST_KEEPER";

/// The life that is cut off: every operation once.
async fn live(host: &Host, engine: &Engine) {
    let pod = engine.run_pod(host.pod("victim")).await.unwrap();
    let first = engine.create_container(pod.as_str(), sh("first", "sleep 1000")).await.unwrap();
    engine.start_container(first.as_str()).await.unwrap();
    let second = engine.create_container(pod.as_str(), sh("second", "sleep 1000")).await.unwrap();
    engine.start_container(second.as_str()).await.unwrap();
    engine.checkpoint_container(first.as_str(), host.checkpoint()).await.unwrap();
    engine.stop_container(first.as_str(), Duration::ZERO).await.unwrap();
    engine.remove_container(first.as_str()).await.unwrap();
    engine.stop_pod(pod.as_str()).await.unwrap();
    engine.remove_pod(pod.as_str()).await.unwrap();
}

/// Not a test of its own: the process that the tests below kill.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by kill_at_every_step"]
async fn child() {
    let (Ok(dir), Ok(cgroup)) = (std::env::var(DIR), std::env::var(CGROUP)) else { return };
    let keeper = std::env::var(KEEPER).ok().and_then(|name| Keeper::named(&name));
    let host = Host::at(dir.into(), cgroup, keeper.unwrap_or_default());
    let (engine, store) = host.open().await;
    live(&host, &engine).await;
    engine.close().await;
    store.close().await.unwrap();
}

fn killed_at(host: &Host, point: &str, keeper: Keeper) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--test-threads=1"])
        .env("LONGSHORE_CRASH_AT", point)
        .env(DIR, host.dir())
        .env(CGROUP, &host.cgroup)
        .env(KEEPER, keeper.name())
        .output()
        .unwrap();
    assert_eq!(status.status.signal(), Some(9), "{point} was not reached: {status:?}");
}

/// Asks again for what was cut off, by name, and carries it through.
async fn retry(host: &Host, engine: &Engine) {
    let mut request = host.pod("victim");
    // A kubelet's retry is never quite the same request.
    request.annotations = [("retry".to_owned(), "1".to_owned())].into_iter().collect();
    let pod = match engine.run_pod(request).await {
        Ok(id) => id,
        Err(error) if error.kind() == Kind::AlreadyExists => {
            engine.pods(&PodFilter::default()).first().expect("delivered, so listed").id
        }
        Err(error) => panic!("{}", base::Chain(&error)),
    };
    if engine.pod(pod.as_str()).is_ok_and(|view| view.pod.phase.is_ready()) {
        let container = container(engine, pod).await;
        let record = engine.container(container.as_str()).unwrap();
        if record.state() == ContainerState::Created {
            engine.start_container(container.as_str()).await.unwrap();
        }
        // Of one that stayed frozen there would be none.
        if engine.container(container.as_str()).unwrap().state() == ContainerState::Running {
            engine.checkpoint_container(container.as_str(), host.checkpoint()).await.unwrap();
        }
        engine.stop_container(container.as_str(), Duration::ZERO).await.unwrap();
        engine.remove_container(container.as_str()).await.unwrap();
    }
    gone(engine.stop_pod(pod.as_str()).await);
    gone(engine.remove_pod(pod.as_str()).await);
    assert!(engine.pods(&PodFilter::default()).is_empty());
    assert!(engine.containers(&ContainerFilter::default()).is_empty());
}

/// A removal that was begun is finished without being asked: then it is not found.
#[track_caller]
fn gone(result: engine::Result<()>) {
    match result {
        Err(error) if error.kind() != Kind::NotFound => panic!("{}", base::Chain(&error)),
        _ => {}
    }
}

async fn container(engine: &Engine, pod: Id) -> Id {
    match engine.create_container(pod.as_str(), sh("first", "sleep 1000")).await {
        Ok(id) => id,
        Err(error) if error.kind() == Kind::AlreadyExists => {
            let all = engine.containers(&ContainerFilter::default());
            let first = all.iter().find(|c| c.request.container.name == "first");
            first.expect("delivered, so listed").id
        }
        Err(error) => panic!("{}", base::Chain(&error)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_at_every_step() {
    kill_at("kill_at_every_step", Keeper::Own, engine::crash_points()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_at_every_step_of_a_pod_with_a_pid_1() {
    const TEST: &str = "kill_at_every_step_of_a_pod_with_a_pid_1";
    kill_at(TEST, Keeper::SharedPids, points_of_shims()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_at_every_step_under_a_foreign_shim() {
    const TEST: &str = "kill_at_every_step_under_a_foreign_shim";
    kill_at(TEST, Keeper::Foreign, points_of_shims()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_at_every_step_under_a_sandbox_service() {
    const TEST: &str = "kill_at_every_step_under_a_sandbox_service";
    kill_at(TEST, Keeper::Service, points_of_shims()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the shim, which takes minutes"]
async fn kill_at_every_step_under_a_shim_in_rust() {
    kill_at("kill_at_every_step_under_a_shim_in_rust", Keeper::Rust, points_of_shims()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds youki, which takes minutes"]
async fn kill_at_every_step_over_youki() {
    kill_at("kill_at_every_step_over_youki", Keeper::Youki, engine::crash_points()).await;
}

/// The root of a container is there when its start is asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_goes_with_its_task_is_put_back() {
    const TEST: &str = "a_root_that_goes_with_its_task_is_put_back";
    kill_at(TEST, Keeper::Tidy, vec!["start-container/plugins/intended".to_owned()]).await;
}

/// Where the shim has a part; everywhere in a long run.
fn points_of_shims() -> Vec<String> {
    let mut points = engine::crash_points();
    if testkit::rounds(1) == 1 {
        let parts = ["/shim/", "/network/", "/start-shim/", "start-container/"];
        points.retain(|point| parts.iter().any(|part| point.contains(part)));
    }
    points
}

async fn kill_at(test: &str, keeper: Keeper, points: Vec<String>) {
    let mut cells = 0;
    for point in points {
        let Some(host) = Host::new(test).and_then(|host| host.kept_by(test, keeper)) else {
            return;
        };
        killed_at(&host, &point, keeper);
        eprintln!("{point}");
        let (engine, store) = host.open().await;
        retry(&host, &engine).await;
        host.await_no_leases().await;
        engine.close().await;
        store.close().await.unwrap();
        host.assert_clean();
        cells += 1;
    }
    eprintln!("{cells} cells: killed at every step, retried, nothing left");
}
