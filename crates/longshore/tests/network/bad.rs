//! CNI programs that fail, hang, lie or are gone: clear errors, all undone, the retry works.

use std::{fs, time::Duration};

use api_cri::v1::StatusRequest;
use testkit::{Node, cni::on_own_network};
use tokio::time::Instant;

use crate::world::{World, call_limit, eventually, namespaces, network, on_pod_network};

/// Long enough for what works, also on a busy machine.
fn limit() -> String {
    call_limit(8)
}

/// What the program does at ADD after its chain's first program gave an address, and what the
/// client is told.
const BAD: &[(&str, &str)] = &[
    ("exit 1", "ADD of network lstest by odd: it ended with exit status: 1"),
    (r#"echo '{"code":7,"msg":"out of luck"}'; exit 1"#, "by odd: out of luck (code 7)"),
    ("echo garbage; exit 0", "by odd: garbage: the answer is not the JSON of a result"),
    (
        r#"printf '{"cniVersion":"1.0.0","ips":[{"addr'; exit 0"#,
        "the answer is not the JSON of a result: EOF while parsing",
    ),
    ("kill -9 $$", "it ended with signal: 9"),
    ("sleep 300", "by odd: it took longer than "),
];

#[test]
fn a_bad_add_is_undone_and_the_retry_works() {
    let name = "a_bad_add_is_undone_and_the_retry_works";
    on_own_network(name, || async {
        let world = World::new(&["10.88.10.0/24"], &limit());
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        for (script, want) in BAD {
            world.mode("ADD", script);
            let config = on_pod_network(node.pod("p"));
            let error = cri.run_pod(&config).await.unwrap_err();
            let said = error.message();
            assert!(
                said.contains("at step \"network\"") && said.contains(want),
                "{script}: {said}"
            );
            assert_eq!(cri.pods().await.unwrap(), [], "{script}");
            world.as_before(&node, &before).await;
            // The same request, when the program is well.
            world.mode("ADD", "");
            let pod = cri.run_pod(&config).await.unwrap();
            assert!(network(&cri, &pod).await.ip.starts_with("10.88.10."));
            cri.remove_pod(&pod.id).await.unwrap();
            world.as_before(&node, &before).await;
        }
        node.finish().await.unwrap();
    });
}

#[test]
fn a_slow_add_has_its_time_and_a_retry_joins_it() {
    let name = "a_slow_add_has_its_time_and_a_retry_joins_it";
    on_own_network(name, || async {
        let world = World::new(&["10.88.11.0/24"], "");
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        world.mode("ADD", "sleep 5");
        let config = on_pod_network(node.pod("slow"));
        // A client that gives up, as a kubelet does, and asks again.
        let hasty = tokio::time::timeout(Duration::from_secs(1), cri.run_pod(&config)).await;
        assert!(hasty.is_err());
        let pod = cri.run_pod(&config).await.unwrap();
        assert_eq!(world.traces().leases, [network(&cri, &pod).await.ip], "one ADD for both");
        world.mode("ADD", "");
        cri.remove_pod(&pod.id).await.unwrap();
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}

/// Stops and removes a pod whose DEL goes wrong; afterwards its namespace is kept for the
/// DEL that is to come, and nothing else.
async fn removed_all_the_same(world: &World, node: &Node, name: &str) {
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&on_pod_network(node.pod(name))).await.unwrap();
    world.mode("DEL", if name == "hangs" { "sleep 300" } else { "exit 1" });
    let begun = Instant::now();
    cri.remove_pod(&pod.id).await.unwrap();
    let limit = Duration::from_secs(60) * testkit::slowness();
    assert!(begun.elapsed() < limit, "{name}: {:?}", begun.elapsed());
    assert_eq!(cri.pods().await.unwrap(), []);
    assert_eq!(namespaces(node), 1, "{name}: DEL wants to find it");
    let request = StatusRequest { verbose: true };
    let told = cri.runtime().status(request).await.unwrap().into_inner().info;
    let told: serde_json::Value = serde_json::from_str(&told["network"]).unwrap();
    assert_eq!(told["leftovers"][0]["pod"], pod.id.as_str(), "{told}");
    assert!(node.daemon.stderr().contains("stays on its networks"), "{}", node.daemon.stderr());
}

#[test]
fn a_pod_goes_though_its_network_does_not_let_it() {
    let name = "a_pod_goes_though_its_network_does_not_let_it";
    on_own_network(name, || async {
        let world = World::new(&["10.88.12.0/24"], &limit());
        let mut node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        for how in ["fails", "hangs"] {
            removed_all_the_same(&world, &node, how).await;
            world.mode("DEL", "");
            world.as_before(&node, &before).await;
        }
        // And over the death of the daemon.
        removed_all_the_same(&world, &node, "killed").await;
        node.daemon.kill().unwrap();
        node.daemon.start_again().await.unwrap();
        assert_eq!(namespaces(&node), 1);
        world.mode("DEL", "");
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}

#[test]
fn a_pod_goes_though_the_programs_are_gone() {
    let name = "a_pod_goes_though_the_programs_are_gone";
    on_own_network(name, || async {
        let world = World::new(&["10.88.13.0/24"], "");
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        let pod = cri.run_pod(&on_pod_network(node.pod("p"))).await.unwrap();
        fs::rename(world.path("bin/odd"), world.path("bin/away")).unwrap();
        cri.remove_pod(&pod.id).await.unwrap();
        let refused = cri.run_pod(&on_pod_network(node.pod("q"))).await.unwrap_err();
        assert!(refused.message().contains("by odd: there is no such program in "), "{refused}");
        assert_eq!(namespaces(&node), 2, "kept for the DEL that is to come");
        fs::rename(world.path("bin/away"), world.path("bin/odd")).unwrap();
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}

#[test]
fn killed_in_the_middle_of_an_add() {
    let name = "killed_in_the_middle_of_an_add";
    on_own_network(name, || async {
        let world = World::new(&["10.88.14.0/24"], &limit());
        let mut node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        let seen = world.path("seen");
        world.mode("ADD", &format!("touch {}; sleep 300", seen.display()));
        let config = on_pod_network(node.pod("p"));
        let begun = {
            let (cri, config) = (cri.clone(), config.clone());
            tokio_util::task::TaskTracker::new().spawn(async move { cri.run_pod(&config).await })
        };
        eventually("the program runs", || seen.exists()).await;
        node.note_processes();
        node.daemon.kill().unwrap();
        begun.await.unwrap().unwrap_err();
        node.daemon.start_again().await.unwrap();
        world.mode("ADD", "");
        let cri = node.cri().await.unwrap();
        assert_eq!(cri.pods().await.unwrap(), []);
        world.as_before(&node, &before).await;
        let pod = cri.run_pod(&config).await.unwrap();
        cri.remove_pod(&pod.id).await.unwrap();
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}
