//! An engine with real pods, whose one image is busybox in a folder.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base::Id;
use engine::{
    Engine, EngineConfig, EngineError, ForeignShim, Handler, Limits, SandboxKind,
    record::PinnedImage,
    request::{CheckpointRequest, NewContainer, PodName, PodNamespace, PodPid, PodRequest},
    storage::{Boxed, NewRootfs, NewView, Storage},
};
use net::{NetConfig, SourceConfig};
use oci::{CgroupDriver, ContainerRequest, HandlerFacts, ImageFacts};
use store::Store;
use sys::mount::{self, Attrs, Overlay, Unmount, Upper};
use testkit::RustTool;

/// Every test has its own directories and cgroup.
pub(crate) struct Host {
    dir: PathBuf,
    pub(crate) cgroup: String,
    keeper: Keeper,
    /// Removed with us, unless the directory is somebody else's.
    _own: Option<tempfile::TempDir>,
}

/// What keeps the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Keeper {
    #[default]
    Own,
    /// containerd's shim for runc.
    #[allow(dead_code, reason = "not every test has another")]
    Foreign,
    /// One that makes the pod itself.
    #[allow(dead_code, reason = "not every test has another")]
    Service,
    /// containerd's shim for runc as it is written in Rust.
    #[allow(dead_code, reason = "not every test has another")]
    Rust,
    /// Our own shim, over a runtime that unmounts the root of what it deletes, as some shims do.
    #[allow(dead_code, reason = "not every test has another")]
    Tidy,
    /// Our own shim, in pods whose containers share a PID namespace.
    #[allow(dead_code, reason = "not every test has another")]
    SharedPids,
    /// Our own shim, over youki.
    #[allow(dead_code, reason = "not every test has another")]
    Youki,
}

#[allow(dead_code, reason = "not every test has another")]
impl Keeper {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Foreign => "foreign",
            Self::Service => "service",
            Self::Rust => "rust",
            Self::Tidy => "tidy",
            Self::SharedPids => "shared-pids",
            Self::Youki => "youki",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let own = [Self::Own, Self::Tidy, Self::SharedPids, Self::Youki];
        let mut all = own.into_iter().chain([Self::Foreign, Self::Service, Self::Rust]);
        all.find(|keeper| keeper.name() == name)
    }

    fn shim(self) -> Option<ForeignShim> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |name: &str| ForeignShim::find(name, &path, None);
        let (found, sandbox) = match self {
            Self::Own | Self::Tidy | Self::SharedPids | Self::Youki => return None,
            Self::Rust => {
                let built = RustTool::RuncShim.build().expect("a shim that was built before");
                (find(built.to_str().expect("a path")), SandboxKind::Task)
            }
            Self::Foreign => (find("io.containerd.runc.v2"), SandboxKind::Task),
            Self::Service => {
                let built = testkit::sandbox_shim(shim());
                (find(built.to_str().expect("a path")), SandboxKind::Service)
            }
        };
        let found = found.expect("a shim that was there before");
        Some(ForeignShim { sandbox, ..found })
    }

    /// In a directory of the test, where it is made.
    fn runtime(self, dir: &Path) -> PathBuf {
        match self {
            Self::Tidy => {
                let program = dir.join("tidy");
                testkit::program(&program, TIDY);
                program
            }
            Self::Youki => RustTool::Youki.build().expect("a runtime that was built before"),
            // What a daemon would find.
            _ => match std::env::var("LONGSHORE_TEST_RUNTIME").as_deref() {
                Ok("crun") => "/usr/bin/crun".into(),
                _ => "/usr/sbin/runc".into(),
            },
        }
    }

    /// Says so where it is not.
    fn is_there(self, test: &str) -> bool {
        match self {
            Self::Own | Self::Service | Self::Tidy | Self::SharedPids => true,
            Self::Foreign => {
                let there = Path::new("/usr/bin/containerd-shim-runc-v2").exists();
                if !there {
                    testkit::skip(test, "no containerd-shim-runc-v2");
                }
                there
            }
            Self::Rust => RustTool::RuncShim.find(test).is_some(),
            Self::Youki => RustTool::Youki.find(test).is_some(),
        }
    }
}

/// It is called in the bundle.
const TIDY: &str = r#"#!/bin/sh
runc "$@"
status=$?
case " $* " in *" delete "*) umount rootfs ;; esac
exit $status"#;

/// Root file systems are overlays over one folder.
#[derive(Debug)]
struct Folder {
    dir: PathBuf,
}

impl Host {
    /// `None`, loudly, where containers cannot be run.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !testkit::is_root() {
            testkit::skip(test, "needs root");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("ls-").tempdir().unwrap();
        busybox(&dir.path().join("image"));
        fs::create_dir(dir.path().join("archives")).unwrap();
        network(dir.path());
        let cgroup = format!("/ls-test-{}", &Id::random().short());
        let keeper = Keeper::default();
        Some(Self { dir: dir.path().to_owned(), cgroup, keeper, _own: Some(dir) })
    }

    /// `None`, loudly, where that is not installed.
    #[allow(dead_code, reason = "not every test has another")]
    pub(crate) fn kept_by(mut self, test: &str, keeper: Keeper) -> Option<Self> {
        self.keeper = keeper;
        keeper.is_there(test).then_some(self)
    }

    /// One that another process made.
    #[allow(dead_code, reason = "not every test has such a process")]
    pub(crate) fn at(dir: PathBuf, cgroup: String, keeper: Keeper) -> Self {
        Self { dir, cgroup, keeper, _own: None }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir().join("run")
    }

    /// Where the network of a pod is pinned.
    #[allow(dead_code, reason = "not every test looks into it")]
    pub(crate) fn netns(&self, pod: &Id) -> PathBuf {
        self.state().join("netns").join(format!("longshore-{pod}"))
    }

    /// The keeper's, but for checkpoints. Made once: one that runs may not change.
    fn runtime(&self) -> PathBuf {
        let programs = self.dir().join("bin");
        let made = programs.join("runc");
        if made.exists() {
            return made;
        }
        testkit::FakeCriu::over(&programs, &self.keeper.runtime(&self.dir)).runc()
    }

    /// As a daemon opens it at its start.
    pub(crate) async fn open(&self) -> (Engine, Store) {
        fs::create_dir_all(self.state()).unwrap();
        let store = Store::open(self.dir().join("store")).unwrap();
        let handler = Handler {
            name: "runc".into(),
            binary: self.runtime(),
            args: Vec::new(),
            shim: self.keeper.shim(),
            snapshotter: None,
            facts: HandlerFacts { name: "runc".into(), ..HandlerFacts::default() },
        };
        let config = EngineConfig {
            root: self.dir().join("lib"),
            state: self.state(),
            netns: self.state().join("netns"),
            network: self.network(),
            shim_binary: shim(),
            handlers: vec![handler],
            host: engine::host::look().unwrap(),
            policy: oci::Policy::default(),
            cdi_dirs: Vec::new(),
            block_io_classes: "/nowhere/classes".into(),
            selinux: None,
            program_dirs: vec![self.dir().join("bin")],
            apparmor_parser: None,
            cgroup_driver: CgroupDriver::Cgroupfs,
            limits: Limits::default(),
            max_log_line: 16384,
            event_discard_age: std::time::Duration::from_secs(300),
            metrics: engine::Metrics::default(),
            plugins: engine::PluginsConfig::default(),
        };
        let folder = Arc::new(Folder { dir: self.dir.clone() });
        let engine = Engine::open(config, store.clone(), folder).await.unwrap();
        (engine, store)
    }

    fn network(&self) -> NetConfig {
        let conf_dir = self.dir().join("net.d");
        let default = SourceConfig { conf_dir, max_conf: 1, template: None };
        let bin_dirs = vec![self.dir().join("cni"), "/usr/lib/cni".into()];
        NetConfig { default, bin_dirs, ..NetConfig::default() }
    }

    pub(crate) fn pod(&self, name: &str) -> PodRequest {
        PodRequest {
            name: PodName {
                name: name.into(),
                namespace: "test".into(),
                uid: "u".into(),
                attempt: 0,
            },
            network: PodNamespace::Pod,
            pid: match self.keeper {
                Keeper::SharedPids => PodPid::Pod,
                _ => PodPid::default(),
            },
            cgroup_parent: Some(self.cgroup.clone()),
            log_directory: Some(self.dir().join("logs")),
            ..PodRequest::default()
        }
    }

    #[allow(dead_code, reason = "not every test makes one")]
    pub(crate) fn checkpoint(&self) -> CheckpointRequest {
        CheckpointRequest { location: self.dir().join("archives/c.tar"), limit: None }
    }

    /// Addresses that pods hold.
    pub(crate) fn leases(&self) -> Vec<PathBuf> {
        entries(&self.dir().join("leases"))
    }

    /// Waits until nobody holds an address: DEL is tried in the background, too.
    #[allow(dead_code, reason = "not every test has something going on in the background")]
    pub(crate) async fn await_no_leases(&self) {
        for _ in 0..3000 {
            if self.leases().is_empty() && entries(&self.state().join("netns")).is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("addresses left: {:?}", self.leases());
    }

    /// All that a test must not leave: mounts, processes, cgroups, addresses.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let state = self.state();
        let mounts = mount::Table::own().unwrap();
        let left: Vec<_> = mounts.below(&state).map(|entry| entry.point.clone()).collect();
        assert!(left.is_empty(), "mounts left: {left:?}");
        let processes = processes_with(self.dir());
        assert!(processes.is_empty(), "processes left: {processes:?}");
        let pods = entries(&state.join("pods"));
        assert!(pods.is_empty(), "directories left: {pods:?}");
        let mut unfinished = entries(&self.dir().join("lib/checkpoints"));
        unfinished.extend(entries(&self.dir().join("archives")));
        unfinished.retain(|path| !path.ends_with("c.tar"));
        assert!(unfinished.is_empty(), "checkpoints left: {unfinished:?}");
        let groups = self.cgroups();
        assert!(groups.is_empty(), "cgroups left: {groups:?}");
        let leases = self.leases();
        assert!(leases.is_empty(), "addresses left: {leases:?}");
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// A network whose one program keeps a file for each address it gave.
fn network(dir: &Path) {
    let conf = r#"{"cniVersion":"1.0.0","name":"test","type":"lease"}"#;
    testkit::cni::configure(&dir.join("net.d"), "10.conf", conf);
    let leases = dir.join("leases");
    fs::create_dir(&leases).unwrap();
    let script = r#"
lease="LEASES/$CNI_CONTAINERID"
case $CNI_COMMAND in
ADD) : > "$lease"
  echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"x"}],
    "ips":[{"address":"10.240.0.7/24","interface":0}]}' ;;
DEL) rm -f "$lease" ;;
esac"#;
    let script = script.replace("LEASES", leases.to_str().unwrap());
    testkit::cni::program(&dir.join("cni"), "lease", &script);
}

impl Host {
    /// Those of containers; the parent is the client's.
    fn cgroups(&self) -> Vec<PathBuf> {
        let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let parents = hierarchies.map(|entry| entry.path().join(&self.cgroup[1..]));
        let below = parents.flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten());
        below.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self._own.is_none() {
            return;
        }
        for (pid, _) in processes_with(self.dir()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = mount::unmount_tree(self.dir(), Unmount::Lazy);
        for controller in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(controller.path().join(&self.cgroup[1..]));
        }
    }
}

/// Processes whose command line names `dir`.
fn processes_with(dir: &Path) -> Vec<(i32, String)> {
    let wanted = dir.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
        if cmdline.contains(&wanted) {
            found.push((pid, cmdline));
        }
    }
    found
}

/// Beside the test binaries, where `cargo build -p shim` puts it.
fn shim() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    dir.pop();
    let shim = dir.join("longshore-shim");
    assert!(shim.exists(), "{} is missing: cargo build -p shim", shim.display());
    shim
}

fn busybox(into: &Path) {
    for dir in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
        fs::create_dir_all(into.join(dir)).unwrap();
    }
    fs::copy("/bin/busybox", into.join("bin/busybox")).unwrap();
    for applet in
        ["sh", "sleep", "echo", "cat", "true", "false", "ls", "id", "hostname", "ps", "env"]
    {
        symlink("busybox", into.join("bin").join(applet)).unwrap();
    }
    fs::write(into.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").unwrap();
}

impl Storage for Folder {
    fn diff(
        &self,
        container: Id,
        out: fs::File,
        go_on: engine::storage::GoOn,
    ) -> Boxed<'_, engine::Result<engine::storage::Diff>> {
        let upper = self.dir.join("upper").join(container).join("u");
        let image = snapshot::LayerDir::new(self.dir.join("image"), snapshot::Form::Overlay);
        Box::pin(async move { Ok(snapshot::write_diff(&upper, &[image], out, &go_on)?) })
    }

    fn usage(&self, _: Id) -> Option<engine::storage::LayerUsage> {
        None
    }

    fn image<'a>(&'a self, reference: &'a str) -> Boxed<'a, engine::Result<PinnedImage>> {
        Box::pin(std::future::ready(pinned(reference)))
    }

    fn mount(&self, rootfs: NewRootfs) -> Boxed<'_, engine::Result<()>> {
        let work = self.dir.join("upper").join(rootfs.container);
        let (upper, workdir) = (work.join("u"), work.join("w"));
        fs::create_dir_all(&upper).unwrap();
        fs::create_dir_all(&workdir).unwrap();
        let overlay = Overlay {
            lower: vec![self.dir.join("image")],
            upper: Some(Upper { dir: upper, work: workdir }),
            ..Overlay::default()
        };
        Box::pin(async move { Ok(overlay.mount_at(&rootfs.target, Attrs::default())?) })
    }

    fn show(&self, _: NewView) -> Boxed<'_, engine::Result<()>> {
        Box::pin(std::future::ready(Err(EngineError::Unimplemented("images as volumes"))))
    }

    fn hide(&self, _: Id, _: usize) -> Boxed<'_, engine::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn release(&self, container: Id, target: PathBuf) -> Boxed<'_, engine::Result<()>> {
        let work = self.dir.join("upper").join(container);
        Box::pin(async move {
            mount::unmount(&target, Unmount::Lazy)?;
            let _ = fs::remove_dir_all(work);
            Ok(())
        })
    }
}

fn pinned(reference: &str) -> engine::Result<PinnedImage> {
    if reference != "busybox" {
        return Err(EngineError::NotFound { what: "image", id: reference.to_owned() });
    }
    let id = base::Digest::sha256([7; 32]);
    Ok(PinnedImage {
        id: id.clone(),
        name: reference.to_owned(),
        repo_digest: id.to_string(),
        facts: ImageFacts::default(),
        chain: Vec::new(),
    })
}

pub(crate) fn sh(name: &str, script: &str) -> NewContainer {
    NewContainer {
        image: engine::request::ImageChoice { reference: "busybox".into(), ..Default::default() },
        log_path: Some(format!("{name}.log").into()),
        container: ContainerRequest {
            name: name.into(),
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            ..ContainerRequest::default()
        },
        ..NewContainer::default()
    }
}
