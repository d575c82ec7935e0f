//! Programs that do what programs should not.

use std::{fs, path::Path, time::Duration};

use base::Kind;
use net::{Leftover, Limits, NetConfig, NetError, PodNet, PortMapping, Protocol};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{World, block_on, eventually, list, said};

pub(crate) fn bad_programs_are_undone(dir: &Path) {
    // What it does after taking its lease, and what is said of it.
    const BAD: &[(&str, &str)] = &[
        (r#"echo '{"code":7,"msg":"no"}'; exit 1"#, "no (code 7)"),
        ("exit 1", "it ended with exit status: 1: "),
        ("echo oops >&2; exit 2", "it ended with exit status: 2: oops"),
        ("kill -9 $$", "it ended with signal: 9 (SIGKILL): "),
        (
            "echo garbage; exit 0",
            "garbage: the answer is not the JSON of a result: expected value at line 1 column 1",
        ),
        (
            "answer | head -c 60; exit 0",
            "the answer is not the JSON of a result: EOF while parsing",
        ),
        ("exit 0", "the answer is empty"),
        ("echo '[]'; exit 0", "the answer is not the JSON of a result"),
        (
            r#"echo '{"ips":[{"address":"10.1.1.1"}]}'; exit 0"#,
            "is no address with a prefix length",
        ),
        (r#"echo '{"cniVersion":"0.1.0"}'; exit 0"#, "CNI version \"0.1.0\" is not spoken here"),
        ("echo '{}'; exit 0", "network pods gave the pod no address"),
        ("sleep 300", "it took longer than 2s and was killed"),
        ("head -c 3000000 /dev/zero; exit 0", "it printed more than 1048576 bytes and was killed"),
    ];
    let world = World::new(dir);
    world.network("1.0.0", &["a", "b"]);
    block_on(async {
        let mut config = world.config();
        config.limits.program = Duration::from_secs(2);
        let networks = world.open_with(config).await;
        let netns = world.netns();
        for (script, want) in BAD {
            let pod = world.pod(&netns);
            world.mode("b.ADD", &format!(": > $lease; {script}"));
            let error = networks.add(pod.clone()).await.unwrap_err();
            assert!(said(&error).contains(want), "{script}: {}", said(&error));
            assert_eq!(world.leases(), [""; 0], "{script}");
            let calls = world.calls();
            let want = ["ADD a eth0 ns", "ADD b eth0 ns", "DEL b eth0 ns", "DEL a eth0 ns"];
            assert_eq!(calls, want, "{script}");
            assert_eq!(
                (networks.result(&pod.id), networks.leftovers()),
                (None, vec![]),
                "{script}"
            );
            // The same again, when the program is well.
            world.mode("b.ADD", "");
            networks.add(pod.clone()).await.unwrap();
            networks.del(&pod.id).await.unwrap();
            assert_eq!(world.leases(), [""; 0], "{script}");
            world.calls();
        }
    });
}

pub(crate) fn a_slow_program_has_its_time(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a", "b"]);
    world.mode("a.ADD", "sleep 0.4");
    world.mode("b.ADD", "sleep 0.4");
    block_on(async {
        let open = async |program, chain| {
            let mut config = world.config();
            config.limits = Limits {
                program: Duration::from_millis(program),
                chain: Duration::from_millis(chain),
                ..config.limits
            };
            world.open_with(config).await
        };
        let netns = world.netns();
        let pod = world.pod(&netns);
        let networks = open(10_000, 20_000).await;
        networks.add(pod.clone()).await.unwrap();
        networks.del(&pod.id).await.unwrap();
        networks.close().await;
        // Each in time, both together not.
        let networks = open(10_000, 600).await;
        let error = networks.add(pod).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Deadline, "{}", said(&error));
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn a_chain_hands_on_and_goes_back(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a", "b", "c"]);
    world.mode("c.ADD", r#"echo '{"ips":[{"address":"10.240.0.9/24"}]}'; : > $lease; exit 0"#);
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let result = networks.add(pod.clone()).await.unwrap();
        assert_eq!(result.ips, ["10.240.0.9".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(networks.result(&pod.id), Some(result));
        assert_eq!(world.calls(), ["ADD a eth0 ns", "ADD b eth0 ns", "ADD c eth0 ns"]);
        assert_eq!(world.input("a.ADD")["prevResult"], json!(null));
        assert_eq!(world.input("b.ADD")["prevResult"]["ips"][0]["address"], "10.240.0.7/24");
        assert_eq!(world.input("b.ADD")["name"], "pods");
        networks.del(&pod.id).await.unwrap();
        assert_eq!(world.calls(), ["DEL c eth0 ns", "DEL b eth0 ns", "DEL a eth0 ns"]);
        for program in ["a", "b", "c"] {
            let previous = &world.input(&format!("{program}.DEL"))["prevResult"];
            assert_eq!(previous["ips"][0]["address"], "10.240.0.9/24");
        }
        networks.del(&pod.id).await.unwrap();
        assert_eq!(world.calls(), [""; 0], "nothing is known any more");
        netns.run(|| {
            let lo = std::net::TcpListener::bind("127.0.0.1:0").expect("lo is up");
            drop(std::net::TcpStream::connect(lo.local_addr().unwrap()).unwrap());
        });
    });
}

pub(crate) fn one_broken_program_does_not_keep_the_others(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a", "b"]);
    world.mode("b.DEL", "exit 1");
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        networks.add(pod.clone()).await.unwrap();
        networks.del(&pod.id).await.unwrap_err();
        assert_eq!(world.leases(), [format!("b-{}-eth0", pod.id)]);
        world.mode("b.DEL", "");
        networks.del(&pod.id).await.unwrap();
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn a_container_nobody_knows_is_gone(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.mode("a.DEL", r#"rm -f $lease; echo '{"code":3,"msg":"who?"}'; exit 1"#);
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        networks.add(pod.clone()).await.unwrap();
        networks.del(&pod.id).await.unwrap();
        assert_eq!(networks.leftovers(), []);
    });
}

pub(crate) fn what_del_could_not_do_is_tried_again(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.mode("a.DEL", "echo tired >&2; exit 1");
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        networks.add(pod.clone()).await.unwrap();
        let error = networks.del(&pod.id).await.unwrap_err();
        assert_eq!(said(&error), "DEL of network pods by a: it ended with exit status: 1: tired");
        let [Leftover { id, failures: 1, error }] = &networks.leftovers()[..] else {
            panic!("{:?}", networks.leftovers())
        };
        assert_eq!((id, error.contains("tired")), (&pod.id, true));
        assert_eq!(networks.result(&pod.id), None);
        // By itself, after a second.
        eventually("a second try", || networks.leftovers()[0].failures == 2);
        world.mode("a.DEL", "");
        eventually("success", || networks.leftovers().is_empty());
        assert_eq!(world.leases(), [""; 0]);

        // An ADD whose undo fails is left over, too, and a second ADD cleans up first.
        world.mode("a.ADD", ": > $lease; exit 1");
        world.mode("a.DEL", "exit 1");
        let error = networks.add(pod.clone()).await.unwrap_err();
        assert!(matches!(error, NetError::NotUndone { .. }), "{}", said(&error));
        assert_eq!(networks.leftovers().len(), 1);
        networks.add(pod.clone()).await.unwrap_err();
        world.mode("a.ADD", "");
        world.mode("a.DEL", "");
        networks.add(pod.clone()).await.unwrap();
        assert_eq!(networks.leftovers(), []);
        sleep(Duration::from_millis(1500)).await;
        assert!(networks.result(&pod.id).is_some(), "nobody retries what is over");
        networks.del(&pod.id).await.unwrap();
    });
}

pub(crate) fn programs_may_be_missing_for_a_while(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        networks.add(pod.clone()).await.unwrap();
        fs::rename(world.path("bin/a"), world.path("bin/away")).unwrap();
        let error = networks.del(&pod.id).await.unwrap_err();
        assert_eq!(error.kind(), Kind::FailedPrecondition);
        assert!(said(&error).contains("there is no such program in "), "{}", said(&error));
        let error = networks.add(world.pod(&netns)).await.unwrap_err();
        assert!(said(&error).contains("there is no such program in "), "{}", said(&error));
        assert_eq!(networks.leftovers().len(), 2);
        fs::rename(world.path("bin/away"), world.path("bin/a")).unwrap();
        eventually("success", || networks.leftovers().is_empty());
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn a_namespace_may_be_gone_or_another(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    block_on(async {
        let networks = world.open().await;
        let attach = async |netns| {
            let pod: PodNet = world.pod(netns);
            networks.add(pod.clone()).await.unwrap();
            world.calls();
            pod.id
        };
        let netns = world.netns();
        let id = attach(&netns).await;
        netns.remove();
        networks.del(&id).await.unwrap();
        assert_eq!(world.calls(), ["DEL a eth0 gone"]);
        // The file of a pin whose mount is gone.
        let netns = world.netns();
        let id = attach(&netns).await;
        netns.remove();
        fs::write(&netns.path, "").unwrap();
        networks.del(&id).await.unwrap();
        assert_eq!(world.calls(), ["DEL a eth0 gone"]);
        // Another one at the same path.
        let (netns, other) = (world.netns(), world.netns());
        let id = attach(&netns).await;
        netns.remove();
        fs::write(&netns.path, "").unwrap();
        rustix::mount::mount_bind(&other.path, &netns.path).unwrap();
        networks.del(&id).await.unwrap();
        assert_eq!(world.calls(), ["DEL a eth0 gone"]);
    });
}

pub(crate) fn a_namespace_goes_with_the_last_del(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    let is_there = |path: &Path| sys::namespace::is_namespace(path).unwrap_or(false);
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = PodNet { release: true, ..world.pod(&netns) };
        networks.add(pod.clone()).await.unwrap();
        assert!(networks.holds(&pod.id));
        world.mode("a.DEL", "exit 1");
        networks.del(&pod.id).await.unwrap_err();
        assert!(networks.holds(&pod.id) && is_there(&netns.path), "DEL wants to find it");
        world.mode("a.DEL", "");
        eventually("the end of it", || !networks.holds(&pod.id));
        assert!(!netns.path.exists());

        // Of an ADD that failed, and one that is not ours stays.
        world.mode("a.ADD", "exit 1");
        let (ours, other) = (world.netns(), world.netns());
        let pod = PodNet { release: true, ..world.pod(&ours) };
        networks.add(pod).await.unwrap_err();
        networks.add(world.pod(&other)).await.unwrap_err();
        assert!(!ours.path.exists() && is_there(&other.path));
    });
}

pub(crate) fn strange_namespaces_are_refused(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    block_on(async {
        let networks = world.open().await;
        for (path, want) in [
            ("/proc/self/ns/net", "is the host's own"),
            ("/proc/self/ns/uts", "is of another kind"),
            ("/dev/null", "is no namespace"),
            ("/nowhere", "is no namespace"),
        ] {
            let pod = crate::world::pod(Path::new(path));
            let error = networks.add(pod).await.unwrap_err();
            assert!(said(&error).contains(want), "{path}: {}", said(&error));
        }
        assert_eq!(networks.leftovers(), []);
        assert!(world.calls().iter().all(|call| !call.starts_with("ADD")));
    });
}

pub(crate) fn del_stops_an_add(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.mode("a.ADD", ": > $lease; sleep 300");
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let begun = Instant::now();
        let del = async {
            eventually("the lease", || !world.leases().is_empty());
            networks.del(&pod.id).await
        };
        let (add, del) = tokio::join!(networks.add(pod.clone()), del);
        del.unwrap();
        assert!(said(&add.unwrap_err()).contains("the pod is to go"));
        assert!(begun.elapsed() < Duration::from_secs(15));
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn callers_may_go_away(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.mode("a.ADD", "sleep 0.5");
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let limit = Duration::from_millis(100);
        assert!(timeout(limit, networks.add(pod.clone())).await.is_err());
        eventually("attached all the same", || networks.result(&pod.id).is_some());
        world.mode("a.DEL", "sleep 0.5");
        assert!(timeout(limit, networks.del(&pod.id)).await.is_err());
        eventually("detached all the same", || world.leases().is_empty());
    });
}

pub(crate) fn a_pod_is_attached_once(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let (one, two) = tokio::join!(networks.add(pod.clone()), networks.add(pod.clone()));
        let refused = one.err().or(two.err()).unwrap();
        assert_eq!(refused.kind(), Kind::AlreadyExists);
        assert_eq!(world.calls(), ["ADD a eth0 ns"]);
        networks.del(&pod.id).await.unwrap();
    });
}

pub(crate) fn ports_have_one_holder(dir: &Path) {
    let world = World::new(dir);
    world.fake("a");
    let conf = |publishes: bool| {
        json!({"cniVersion": "1.0.0", "name": "pods",
            "plugins": [{"type": "a", "capabilities": {"portMappings": publishes}}]})
    };
    world.conf("10.conflist", &conf(true));
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = || {
            let (host_port, container_port, protocol) = (8080, 80, Protocol::Tcp);
            let port = PortMapping { host_port, container_port, protocol, host_ip: None };
            PodNet { ports: vec![port], ..world.pod(&netns) }
        };
        let (first, second) = (pod(), pod());
        networks.add(first.clone()).await.unwrap();
        let told = &world.input("a.ADD")["runtimeConfig"]["portMappings"];
        assert_eq!(*told, json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
        let error = networks.add(second.clone()).await.unwrap_err();
        assert_eq!(said(&error), format!("host port 8080/tcp is taken by pod {}", first.id));
        // Also for the next daemon.
        networks.close().await;
        let networks = world.open().await;
        networks.add(second.clone()).await.unwrap_err();
        networks.del(&first.id).await.unwrap();
        networks.add(second.clone()).await.unwrap();
        networks.del(&second.id).await.unwrap();
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn networks_of_a_pod_are_all_or_none(dir: &Path) {
    let world = World::new(dir);
    ["a", "b"].iter().for_each(|name| world.fake(name));
    world.conf("10.conflist", &list("1.0.0", "one", &["a"]));
    world.conf("20.conflist", &list("1.0.0", "two", &["b"]));
    block_on(async {
        let mut config = world.config();
        config.default.max_conf = 0;
        let networks = world.open_with(config).await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let result = networks.add(pod.clone()).await.unwrap();
        let names: Vec<_> = result.interfaces.iter().map(|i| (&*i.name, &*i.network)).collect();
        assert_eq!(names, [("eth0", "one"), ("eth1", "two")]);
        assert_eq!(result.ips.len(), 1);
        networks.del(&pod.id).await.unwrap();
        world.mode("b.ADD", "exit 1");
        networks.add(pod.clone()).await.unwrap_err();
        assert_eq!(world.leases(), [""; 0]);
        world.mode("a.ADD", "exit 1");
        let error = networks.add(pod.clone()).await.unwrap_err();
        assert_eq!(
            said(&error),
            "ADD of network one by a: it ended with exit status: 1: ; \
             ADD of network two by b: it ended with exit status: 1: "
        );
    });
}

pub(crate) fn networks_are_parallel_or_serial(dir: &Path) {
    let world = World::new(dir);
    // Each waits for the other: together they end, one after the other they do not.
    for (name, other) in [("a", "b"), ("b", "a")] {
        world.fake(name);
        let meet = format!(
            ": > {dir}/{name}; i=0; while [ ! -e {dir}/{other} ]; do i=$((i+1)); [ $i -lt 100 ] || exit 1; sleep 0.05; done",
            dir = dir.display()
        );
        world.mode(&format!("{name}.ADD"), &meet);
    }
    world.conf("10.conflist", &list("1.0.0", "one", &["a"]));
    world.conf("20.conflist", &list("1.0.0", "two", &["b"]));
    block_on(async {
        let open = async |serial| {
            let mut config = NetConfig { serial, ..world.config() };
            config.default.max_conf = 2;
            world.open_with(config).await
        };
        let netns = world.netns();
        let pod = world.pod(&netns);
        let networks = open(false).await;
        networks.add(pod.clone()).await.unwrap();
        networks.del(&pod.id).await.unwrap();
        networks.close().await;
        ["a", "b"].iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
        let networks = open(true).await;
        networks.add(pod.clone()).await.unwrap_err();
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn checks_ask_who_can_answer(dir: &Path) {
    let world = World::new(dir);
    world.network("0.4.0", &["a", "b"]);
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        assert_eq!(networks.check(&pod.id).await.unwrap_err().kind(), Kind::NotFound);
        networks.add(pod.clone()).await.unwrap();
        world.calls();
        networks.check(&pod.id).await.unwrap();
        assert_eq!(world.calls(), ["CHECK a eth0 ns", "CHECK b eth0 ns"]);
        let previous = &world.input("b.CHECK")["prevResult"];
        assert_eq!(
            (&previous["cniVersion"], &previous["ips"][0]["version"]),
            (&json!("0.4.0"), &json!("4"))
        );
        world.mode("a.CHECK", r#"echo '{"code":100,"msg":"moved"}'; exit 1"#);
        let error = networks.check(&pod.id).await.unwrap_err();
        assert_eq!(said(&error), "CHECK of network pods by a: moved (code 100)");
        networks.del(&pod.id).await.unwrap();
        networks.close().await;

        let mut quiet = list("1.0.0", "pods", &["a"]);
        quiet["disableCheck"] = json!(true);
        for conf in [list("0.3.1", "pods", &["a"]), quiet] {
            world.conf("10-pods.conflist", &conf);
            let networks = world.open().await;
            networks.add(pod.clone()).await.unwrap();
            world.calls();
            networks.check(&pod.id).await.unwrap();
            assert_eq!(world.calls(), [""; 0]);
            networks.del(&pod.id).await.unwrap();
            networks.close().await;
        }
    });
}

pub(crate) fn garbage_is_collected(dir: &Path) {
    let world = World::new(dir);
    world.network("1.1.0", &["a", "b"]);
    world.mode("a.STATUS", "exit 0");
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pods: Vec<_> = (0..3).map(|_| world.pod(&netns)).collect();
        for pod in &pods {
            networks.add(pod.clone()).await.unwrap();
        }
        let kept = pods[1].id;
        networks.gc(|id| *id == kept).await.unwrap();
        assert_eq!(world.leases(), [format!("a-{kept}-eth0"), format!("b-{kept}-eth0")]);
        let calls = world.calls();
        let gcs: Vec<_> = calls.iter().filter(|call| call.starts_with("GC")).collect();
        assert_eq!(gcs, ["GC a  gone", "GC b  gone"]);
        let input = world.input("b.GC");
        assert_eq!(
            input["cni.dev/valid-attachments"],
            json!([{"containerID": kept.as_str(), "ifname": "eth0"}])
        );
        world.mode("a.GC", "exit 1");
        networks.gc(|id| *id == kept).await.unwrap_err();
        networks.gc(|_| false).await.unwrap_err();
        assert_eq!(world.leases(), [""; 0]);
        networks.close().await;
    });
}

pub(crate) fn garbage_is_collected_alone(dir: &Path) {
    let world = World::new(dir);
    world.network("1.1.0", &["a"]);
    world.mode("a.STATUS", "exit 0");
    world.mode("a.ADD", &format!("touch {0}/began; sleep 1; touch {0}/ended", dir.display()));
    // It fails if it finds an ADD in the middle.
    world.mode("a.GC", &format!("! [ -e {0}/began ] || [ -e {0}/ended ] || exit 1", dir.display()));
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let gc = async {
            eventually("the ADD", || dir.join("began").exists());
            networks.gc(|id| *id == pod.id).await
        };
        let (add, gc) = tokio::join!(networks.add(pod.clone()), gc);
        add.unwrap();
        gc.unwrap();
        let input = world.input("a.GC");
        assert_eq!(input["cni.dev/valid-attachments"][0]["containerID"], pod.id.as_str());
        networks.close().await;
    });
}

pub(crate) fn nothing_starts_after_the_end(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.mode("a.ADD", ": > $lease; sleep 300");
    block_on(async {
        let networks = world.open().await;
        let netns = world.netns();
        let pod = world.pod(&netns);
        let close = async {
            eventually("the lease", || !world.leases().is_empty());
            networks.close().await;
        };
        let (add, ()) = tokio::join!(networks.add(pod.clone()), close);
        assert_eq!(add.unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(networks.del(&pod.id).await.unwrap_err().kind(), Kind::Unavailable);
        // The next one takes it up.
        assert_eq!(world.leases().len(), 1);
        let networks = world.open().await;
        eventually("undone", || networks.leftovers().is_empty());
        assert_eq!(world.leases(), [""; 0]);
    });
}
