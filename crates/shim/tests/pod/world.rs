//! A pod's surroundings, made for one test and gone after it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use probe::{Driver, HostPaths, Settings};
use serde_json::{Value, json};
use shim_client::{
    CreateTask, Exit, FirstProcess, LogFormat, LogLevel, LogTarget, Namespaces, OciRuntime,
    Priorities, Shim, StartPod, Stdio,
};
use sys::pidfd::Pidfd;
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Everything of it is below one directory and one cgroup.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) nonce: String,
    runtime: &'static (PathBuf, String),
}

/// A pod with its shim, which does not outlive the test.
pub(crate) struct Pod {
    process: Pidfd,
    pub(crate) shim: Shim,
    /// Dropped last: it sweeps up.
    pub(crate) world: World,
}

/// What is asked of a container beside its command.
#[derive(Default)]
pub(crate) struct Wish {
    pub(crate) stdio: Stdio,
    pub(crate) log: Option<LogTarget>,
    pub(crate) tweak: Option<fn(&mut Value)>,
    pub(crate) memory: Option<u64>,
    pub(crate) pid_namespace: Option<String>,
    pub(crate) priorities: Priorities,
}

impl World {
    /// `None`, loudly, where such a test cannot run.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !testkit::is_root() {
            testkit::skip(test, "needs root");
            return None;
        }
        if let Some(why) = crate::keeper::missing() {
            testkit::skip(test, why);
            return None;
        }
        let Some(runtime) = runtime() else {
            testkit::skip(test, "no OCI runtime works here");
            return None;
        };
        let mut random = [0; 6];
        getrandom::fill(&mut random).expect("random bytes");
        let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = tempfile::Builder::new().prefix("ls-").tempdir().expect("a directory");
        let world = Self { dir, nonce, runtime };
        world.make_rootfs().expect("a root file system");
        Some(world)
    }

    /// One for all containers, read-only.
    fn make_rootfs(&self) -> io::Result<()> {
        let root = self.rootfs();
        for dir in ["bin", "dev", "proc", "sys", "tmp", "etc"] {
            fs::create_dir_all(root.join(dir))?;
        }
        fs::copy("/bin/busybox", root.join("bin/busybox"))?;
        let applets = [
            "sh", "cat", "echo", "true", "false", "sleep", "ls", "dd", "head", "yes", "stty", "ps",
            "readlink", "id", "hostname", "seq", "kill", "tail", "printf", "grep", "tr", "setsid",
            "nsenter", "test",
        ];
        for applet in applets {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
        }
        Ok(())
    }

    pub(crate) fn rootfs(&self) -> PathBuf {
        self.dir.path().join("rootfs")
    }

    pub(crate) fn pod_dir(&self) -> PathBuf {
        self.dir.path().join("pod")
    }

    pub(crate) fn cgroup(&self) -> String {
        format!("/longshore-test-{}", self.nonce)
    }

    pub(crate) fn id(&self, name: &str) -> String {
        format!("{name}-{}", self.nonce)
    }

    pub(crate) fn oci_runtime(&self) -> OciRuntime {
        let root = self.dir.path().join("runtime");
        OciRuntime { binary: self.runtime.0.clone(), args: vec![], root, systemd_cgroup: false }
    }

    pub(crate) fn spec(&self) -> StartPod {
        let dir = self.pod_dir();
        fs::create_dir_all(&dir).expect("the pod's directory");
        StartPod {
            id: self.id("pod"),
            dir,
            shim_binary: crate::keeper::binary(),
            runtime: self.oci_runtime(),
            namespaces: Namespaces::default(),
            hostname: None,
            sysctls: BTreeMap::new(),
            cgroup: None,
            pid1: FirstProcess::default(),
            log_level: LogLevel::Debug,
        }
    }

    pub(crate) async fn start(self) -> Pod {
        let spec = self.spec();
        self.start_with(&spec).await
    }

    pub(crate) async fn start_with(self, spec: &StartPod) -> Pod {
        let shim = crate::keeper::start(&self, spec).await;
        self.adopt(shim)
    }

    pub(crate) fn adopt(self, shim: Shim) -> Pod {
        let process = Pidfd::open(shim.info().pid).expect("a live shim");
        Pod { process, shim, world: self }
    }

    pub(crate) fn bundle(&self, id: &str, args: &[&str], wish: &Wish) -> PathBuf {
        let bundle = self.dir.path().join("bundles").join(id);
        fs::create_dir_all(&bundle).expect("a bundle");
        let mut config = self.config(id, args, wish);
        if let Some(tweak) = wish.tweak {
            tweak(&mut config);
        }
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        bundle
    }

    fn config(&self, id: &str, args: &[&str], wish: &Wish) -> Value {
        let mut pid = json!({ "type": "pid" });
        if let Some(path) = &wish.pid_namespace {
            pid["path"] = json!(path);
        }
        let mut resources = json!({});
        if let Some(bytes) = wish.memory {
            resources = json!({ "memory": { "limit": bytes, "swap": bytes } });
        }
        json!({
            "ociVersion": self.runtime.1,
            "root": { "path": self.rootfs(), "readonly": true },
            "process": {
                "terminal": wish.stdio.tty,
                "cwd": "/",
                "user": { "uid": 0, "gid": 0 },
                "args": args,
                "env": ["PATH=/bin"],
            },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"] },
                { "destination": "/dev/pts", "type": "devpts", "source": "devpts",
                  "options": ["newinstance", "ptmxmode=0666", "mode=0620"] },
                { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" },
            ],
            "linux": {
                "cgroupsPath": format!("{}/{id}", self.cgroup()),
                "namespaces": [pid, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }],
                "resources": resources,
            },
        })
    }

    /// Processes whose command line or environment bears our name.
    fn processes(&self) -> Vec<String> {
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let dirs = entries.filter(|e| e.file_name().to_string_lossy().parse::<u32>().is_ok());
        let of = |dir: fs::DirEntry| {
            let bytes = fs::read(dir.path().join("cmdline")).ok()?;
            let cgroup = fs::read_to_string(dir.path().join("cgroup")).ok()?;
            let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
            (text.contains(&self.nonce) || cgroup.contains(&self.nonce))
                .then(|| format!("{} {text}", dir.file_name().to_string_lossy()))
        };
        dirs.filter_map(of).collect()
    }

    fn mounts(&self) -> Vec<String> {
        let name = self.dir.path().display().to_string();
        let table = fs::read_to_string("/proc/self/mounts").expect("mounts");
        table.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect()
    }

    fn cgroups(&self) -> Vec<PathBuf> {
        let tops = fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten();
        let name = self.cgroup();
        let own = |top: &Path| top.join(name.trim_start_matches('/'));
        let mut all: Vec<_> = tops.map(|top| own(&top.path())).collect();
        all.push(own(Path::new("/sys/fs/cgroup")));
        all.into_iter().filter(|dir| dir.exists()).collect()
    }

    /// Whatever a test left that failed; and the parent of our cgroups, which is ours.
    fn sweep(&self) {
        for dir in self.cgroups() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(dir);
        }
    }

    /// Proof that nothing is left but files.
    pub(crate) async fn check_empty(&self) {
        let until = tokio::time::Instant::now() + Duration::from_secs(5);
        loop {
            let containers: Vec<_> = self
                .cgroups()
                .iter()
                .flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten())
                .filter(|entry| entry.path().is_dir())
                .map(|entry| entry.path())
                .collect();
            self.sweep();
            let left = (self.processes(), self.mounts(), containers, self.cgroups());
            if left == (vec![], vec![], vec![], vec![]) {
                return;
            }
            assert!(tokio::time::Instant::now() < until, "left behind: {left:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed: its shim and containers go, its files with the directory.
        let dir = self.pod_dir();
        if ["bootstrap.json", "foreign.json"].into_iter().any(|file| dir.join(file).exists()) {
            let bury = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                runtime.block_on(shim_client::bury(&dir, LIMIT))
            });
            eprintln!("swept: {:?}", bury.join());
        }
        self.sweep();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.process.signal(9);
    }
}

impl Pod {
    pub(crate) async fn create(&self, name: &str, args: &[&str], wish: Wish) -> String {
        let id = self.world.id(name);
        let bundle = self.world.bundle(&id, args, &wish);
        let Wish { stdio, log, priorities, .. } = wish;
        let task = CreateTask { id: id.clone(), bundle, stdio, log, priorities };
        let pid = self.shim.create(task).await.expect("create");
        assert_ne!(pid, 0);
        id
    }

    pub(crate) async fn run(&self, name: &str, args: &[&str], wish: Wish) -> String {
        let id = self.create(name, args, wish).await;
        self.shim.start(&id).await.expect("start");
        id
    }

    /// Runs to the end and deletes.
    pub(crate) async fn outcome(&self, name: &str, args: &[&str], wish: Wish) -> Exit {
        let id = self.run(name, args, wish).await;
        let exit = self.wait(&id).await;
        assert_eq!(self.shim.delete(&id).await.expect("delete").code, exit.code);
        exit
    }

    pub(crate) async fn wait(&self, id: &str) -> Exit {
        let wait = tokio::time::timeout(LIMIT, self.shim.wait(id)).await;
        wait.expect("it ends in time").expect("wait")
    }

    pub(crate) fn log_path(&self, name: &str) -> PathBuf {
        self.world.dir.path().join(format!("{name}.log"))
    }

    pub(crate) fn log(&self, name: &str) -> LogTarget {
        LogTarget { path: self.log_path(name), format: LogFormat::Cri, max_line: 16_384 }
    }

    pub(crate) async fn end(&self, id: &str) {
        let _ = self.shim.kill(id, 9, true).await;
        self.wait(id).await;
        self.shim.delete(id).await.expect("delete");
    }

    /// Ends the pod and proves that nothing is left of it.
    pub(crate) async fn finish(self) {
        let died = self.shim.died();
        crate::keeper::end(&self).await;
        tokio::time::timeout(LIMIT, died).await.expect("the shim ends");
        self.world.check_empty().await;
        let left: Vec<_> = fs::read_dir(self.world.pod_dir())
            .expect("the pod's directory")
            .map(|entry| entry.expect("an entry").file_name())
            .filter(|name| name != "shim.log")
            .collect();
        assert!(left.is_empty(), "files of the shim: {left:?}");
    }
}

/// Tried once for all tests.
fn runtime() -> Option<&'static (PathBuf, String)> {
    static CHOSEN: OnceLock<Option<(PathBuf, String)>> = OnceLock::new();
    let choose = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let settings = Settings {
            root: std::env::temp_dir(),
            cni_conf_dir: "/nowhere".into(),
            cni_bin_dirs: Vec::new(),
            runtimes: Vec::new(),
            driver: Some(Driver::Cgroupfs),
            min_free_bytes: 0,
            limit: LIMIT,
        };
        let all = probe::runtimes(&HostPaths::real(&path), &settings);
        let chosen = probe::choose_runtime(&all)?;
        Some((chosen.path.clone(), chosen.spec_version.clone()))
    };
    CHOSEN.get_or_init(choose).as_ref()
}

/// The content of a CRI log: `(stream, tag, text)` of each line.
pub(crate) fn read_log(path: &Path) -> Vec<(String, String, String)> {
    let text = fs::read_to_string(path).expect("a log");
    let line = |line: &str| {
        let mut fields = line.splitn(4, ' ');
        let mut next = || fields.next().expect("four fields").to_owned();
        let at = next();
        assert!(at.parse::<base::time::Timestamp>().is_ok(), "{at} is RFC 3339");
        (next(), next(), next())
    };
    text.lines().map(line).collect()
}

/// `(stream, tag, text)` of the expected lines.
pub(crate) fn lines(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
}
