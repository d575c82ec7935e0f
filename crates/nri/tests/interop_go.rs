//! A plugin on the official Go stub against our runtime side. Where there is no Go the tests
//! say so loudly and pass.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is the test's failure")]

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt};
use nri::{
    Ask, BareHost, Container, Created, Domain, DomainError, Nri, NriError, Pod, Resources,
    RuntimeInfo, Settings,
};
use oci_spec::runtime as oci;
use parking_lot::Mutex;
use tokio::{
    process::{Child, Command},
    sync::OnceCell,
};

const SOON: Duration = Duration::from_secs(30);

/// Builds the Go program once; `None` where there is no Go.
async fn program() -> Option<&'static Path> {
    static PROGRAM: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    PROGRAM.get_or_init(build).await.as_deref()
}

async fn build() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nri-go");
    let built = Command::new("go")
        .current_dir(root.join("tests/interop/nri-go"))
        .args(["build", "-mod=mod", "-o"])
        .args([program.as_os_str(), ".".as_ref()])
        .status()
        .await;
    match built {
        Ok(status) => {
            assert!(status.success(), "go build: {status}");
            Some(program)
        }
        Err(error) => {
            skip(&format!("cannot run go: {error}"));
            None
        }
    }
}

/// Not by a print macro, which the test harness would hide.
fn skip(why: &str) {
    let line = format!("SKIPPED: nri interop with Go: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(log) = std::env::var_os("LONGSHORE_SKIP_LOG") {
        let log = fs::OpenOptions::new().create(true).append(true).open(log);
        log.and_then(|mut log| log.write_all(line.as_bytes())).unwrap();
    }
}

/// A runtime with a socket, and what its containers were given.
struct World {
    nri: Nri,
    domain: Arc<Shares>,
    dir: tempfile::TempDir,
}

#[derive(Default)]
struct Shares(Mutex<BTreeMap<String, u64>>);

impl Domain for Shares {
    fn name(&self) -> &str {
        "k8s.io"
    }

    fn resources<'a>(
        &'a self,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Resources>, DomainError>> {
        async { Ok(Some(Resources::default())) }.boxed()
    }

    /// A quota of 13 is bad luck.
    fn update<'a>(
        &'a self,
        id: &'a str,
        resources: &'a Resources,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        async move {
            let cpu = resources.linux.cpu().clone().unwrap_or_default();
            if cpu.quota() == Some(13) {
                return Err(DomainError::Failed("bad luck".into()));
            }
            self.0.lock().insert(id.to_owned(), cpu.shares().unwrap_or_default());
            Ok(())
        }
        .boxed()
    }

    fn evict<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), DomainError>> {
        async { Ok(()) }.boxed()
    }
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("plugins")).unwrap();
        fs::create_dir(dir.path().join("conf")).unwrap();
        Self::at(dir).await
    }

    async fn at(dir: tempfile::TempDir) -> Self {
        let settings = Settings {
            socket: Some(dir.path().join("nri/nri.sock")),
            plugin_dirs: vec![dir.path().join("plugins")],
            config_dirs: vec![dir.path().join("conf")],
            ..Settings::default()
        };
        let nri = Nri::new(settings, RuntimeInfo::new("longshore", "0.1.0")).unwrap();
        let domain = Arc::new(Shares::default());
        nri.add_domain(Arc::clone(&domain) as Arc<dyn Domain>, &[], &[]);
        nri.start().await.unwrap();
        Self { nri, domain, dir }
    }

    /// Starts the Go plugin, and waits until it is part of the set.
    async fn plugin(&self, program: &Path, id: &str, mode: &str) -> GoPlugin {
        let plugin = self.start(program, id, mode);
        self.wait_for(id).await;
        plugin
    }

    fn start(&self, program: &Path, id: &str, mode: &str) -> GoPlugin {
        let (index, name) = id.split_once('-').unwrap();
        let log = self.dir.path().join(format!("{id}.log"));
        let child = Command::new(program)
            .args(["-idx", index, "-name", name, "-mode", mode, "-socket"])
            .arg(self.dir.path().join("nri/nri.sock"))
            .stdout(fs::File::create(&log).unwrap())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        GoPlugin { child, log }
    }

    async fn wait_for(&self, id: &str) {
        let active = async {
            while !self.nri.plugins().iter().any(|p| p.active && p.id.to_string() == id) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(SOON, active).await.expect("the plugin joins");
    }

    async fn create(&self, container: &Container) -> Result<Created, NriError> {
        self.nri.create_container(&pod(), container, Arc::new(BareHost), &Ask::default()).await
    }

    fn shares(&self, id: &str) -> Option<u64> {
        self.domain.0.lock().get(id).copied()
    }
}

struct GoPlugin {
    child: Child,
    log: PathBuf,
}

impl GoPlugin {
    /// What it was told: event, object and detail, in order.
    fn lines(&self) -> Vec<(String, String, String)> {
        lines(&self.log)
    }

    async fn end(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn lines(log: &Path) -> Vec<(String, String, String)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let parse = |line: &str| -> (String, String, String) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let get = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let object = if get("container").is_empty() { get("pod") } else { get("container") };
        (get("event"), object, get("detail"))
    };
    text.lines().map(parse).collect()
}

async fn wait_for_line(log: &Path, event: &str) -> (String, String, String) {
    let found = async {
        loop {
            if let Some(line) = lines(log).into_iter().find(|line| line.0 == event) {
                return line;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let in_time = tokio::time::timeout(SOON, found).await;
    in_time.unwrap_or_else(|_| panic!("no {event} among {:?}", lines(log)))
}

fn pod() -> Pod {
    Pod {
        domain: "k8s.io".to_owned(),
        id: "pod".to_owned(),
        ips: vec!["10.0.0.1".to_owned()],
        ..Pod::default()
    }
}

fn container(id: &str) -> Container {
    let mut spec = oci::Spec::default();
    spec.set_annotations(Some([("old-annotation".to_owned(), "1".to_owned())].into()));
    let process = spec.process_mut().as_mut().unwrap();
    process.set_env(Some(vec!["PATH=/bin".to_owned(), "OLD=1".to_owned()]));
    let mut mount = oci::Mount::default();
    mount.set_destination("/old-mount".into());
    spec.mounts_mut().get_or_insert_default().push(mount);
    let mut device = oci::LinuxDevice::default();
    device.set_path("/dev/old".into());
    spec.linux_mut().as_mut().unwrap().set_devices(Some(vec![device]));
    Container {
        id: id.to_owned(),
        pod_id: "pod".to_owned(),
        name: format!("name-{id}"),
        spec: Arc::new(spec),
        ..Container::default()
    }
}

fn annotated(id: &str, key: &str, value: &str) -> Container {
    let annotations = [(key.to_owned(), value.to_owned())].into();
    Container { annotations, ..container(id) }
}

fn shares(value: u64) -> Resources {
    let mut cpu = oci::LinuxCpu::default();
    cpu.set_shares(Some(value));
    let mut resources = Resources::default();
    resources.linux.set_cpu(Some(cpu));
    resources
}

#[tokio::test]
async fn a_go_plugin_gets_every_event_in_order() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    let plugin = world.plugin(program, "10-go", "validate").await;
    let (p, c, ask, nri) = (pod(), container("c"), Ask::default(), &world.nri);
    nri.run_pod(&p, &ask).await.unwrap();
    nri.update_pod(&p, None, Some(&shares(3)), &ask).await.unwrap();
    nri.post_update_pod(&p).await;
    world.create(&c).await.unwrap();
    nri.post_create_container(&p, &c).await;
    let started = Container { pid: Some(4711), ..c.clone() };
    nri.start_container(&p, &started, &ask).await.unwrap();
    nri.post_start_container(&p, &c).await;
    let updated = nri.update_container(&p, &c, &shares(6), &ask).await.unwrap();
    assert_eq!(updated.linux.pids().as_ref().unwrap().limit(), 44);
    assert_eq!(updated.linux.cpu().as_ref().unwrap().shares(), Some(6));
    nri.post_update_container(&p, &c).await;
    nri.stop_container(&p, &c, &ask).await.unwrap();
    nri.remove_container(&p, &c).await;
    nri.stop_pod(&p, &ask).await.unwrap();
    nri.remove_pod(&p).await;
    nri.shutdown().await;
    let told = plugin.lines();
    let want = [
        ("Configure", "", "longshore 0.1.0 5s 2s"),
        ("Synchronize", "", "0 0"),
        ("RunPodSandbox", "pod", "10.0.0.1"),
        ("UpdatePodSandbox", "pod", "3"),
        ("PostUpdatePodSandbox", "pod", ""),
        ("CreateContainer", "c", "2"),
        ("ValidateContainerAdjustment", "c", ""),
        ("PostCreateContainer", "c", ""),
        ("StartContainer", "c", "4711"),
        ("PostStartContainer", "c", ""),
        ("UpdateContainer", "c", "6"),
        ("PostUpdateContainer", "c", ""),
        ("StopContainer", "c", ""),
        ("RemoveContainer", "c", ""),
        ("StopPodSandbox", "pod", ""),
        ("RemovePodSandbox", "pod", ""),
        ("Shutdown", "", ""),
    ];
    let told: Vec<_> = told.iter().map(|l| (l.0.as_str(), l.1.as_str(), l.2.as_str())).collect();
    assert_eq!(told, want);
    plugin.end().await;
}

#[tokio::test]
async fn adjustments_of_every_field_arrive_in_the_specification() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    let plugin = world.plugin(program, "10-go", "adjust").await;
    let created = world.create(&container("c")).await.unwrap();
    let spec = serde_json::to_value(&created.spec).unwrap();
    let at = |path: &str| spec.pointer(path).cloned().unwrap_or(serde_json::Value::Null);
    let find = |path: &str, key: &str, value: &str| {
        let list = at(path);
        let found = list.as_array().into_iter().flatten().find(|entry| entry[key] == value);
        found.cloned().unwrap_or(serde_json::Value::Null)
    };
    use serde_json::json;
    assert_eq!(at("/annotations"), json!({"annotation": "new"}));
    assert_eq!(find("/mounts", "destination", "/mnt")["options"], json!(["ro"]));
    assert!(find("/mounts", "destination", "/old-mount").is_null());
    assert_eq!(at("/process/env"), json!(["PATH=/bin", "NEW=value"]));
    assert_eq!(at("/process/args"), json!(["run", "it"]));
    assert_eq!(at("/hooks/poststop"), json!([{"path": "/hook", "args": ["hook"], "timeout": 5}]));
    assert_eq!(find("/process/rlimits", "type", "RLIMIT_CORE")["hard"], 2);
    assert_eq!(find("/linux/devices", "path", "/dev/new")["minor"], 200);
    assert!(find("/linux/devices", "path", "/dev/old").is_null());
    assert!(!find("/linux/namespaces", "type", "cgroup").is_null());
    assert_eq!(at("/linux/sysctl"), json!({"net.core.somaxconn": "256"}));
    assert_eq!(at("/linux/netDevices"), json!({"host0": {"name": "in0"}}));
    assert_eq!(at("/linux/cgroupsPath"), "/other/path");
    assert_eq!(at("/process/oomScoreAdj"), 321);
    assert_eq!(at("/process/ioPriority"), json!({"class": "IOPRIO_CLASS_BE", "priority": 6}));
    assert_eq!(at("/process/scheduler"), json!({"policy": "SCHED_BATCH", "nice": 4}));
    let seccomp = json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38});
    assert_eq!(at("/linux/seccomp"), seccomp);
    let policy =
        json!({"mode": "MPOL_INTERLEAVE", "nodes": "0-1", "flags": ["MPOL_F_STATIC_NODES"]});
    assert_eq!(at("/linux/memoryPolicy"), policy);
    let memory = json!({
        "limit": 1_u64 << 30, "reservation": 1_u64 << 29, "swap": 1_u64 << 31, "swappiness": 10,
        "disableOOMKiller": true, "useHierarchy": true,
    });
    assert_eq!(at("/linux/resources/memory"), memory);
    let cpu = json!({
        "shares": 512, "quota": 50000, "period": 100_000, "realtimeRuntime": 1000,
        "realtimePeriod": 2000, "cpus": "0-1", "mems": "0",
    });
    assert_eq!(at("/linux/resources/cpu"), cpu);
    assert_eq!(at("/linux/resources/pids"), json!({"limit": 99}));
    assert_eq!(at("/linux/resources/hugepageLimits"), json!([{"pageSize": "2MB", "limit": 4096}]));
    assert_eq!(at("/linux/resources/unified"), json!({"memory.high": "900"}));
    let rdt = json!({"closID": "gold", "schemata": ["L3:0=f"], "enableMonitoring": true});
    assert_eq!(at("/linux/intelRdt"), rdt);
    world.nri.shutdown().await;
    plugin.end().await;
}

#[tokio::test]
async fn updates_of_others_and_out_of_turn() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    let plugin = world.plugin(program, "10-go", "unsolicited").await;
    world.create(&container("other")).await.unwrap();
    world.create(&annotated("c", "update", "other")).await.unwrap();
    assert_eq!(world.shares("other"), Some(77));
    world.nri.post_start_container(&pod(), &container("c")).await;
    let answered = async {
        while plugin.lines().iter().filter(|line| line.0 == "UpdateContainers").count() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, answered).await.expect("no deadlock inside a handler");
    let answers: Vec<_> =
        plugin.lines().into_iter().filter(|l| l.0 == "UpdateContainers").collect();
    assert_eq!((answers[0].2.as_str(), answers[1].2.as_str()), ("0 <nil>", "1 <nil>"));
    assert_eq!(world.shares("c"), Some(55));
    world.nri.shutdown().await;
    plugin.end().await;
}

#[tokio::test]
async fn a_go_validator_and_a_go_refusal() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    let adjuster = world.plugin(program, "10-go", "adjust").await;
    let judge = world.plugin(program, "20-judge", "validate").await;
    world.create(&container("good")).await.unwrap();
    let owner = wait_for_line(&judge.log, "ValidateContainerAdjustment").await.2;
    assert_eq!(owner, "10-go");
    let error = world.create(&annotated("bad", "reject", "yes")).await.unwrap_err();
    let want =
        r#"validator "20-judge" rejected container adjustment, reason: rejected by annotation"#;
    assert_eq!(error.to_string(), want);
    let annotations = [("refuse".to_owned(), "yes".to_owned())].into();
    let refused = world.nri.run_pod(&Pod { annotations, ..pod() }, &Ask::default()).await;
    let error = refused.unwrap_err();
    assert_eq!(error.to_string(), "plugin 10-go refused RunPodSandbox: refused by annotation");
    world.nri.shutdown().await;
    adjuster.end().await;
    judge.end().await;
}

/// Messages around the sizes at which the Go side reads differently, up to the largest.
#[tokio::test]
async fn messages_of_all_sizes_pass_in_both_directions() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    let plugin = world.plugin(program, "10-go", "").await;
    let sizes = (3300..4300).step_by(37).chain([5_000, 65_536, 1 << 20, 4_000_000, 4_180_000]);
    for (i, size) in sizes.enumerate() {
        let mut request = container(&format!("c{i}"));
        let fat = "x".repeat(size);
        request.annotations.insert("fat".to_owned(), fat);
        world.create(&request).await.unwrap();
        let answer = annotated(&format!("d{i}"), "answer-bytes", &size.to_string());
        let created = world.create(&answer).await.unwrap();
        assert_eq!(created.spec.annotations().as_ref().unwrap()["big"].len(), size);
    }
    // One above the limit costs its own request and neither the plugin nor the next.
    let mut request = container("too-large");
    request.annotations.insert("fat".to_owned(), "x".repeat(4_200_000));
    assert!(world.create(&request).await.is_err());
    world.create(&container("next")).await.unwrap();
    world.nri.shutdown().await;
    plugin.end().await;
}

#[tokio::test]
async fn four_thousand_containers_are_synchronised_in_parts() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    for i in 0..4000 {
        let fat = annotated(&format!("c{i:04}"), "fat", &"x".repeat(2000));
        world.create(&fat).await.unwrap();
    }
    let plugin = world.plugin(program, "10-go", "").await;
    let (_, _, counts) = wait_for_line(&plugin.log, "Synchronize").await;
    assert_eq!(counts, "0 4000");
    assert_eq!(plugin.lines().iter().filter(|line| line.0 == "Synchronize").count(), 1);
    world.nri.shutdown().await;
    plugin.end().await;
}

#[tokio::test]
async fn a_go_program_is_launched_configured_and_started_again() {
    let Some(program) = program().await else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    fs::create_dir(dir.path().join("conf")).unwrap();
    std::os::unix::fs::symlink(program, dir.path().join("plugins/15-launched")).unwrap();
    let log = dir.path().join("launched.log");
    let config = format!("log={} mode=adjust", log.display());
    fs::write(dir.path().join("conf/launched.conf"), config).unwrap();
    let world = World::at(dir).await;
    // Started and joined before anything can be created.
    let status = world.nri.plugins().remove(0);
    assert!(status.active && status.id.to_string() == "15-launched");
    let created = world.create(&container("c")).await.unwrap();
    assert_eq!(created.spec.annotations().as_ref().unwrap()["annotation"], "new");

    let nri::Origin::Launched { pid } = status.origin else { panic!("{status:?}") };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let again = async {
        while lines(&log).iter().filter(|line| line.0 == "Synchronize").count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, again).await.expect("it is started again");
    let last = lines(&log).into_iter().rfind(|line| line.0 == "Synchronize").unwrap();
    assert_eq!(last.2, "0 1", "and told what exists");
    world.wait_for("15-launched").await;
    world.nri.shutdown().await;
    assert_eq!(lines(&log).iter().filter(|line| line.0 == "Shutdown").count(), 1);
}

#[tokio::test]
async fn a_go_plugin_that_is_killed_is_gone_and_may_come_back() {
    let Some(program) = program().await else { return };
    let world = World::new().await;
    for _ in 0..3 {
        let plugin = world.plugin(program, "10-go", "").await;
        world.nri.run_pod(&pod(), &Ask::default()).await.unwrap();
        plugin.end().await;
        let gone = async {
            while !world.nri.plugins().is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(SOON, gone).await.unwrap();
        world.nri.remove_pod(&pod()).await;
    }
    world.nri.shutdown().await;
}
