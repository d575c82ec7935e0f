//! Streams into containers and pods: attached from the first byte, connected by port.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::{collections::BTreeSet, fs, net::TcpListener, os::fd::AsFd, time::Duration};

use base::Kind;
use engine::{
    AttachChunk, AttachIo, Engine, ExecStdio,
    request::{PodNamespace, PodRequest},
};
use support::{Host, sh};
use tokio::io::AsyncReadExt;

const OUTPUT: ExecStdio = ExecStdio { stdin: false, stdout: true, stderr: true };
const LIMIT: Duration = Duration::from_secs(60);

/// All that a container says until its end.
async fn all(mut io: AttachIo) -> String {
    let mut all = Vec::new();
    loop {
        match tokio::time::timeout(LIMIT, io.output.next()).await.unwrap().unwrap() {
            AttachChunk::Data(_, bytes) => all.extend_from_slice(&bytes),
            AttachChunk::End => return String::from_utf8(all).unwrap(),
            AttachChunk::Lagged => panic!("nobody was slow"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_attaches_before_the_start_misses_nothing() {
    let Some(host) = Host::new("who_attaches_before_the_start_misses_nothing") else { return };
    let (engine, store) = host.open().await;
    let pod = engine.run_pod(host.pod("one")).await.unwrap();
    for round in 0..10 {
        let script = sh(&format!("c{round}"), "echo first; echo second >&2");
        let id = engine.create_container(pod.as_str(), script).await.unwrap();
        let one = engine.attach_from_start(id.as_str(), OUTPUT).await.unwrap();
        let other = engine.attach_from_start(id.as_str(), OUTPUT).await.unwrap();
        let given_up = engine.attach_from_start(id.as_str(), OUTPUT).await.unwrap();
        drop(given_up);
        engine.start_container(id.as_str()).await.unwrap();
        for attaching in [one, other] {
            let heard = all(attaching.attached().await.unwrap()).await;
            assert!(heard.contains("first\n") && heard.contains("second\n"), "{heard:?}");
        }
    }
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_start_that_never_comes_is_told() {
    let name = "who_waits_for_a_start_that_never_comes_is_told";
    let Some(host) = Host::new(name) else { return };
    let (engine, store) = host.open().await;
    let pod = engine.run_pod(host.pod("one")).await.unwrap();
    let id = engine.create_container(pod.as_str(), sh("never", "true")).await.unwrap();
    let attaching = engine.attach_from_start(id.as_str(), OUTPUT).await.unwrap();
    engine.remove_container(id.as_str()).await.unwrap();
    assert_eq!(attaching.attached().await.unwrap_err().kind(), Kind::NotFound);

    let mut broken = sh("broken", "true");
    broken.container.command = vec!["/no/such/program".into()];
    let id = engine.create_container(pod.as_str(), broken).await.unwrap();
    let attaching = engine.attach_from_start(id.as_str(), OUTPUT).await.unwrap();
    let refused = engine.start_container(id.as_str()).await.unwrap_err();
    // Connected before the runtime failed, or refused with it: never left waiting.
    match tokio::time::timeout(LIMIT, attaching.attached()).await.unwrap() {
        Ok(io) => assert_eq!(all(io).await, ""),
        Err(error) => assert_eq!(error.to_string(), refused.to_string()),
    }
    // Of one that runs, now is from now on.
    let id = engine.create_container(pod.as_str(), sh("up", "sleep 0.3; echo x")).await.unwrap();
    engine.start_container(id.as_str()).await.unwrap();
    let late = engine.attach_from_start(id.as_str(), OUTPUT).await.unwrap();
    assert_eq!(all(late.attached().await.unwrap()).await, "x\n");
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

// === ports ===

/// No test listens there. One that was just closed may live on for a moment in a child that
/// another test forked.
const NOBODYS: u16 = 1;

/// The network namespaces of all our threads.
fn networks() -> BTreeSet<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let links = tasks.filter_map(|task| fs::read_link(task.path().join("ns/net")).ok());
    links.map(|link| link.display().to_string()).collect()
}

/// Connects, and hears what `listener` says.
async fn hears(engine: &Engine, pod: &str, listener: &TcpListener) -> String {
    let port = listener.local_addr().unwrap().port();
    let mut stream = engine.port_forward(pod, port).await.unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    std::io::Write::write_all(&mut accepted, b"hello").unwrap();
    drop(accepted);
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_a_pod_on_the_hosts_network() {
    let Some(host) = Host::new("ports_of_a_pod_on_the_hosts_network") else { return };
    let (engine, store) = host.open().await;
    let request = PodRequest { network: PodNamespace::Node, ..host.pod("one") };
    let pod = engine.run_pod(request).await.unwrap();
    let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(hears(&engine, pod.as_str(), &v4).await, "hello");
    match TcpListener::bind("[::1]:0") {
        Ok(v6) => assert_eq!(hears(&engine, pod.as_str(), &v6).await, "hello"),
        Err(error) => testkit::skip("ports_of_a_pod (IPv6)", &error.to_string()),
    }
    let refused = engine.port_forward(pod.as_str(), NOBODYS).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable);
    assert!(refused.to_string().contains("127.0.0.1: Connection refused"), "{refused}");
    engine.stop_pod(pod.as_str()).await.unwrap();
    let stopped = engine.port_forward(pod.as_str(), NOBODYS).await.unwrap_err();
    assert_eq!(stopped.kind(), Kind::FailedPrecondition);
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_inside_a_pod_and_no_thread_stays_there() {
    let Some(host) = Host::new("ports_inside_a_pod_and_no_thread_stays_there") else { return };
    let (engine, store) = host.open().await;
    let request = PodRequest { network: PodNamespace::Pod, ..host.pod("one") };
    let pod = engine.run_pod(request).await.unwrap();
    let netns = sys::namespace::open(&host.netns(&pod)).unwrap();
    let listener = sys::namespace::in_thread(&[netns.as_fd()], || {
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        TcpListener::bind("127.0.0.1:0").unwrap()
    });
    let listener = listener.unwrap();
    for _ in 0..20 {
        assert_eq!(hears(&engine, pod.as_str(), &listener).await, "hello");
    }
    // Tests beside this one have threads in their pods for a moment.
    let until = tokio::time::Instant::now() + LIMIT;
    while networks().len() > 1 {
        assert!(tokio::time::Instant::now() < until, "{:?}", networks());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop((listener, netns));
    engine.remove_pod(pod.as_str()).await.unwrap();
    engine.close().await;
    store.close().await.unwrap();
    host.assert_clean();
}
