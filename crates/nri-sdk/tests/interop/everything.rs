//! A plugin with every handler, whose answers a test writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nri_sdk::{
    Adjustment, Answer, Args, Changes, Class, Container, Context, Creation, Device, Event,
    Handlers, Mount, Namespace, NamespaceKind, PidsLimit, Plugin, PodResources, PodSandbox,
    Proposal, Rdt, Resources, Rlimit, Setting, Update, Updates, Verdict, World,
    api::{
        Hook, Hooks, IoPrioClass, LinuxDeviceCgroup, LinuxIoPriority, LinuxMemoryPolicy,
        LinuxScheduler, LinuxSchedulerFlag, LinuxSchedulerPolicy, LinuxSeccomp, LinuxSeccompArg,
        LinuxSyscall, MpolFlag, MpolMode, OptionalInt, OptionalInt64, OptionalUInt32,
    },
};
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Everything {
    script: Mutex<Script>,
    seen: Mutex<Vec<String>>,
    proposal: Mutex<Option<Proposal>>,
}

/// What to answer.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) creation: Creation,
    pub(crate) changes: Changes,
    pub(crate) freed: Updates,
    pub(crate) verdict: Verdict,
    /// Asks for an update of every container there is.
    pub(crate) update_all: bool,
}

impl Everything {
    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock());
    }

    pub(crate) fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock())
    }

    pub(crate) fn take_proposal(&self) -> Option<Proposal> {
        self.proposal.lock().take()
    }

    fn note(&self, ctx: &Context, who: &str) {
        let event = ctx.event().map_or("Synchronize", Event::method);
        assert!(ctx.remaining().is_some(), "the Go runtime sends a deadline");
        self.seen.lock().push(format!("{event} {who}"));
    }

    async fn synchronize(self: Arc<Self>, ctx: Context, world: World) -> Answer<Updates> {
        self.note(&ctx, &format!("{} {}", world.pods.len(), world.containers.len()));
        let update_all = self.script.lock().update_all;
        let containers = world.containers.into_iter().filter(|_| update_all);
        Ok(containers.map(|container| Update::of(container.id)).collect())
    }

    async fn pod(self: Arc<Self>, ctx: Context, pod: PodSandbox) -> Answer {
        self.note(&ctx, &pod.name);
        Ok(())
    }

    async fn update_pod(self: Arc<Self>, ctx: Context, pod: PodSandbox, _: PodResources) -> Answer {
        self.note(&ctx, &pod.name);
        Ok(())
    }

    async fn container(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer {
        self.note(&ctx, &format!("{}/{}", pod.name, container.name));
        Ok(())
    }

    async fn create(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Creation> {
        let answer = self.script.lock().creation.clone();
        self.container(ctx, pod, container).await?;
        Ok(answer)
    }

    async fn update(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
        _: Resources,
    ) -> Answer<Changes> {
        let answer = self.script.lock().changes.clone();
        self.container(ctx, pod, container).await?;
        Ok(answer)
    }

    async fn stop(
        self: Arc<Self>,
        ctx: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Updates> {
        let answer = self.script.lock().freed.clone();
        self.container(ctx, pod, container).await?;
        Ok(answer)
    }

    async fn validate(self: Arc<Self>, ctx: Context, proposal: Proposal) -> Answer<Verdict> {
        self.note(&ctx, &format!("{}/{}", proposal.pod.name, proposal.container.name));
        *self.proposal.lock() = Some(proposal);
        Ok(self.script.lock().verdict.clone())
    }
}

impl Plugin for Everything {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .synchronize(Self::synchronize)
            .run_pod_sandbox(Self::pod)
            .update_pod_sandbox(Self::update_pod)
            .post_update_pod_sandbox(Self::pod)
            .stop_pod_sandbox(Self::pod)
            .remove_pod_sandbox(Self::pod)
            .create_container(Self::create)
            .post_create_container(Self::container)
            .start_container(Self::container)
            .post_start_container(Self::container)
            .update_container(Self::update)
            .post_update_container(Self::container)
            .stop_container(Self::stop)
            .remove_container(Self::container)
            .validate_container_adjustment(Self::validate)
    }
}

/// An adjustment with every field set, and every entry set, removed and taken over.
pub(crate) fn every_field() -> Adjustment {
    let mut all = Adjustment::new();
    all.annotations.set("set", "1").remove("removed").take_over("taken", "over");
    all.mounts.set("/set", Mount::bind("/src").option("ro")).remove("/removed");
    all.mounts.take_over("/taken", Mount::new("tmpfs", "tmpfs").option("size=1m"));
    all.env.set("SET", "1").remove("REMOVED").take_over("TAKEN", "over");
    all.args = Some(Args::TakeOver(vec!["sh".into(), "-c".into(), "true".into()]));
    all.hooks = hooks();
    all.rlimits.insert("RLIMIT_NOFILE".into(), Rlimit { hard: 4096, soft: 1024 });
    all.cdi_devices = BTreeSet::from(["vendor.com/class=dev0".to_owned()]);
    let mut device = Device::character(10, 229);
    (device.mode, device.uid, device.gid) = (Some(0o660), Some(1), Some(2));
    all.devices.set("/dev/set", device).remove("/dev/removed");
    all.devices.take_over("/dev/taken", Device::block(8, 0));
    all.resources = every_resource();
    all.cgroups_path = Some("/pods/web".into());
    all.oom_score_adj = Some(-5);
    let mut priority = LinuxIoPriority { priority: 3, ..Default::default() };
    priority.set_class(IoPrioClass::IoprioClassBe);
    all.io_priority = Some(Setting::Set(priority));
    all.seccomp = Some(seccomp());
    let join = Setting::Set(Namespace::Join("/proc/1/ns/net".into()));
    all.namespaces = BTreeMap::from([
        (NamespaceKind::Network, join),
        (NamespaceKind::Uts, Setting::Set(Namespace::New)),
        (NamespaceKind::Ipc, Setting::Remove),
    ]);
    all.sysctl.set("net.set", "1").remove("net.removed").take_over("net.taken", "over");
    all.net_devices.set("eth1", "net1");
    all.scheduler = Some(Setting::Set(scheduler()));
    all.rdt = Rdt {
        take_over: true,
        clos_id: Some("gold".into()),
        schemata: Some(vec!["L3:0=f".into(), "MB:0=70".into()]),
        enable_monitoring: Some(true),
    };
    let mut policy = LinuxMemoryPolicy { nodes: "0-1".into(), ..Default::default() };
    policy.set_mode(MpolMode::MpolInterleave);
    policy.push_flags(MpolFlag::MpolFStaticNodes);
    all.memory_policy = Some(policy);
    all
}

fn every_resource() -> Resources {
    let mut all = Resources::new();
    all.memory.limit = Some(1 << 30);
    all.memory.reservation = Some(1 << 29);
    all.memory.swap = Some(1 << 31);
    all.memory.kernel = Some(1 << 20);
    all.memory.kernel_tcp = Some(1 << 21);
    all.memory.swappiness = Some(0);
    all.memory.disable_oom_killer = Some(false);
    all.memory.use_hierarchy = Some(true);
    all.cpu.shares = Some(512);
    all.cpu.quota = Some(-1);
    all.cpu.period = Some(100_000);
    all.cpu.realtime_runtime = Some(950);
    all.cpu.realtime_period = Some(1000);
    all.cpu.cpus = "0-3".into();
    all.cpu.mems = "0".into();
    all.hugepages.insert("2MB".into(), 4 << 20);
    all.blockio_class = Some(Class::Named("fast".into()));
    all.rdt_class = Some(Class::None);
    all.unified.insert("memory.high".into(), "500M".into());
    all.devices.push(LinuxDeviceCgroup {
        allow: true,
        r#type: "c".into(),
        major: Some(OptionalInt64 { value: 10 }),
        minor: None,
        access: "rwm".into(),
    });
    all.pids = Some(PidsLimit::At(100));
    all
}

fn hooks() -> Hooks {
    let hook = |path: &str| Hook {
        path: path.into(),
        args: vec![path.into(), "arg".into()],
        env: vec!["K=V".into()],
        timeout: Some(OptionalInt { value: 5 }),
    };
    Hooks {
        prestart: vec![hook("/1")],
        create_runtime: vec![hook("/2"), hook("/2b")],
        create_container: vec![hook("/3")],
        start_container: vec![hook("/4")],
        poststart: vec![hook("/5")],
        poststop: vec![hook("/6")],
    }
}

fn seccomp() -> LinuxSeccomp {
    LinuxSeccomp {
        default_action: "SCMP_ACT_ERRNO".into(),
        default_errno: Some(OptionalUInt32 { value: 1 }),
        architectures: vec!["SCMP_ARCH_X86_64".into()],
        flags: vec!["SECCOMP_FILTER_FLAG_LOG".into()],
        listener_path: "/run/listener".into(),
        listener_metadata: "meta".into(),
        syscalls: vec![LinuxSyscall {
            names: vec!["read".into(), "write".into()],
            action: "SCMP_ACT_ALLOW".into(),
            errno_ret: Some(OptionalUInt32 { value: 2 }),
            args: vec![LinuxSeccompArg {
                index: 1,
                value: 2,
                value_two: 3,
                op: "SCMP_CMP_EQ".into(),
            }],
        }],
    }
}

fn scheduler() -> LinuxScheduler {
    let mut scheduler = LinuxScheduler {
        nice: -5,
        priority: 7,
        runtime: 1,
        deadline: 2,
        period: 3,
        ..Default::default()
    };
    scheduler.set_policy(LinuxSchedulerPolicy::SchedFifo);
    scheduler.push_flags(LinuxSchedulerFlag::SchedFlagResetOnFork);
    scheduler
}
