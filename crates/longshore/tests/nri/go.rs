//! A plugin on the official Go stub: what it asks for is so inside the running container, field
//! by field, and what nobody here can do is refused by name.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use api_cri::v1::{ContainerConfig, Device, KeyValue, Mount};
use serde_json::{Value, json};
use testkit::{Cri, GoTool, Node, Pod, skip};

use crate::{
    LONGSHORE,
    commands::longshore,
    probe::{socket, until},
};

/// A node, a pod and the plugin.
struct World {
    node: Node,
    cri: Cri,
    pod: Pod,
    plugin: Child,
}

impl World {
    async fn new(test: &str) -> Option<Self> {
        Self::of(test, Node::start(test, LONGSHORE).await?).await
    }

    async fn configured(test: &str, config: &Path) -> Option<Self> {
        let node = Node::start_with(test, LONGSHORE, |command| {
            command.arg("--config").arg(config);
        });
        Self::of(test, node.await?).await
    }

    async fn of(test: &str, node: Node) -> Option<Self> {
        let built = tokio::task::spawn_blocking(|| GoTool::NriPlugin.build()).await.unwrap();
        let Some(program) = built.unwrap() else {
            skip(test, "Go is not installed");
            return None;
        };
        let log = fs::File::create(node.daemon.home().join("go.log")).unwrap();
        let mut command = Command::new(program);
        command.args(["-idx", "10", "-name", "go", "-socket"]).arg(socket(&node));
        let plugin = command.stdout(log).stderr(Stdio::null()).spawn().unwrap();
        let cri = node.cri().await.unwrap();
        let mut world =
            Self { node, cri, pod: Pod { id: String::new(), config: Default::default() }, plugin };
        world.heard("Synchronize").await;
        world.pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
        Some(world)
    }

    /// Waits until the plugin has been told of an event.
    async fn heard(&self, event: &str) {
        let log = self.node.daemon.home().join("go.log");
        let want = format!("\"event\":\"{event}\"");
        let told = || fs::read_to_string(&log).unwrap().contains(&want).then_some(());
        until(event, told).await;
    }

    fn sh(&self, name: &str, script: &str, adjust: &Value) -> ContainerConfig {
        let mut config = self.node.sh(name, script);
        config.annotations.insert("adjust".into(), adjust.to_string());
        config
    }

    /// What a script says in a container that the plugin adjusts.
    async fn said(&self, script: &str, adjust: Value) -> Vec<String> {
        self.run(self.sh("c", script, &adjust)).await
    }

    async fn run(&self, config: ContainerConfig) -> Vec<String> {
        let name = config.metadata.as_ref().unwrap().name.clone();
        Box::pin(self.cri.run_to_end(&self.pod, config)).await.unwrap();
        self.node.said(&self.pod, &name).unwrap()
    }

    async fn finish(self) {
        let Self { node, mut plugin, .. } = self;
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        node.finish().await.unwrap();
    }
}

/// One field: what the container says with it.
async fn check(test: &str, script: &str, adjust: Value, want: &[&str]) {
    let Some(world) = World::new(test).await else { return };
    assert_eq!(world.said(script, adjust).await, want);
    world.finish().await;
}

// === the process ===

#[tokio::test(flavor = "multi_thread")]
async fn env() {
    let Some(world) = World::new("go::env").await else { return };
    let script = "env | grep -E '^(NEW|OVER|GONE)=' | busybox sort";
    let env = json!([
        { "key": "NEW", "value": "1" },
        { "key": "-OVER" },
        { "key": "OVER", "value": "2" },
        { "key": "-GONE" },
    ]);
    let mut config = world.sh("c", script, &json!({ "env": env }));
    let pair = |key: &str| KeyValue { key: key.into(), value: "1".to_owned().into() };
    config.envs = vec![pair("OVER"), pair("GONE")];
    assert_eq!(world.run(config).await, ["NEW=1", "OVER=2"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn args() {
    let args = json!({ "args": ["/bin/echo", "something", "else"] });
    check("go::args", "echo this", args, &["something else"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rlimit() {
    let limits = json!({ "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 123, "hard": 321 }] });
    check("go::rlimit", "echo $(ulimit -Sn) $(ulimit -Hn)", limits, &["123 321"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oom_score() {
    let score = json!({ "linux": { "oomScoreAdj": { "value": 777 } } });
    check("go::oom_score", "cat /proc/self/oom_score_adj", score, &["777"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations() {
    let Some(world) = World::new("go::annotations").await else { return };
    let adjust = json!({ "annotations": { "new": "1", "-gone": "" } });
    let mut config = world.sh("c", "true", &adjust);
    config.annotations.insert("gone".into(), "1".into());
    world.run(config).await;
    let story = longshore(&world.node, &["nri", "explain", "p/c", "--json"]).await;
    let story: Value = serde_json::from_str(&story).unwrap();
    let changes = story["changes"].as_array().unwrap();
    let of = |path: &str| changes.iter().find(|change| change["path"] == path);
    assert_eq!(of("/annotations/new").unwrap()["after"], "1", "{story:#}");
    world.finish().await;
}

// === files ===

#[tokio::test(flavor = "multi_thread")]
async fn mounts() {
    let Some(world) = World::new("go::mounts").await else { return };
    let dir = world.node.daemon.home().join("data");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "content\n").unwrap();
    let mounts = json!([
        { "destination": "/given", "source": dir, "type": "bind", "options": ["rbind", "ro"] },
        { "destination": "-/asked" },
    ]);
    let script = "cat /given/file; touch /given/x 2>/dev/null && echo written
                  [ -e /asked/file ] && echo still; echo done";
    let mut config = world.sh("c", script, &json!({ "mounts": mounts }));
    let host_path = dir.display().to_string();
    config.mounts = vec![Mount { container_path: "/asked".into(), host_path, ..Mount::default() }];
    assert_eq!(world.run(config).await, ["content", "done"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devices() {
    let Some(world) = World::new("go::devices").await else { return };
    let device = json!({ "path": "/dev/brimful", "type": "c", "major": 1, "minor": 7,
                         "fileMode": { "value": 0o666 } });
    let script = "echo x > /dev/brimful 2>/tmp/e || cat /tmp/e; ls /dev/asked 2>&1";
    let devices = json!([device, { "path": "-/dev/asked" }]);
    let mut config = world.sh("c", script, &json!({ "linux": { "devices": devices } }));
    config.devices = vec![Device {
        container_path: "/dev/asked".into(),
        host_path: "/dev/full".into(),
        permissions: "rwm".into(),
    }];
    let said = world.run(config).await;
    assert!(said[0].contains("No space left"), "it is the device: {said:?}");
    assert!(said[1].contains("No such file"), "{said:?}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks() {
    let Some(world) = World::new("go::hooks").await else { return };
    let mark = world.node.daemon.home().join("hook-was-here");
    let hook =
        json!({ "path": "/bin/sh", "args": ["sh", "-c", format!("cat > {}", mark.display())] });
    world.said("true", json!({ "hooks": { "createRuntime": [hook] } })).await;
    let state = fs::read_to_string(&mark).unwrap();
    assert!(state.contains("\"status\""), "the hook got the state: {state}");
    world.finish().await;
}

const CDI: &str = r#"
cdiVersion: "0.6.0"
kind: "vendor.example/thing"
containerEdits:
  env: ["THING_FILE=yes"]
devices:
  - name: one
    containerEdits:
      env: ["THING=one"]
      deviceNodes: [{ path: /dev/thing, hostPath: /dev/full }]
      mounts: [{ hostPath: HOST, containerPath: /thing, options: [ro, rbind] }]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn cdi_devices() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    fs::write(&config, format!("[containers]\ncdi_dirs = [{:?}]\n", dir.path())).unwrap();
    let Some(world) = World::configured("go::cdi_devices", &config).await else { return };
    fs::write(dir.path().join("file"), "of the vendor\n").unwrap();
    let adjust = |name: &str| json!({ "CDIDevices": [{ "name": name }] });
    let unknown = world.sh("unknown", "true", &adjust("vendor.example/thing=one"));
    let error = world.cri.create(&world.pod, unknown).await.unwrap_err();
    assert!(error.message().contains("no CDI device \"vendor.example/thing=one\""), "{error}");
    let text = CDI.replace("HOST", &dir.path().display().to_string());
    fs::write(dir.path().join("thing.yaml"), text).unwrap();
    let script = "echo $THING $THING_FILE; cat /thing/file
                  echo x > /dev/thing 2>/tmp/e || cat /tmp/e";
    let said = world.said(script, adjust("vendor.example/thing=one")).await;
    assert_eq!(said[..2], ["one yes", "of the vendor"]);
    assert!(said[2].contains("No space left"), "{said:?}");
    world.finish().await;
}

// === the kernel ===

#[tokio::test(flavor = "multi_thread")]
async fn cpuset_and_other_limits() {
    let Some(world) = World::new("go::cpuset_and_other_limits").await else { return };
    let resources = json!({
        "cpu": { "cpus": "0", "mems": "0", "shares": { "value": 512 } },
        "memory": { "limit": { "value": 64 << 20 } },
        "pids": { "limit": 44 },
    });
    let config = world.sh("c", "exec sleep 1000", &json!({ "linux": { "resources": resources } }));
    let id = world.cri.run(&world.pod, config).await.unwrap();
    let file = |v1, v2| world.node.cgroups.file(&world.pod, &id, v1, v2).unwrap();
    assert_eq!(file(("cpuset", "cpuset.cpus"), "cpuset.cpus"), "0");
    assert_eq!(file(("memory", "memory.limit_in_bytes"), "memory.max"), (64 << 20).to_string());
    assert_eq!(file(("pids", "pids.max"), "pids.max"), "44");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sysctl() {
    let sysctl = json!({ "linux": { "sysctl": { "kernel.msgmax": "4321" } } });
    check("go::sysctl", "cat /proc/sys/kernel/msgmax", sysctl, &["4321"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seccomp() {
    let Some(world) = World::new("go::seccomp").await else { return };
    let deny = json!({ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO",
                       "errnoRet": { "value": 95 } });
    let policy = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [deny] });
    let adjust = json!({ "linux": { "seccompPolicy": policy } });
    let said = world.said("mkdir /tmp/x 2>&1; echo $?", adjust).await;
    assert!(said[0].contains("not supported"), "{said:?}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace() {
    let Some(world) = World::new("go::namespace").await else { return };
    let ours = format!("/proc/{}/ns/ipc", std::process::id());
    let adjust = json!({ "linux": { "namespaces": [{ "type": "ipc", "path": ours }] } });
    let said = world.said("busybox readlink /proc/self/ns/ipc", adjust).await;
    assert_eq!(said, [fs::read_link("/proc/self/ns/ipc").unwrap().display().to_string()]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cgroups_path() {
    let Some(world) = World::new("go::cgroups_path").await else { return };
    let parent = world.pod.config.linux.as_ref().unwrap().cgroup_parent.clone();
    let path = format!("{parent}/elsewhere");
    let adjust = json!({ "linux": { "cgroupsPath": path } });
    let said = world.said("grep -c /elsewhere /proc/self/cgroup", adjust).await;
    assert_ne!(said, ["0"]);
    world.finish().await;
}

// === what Debian's runtime may lack ===

#[tokio::test(flavor = "multi_thread")]
async fn io_priority() {
    let io = json!({ "linux": { "ioPriority": { "class": "IOPRIO_CLASS_BE", "priority": 6 } } });
    check("go::io_priority", "busybox ionice -p 1", io, &["best-effort: prio 6"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler() {
    let batch = json!({ "linux": { "scheduler": { "policy": "SCHED_BATCH", "nice": 5 } } });
    // The 19th field of stat is nice, the 41st the scheduling policy: 3 is batch.
    check("go::scheduler", "cut -d' ' -f19,41 /proc/1/stat", batch, &["5 3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn net_devices() {
    let Some(world) = World::new("go::net_devices").await else { return };
    let adjust = json!({ "linux": { "netDevices": { "none0": { "name": "eth7" } } } });
    let config = world.sh("c", "true", &adjust);
    // Handlers that know them find that there is none of that name.
    let error = match world.cri.create(&world.pod, config).await {
        Err(error) => error,
        Ok(id) => world.cri.start(&id).await.unwrap_err(),
    };
    let message = error.message();
    assert!(message.contains("net_devices") || message.contains("none0"), "{error}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_policy() {
    let Some(world) = World::new("go::memory_policy").await else { return };
    let policy = json!({ "mode": "MPOL_INTERLEAVE", "nodes": "0" });
    let config = world.sh("c", "true", &json!({ "linux": { "memoryPolicy": policy } }));
    if let Err(error) = world.cri.run(&world.pod, config).await {
        assert!(error.message().contains("memory_policy: handler"), "{error}");
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdt() {
    let Some(world) = World::new("go::rdt").await else { return };
    let adjust = json!({ "linux": { "rdt": { "closId": { "value": "gold" } } } });
    let config = world.sh("c", "true", &adjust);
    if Path::new("/sys/fs/resctrl/schemata").exists() {
        return world.finish().await;
    }
    let error = world.cri.create(&world.pod, config).await.unwrap_err();
    assert!(error.message().contains("rdt: resctrl is not available"), "{error}");
    world.finish().await;
}
