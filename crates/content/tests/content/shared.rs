//! Pulls that want the same things at the same time.

use std::{sync::Arc, time::Duration};

use content::{ContentError, PullOptions};
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::{Access, Fault, Registry, Target},
};
use tokio::time::sleep;

use crate::support::Machine;

fn ten_layers() -> Image {
    let layers = (0..10).map(|seed| Layer::of_noise(100_000, seed));
    layers.fold(ImageBuilder::default(), ImageBuilder::layer).build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_pulls_of_ten_layers_download_each_blob_once() {
    let registry = Registry::start().await.expect("starts");
    let image = ten_layers();
    for tag in 0..10 {
        registry.push("a", &format!("v{tag}"), &image);
    }
    let machine = Arc::new(Machine::new());
    let pull = |tag: i32| {
        let (machine, name) = (Arc::clone(&machine), format!("{}/a:v{tag}", registry.host()));
        async move { machine.pull(&name).await }
    };
    let pulled = futures_util::future::join_all((0..10).map(pull)).await;
    for pulled in pulled {
        assert_eq!(pulled.expect("pulls").id, *image.id());
    }
    machine.assert_whole(&image);
    for blob in image.blobs() {
        assert_eq!(registry.blob_requests(&blob.digest), 1, "{}", blob.digest);
    }
    assert_eq!(machine.layers.applied(), 10, "each layer was unpacked once");
    assert_eq!(machine.images.list()[0].record.repo_tags().count(), 10);
}

/// A registry whose one layer takes a second.
async fn slow() -> (Registry, Image) {
    let registry = Registry::start().await.expect("starts");
    let image = ImageBuilder::default().layer(Layer::of_noise(200_000, 1)).build();
    registry.push("a", "v1", &image);
    let slow = Fault::Slow { piece: 10_000, pause: Duration::from_millis(50) };
    registry.fault(Target::Blob(image.layers[0].digest.clone()), slow);
    (registry, image)
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..500 {
        if is() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn one_of_two_may_leave() {
    let (registry, image) = slow().await;
    let machine = Machine::new();
    let name = format!("{}/a:v1", registry.host());
    let layer = &image.layers[0].digest;
    let first = machine.pull(&name);
    let leaving = tokio::time::timeout(Duration::from_millis(400), first);
    let (left, second) = tokio::join!(leaving, machine.pull(&name));
    left.expect_err("left");
    second.expect("is not disturbed");
    machine.assert_whole(&image);
    assert_eq!(registry.blob_requests(layer), 1);
}

#[tokio::test]
async fn the_last_to_leave_ends_the_download_and_the_part_stays() {
    let (registry, image) = slow().await;
    let machine = Machine::new();
    let name = format!("{}/a:v1", registry.host());
    let layer = image.layers[0].digest.clone();
    let leaving = tokio::time::timeout(Duration::from_millis(400), machine.pull(&name));
    leaving.await.expect_err("left");
    // It winds down: soon nothing more is sent, and nothing half-unpacked is left.
    let staging = machine.home.path().join("layers/staging");
    until("staging is clean", || std::fs::read_dir(&staging).expect("lists").count() == 0).await;
    sleep(Duration::from_millis(100)).await;
    let sent = registry.blob_bytes(&layer);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(registry.blob_bytes(&layer), sent, "still downloading");
    assert!(sent < 200_000);
    machine.assert_nothing_visible();
    assert_eq!(machine.files("ingest").len(), 1);

    registry.heal();
    machine.pull(&name).await.expect("goes on");
    machine.assert_whole(&image);
    let total = registry.blob_bytes(&layer);
    let size = image.layers[0].bytes.len() as u64;
    assert!(total < size + sent, "began anew: {total} of {size} after {sent}");
}

#[tokio::test]
async fn leaving_and_coming_back_at_once_is_no_conflict() {
    let (registry, image) = slow().await;
    let machine = Machine::new();
    let name = format!("{}/a:v1", registry.host());
    for _ in 0..8 {
        let pull = tokio::time::timeout(Duration::from_millis(120), machine.pull(&name));
        pull.await.expect_err("is slow");
    }
    registry.heal();
    machine.pull(&name).await.expect("pulls");
    machine.assert_whole(&image);
}

#[tokio::test]
async fn the_failure_of_a_stranger_is_not_ours() {
    let [bad, good] =
        [Registry::start().await.expect("starts"), Registry::start().await.expect("starts")];
    let image = ImageBuilder::default().layer(Layer::of_noise(50_000, 1)).build();
    for registry in [&bad, &good] {
        registry.push("a", "v1", &image);
    }
    bad.fault(Target::Blob(image.layers[0].digest.clone()), Fault::StallAfter(1_000));
    let machine = Machine::new();
    let [from_bad, from_good] = [&bad, &good].map(|registry| format!("{}/a:v1", registry.host()));
    let later = async {
        until("the bad one is asked", || bad.blob_requests(&image.layers[0].digest) > 0).await;
        machine.pull(&from_good).await
    };
    let (failed, pulled) = tokio::join!(machine.pull(&from_bad), later);
    pulled.expect("has a registry of its own");
    // The first one may fail, or find that the other has brought the layer meanwhile.
    if let Err(error) = failed {
        assert!(matches!(error, ContentError::Registry(_)), "{error}");
    }
    machine.assert_whole(&image);
}

#[tokio::test]
async fn closing_ends_pulls_in_order() {
    let (registry, _image) = slow().await;
    let machine = Machine::new();
    let name = format!("{}/a:v1", registry.host());
    let close = async {
        sleep(Duration::from_millis(300)).await;
        machine.images.close().await;
    };
    let (pulled, ()) = tokio::join!(machine.pull(&name), close);
    assert!(matches!(pulled, Err(ContentError::Cancelled)), "{pulled:?}");
    machine.assert_nothing_visible();
    // Nothing runs any more: the directory can be opened again at once.
    let machine = machine.restart(|_| ()).await;
    registry.heal();
    machine.pull(&name).await.expect("pulls");
}

#[tokio::test]
async fn downloads_share_a_limit() {
    let registry = Registry::start().await.expect("starts");
    let layers = (0..6).map(|seed| Layer::of_noise(300_000, seed));
    let image = layers.fold(ImageBuilder::default(), ImageBuilder::layer).build();
    registry.push("a", "v1", &image);
    registry.allow(Access::Anyone);
    for layer in &image.layers {
        registry.fault(Target::Blob(layer.digest.clone()), Fault::StallAfter(0));
    }
    let machine = Machine::with(|config| config.parallel_downloads = 2);
    let name = format!("{}/a:v1", registry.host());
    let options = PullOptions::default();
    let pull = tokio::time::timeout(Duration::from_millis(500), machine.pull_with(&name, options));
    pull.await.expect_err("stalls");
    let asked = image.layers.iter().filter(|layer| registry.blob_requests(&layer.digest) > 0);
    assert_eq!(asked.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn layers_reach_the_sink_lowest_first_whatever_arrives_first() {
    let registry = Registry::start().await.expect("starts");
    let image = ten_layers();
    registry.push("a", "v1", &image);
    // The lower the slower: the highest is here long before the lowest.
    for (at, layer) in image.layers.iter().enumerate() {
        let pause = Duration::from_millis(10 * (10 - at as u64));
        let slow = Fault::Slow { piece: 20_000, pause };
        registry.fault(Target::Blob(layer.digest.clone()), slow);
    }
    let machine = Machine::with(|config| config.parallel_unpacks = 2);
    // The sink of these tests insists on the order.
    machine.pull(&format!("{}/a:v1", registry.host())).await.expect("pulls");
    machine.assert_whole(&image);
}

#[tokio::test]
async fn a_layer_is_tried_again_with_the_one_below_it() {
    let registry = Registry::start().await.expect("starts");
    let image = ten_layers();
    registry.push("a", "v1", &image);
    let lowest = Target::Blob(image.layers[0].digest.clone());
    // Wrong bytes by a wrong range: known at the end only, when all others wait for it.
    registry.fault_times(lowest.clone(), Fault::TruncateAfter(50_000), 1);
    registry.fault_times(lowest, Fault::LieAboutRange, 1);
    let machine = Machine::new();
    machine.pull(&format!("{}/a:v1", registry.host())).await.expect("pulls");
    machine.assert_whole(&image);
}
