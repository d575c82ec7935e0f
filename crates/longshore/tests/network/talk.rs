//! Pods that talk to each other, to the host and to whoever asks for a published port.

use testkit::cni::{command, on_own_network};

use crate::world::{World, inside, network, on_pod_network, publishing, serving};

/// From the host; it listens a moment after its start.
fn fetch(url: &str) -> String {
    let tries = "for i in $(seq 50); do busybox wget -qO- \"$0\" && exit; sleep 0.2; done; exit 1";
    command("sh", &["-c", tries, url]).trim().to_owned()
}

#[test]
fn two_pods_and_the_host() {
    let name = "two_pods_and_the_host";
    on_own_network(name, || async {
        let world = World::new(&["10.88.1.0/24"], "");
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        let before = world.warm_up(&node, &cri).await;
        let (one, one_id) = serving(&node, &cri, on_pod_network(node.pod("one")), 80).await;
        let (two, two_id) = serving(&node, &cri, on_pod_network(node.pod("two")), 80).await;
        let (one_ip, two_ip) = (network(&cri, &one).await.ip, network(&cri, &two).await.ip);
        assert!(one_ip.starts_with("10.88.1.") && one_ip != two_ip, "{one_ip} {two_ip}");

        let address = inside(&cri, &one_id, "ip -4 -o addr show dev eth0").await;
        assert!(address.contains(&format!(" {one_ip}/24 ")), "{address}");
        for to in [&two_ip, "10.88.1.1", "127.0.0.1"] {
            inside(&cri, &one_id, &format!("busybox ping -c 1 -W 10 {to}")).await;
        }
        inside(&cri, &two_id, &format!("busybox ping -c 1 -W 10 {one_ip}")).await;
        command("busybox", &["ping", "-c", "1", "-W", "10", &one_ip]);
        let page = format!("wget -qO- http://{two_ip}/");
        assert_eq!(inside(&cri, &one_id, &page).await, "page of two");
        assert_eq!(inside(&cri, &one_id, "hostname").await, "one-host");
        assert_eq!(inside(&cri, &one_id, "cat /etc/hostname").await, "one-host");

        assert_eq!(world.traces().leases.len(), 2);
        cri.stop_pod(&one.id).await.unwrap();
        assert_eq!(network(&cri, &one).await.ip, "", "a stopped pod has no address");
        assert_eq!(world.traces().leases, [two_ip]);
        for pod in [&one, &two] {
            cri.remove_pod(&pod.id).await.unwrap();
        }
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}

/// The addresses of two pods, as told; each reaches the other by all of them.
async fn both_ways(test: &str, ranges: &[&str], settings: &str) -> Vec<Vec<String>> {
    let world = World::new(ranges, settings);
    let node = world.node(test).await;
    let cri = node.cri().await.unwrap();
    let before = world.warm_up(&node, &cri).await;
    let (one, one_id) = serving(&node, &cri, on_pod_network(node.pod("one")), 80).await;
    let (two, two_id) = serving(&node, &cri, on_pod_network(node.pod("two")), 80).await;
    let mut told = Vec::new();
    for (pod, peer) in [(&one, &two_id), (&two, &one_id)] {
        let network = network(&cri, pod).await;
        let more = network.additional_ips.into_iter().map(|ip| ip.ip);
        let ips: Vec<String> = [network.ip].into_iter().chain(more).collect();
        for ip in &ips {
            inside(&cri, peer, &format!("busybox ping -c 1 -W 10 {ip}")).await;
        }
        told.push(ips);
    }
    for pod in [&one, &two] {
        cri.remove_pod(&pod.id).await.unwrap();
    }
    world.as_before(&node, &before).await;
    node.finish().await.unwrap();
    told
}

#[test]
fn ipv6_alone() {
    on_own_network("ipv6_alone", || async {
        for ips in both_ways("ipv6_alone", &["fd88:2::/64"], "").await {
            assert!(ips.len() == 1 && ips[0].starts_with("fd88:2::"), "{ips:?}");
        }
    });
}

#[test]
fn both_families_in_the_order_of_the_setting() {
    let name = "both_families_in_the_order_of_the_setting";
    on_own_network(name, || async {
        let ranges = ["10.88.3.0/24", "fd88:3::/64"];
        for (preference, first) in [("ipv4", "10.88.3."), ("ipv6", "fd88:3::")] {
            let settings = format!("ip_preference = \"{preference}\"");
            for ips in both_ways(name, &ranges, &settings).await {
                assert!(ips.len() == 2 && ips[0].starts_with(first), "{preference}: {ips:?}");
            }
        }
    });
}

#[test]
fn a_published_port_and_who_holds_it() {
    let name = "a_published_port_and_who_holds_it";
    on_own_network(name, || async {
        let world = World::new(&["10.88.4.0/24"], "");
        let node = world.node(name).await;
        let cri = node.cri().await.unwrap();
        // The host's own address, where the port is published.
        command("ip", &["addr", "add", "10.88.99.1/32", "dev", "lo"]);
        let before = world.warm_up(&node, &cri).await;
        let config = publishing(on_pod_network(node.pod("web")), &[(18_080, 80), (0, 81)]);
        let (pod, _) = serving(&node, &cri, config, 80).await;
        assert_eq!(fetch("http://10.88.99.1:18080/"), "page of web");

        let during = world.traces();
        let second = publishing(on_pod_network(node.pod("second")), &[(18_081, 80), (18_080, 80)]);
        let error = cri.run_pod(&second).await.unwrap_err();
        let want = format!("host port 18080/tcp is taken by pod {}", pod.id);
        assert!(error.message().contains(&want), "{error}");
        assert_eq!(error.code(), tonic::Code::FailedPrecondition);
        assert_eq!(world.traces(), during, "nothing of the second");
        assert_eq!(fetch("http://10.88.99.1:18080/"), "page of web");

        cri.remove_pod(&pod.id).await.unwrap();
        let (second, _) = serving(&node, &cri, second, 80).await;
        assert_eq!(fetch("http://10.88.99.1:18080/"), "page of second");
        cri.remove_pod(&second.id).await.unwrap();
        world.as_before(&node, &before).await;
        node.finish().await.unwrap();
    });
}
