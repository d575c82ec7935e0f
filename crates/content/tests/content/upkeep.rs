//! Damage, repair, space.

use std::{fs, time::Duration};

use base::Kind;
use content::LayerSink as _;
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::{Fault, Registry, Target},
};

use crate::support::Machine;

fn image() -> Image {
    let builder = ImageBuilder::default();
    builder.layer(Layer::of_noise(100_000, 1)).layer(Layer::of_noise(100_000, 2)).build()
}

async fn pulled() -> (Machine, Registry, Image, String) {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = image();
    registry.push("a", "v1", &image);
    let name = format!("{}/a:v1", registry.host());
    machine.pull(&name).await.expect("pulls");
    registry.forget_requests();
    (machine, registry, image, name)
}

#[tokio::test]
async fn an_image_with_something_missing_is_told_and_repaired() {
    for part in ["manifest", "config", "layer", "short layer"] {
        let (machine, _registry, image, name) = pulled().await;
        let digest = match part {
            "manifest" => &image.manifest.digest,
            "config" => &image.config.digest,
            _ => &image.layers[1].digest,
        };
        let path = machine.blob_path(digest);
        match part {
            "short layer" => fs::write(path, b"x").expect("writes"),
            _ => fs::remove_file(path).expect("removes"),
        }
        let machine = machine.restart(|_| ()).await;
        assert_eq!(machine.images.list(), [], "{part}");
        let broken = machine.images.broken();
        assert_eq!((&broken[0].id, &broken[0].missing[..]), (image.id(), &[digest.clone()][..]));
        assert_eq!(broken[0].names.len(), 2);
        assert_eq!(machine.images.get(&name).expect_err("is unusable").kind(), Kind::NotFound);

        machine.pull(&name).await.unwrap_or_else(|e| panic!("{part}: {}", base::Chain(&e)));
        machine.assert_whole(&image);
        assert_eq!(machine.images.broken(), []);
        let machine = machine.restart(|_| ()).await;
        assert_eq!(machine.images.list().len(), 1, "{part}");
    }
}

#[tokio::test]
async fn a_broken_image_can_be_removed() {
    let (machine, _registry, image, name) = pulled().await;
    fs::remove_file(machine.blob_path(image.id())).expect("removes");
    let machine = machine.restart(|_| ()).await;
    machine.images.remove(&name).await.expect("removes").expect("was known");
    assert_eq!(machine.images.broken(), []);
    assert_eq!(machine.files("blobs/sha256"), [""; 0]);
}

#[tokio::test]
async fn a_configuration_that_vanishes_while_we_run_is_noticed() {
    let (machine, _registry, image, name) = pulled().await;
    fs::remove_file(machine.blob_path(image.id())).expect("removes");
    let error = machine.images.config(image.id()).await.expect_err("is gone");
    assert_eq!(error.kind(), Kind::FailedPrecondition);
    assert_eq!(machine.images.list(), []);
    machine.pull(&name).await.expect("repairs");
    machine.images.config(image.id()).await.expect("is back");
}

#[tokio::test]
async fn a_rotten_layer_is_fetched_again_when_it_is_needed() {
    let (machine, registry, image, name) = pulled().await;
    let digest = &image.layers[0].digest;
    let mut bytes = image.layers[0].bytes.to_vec();
    bytes[50_000] ^= 1;
    fs::write(machine.blob_path(digest), bytes).expect("writes");
    let chain = machine.images.layers(image.id(), "overlayfs").expect("is known");
    machine.layers.lose("overlayfs", &chain[0].chain_id);
    machine.pull(&name).await.expect("repairs");
    machine.assert_whole(&image);
    assert_eq!(registry.blob_requests(digest), 1);
}

#[tokio::test]
async fn an_image_is_unpacked_again_without_the_registry() {
    let (machine, registry, image, _name) = pulled().await;
    drop(registry);
    machine.images.unpack(image.id(), "native").await.expect("unpacks");
    let chain = machine.images.layers(image.id(), "native").expect("is known");
    assert!(chain.iter().all(|layer| machine.layers.has("native", &layer.chain_id)));
    machine.layers.lose("overlayfs", &chain[1].chain_id);
    machine.images.unpack(image.id(), "overlayfs").await.expect("unpacks");
    machine.assert_whole(&image);
}

#[tokio::test]
async fn layers_need_not_be_kept() {
    let machine = Machine::with(|config| config.keep_layers = false);
    let registry = Registry::start().await.expect("starts");
    let image = image();
    registry.push("a", "v1", &image);
    let name = format!("{}/a:v1", registry.host());
    machine.pull(&name).await.expect("pulls");
    assert_eq!(machine.files("blobs/sha256").len(), 2, "manifest and configuration");
    assert_eq!(machine.images.prune().await.expect("prunes").bytes(), 0);
    // Unpacked is enough: nothing is fetched again, and a restart finds nothing missing.
    registry.forget_requests();
    machine.pull(&name).await.expect("pulls");
    assert_eq!(registry.blob_requests(&image.layers[0].digest), 0);
    let machine = machine.restart(|config| config.keep_layers = false).await;
    assert_eq!(machine.images.list().len(), 1);
    // Lost, they are missing.
    let chain = machine.images.layers(image.id(), "overlayfs").expect("is known");
    machine.layers.lose("overlayfs", &chain[0].chain_id);
    let machine = machine.restart(|config| config.keep_layers = false).await;
    assert_eq!(machine.images.broken().len(), 1);
    machine.pull(&name).await.expect("repairs");
    assert_eq!(machine.images.broken(), []);
    let error = machine.images.export(&[&name], Vec::new()).await.expect_err("has no layers");
    assert_eq!(error.kind(), Kind::FailedPrecondition);
}

#[tokio::test]
async fn pruning_takes_what_nothing_needs_and_says_so_before() {
    let (machine, registry, image, _name) = pulled().await;
    let other = ImageBuilder::default().layer(Layer::of_noise(100_000, 9)).build();
    registry.push("b", "v1", &other);
    let layer = other.layers[0].digest.clone();
    registry.fault_times(Target::Blob(layer.clone()), Fault::TruncateAfter(70_000), 1);
    registry.fault(Target::Blob(layer), Fault::Status(404));
    machine.pull(&format!("{}/b:v1", registry.host())).await.expect_err("breaks");

    let dry = machine.images.prune_dry_run().await.expect("looks");
    assert_eq!((dry.blobs.len(), dry.partials.len()), (2, 1), "{dry:?}");
    assert!(dry.bytes() > 10_000);
    let before = machine.images.usage().await.expect("counts");
    assert_eq!(machine.images.prune().await.expect("prunes"), dry);
    let after = machine.images.usage().await.expect("counts");
    assert_eq!(before.bytes - after.bytes, dry.bytes());
    assert_eq!(before.inodes - after.inodes, 3);
    assert_eq!(machine.images.prune().await.expect("prunes").bytes(), 0);
    assert_eq!(machine.files("ingest"), [""; 0]);
    machine.assert_whole(&image);
}

#[tokio::test]
async fn collecting_never_takes_what_a_pull_needs() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = image();
    registry.push("a", "v1", &image);
    for layer in &image.layers {
        let slow = Fault::Slow { piece: 5_000, pause: Duration::from_millis(10) };
        registry.fault(Target::Blob(layer.digest.clone()), slow);
    }
    let name = format!("{}/a:v1", registry.host());
    let collect = async {
        loop {
            let pruned = machine.images.prune().await.expect("prunes");
            assert_eq!(pruned.bytes(), 0, "{pruned:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        pulled = machine.pull(&name) => drop(pulled.expect("pulls")),
        () = collect => {}
    }
    machine.assert_whole(&image);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pulls_and_removals_of_one_image_in_any_order_leave_it_whole_or_gone() {
    let (machine, registry, image, name) = pulled().await;
    for round in 0..20 {
        let pull = {
            let (images, name) = (machine.images.clone(), name.parse().expect("a name"));
            async move { images.pull(&name, content::PullOptions::default()).await }
        };
        let remove = {
            let (images, name) = (machine.images.clone(), name.clone());
            async move {
                tokio::time::sleep(Duration::from_millis(round % 5)).await;
                images.remove(&name).await
            }
        };
        let (pulled, removed) = tokio::join!(pull, remove);
        pulled.expect("pulls");
        removed.expect("removes");
        match machine.images.list().is_empty() {
            false => machine.assert_whole(&image),
            true => assert_eq!(machine.files("blobs/sha256"), [""; 0]),
        }
    }
    drop(registry);
}
