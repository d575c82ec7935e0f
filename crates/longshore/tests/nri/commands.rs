//! What an operator sees of plugins.

use std::process::Command;

use nri_sdk::Creation;
use serde_json::Value;
use testkit::Node;

use crate::{
    LONGSHORE,
    probe::{connect, script},
};

async fn longshore(node: &Node, args: &[&str]) -> String {
    let mut command = Command::new(LONGSHORE);
    command.args(args).arg("--cri-socket").arg(node.daemon.cri_socket());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
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
        creation.adjustment.env.set("WHO", "probe");
        creation.adjustment.oom_score_adj = Some(500);
        Ok(creation)
    });
    cri.create(&pod, node.sh("c", "true")).await.unwrap();
    drop(probe);
    node.daemon.kill().unwrap();
    node.daemon.start_again().await.unwrap();

    let text = longshore(&node, &["nri", "explain", "p/c"]).await;
    assert!(text.contains("Env \"WHO\"") && text.contains("10-probe"), "{text}");
    let json = longshore(&node, &["nri", "explain", "p/c", "--json"]).await;
    let story: Value = serde_json::from_str(&json).unwrap();
    let env = story["changes"].as_array().unwrap().iter().find(|c| c["path"] == "/process/env");
    assert_eq!(env.unwrap()["after"], serde_json::json!(["WHO=probe"]), "{json}");
    let score = "/process/oomScoreAdj";
    let score = story["changes"].as_array().unwrap().iter().find(|c| c["path"] == score);
    assert_eq!(score.unwrap()["after"], 500);
    let text = longshore(&node, &["nri", "explain", &plain]).await;
    assert_eq!(text, "no plugin changed anything\n");
    node.finish().await.unwrap();
}
