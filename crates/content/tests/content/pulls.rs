//! What a pull does when all goes well.

use std::{sync::Arc, time::Duration};

use base::{ImageRef, Kind};
use content::{ContentError, ImageUser, Progress, PullOptions, Stage};
use serde_json::json;
use testkit::{
    image::{Blob, Compression, ImageBuilder, Index, Layer, LayerBuilder},
    registry::{Fault, Registry, Target},
};
use tokio::time::Instant;

use crate::support::Machine;

fn three_layers() -> ImageBuilder {
    let layer = |path: &str, compression| {
        LayerBuilder::default().compression(compression).file(path, 0o644, path.as_bytes()).build()
    };
    ImageBuilder::default()
        .layer(layer("gzip", Compression::Gzip))
        .layer(layer("zstd", Compression::Zstd))
        .layer(layer("plain", Compression::None))
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_by_digest() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = three_layers().set("User", json!("1002:5")).set("Cmd", json!(["sh"])).build();
    registry.push("a/b", "v1", &image);
    let host = registry.host();

    let pulled = machine.pull(&format!("{host}/a/b:v1")).await.expect("pulls");
    assert_eq!((&pulled.id, &pulled.root), (image.id(), &image.manifest.digest));
    machine.assert_whole(&image);
    let [known] = &machine.images.list()[..] else { panic!("one image") };
    let names = |names: Vec<&ImageRef>| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let digest = format!("{host}/a/b@{}", image.manifest.digest);
    assert_eq!(names(known.record.repo_tags().collect()), [format!("{host}/a/b:v1")]);
    assert_eq!(names(known.record.repo_digests().collect()), std::slice::from_ref(&digest));
    let size: usize = image.blobs().chain([&image.manifest]).map(|blob| blob.bytes.len()).sum();
    assert_eq!(known.record.size(), size as u64);
    assert_eq!(known.record.image_user(), Some(ImageUser::Uid(1002)));
    let config = machine.images.config(image.id()).await.expect("reads");
    assert_eq!(config.process.cmd, ["sh"]);

    machine.images.remove(&digest).await.expect("removes").expect("was here");
    machine.assert_nothing_visible();
    let pulled = machine.pull(&digest).await.expect("pulls");
    assert_eq!(pulled.id, *image.id());
    let [known] = &machine.images.list()[..] else { panic!("one image") };
    assert_eq!(known.record.repo_tags().count(), 0);
    assert_eq!(names(known.record.repo_digests().collect()), [digest]);
}

#[tokio::test]
async fn a_second_pull_asks_and_fetches_nothing() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = three_layers().build();
    registry.push("a", "latest", &image);
    let name = format!("{}/a", registry.host());
    machine.pull(&name).await.expect("pulls");
    registry.forget_requests();
    machine.pull(&name).await.expect("pulls");
    assert_eq!(registry.seen().len(), 1);
    assert_eq!(registry.count("HEAD", "/manifests/latest"), 1);

    // The tag moves; what both images share is not fetched again.
    let newer = three_layers().layer(Layer::of_noise(100, 1)).build();
    registry.push("a", "latest", &newer);
    registry.forget_requests();
    machine.pull(&name).await.expect("pulls");
    machine.assert_whole(&newer);
    assert_eq!(registry.seen().iter().filter(|seen| seen.path.contains("/blobs/")).count(), 2);
    let tags: Vec<_> = machine.images.list().iter().map(|i| i.record.repo_tags().count()).collect();
    assert_eq!(tags.iter().sum::<usize>(), 1, "the tag moved");
    assert_eq!(tags.len(), 2, "the old image is still known by its digest");

    // Gone from the registry means no more, even though all is here.
    registry.fault(Target::Manifests, Fault::Status(404));
    assert_eq!(machine.pull(&name).await.expect_err("is gone").kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_registry_that_gives_no_digests_is_pulled_from_too() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = three_layers().docker().build();
    registry.push("a", "latest", &image);
    registry.fault(Target::Manifests, Fault::NoDigest);
    for _ in 0..2 {
        let pulled = machine.pull(&format!("{}/a", registry.host())).await.expect("pulls");
        assert_eq!(pulled.root, image.manifest.digest);
    }
    machine.assert_whole(&image);
}

#[tokio::test]
async fn an_index_leads_to_the_image_of_the_platform() {
    let registry = Registry::start().await.expect("starts");
    let image = |platform: &str| {
        let layer = LayerBuilder::default().file("platform", 0o644, platform.as_bytes());
        ImageBuilder::default().platform(platform).layer(layer.build()).build()
    };
    let platforms = ["linux/arm/v6", "linux/arm/v7", "linux/amd64", "windows/amd64"];
    let index = Index::of(platforms.iter().map(|platform| image(platform)).collect());
    registry.push_index("a", "multi", &index);
    let name = format!("{}/a:multi", registry.host());
    let pull = |platform: &'static str| {
        let name = name.clone();
        async move {
            let machine = Machine::new();
            let platform = Some(platform.parse().expect("a platform"));
            let options = PullOptions { platform, ..PullOptions::default() };
            machine.pull_with(&name, options).await.map(|pulled| (machine, pulled))
        }
    };
    for (platform, at) in [("linux/amd64", 2), ("linux/arm/v8", 1), ("linux/arm/v6", 0)] {
        let (machine, pulled) = pull(platform).await.expect("pulls");
        assert_eq!(pulled.id, *index.images[at].id(), "{platform}");
        assert_eq!(pulled.root, index.blob.digest);
        machine.assert_whole(&index.images[at]);
        assert_eq!(machine.files("blobs/sha256").len(), 4, "nothing of other platforms");
    }
    let error = pull("linux/s390x").await.map(|_| ()).expect_err("is not there");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("linux/s390x"), "{error}");

    // Named by the digest of one platform's manifest it is that one, or an error.
    let foreign = format!("{}/a@{}", registry.host(), index.images[3].manifest.digest);
    let error = Machine::new().pull(&foreign).await.expect_err("is for Windows");
    assert!(matches!(error, ContentError::Platform { .. }), "{error}");
}

#[tokio::test]
async fn what_is_no_image_is_refused_by_name() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let check = async |tag: &str, json: serde_json::Value, kind: Kind, part: &str| {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        registry.push_manifest("a", tag, &Blob::new(media_type, json.to_string()));
        let error = machine.pull(&format!("{}/a:{tag}", registry.host())).await.expect_err(tag);
        assert_eq!(error.kind(), kind, "{tag}");
        let text = base::Chain(&error).to_string();
        assert!(text.contains(part), "{text}");
    };
    let config = |media_type: &str| {
        let digest = format!("sha256:{}", "0".repeat(64));
        json!({ "mediaType": media_type, "digest": digest, "size": 2 })
    };
    let chart = config("application/vnd.cncf.helm.config.v1+json");
    let chart = json!({ "schemaVersion": 2, "config": chart, "layers": [] });
    check("chart", chart, Kind::Unimplemented, "helm").await;
    check("old", json!({ "schemaVersion": 1 }), Kind::Unimplemented, "schema 1").await;
    let image = config("application/vnd.oci.image.config.v1+json");
    let both = json!({ "schemaVersion": 2, "config": image, "layers": [], "manifests": [] });
    check("both", both, Kind::Invalid, "at once").await;
    machine.assert_nothing_visible();
}

#[tokio::test]
async fn a_configuration_of_other_layers_is_refused() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = three_layers().build();
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&image.manifest.bytes).expect("is JSON");
    manifest["layers"].as_array_mut().expect("a list").pop();
    registry.push("a", "v1", &image);
    let manifest = Blob::new(image.manifest.media_type.clone(), manifest.to_string());
    registry.push_manifest("a", "v1", &manifest);
    let error = machine.pull(&format!("{}/a:v1", registry.host())).await.expect_err("differs");
    let text = base::Chain(&error).to_string();
    assert!(text.contains("names 3 layers and the manifest 2"), "{text}");
}

#[tokio::test]
async fn a_deadline_ends_a_pull_and_says_so() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    registry.push("a", "v1", &three_layers().build());
    registry.fault(Target::Everything, Fault::Hang);
    let deadline = Some(Instant::now() + Duration::from_millis(1));
    let options = PullOptions { deadline, ..PullOptions::default() };
    let error = machine.pull_with(&format!("{}/a:v1", registry.host()), options).await;
    assert_eq!(error.expect_err("takes too long").kind(), Kind::Deadline);
    machine.assert_nothing_visible();
}

#[tokio::test]
async fn progress_can_be_watched() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = ImageBuilder::default().layer(Layer::of_noise(200_000, 1)).build();
    registry.push("a", "v1", &image);
    let slow = Fault::Slow { piece: 20_000, pause: Duration::from_millis(10) };
    registry.fault(Target::Blob(image.layers[0].digest.clone()), slow);
    let progress = Arc::new(Progress::default());
    let options = PullOptions { progress: Some(Arc::clone(&progress)), ..PullOptions::default() };
    let name = format!("{}/a:v1", registry.host());
    let pull = machine.pull_with(&name, options);
    let watch = async {
        let mut seen = Vec::new();
        loop {
            match &progress.layers()[..] {
                [layer] if layer.stage == Stage::Done => return seen,
                [layer] => seen.push(layer.here),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let (pulled, seen) = tokio::join!(pull, watch);
    pulled.expect("pulls");
    assert!(seen.is_sorted(), "{seen:?}");
    assert!(seen.iter().any(|&here| here > 0 && here < 200_000), "{seen:?}");
}

#[tokio::test]
async fn unpacking_begins_before_the_download_ends() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = ImageBuilder::default().layer(Layer::of_noise(200_000, 1)).build();
    registry.push("a", "v1", &image);
    registry.fault_times(Target::Blobs, Fault::Status(500), 0);
    let stall = Fault::StallAfter(100_000);
    registry.fault_times(Target::Blob(image.layers[0].digest.clone()), stall, 1);
    let name = format!("{}/a:v1", registry.host());
    let staging = machine.home.path().join("layers/staging/0");
    let watch = async {
        loop {
            if std::fs::metadata(&staging).is_ok_and(|staged| staged.len() > 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // While the registry stalls nothing more can come, and yet something is unpacked.
    let pull = machine.pull(&name);
    tokio::pin!(pull);
    tokio::select! {
        pulled = &mut pull => panic!("ended first: {pulled:?}"),
        () = watch => {}
    }
    pull.await.expect("resumes after the stall");
    machine.assert_whole(&image);
}
