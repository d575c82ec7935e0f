//! How plugins come in, and what they are told then.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nri::{
    Ask, Container, Domain, Duplicates, JoinError, Kind, Nri, NriError, PluginPolicy, RuntimeInfo,
    Settings, State, api::*,
};
use tokio::sync::Notify;

use crate::kit::*;

#[tokio::test]
async fn a_plugin_is_configured_before_it_is_synchronised() {
    let plugins = BTreeMap::from([(
        "slow".to_owned(),
        PluginPolicy { request_timeout: Some(Duration::from_secs(9)), ..Default::default() },
    )]);
    let registration_timeout = Duration::from_secs(7);
    let world = World::with(Settings { plugins, registration_timeout, ..quiet() }).await;
    for (id, limit) in [("10-a", 2000), ("20-slow", 9000)] {
        let told = world.told.clone();
        let script = Script::new("all").on_configure(move |request| {
            told.push(format!("configured {}", request.request_timeout));
            assert_eq!(
                (request.runtime_name.as_str(), request.runtime_version.as_str()),
                ("test", "1.2")
            );
            assert_eq!(request.registration_timeout, 7000);
            assert_eq!(request.nri_version, "v0.12.5");
            async { Ok(()) }
        });
        let _plugin = world.plugin(id, script).await;
        assert_eq!(world.told.all(), [format!("configured {limit}"), format!("{id} synced ")]);
        world.told.clear();
    }
}

#[tokio::test]
async fn a_plugin_is_told_what_exists_and_not_what_has_stopped() {
    let nri = Nri::new(quiet(), RuntimeInfo::new("test", "1")).unwrap();
    let domain = Arc::new(FakeDomain::default());
    let stopped = Container { state: State::Stopped, ..container("stopped") };
    let pods = [(pod("p1"), State::Running), (pod("p2"), State::Stopped)];
    nri.add_domain(Arc::clone(&domain) as Arc<dyn Domain>, &pods, &[container("c1"), stopped]);
    nri.start().await.unwrap();
    let world = World { nri, domain, told: Told::default() };
    world.create("c2").await.unwrap();
    world.create("gone").await.unwrap();
    world.stop("gone").await.unwrap();
    let _plugin = world.plugin("10-a", Script::new("all")).await;
    let want = ["sync p1", "sync p2", "sync c1", "sync c2", "synced "];
    assert_eq!(world.told.all(), want.map(|line| format!("10-a {line}")));
}

#[tokio::test]
async fn everything_is_split_where_it_does_not_fit() {
    let world = World::new().await;
    let fat = |id: usize| {
        let annotations = BTreeMap::from([("fat".to_owned(), "x".repeat(3000))]);
        Container { annotations, ..container(&format!("c{id:04}")) }
    };
    for id in 0..4000 {
        world.create_with(&fat(id), &Ask::default()).await.unwrap();
    }
    let _plugin = world.plugin("10-a", Script::new("all")).await;
    assert_eq!(world.told.count("10-a sync c"), 4000);
    assert!((3..8).contains(&world.told.count("10-a part")), "{}", world.told.count("10-a part"));
    assert_eq!(world.told.count("10-a synced"), 1);

    // One that does not understand parts is not taken in.
    let (near, far) = tokio::io::duplex(1 << 16);
    let script = Script { no_parts: true, ..Script::new("all") };
    let attach = world.nri.attach("20-b".parse().unwrap(), "", near);
    let (joined, _live) = tokio::join!(attach, script.connect(far, "20", "b"));
    let error = joined.unwrap_err();
    assert!(matches!(error, JoinError::Sync { .. }), "{error}");
    assert_eq!(world.plugins(), ["10-a"]);
}

#[tokio::test]
async fn unknown_events_are_refused() {
    let world = World::new().await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let script = Script { events: 1 << 14, ..Script::default() };
    let attach = world.nri.attach("20-b".parse().unwrap(), "", near);
    let (joined, live) = tokio::join!(attach, script.connect(far, "20", "b"));
    assert!(matches!(joined.unwrap_err(), JoinError::Events { .. }));
    live.unwrap().trunk.closed().await.unwrap();
}

#[tokio::test]
async fn a_second_registration_of_a_connection_is_refused() {
    let world = World::new().await;
    let live = world.plugin("10-a", Script::new("all")).await;
    let ctx = ttrpc::Context::timeout(SOON);
    let again = live.runtime.register_plugin(&ctx, &Default::default()).await;
    assert_eq!(again.unwrap_err().code(), ttrpc::Code::AlreadyExists);
    assert_eq!(world.plugins(), ["10-a"]);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_register_in_time_is_closed() {
    let world = World::new().await;
    let (near, _silent) = tokio::io::duplex(1 << 16);
    let begun = tokio::time::Instant::now();
    let joined = world.nri.attach("10-a".parse().unwrap(), "", near).await;
    assert!(matches!(joined, Err(JoinError::NotRegistered)));
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_plugin_of_the_same_name_replaces_is_kept_or_refused() {
    for duplicates in [Duplicates::Replace, Duplicates::Allow, Duplicates::Reject] {
        let world = World::with(Settings { duplicates, ..quiet() }).await;
        let old = world.plugin("10-a", Script::new("all")).await;
        let (near, far) = tokio::io::duplex(1 << 16);
        let attach = world.nri.attach("10-a".parse().unwrap(), "", near);
        let script = Script::new("all").telling(&world.told);
        let (joined, new) = tokio::join!(attach, script.connect(far, "10", "a"));
        match duplicates {
            Duplicates::Replace => {
                joined.unwrap();
                old.trunk.closed().await.unwrap();
                assert_eq!(world.plugins(), ["10-a"]);
            }
            Duplicates::Allow => {
                joined.unwrap();
                assert_eq!(world.plugins(), ["10-a", "10-a"]);
            }
            Duplicates::Reject => {
                assert!(matches!(joined, Err(JoinError::Refused(_))));
                assert_eq!(new.unwrap_err().code(), ttrpc::Code::AlreadyExists);
                assert_eq!(world.plugins(), ["10-a"]);
            }
        }
    }
}

/// A storm of creations while plugins come in: each plugin is told of each container exactly
/// once, by Synchronize or by CreateContainer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_container_is_missed_or_told_of_twice() {
    let world = World::new().await;
    let _first = world.plugin("50-first", Script::new("CreateContainer")).await;
    let storm = async {
        let creations = (0..40).map(|i| {
            let world = world.clone();
            async move {
                for j in 0..10 {
                    world.create(&format!("c{i}-{j}")).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        futures_util::future::join_all(creations).await;
    };
    let plugins = async {
        let mut live = Vec::new();
        for i in 10..40 {
            live.push(world.plugin(&format!("{i}-late"), Script::new("CreateContainer")).await);
        }
        live
    };
    let (_, live) = tokio::join!(storm, plugins);
    world.settle().await;
    let told = world.told.all();
    for i in 10..40 {
        let mut known: Vec<&str> = told
            .iter()
            .filter_map(|line| line.strip_prefix(&format!("{i}-late ")))
            .filter_map(|line| line.strip_prefix("sync ").or(line.strip_prefix("CreateContainer ")))
            .collect();
        known.sort_unstable();
        let before = known.len();
        known.dedup();
        assert_eq!((known.len(), before), (400, 400), "plugin {i}");
    }
    assert_eq!(live.len(), 30);
}

/// A creation in the pipeline holds up the joining plugin, not the other way round.
#[tokio::test]
async fn a_joining_plugin_waits_for_earlier_creations_only() {
    let world = World::new().await;
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let script = Script::new("CreateContainer").on_create(move |request| {
        let gate = Arc::clone(&gate);
        async move {
            if request.container.unwrap_or_default().id == "early" {
                gate.notified().await;
            }
            Ok(CreateContainerResponse::default())
        }
    });
    let _slow = world.plugin("10-slow", script).await;
    let early = {
        let world = world.clone();
        spawn(async move { world.create("early").await })
    };
    world.told.wait_for("10-slow CreateContainer early").await;
    let late_plugin = {
        let world = world.clone();
        spawn(async move { world.plugin("20-late", Script::new("CreateContainer")).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.told.count("20-late"), 0, "not synchronised while the creation is open");
    go.notify_one();
    early.await.unwrap().unwrap();
    let _late = late_plugin.await.unwrap();
    assert_eq!(world.told.count("20-late sync early"), 1);
    world.create("next").await.unwrap();
    assert_eq!(world.told.count("20-late CreateContainer next"), 1);
}

// === required plugins ===

fn requiring(wait: Duration) -> Settings {
    let policy = PluginPolicy { required: Some(wait), ..Default::default() };
    let mut settings = quiet();
    settings.plugins.insert("needed".to_owned(), policy);
    settings.validator.tolerate_missing_annotation = Some("tolerate".to_owned());
    settings
}

#[tokio::test(start_paused = true)]
async fn without_a_required_plugin_pods_wait_then_fail_unless_exempt() {
    let world = World::with(requiring(Duration::from_secs(3))).await;
    let begun = tokio::time::Instant::now();
    let error = world.run("p").await.unwrap_err();
    assert_eq!((error.kind(), begun.elapsed()), (Kind::Unavailable, Duration::from_secs(3)));
    assert_eq!(error.to_string(), "required plugins are missing: needed");
    // The caller's time counts too.
    let begun = tokio::time::Instant::now();
    let ask = Ask::within(Duration::from_secs(1));
    assert!(world.nri.run_pod(&pod("p"), &ask).await.is_err());
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    let annotations = BTreeMap::from([("tolerate".to_owned(), "true".to_owned())]);
    world.nri.run_pod(&nri::Pod { annotations, ..pod("exempt") }, &Ask::default()).await.unwrap();
}

/// The pod has no place in the order while it waits, so it does not hold up the join it
/// waits for.
#[tokio::test]
async fn a_pod_that_waits_for_a_plugin_does_not_hold_up_its_registration() {
    let world = World::with(requiring(SOON)).await;
    let waiting = {
        let world = world.clone();
        async move { world.run("p").await }
    };
    let joining = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.plugin("10-needed", Script::new("RunPodSandbox")).await
    };
    let (ran, _live) = tokio::join!(waiting, joining);
    ran.unwrap();
    assert_eq!(world.told.count("10-needed sync p"), 0);
    assert_eq!(world.told.count("10-needed RunPodSandbox p"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_required_plugin_that_is_silent_fails_the_request() {
    let world = World::with(requiring(Duration::ZERO)).await;
    let _needed = world
        .plugin("10-needed", Script::new("CreateContainer").slow(Duration::from_secs(60)))
        .await;
    let error = world.create("c").await.unwrap_err();
    assert!(matches!(error, NriError::Silent { .. }), "{error}");
}

// === domains ===

#[tokio::test]
async fn a_hidden_domain_is_not_seen() {
    let mut settings = quiet();
    settings
        .domains
        .insert("docker".to_owned(), nri::DomainSettings { hidden: true, ..Default::default() });
    let world = World::with(settings).await;
    let docker = |id: &str| nri::Pod { domain: "docker".to_owned(), ..pod(id) };
    world.nri.run_pod(&docker("d1"), &Ask::default()).await.unwrap();
    world.run("k1").await.unwrap();
    let _plugin = world.plugin("10-a", Script::new("all")).await;
    world.nri.run_pod(&docker("d2"), &Ask::default()).await.unwrap();
    world.run("k2").await.unwrap();
    assert_eq!(world.told.all(), ["10-a sync k1", "10-a synced ", "10-a RunPodSandbox k2"]);
}

#[tokio::test]
async fn switched_off_it_is_out_of_the_way() {
    let world = World::with(Settings::off()).await;
    world.run("p").await.unwrap();
    world.create("c").await.unwrap();
    world.stop("c").await.unwrap();
    world.remove("c").await;
    assert_eq!(world.plugins(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_arrives_before_we_stop() {
    let world = World::new().await;
    world.create("c").await.unwrap();
    let script =
        Script::new("StopContainer,RemoveContainer").slow(std::time::Duration::from_secs(1));
    let _live = world.plugin("10-a", script).await;
    world.remove("c").await;
    world.nri.shutdown().await;
    let told = world.told.all();
    assert_eq!(told[2..], ["10-a StopContainer c", "10-a RemoveContainer c", "10-a Shutdown "]);
}

#[tokio::test]
async fn plugins_are_told_when_we_stop() {
    let world = World::new().await;
    let live = world.plugin("10-a", Script::new("all")).await;
    world.nri.shutdown().await;
    assert_eq!(world.told.count("10-a Shutdown"), 1);
    live.trunk.closed().await.unwrap();
    assert!(matches!(world.run("p").await, Err(NriError::Stopped)));
}
