//! Images as people handle them, by the commands.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::json;
use testkit::{
    Node,
    image::{ImageBuilder, Layer, LayerBuilder, busybox_with, noise},
    registry::{Fault, Target},
};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

fn call(node: &Node, words: &[&str]) -> Output {
    let mut command = Command::new(LONGSHORE);
    command.args(words).env("LONGSHORE_CRI_SOCKET", node.daemon.cri_socket());
    command.stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn good(node: &Node, words: &[&str]) -> Output {
    let output = call(node, words);
    assert!(output.status.success(), "{words:?}: {output:?}\n{}", node.daemon.stderr());
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_save_remove_and_load_again() {
    let Some(node) = Node::start("pull_save_remove_and_load_again", LONGSHORE).await else {
        return;
    };
    let layers = (0..3).map(|seed| Layer::of_noise(200_000, seed));
    let image = layers.fold(ImageBuilder::default(), ImageBuilder::layer);
    let image = image.set("Labels", json!({ "kept": "yes" })).build();
    node.registry.push("people/app", "2", &image);
    let name = format!("{}/people/app:2", node.registry.host());

    let pulled = good(&node, &["image", "pull", &name]);
    assert_eq!(text(&pulled.stdout).trim(), image.id().as_str(), "only the id, for scripts");
    let told = text(&pulled.stderr);
    for layer in &image.layers {
        let done = &layer.digest.hex()[..12];
        assert!(
            told.lines().any(|line| line.starts_with(done) && line.ends_with("done")),
            "{told}"
        );
    }
    let listed = good(&node, &["image", "ls"]);
    let line = text(&listed.stdout).lines().find(|line| line.starts_with(&name)).unwrap();
    assert!(line.trim_end().ends_with("kB"), "{line}");

    let archive = node.daemon.home().join("app.tar");
    let path = archive.to_str().unwrap();
    good(&node, &["image", "save", &name, "-o", path]);
    let piped = good(&node, &["image", "save", &name]);
    assert_eq!(piped.stdout, fs::read(&archive).unwrap(), "the same to standard output");
    good(&node, &["image", "rm", &name]);
    let loaded = good(&node, &["image", "load", "-i", path]);
    assert_eq!(text(&loaded.stdout).trim(), name);
    let inspected = good(&node, &["image", "inspect", &name]);
    assert!(text(&inspected.stdout).contains("\"kept\""), "{inspected:?}");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_pulled_or_saved_is_named_and_leaves_nothing() {
    let name = "what_cannot_be_pulled_or_saved_is_named_and_leaves_nothing";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let archive = node.daemon.home().join("none.tar");
    fs::write(&archive, "of before").unwrap();
    let missing = format!("{}/no/such:1", node.registry.host());
    let path = archive.to_str().unwrap();
    for words in [&["image", "pull", &*missing] as &[_], &["image", "save", &missing, "-o", path]] {
        let output = call(&node, words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        assert!(text(&output.stderr).contains(&missing), "{output:?}");
    }
    assert_eq!(fs::read_to_string(&archive).unwrap(), "of before");
    let beside = fs::read_dir(node.daemon.home()).unwrap().flatten();
    let half = beside.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp"));
    assert_eq!(half.count(), 0);
    node.finish().await.unwrap();
}

// === kill -9 ===

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_within_a_pull_costs_nothing_but_the_pull() {
    let name = "a_kill_within_a_pull_costs_nothing_but_the_pull";
    let Some(mut node) = Node::start(name, LONGSHORE).await else { return };
    let slow = Fault::Slow { piece: 30_000, pause: Duration::from_millis(3) };
    node.registry.fault(Target::Blobs, slow);
    let before = files_of(&node.daemon.root());
    let mut interrupted = 0;
    for round in 0..testkit::rounds(4) {
        let image = push_another(&node, round);
        let pull = Command::new(LONGSHORE)
            .args(["image", "pull", &image])
            .env("LONGSHORE_CRI_SOCKET", node.daemon.cri_socket())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        tokio::time::sleep(Duration::from_millis(20 + u64::from(round) * 137 % 400)).await;
        node.daemon.kill().unwrap();
        interrupted += u32::from(!pull.unwrap().wait().unwrap().success());
        node.daemon.start_again().await.unwrap();
        good(&node, &["image", "pull", &image]);
        let shown = good(&node, &["run", "--rm", &image, "--", "cat", "/note"]);
        assert_eq!(text(&shown.stdout).trim(), round.to_string(), "all of it is there");
        good(&node, &["image", "rm", &image]);
        good(&node, &["image", "prune"]);
        // What was thrown away is deleted in the background.
        let changed = || -> Vec<PathBuf> {
            files_of(&node.daemon.root()).symmetric_difference(&before).cloned().collect()
        };
        for _ in 0..500 {
            if changed().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(changed(), [] as [PathBuf; 0], "round {round}");
    }
    assert_ne!(interrupted, 0, "no kill ever met a pull");
    node.registry.heal();
    node.finish().await.unwrap();
}

/// One that shares nothing with those before it.
fn push_another(node: &Node, round: u32) -> String {
    let mut image = busybox_with().unwrap();
    for number in 0..3 {
        let bytes = noise(300_000, u64::from(round * 3 + number) + 1);
        let layer = LayerBuilder::default().file(&format!("noise-{number}"), 0o644, &bytes);
        image = image.layer(layer.file("note", 0o644, format!("{round}\n").as_bytes()).build());
    }
    node.registry.push("killed", &round.to_string(), &image.build());
    format!("{}/killed:{round}", node.registry.host())
}

/// What images and containers are made of.
fn files_of(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.join("content"), root.join("snapshots")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}
