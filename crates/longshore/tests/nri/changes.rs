//! Updates and evictions that plugins ask for.

use std::{fs, path::Path};

use api_cri::v1::{ContainerState, LinuxContainerResources, UpdateContainerResourcesRequest};
use nri_sdk::{Changes, Creation, PidsLimit, Update, UpdateError};
use testkit::{Cri, Node, Pod};

use crate::{
    LONGSHORE,
    probe::{Connected, connect, connect_with, script, until},
};

struct World {
    node: Node,
    cri: Cri,
    pod: Pod,
    probe: Connected,
}

impl World {
    async fn new(test: &str) -> Option<Self> {
        Some(Self::of(Node::start(test, LONGSHORE).await?).await)
    }

    async fn configured(test: &str, config: &Path) -> Option<Self> {
        let node = Node::start_with(test, LONGSHORE, |command| {
            command.arg("--config").arg(config);
        });
        Some(Self::of(node.await?).await)
    }

    async fn of(node: Node) -> Self {
        let cri = node.cri().await.unwrap();
        let probe = connect(&node, "10-probe").await;
        let pod = cri.run_pod(&node.pod("p")).await.unwrap();
        Self { node, cri, pod, probe }
    }

    async fn sleeper(&self, name: &str) -> String {
        self.cri.run(&self.pod, self.node.sh(name, "exec sleep 1000")).await.unwrap()
    }

    fn pids_max(&self, id: &str) -> String {
        let file = "pids.max";
        self.node.cgroups.file(&self.pod, id, ("pids", file), file).unwrap()
    }

    async fn update(&self, id: &str, shares: i64) -> Result<(), tonic::Status> {
        let linux = LinuxContainerResources { cpu_shares: shares, ..Default::default() };
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.cri.runtime().update_container_resources(request).await.map(drop)
    }

    async fn shares(&self, id: &str) -> i64 {
        let status = self.cri.status(id).await.unwrap();
        status.resources.unwrap().linux.unwrap().cpu_shares
    }

    async fn finish(self) {
        drop(self.probe);
        self.node.finish().await.unwrap();
    }
}

fn pids(id: &str, limit: u64) -> Update {
    let mut update = Update::of(id);
    update.resources.pids = Some(PidsLimit::At(limit));
    update
}

/// The kernel takes no such set of CPUs.
fn impossible(id: &str) -> Update {
    let mut update = Update::of(id);
    update.resources.cpu.cpus = "4095".into();
    update
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_is_what_plugins_make_of_it() {
    let Some(world) = World::new("an_update_is_what_plugins_make_of_it").await else { return };
    let (id, other) = (world.sleeper("c").await, world.sleeper("other").await);
    let neighbour = other.clone();
    script(&world.probe.on_update, move |(container, asked)| {
        assert_eq!(asked.cpu.shares, Some(200));
        let mut own = pids(&container.id, 33);
        own.resources.cpu.shares = Some(300);
        let mut changes = Changes::default();
        changes.updates.add(own).add(pids(&neighbour, 66));
        Ok(changes)
    });
    world.update(&id, 200).await.unwrap();
    assert_eq!((world.shares(&id).await, world.pids_max(&id)), (300, "33".to_owned()));
    assert_eq!(world.pids_max(&other), "66");
    let after = world.probe.heard("PostUpdateContainer", &id).await.container;
    let resources = after.linux.unwrap().resources.unwrap();
    assert_eq!(resources.pids.unwrap().limit, 33);

    script(&world.probe.on_update, |_| Err("never".into()));
    let error = world.update(&id, 100).await.unwrap_err();
    assert!(error.message().contains("never"), "{error}");
    assert_eq!(world.shares(&id).await, 300, "refused, and as it was");

    script(&world.probe.on_update, |(container, _)| {
        let mut own = pids(&container.id, 33);
        own.resources.memory.limit = Some(-5);
        let mut changes = Changes::default();
        changes.updates.add(own);
        Ok(changes)
    });
    let error = world.update(&id, 100).await.unwrap_err();
    let want = "apply what plugin 10-probe asks for: resources.memory_limit: -5 is below -1";
    assert!(error.message().contains(want), "{error}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_with_a_creation_are_made_whole_or_not_at_all() {
    let Some(world) = World::new("changes_with_a_creation").await else { return };
    let (a, b) = (world.sleeper("a").await, world.sleeper("b").await);
    let before = (world.pids_max(&a), world.pids_max(&b));
    let (mut first, mut second) = (a.clone(), b.clone());
    // They are taken in the order of their ids: the one that fails comes last.
    if first > second {
        std::mem::swap(&mut first, &mut second);
    }
    let with = |updates: Vec<Update>| {
        move |_| {
            Ok(Creation { updates: updates.clone().into_iter().collect(), ..Default::default() })
        }
    };
    script(&world.probe.on_create, with(vec![pids(&first, 7), impossible(&second)]));
    let error = world.cri.create(&world.pod, world.node.sh("c", "true")).await.unwrap_err();
    assert!(error.message().contains(&format!("update container {second}")), "{error}");
    assert_eq!((world.pids_max(&a), world.pids_max(&b)), before, "taken back");
    let known = world.cri.containers().await.unwrap().len();
    assert_eq!(known, 2, "and nothing was created");

    let mut ignored = impossible(&second);
    ignored.ignore_failure = true;
    script(&world.probe.on_create, with(vec![pids(&first, 7), ignored, pids("gone", 8)]));
    world.cri.create(&world.pod, world.node.sh("c", "true")).await.unwrap();
    assert_eq!(world.pids_max(&first), "7");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsolicited_changes_are_made_each_for_itself() {
    let Some(world) = World::new("unsolicited_changes").await else { return };
    let (a, b) = (world.sleeper("a").await, world.sleeper("b").await);
    let runtime = &world.probe.runtime;
    let error = runtime.update_containers(vec![pids(&a, 9), impossible(&b)]).await.unwrap_err();
    let UpdateError::Partial { failed } = error else { panic!("{error}") };
    assert!(failed.get(&b).is_some() && failed.get(&a).is_none());
    assert_eq!(world.pids_max(&a), "9");
    runtime.update_containers(vec![pids("gone", 1)]).await.unwrap();

    // An answer to the end of one gives its share to another.
    let heir = b.clone();
    script(&world.probe.on_stop, move |_| Ok([pids(&heir, 12)].into_iter().collect()));
    world.cri.stop(&a, 0).await.unwrap();
    until("the heir's share", || (world.pids_max(&b) == "12").then_some(())).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_ends_a_container_and_says_why() {
    let Some(world) = World::new("an_eviction_ends_a_container").await else { return };
    let (a, b) = (world.sleeper("a").await, world.sleeper("b").await);
    let idle = world.cri.create(&world.pod, world.node.sh("idle", "true")).await.unwrap();
    let mut changes = Changes::default();
    changes.evict(a.clone(), "too loud").evict(idle.clone(), "too idle");
    world.probe.runtime.update_containers(changes).await.unwrap();
    let status = world.cri.status(&a).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited, "done when it has exited");
    assert_eq!((status.reason.as_str(), status.message.as_str()), ("Evicted", "too loud"));
    assert_eq!(status.exit_code, 137);
    let told = world.probe.heard("StopContainer", &a).await.container;
    assert_eq!(
        (told.status_reason.as_str(), told.status_message.as_str()),
        ("Evicted", "too loud")
    );
    let status = world.cri.status(&idle).await.unwrap();
    assert_eq!((status.reason.as_str(), status.message.as_str()), ("Evicted", "too idle"));
    world.cri.start(&idle).await.unwrap_err();

    // With a creation, and from inside the handler's own turn.
    let victim = b.clone();
    script(&world.probe.on_create, move |_| {
        let mut creation = Creation::default();
        creation.evictions.insert(victim.clone(), "makes room".into());
        Ok(creation)
    });
    world.cri.create(&world.pod, world.node.sh("c", "true")).await.unwrap();
    let status = world.cri.status(&b).await.unwrap();
    assert_eq!((status.reason.as_str(), status.message.as_str()), ("Evicted", "makes room"));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_with_an_update_are_made_whole_or_not_at_all() {
    let Some(world) = World::new("changes_with_an_update").await else { return };
    let (id, other) = (world.sleeper("c").await, world.sleeper("other").await);
    let before = (world.shares(&id).await, world.pids_max(&other));
    let with = |updates: Vec<Update>| {
        move |_| {
            Ok(Changes { updates: updates.clone().into_iter().collect(), ..Changes::default() })
        }
    };
    script(&world.probe.on_update, with(vec![impossible(&other)]));
    let error = world.update(&id, 200).await.unwrap_err();
    assert!(error.message().contains(&format!("update container {other}")), "{error}");
    assert_eq!((world.shares(&id).await, world.pids_max(&other)), before, "nothing was changed");

    let mut ignored = impossible(&other);
    ignored.ignore_failure = true;
    script(&world.probe.on_update, with(vec![ignored]));
    world.update(&id, 200).await.unwrap();
    assert_eq!(world.shares(&id).await, 200);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_with_a_stop_or_a_sync_fail_alone() {
    let Some(world) = World::new("changes_with_a_stop_or_a_sync").await else { return };
    let (a, b) = (world.sleeper("a").await, world.sleeper("b").await);
    let before = world.pids_max(&b);
    let (heir, bad) = (b.clone(), b.clone());
    script(&world.probe.on_stop, move |_| {
        Ok([impossible(&bad), pids("gone", 3)].into_iter().collect())
    });
    world.cri.stop(&a, 0).await.unwrap();
    world.cri.remove(&a).await.unwrap();
    world.node.daemon.logged("change containers as plugins ask").await.unwrap();
    assert_eq!(world.pids_max(&b), before);

    // Whoever asks for it when it is told what exists stays.
    let asked = impossible(&heir);
    let late = connect_with(&world.node, "20-late", move |probe| {
        script(&probe.on_sync, move |_| Ok([asked.clone()].into_iter().collect()));
    })
    .await;
    world.node.daemon.logged("failed to apply the updates a plugin answered with").await.unwrap();
    let id = world.sleeper("c").await;
    late.heard("CreateContainer", &id).await;
    drop(late);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsolicited_change_that_may_fail_is_not_complained_of() {
    let Some(world) = World::new("an_unsolicited_change_that_may_fail").await else { return };
    let id = world.sleeper("c").await;
    let mut ignored = impossible(&id);
    ignored.ignore_failure = true;
    world.probe.runtime.update_containers(vec![ignored]).await.unwrap();
    world.finish().await;
}

/// No process ends in no time.
#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_takes_too_long_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    fs::write(&config, "nri.eviction_timeout = \"1ms\"\n").unwrap();
    let test = "an_eviction_that_takes_too_long";
    let Some(world) = World::configured(test, &config).await else { return };
    let (a, b, c) = (world.sleeper("a").await, world.sleeper("b").await, world.sleeper("c").await);
    let mut changes = Changes::default();
    changes.evict(a.clone(), "too loud");
    let error = world.probe.runtime.update_containers(changes).await.unwrap_err();
    let error = format!("{error:?}");
    assert!(error.contains("evict: not done within 1ms"), "{error}");

    // With a creation: it fails, and what was updated is put back.
    let before = world.pids_max(&c);
    let (victim, updated) = (b.clone(), c.clone());
    script(&world.probe.on_create, move |_| {
        let mut creation = Creation::default();
        creation.updates.add(pids(&updated, 5));
        creation.evictions.insert(victim.clone(), "makes room".into());
        Ok(creation)
    });
    let error = world.cri.create(&world.pod, world.node.sh("d", "true")).await.unwrap_err();
    assert!(error.message().contains(&format!("evict container {b}")), "{error}");
    assert_eq!(world.pids_max(&c), before, "taken back");
    // They end all the same, a moment later.
    for id in [&a, &b] {
        assert_eq!(world.cri.exited(id).await.unwrap().reason, "Evicted");
    }
    let victim = c.clone();
    script(&world.probe.on_update, move |_| {
        let mut changes = Changes::default();
        changes.evict(victim.clone(), "makes room");
        Ok(changes)
    });
    *world.probe.on_create.lock() = None;
    let id = world.sleeper("e").await;
    let error = world.update(&id, 200).await.unwrap_err();
    assert!(error.message().contains(&format!("evict container {c}")), "{error}");
    world.finish().await;
}
