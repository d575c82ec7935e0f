//! SIGKILL at any moment of a pull.
//!
//! The child is this test program run again with a variable set; it pulls in a loop until
//! it is killed.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::{Fault, Registry, Target},
};

use crate::support::{Machine, config};

const HOME: &str = "LONGSHORE_TEST_KILL_HOME";
const NAME: &str = "LONGSHORE_TEST_KILL_NAME";

fn image(round: u64) -> Image {
    // Two layers stay the same over the rounds, one is new in each.
    let seeds = [1, 2, 100 + round];
    let layers = seeds.iter().map(|&seed| Layer::of_noise(150_000, seed));
    layers.fold(ImageBuilder::default(), ImageBuilder::layer).build()
}

/// Not a test of its own: what the child does.
#[tokio::test]
async fn child() {
    let (Ok(home), Ok(name)) = (env::var(HOME), env::var(NAME)) else { return };
    let home = Path::new(&home);
    let store = store::Store::open(home.join("state")).expect("opens");
    let layers = crate::support::Layers::open(home.join("layers"));
    let images = content::Images::open(config(home), &store, layers).expect("opens");
    let name: base::ImageRef = name.parse().expect("a name");
    loop {
        images.pull(&name, content::PullOptions::default()).await.expect("pulls");
        images.remove(&name.to_string()).await.expect("removes");
    }
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_a_store_that_the_next_pull_completes() {
    let rounds = env::var("LONGSHORE_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let registry = Registry::start().await.expect("starts");
    let slow = Fault::Slow { piece: 30_000, pause: Duration::from_millis(3) };
    registry.fault(Target::Blobs, slow);
    let mut machine = Machine::new();
    let mut interrupted = 0;
    for round in 0..rounds {
        let image = image(round);
        registry.push("a", "v1", &image);
        let name = format!("{}/a:v1", registry.host());
        let home = machine.stop().await;
        run_and_kill(home.path(), &name, Duration::from_millis(20 + (round * 137) % 400)).await;
        machine = Machine::open(home, |_| ());
        assert_eq!(machine.images.broken(), [], "round {round}");
        let found = machine.images.usage().await.expect("counts");
        interrupted += u32::from(found.bytes > 0);
        for known in machine.images.list() {
            assert_eq!(known.record.id, *image.id(), "round {round}");
            machine.assert_whole(&image);
        }
        machine.pull(&name).await.unwrap_or_else(|e| panic!("round {round}: {}", base::Chain(&e)));
        machine.assert_whole(&image);
        machine.images.remove(&name).await.expect("removes");
        machine.images.prune().await.expect("prunes");
        let left = machine.images.usage().await.expect("counts");
        assert_eq!((left.bytes, left.inodes), (0, 0), "round {round}");
    }
    assert!(interrupted > 0, "no kill ever met a pull");
}

async fn run_and_kill(home: &Path, name: &str, after: Duration) {
    let mut child = Command::new(env::current_exe().expect("has a path"))
        .args(["--exact", "kill::child"])
        .env(HOME, home)
        .env(NAME, name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    tokio::time::sleep(after).await;
    child.kill().expect("is there");
    child.wait().expect("ends");
}
