//! The daemon as crictl sees it: the walk of every command over real pods.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use api_cri::v1::PodSandboxConfig;
use serde_json::{Value, json};
use testkit::{
    Cgroups, DaemonProcess, GoTool, Node, Pod, RustTool,
    cni::{self, Traces, on_own_network},
    registry::Registry,
};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// crictl, pointed at one daemon, in a directory for its files.
struct Crictl {
    program: PathBuf,
    endpoint: String,
    dir: tempfile::TempDir,
}

impl Crictl {
    fn new(program: PathBuf, daemon: &DaemonProcess) -> Self {
        let endpoint = format!("unix://{}", daemon.cri_socket().display());
        Self { program, endpoint, dir: tempfile::tempdir().unwrap() }
    }

    fn output(&self, args: &[&str]) -> Output {
        Command::new(&self.program)
            .args(["--config", "/dev/null", "--runtime-endpoint", &self.endpoint])
            .args(["--image-endpoint", &self.endpoint, "--timeout", "60s"])
            .args(args)
            .output()
            .unwrap()
    }

    /// What it printed; it must have succeeded.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "crictl {args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args)).unwrap()
    }

    fn file(&self, name: &str, content: &Value) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, content.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn version_and_info() {
    let Some(crictl) = GoTool::Crictl.build().unwrap() else {
        return testkit::skip("version_and_info", "crictl needs Go to be built");
    };
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let crictl = Crictl::new(crictl, &daemon);
    let version = crictl.run(&["version"]);
    assert!(version.contains("RuntimeName:  longshore"), "{version}");
    assert!(version.contains("RuntimeApiVersion:  v1"), "{version}");
    let info = crictl.json(&["info"]);
    let conditions = info["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions[0]["type"], "RuntimeReady");
    assert_eq!(conditions[0]["status"], true, "{conditions:?}");
    assert_eq!(conditions[1]["type"], "NetworkReady");
    let state = info["config"]["stateDir"].as_str().unwrap();
    assert_eq!(state, daemon.state().to_str().unwrap());
    assert!(!info["config"]["handlers"].as_array().unwrap().is_empty());
}

/// `stats, statsp, metricdescs, metricsp, events`.
#[tokio::test(flavor = "multi_thread")]
async fn figures_and_events() {
    let Some(program) = GoTool::Crictl.build().unwrap() else {
        return testkit::skip("figures_and_events", "crictl needs Go to be built");
    };
    let Some(node) = Node::start("figures_and_events", LONGSHORE).await else { return };
    let crictl = Crictl::new(program, &node.daemon);
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("figures")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "while :; do :; done")).await.unwrap();

    let stats = crictl.json(&["stats", "-o", "json", &id]);
    let of = &stats["stats"][0];
    assert_eq!(of["attributes"]["id"], id.as_str());
    assert!(number(&of["memory"]["workingSetBytes"]["value"]) > 0, "{stats}");
    assert!(number(&of["cpu"]["usageCoreNanoSeconds"]["value"]) > 0, "{stats}");
    let table = crictl.run(&["stats", &id[..12]]);
    assert!(table.contains("CPU %") && table.contains(&id[..12]), "{table}");
    let stats = crictl.json(&["statsp", "-o", "json", &pod.id]);
    assert_eq!(number(&stats["stats"][0]["linux"]["process"]["processCount"]["value"]), 1);
    let descriptors = crictl.json(&["metricdescs"]);
    assert!(descriptors["descriptors"].as_array().unwrap().len() >= 56);
    let metrics = crictl.json(&["metricsp"]);
    assert_eq!(metrics["podMetrics"][0]["podSandboxId"], pod.id.as_str());

    let out = crictl.dir.path().join("events");
    let mut child = Command::new(&crictl.program)
        .args(["--config", "/dev/null", "--runtime-endpoint", &crictl.endpoint, "events"])
        .stdout(fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    // What happened before anybody listened comes first.
    let heard = wait_for_text(&out, "CONTAINER_STARTED_EVENT").await;
    cri.stop(&id, 0).await.unwrap();
    let stopped = wait_for_text(&out, "CONTAINER_STOPPED_EVENT").await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(heard && stopped, "{}", fs::read_to_string(&out).unwrap());
    node.finish().await.unwrap();
}

/// protobuf's JSON has 64-bit numbers as text.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_u64()).unwrap()
}

async fn wait_for_text(path: &std::path::Path, text: &str) -> bool {
    for _ in 0..600 {
        if fs::read_to_string(path).is_ok_and(|all| all.contains(text)) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk() {
    if !testkit::is_root() {
        return testkit::skip("the_walk", "needs root");
    }
    let Some(program) = GoTool::Crictl.build().unwrap() else {
        return testkit::skip("the_walk", "crictl needs Go to be built");
    };
    walk(program, Network::Host, "").await;
}

/// containerd's shim for runc keeps the pods.
const FOREIGN: &str = "[handlers.go]\nbinary = 'runc'\nshim = 'io.containerd.runc.v2'\n";

fn lacks_foreign_shim(test: &str) -> bool {
    let lacks = !Path::new("/usr/bin/containerd-shim-runc-v2").exists();
    if lacks {
        testkit::skip(test, "no containerd-shim-runc-v2");
    }
    lacks
}

#[test]
fn the_walk_under_a_foreign_shim() {
    const TEST: &str = "the_walk_under_a_foreign_shim";
    if !lacks_foreign_shim(TEST) {
        walk_on_a_bridge(TEST, FOREIGN);
    }
}

#[test]
#[ignore = "builds the shim, which takes minutes"]
fn the_walk_under_a_shim_in_rust() {
    const TEST: &str = "the_walk_under_a_shim_in_rust";
    let Some(shim) = RustTool::RuncShim.find(TEST) else { return };
    walk_on_a_bridge(TEST, &format!("[handlers.rust]\nbinary = 'runc'\nshim = {shim:?}\n"));
}

#[test]
#[ignore = "builds youki, which takes minutes"]
fn the_walk_over_youki() {
    const TEST: &str = "the_walk_over_youki";
    let Some(youki) = RustTool::Youki.find(TEST) else { return };
    walk_on_a_bridge(TEST, &format!("[handlers.youki]\nbinary = {youki:?}\n"));
}

/// A shim that makes the pod itself.
#[test]
fn the_walk_under_a_sandbox_service() {
    let shim = testkit::sandbox_shim(LONGSHORE);
    let config =
        format!("[handlers.sandbox]\nbinary = 'runc'\nsandboxer = 'shim'\nshim = {shim:?}\n");
    walk_on_a_bridge("the_walk_under_a_sandbox_service", &config);
}

#[test]
fn the_walk_on_a_bridge() {
    walk_on_a_bridge("the_walk_on_a_bridge", "");
}

fn walk_on_a_bridge(test: &str, config: &str) {
    let Some(program) = GoTool::Crictl.build().unwrap() else {
        return testkit::skip(test, "crictl needs Go to be built");
    };
    on_own_network(test, || async {
        let leases = tempfile::tempdir().unwrap();
        walk(program, Network::Bridge(leases.path()), config).await;
        assert_eq!(Traces::now(leases.path()).leases, [""; 0]);
    });
}

/// Of the pod that walks.
#[derive(Clone, Copy)]
enum Network<'a> {
    Host,
    /// With its leases there.
    Bridge(&'a Path),
}

impl Network<'_> {
    fn of_pod(self) -> i32 {
        match self {
            Self::Host => 2,
            Self::Bridge(_) => 0,
        }
    }

    /// What the daemon says it is ready for, and what the pod has.
    fn check(self, crictl: &Crictl, pod: &str) {
        let inspected = crictl.json(&["inspectp", pod]);
        let network = &inspected["status"]["network"];
        let answered = &inspected["info"]["cniResult"];
        let ready = &crictl.json(&["info"])["status"]["conditions"][1]["status"];
        match self {
            Self::Host => {
                assert_eq!((network["ip"].as_str(), ready), (Some(""), &json!(false)));
                assert!(answered.is_null(), "{answered}");
            }
            Self::Bridge(_) => {
                let ip = network["ip"].as_str().unwrap();
                assert!(ip.starts_with("10.88.40.") && ready == true, "{network} {ready}");
                let address = answered["eth0"]["ips"][0]["address"].as_str().unwrap();
                assert_eq!(address, format!("{ip}/24"));
            }
        }
    }
}

/// `pull, images, inspecti, runp, pods, inspectp, create, start, ps, inspect, logs, exec -s,
/// update, stop, rm, stopp, rmp, rmi`.
async fn walk(program: PathBuf, network: Network<'_>, config: &str) {
    let registry = Registry::start().await.unwrap();
    registry.push("test/busybox", "1", &testkit::image::busybox().unwrap());
    let image = format!("{}/test/busybox:1", registry.host());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, config).unwrap();
    let with_config = |command: &mut Command| {
        command.arg("--config").arg(file.path());
    };
    let mut daemon = DaemonProcess::start_with(LONGSHORE, with_config).await.unwrap();
    // As the directory: nobody else has the name.
    let name = daemon.home().file_name().unwrap().to_str().unwrap();
    let cgroups = Cgroups::of(&daemon, name).await.unwrap();
    let crictl = Crictl::new(program, &daemon);
    if let Network::Bridge(leases) = network {
        let conf = cni::bridge(leases, &["10.88.40.0/24"]).to_string();
        cni::configure(&daemon.root().join("cni/net.d"), "10.conflist", &conf);
        wait_for_network(&crictl);
    }

    walk_images(&crictl, &image);
    let pod_config = pod_config(&crictl, &network, &cgroups);
    let pod = crictl.run(&["runp", &pod_config]);
    let pods = crictl.json(&["pods", "-o", "json", "--label", "app=walk"]);
    assert_eq!(pods["items"][0]["id"], pod.as_str());
    assert_eq!(crictl.json(&["inspectp", &pod])["status"]["state"], "SANDBOX_READY");
    network.check(&crictl, &pod);
    walk_container(&crictl, &cgroups, &image, (&pod, &pod_config));
    crictl.run(&["stopp", &pod]);
    assert_eq!(crictl.json(&["inspectp", &pod])["status"]["state"], "SANDBOX_NOTREADY");
    crictl.run(&["rmp", &pod]);
    assert_eq!(crictl.run(&["pods", "-q"]), "");
    crictl.run(&["rmi", &image]);
    assert_eq!(crictl.run(&["images", "-q"]), "");

    let left = daemon.left_behind();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(daemon.stop().await.unwrap().code, Some(0));
    cgroups.remove().unwrap();
}

fn walk_images(crictl: &Crictl, image: &str) {
    crictl.run(&["pull", image]);
    let images = crictl.json(&["images", "-o", "json"]);
    assert_eq!(images["images"][0]["repoTags"], json!([image]));
    assert!(
        crictl.json(&["inspecti", image])["status"]["id"].as_str().unwrap().starts_with("sha256:")
    );
    assert!(crictl.run(&["imagefsinfo"]).contains("overlayfs"));
}

fn pod_config(crictl: &Crictl, network: &Network<'_>, cgroups: &Cgroups) -> String {
    crictl.file(
        "pod.json",
        &json!({
            "metadata": { "name": "walk", "namespace": "default", "uid": "u1", "attempt": 1 },
            "log_directory": crictl.dir.path().join("logs"),
            "labels": { "app": "walk" },
            "linux": { "security_context": { "namespace_options": { "network": network.of_pod() } },
                       "cgroup_parent": cgroups.parent() },
        }),
    )
}

/// From `create` to `rm`, in a pod that runs.
fn walk_container(crictl: &Crictl, cgroups: &Cgroups, image: &str, (pod, config): (&str, &str)) {
    let container_config = crictl.file(
        "container.json",
        &json!({
            "metadata": { "name": "hello", "attempt": 0 },
            "image": { "image": image },
            "command": ["/bin/sh", "-c", "echo hello world; echo oops >&2; exec sleep 1000"],
            "log_path": "hello.log",
            "linux": { "resources": { "memory_limit_in_bytes": 67_108_864 } },
        }),
    );
    let id = crictl.run(&["create", pod, &container_config, config]);
    crictl.run(&["start", &id]);
    assert_eq!(crictl.json(&["ps", "-o", "json"])["containers"][0]["id"], id.as_str());
    assert_eq!(crictl.run(&["exec", "-s", &id, "echo", "inside"]), "inside");
    assert_eq!(crictl.run(&["exec", "-s", &id[..8], "id", "-u"]), "0");
    assert_eq!(wait_for_log(crictl, &id, 2), "hello world\noops");

    crictl.run(&["update", "--memory", "134217728", &id]);
    let inspected = crictl.json(&["inspect", &id]);
    assert_eq!(inspected["status"]["state"], "CONTAINER_RUNNING");
    assert_eq!(inspected["status"]["resources"]["linux"]["memoryLimitInBytes"], "134217728");
    let mut config = PodSandboxConfig::default();
    config.linux.get_or_insert_default().cgroup_parent = cgroups.parent();
    let asked = Pod { id: pod.to_owned(), config };
    let limit = cgroups.file(&asked, &id, ("memory", "memory.limit_in_bytes"), "memory.max");
    assert_eq!(limit.as_deref(), Some("134217728"), "in the kernel too");

    crictl.run(&["stop", "--timeout", "0", &id]);
    let stopped = crictl.json(&["inspect", &id]);
    assert_eq!(stopped["status"]["state"], "CONTAINER_EXITED");
    assert_eq!(stopped["status"]["exitCode"], 137);
    crictl.run(&["rm", &id]);
}

/// The directory is followed: it takes a moment.
fn wait_for_network(crictl: &Crictl) {
    for _ in 0..600 {
        if crictl.json(&["info"])["status"]["conditions"][1]["status"] == true {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no network: {}", crictl.run(&["info"]));
}

/// The log once it has that many lines: the container writes when it likes.
fn wait_for_log(crictl: &Crictl, id: &str, lines: usize) -> String {
    for _ in 0..100 {
        let output = crictl.output(&["logs", id]);
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        if text.lines().count() >= lines {
            return text.trim().to_owned();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the log never had {lines} lines");
}
