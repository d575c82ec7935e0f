//! A plugin that is started as a program: this very test program, by a script around it. What
//! it does is in its configuration.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use nri_sdk::{
    Answer, Args, Configuration, Container, Context, Creation, Handlers, Mount, PidsLimit, Plugin,
    PodSandbox, Rlimit, Stub, defaults,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What a plugin does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Act {
    pub(crate) wish: Wish,
    pub(crate) refuses: Option<String>,
    /// In this event.
    pub(crate) crashes: String,
    pub(crate) hangs: String,
    /// Pids of every other container, by its name, as given by the creation of one.
    pub(crate) shrinks: BTreeMap<String, u64>,
    pub(crate) evicts: Option<String>,
}

/// What a plugin wants a container to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Wish {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) takes_env: BTreeMap<String, String>,
    pub(crate) removes_env: Vec<String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) args: Vec<String>,
    /// Destination and source.
    pub(crate) mounts: BTreeMap<String, String>,
    pub(crate) rlimits: BTreeMap<String, (u64, u64)>,
    pub(crate) cpu_shares: Option<u64>,
    pub(crate) memory: Option<i64>,
    pub(crate) pids: Option<u64>,
    pub(crate) oom: Option<i64>,
}

impl Wish {
    pub(crate) fn creation(&self) -> Creation {
        let mut creation = Creation::default();
        let adjust = &mut creation.adjustment;
        for (key, value) in &self.env {
            adjust.env.set(key, value);
        }
        for (key, value) in &self.takes_env {
            adjust.env.take_over(key, value);
        }
        for key in &self.removes_env {
            adjust.env.remove(key);
        }
        for (key, value) in &self.annotations {
            adjust.annotations.set(key, value);
        }
        adjust.args = (!self.args.is_empty()).then(|| Args::Set(self.args.clone()));
        for (destination, source) in &self.mounts {
            adjust.mounts.set(destination, Mount::bind(source.clone()).option("ro"));
        }
        for (kind, (soft, hard)) in &self.rlimits {
            adjust.rlimits.insert(kind.clone(), Rlimit { hard: *hard, soft: *soft });
        }
        adjust.resources.cpu.shares = self.cpu_shares;
        adjust.resources.memory.limit = self.memory;
        adjust.resources.pids = self.pids.map(PidsLimit::At);
        adjust.oom_score_adj = self.oom;
        creation
    }
}

/// Puts a plugin and its configuration into directories.
pub(crate) fn install(dir: &Path, id: &str, act: &Act) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\nexec {} act::act_as_a_plugin --exact --ignored --nocapture\n",
        own.display()
    );
    let (programs, configs) = (dir.join("plugins"), dir.join("conf.d"));
    [&programs, &configs].into_iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    let path = programs.join(id);
    testkit::program(&path, &script);
    fs::write(configs.join(format!("{id}.conf")), serde_json::to_string(act).unwrap()).unwrap();
    path
}

#[derive(Default)]
struct Actor {
    act: Mutex<Act>,
    known: Mutex<BTreeMap<String, String>>,
}

impl Actor {
    async fn reach(&self, event: &str) {
        let act = self.act.lock().clone();
        if act.crashes == event {
            std::process::abort();
        }
        if act.hangs == event {
            std::future::pending::<()>().await;
        }
    }

    async fn configure(self: Arc<Self>, _: Context, configuration: Configuration) -> Answer {
        *self.act.lock() = serde_json::from_str(&configuration.text)?;
        self.reach("Configure").await;
        Ok(())
    }

    async fn create(
        self: Arc<Self>,
        _: Context,
        _: PodSandbox,
        container: Container,
    ) -> Answer<Creation> {
        self.reach("CreateContainer").await;
        let act = self.act.lock().clone();
        if let Some(why) = act.refuses {
            return Err(why.into());
        }
        let mut creation = act.wish.creation();
        for (name, id) in &*self.known.lock() {
            if let Some(limit) = act.shrinks.get(name) {
                let mut update = nri_sdk::Update::of(id);
                update.resources.pids = Some(PidsLimit::At(*limit));
                creation.updates.add(update);
            }
            if act.evicts.as_ref() == Some(name) {
                creation.evictions.insert(id.clone(), "makes room".into());
            }
        }
        self.known.lock().insert(container.name, container.id);
        Ok(creation)
    }

    async fn start(self: Arc<Self>, _: Context, _: PodSandbox, _: Container) -> Answer {
        self.reach("StartContainer").await;
        Ok(())
    }
}

impl Plugin for Actor {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .configure(Self::configure)
            .create_container(Self::create)
            .start_container(Self::start)
    }
}

#[tokio::test]
#[ignore = "no test: what scripts of other tests start"]
async fn act_as_a_plugin() {
    if std::env::var_os(defaults::SOCKET_ENV).is_some() {
        Stub::builder(Actor::default()).build().unwrap().run().await.unwrap();
    }
}
