//! Names and what they stand for.

use base::{ImageRef, Kind};
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::Registry,
};

use crate::support::Machine;

fn image(seed: u64) -> Image {
    ImageBuilder::default().layer(Layer::of_noise(1_000, seed)).build()
}

fn tags(machine: &Machine) -> Vec<String> {
    let images = machine.images.list();
    let tags = images.iter().flat_map(|image| image.record.repo_tags().map(ToString::to_string));
    let mut tags: Vec<String> = tags.collect();
    tags.sort();
    tags
}

#[tokio::test]
async fn one_image_of_two_registries_is_one_and_goes_as_one() {
    let machine = Machine::new();
    let [one, two] =
        [Registry::start().await.expect("starts"), Registry::start().await.expect("starts")];
    let image = image(1);
    one.push("a", "1", &image);
    two.push("b", "2", &image);
    let names = [format!("{}/a:1", one.host()), format!("{}/b:2", two.host())];
    for name in &names {
        assert_eq!(machine.pull(name).await.expect("pulls").id, *image.id());
    }
    assert_eq!(two.blob_requests(&image.layers[0].digest), 0, "it was here");
    let mut want = names.to_vec();
    want.sort();
    assert_eq!(tags(&machine), want);
    for query in [names[0].as_str(), image.id().as_str(), image.id().hex(), &image.id().hex()[..9]]
    {
        assert_eq!(machine.images.get(query).expect("is found").record.id, *image.id(), "{query}");
    }
    let removed = machine.images.remove(&names[1]).await.expect("removes").expect("was here");
    assert_eq!(removed.names.len(), 4, "two tags and two digests");
    machine.assert_nothing_visible();
    assert_eq!(machine.files("blobs/sha256"), [""; 0]);
    assert_eq!(machine.images.remove(&names[0]).await.expect("is fine"), None);
    assert_eq!(machine.images.get(&names[0]).expect_err("is gone").kind(), Kind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn removing_the_same_image_from_all_sides_is_fine() {
    let machine = Machine::new();
    let registry = Registry::start().await.expect("starts");
    registry.push("a", "1", &image(1));
    let name = format!("{}/a:1", registry.host());
    machine.pull(&name).await.expect("pulls");
    let removals = (0..8).map(|_| {
        let (images, name) = (machine.images.clone(), name.clone());
        async move { images.remove(&name).await }
    });
    let removed = futures_util::future::join_all(removals).await;
    let removed: Vec<_> = removed.into_iter().map(|removed| removed.expect("is fine")).collect();
    assert_eq!(removed.iter().flatten().count(), 1, "one of them did it");
    machine.assert_nothing_visible();
}

#[tokio::test]
async fn shared_layers_stay_until_the_last_image_goes() {
    let machine = Machine::new();
    let registry = Registry::start().await.expect("starts");
    let base = image(1);
    let derived = ImageBuilder::default();
    let derived = derived.layer(Layer::of_noise(1_000, 1)).layer(Layer::of_noise(1_000, 2)).build();
    registry.push("a", "base", &base);
    registry.push("a", "derived", &derived);
    for tag in ["base", "derived"] {
        machine.pull(&format!("{}/a:{tag}", registry.host())).await.expect("pulls");
    }
    assert_eq!(registry.blob_requests(&base.layers[0].digest), 1);
    machine.images.remove(base.id().as_str()).await.expect("removes");
    machine.assert_whole(&derived);
    let chain = machine.images.chains();
    assert_eq!(chain.len(), 2);
    let layer = chain.first().expect("has one");
    assert_eq!(machine.images.if_chain_unneeded(layer, || ()), None);
    machine.images.remove(derived.id().as_str()).await.expect("removes");
    assert_eq!(machine.images.if_chain_unneeded(layer, || 7), Some(7));
}

#[tokio::test]
async fn names_can_be_given_and_taken() {
    let machine = Machine::new();
    let registry = Registry::start().await.expect("starts");
    let image = image(1);
    registry.push("a", "1", &image);
    let pulled: ImageRef = format!("{}/a:1", registry.host()).parse().expect("a name");
    machine.pull(&pulled.to_string()).await.expect("pulls");
    let own: ImageRef = "mine".parse().expect("a name");
    machine.images.tag(image.id().hex(), &own).await.expect("tags");
    assert_eq!(machine.images.get("mine").expect("is found").record.id, *image.id());
    assert!(!machine.images.untag(&pulled).await.expect("untags").gone);
    machine.images.get(&pulled.to_string()).expect_err("is gone");
    machine.assert_whole(&image);
    assert!(machine.images.untag(&own).await.expect("untags").gone);
    machine.assert_nothing_visible();
    assert_eq!(machine.images.untag(&own).await.expect_err("is gone").kind(), Kind::NotFound);
}

#[tokio::test]
async fn pinned_is_what_the_configuration_names() {
    let registry = Registry::start().await.expect("starts");
    let name = format!("{}/a:1", registry.host());
    let pinned: ImageRef = name.parse().expect("a name");
    let machine = Machine::with(|config| config.pinned.extend([pinned]));
    registry.push("a", "1", &image(1));
    registry.push("a", "2", &image(2));
    machine.pull(&name).await.expect("pulls");
    machine.pull(&format!("{}/a:2", registry.host())).await.expect("pulls");
    assert!(machine.images.get(&name).expect("is here").pinned);
    assert!(!machine.images.get(image(2).id().as_str()).expect("is here").pinned);
}

#[tokio::test]
async fn records_survive_a_restart() {
    let machine = Machine::new();
    let registry = Registry::start().await.expect("starts");
    let image = image(1);
    registry.push("a", "1", &image);
    machine.pull(&format!("{}/a:1", registry.host())).await.expect("pulls");
    let before = machine.images.list();
    let machine = machine.restart(|_| ()).await;
    assert_eq!(machine.images.list(), before);
    assert_eq!(machine.images.broken(), []);
    machine.assert_whole(&image);
}
