//! Plugins that are slow, wrong, or gone: the outcome is the stated policy, and nobody waits
//! longer than it says. Time is paused: nothing here depends on how fast the machine is.

use std::{num::NonZeroU32, time::Duration};

use futures_util::FutureExt;
use nri::{Ask, Kind, NriError, OnFailure, PluginPolicy, Settings, api::*};
use tokio::{io::AsyncWriteExt, time::Instant};
use ttrpc::Status;

use crate::kit::*;

const LIMIT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(3600);

fn with(policy: PluginPolicy) -> Settings {
    let mut settings = quiet();
    settings.plugins.insert("bad".to_owned(), policy);
    settings
}

fn policy(on_failure: Option<OnFailure>) -> PluginPolicy {
    PluginPolicy { on_failure, ..Default::default() }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Hangs,
    Refuses,
    Dies,
}

fn faulty(fault: Fault) -> Script {
    let fail = move || async move {
        match fault {
            Fault::Hangs => tokio::time::sleep(LONG).await,
            Fault::Refuses => return Err(Status::internal("no")),
            // Its connection is closed by the test.
            Fault::Dies => std::future::pending().await,
        }
        Ok(())
    };
    let events = "RunPodSandbox,UpdatePodSandbox,CreateContainer,StartContainer,UpdateContainer,StopContainer,StopPodSandbox";
    Script::new(events)
        .on_create(
            move |_| async move { fail().await.map(|()| CreateContainerResponse::default()) },
        )
        .on_update(
            move |_| async move { fail().await.map(|()| UpdateContainerResponse::default()) },
        )
        .on_stop(move |_| async move { fail().await.map(|()| StopContainerResponse::default()) })
        .on_event(move |_| async move { fail().await })
}

const REQUESTS: [&str; 7] = [
    "RunPodSandbox",
    "UpdatePodSandbox",
    "CreateContainer",
    "StartContainer",
    "UpdateContainer",
    "StopContainer",
    "StopPodSandbox",
];

async fn request(world: &World, name: &str) -> Result<(), NriError> {
    let (p, c, ask) = (pod("pod"), container("c"), Ask::default());
    match name {
        "RunPodSandbox" => world.nri.run_pod(&pod("other"), &ask).await,
        "UpdatePodSandbox" => world.nri.update_pod(&p, None, None, &ask).await,
        "CreateContainer" => world.create("new").await.map(drop),
        "StartContainer" => world.nri.start_container(&p, &c, &ask).await,
        "UpdateContainer" => {
            world.nri.update_container(&p, &c, &resources(1), &ask).await.map(drop)
        }
        "StopContainer" => world.nri.stop_container(&p, &c, &ask).await,
        _ => world.nri.stop_pod(&p, &ask).await,
    }
}

/// Every request type, with every fault, under every policy.
#[tokio::test(start_paused = true)]
async fn every_fault_in_every_request_has_the_stated_outcome() {
    for fault in [Fault::Hangs, Fault::Refuses, Fault::Dies] {
        for on_failure in [None, Some(OnFailure::Fail), Some(OnFailure::Ignore)] {
            for name in REQUESTS {
                check_fault(fault, on_failure, name).await;
            }
        }
    }
}

async fn check_fault(fault: Fault, on_failure: Option<OnFailure>, name: &str) {
    let case = format!("{fault:?} {on_failure:?} {name}");
    let world = World::with(with(policy(on_failure))).await;
    world.run("pod").await.unwrap();
    world.create("c").await.unwrap();
    let bad = world.plugin("10-bad", faulty(fault)).await;
    let _good = world.plugin("20-good", Script::new("all")).await;
    let begun = Instant::now();
    let dying = async {
        if fault == Fault::Dies {
            world.told.wait_for(&format!("10-bad {name}")).await;
            bad.trunk.close();
        }
    };
    let (outcome, ()) = tokio::join!(request(&world, name), dying);
    let fails = match (on_failure, fault) {
        (Some(OnFailure::Fail), _) | (None, Fault::Refuses) => true,
        (Some(OnFailure::Ignore), _) | (None, _) => false,
    };
    assert_eq!(outcome.is_err(), fails, "{case}: {outcome:?}");
    let took = begun.elapsed();
    match fault {
        Fault::Hangs => assert!((LIMIT..LIMIT * 11 / 10).contains(&took), "{case}: {took:?}"),
        _ => assert!(took < LIMIT / 2, "{case}: {took:?}"),
    }
    // What goes on, and what is told to all in any case, reaches the next plugin.
    let ends = name.starts_with("Stop");
    let reached = world.told.count(&format!("20-good {name}")) == 1;
    assert_eq!(reached, ends || !fails, "{case}");
    let stays = fault == Fault::Refuses;
    let want: &[&str] = if stays { &["10-bad", "20-good"] } else { &["20-good"] };
    world.wait_for_plugins(want).await;
    world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_dropped_after_its_last_strike() {
    let strikes = NonZeroU32::new(3);
    let world = World::with(with(PluginPolicy { strikes, ..Default::default() })).await;
    let script = Script::new("CreateContainer").on_create(|request| async move {
        if request.container.unwrap_or_default().id.starts_with("slow") {
            tokio::time::sleep(LONG).await;
        }
        Ok(CreateContainerResponse::default())
    });
    let _bad = world.plugin("10-bad", script).await;
    for id in ["slow1", "slow2", "quick", "slow3", "slow4"] {
        world.create(id).await.unwrap();
        assert_eq!(world.plugins(), ["10-bad"], "{id}");
    }
    world.create("slow5").await.unwrap();
    world.wait_for_plugins(&[]).await;
    assert!(world.metrics().contains(r#"nri_plugin_strikes_total{plugin="10-bad"} 5"#));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_may_have_more_time_than_others() {
    let request_timeout = Some(Duration::from_secs(10));
    let world = World::with(with(PluginPolicy { request_timeout, ..Default::default() })).await;
    let _bad =
        world.plugin("10-bad", Script::new("CreateContainer").slow(Duration::from_secs(9))).await;
    world.create("c").await.unwrap();
    assert_eq!(world.plugins(), ["10-bad"]);
}

/// A plugin says how it wants to be treated; what the operator says counts first.
#[tokio::test(start_paused = true)]
async fn a_plugin_has_wishes_and_the_operator_the_last_word() {
    let outcome = async |fail_request: bool, keep_connected: bool, policy: PluginPolicy| {
        let world = World::with(with(policy)).await;
        let wishes = Some(FailurePolicy { fail_request, keep_connected });
        let script = Script { wishes, ..Script::new("CreateContainer").slow(LONG) };
        let _bad = world.plugin("10-bad", script).await;
        let failed = world.create("c").await.is_err();
        (failed, world.plugins().len() == 1)
    };
    let nothing = PluginPolicy::default;
    for fail in [false, true] {
        for keep in [false, true] {
            assert_eq!(outcome(fail, keep, nothing()).await, (fail, keep));
        }
    }
    let strict = PluginPolicy { strikes: NonZeroU32::new(1), ..policy(Some(OnFailure::Ignore)) };
    assert_eq!(outcome(true, true, strict).await, (false, false));
    assert_eq!(outcome(false, false, policy(Some(OnFailure::Fail))).await, (true, false));
}

// === deadlines of callers ===

#[tokio::test(start_paused = true)]
async fn a_caller_without_time_is_answered_at_once_and_no_plugin_blamed() {
    let world = World::new().await;
    let mask = "CreateContainer,StopContainer,RemoveContainer";
    let script = |time: u64| {
        Script::new(mask).on_create(move |_| async move {
            tokio::time::sleep(Duration::from_secs(time)).await;
            Ok(CreateContainerResponse::default())
        })
    };
    let _a = world.plugin("10-a", script(1)).await;
    let _b = world.plugin("20-b", script(1)).await;
    let begun = Instant::now();
    let ask = Ask::within(Duration::from_millis(500));
    // One is in the plugin, one waits for it.
    let (in_call, queued) = (container("in-call"), container("queued"));
    let (first, second) =
        tokio::join!(world.create_with(&in_call, &ask), world.create_with(&queued, &ask));
    assert_eq!(begun.elapsed(), Duration::from_millis(500));
    let first = first.unwrap_err();
    assert_eq!(
        (first.kind(), first.to_string()),
        (Kind::Deadline, "no time left: in 10-a".to_owned())
    );
    assert_eq!(second.unwrap_err().to_string(), "no time left: waits for 10-a");
    // The plugin is told that the first is gone, once it has answered; the second it never saw.
    world.settle().await;
    assert_eq!(world.told.count("10-a StopContainer in-call"), 1);
    assert_eq!(world.told.count("10-a RemoveContainer in-call"), 1);
    assert_eq!(world.told.all().iter().filter(|line| line.ends_with("queued")).count(), 0);
    assert_eq!(world.told.count("20-b"), 1, "only synchronised");
    assert_eq!(world.plugins(), ["10-a", "20-b"]);
    world.create("in-call").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_asked_one_thing_at_a_time_though_callers_give_up() {
    let world = World::new().await;
    let (told, busy) =
        (world.told.clone(), std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let script = Script::new("CreateContainer").on_create(move |_| {
        let (told, busy) = (told.clone(), std::sync::Arc::clone(&busy));
        async move {
            if busy.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
                told.push("two at a time");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            busy.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            Ok(CreateContainerResponse::default())
        }
    });
    let _a = world.plugin("10-a", script).await;
    for i in 0..5 {
        let ask = Ask::within(Duration::from_millis(300));
        assert!(world.create_with(&container(&format!("c{i}")), &ask).await.is_err());
    }
    world.create("last").await.unwrap();
    assert_eq!(world.told.count("two at a time"), 0);
    assert_eq!(world.plugins(), ["10-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_nothing() {
    let world = World::new().await;
    let script =
        Script::new("CreateContainer,StopContainer,RemoveContainer").on_create(|_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(CreateContainerResponse::default())
        });
    let _a = world.plugin("10-a", script).await;
    for pause in [1, 500, 999, 1000, 1001] {
        let id = format!("c{pause}");
        let wait = Duration::from_millis(pause);
        let gone = tokio::time::timeout(wait, world.create(&id)).await.is_err();
        world.settle().await;
        let (stops, removals) = (
            world.told.count(&format!("10-a StopContainer {id}")),
            world.told.count(&format!("10-a RemoveContainer {id}")),
        );
        let want = usize::from(gone);
        assert_eq!((stops, removals), (want, want), "after {pause} ms");
        assert_eq!(world.nri.journal(&id).is_none(), gone);
    }
}

/// A turn that was given and not taken is one the plugin would wait for for ever.
#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_before_anything_was_asked_holds_up_nobody() {
    for validated in [false, true] {
        let world = World::new().await;
        let events = if validated { "ValidateContainerAdjustment" } else { "CreateContainer" };
        let _a = world.plugin("10-a", Script::new(events)).await;
        for number in 0..3 {
            // It has its place and its turn, and that is all.
            assert!(world.create(&format!("gone{number}")).now_or_never().is_none());
            world.settle().await;
        }
        let created = tokio::time::timeout(SOON, world.create("c0")).await;
        created.expect("nobody is waited for").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_is_told_though_its_caller_has_no_time() {
    let world = World::new().await;
    world.create("c").await.unwrap();
    let _a = world.plugin("10-a", Script::new("StopContainer").slow(Duration::from_secs(1))).await;
    let _b = world.plugin("20-b", Script::new("StopContainer")).await;
    let ask = Ask::within(Duration::from_millis(100));
    let error = world.nri.stop_container(&pod("pod"), &container("c"), &ask).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Deadline);
    world.settle().await;
    assert_eq!(world.told.count("20-b StopContainer c"), 1);
}

// === the pipeline ===

/// Eight requests through three plugins of one second each take ten seconds, not 24.
#[tokio::test(start_paused = true)]
async fn throughput_is_that_of_the_slowest_plugin() {
    let world = World::new().await;
    let slow = || Script::new("CreateContainer").slow(Duration::from_secs(1));
    let _a = world.plugin("10-a", slow()).await;
    let _b = world.plugin("20-b", slow()).await;
    let _c = world.plugin("30-c", slow()).await;
    let begun = Instant::now();
    let creations = (0..8).map(|i| {
        let world = world.clone();
        async move { world.create(&format!("c{i}")).await.unwrap() }
    });
    futures_util::future::join_all(creations).await;
    assert_eq!(begun.elapsed().as_secs(), 10);
    // All plugins have seen the same order.
    let order = |plugin: &str| -> Vec<String> {
        let start = format!("{plugin} CreateContainer ");
        world
            .told
            .all()
            .iter()
            .filter_map(|line| line.strip_prefix(&start).map(str::to_owned))
            .collect()
    };
    assert_eq!(order("10-a"), order("20-b"));
    assert_eq!(order("10-a"), order("30-c"));
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_plugin_takes_all_at_once() {
    let world = World::with(with(PluginPolicy { concurrent: true, ..Default::default() })).await;
    let _a =
        world.plugin("10-bad", Script::new("CreateContainer").slow(Duration::from_secs(1))).await;
    let begun = Instant::now();
    let creations = (0..8).map(|i| {
        let world = world.clone();
        async move { world.create(&format!("c{i}")).await.unwrap() }
    });
    futures_util::future::join_all(creations).await;
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn posts_and_removals_are_not_waited_for_but_come_in_order() {
    let world = World::new().await;
    world.create("c").await.unwrap();
    let _a = world.plugin("10-a", Script::new("all").slow(Duration::from_secs(1))).await;
    world.told.clear();
    let begun = Instant::now();
    let (p, c) = (pod("pod"), container("c"));
    world.nri.post_start_container(&p, &c).await;
    world.nri.post_update_container(&p, &c).await;
    world.remove("c").await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    world.settle().await;
    assert_eq!(
        world.told.all(),
        ["PostStartContainer", "PostUpdateContainer", "StopContainer", "RemoveContainer"]
            .map(|e| format!("10-a {e} c"))
    );
}

// === nonsense on the wire ===

#[tokio::test]
async fn nonsense_from_a_plugin_costs_the_plugin() {
    for nonsense in
        [&b"\0\0\0\x01\xFF\xFF\xFF\xFF"[..], b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x02\0\0\0\x03abc"]
    {
        let world = World::new().await;
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let attach = world.nri.attach("10-a".parse().unwrap(), "", near);
        let talk = async {
            far.write_all(nonsense).await.unwrap();
            drop(far);
        };
        let (joined, ()) = tokio::join!(attach, talk);
        joined.unwrap_err();
        world.create("c").await.unwrap();
        assert_eq!(world.plugins(), Vec::<String>::new());
    }
}

/// Registers and vanishes at every step of the way in.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_vanishes_on_its_way_in_leaves_nothing() {
    for step in ["configure", "sync"] {
        let world = World::new().await;
        let script = match step {
            "configure" => Script::new("all").on_configure(|_| std::future::pending()),
            _ => Script::new("all").on_sync(|_| std::future::pending()),
        };
        let (near, far) = tokio::io::duplex(1 << 16);
        let attach = world.nri.attach("10-a".parse().unwrap(), "", near);
        let vanish = async {
            let live = script.connect(far, "10", "a").await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(live);
        };
        let (joined, ()) = tokio::join!(attach, vanish);
        joined.unwrap_err();
        world.create("c").await.unwrap();
        assert_eq!(world.plugins(), Vec::<String>::new(), "{step}");
        world.settle().await;
    }
}

/// A plugin that hangs in Synchronize holds up whoever was admitted after it, for its time
/// limit, and nobody else.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_in_synchronize_is_given_its_time_and_no_more() {
    let world = World::new().await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let script = Script::new("CreateContainer").on_sync(|_| std::future::pending());
    let begun = Instant::now();
    let attach = world.nri.attach("10-a".parse().unwrap(), "", near);
    let create = async {
        let _live = script.connect(far, "10", "a").await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.create("c").await.unwrap();
    };
    let (joined, ()) = tokio::join!(attach, create);
    joined.unwrap_err();
    assert!((LIMIT..LIMIT * 11 / 10).contains(&begun.elapsed()));
}

/// Ten plugins fail at once, in ten ways of timing, while requests pass.
#[tokio::test(start_paused = true)]
async fn ten_plugins_that_die_at_once() {
    let world = World::new().await;
    let mut live = Vec::new();
    for i in 10..20 {
        live.push(
            world
                .plugin(&format!("{i}-bad"), Script::new("all").slow(Duration::from_millis(i * 10)))
                .await,
        );
    }
    let creations = (0..20).map(|i| {
        let world = world.clone();
        async move { world.create(&format!("c{i}")).await.map(drop) }
    });
    let die = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(live);
    };
    let (outcomes, ()) = tokio::join!(futures_util::future::join_all(creations), die);
    // Validators among them that go fail creations; nothing hangs, nothing else does.
    for outcome in outcomes.into_iter().filter_map(Result::err) {
        assert!(matches!(outcome, NriError::Validator { .. }), "{outcome}");
    }
    world.settle().await;
    assert_eq!(world.plugins(), Vec::<String>::new());
    world.create("after").await.unwrap();
}

/// Floods us with calls: what is too much is refused, and the others do not notice.
#[tokio::test]
async fn a_plugin_that_floods_hurts_itself() {
    let world = World::new().await;
    world.create("c").await.unwrap();
    let _good = world.plugin("10-good", Script::new("CreateContainer")).await;
    let flooding = world.plugin("20-flood", Script::new("StartContainer")).await;
    let flood = (0..2000).map(|_| flooding.update(vec![update("c", 5)], vec![]));
    let calm = async {
        for i in 0..50 {
            world.create(&format!("c{i}")).await.unwrap();
        }
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(flood), calm);
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    assert!(refused.clone().all(|error| error.code() == ttrpc::Code::ResourceExhausted));
    assert!(answers.iter().any(Result::is_ok));
}
