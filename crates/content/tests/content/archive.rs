//! Images from files and to files.

use std::{
    fs::{self, File},
    io::Write,
};

use base::Kind;
use content::{ImportOptions, Imported};
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::Registry,
};

use crate::support::Machine;

fn image() -> Image {
    let builder = ImageBuilder::default();
    builder.layer(Layer::of_noise(50_000, 1)).layer(Layer::of_noise(1_000, 2)).build()
}

fn names(imported: &[Imported]) -> Vec<String> {
    imported.iter().flat_map(|image| &image.names).map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_oci_layout_is_loaded_from_a_folder() {
    let machine = Machine::new();
    let image = image();
    let dir = tempfile::tempdir().expect("a directory");
    let load = async |name: Option<&str>, default: Option<&str>| {
        image.write_layout(dir.path(), name).expect("writes");
        let name = default.map(|name| name.parse().expect("a name"));
        let options = ImportOptions { name, ..ImportOptions::default() };
        let imported = machine.images.import_dir(dir.path(), options).await.expect("loads");
        assert_eq!(imported[0].id, *image.id());
        names(&imported)
    };
    assert_eq!(load(Some("r.example/app:1"), None).await, ["r.example/app:1"]);
    machine.assert_whole(&image);
    assert_eq!(load(Some("2"), Some("r.example/app:0")).await, ["r.example/app:2"]);
    assert_eq!(load(None, Some("r.example/app:0")).await, ["r.example/app:0"]);
    assert_eq!(load(Some("latest"), None).await, [""; 0]);
    assert_eq!(machine.images.list()[0].record.repo_tags().count(), 3);
}

#[tokio::test]
async fn a_docker_archive_is_loaded_compressed_or_not() {
    // The same layer twice: Docker writes a link for the second.
    let image = {
        let builder = ImageBuilder::default();
        let twice = Layer::of_noise(50_000, 1);
        builder.layer(twice.clone()).layer(twice).layer(Layer::of_noise(9, 2)).docker().build()
    };
    let tar = image.docker_archive(&["app:1", "app:2"]);
    let gzip = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&tar).expect("compresses");
        encoder.finish().expect("compresses")
    };
    let zstd = zstd::encode_all(&tar[..], 1).expect("compresses");
    for archive in [tar, gzip, zstd] {
        let machine = Machine::new();
        let archive = std::io::Cursor::new(archive);
        let imported =
            machine.images.import(archive, ImportOptions::default()).await.expect("loads");
        assert_eq!(imported[0].id, *image.id());
        assert_eq!(names(&imported), ["docker.io/library/app:1", "docker.io/library/app:2"]);
        assert_eq!(machine.images.layers(image.id(), "overlayfs").expect("is known").len(), 3);
        assert_eq!(machine.layers.applied(), 3);
        // Configuration, manifest and the two distinct layers; nothing else of the archive.
        assert_eq!(machine.files("blobs/sha256").len(), 4);
        assert_eq!(machine.files("ingest"), [""; 0]);
    }
}

#[tokio::test]
async fn what_is_saved_can_be_loaded() {
    let (machine, registry) = (Machine::new(), Registry::start().await.expect("starts"));
    let image = image();
    registry.push("a", "v1", &image);
    let name = format!("{}/a:v1", registry.host());
    machine.pull(&name).await.expect("pulls");
    let path = machine.home.path().join("saved.tar");
    let saved = File::create(&path).expect("creates");
    machine.images.export(&[&name], saved).await.expect("saves");

    let other = Machine::new();
    let options = ImportOptions::default;
    let archive = File::open(&path).expect("opens");
    let imported = other.images.import(archive, options()).await.expect("loads");
    assert_eq!((&imported[0].id, names(&imported)), (image.id(), vec![name.clone()]));
    other.assert_whole(&image);

    // Without its index it is what Docker wrote before.
    let old = without_index(&fs::read(&path).expect("reads"));
    let third = Machine::new();
    let imported = third.images.import(std::io::Cursor::new(old), options()).await.expect("loads");
    assert_eq!((&imported[0].id, names(&imported)), (image.id(), vec![name]));
}

fn without_index(tar: &[u8]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(tar).entries().expect("reads") {
        let entry = entry.expect("reads");
        if *entry.path_bytes() != b"index.json"[..] {
            let header = entry.header().clone();
            out.append(&header, entry).expect("writes");
        }
    }
    out.into_inner().expect("ends")
}

#[tokio::test]
async fn archives_that_are_wrong_are_refused_and_leave_nothing() {
    let image = image();
    let check = async |change: &dyn Fn(&std::path::Path), kind: Kind, part: &str| {
        let machine = Machine::new();
        let dir = tempfile::tempdir().expect("a directory");
        image.write_layout(dir.path(), Some("a:1")).expect("writes");
        change(dir.path());
        let error = machine.images.import_dir(dir.path(), ImportOptions::default()).await;
        let error = error.expect_err(part);
        let text = base::Chain(&error).to_string();
        assert!(text.contains(part), "{text}");
        assert_eq!(error.kind(), kind, "{text}");
        machine.assert_nothing_visible();
        machine.images.prune().await.expect("prunes");
        assert_eq!(machine.files("blobs/sha256"), [""; 0]);
        assert_eq!(machine.files("ingest"), [""; 0]);
    };
    let blob = |dir: &std::path::Path| dir.join("blobs/sha256").join(image.layers[0].digest.hex());
    let remove = |name: &'static str| {
        move |dir: &std::path::Path| fs::remove_file(dir.join(name)).expect("removes")
    };
    check(&remove("index.json"), Kind::Invalid, "not an image archive").await;
    check(&|dir| fs::remove_file(blob(dir)).expect("removes"), Kind::Invalid, "which is not in it")
        .await;
    check(
        &|dir| fs::write(blob(dir), "x").expect("writes"),
        Kind::Invalid,
        "not named by its digest",
    )
    .await;
    check(
        &|dir| fs::write(dir.join("index.json"), "{").expect("writes"),
        Kind::Invalid,
        "index.json: ",
    )
    .await;
    check(
        &|dir| fs::write(dir.join("blobs/sha256/x"), "").expect("writes"),
        Kind::Invalid,
        "hexadecimal",
    )
    .await;

    let machine = Machine::new();
    let garbage = std::io::Cursor::new(vec![7; 2000]);
    machine.images.import(garbage, ImportOptions::default()).await.expect_err("is no tar");
}
