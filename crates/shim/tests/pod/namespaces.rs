//! What a pod's containers share, and what they must not see.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use serde_json::{Value, json};
use shim_client::{IdMap, ShimError, StartPod, UserNs};
use sys::namespace::{identity, is_namespace};
use tokio::time::Instant;

use crate::world::{Pod, Wish, World, lines, read_log};

/// Sets the path of one of the bundle's namespaces, adding it if need be.
fn join(config: &mut Value, kind: &str, path: &Path) {
    let spaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    spaces.retain(|space| space["type"] != kind);
    spaces.push(json!({ "type": kind, "path": path }));
}

#[tokio::test]
async fn namespaces_are_pinned_and_furnished() {
    let Some(world) = World::new("namespaces_are_pinned_and_furnished") else { return };
    let mut spec = world.spec();
    let pin = |name: &str| world.pod_dir().join(name);
    spec.namespaces.net = Some(pin("net"));
    spec.namespaces.ipc = Some(pin("ipc"));
    spec.namespaces.uts = Some(pin("uts"));
    spec.hostname = Some("harbour".to_owned());
    let sysctls = [("net.ipv4.ip_unprivileged_port_start", "7"), ("kernel.shm_rmid_forced", "1")];
    spec.sysctls = sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let pod = world.start_with(&spec).await;
    for (kind, path) in [("net", &spec.namespaces.net), ("ipc", &spec.namespaces.ipc)] {
        let path = path.as_ref().unwrap();
        assert!(is_namespace(path).unwrap());
        let host = Path::new("/proc/self/ns").join(kind);
        assert_ne!(identity(path).unwrap(), identity(&host).unwrap());
    }
    let script = "hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start \
                  /proc/sys/kernel/shm_rmid_forced";
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["sh", "-c", script], &wish);
    let mut config: Value =
        serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    for (kind, path) in [
        ("network", &spec.namespaces.net),
        ("ipc", &spec.namespaces.ipc),
        ("uts", &spec.namespaces.uts),
    ] {
        join(&mut config, kind, path.as_ref().unwrap());
    }
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    let task = shim_client::CreateTask {
        id: id.clone(),
        bundle,
        stdio: wish.stdio,
        log: wish.log,
        ..Default::default()
    };
    pod.shim.create(task).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    let want = ["harbour", "7", "1"].map(|text| ("stdout", "F", text));
    assert_eq!(read_log(&pod.log_path("c")), lines(&want));
    pod.finish().await;
}

#[tokio::test]
async fn a_start_that_fails_names_its_step_and_leaves_nothing() {
    let Some(world) = World::new("a_start_that_fails_names_its_step_and_leaves_nothing") else {
        return;
    };
    let good = {
        let mut spec = world.spec();
        spec.namespaces.net = Some(world.pod_dir().join("net"));
        spec.namespaces.uts = Some(world.pod_dir().join("uts"));
        spec.namespaces.pid = true;
        spec.namespaces.pid_pin = Some(world.pod_dir().join("pid"));
        spec.cgroup = Some(format!("{}/shim", world.cgroup()).into());
        spec.pid1.cgroup = Some(format!("{}/first", world.cgroup()).into());
        spec
    };
    let sysctl = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let mut bad = Vec::new();
    let mut spec = good.clone();
    spec.sysctls = sysctl("net.no.such", "1");
    bad.push((spec, "set sysctl net.no.such=1: No such file"));
    let mut spec = good.clone();
    spec.sysctls = sysctl("vm.swappiness", "1");
    bad.push((spec, "vm.swappiness: is not of a namespace"));
    let mut spec = good.clone();
    spec.hostname = Some("x".repeat(65));
    bad.push((spec, "set the host name"));
    let mut spec = good.clone();
    spec.namespaces.ipc = Some("/no/such/dir/ipc".into());
    bad.push((spec, "pin the ipc namespace"));
    let mut spec = good.clone();
    spec.dir = world.dir.path().join("absent");
    bad.push((spec, "absent"));
    let mut spec = good.clone();
    spec.namespaces.user =
        Some(UserNs { pin: world.pod_dir().join("user"), uids: vec![], gids: vec![] });
    bad.push((spec, "an id map has no ranges"));
    for (spec, want) in bad {
        let error = shim_client::start(&spec, crate::world::LIMIT).await.unwrap_err();
        assert!(matches!(error, ShimError::Start { .. }), "{error:?}");
        assert!(error.to_string().contains(want), "{error}");
        world.check_empty().await;
        let mut left: Vec<_> = fs::read_dir(world.pod_dir())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.retain(|name| name != "shim.log");
        assert!(left.is_empty(), "{want}: {left:?}");
    }
    // The same directory still takes a good one.
    let good = StartPod { cgroup: None, ..good };
    world.start_with(&good).await.finish().await;
}

#[tokio::test]
async fn a_user_namespace_owns_the_others() {
    let Some(world) = World::new("a_user_namespace_owns_the_others") else { return };
    // Its root must be able to reach the root file system.
    fs::set_permissions(world.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut spec = world.spec();
    let dir = world.pod_dir();
    let pin = |name: &str| dir.join(name);
    let range = || vec![IdMap { inside: 0, outside: 1_000_000, count: 65_536 }];
    spec.namespaces.user = Some(UserNs { pin: pin("user"), uids: range(), gids: range() });
    spec.namespaces.net = Some(pin("net"));
    spec.namespaces.ipc = Some(pin("ipc"));
    spec.namespaces.uts = Some(pin("uts"));
    spec.namespaces.pid = true;
    spec.namespaces.pid_pin = Some(world.pod_dir().join("pid"));
    spec.hostname = Some("mapped".to_owned());
    spec.sysctls =
        BTreeMap::from([("net.ipv4.ip_unprivileged_port_start".to_owned(), "9".to_owned())]);
    let pod = world.start_with(&spec).await;
    let first = pod.shim.info().pod_pid.unwrap();
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert_eq!(uids.split_whitespace().nth(1), Some("1065535"));

    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let id = pod.world.id("c");
    let script = "id -u > /proc/self/fd/1; hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/self/uid_map";
    let bundle = pod.world.bundle(&id, &["sh", "-c", script], &wish);
    let mut config: Value =
        serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    join(&mut config, "user", &pin("user"));
    // runc asks for the maps of a namespace it only joins.
    let map = json!([{ "containerID": 0, "hostID": 1_000_000, "size": 65_536 }]);
    config["linux"]["uidMappings"] = map.clone();
    config["linux"]["gidMappings"] = map;
    join(&mut config, "network", &pin("net"));
    join(&mut config, "ipc", &pin("ipc"));
    join(&mut config, "uts", &pin("uts"));
    join(&mut config, "pid", &pin("pid"));
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    for dir in [pod.world.dir.path().join("bundles"), bundle.clone()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let task = shim_client::CreateTask {
        id: id.clone(),
        bundle,
        stdio: wish.stdio,
        log: wish.log,
        ..Default::default()
    };
    pod.shim.create(task).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    let log = read_log(&pod.log_path("c"));
    let text: Vec<_> =
        log.iter().map(|(_, _, text)| text.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(text, [vec!["0"], vec!["mapped"], vec!["9"], vec!["0", "1000000", "65536"]]);
    pod.finish().await;
}

/// Tries all the links of PID 1 that lead somewhere.
const PRY: &str = "
    ls -A /proc/1/root/ /proc/1/cwd/ 2>&1
    readlink /proc/1/root
    readlink /proc/1/fd/* | grep -v -e '^pipe:' -e '^socket:'
    cat /proc/1/environ | tr '\\0' '\\n' | grep -v '^PATH='
    (echo x > /proc/1/exe) 2>&1 | grep -o 'Read-only file system'
    (echo x > /proc/1/root/x) 2>&1 | grep -o 'Read-only file system'
    echo $(cat /proc/1/comm) $(cat /proc/1/status | grep -e Uid -e CapEff)
    test $(readlink /proc/1/ns/net) = $(readlink /proc/self/ns/net) && echo same net
    kill -9 1; kill -TERM 1; echo alive $(cat /proc/1/comm)";

/// What a container with these capabilities gets out of PID 1, on its stdout.
async fn pry(pod: &Pod, name: &str, net: &Path, caps: &Value) -> Vec<String> {
    let wish = Wish {
        log: Some(pod.log(name)),
        pid_namespace: Some(pod.world.pod_dir().join("pid").display().to_string()),
        ..Wish::default()
    };
    let id = pod.world.id(name);
    let bundle = pod.world.bundle(&id, &["sh", "-c", PRY], &wish);
    let mut config: Value =
        serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    config["process"]["capabilities"] =
        json!({ "bounding": caps, "effective": caps, "permitted": caps });
    join(&mut config, "network", net);
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    let (stdio, log) = (wish.stdio, wish.log);
    let task = shim_client::CreateTask { id: id.clone(), bundle, stdio, log, ..Default::default() };
    pod.shim.create(task).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    pod.wait(&id).await;
    pod.shim.delete(&id).await.unwrap();
    let log = read_log(&pod.log_path(name));
    log.into_iter().filter(|(stream, ..)| stream == "stdout").map(|(_, _, text)| text).collect()
}

#[tokio::test]
async fn pid_1_shows_nothing_of_the_host() {
    let Some(world) = World::new("pid_1_shows_nothing_of_the_host") else { return };
    let mut spec = world.spec();
    let net = world.pod_dir().join("net");
    spec.namespaces.pid = true;
    spec.namespaces.pid_pin = Some(world.pod_dir().join("pid"));
    spec.namespaces.net = Some(net.clone());
    let pod = world.start_with(&spec).await;
    let status = "longshore-pod Uid: 65535 65535 65535 65535 CapEff: 0000000000000000";

    let said = pry(&pod, "plain", &net, &json!([])).await;
    assert!(said.iter().any(|line| line.contains("Permission denied")), "{said:#?}");
    assert!(said.iter().any(|line| line == status), "{said:#?}");

    let caps = json!(["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_KILL"]);
    let said = pry(&pod, "ptrace", &net, &caps).await;
    let nothing = [
        "/proc/1/cwd/:",
        "",
        "/proc/1/root/:",
        "/",
        "Read-only file system",
        "Read-only file system",
        status,
        "same net",
        "alive longshore-pod",
    ];
    assert_eq!(said, nothing);
    pod.finish().await;
}

#[tokio::test]
async fn pid_1_reaps_and_the_end_of_one_container_is_not_that_of_another() {
    let Some(world) = World::new("pid_1_reaps") else { return };
    let mut spec = world.spec();
    spec.namespaces.pid = true;
    spec.namespaces.pid_pin = Some(world.pod_dir().join("pid"));
    let pod = world.start_with(&spec).await;
    let first = pod.shim.info().pod_pid.unwrap();
    let path = pod.world.pod_dir().join("pid").display().to_string();
    let wish = || Wish { pid_namespace: Some(path.clone()), ..Wish::default() };
    let other = pod.run("other", &["sleep", "1000"], wish()).await;
    // Leaves a child that outlives its parent, and one that outlives the container's first.
    let script = "(sleep 0.1 &); (sleep 1000 &); sleep 0.3";
    let id = pod.run("c", &["sh", "-c", script], wish()).await;
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    let children = format!("/proc/{first}/task/{first}/children");
    assert_eq!(fs::read_to_string(children).unwrap(), "", "orphans are killed and reaped");
    assert_eq!(pod.shim.pids(&other).await.unwrap().len(), 1);
    pod.end(&other).await;
    pod.finish().await;
}

/// Not a bound, a figure to read: other work shares these processors.
#[tokio::test]
async fn how_long_a_pod_and_a_container_take() {
    let mut took: [Vec<Duration>; 5] = Default::default();
    for _ in 0..10 {
        let Some(world) = World::new("how_long_a_pod_and_a_container_take") else { return };
        let mut spec = world.spec();
        spec.namespaces.ipc = Some(world.pod_dir().join("ipc"));
        spec.namespaces.uts = Some(world.pod_dir().join("uts"));
        spec.hostname = Some("quick".to_owned());
        let begin = Instant::now();
        let pod = world.start_with(&spec).await;
        took[0].push(begin.elapsed());
        let begin = Instant::now();
        let id = pod.create("c", &["sleep", "1000"], Wish::default()).await;
        took[1].push(begin.elapsed());
        let begin = Instant::now();
        pod.shim.start(&id).await.unwrap();
        took[2].push(begin.elapsed());
        let begin = Instant::now();
        pod.shim.kill(&id, 9, false).await.unwrap();
        pod.wait(&id).await;
        took[3].push(begin.elapsed());
        let begin = Instant::now();
        pod.shim.delete(&id).await.unwrap();
        took[4].push(begin.elapsed());
        pod.finish().await;
    }
    for (step, mut took) in ["shim", "create", "start", "kill", "delete"].into_iter().zip(took) {
        took.sort();
        eprintln!("{step}: p50 {:?}, p90 {:?}", took[5], took[8]);
    }
}
