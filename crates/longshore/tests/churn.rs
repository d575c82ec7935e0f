//! Many pods, several at a time: not a trace is left.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use api_cri::v1::NamespaceMode;
use engine::record::{ContainerRecord, PodRecord};
use store::Store;
use testkit::{Cri, Node};
use tokio::task::JoinSet;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
const AT_A_TIME: usize = 10;

/// Every path below `dir`, without those of the store, which comes and goes.
fn tree(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.ends_with("lib/store") {
            continue;
        }
        found.insert(path.display().to_string());
        if path.is_dir() && !path.is_symlink() {
            found.extend(tree(&path));
        }
    }
    found
}

/// What the daemon's descriptors lead to.
fn descriptors(node: &Node) -> Vec<String> {
    let dir = format!("/proc/{}/fd", node.daemon.pid().as_raw_nonzero());
    let links = fs::read_dir(dir).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    links.map(|to| to.display().to_string()).collect()
}

/// Waits until the daemon holds nothing of any pod open: tasks that saw its end are ending.
async fn released(node: &Node) {
    let of_pods =
        |to: &String| ["pidfd", "mnt:", "net:", "/pods/"].iter().any(|of| to.contains(of));
    for _ in 0..500 {
        if !descriptors(node).iter().any(of_pods) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("descriptors of the daemon: {:#?}", descriptors(node));
}

/// One pod's whole life. Odd ones share a PID namespace, every fifth is removed while its
/// container runs.
async fn live(node: &Node, cri: &Cri, number: u32) {
    let mut config = node.pod(&format!("p{number}"));
    if number % 2 == 1 {
        let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        security.namespace_options.as_mut().unwrap().set_pid(NamespaceMode::Pod);
    }
    let pod = cri.run_pod(&config).await.unwrap();
    let id = cri.run(&pod, node.sh("c", &format!("echo {number}; sleep 1000"))).await.unwrap();
    let said = cri.exec(&id, &["echo", "inside"]).await.unwrap();
    assert_eq!(&said.stdout[..], b"inside\n");
    if !number.is_multiple_of(5) {
        cri.stop(&id, 0).await.unwrap();
        assert_eq!(cri.status(&id).await.unwrap().exit_code, 137);
        cri.remove(&id).await.unwrap();
    }
    cri.remove_pod(&pod.id).await.unwrap();
    assert_eq!(node.said(&pod, "c").unwrap(), [number.to_string()], "its log stays");
    fs::remove_dir_all(&config.log_directory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_come_and_go_leave_nothing() {
    let Some(mut node) = Node::start("pods_that_come_and_go", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    // The first pod makes the directories that all others use.
    live(&node, &cri, 0).await;
    let home = node.daemon.home().to_owned();
    let files = tree(&home);

    let pods = testkit::rounds(20);
    let node_ref = std::sync::Arc::new(node);
    let mut running = JoinSet::new();
    for number in 1..=pods {
        if running.len() == AT_A_TIME {
            running.join_next().await.unwrap().unwrap();
        }
        let (node, cri) = (std::sync::Arc::clone(&node_ref), cri.clone());
        running.spawn(async move { live(&node, &cri, number).await });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    node = std::sync::Arc::into_inner(node_ref).unwrap();

    node.settled().await.unwrap();
    assert_eq!(tree(&home), files, "files");
    released(&node).await;
    assert_eq!(cri.pods().await.unwrap(), []);
    assert_eq!(cri.containers().await.unwrap(), []);
    assert_eq!(node.daemon.stop().await.unwrap().code, Some(0));
    let store = Store::open(node.daemon.root().join("store")).unwrap();
    assert!(store.table::<PodRecord>().unwrap().is_empty(), "records of pods");
    assert!(store.table::<ContainerRecord>().unwrap().is_empty(), "records of containers");
    store.close().await.unwrap();
}
