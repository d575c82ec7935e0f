//! What plugins are told of the networks of pods.

use api_cri::v1::{NamespaceMode, NamespaceOption, PodSandboxConfig};
use testkit::{
    Node,
    cni::{self, on_own_network},
};

use crate::{LONGSHORE, probe::connect};

fn with_network(mut pod: PodSandboxConfig) -> PodSandboxConfig {
    let options = NamespaceOption {
        network: NamespaceMode::Pod.into(),
        pid: NamespaceMode::Container.into(),
        ..Default::default()
    };
    let security = &mut pod.linux.get_or_insert_default().security_context;
    security.get_or_insert_default().namespace_options = Some(options);
    pod.hostname = "p".to_owned();
    pod
}

/// A stopped pod has no address for CRI any more; a plugin that keeps books by addresses gets
/// them until the end, also of the next daemon.
#[test]
fn the_removal_of_a_pod_tells_the_addresses_it_had() {
    on_own_network("the_removal_of_a_pod", || async {
        let dir = tempfile::tempdir().unwrap();
        let conf = cni::bridge(&dir.path().join("leases"), &["10.88.0.0/24"]);
        cni::configure(&dir.path().join("net.d"), "10.conflist", &conf.to_string());
        let with = |command: &mut std::process::Command| {
            command.arg("--cni-conf-dir").arg(dir.path().join("net.d"));
            command.arg("--cni-bin-dir").arg("/usr/lib/cni");
        };
        let started = Node::start_with("the_removal_of_a_pod", LONGSHORE, with).await;
        let Some(mut node) = started else { return };
        let mut cri = node.cri().await.unwrap();
        for restart in [false, true] {
            let probe = connect(&node, "10-probe").await;
            let pod = cri.run_pod(&with_network(node.pod("p"))).await.unwrap();
            let ips = probe.heard("RunPodSandbox", &pod.id).await.pod.ips;
            assert!(ips[0].starts_with("10.88.0."), "{ips:?}");
            cri.stop_pod(&pod.id).await.unwrap();
            assert_eq!(probe.heard("StopPodSandbox", &pod.id).await.pod.ips, ips);
            let status = cri.pod_status(&pod.id).await.unwrap().status.unwrap();
            assert_eq!(status.network.unwrap_or_default().ip, "");
            if restart {
                let known = probe.worlds().len();
                node.daemon.kill().unwrap();
                node.daemon.start_again().await.unwrap();
                cri = node.cri().await.unwrap();
                crate::probe::until("Synchronize", || (probe.worlds().len() > known).then_some(()))
                    .await;
            }
            cri.remove_pod(&pod.id).await.unwrap();
            assert_eq!(probe.heard("RemovePodSandbox", &pod.id).await.pod.ips, ips);
        }
        node.finish().await.unwrap();
    });
}
