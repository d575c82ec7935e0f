//! Plugins that take long to be synchronised: nobody waits for them for ever, they miss nothing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nri::{Ask, JoinError, NriError, PluginPolicy, Settings, api::*};
use tokio::{task::JoinHandle, time::Instant};

use crate::kit::*;

const REQUEST: Duration = Duration::from_secs(2);
const SYNC: Duration = Duration::from_secs(30);

fn sleeping(time: Duration) -> Script {
    Script::new("all").on_sync(move |_| async move {
        tokio::time::sleep(time).await;
        Ok(SynchronizeResponse::default())
    })
}

/// A plugin that is being synchronised when this returns.
async fn joining(world: &World, id: &'static str, script: Script) -> JoinHandle<Live> {
    let joined = spawn({
        let world = world.clone();
        async move { world.plugin(id, script).await }
    });
    world.told.wait_for(&format!("{id} synced")).await;
    joined
}

/// What one plugin was told, without its name.
fn told(world: &World, id: &str) -> Vec<String> {
    let all = world.told.all();
    all.iter().filter_map(|line| line.strip_prefix(&format!("{id} "))).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn what_went_on_without_it_is_announced_once_and_in_order() {
    let world = World::new().await;
    world.create("before").await.unwrap();
    let joined = joining(&world, "10-slow", sleeping(Duration::from_secs(20))).await;
    let begun = Instant::now();
    world.run("p").await.unwrap();
    assert!(begun.elapsed() <= REQUEST, "waited {:?}", begun.elapsed());
    let begun = Instant::now();
    world.create("during").await.unwrap();
    world.nri.post_create_container(&pod("pod"), &container("during")).await;
    world.nri.start_container(&pod("pod"), &container("during"), &Ask::default()).await.unwrap();
    world.create("short").await.unwrap();
    world.stop("short").await.unwrap();
    world.remove("short").await;
    world.stop("before").await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO, "it was waited for once");
    assert_eq!(told(&world, "10-slow"), ["sync before", "synced "]);
    let _live = joined.await.unwrap();
    world.create("after").await.unwrap();
    world.settle().await;
    let want = [
        "sync before",
        "synced ",
        "RunPodSandbox p",
        "CreateContainer during",
        "PostCreateContainer during",
        "StartContainer during",
        "CreateContainer short",
        "StopContainer short",
        "RemoveContainer short",
        "StopContainer before",
        "CreateContainer after",
        "Validate after",
    ];
    assert_eq!(told(&world, "10-slow"), want);
}

#[tokio::test(start_paused = true)]
async fn what_failed_without_it_is_not_announced() {
    let world = World::new().await;
    let script = Script::new("CreateContainer").on_create(|request| async move {
        match request.container.unwrap_or_default().id.as_str() {
            "refused" => Err(ttrpc::Status::invalid_argument("no")),
            _ => Ok(CreateContainerResponse::default()),
        }
    });
    let _other = world.plugin("20-other", script).await;
    let joined = joining(&world, "10-slow", sleeping(Duration::from_secs(20))).await;
    world.create("refused").await.unwrap_err();
    world.create("made").await.unwrap();
    let _live = joined.await.unwrap();
    world.settle().await;
    assert_eq!(told(&world, "10-slow"), ["synced ", "CreateContainer made"]);
}

/// Resources can be changed later, so they are; nothing else can.
#[tokio::test(start_paused = true)]
async fn of_a_late_adjustment_the_resources_are_applied() {
    let world = World::new().await;
    let script = sleeping(Duration::from_secs(20)).on_create(|request| async move {
        let mut adjust = env("LATE", "1");
        let id = request.container.unwrap_or_default().id;
        let resources = update(&id, 7).linux.and_then(|linux| linux.resources);
        adjust.linux = Some(LinuxContainerAdjustment { resources, ..Default::default() });
        Ok(CreateContainerResponse { adjust: Some(adjust), ..Default::default() })
    });
    let joined = joining(&world, "10-slow", script).await;
    let created = world.create("c").await.unwrap();
    assert!(!has_env(&created, "LATE=1"));
    let _live = joined.await.unwrap();
    let applied = async {
        while world.shares("c") != Some(7) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, applied).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_never_answers_is_asked_four_times_and_dropped_with_the_reason() {
    let world = World::new().await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let script = sleeping(Duration::from_secs(100_000)).telling(&world.told);
    let begun = Instant::now();
    let attach = world.nri.attach("10-slow".parse().unwrap(), "", near);
    let during = async {
        world.told.wait_for("10-slow synced").await;
        world.create("c").await.unwrap();
    };
    let (joined, live, ()) = tokio::join!(attach, script.connect(far, "10", "slow"), during);
    let error = joined.unwrap_err();
    let JoinError::Sync { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(error.to_string(), "synchronize plugin 10-slow");
    let want = "no answer within its time limit of 30s, 4 times in a row";
    assert_eq!(source.to_string(), want);
    assert_eq!(begun.elapsed().as_secs(), (SYNC * 4).as_secs() + 1 + 2 + 4);
    assert_eq!(world.told.count("10-slow synced"), 4);
    live.unwrap().trunk.closed().await.unwrap();
    assert_eq!(world.plugins(), [""; 0]);
    world.create("next").await.unwrap();
    world.settle().await;
    assert_eq!(world.told.count("10-slow CreateContainer"), 0);
}

/// The answer to the first call comes while the second is being answered.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_is_not_taken_for_another() {
    let plugins = BTreeMap::from([(
        "slow".to_owned(),
        PluginPolicy { synchronize_timeout: Some(Duration::from_secs(5)), ..Default::default() },
    )]);
    let world = World::with(Settings { plugins, ..quiet() }).await;
    world.create("c").await.unwrap();
    let attempt = Arc::new(AtomicUsize::new(0));
    let script = Script::new("all").on_sync(move |_| {
        let first = attempt.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            tokio::time::sleep(Duration::from_secs(if first { 8 } else { 4 })).await;
            let update = vec![update("c", if first { 7 } else { 9 })];
            Ok(SynchronizeResponse { update, more: false })
        }
    });
    let begun = Instant::now();
    let joined = joining(&world, "10-slow", script).await;
    world.create("during").await.unwrap();
    let _live = joined.await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 5 + 1 + 4);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.shares("c"), Some(9));
    let want = ["sync c", "synced ", "sync c", "synced ", "CreateContainer during"];
    assert_eq!(told(&world, "10-slow"), want);
}

/// Required by its policy: what needs it waits before it has a place in the order. Required by
/// the validator: it waits at its place.
#[tokio::test(start_paused = true)]
async fn a_required_plugin_is_waited_for_for_as_long_as_it_takes() {
    let policy = PluginPolicy { required: Some(Duration::from_secs(1)), ..Default::default() };
    let mut by_policy = quiet();
    by_policy.plugins.insert("slow".to_owned(), policy);
    let mut by_validator = quiet();
    by_validator.validator.required_plugins.push("slow".to_owned());
    for mut settings in [by_policy, by_validator] {
        settings.validator.tolerate_missing_annotation = Some("tolerate".to_owned());
        let world = World::with(settings).await;
        let script = sleeping(Duration::from_secs(20)).adjusting(|_| env("SET", "1"));
        let joined = joining(&world, "10-slow", script).await;
        let begun = Instant::now();
        let exempt = async {
            let annotations = BTreeMap::from([("tolerate".to_owned(), "true".to_owned())]);
            let exempt = nri::Pod { annotations, ..pod("exempt") };
            world.nri.run_pod(&exempt, &Ask::default()).await.unwrap();
            begun.elapsed()
        };
        let (created, exempt) = tokio::join!(world.create("c"), exempt);
        assert!(has_env(&created.unwrap(), "SET=1"));
        assert!(begun.elapsed() > Duration::from_secs(15), "{:?}", begun.elapsed());
        assert!(exempt <= REQUEST, "{exempt:?}");
        let _live = joined.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_required_plugin_fails_when_that_is_dropped() {
    let policy = PluginPolicy { required: Some(Duration::from_secs(1)), ..Default::default() };
    let mut settings = quiet();
    settings.plugins.insert("slow".to_owned(), policy);
    let world = World::with(settings).await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let script = sleeping(Duration::from_secs(100_000)).telling(&world.told);
    let attach = world.nri.attach("10-slow".parse().unwrap(), "", near);
    let during = async {
        world.told.wait_for("10-slow synced").await;
        world.create("c").await.unwrap_err()
    };
    let (_, _live, error) = tokio::join!(attach, script.connect(far, "10", "slow"), during);
    assert!(matches!(error, NriError::Missing(_)), "{error}");
}

/// A storm of creations and removals while plugins with slow Synchronize come in: each is told
/// of each container exactly once, whoever waits for it or does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_missed_or_told_of_twice_in_a_storm() {
    let request_timeout = Duration::from_millis(100);
    let strikes = std::num::NonZeroU32::new(1_000_000);
    let plugins = (10..16).map(|i| {
        let policy = PluginPolicy { strikes, concurrent: i % 2 == 0, ..Default::default() };
        (format!("{i}-late"), policy)
    });
    let plugins = plugins.collect();
    let world = World::with(Settings { request_timeout, plugins, ..quiet() }).await;
    let storm = async {
        let creations = (0..10).map(|i| {
            let world = world.clone();
            async move {
                for j in 0..30 {
                    let id = format!("c{i}-{j}");
                    world.create(&id).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    if j % 3 == 0 {
                        world.remove(&id).await;
                    }
                }
            }
        });
        futures_util::future::join_all(creations).await;
    };
    let join_all = async {
        let plugins = (10..16).map(|i| {
            let world = &world;
            async move {
                tokio::time::sleep(Duration::from_millis(70 * (i - 10))).await;
                let script = sleeping(Duration::from_millis(40 * (i - 9)));
                world.plugin(&format!("{i}-late"), script).await
            }
        });
        futures_util::future::join_all(plugins).await
    };
    let ((), _live) = tokio::join!(storm, join_all);
    world.settle().await;
    world.nri.idle().await;
    for i in 10..16 {
        let told = told(&world, &format!("{i}-late"));
        let about = |id: &str| -> Vec<&str> {
            let of = told.iter().filter_map(|line| line.split_once(' ')).filter(|(_, o)| *o == id);
            let mut of: Vec<_> = of.map(|(e, _)| e).filter(|event| *event != "Validate").collect();
            // Who takes several at once gets an end and a removal that nobody waits for at once.
            if i % 2 == 0 && of.len() == 3 {
                of[1..].sort_unstable_by(|a, b| b.cmp(a));
            }
            of
        };
        for (i, j) in (0..10).flat_map(|i| (0..30).map(move |j| (i, j))) {
            let about = about(&format!("c{i}-{j}"));
            let known = ["sync", "CreateContainer"];
            // What was gone before the plugin came is not told of.
            match about.as_slice() {
                [] => assert_eq!(j % 3, 0),
                [first] => assert!(known.contains(first) && j % 3 != 0, "{about:?}"),
                [first, rest @ ..] => {
                    assert!(known.contains(first), "{about:?}");
                    assert_eq!(rest, ["StopContainer", "RemoveContainer"]);
                }
            }
        }
    }
}
