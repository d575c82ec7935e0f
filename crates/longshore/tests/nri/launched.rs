//! Plugins that the daemon launches, by its configuration, and how that is changed.

use std::{fs, path::PathBuf, time::Duration};

use api_cri::v1::{LinuxContainerResources, UpdatePodSandboxResourcesRequest};
use rustix::process::Signal;
use serde_json::Value;
use testkit::{Cri, Node};
use tonic::Code;

use crate::{
    LONGSHORE,
    act::{Act, Wish, install},
    commands::{longshore, try_longshore},
    probe::{connect, script, until},
};

/// A node whose plugins and configuration are in a directory of the test.
struct World {
    node: Node,
    cri: Cri,
    dir: tempfile::TempDir,
}

impl World {
    /// `policies` is what the file says besides where things are.
    async fn new(test: &str, plugins: &[(&str, Act)], policies: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        plugins.iter().for_each(|(id, act)| drop(install(dir.path(), id, act)));
        let config = dir.path().join("config.toml");
        write_config(&config, dir.path(), policies);
        let node = Node::start_with(test, LONGSHORE, |command| {
            command.arg("--config").arg(&config);
        });
        let node = node.await?;
        let cri = node.cri().await.unwrap();
        Some(Self { node, cri, dir })
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    async fn reload(&self, policies: &str) {
        let before = self.node.daemon.stderr().matches("configuration reloaded").count();
        write_config(&self.config(), self.dir.path(), policies);
        self.node.daemon.signal(Signal::HUP).unwrap();
        until("the reload", || {
            let now = self.node.daemon.stderr().matches("configuration reloaded").count();
            (now > before).then_some(())
        })
        .await;
    }

    async fn plugins(&self) -> Vec<Value> {
        let text = longshore(&self.node, &["nri", "plugins", "--json"]).await;
        serde_json::from_str(&text).unwrap()
    }

    async fn pid(&self, id: &str) -> u64 {
        let plugins = self.plugins().await;
        let found = plugins.iter().find(|plugin| plugin["id"] == id);
        found.map_or(0, |plugin| plugin["pid"].as_u64().unwrap())
    }

    /// The value of a variable in a new container.
    async fn variable(&self, name: &str, key: &str) -> Vec<String> {
        let pod = self.cri.run_pod(&self.node.pod(name)).await.unwrap();
        let config = self.node.sh("c", &format!("echo ${key}"));
        Box::pin(self.cri.run_to_end(&pod, config)).await.unwrap();
        self.node.said(&pod, "c").unwrap()
    }

    async fn finish(self) {
        self.node.finish().await.unwrap();
    }
}

fn write_config(path: &std::path::Path, dir: &std::path::Path, policies: &str) {
    let (programs, configs) = (dir.join("plugins"), dir.join("conf.d"));
    let text =
        format!("[nri]\nplugin_dir = {programs:?}\nplugin_config_dir = {configs:?}\n{policies}");
    fs::write(path, text).unwrap();
}

fn env(key: &str, value: &str) -> Act {
    let wish = Wish { env: [(key.into(), value.into())].into(), ..Wish::default() };
    Act { wish, ..Act::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_keeps_the_plugins_that_did_not_change() {
    let plugins = [("10-same", env("SAME", "1")), ("20-other", env("OTHER", "1"))];
    let Some(world) = World::new("a_reload_keeps_the_plugins", &plugins, "").await else { return };
    let external = connect(&world.node, "30-external").await;
    assert_eq!(world.variable("a", "SAME$OTHER").await, ["11"]);
    let (same, other) = (world.pid("10-same").await, world.pid("20-other").await);
    assert!(same > 0 && other > 0, "{:#?}", world.plugins().await);

    // Another configuration for one, a new one, and a limit for the third.
    install(world.dir.path(), "20-other", &env("OTHER", "2"));
    install(world.dir.path(), "40-new", &env("NEW", "3"));
    world.reload("plugins.\"30-external\".request_timeout = \"7s\"\n").await;
    assert_eq!(world.pid("10-same").await, same, "its process is the same");
    let now = world.pid("20-other").await;
    assert!(now > 0 && now != other);
    assert_eq!(external.worlds().len(), 1, "it was not connected anew");
    let listed = world.plugins().await;
    let policy = listed.iter().find(|plugin| plugin["id"] == "30-external").unwrap();
    assert_eq!(policy["policy"], "7s");
    assert_eq!(world.variable("b", "SAME$OTHER$NEW").await, ["123"]);

    fs::remove_file(world.dir.path().join("plugins/10-same")).unwrap();
    world.reload("").await;
    assert_eq!(world.pid("10-same").await, 0, "what is not there any more is ended");
    assert_eq!(external.worlds().len(), 1);
    drop(external);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_configuration_changes_nothing() {
    let plugins = [("10-a", env("A", "1"))];
    let Some(world) = World::new("a_bad_configuration", &plugins, "").await else { return };
    let pid = world.pid("10-a").await;
    write_config(&world.config(), world.dir.path(), "request_timeout = \"0s\"\n");
    world.node.daemon.signal(Signal::HUP).unwrap();
    world.node.daemon.logged("configuration not reloaded").await.unwrap();
    assert_eq!(world.pid("10-a").await, pid);
    assert_eq!(world.variable("a", "A").await, ["1"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_restarted_when_it_dies_and_on_demand() {
    let plugins = [("10-a", env("A", "1"))];
    let policy = "plugins.a.restart_first = \"50ms\"\n";
    let Some(world) = World::new("a_plugin_is_restarted", &plugins, policy).await else { return };
    let first = world.pid("10-a").await;
    let text = longshore(&world.node, &["nri", "restart", "a"]).await;
    assert_eq!(text, "10-a runs again\n");
    let second = world.pid("10-a").await;
    assert!(second > 0 && second != first);
    assert_eq!(world.variable("a", "A").await, ["1"]);

    let pid = rustix::process::Pid::from_raw(i32::try_from(second).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let third = async {
        loop {
            let now = world.pid("10-a").await;
            if now > 0 && now != second {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), third).await.expect("it comes back");
    assert_eq!(world.variable("b", "A").await, ["1"]);

    let external = connect(&world.node, "20-external").await;
    let text = longshore(&world.node, &["nri", "restart", "20-external"]).await;
    assert_eq!(text, "20-external is disconnected\n");
    until("it to come back", || (external.worlds().len() == 2).then_some(())).await;
    let error = try_longshore(&world.node, &["nri", "restart", "nobody"]).await.unwrap_err();
    assert!(error.contains("no plugin \"nobody\" is here"), "{error}");
    drop(external);
    world.finish().await;
}

/// Puts a program that is no plugin where plugins are.
fn broken(dir: &std::path::Path, id: &str, script: &str) {
    let programs = dir.join("plugins");
    fs::create_dir_all(&programs).unwrap();
    testkit::program(&programs.join(id), &format!("#!/bin/sh\n{script}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_launched_plugin_prints_is_logged_and_listed() {
    let plugins = [("10-good", env("A", "1"))];
    let policies = "plugins.broken.restart_most = \"0s\"\nplugins.loud.restart_most = \"0s\"\n";
    let Some(world) = World::new("what_a_launched_plugin_prints", &plugins, policies).await else {
        return;
    };
    let clear = r"printf '\033[2Jcannot read /etc/broken.conf\n' >&2";
    broken(world.dir.path(), "20-broken", &format!("echo hello\n{clear}\nexit 3"));
    broken(
        world.dir.path(),
        "30-loud",
        "i=0\nwhile [ $i -lt 5000 ]; do i=$((i+1)); echo n$i; done",
    );
    world.reload(policies).await;

    let log = world.node.daemon.stderr();
    let of = |plugin: &str, text: &str| {
        log.lines().filter(|line| line.contains(plugin) && line.contains(text)).count()
    };
    assert_eq!(of("10-good", "running 1 test"), 1, "a plugin that is well prints, too: {log}");
    assert_eq!(of("20-broken", "hello"), 1, "{log}");
    assert_eq!(of("20-broken", r"\u{1b}[2Jcannot read /etc/broken.conf"), 1, "{log}");
    assert!(!log.contains('\u{1b}'), "nothing acts on a terminal");
    assert!((200..1000).contains(&of("30-loud", "printed: n")), "{}", of("30-loud", "printed: n"));
    assert!(of("30-loud", "suppressed") >= 1);

    let listed = world.plugins().await;
    let broken = listed.iter().find(|plugin| plugin["id"] == "20-broken").unwrap();
    assert_eq!((&broken["state"], &broken["active"]), (&"down".into(), &false.into()));
    let reason = broken["reason"].as_str().unwrap();
    assert!(reason.contains("did not join") && reason.contains("exit status: 3"), "{reason}");
    let said = broken["output"].as_array().unwrap().iter();
    let mut said: Vec<_> = said.map(|line| line["text"].as_str().unwrap()).collect();
    // Nobody knows in which order a plugin wrote to two pipes.
    said.sort_unstable();
    assert_eq!(said, [r"\u{1b}[2Jcannot read /etc/broken.conf", "hello"]);
    let loud = listed.iter().find(|plugin| plugin["id"] == "30-loud").unwrap();
    assert_eq!(loud["output"].as_array().unwrap().len(), 20);
    assert_eq!(loud["output"][19]["text"], "n5000", "also what was not logged");

    let text = longshore(&world.node, &["nri", "plugins"]).await;
    assert!(!text.contains("hello"), "{text}");
    let row = text.lines().find(|line| line.contains("20-broken")).unwrap();
    assert!(row.contains(" down ") && row.contains("exit status: 3"), "{text}");
    let text = longshore(&world.node, &["nri", "plugins", "--verbose"]).await;
    let said = text.lines().find(|line| line.contains("cannot read /etc/broken.conf")).unwrap();
    assert!(said.contains("stderr"), "{text}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_that_are_not_there_are_listed_with_the_reason() {
    let policies = "plugins.needed.required = \"1s\"\nplugins.mine.uid = 12345\n";
    let Some(world) = World::new("plugins_that_are_not_there", &[], policies).await else { return };
    broken(world.dir.path(), "20-crash", "exit 7");
    broken(world.dir.path(), "bad", "exit 7");
    world.reload(policies).await;
    // It is refused again and again, and listed once.
    let dialled = world.node.daemon.state().join("nri.sock");
    for _ in 0..3 {
        let stub = nri_sdk::Stub::builder(crate::probe::Probe::default())
            .environment(nri_sdk::Environment::default())
            .name("mine")
            .index("40")
            .socket(&dialled)
            .no_reconnect()
            .build()
            .unwrap();
        stub.run().await.unwrap_err();
    }
    let external = connect(&world.node, "50-gone").await;
    drop(external);

    let find = |listed: &[Value], id: &str| {
        let found: Vec<_> = listed.iter().filter(|plugin| plugin["id"] == id).cloned().collect();
        assert_eq!(found.len(), 1, "{id}: {listed:#?}");
        let text = |key: &str| found[0][key].as_str().unwrap().to_owned();
        (text("state"), text("reason"))
    };
    let mut listed = world.plugins().await;
    for _ in 0..600 {
        if listed.iter().any(|p| p["id"] == "50-gone" && p["state"] == "down") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        listed = world.plugins().await;
    }
    let (state, reason) = find(&listed, "20-crash");
    assert!(state == "backing off" || state == "starting", "{state}");
    assert!(reason.contains("exit status: 7"), "{reason}");
    let (state, reason) = find(&listed, "bad");
    assert_eq!(state, "rejected");
    assert!(reason.contains("it must be NN-name"), "{reason}");
    let (state, reason) = find(&listed, "40-mine");
    assert_eq!(state, "rejected");
    assert!(reason.contains("must not connect as user 0"), "{reason}");
    let (state, reason) = find(&listed, "50-gone");
    assert_eq!((state.as_str(), reason.contains("connection")), ("down", true), "{reason}");
    let (state, reason) = find(&listed, "needed");
    assert_eq!((state.as_str(), reason.contains("required")), ("down", true), "{reason}");

    let text = longshore(&world.node, &["nri", "plugins"]).await;
    assert!(!text.contains("EVENTS") && text.contains("REASON"), "{text}");
    assert!(text.contains("must not connect as user 0"), "{text}");
    let text = longshore(&world.node, &["nri", "plugins", "--wide"]).await;
    assert!(text.contains("EVENTS"), "{text}");

    // Who is here is not missed any more.
    let back = connect(&world.node, "50-gone").await;
    let listed = world.plugins().await;
    assert_eq!(find(&listed, "50-gone").0, "active");
    drop(back);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_plugin_does_what_its_policy_says() {
    let hangs = || Act { hangs: "CreateContainer".into(), ..Act::default() };
    let refuses = || Act { refuses: Some("no".into()), ..Act::default() };
    let quick = "request_timeout = \"300ms\"\n";
    let policies = format!(
        "{quick}[nri.plugins.slow]\nstrikes = 100\non_failure = \"ignore\"\n\
         [nri.plugins.no]\non_failure = \"ignore\"\n"
    );
    let plugins = [("10-slow", hangs()), ("20-no", refuses()), ("30-good", env("A", "1"))];
    let Some(world) = World::new("a_failing_plugin", &plugins, &policies).await else { return };
    assert_eq!(world.variable("ignored", "A").await, ["1"], "the rest is asked");
    let listed = world.plugins().await;
    assert_eq!(listed[0]["errors"], 1, "{listed:#?}");
    assert_eq!(listed[1]["errors"], 1, "{listed:#?}");

    let fail = policies.replace("\"ignore\"", "\"fail\"");
    world.reload(&fail).await;
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let error = world.cri.create(&pod, world.node.sh("c", "true")).await.unwrap_err();
    assert!(error.message().contains("10-slow did not answer CreateContainer"), "{error}");
    let gone = format!("{fail}\n").replace("[nri.plugins.slow]", "[nri.plugins.nobody]");
    fs::remove_file(world.dir.path().join("plugins/10-slow")).unwrap();
    world.reload(&gone).await;
    let error = world.cri.create(&pod, world.node.sh("c", "true")).await.unwrap_err();
    assert!(error.message().contains("20-no refused CreateContainer: no"), "{error}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_wait_for_a_required_plugin_or_fail() {
    let policies = "[nri.plugins.needed]\nrequired = \"1s\"\n\
                    [nri.validator]\ntolerate_missing_annotation = \"tolerate\"\n";
    let Some(world) = World::new("pods_wait_for_a_required", &[], policies).await else { return };
    let error = world.cri.run_pod(&world.node.pod("p")).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("required plugins are missing: needed"), "{error}");
    assert_eq!(world.node.left(), [""; 0]);

    let mut tolerant = world.node.pod("tolerant");
    tolerant.annotations.insert("tolerate".into(), "true".into());
    world.cri.run_pod(&tolerant).await.unwrap();

    world.reload(&policies.replace("1s", "60s")).await;
    let config = world.node.pod("p");
    let waiting = world.cri.run_pod(&config);
    let (pod, needed) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        connect(&world.node, "10-needed").await
    });
    let pod = pod.expect("it came in time");
    needed.heard("RunPodSandbox", &pod.id).await;
    drop(needed);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_limits_of_a_pod_are_told_before_and_after() {
    let Some(world) = World::new("new_limits_of_a_pod", &[], "").await else { return };
    let probe = connect(&world.node, "10-probe").await;
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let limits = |cpu_shares, cpu_quota| LinuxContainerResources {
        cpu_shares,
        cpu_quota,
        cpu_period: 100_000,
        ..LinuxContainerResources::default()
    };
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        overhead: Some(limits(20, 0)),
        resources: Some(limits(512, 50_000)),
    };
    world.cri.runtime().update_pod_sandbox_resources(request.clone()).await.unwrap();
    let asked = probe.pod_limits();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].resources.cpu.shares, Some(512));
    assert_eq!(asked[0].overhead.cpu.shares, Some(20));
    let after = probe.heard("PostUpdatePodSandbox", &pod.id).await.pod.linux.unwrap();
    assert_eq!(after.pod_resources.unwrap().cpu.unwrap().shares.unwrap().value, 512);
    assert_eq!(after.pod_overhead.unwrap().cpu.unwrap().shares.unwrap().value, 20);
    let events = ["RunPodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox"];
    assert_eq!(probe.events(&pod.id), events);

    script(&probe.on_pod_update, |_| Err("too much".into()));
    let error = world.cri.runtime().update_pod_sandbox_resources(request).await.unwrap_err();
    assert!(error.message().contains("too much"), "{error}");
    drop(probe);
    world.finish().await;
}
