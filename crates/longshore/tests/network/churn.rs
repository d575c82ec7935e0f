//! Many pods while one CNI call in twenty fails or hangs: not an address is left.

use std::sync::Arc;

use testkit::{Cri, Node, cni::on_own_network};
use tokio::task::JoinSet;

use crate::world::{World, call_limit, namespaces, network, on_pod_network};

const AT_A_TIME: usize = 10;
/// A kubelet does not give up either.
const TRIES: u32 = 20;

/// 4 % fail, 1 % hang, in ADD and in DEL.
const DICE: &str = "n=$(od -An -N2 -tu2 /dev/urandom); n=$((n % 100)); \
                    [ $n -lt 4 ] && exit 1; [ $n -eq 4 ] && sleep 300";

/// Whether it took more than one try.
async fn live(node: &Node, cri: &Cri, number: u32) -> bool {
    let config = on_pod_network(node.pod(&format!("p{number}")));
    for tried in 0..TRIES {
        if let Ok(pod) = cri.run_pod(&config).await {
            assert_ne!(network(cri, &pod).await.ip, "");
            cri.remove_pod(&pod.id).await.unwrap();
            return tried > 0;
        }
    }
    panic!("pod {number} could not be made in {TRIES} tries: {}", node.daemon.stderr());
}

#[test]
fn pods_that_come_and_go_leave_no_address() {
    let name = "pods_that_come_and_go_leave_no_address";
    on_own_network(name, || async {
        let world = World::new(&["10.88.20.0/23"], &call_limit(10));
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        world.mode("ADD", DICE);
        world.mode("DEL", DICE);
        let pods = testkit::rounds(20);
        let node = Arc::new(node);
        let (mut running, mut again) = (JoinSet::new(), 0);
        for number in 1..=pods {
            if running.len() == AT_A_TIME {
                again += u32::from(running.join_next().await.unwrap().unwrap());
            }
            let (node, cri) = (Arc::clone(&node), cri.clone());
            running.spawn(async move { live(&node, &cri, number).await });
        }
        while let Some(done) = running.join_next().await {
            again += u32::from(done.unwrap());
        }
        let node = Arc::into_inner(node).unwrap();
        world.mode("ADD", "");
        world.mode("DEL", "");
        world.as_before(&node, &before).await;
        assert_eq!(namespaces(&node), 0);
        println!("{pods} pods, {again} of them at the second try or later: nothing left");
        node.finish().await.unwrap();
    });
}
