//! What plugins ask for is so inside the running container.

use std::{fs, path::Path};

use api_cri::v1::{ContainerConfig, KeyValue, Mount as CriMount};
use nri_sdk::{
    Adjustment, Args, Container, Creation, Device, Mount, Namespace, NamespaceKind, PidsLimit,
    Rlimit, Setting,
    api::{
        Hook, Hooks, LinuxIoPriority, LinuxScheduler, LinuxSchedulerPolicy, LinuxSeccomp,
        LinuxSyscall, OptionalUInt32,
    },
};
use testkit::{Cri, Node, Pod};
use tonic::Status;

use crate::{
    LONGSHORE,
    probe::{Connected, connect, script},
};

/// A node, a pod and a plugin.
struct World {
    node: Node,
    cri: Cri,
    pod: Pod,
    probe: Connected,
}

impl World {
    async fn new(test: &str) -> Option<Self> {
        Self::of(Node::start(test, LONGSHORE).await).await
    }

    async fn of(node: Option<Node>) -> Option<Self> {
        let node = node?;
        let cri = node.cri().await.unwrap();
        let probe = connect(&node, "10-probe").await;
        let pod = cri.run_pod(&node.pod("p")).await.unwrap();
        Some(Self { node, cri, pod, probe })
    }

    /// What the container called `name` is to become.
    fn adjust(&self, adjust: impl Fn(&Container, &mut Adjustment) + Send + Sync + 'static) {
        script(&self.probe.on_create, move |container| {
            let mut creation = Creation::default();
            adjust(&container, &mut creation.adjustment);
            Ok(creation)
        });
    }

    /// What a script says, line by line.
    async fn said(&self, config: ContainerConfig) -> Vec<String> {
        let name = config.metadata.as_ref().unwrap().name.clone();
        Box::pin(self.cri.run_to_end(&self.pod, config)).await.unwrap();
        self.node.said(&self.pod, &name).unwrap()
    }

    async fn refused(&self, name: &str) -> Status {
        self.cri.create(&self.pod, self.node.sh(name, "true")).await.unwrap_err()
    }

    async fn finish(self) {
        drop(self.probe);
        self.node.finish().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_has_what_plugins_gave_it() {
    let Some(world) = World::new("a_process_has_what_plugins_gave_it").await else { return };
    world.adjust(|_, adjust| {
        adjust.env.set("NEW", "1").take_over("OVER", "2").remove("GONE");
        adjust.rlimits.insert("RLIMIT_NOFILE".into(), Rlimit { hard: 321, soft: 123 });
        adjust.oom_score_adj = Some(777);
        adjust.annotations.set("seen", "yes");
    });
    let script = "env | grep -E '^(NEW|OVER|GONE)=' | busybox sort
        echo limits $(ulimit -Sn) $(ulimit -Hn)
        echo oom $(cat /proc/self/oom_score_adj)";
    let mut config = world.node.sh("c", script);
    let pair =
        |key: &str, value: &str| KeyValue { key: key.into(), value: value.to_owned().into() };
    config.envs = vec![pair("OVER", "1"), pair("GONE", "1")];
    let said = world.said(config).await;
    assert_eq!(said, ["NEW=1", "OVER=2", "limits 123 321", "oom 777"]);

    world.adjust(|_, adjust| {
        adjust.args =
            Some(Args::Set(["/bin/echo", "something", "else"].map(str::to_owned).to_vec()));
    });
    assert_eq!(world.said(world.node.sh("args", "echo this")).await, ["something else"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_come_and_go() {
    let Some(world) = World::new("mounts_come_and_go").await else { return };
    let dir = world.node.daemon.home().join("data");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "content\n").unwrap();
    let source = dir.display().to_string();
    let from = source.clone();
    world.adjust(move |_, adjust| {
        adjust.mounts.set("/given", Mount::bind(from.clone()).option("ro"));
        adjust.mounts.remove("/asked");
    });
    let mut config = world.node.sh(
        "c",
        "cat /given/file; touch /given/x 2>/dev/null && echo written
         [ -e /asked/file ] && echo still; echo done",
    );
    config.mounts = vec![CriMount {
        container_path: "/asked".into(),
        host_path: source,
        ..CriMount::default()
    }];
    assert_eq!(world.said(config).await, ["content", "done"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_can_be_used_and_one_that_was_taken_cannot() {
    let Some(world) = World::new("a_device_can_be_used").await else { return };
    // The full device, under a name of its own.
    world.adjust(|container, adjust| match container.name.as_str() {
        "with" => drop(adjust.devices.set("/dev/brimful", Device::character(1, 7))),
        _ => drop(adjust.devices.remove("/dev/brimful")),
    });
    let script = "echo x > /dev/brimful 2>/tmp/e || cat /tmp/e";
    let said = world.said(world.node.sh("with", script)).await;
    assert!(said[0].contains("No space left"), "{said:?}");
    let mut asked = world.node.sh("without", "[ -e /dev/brimful ] || echo absent");
    asked.devices = vec![api_cri::v1::Device {
        container_path: "/dev/brimful".into(),
        host_path: "/dev/full".into(),
        permissions: "rwm".into(),
    }];
    assert_eq!(world.said(asked).await, ["absent"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_in_the_cgroup() {
    let Some(world) = World::new("limits_are_in_the_cgroup").await else { return };
    world.adjust(|_, adjust| {
        let resources = &mut adjust.resources;
        resources.cpu.shares = Some(512);
        resources.cpu.quota = Some(25_000);
        resources.cpu.period = Some(50_000);
        resources.cpu.cpus = "0".into();
        resources.cpu.mems = "0".into();
        resources.memory.limit = Some(64 << 20);
        resources.pids = Some(PidsLimit::At(44));
    });
    let (node, pod) = (&world.node, &world.pod);
    let id = world.cri.run(pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let file = |v1, v2| node.cgroups.file(pod, &id, v1, v2).unwrap();
    assert_eq!(file(("cpuset", "cpuset.cpus"), "cpuset.cpus"), "0");
    assert_eq!(file(("memory", "memory.limit_in_bytes"), "memory.max"), (64 << 20).to_string());
    assert_eq!(file(("pids", "pids.max"), "pids.max"), "44");
    let quota = file(("cpu", "cpu.cfs_quota_us"), "cpu.max");
    assert!(quota.starts_with("25000"), "{quota}");
    let status = world.cri.status(&id).await.unwrap();
    let linux = status.resources.unwrap().linux.unwrap();
    assert_eq!((linux.cpu_shares, linux.cpuset_cpus.as_str()), (512, "0"));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_and_a_sysctl_is_set() {
    let Some(world) = World::new("a_hook_runs").await else { return };
    let mark = world.node.daemon.home().join("hook-was-here");
    let script = format!("cat > {}", mark.display());
    world.adjust(move |_, adjust| {
        let hook = Hook {
            path: "/bin/sh".into(),
            args: ["sh", "-c", &script].map(str::to_owned).to_vec(),
            ..Hook::default()
        };
        adjust.hooks = Hooks { create_runtime: vec![hook], ..Hooks::default() };
        adjust.sysctl.set("kernel.msgmax", "4321");
    });
    let said = world.said(world.node.sh("c", "cat /proc/sys/kernel/msgmax")).await;
    assert_eq!(said, ["4321"]);
    let state = fs::read_to_string(&mark).unwrap();
    assert!(state.contains("\"status\""), "the hook got the state: {state}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seccomp_policy_and_a_namespace_are_the_plugins() {
    let Some(world) = World::new("a_seccomp_policy").await else { return };
    world.adjust(|container, adjust| match container.name.as_str() {
        "seccomp" => {
            let deny = LinuxSyscall {
                names: vec!["mkdir".into(), "mkdirat".into()],
                action: "SCMP_ACT_ERRNO".into(),
                errno_ret: Some(OptionalUInt32 { value: 95 }),
                ..LinuxSyscall::default()
            };
            adjust.seccomp = Some(LinuxSeccomp {
                default_action: "SCMP_ACT_ALLOW".into(),
                syscalls: vec![deny],
                ..LinuxSeccomp::default()
            });
        }
        _ => {
            let ours = Namespace::Join(format!("/proc/{}/ns/ipc", std::process::id()));
            adjust.namespaces.insert(NamespaceKind::Ipc, Setting::Set(ours));
        }
    });
    let said = world.said(world.node.sh("seccomp", "mkdir /tmp/x 2>&1; echo $?")).await;
    assert!(said[0].contains("not supported"), "{said:?}");
    assert_eq!(said[1], "1");
    let script = "busybox readlink /proc/self/ns/ipc";
    let said = world.said(world.node.sh("namespace", script)).await;
    assert_eq!(said, [fs::read_link("/proc/self/ns/ipc").unwrap().display().to_string()]);
    world.finish().await;
}

/// What the handler would drop without a word is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_here_can_do_is_refused_by_name() {
    let Some(world) = World::new("what_nobody_here_can_do").await else { return };
    world.adjust(|container, adjust| match container.name.as_str() {
        "rdt" => adjust.rdt.clos_id = Some("gold".into()),
        "cdi" => drop(adjust.cdi_devices.insert("vendor.example/none=0".into())),
        "class" => {
            adjust.resources.blockio_class = Some(nri_sdk::Class::Named("fast".into()));
        }
        "netdev" => drop(adjust.net_devices.set("none0", "eth7")),
        "cgroup" => adjust.cgroups_path = Some("../up".into()),
        _ => {}
    });
    for (name, want) in [
        ("rdt", "rdt: resctrl is not available"),
        ("cdi", "no CDI device \"vendor.example/none=0\""),
        ("class", "no block I/O class \"fast\""),
        ("netdev", "net_devices: handler"),
        ("cgroup", "cgroups_path: \"../up\""),
    ] {
        if name == "rdt" && Path::new("/sys/fs/resctrl/schemata").exists() {
            continue;
        }
        let error = world.refused(name).await;
        assert!(error.message().contains(want), "{name}: {error}");
    }
    assert_eq!(world.cri.containers().await.unwrap(), []);
    world.finish().await;
}

/// Whoever reads the error knows whose it is, though others adjusted the container too.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_applied_names_the_plugin_that_asked_for_it() {
    let Some(world) = World::new("what_cannot_be_applied").await else { return };
    let second = connect(&world.node, "20-second").await;
    script(&second.on_create, |_| {
        let mut creation = Creation::default();
        creation.adjustment.env.set("SECOND", "1");
        Ok(creation)
    });
    world.adjust(|container, adjust| match container.name.as_str() {
        "memory" => adjust.resources.memory.limit = Some(-5),
        "rlimit" => {
            adjust.rlimits.insert("RLIMIT_NOFILE".into(), Rlimit { hard: 10, soft: 20 });
        }
        // Of the names that no variable can have the SDK lets only this one pass.
        "env" => drop(adjust.env.set("A\0", "1")),
        "oom" => adjust.oom_score_adj = Some(5000),
        "cdi" => drop(adjust.cdi_devices.insert("vendor.example/none=0".into())),
        "cgroup" => adjust.cgroups_path = Some("../up".into()),
        // Of nobody's namespace: the OCI runtime refuses it.
        "sysctl" => drop(adjust.sysctl.set("kernel.no_such_thing", "1")),
        _ => {}
    });
    for (name, want) in [
        ("memory", "resources.memory_limit: -5 is "),
        ("rlimit", "Rlimits \"RLIMIT_NOFILE\": soft 20 is above hard 10"),
        ("env", "Env \"A\\0\": the name of a variable must not hold a NUL byte"),
        ("oom", "OomScoreAdj: 5000 is not in -1000..=1000"),
        ("cdi", "inject CDI devices"),
        ("cgroup", "cgroups_path: \"../up\""),
    ] {
        let error = world.refused(name).await;
        let want = format!("apply what plugin 10-probe asks for: {want}");
        assert!(error.message().contains(&want), "{name}: {error}");
    }
    assert_eq!(world.cri.containers().await.unwrap(), []);

    let id = world.cri.create(&world.pod, world.node.sh("sysctl", "true")).await.unwrap();
    let error = world.cri.start(&id).await.unwrap_err();
    let want = "(adjusted by plugins 10-probe, 20-second)";
    assert!(error.message().ends_with(want), "{error}");
    assert!(world.cri.status(&id).await.unwrap().message.contains(want));
    drop(second);
    world.finish().await;
}

/// The 19th field of stat is nice, the 41st the scheduling policy: 3 is batch.
const PRIORITIES: &str = "busybox cut -d' ' -f19,41 /proc/self/stat; busybox ionice -p $$";

fn batch() -> LinuxScheduler {
    let policy = LinuxSchedulerPolicy::SchedBatch.into();
    LinuxScheduler { policy, nice: 5, ..LinuxScheduler::default() }
}

fn best_effort(priority: i32) -> LinuxIoPriority {
    let mut io = LinuxIoPriority { priority, ..LinuxIoPriority::default() };
    io.set_class(nri_sdk::api::IoPrioClass::IoprioClassBe);
    io
}

/// By the handler, or by our shim where the handler knows nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn priorities_are_those_that_plugins_gave() {
    let Some(world) = World::new("priorities_are_those_that_plugins_gave").await else { return };
    world.adjust(|_, adjust| {
        adjust.scheduler = Some(Setting::Set(batch()));
        adjust.io_priority = Some(Setting::Set(best_effort(6)));
    });
    let want = ["5 3", "best-effort: prio 6"];
    assert_eq!(world.said(world.node.sh("ends", PRIORITIES)).await, want);

    let config = world.node.sh("runs", "exec sleep 1000");
    let id = world.cri.run(&world.pod, config).await.unwrap();
    let told = world.probe.heard("PostStartContainer", &id).await.container.linux.unwrap();
    assert_eq!(told.scheduler, Some(batch()), "plugins still see it");
    assert_eq!(told.io_priority, Some(best_effort(6)));
    let added = world.cri.exec(&id, &["sh", "-c", PRIORITIES]).await.unwrap();
    let said = String::from_utf8(added.stdout.to_vec()).unwrap();
    assert_eq!(said.lines().collect::<Vec<_>>(), want, "what is added to it is like it");

    // The next is as it would be without plugins.
    world.adjust(|_, _| {});
    let said = world.said(world.node.sh("usual", PRIORITIES)).await;
    assert_eq!(said[0], "0 0");
    world.finish().await;
}

/// The kernel has the last word, and it is told by the name of the field.
#[tokio::test(flavor = "multi_thread")]
async fn priorities_that_the_kernel_refuses_leave_nothing() {
    let Some(world) = World::new("priorities_that_the_kernel_refuses").await else { return };
    world.adjust(|container, adjust| {
        // Less than the kernel's least, which is about a microsecond.
        let deadline = LinuxScheduler {
            policy: LinuxSchedulerPolicy::SchedDeadline.into(),
            runtime: 1000,
            deadline: 1_000_000,
            period: 1_000_000,
            ..LinuxScheduler::default()
        };
        match container.name.as_str() {
            "late" => adjust.scheduler = Some(Setting::Set(deadline)),
            "nice" => adjust.scheduler = Some(Setting::Set(LinuxScheduler { nice: 77, ..batch() })),
            "io" => adjust.io_priority = Some(Setting::Set(best_effort(8))),
            _ => {}
        }
    });
    for (name, want) in
        [("nice", "scheduler: nice: 77 is not in"), ("io", "io_priority: 8 is not in")]
    {
        let error = world.refused(name).await;
        assert!(error.message().contains(want), "{error}");
    }
    assert_eq!(world.cri.containers().await.unwrap(), []);
    let id = world.cri.create(&world.pod, world.node.sh("late", "true")).await.unwrap();
    let error = world.cri.start(&id).await.unwrap_err();
    assert!(error.message().contains("scheduler"), "{error}");
    world.cri.remove(&id).await.unwrap();
    assert_eq!(world.said(world.node.sh("next", "echo well")).await, ["well"]);
    world.finish().await;
}

/// A shim that is not ours leaves it to the handler: what that cannot do is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn priorities_behind_other_shims_are_the_handlers() {
    let test = "priorities_behind_other_shims";
    if !Path::new("/usr/bin/containerd-shim-runc-v2").exists() {
        return testkit::skip(test, "containerd-shim-runc-v2 is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    let handler = "[handlers.go]\nbinary = 'runc'\nshim = 'io.containerd.runc.v2'\n";
    fs::write(&config, handler).unwrap();
    let node = Node::start_with(test, LONGSHORE, |command| {
        command.arg("--config").arg(&config);
    });
    let Some(world) = World::of(node.await).await else { return };
    world.adjust(|container, adjust| match container.name.as_str() {
        "scheduler" => adjust.scheduler = Some(Setting::Set(batch())),
        _ => adjust.io_priority = Some(Setting::Set(best_effort(6))),
    });
    for (field, want) in [("scheduler", "5 3"), ("io_priority", "best-effort: prio 6")] {
        match world.cri.create(&world.pod, world.node.sh(field, PRIORITIES)).await {
            Err(error) => {
                assert!(error.message().contains(&format!("{field}: handler")), "{error}");
            }
            Ok(id) => {
                world.cri.start(&id).await.unwrap();
                world.cri.exited(&id).await.unwrap();
                let said = world.node.said(&world.pod, field).unwrap();
                assert!(said.iter().any(|line| line == want), "{said:?}");
            }
        }
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_want_the_same_are_both_named() {
    let Some(world) = World::new("two_that_want_the_same").await else { return };
    let second = connect(&world.node, "20-second").await;
    let set = |value: &'static str| {
        move |_| {
            let mut creation = Creation::default();
            creation.adjustment.env.set("KEY", value);
            Ok(creation)
        }
    };
    script(&world.probe.on_create, set("1"));
    script(&second.on_create, set("2"));
    let error = world.refused("c").await;
    for part in ["10-probe", "20-second", "KEY"] {
        assert!(error.message().contains(part), "{error}");
    }
    script(&second.on_create, |container| {
        assert!(container.env.contains(&"KEY=1".to_owned()), "it sees what the first did");
        let mut creation = Creation::default();
        creation.adjustment.env.take_over("KEY", "2");
        Ok(creation)
    });
    assert_eq!(world.said(world.node.sh("c", "echo $KEY")).await, ["2"]);
    drop(second);
    world.finish().await;
}
