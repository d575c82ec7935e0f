//! Debian's bridge, host-local, portmap: pods that really talk.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

use base::Id;
use futures_util::{StreamExt, stream};
use net::{IpPreference, NetConfig, NetResult, Networks, PodNet, PortMapping, Protocol};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with, sockopt,
};
use serde_json::{Value, json};
use testkit::cni::{Traces, bridge, command, installed};

use crate::{
    crash::Daemon,
    world::{Netns, World, block_on, eventually, said},
};

fn conf(world: &World, ranges: &[&str]) -> Value {
    bridge(&world.path("ipam"), ranges)
}

fn traces(world: &World) -> Traces {
    Traces::now(&world.path("ipam"))
}

async fn attach(networks: &Networks, world: &World) -> (Netns, Id, NetResult) {
    let netns = world.netns();
    let pod = world.pod(&netns);
    match networks.add(pod.clone()).await {
        Ok(result) => (netns, pod.id, result),
        Err(error) => panic!("{}", said(&error)),
    }
}

/// The first pod leaves the bridge and the chains that all pods share. Those may stay.
async fn warm_up(networks: &Networks, world: &World) -> Traces {
    let netns = world.netns();
    let pod = PodNet { ports: vec![port(18_999, 80)], ..world.pod(&netns) };
    networks.add(pod.clone()).await.unwrap();
    networks.del(&pod.id).await.unwrap();
    drop(netns);
    traces(world)
}

fn port(host_port: u16, container_port: u16) -> PortMapping {
    PortMapping { host_port, container_port, protocol: Protocol::Tcp, host_ip: None }
}

/// An echo request with a raw socket; whether an answer came.
fn ping(to: Ipv4Addr) -> bool {
    let icmp = Some(ipproto::ICMP);
    let socket =
        socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, icmp).unwrap();
    let limit = Some(Duration::from_secs(2));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, limit).unwrap();
    // Type 8, number 7, sequence 1; the checksum is the complement of the sum of the words.
    let [high, low] = (!(0x0800_u16 + 7 + 1)).to_be_bytes();
    let request = [8, 0, high, low, 0, 7, 0, 1];
    sendto(&socket, &request, SendFlags::empty(), &SocketAddr::from((to, 0))).unwrap();
    let mut answer = [0; 256];
    while let Ok((read, _)) = recv(&socket, &mut answer, RecvFlags::empty()) {
        // After an IP header of 20 bytes: type 0 is the answer; our own request may come first.
        if read >= 28 && answer[20] == 0 && answer[24..28] == request[4..8] {
            return true;
        }
    }
    false
}

/// Serves one connection in the pod while `client` runs; gives what the client heard.
fn serve(netns: &Netns, address: SocketAddr, client: impl FnOnce() -> String + Send) -> String {
    std::thread::scope(|scope| {
        let listener = netns.run(|| TcpListener::bind(address).unwrap());
        let server = scope.spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            let _ = write!(stream, "hello {}", peer.ip());
        });
        let heard = client();
        server.join().unwrap();
        heard
    })
}

fn hear(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn v4(result: &NetResult) -> Ipv4Addr {
    let first = result.ips.iter().find_map(|ip| match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    });
    first.unwrap()
}

pub(crate) fn pods_talk_and_leave_nothing(dir: &Path) {
    if !installed("pods_talk_and_leave_nothing") {
        return;
    }
    let world = World::new(dir);
    world.conf("10.conflist", &conf(&world, &["10.247.31.0/24"]));
    block_on(async {
        let networks = world.open().await;
        let before = warm_up(&networks, &world).await;
        let (one, one_id, one_result) = attach(&networks, &world).await;
        let (two, two_id, two_result) = attach(&networks, &world).await;
        assert_ne!(one_result.ips, two_result.ips);
        let (one_ip, two_ip) = (v4(&one_result), v4(&two_result));
        assert!(one.run(|| ping(two_ip)) && two.run(|| ping(one_ip)));
        assert!(one.run(|| ping(Ipv4Addr::LOCALHOST)), "lo is up");
        assert!(one.run(|| ping([10, 247, 31, 1].into())), "the host from the pod");
        assert!(ping(one_ip), "the pod from the host");
        let address = SocketAddr::from((two_ip, 4000));
        let heard = serve(&two, address, || one.run(|| hear(address)));
        assert_eq!(heard, format!("hello {one_ip}"));
        networks.check(&one_id).await.unwrap();
        let during = traces(&world);
        assert_eq!(during.leases.len(), 2);
        assert!(
            during.links.len() == before.links.len() + 2 && during.rules.len() > before.rules.len()
        );
        networks.del(&one_id).await.unwrap();
        networks.del(&two_id).await.unwrap();
        assert_eq!(traces(&world), before);
    });
}

pub(crate) fn host_ports_are_reachable(dir: &Path) {
    if !installed("host_ports_are_reachable") {
        return;
    }
    let world = World::new(dir);
    world.conf("10.conflist", &conf(&world, &["10.247.32.0/24"]));
    // The host's own address, which the port is published on.
    command("ip", &["addr", "add", "10.247.99.1/32", "dev", "lo"]);
    block_on(async {
        let networks = world.open().await;
        let before = warm_up(&networks, &world).await;
        let netns = world.netns();
        let pod = PodNet { ports: vec![port(18_080, 80)], ..world.pod(&netns) };
        let result = networks.add(pod.clone()).await.unwrap();
        let inside = SocketAddr::from((v4(&result), 80));
        let published = SocketAddr::from(([10, 247, 99, 1], 18_080));
        let heard = serve(&netns, inside, || hear(published));
        assert!(heard.starts_with("hello 10.247."), "{heard}");
        networks.del(&pod.id).await.unwrap();
        assert!(TcpStream::connect_timeout(&published, Duration::from_secs(1)).is_err());
        assert_eq!(traces(&world), before);
    });
}

pub(crate) fn both_families(dir: &Path) {
    if !installed("both_families") {
        return;
    }
    let world = World::new(dir);
    world.conf("10.conflist", &conf(&world, &["10.247.33.0/24", "fd33:7::/64"]));
    block_on(async {
        for (ip_preference, v4_first) in
            [(IpPreference::V4, true), (IpPreference::V6, false), (IpPreference::AsAnswered, true)]
        {
            let networks = world.open_with(NetConfig { ip_preference, ..world.config() }).await;
            let before = warm_up(&networks, &world).await;
            let (one, one_id, _) = attach(&networks, &world).await;
            let (two, two_id, result) = attach(&networks, &world).await;
            assert_eq!(result.ips.len(), 2);
            assert_eq!(result.ips[0].is_ipv4(), v4_first, "{ip_preference:?}");
            for ip in &result.ips {
                let address = SocketAddr::from((*ip, 4000));
                let heard = serve(&two, address, || one.run(|| hear(address)));
                assert!(heard.starts_with("hello "), "{heard}");
            }
            networks.del(&one_id).await.unwrap();
            networks.del(&two_id).await.unwrap();
            assert_eq!(traces(&world), before);
            networks.close().await;
        }
    });
}

pub(crate) fn a_namespace_that_is_gone_keeps_no_address(dir: &Path) {
    if !installed("a_namespace_that_is_gone_keeps_no_address") {
        return;
    }
    let world = World::new(dir);
    let mut conf = conf(&world, &["10.247.34.0/24"]);
    // Debian's bridge takes the masquerading rule from the namespace, so that is lost.
    conf["plugins"][0]["ipMasq"] = json!(false);
    world.conf("10.conflist", &conf);
    block_on(async {
        let networks = world.open().await;
        let before = warm_up(&networks, &world).await;
        let netns = world.netns();
        let pod = PodNet { ports: vec![port(18_081, 80)], ..world.pod(&netns) };
        networks.add(pod.clone()).await.unwrap();
        netns.remove();
        networks.del(&pod.id).await.unwrap();
        eventually("the kernel took the links", || traces(&world).links == before.links);
        assert_eq!(traces(&world), before);
    });
}

pub(crate) fn many_pods_and_a_flaky_program(dir: &Path) {
    if !installed("many_pods_and_a_flaky_program") {
        return;
    }
    const PODS: usize = 40;
    let world = World::new(dir);
    let mut conf = conf(&world, &["10.247.35.0/24"]);
    world.fake("flaky");
    conf["plugins"].as_array_mut().unwrap().push(json!({"type": "flaky"}));
    world.conf("10.conflist", &conf);
    // One in ten fails, one in twenty hangs; in DEL, too.
    let dice = r"n=$(od -An -N1 -tu1 /dev/urandom); n=$((n % 20)); [ $n -lt 2 ] && exit 1; [ $n -eq 2 ] && sleep 300";
    block_on(async {
        let mut config = world.config();
        // Of the real ones each has to be in time, on a busy machine, too.
        config.limits.program = Duration::from_secs(8);
        let networks = world.open_with(config).await;
        let before = warm_up(&networks, &world).await;
        world.mode("flaky.ADD", dice);
        world.mode("flaky.DEL", dice);
        let pods = stream::iter(0..PODS).map(|_| async {
            let netns = world.netns();
            let pod = world.pod(&netns);
            let added = networks.add(pod.clone()).await.is_ok();
            let _ = networks.del(&pod.id).await;
            (netns, added)
        });
        let pods: Vec<_> = pods.buffer_unordered(10).collect().await;
        let added = pods.iter().filter(|(_, added)| *added).count();
        assert!((PODS / 2..PODS).contains(&added), "{added} of {PODS}");
        world.mode("flaky.DEL", "");
        networks.gc(|_| false).await.unwrap();
        eventually("no leftovers", || networks.leftovers().is_empty());
        assert_eq!(traces(&world), before);
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn killed_anywhere_nothing_is_left(dir: &Path) {
    if !installed("killed_anywhere_nothing_is_left") {
        return;
    }
    let mut world = World::new(dir);
    world.conf("10.conflist", &conf(&world, &["10.247.36.0/24"]));
    let before = block_on(async {
        let networks = world.open().await;
        let traces = warm_up(&networks, &world).await;
        networks.close().await;
        traces
    });
    let netns = world.netns();
    // From before the first program on, in steps of a few milliseconds, to after the last.
    let moments = (0..30).map(|step| Some(Duration::from_millis(8 * step)));
    for moment in moments.chain([None]) {
        let id = Id::random();
        block_on(world.store.close()).unwrap();
        let mut daemon = Daemon::start("add", dir, &netns, &id);
        match moment {
            Some(moment) => std::thread::sleep(moment),
            None => eventually("the ADD is done", || dir.join("done").exists()),
        }
        daemon.kill();
        let _ = std::fs::remove_file(dir.join("done"));
        world = World::new(dir);
        block_on(async {
            let networks = world.open().await;
            // Debian's bridge, killed between address and rule, misses the rule in its first
            // DEL and not in the second, which comes by itself.
            let _ = networks.gc(|_| false).await;
            eventually("no leftovers", || networks.leftovers().is_empty());
            networks.close().await;
        });
        assert_eq!(traces(&world), before, "killed after {moment:?}");
    }
}
