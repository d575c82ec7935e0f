//! Where the network comes from: directories that come, break and go.

use std::fs;

use api_cri::v1::{NetworkConfig, RuntimeConfig, UpdateRuntimeConfigRequest};
use testkit::{
    Cri,
    cni::{self, on_own_network},
};
use tonic::Status;

use crate::world::{World, network, network_condition, on_pod_network};

/// Waits until the network is ready or not, with this in the message.
async fn until_told(cri: &Cri, ready: bool, want: &str) {
    let mut last = network_condition(cri).await;
    for _ in 0..600 {
        if last.status == ready && last.message.contains(want) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        last = network_condition(cri).await;
    }
    panic!("never: {ready} {want:?}; last: {last:?}");
}

#[test]
fn a_directory_that_breaks_vanishes_and_comes_back() {
    let name = "a_directory_that_breaks_vanishes_and_comes_back";
    on_own_network(name, || async {
        let world = World::new(&["10.88.30.0/24"], "");
        let good = fs::read_to_string(world.path("net.d/10.conflist")).unwrap();
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        until_told(&cri, true, "").await;
        let pod = cri.run_pod(&on_pod_network(node.pod("old"))).await.unwrap();

        // The last good one is used, and the trouble is shown.
        world.configure("{ what is this");
        until_told(&cri, true, "10.conflist").await;
        assert_eq!(network_condition(&cri).await.reason, "NetworkConfigBroken");
        let second = cri.run_pod(&on_pod_network(node.pod("second"))).await.unwrap();

        fs::remove_dir_all(world.path("net.d")).unwrap();
        until_told(&cri, false, "net.d").await;
        assert_eq!(network_condition(&cri).await.reason, "NetworkPluginNotReady");
        let refused = cri.run_pod(&on_pod_network(node.pod("new"))).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.message().contains("no network is ready: "), "{refused}");
        // Those that were there go as they came, and the host's network is always there.
        cri.remove_pod(&pod.id).await.unwrap();
        cri.remove_pod(&second.id).await.unwrap();
        let on_host = cri.run_pod(&node.pod("on-host")).await.unwrap();
        assert_eq!(network(&cri, &on_host).await.ip, "");
        cri.remove_pod(&on_host.id).await.unwrap();
        world.as_before(&node, &before).await;

        world.configure(&good);
        until_told(&cri, true, "").await;
        let pod = cri.run_pod(&on_pod_network(node.pod("new"))).await.unwrap();
        cri.remove_pod(&pod.id).await.unwrap();
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}

async fn tell_cidr(cri: &Cri, pod_cidr: &str) -> Result<(), Status> {
    let network_config = Some(NetworkConfig { pod_cidr: pod_cidr.to_owned() });
    let runtime_config = Some(RuntimeConfig { network_config });
    let request = UpdateRuntimeConfigRequest { runtime_config };
    cri.runtime().update_runtime_config(request).await.map(drop)
}

#[test]
fn the_kubelet_tells_the_pod_network() {
    let name = "the_kubelet_tells_the_pod_network";
    on_own_network(name, || async {
        let template = tempfile::NamedTempFile::new().unwrap();
        let settings = format!("template = {:?}", template.path());
        let world = World::new(&["10.88.31.0/24"], &settings);
        let conf = fs::read_to_string(world.path("net.d/10.conflist")).unwrap();
        fs::write(&template, conf.replace("10.88.31.0/24", "{{.PodCIDR}}")).unwrap();
        fs::remove_dir_all(world.path("net.d")).unwrap();

        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        until_told(&cri, false, "net.d").await;
        tell_cidr(&cri, "").await.unwrap();
        let error = tell_cidr(&cri, "10.88.0.0/99").await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
        assert!(!world.path("net.d").exists());
        tell_cidr(&cri, "10.88.32.0/24").await.unwrap();
        until_told(&cri, true, "").await;
        let pod = cri.run_pod(&on_pod_network(node.pod("p"))).await.unwrap();
        let ip = network(&cri, &pod).await.ip;
        assert!(ip.starts_with("10.88.32."), "{ip}");
        // What is configured stays.
        tell_cidr(&cri, "10.88.33.0/24").await.unwrap();
        let files: Vec<_> = fs::read_dir(world.path("net.d")).unwrap().flatten().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        assert!(fs::read_to_string(files[0].path()).unwrap().contains("10.88.32.0/24"));
        node.finish().await.unwrap();
    });
}

#[test]
fn a_handler_may_have_a_network_of_its_own() {
    let name = "a_handler_may_have_a_network_of_its_own";
    on_own_network(name, || async {
        let own = tempfile::tempdir().unwrap();
        let handlers = format!(
            "[handlers.a]\nbinary = \"runc\"\n[handlers.b]\nbinary = \"runc\"\ncni_conf_dir = {:?}",
            own.path()
        );
        let world = World::new(&["10.88.34.0/24"], &handlers);
        let conf = fs::read_to_string(world.path("net.d/10.conflist")).unwrap();
        let conf = conf.replace("10.88.34.0/24", "10.88.35.0/24").replace("lstest0", "lsother0");
        cni::configure(own.path(), "10.conflist", &conf.replace("\"lstest\"", "\"lsother\""));
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        for (handler, want) in [("a", "10.88.34."), ("b", "10.88.35.")] {
            let config = on_pod_network(node.pod(handler));
            let pod = cri.run_pod_with(handler, &config).await.unwrap();
            let ip = network(&cri, &pod).await.ip;
            assert!(ip.starts_with(want), "{handler}: {ip}");
        }
        node.finish().await.unwrap();
    });
}
