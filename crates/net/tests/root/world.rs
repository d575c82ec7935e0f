//! A host for tests: directories, a store, programs, namespaces.

use std::{
    collections::BTreeMap,
    fs,
    future::Future,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use base::{Chain, Id};
use net::{Limits, NetConfig, NetError, Networks, PodNet, SourceConfig};
use serde_json::{Value, json};
use store::Store;
use sys::namespace::{self, Holder, Namespace, Spaces};

pub(crate) struct World {
    pub(crate) dir: PathBuf,
    pub(crate) store: Store,
}

/// A namespace that lives as long as this.
pub(crate) struct Netns {
    pub(crate) path: PathBuf,
}

impl World {
    pub(crate) fn new(dir: &Path) -> Self {
        for part in ["net.d", "bin", "leases", "modes", "ns", "state"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        let store = Store::open(dir.join("state")).unwrap();
        Self { dir: dir.to_owned(), store }
    }

    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.dir.join(part)
    }

    pub(crate) fn config(&self) -> NetConfig {
        config(&self.dir)
    }

    pub(crate) async fn open(&self) -> Networks {
        self.open_with(self.config()).await
    }

    pub(crate) async fn open_with(&self, config: NetConfig) -> Networks {
        Networks::open(config, &self.store).await.unwrap()
    }

    pub(crate) fn conf(&self, file: &str, conf: &Value) {
        // By a rename, as careful writers do.
        let new = self.path("net.d").join(".new");
        fs::write(&new, conf.to_string()).unwrap();
        fs::rename(new, self.path("net.d").join(file)).unwrap();
    }

    /// A network of these programs, each a [`World::fake`].
    pub(crate) fn network(&self, version: &str, programs: &[&str]) {
        programs.iter().for_each(|name| self.fake(name));
        self.conf("10-pods.conflist", &list(version, "pods", programs));
    }

    /// A program that keeps a lease per interface and writes down how it was called. What
    /// else it does is in `modes/<name>.<verb>`, as shell.
    pub(crate) fn fake(&self, name: &str) {
        let dir = self.dir.display();
        let script = format!(
            r#"#!/bin/sh
conf=$(cat)
lease="{dir}/leases/{name}-$CNI_CONTAINERID-$CNI_IFNAME"
ns=gone; [ -n "$CNI_NETNS" ] && ns=ns
echo "$CNI_COMMAND {name} $CNI_IFNAME $ns" >> {dir}/calls
echo "$conf" > {dir}/{name}.$CNI_COMMAND.json
answer() {{ echo '{{"cniVersion":"1.0.0","interfaces":[{{"name":"'$CNI_IFNAME'","sandbox":"x"}}],"ips":[{{"address":"10.240.0.7/24","interface":0}}]}}'; }}
mode={dir}/modes/{name}.$CNI_COMMAND
[ -f $mode ] && . $mode
case $CNI_COMMAND in
ADD) : > $lease; answer ;;
DEL) rm -f $lease ;;
esac
"#
        );
        testkit::program(&self.path("bin").join(name), &script);
    }

    /// `verb` is `a.ADD`.
    pub(crate) fn mode(&self, verb: &str, script: &str) {
        let path = self.path("modes").join(verb);
        match script {
            "" => fs::remove_file(path).unwrap(),
            script => fs::write(path, format!("{script}\n")).unwrap(),
        }
    }

    /// How programs were called since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        calls.lines().map(str::to_owned).collect()
    }

    /// What a program last read on stdin.
    pub(crate) fn input(&self, of: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(&format!("{of}.json"))).unwrap()).unwrap()
    }

    pub(crate) fn leases(&self) -> Vec<String> {
        entries(&self.path("leases"))
    }

    pub(crate) fn netns(&self) -> Netns {
        let path = self.path("ns").join(Id::random().short());
        let spaces = Spaces { user: None, others: vec![Namespace::Network] };
        Holder::park(&spaces).unwrap().pin(Namespace::Network, &path).unwrap();
        Netns { path }
    }

    pub(crate) fn pod(&self, netns: &Netns) -> PodNet {
        pod(&netns.path)
    }
}

pub(crate) fn config(dir: &Path) -> NetConfig {
    NetConfig {
        default: SourceConfig { conf_dir: dir.join("net.d"), max_conf: 1, template: None },
        bin_dirs: vec![dir.join("bin"), "/usr/lib/cni".into()],
        limits: Limits {
            program: Duration::from_secs(20),
            status_every: Duration::from_millis(200),
            ..Limits::default()
        },
        ..NetConfig::default()
    }
}

pub(crate) fn pod(netns: &Path) -> PodNet {
    PodNet {
        id: Id::random(),
        name: "web".into(),
        namespace: "default".into(),
        uid: "u-1".into(),
        handler: String::new(),
        netns: netns.to_owned(),
        release: false,
        ports: Vec::new(),
        bandwidth: net::Bandwidth::default(),
        dns: None,
        cgroup_path: String::new(),
        annotations: BTreeMap::new(),
    }
}

pub(crate) fn list(version: &str, name: &str, programs: &[&str]) -> Value {
    let plugins: Vec<_> = programs.iter().map(|program| json!({"type": program})).collect();
    json!({"cniVersion": version, "name": name, "plugins": plugins})
}

impl Netns {
    /// Does something in it, in a thread of its own.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = namespace::open(&self.path).unwrap();
        namespace::in_thread(&[file.as_fd()], work).unwrap()
    }

    pub(crate) fn remove(&self) {
        namespace::unpin(&self.path).unwrap();
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = namespace::unpin(&self.path);
    }
}

pub(crate) fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = names.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub(crate) fn said(error: &NetError) -> String {
    Chain(error).to_string()
}

/// Waits for something that happens by itself, soon.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}
