//! What an operator sees of plugins.

use std::process::Command;

use api_cri::v1::KeyValue;
use nri_sdk::Creation;
use serde_json::Value;
use testkit::Node;

use crate::{
    LONGSHORE,
    probe::{connect, script},
};

/// What a command prints; as an error what it complains of.
pub(crate) async fn try_longshore(node: &Node, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(LONGSHORE);
    command.args(args).arg("--cri-socket").arg(node.daemon.cri_socket());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub(crate) async fn longshore(node: &Node, args: &[&str]) -> String {
    try_longshore(node, args).await.unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_set_what_is_told_also_when_plugin_and_daemon_are_gone() {
    let Some(mut node) = Node::start("who_set_what_is_told", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let plugins = longshore(&node, &["nri", "plugins"]).await;
    assert!(plugins.contains("10-probe") && plugins.contains("external"), "{plugins}");
    let listed: Value =
        serde_json::from_str(&longshore(&node, &["nri", "plugins", "--json"]).await).unwrap();
    assert_eq!((&listed[0]["id"], &listed[0]["active"]), (&"10-probe".into(), &true.into()));

    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let plain = cri.create(&pod, node.sh("plain", "true")).await.unwrap();
    script(&probe.on_create, |_| {
        let mut creation = Creation::default();
        creation.adjustment.env.set("WHO", "probe").remove("GONE");
        creation.adjustment.oom_score_adj = Some(500);
        creation.adjustment.annotations.set("long", "x".repeat(1000));
        Ok(creation)
    });
    let mut asked = node.sh("c", "true");
    asked.envs = vec![KeyValue { key: "GONE".into(), value: "was".into() }];
    cri.create(&pod, asked).await.unwrap();
    drop(probe);
    node.daemon.kill().unwrap();
    node.daemon.start_again().await.unwrap();

    let text = longshore(&node, &["nri", "explain", "p/c"]).await;
    let rows: Vec<Vec<_>> =
        text.lines().take(5).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["FIELD", "BEFORE", "AFTER", "PLUGIN"], "{text}");
    assert_eq!(rows[1][..2], ["Annotations", "\"long\""], "{text}");
    assert!(rows[1][3].ends_with('…') && rows[1].last() == Some(&"10-probe"), "{text}");
    assert_eq!(rows[2], ["Env", "\"GONE\"", "was", "-", "10-probe"], "{text}");
    assert_eq!(rows[3], ["Env", "\"WHO\"", "-", "probe", "10-probe"], "{text}");
    assert_eq!(rows[4][0], "OomScoreAdj", "{text}");
    assert_eq!(rows[4][2..], ["500", "10-probe"], "{text}");
    let difference = ["- /process/env \"GONE=was\"", "+ /process/env \"WHO=probe\""];
    assert!(difference.iter().all(|line| text.lines().any(|l| l == *line)), "{text}");
    let json = longshore(&node, &["nri", "explain", "p/c", "--json"]).await;
    let story: Value = serde_json::from_str(&json).unwrap();
    let env = story["changes"].as_array().unwrap().iter().find(|c| c["path"] == "/process/env");
    assert_eq!(env.unwrap()["after"], serde_json::json!(["WHO=probe"]), "{json}");
    let fields = story["fields"].as_array().unwrap();
    let gone = serde_json::json!({ "field": "Env \"GONE\"", "before": "was", "after": null,
                                   "plugin": "10-probe" });
    assert!(fields.contains(&gone), "{json}");
    assert_eq!(fields[0]["after"], "x".repeat(1000), "whole");
    let score = "/process/oomScoreAdj";
    let score = story["changes"].as_array().unwrap().iter().find(|c| c["path"] == score);
    assert_eq!(score.unwrap()["after"], 500);
    let text = longshore(&node, &["nri", "explain", &plain]).await;
    assert_eq!(text, "no plugin changed anything\n");
    node.finish().await.unwrap();
}

/// The lines of a command that goes on until it is ended.
struct Lines {
    child: tokio::process::Child,
    lines: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>,
}

impl Lines {
    fn of(node: &Node, args: &[&str]) -> Self {
        let mut command = tokio::process::Command::new(LONGSHORE);
        command.args(args).arg("--cri-socket").arg(node.daemon.cri_socket());
        let mut child =
            command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let out = tokio::io::BufReader::new(child.stdout.take().unwrap());
        Self { child, lines: tokio::io::AsyncBufReadExt::lines(out) }
    }

    /// The first that `is` the one.
    async fn find(&mut self, is: impl Fn(&str) -> bool) -> String {
        let found = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("it goes on");
                if is(&line) {
                    return line;
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), found).await.unwrap()
    }

    /// Ends the command, which would go on.
    async fn end(mut self) {
        self.child.kill().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_seen_as_it_happens() {
    let Some(mut node) = Node::start("what_happens_is_seen", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (mut json, mut text) =
        (Lines::of(&node, &["nri", "watch", "--json"]), Lines::of(&node, &["nri", "watch"]));
    // Who watches sees only what comes after: a plugin that joins again and again is seen.
    let seen = async {
        let mut number = 10;
        loop {
            drop(connect(&node, &format!("{number}-knock")).await);
            number = if number == 99 { 10 } else { number + 1 };
        }
    };
    let joined = |line: &str| line.contains("joined");
    let both = async { tokio::join!(json.find(joined), text.find(joined)) };
    tokio::select! {
        _ = both => {}
        () = seen => {}
    }
    let (a, b) = (connect(&node, "10-a").await, connect(&node, "20-b").await);
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let set = |_| {
        let mut creation = Creation::default();
        creation.adjustment.env.set("KEY", "1");
        Ok(creation)
    };
    script(&a.on_create, set);
    script(&b.on_create, set);
    cri.create(&pod, node.sh("c", "true")).await.unwrap_err();
    let answer = json
        .find(|line| line.contains("answered") && line.contains("20-b") && line.contains("KEY"))
        .await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["what"], "answered");
    assert_eq!(answer["asked"]["adjust"]["env"][0]["key"], "KEY", "{answer:#}");
    assert_eq!((&answer["podName"], &answer["containerName"]), (&"p".into(), &"c".into()));
    assert!(answer["at"].as_i64().unwrap() > 0);
    let decision = json.find(|line| line.contains("decided") && line.contains("CreateC")).await;
    assert!(decision.contains("10-a") && decision.contains("20-b"), "{decision}");
    let line = text.find(|line| line.contains("FAILED")).await;
    assert!(line.contains("CreateContainer p/c FAILED"), "{line}");
    drop((a, b));
    node.daemon.kill().unwrap();
    for mut watch in [json, text] {
        let ended = watch.child.wait().await.unwrap();
        assert!(!ended.success(), "the daemon went away, and it says so");
    }
    node.daemon.start_again().await.unwrap();
    node.finish().await.unwrap();
}

/// Waits until both commands see what happens; those who watch see only what comes after.
async fn both_watch(node: &Node) -> (Lines, Lines) {
    let (mut json, mut text) =
        (Lines::of(node, &["nri", "watch", "--json"]), Lines::of(node, &["nri", "watch"]));
    let seen = async {
        let mut number = 10;
        loop {
            drop(connect(node, &format!("{number}-knock")).await);
            number = if number == 99 { 10 } else { number + 1 };
        }
    };
    let joined = |line: &str| line.contains("joined");
    let both = async { tokio::join!(json.find(joined), text.find(joined)) };
    tokio::select! {
        _ = both => {}
        () = seen => {}
    }
    (json, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_evicted_whom_and_why_is_seen_logged_and_explained() {
    let Some(node) = Node::start("who_evicted_whom", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (mut json, mut text) = both_watch(&node).await;
    let probe = connect(&node, "10-probe").await;
    let synchronized = text.find(|line| line.contains("Synchronize 10-probe")).await;
    assert!(synchronized.contains("0 pods, 0 containers"), "{synchronized}");
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let a = cri.run(&pod, node.sh("a", "exec sleep 1000")).await.unwrap();
    let b = cri.run(&pod, node.sh("b", "exec sleep 1000")).await.unwrap();
    let victim = b.clone();
    script(&probe.on_create, move |_| {
        let mut creation = Creation::default();
        creation.evictions.insert(victim.clone(), "makes room".into());
        creation.evictions.insert("nobody".into(), "unknown".into());
        let mut update = nri_sdk::Update::of("nobody");
        update.resources.pids = Some(nri_sdk::PidsLimit::At(5));
        creation.updates.add(update);
        Ok(creation)
    });
    cri.create(&pod, node.sh("c", "true")).await.unwrap();
    let mut changes = nri_sdk::Changes::default();
    changes.evict(a.clone(), "too loud").evict("nobody", "unknown");
    probe.runtime.update_containers(changes).await.unwrap();

    let line = text.find(|line| line.contains("evict") && line.contains("p/b")).await;
    assert!(line.contains("by 10-probe") && line.contains("makes room"), "{line}");
    assert!(line.contains("CreateContainer p/c"), "{line}");
    let line = text.find(|line| line.contains("evict")).await;
    assert!(line.contains("p/a") && line.contains("too loud"), "unknown ids are skipped: {line}");
    assert!(line.contains("by 10-probe") && line.contains("unsolicited"), "{line}");
    let notice = json.find(|line| line.contains("\"changed\"")).await;
    let notice: Value = serde_json::from_str(&notice).unwrap();
    assert_eq!((&notice["by"], &notice["container"]), (&"10-probe".into(), &b.clone().into()));
    assert_eq!(notice["asked"]["evict"][0]["reason"], "makes room", "{notice:#}");

    let log = node.daemon.stderr();
    for (id, reason) in [(&a, "too loud"), (&b, "makes room")] {
        let told = |line: &&str| line.contains("container evicted") && line.contains(id.as_str());
        let line = log.lines().find(told).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("10-probe") && line.contains(reason), "{line}");
    }
    let said = longshore(&node, &["nri", "explain", "p/b"]).await;
    let row = said.lines().find(|line| line.contains("makes room")).expect("it is explained");
    assert!(row.contains("10-probe") && row.contains("CreateContainer p/c"), "{said}");
    let story = longshore(&node, &["nri", "explain", "p/a", "--json"]).await;
    let story: Value = serde_json::from_str(&story).unwrap();
    assert_eq!(story["evictions"][0]["plugin"], "10-probe", "{story:#}");
    assert_eq!(story["evictions"][0]["reason"], "too loud", "{story:#}");
    drop(probe);
    tokio::join!(json.end(), text.end());
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_fails_after_plugins_agreed_is_seen_as_failed() {
    let Some(node) = Node::start("a_creation_that_fails_after", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (mut json, mut text) = both_watch(&node).await;
    let probe = connect(&node, "10-probe").await;
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    // Plugins agree, and the OCI spec that comes of it cannot be.
    script(&probe.on_create, |_| {
        let mut creation = Creation::default();
        creation.adjustment.rdt.clos_id = Some("no such class".into());
        Ok(creation)
    });
    let error = cri.create(&pod, node.sh("c", "true")).await.unwrap_err();
    let line = text.find(|line| line.contains("CreateContainer p/c FAILED")).await;
    let told = json.find(|line| line.contains("decided") && line.contains("\"error\":\"")).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(told["error"].as_str().is_some_and(|why| error.message().contains(why)), "{told:#}");
    assert!(!line.ends_with("FAILED: "), "{line}");
    drop(probe);
    tokio::join!(json.end(), text.end());
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_for_and_not_granted_is_explained() {
    let Some(node) = Node::start("what_was_not_granted", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (a, b) = (connect(&node, "10-a").await, connect(&node, "20-b").await);
    script(&a.on_create, |_| {
        let mut creation = Creation::default();
        creation.adjustment.env.set("COLOUR", "red").set("SIZE", "big");
        Ok(creation)
    });
    script(&b.on_create, |_| {
        let mut creation = Creation::default();
        creation.adjustment.env.take_over("COLOUR", "blue").remove("SIZE");
        Ok(creation)
    });
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let mut update = nri_sdk::Update::of(&id);
    update.resources.cpu.cpus = "4095".into();
    a.runtime.update_containers(vec![update]).await.unwrap_err();

    let text = longshore(&node, &["nri", "explain", "p/c"]).await;
    let row = |what: &str| {
        let found = text.lines().find(|line| line.contains(what) && line.contains("10-a"));
        found.unwrap_or_else(|| panic!("{what} is missing: {text}")).to_owned()
    };
    assert!(row("red").contains("20-b"), "{text}");
    assert!(row("big").contains("20-b"), "{text}");
    assert!(row("4095").contains("FAILED"), "{text}");
    let json = longshore(&node, &["nri", "explain", "p/c", "--json"]).await;
    let story: Value = serde_json::from_str(&json).unwrap();
    let refused = story["notGranted"].as_array().unwrap();
    assert_eq!(refused.len(), 2, "{json}");
    assert_eq!(refused[0]["asked"], "red", "{json}");
    assert_eq!(refused[0]["plugin"], "10-a", "{json}");
    let why = story["updates"][0]["error"].as_str().unwrap();
    assert!(why.contains("cpuset"), "the whole cause: {json}");
    let log = node.daemon.stderr();
    // In the log quotes are escaped.
    let end = why.rsplit('"').next().unwrap();
    let told = |line: &str| line.contains("unsolicited update") && line.contains(end);
    assert!(log.lines().any(told), "{log}");
    drop((a, b));
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_plugin_does_is_listed() {
    let Some(node) = Node::start("how_a_plugin_does", LONGSHORE).await else { return };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    script(&probe.on_create, |_| Err("no".into()));
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    cri.create(&pod, node.sh("c", "true")).await.unwrap_err();
    let text = longshore(&node, &["nri", "plugins"]).await;
    let head: Vec<_> = text.lines().next().unwrap().split_whitespace().collect();
    let want = [
        "PLUGIN", "KIND", "PID", "NRI", "AGE", "STATE", "POLICY", "CALLS", "ERRORS", "P50", "P99",
        "STRIKES", "REASON",
    ];
    assert_eq!(head, want);
    let json = longshore(&node, &["nri", "plugins", "--json"]).await;
    let listed: Value = serde_json::from_str(&json).unwrap();
    let plugin = &listed[0];
    assert_eq!((&plugin["name"], &plugin["index"]), (&"probe".into(), &"10".into()));
    assert_eq!(plugin["pid"], std::process::id());
    // Synchronize, RunPodSandbox, CreateContainer at least.
    assert!(plugin["calls"].as_u64() >= Some(3), "{json}");
    assert_eq!(plugin["errors"], 1, "{json}");
    assert!(plugin["version"].as_str().unwrap().starts_with("v0."), "{json}");
    assert!(plugin["p99Micros"].as_u64() >= plugin["p50Micros"].as_u64());
    assert_eq!(plugin["policy"], "2s");
    drop(probe);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn later_changes_are_on_record_too() {
    let Some(mut node) = Node::start("later_changes_are_on_record", LONGSHORE).await else {
        return;
    };
    let (cri, probe) = (node.cri().await.unwrap(), connect(&node, "10-probe").await);
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "exec sleep 1000")).await.unwrap();
    let pids = |id: &str, limit| {
        let mut update = nri_sdk::Update::of(id);
        update.resources.pids = Some(nri_sdk::PidsLimit::At(limit));
        update
    };
    probe.runtime.update_containers(vec![pids(&id, 9)]).await.unwrap();
    script(&probe.on_update, move |(container, _)| {
        let mut changes = nri_sdk::Changes::default();
        changes.updates.add(pids(&container.id, 11));
        Ok(changes)
    });
    let linux = api_cri::v1::LinuxContainerResources { cpu_shares: 77, ..Default::default() };
    let request = api_cri::v1::UpdateContainerResourcesRequest {
        container_id: id,
        linux: Some(linux),
        ..Default::default()
    };
    cri.runtime().update_container_resources(request).await.unwrap();
    drop(probe);
    node.daemon.kill().unwrap();
    node.daemon.start_again().await.unwrap();
    let json = longshore(&node, &["nri", "explain", "p/c", "--json"]).await;
    let story: Value = serde_json::from_str(&json).unwrap();
    let limit = |at: usize| story["updates"][at]["asked"]["pids"]["limit"].clone();
    assert_eq!((limit(0), limit(1)), (9.into(), 11.into()), "{json}");
    assert_eq!(story["updates"][1]["owners"][0]["plugin"], "10-probe", "{json}");
    let text = longshore(&node, &["nri", "explain", "p/c"]).await;
    assert!(text.contains("CHANGED AT"), "{text}");
    node.finish().await.unwrap();
}
