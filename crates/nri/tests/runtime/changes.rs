//! Updates and evictions of other containers.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use nri::{Ask, FieldSet, NriError, PluginPolicy, api::*};

use crate::kit::*;

fn creating(answer: impl Fn(&str) -> CreateContainerResponse + Send + Sync + 'static) -> Script {
    Script::new("CreateContainer,StopContainer,RemoveContainer").on_create(move |request| {
        let answer = answer(&request.container.unwrap_or_default().id);
        async move { Ok(answer) }
    })
}

fn updating(ids: &'static [(&'static str, u64)], on: &'static str) -> Script {
    creating(move |id| {
        let update = if id == on {
            ids.iter().map(|(id, shares)| update(id, *shares)).collect()
        } else {
            vec![]
        };
        CreateContainerResponse { update, ..Default::default() }
    })
}

#[tokio::test]
async fn a_creation_updates_others_and_skips_who_is_gone() {
    let world = World::new().await;
    let _a =
        world.plugin("10-a", updating(&[("c1", 7), ("never", 8), ("stopped", 9)], "new")).await;
    world.create("c1").await.unwrap();
    world.create("stopped").await.unwrap();
    world.stop("stopped").await.unwrap();
    world.create("new").await.unwrap();
    assert_eq!(
        (world.shares("c1"), world.shares("stopped"), world.shares("never")),
        (Some(7), Some(1), None)
    );
    // Who comes later is shown the container as it is, and the journal knows who did it.
    let (told, seen) = (world.told.clone(), "c1 has");
    let script = Script::new("all").on_sync(move |all| {
        let c1 = all.containers.iter().find(|c| c.id == "c1").unwrap();
        let cpu = c1.linux.as_ref().unwrap().resources.as_ref().unwrap().cpu.as_ref().unwrap();
        told.push(format!("{seen} {}", cpu.shares.unwrap().value));
        async { Ok(SynchronizeResponse::default()) }
    });
    let _late = world.plugin("20-late", script).await;
    assert_eq!(world.told.count("c1 has 7"), 1);
    let journal = world.nri.journal("c1").unwrap();
    assert_eq!(journal.updates[0].owners[0].1, "10-a");
}

#[tokio::test]
async fn updates_are_all_made_or_none() {
    let world = World::new().await;
    let _a = world.plugin("10-a", updating(&[("c1", 5), ("c2", 13), ("c3", 6)], "new")).await;
    for id in ["c1", "c2", "c3"] {
        world.create(id).await.unwrap();
    }
    world.domain.refuses.lock().insert(13);
    let error = world.create("new").await.unwrap_err();
    let NriError::Change(error) = error else { panic!("{error}") };
    assert_eq!((error.container.as_str(), error.doing), ("c2", "update"));
    assert!(error.not_restored.is_empty());
    assert_eq!(
        (world.shares("c1"), world.shares("c2"), world.shares("c3")),
        (Some(1), Some(1), Some(1))
    );
    world.settle().await;
    assert_eq!(world.told.count("10-a StopContainer new"), 1, "the creation is undone");
    assert!(world.nri.journal("c1").unwrap().updates.is_empty());
}

#[tokio::test]
async fn what_cannot_be_put_back_is_reported_with_what_it_has() {
    let world = World::new().await;
    let _a = world.plugin("10-a", updating(&[("c1", 5), ("c2", 13)], "new")).await;
    world.create("c1").await.unwrap();
    world.create("c2").await.unwrap();
    world.domain.refuses.lock().extend([13, 1]);
    let NriError::Change(error) = world.create("new").await.unwrap_err() else { panic!() };
    let left: Vec<_> =
        error.not_restored.iter().map(|(id, now)| (id.as_str(), now.clone())).collect();
    assert_eq!(left, [("c2", Some(resources(1))), ("c1", Some(resources(5)))]);
}

#[tokio::test]
async fn an_update_that_may_fail_fails_alone() {
    let world = World::new().await;
    let script = creating(|id| {
        let optional = ContainerUpdate { ignore_failure: true, ..update("c2", 13) };
        let update = if id == "new" { vec![update("c1", 5), optional] } else { vec![] };
        CreateContainerResponse { update, ..Default::default() }
    });
    let _a = world.plugin("10-a", script).await;
    world.create("c1").await.unwrap();
    world.create("c2").await.unwrap();
    world.domain.refuses.lock().insert(13);
    world.create("new").await.unwrap();
    assert_eq!((world.shares("c1"), world.shares("c2")), (Some(5), Some(1)));
}

#[tokio::test]
async fn evictions_are_made_after_updates_and_fail_like_them() {
    let world = World::new().await;
    let script = creating(|id| match id {
        "new" => CreateContainerResponse {
            evict: vec![eviction("c1", "make room")],
            update: vec![update("c2", 5)],
            ..Default::default()
        },
        "bad" => CreateContainerResponse {
            evict: vec![eviction("c2", "refuse")],
            update: vec![update("c3", 9)],
            ..Default::default()
        },
        _ => CreateContainerResponse::default(),
    });
    let _a = world.plugin("10-a", script).await;
    for id in ["c1", "c2", "c3"] {
        world.create(id).await.unwrap();
    }
    world.create("new").await.unwrap();
    assert_eq!(*world.domain.evicted.lock(), [("c1".to_owned(), "make room".to_owned())]);
    assert_eq!(world.shares("c2"), Some(5));
    let NriError::Change(error) = world.create("bad").await.unwrap_err() else { panic!() };
    assert_eq!((error.container.as_str(), error.doing), ("c2", "evict"));
    assert_eq!(world.shares("c3"), Some(1), "put back");
}

#[tokio::test]
async fn an_update_is_what_plugins_make_of_it() {
    let world = World::new().await;
    let script = |shares: u64| {
        Script::new("UpdateContainer").on_update(move |request| {
            let asked = request.linux_resources.unwrap().cpu.unwrap();
            let mems = format!("{}", asked.shares.map_or(0, |s| s.value));
            let cpu = LinuxCpu {
                mems: if shares == 0 { mems } else { String::new() },
                shares: (shares != 0).then_some(OptionalUInt64 { value: shares }),
                ..Default::default()
            };
            let linux = Some(LinuxContainerUpdate {
                resources: Some(LinuxResources { cpu: Some(cpu), ..Default::default() }),
            });
            async move {
                Ok(UpdateContainerResponse {
                    update: vec![ContainerUpdate {
                        container_id: "c".to_owned(),
                        linux,
                        ignore_failure: false,
                    }],
                    evict: vec![],
                })
            }
        })
    };
    world.create("c").await.unwrap();
    let ask = Ask::default();
    let go = || async {
        world.nri.update_container(&pod("pod"), &container("c"), &resources(2), &ask).await
    };
    assert_eq!(go().await.unwrap().linux.cpu().as_ref().unwrap().shares(), Some(2));
    let a = world.plugin("10-a", script(5)).await;
    assert_eq!(go().await.unwrap().linux.cpu().as_ref().unwrap().shares(), Some(5));
    // The next sees what the one before made of it.
    let _b = world.plugin("20-b", script(0)).await;
    let got = go().await.unwrap();
    let cpu = got.linux.cpu().as_ref().unwrap();
    assert_eq!((cpu.shares(), cpu.mems().as_deref()), (Some(5), Some("5")));
    let _c = world.plugin("30-c", script(6)).await;
    assert!(matches!(go().await, Err(NriError::Merge(_))));
    drop(a);
    world.wait_for_plugins(&["20-b", "30-c"]).await;
    go().await.unwrap();
}

#[tokio::test]
async fn a_stop_updates_others_and_its_failures_are_not_the_callers() {
    let world = World::new().await;
    let script = Script::new("StopContainer").on_stop(|_| async {
        Ok(StopContainerResponse { update: vec![update("c1", 5), update("c2", 13)] })
    });
    let _a = world.plugin("10-a", script).await;
    for id in ["c1", "c2", "old"] {
        world.create(id).await.unwrap();
    }
    world.domain.refuses.lock().insert(13);
    world.stop("old").await.unwrap();
    assert_eq!(world.shares("c1"), Some(1), "all or none");
    world.domain.refuses.lock().clear();
    world.stop("c2").await.unwrap();
    assert_eq!((world.shares("c1"), world.shares("c2")), (Some(5), Some(1)));
}

#[tokio::test]
async fn updates_that_come_with_synchronize_are_made() {
    let world = World::new().await;
    world.create("c").await.unwrap();
    let script = Script::new("all").on_sync(|_| async {
        Ok(SynchronizeResponse { update: vec![update("c", 4)], more: false })
    });
    let _plugin = world.plugin("10-a", script).await;
    let made = async {
        while world.shares("c") != Some(4) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, made).await.unwrap();
}

/// Updates of two containers, the second of which fails.
fn two(second_may_fail: bool) -> Vec<ContainerUpdate> {
    let second = ContainerUpdate { ignore_failure: second_may_fail, ..update("c2", 13) };
    vec![update("c1", 5), second]
}

/// Waits until the change of `container` was tried; what came of it.
async fn tried(watch: &mut nri::Watch, container: &str) -> Option<String> {
    let found = async {
        loop {
            match &*watch.next().await.unwrap() {
                nri::Notice::Changed { container: id, error, .. } if id == container => {
                    return error.clone();
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(SOON, found).await.unwrap()
}

#[tokio::test]
async fn with_a_stop_an_update_that_may_fail_fails_alone() {
    let world = World::new().await;
    let script = Script::new("StopContainer")
        .on_stop(|_| async { Ok(StopContainerResponse { update: two(true) }) });
    let _a = world.plugin("10-a", script).await;
    for id in ["c1", "c2", "old"] {
        world.create(id).await.unwrap();
    }
    world.domain.refuses.lock().insert(13);
    world.stop("old").await.unwrap();
    assert_eq!((world.shares("c1"), world.shares("c2")), (Some(5), Some(1)));
}

#[tokio::test]
async fn with_a_sync_failures_cost_the_updates_and_not_the_plugin() {
    for (may_fail, want) in [(false, Some(1)), (true, Some(5))] {
        let world = World::new().await;
        world.create("c1").await.unwrap();
        world.create("c2").await.unwrap();
        world.domain.refuses.lock().insert(13);
        let mut watch = world.nri.watch();
        let script = Script::new("all").on_sync(move |_| async move {
            Ok(SynchronizeResponse { update: two(may_fail), more: false })
        });
        let _plugin = world.plugin("10-a", script).await;
        assert_eq!(tried(&mut watch, "c1").await, None);
        assert!(tried(&mut watch, "c2").await.is_some());
        // What was made is taken back a moment later.
        let settled = async {
            while world.shares("c1") != want {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, settled).await.unwrap();
        assert_eq!(world.plugins(), ["10-a"], "it stays");
        world.nri.shutdown().await;
    }
}

// === out of turn ===

#[tokio::test]
async fn a_plugin_updates_and_evicts_when_it_likes() {
    let world = World::new().await;
    world.create("c1").await.unwrap();
    world.create("c2").await.unwrap();
    let live = world.plugin("10-a", Script::new("all")).await;
    world.domain.refuses.lock().insert(13);
    let optional = ContainerUpdate { ignore_failure: true, ..update("c2", 13) };
    let failed = live
        .update(
            vec![update("c1", 5), update("c2", 13), update("gone", 2)],
            vec![eviction("c2", "why not")],
        )
        .await;
    assert_eq!(failed.unwrap(), [update("c2", 13)]);
    assert_eq!(live.update(vec![optional], vec![]).await.unwrap(), []);
    assert_eq!(world.shares("c1"), Some(5));
    assert_eq!(world.domain.evicted.lock().len(), 1);
    let refused = live.update(vec![], vec![eviction("c1", "refuse")]).await;
    assert_eq!(refused.unwrap_err().code(), ttrpc::Code::Internal);
}

#[tokio::test]
async fn before_it_has_its_place_a_plugin_may_not_update() {
    let world = World::new().await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let attach = world.nri.attach("10-a".parse().unwrap(), "", near);
    let early = async {
        struct Nothing;
        impl nri_wire::api::Plugin for Nothing {}
        let (runtime, _trunk) = nri_wire::Trunk::plugin(far, Nothing);
        let request = UpdateContainersRequest::default();
        runtime.update_containers(&ttrpc::Context::timeout(SOON), &request).await
    };
    let (_, early) = tokio::join!(attach, early);
    assert_eq!(early.unwrap_err().code(), ttrpc::Code::FailedPrecondition);
}

#[tokio::test]
async fn the_allow_list_holds_for_updates_too() {
    let mut settings = quiet();
    let fields: FieldSet = "memory".parse().unwrap();
    settings
        .plugins
        .insert("a".to_owned(), PluginPolicy { fields: Some(fields), ..Default::default() });
    let world = World::with(settings).await;
    world.create("c").await.unwrap();
    let live = world.plugin("10-a", Script::new("all")).await;
    let refused = live.update(vec![update("c", 5)], vec![]).await.unwrap_err();
    assert_eq!(refused.code(), ttrpc::Code::InvalidArgument);
    assert_eq!(world.shares("c"), Some(1));
}

/// The reference deadlocks here until the request times out.
#[tokio::test]
async fn a_plugin_may_update_from_inside_a_handler() {
    let world = World::new().await;
    world.create("other").await.unwrap();
    let runtime: Arc<parking_lot::Mutex<Option<RuntimeClient>>> = Arc::default();
    let caller = Arc::clone(&runtime);
    let script = Script::new("CreateContainer").on_create(move |_| {
        let runtime = caller.lock().clone();
        async move {
            if let Some(runtime) = runtime {
                let request =
                    UpdateContainersRequest { update: vec![update("other", 9)], evict: vec![] };
                let answer =
                    runtime.update_containers(&ttrpc::Context::timeout(SOON), &request).await?;
                assert!(answer.failed.is_empty());
            }
            Ok(CreateContainerResponse::default())
        }
    });
    let live = world.plugin("10-a", script).await;
    *runtime.lock() = Some(live.runtime.clone());
    world.create("c").await.unwrap();
    assert_eq!(world.shares("other"), Some(9));
}

// === no deadlocks ===

#[tokio::test]
async fn two_creations_that_update_each_other() {
    let world = World::new().await;
    let script = creating(|id| {
        let update = if id == "a" { vec![update("b", 5)] } else { vec![update("a", 6)] };
        CreateContainerResponse { update, ..Default::default() }
    });
    let _plugin = world.plugin("10-x", script).await;
    for _ in 0..20 {
        let both = async { tokio::join!(world.create("a"), world.create("b")) };
        let (a, b) = tokio::time::timeout(SOON, both).await.expect("they wait for nobody");
        a.unwrap();
        b.unwrap();
        world.remove("a").await;
        world.remove("b").await;
        world.settle().await;
    }
}

/// The eviction is done when the process has exited; that its StopContainer waits behind the
/// creation that evicts it must not matter.
#[tokio::test]
async fn a_creation_whose_eviction_is_announced_behind_it() {
    let world = World::new().await;
    let script = creating(|id| {
        let evict = if id == "new" { vec![eviction("old", "room")] } else { vec![] };
        CreateContainerResponse { evict, ..Default::default() }
    });
    let _plugin = world.plugin("10-x", script).await;
    world.create("old").await.unwrap();
    let announcing = world.clone();
    *world.domain.on_evict.lock() = Some(Arc::new(move |id| {
        // As an engine does: the exit is announced by a task of its own.
        let world = announcing.clone();
        spawn(async move { world.stop(&id).await });
        async {}.boxed()
    }));
    tokio::time::timeout(SOON, world.create("new")).await.expect("it does not wait").unwrap();
    world.told.wait_for("10-x StopContainer old").await;
}

/// Changes are made in the order of requests, whoever of them is ready first.
#[tokio::test]
async fn changes_come_in_the_order_of_requests() {
    let world = World::new().await;
    let script = Script::new("CreateContainer").on_create(|request| async move {
        let id = request.container.unwrap_or_default().id;
        let (pause, shares) = match id.as_str() {
            "first" => (40, 5),
            "second" => (1, 6),
            _ => return Ok(CreateContainerResponse::default()),
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        Ok(CreateContainerResponse { update: vec![update("c", shares)], ..Default::default() })
    });
    let mut settings = quiet();
    settings
        .plugins
        .insert("a".to_owned(), PluginPolicy { concurrent: true, ..Default::default() });
    let world = World { nri: World::with(settings).await.nri, ..world };
    world.nri.add_domain(Arc::clone(&world.domain) as Arc<dyn nri::Domain>, &[], &[]);
    let _plugin = world.plugin("10-a", script).await;
    world.create("c").await.unwrap();
    let second = async {
        world.told.wait_for("10-a CreateContainer first").await;
        world.create("second").await
    };
    let (first, second) = tokio::join!(world.create("first"), second);
    first.unwrap();
    second.unwrap();
    assert_eq!(world.shares("c"), Some(6));
}
