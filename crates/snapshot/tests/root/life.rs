//! From layers to a root file system, and back to nothing.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base::Kind;
use snapshot::{
    ApplyOptions, Key, LayerRecord, PrepareOptions, SnapshotError, Snapshots, SnapshotsConfig,
    Snapshotter, apply_layer,
};
use sys::idmap::{IdMaps, IdRange};

use crate::{
    block_on,
    image::{Image, Rig},
    tarball::{Item, dir, file, hardlink, symlink, tarball},
};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn point(dir: &Path, name: &str) -> PathBuf {
    let point = dir.join(name);
    fs::create_dir(&point).unwrap();
    point
}

fn small_image() -> Image {
    Image::new([
        tarball([
            dir("/").mode(0o755),
            dir("etc").mode(0o711).owner(3, 3),
            file("etc/motd", "below"),
            file("etc/gone", "x"),
            dir("tmp").mode(0o1777),
            symlink("bin", "usr/bin"),
            dir("usr/bin"),
        ]),
        tarball([
            file("etc/motd", "above"),
            file("etc/.wh.gone", ""),
            file("bin/sh", "#!").mode(0o4755).owner(0, 5),
            hardlink("bin/bash", "bin/sh"),
        ]),
    ])
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..500 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: not within ten seconds");
}

#[track_caller]
fn check_tree(root: &Path) {
    assert_eq!(fs::read_to_string(root.join("etc/motd")).unwrap(), "above");
    assert_eq!(names(&root.join("etc")), ["motd"]);
    assert_eq!(names(root), ["bin", "etc", "tmp", "usr"]);
    let meta = |name: &str| fs::metadata(root.join(name)).unwrap();
    assert_eq!((meta("etc").permissions().mode() & 0o7777, meta("etc").uid()), (0o711, 3));
    assert_eq!(meta("tmp").permissions().mode() & 0o7777, 0o1777);
    assert_eq!(meta("bin/sh").permissions().mode() & 0o7777, 0o4755);
    assert_eq!(meta("usr/bin/bash").ino(), meta("bin/sh").ino());
}

fn live(at: &Path, snapshotter: Snapshotter) {
    block_on(async {
        let rig = Rig::open(at, snapshotter).await;
        let image = small_image();
        image.unpack(&rig.snapshots).await;
        assert!(image.chain_ids().iter().all(|id| rig.snapshots.has(id)));
        let (one, two) = (key("one"), key("two"));
        let top = image.top();
        let options = PrepareOptions { volatile: true, ..PrepareOptions::default() };
        rig.snapshots.prepare(&one, top.as_ref(), options.clone()).await.unwrap();
        rig.snapshots.prepare(&two, top.as_ref(), options.clone()).await.unwrap();
        let again = rig.snapshots.prepare(&one, top.as_ref(), options).await.unwrap_err();
        assert_eq!(again.kind(), Kind::AlreadyExists);

        let (first, second) = (point(at, "first"), point(at, "second"));
        rig.snapshots.mount(&one, &first).await.unwrap();
        rig.snapshots.mount(&one, &first).await.unwrap();
        let elsewhere = rig.snapshots.mount(&one, &second).await.unwrap_err();
        assert!(matches!(elsewhere, SnapshotError::AlreadyMounted { .. }), "{elsewhere}");
        rig.snapshots.mount(&two, &second).await.unwrap();
        check_tree(&first);
        fs::write(first.join("etc/motd"), "mine").unwrap();
        fs::remove_dir_all(first.join("usr")).unwrap();
        check_tree(&second);

        let layers = rig.snapshots.fs_info();
        assert_eq!(layers.mountpoint, at.join("snapshots").join(snapshotter.name()));
        assert!(layers.usage.inodes > 10, "{layers:?}");
        assert_eq!(rig.snapshots.list().len(), 2);
        assert!(rig.snapshots.unmount(&one).await.unwrap());
        assert!(!rig.snapshots.unmount(&one).await.unwrap());
        // The second is still mounted.
        assert!(rig.snapshots.remove(&one).await.unwrap());
        assert!(rig.snapshots.remove(&two).await.unwrap());
        assert!(!rig.snapshots.remove(&two).await.unwrap());
        assert_eq!(names(&second), [""; 0]);
        assert_eq!(rig.snapshots.get(&one), None);
        let root = layers.mountpoint;
        assert_eq!(names(&root.join("snapshots")), [""; 0]);
        until("the trash is emptied", || names(&root.join("trash")).is_empty()).await;
        let gone = rig.snapshots.gc(BTreeSet::new()).await.unwrap();
        assert_eq!(gone.layers.len(), 2);
        until("the trash is emptied", || names(&root.join("trash")).is_empty()).await;
        assert_eq!(names(&root.join("layers")), [""; 0]);
        rig.close().await;
    });
}

pub(crate) fn a_container_lives_on_an_overlay(dir: &Path) {
    live(dir, Snapshotter::Overlayfs);
}

pub(crate) fn a_container_lives_on_a_copy(dir: &Path) {
    live(dir, Snapshotter::Native);
}

pub(crate) fn views_cannot_be_written(dir: &Path) {
    block_on(async {
        for snapshotter in Snapshotter::ALL {
            let at = point(dir, snapshotter.name());
            let rig = Rig::open(&at, snapshotter).await;
            let image = small_image();
            image.unpack(&rig.snapshots).await;
            for (n, chain_id) in image.chain_ids().iter().enumerate() {
                let view = key(&format!("view-{n}"));
                let options = PrepareOptions {
                    read_only_view: true,
                    volatile: true,
                    ..PrepareOptions::default()
                };
                rig.snapshots.prepare(&view, Some(chain_id), options).await.unwrap();
                let target = point(&at, &format!("at-{n}"));
                // Views are not spent.
                for _ in 0..2 {
                    rig.snapshots.mount(&view, &target).await.unwrap();
                    let error = fs::write(target.join("etc/motd"), "x").unwrap_err();
                    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
                    let text = fs::read_to_string(target.join("etc/motd")).unwrap();
                    assert_eq!(text, ["below", "above"][n]);
                    assert!(rig.snapshots.unmount(&view).await.unwrap());
                }
                assert!(rig.snapshots.remove(&view).await.unwrap());
            }
            rig.close().await;
        }
    });
}

pub(crate) fn images_without_layers(dir: &Path) {
    block_on(async {
        for snapshotter in Snapshotter::ALL {
            let at = point(dir, snapshotter.name());
            let rig = Rig::open(&at, snapshotter).await;
            let target = point(&at, "at");
            rig.snapshots.prepare(&key("c"), None, PrepareOptions::default()).await.unwrap();
            rig.snapshots.mount(&key("c"), &target).await.unwrap();
            fs::write(target.join("new"), "x").unwrap();
            assert_eq!(names(&target), ["new"]);
            assert!(rig.snapshots.remove(&key("c")).await.unwrap());
            rig.close().await;
        }
    });
}

/// More than the page of options that the old call takes.
pub(crate) fn many_layers(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let image = Image::new((0..150).map(|n| {
            tarball([file(format!("d/f{n:03}"), n.to_string()), file("last", n.to_string())])
        }));
        image.unpack(&rig.snapshots).await;
        let target = point(dir, "at");
        rig.snapshots
            .prepare(&key("c"), image.top().as_ref(), PrepareOptions::default())
            .await
            .unwrap();
        rig.snapshots.mount(&key("c"), &target).await.unwrap();
        assert_eq!(names(&target.join("d")).len(), 150);
        assert_eq!(fs::read_to_string(target.join("last")).unwrap(), "149");
        assert!(rig.snapshots.remove(&key("c")).await.unwrap());
        rig.close().await;
    });
}

pub(crate) fn volatile_ones_are_mounted_once(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let (c, target) = (key("c"), point(dir, "at"));
        let options = PrepareOptions { volatile: true, ..PrepareOptions::default() };
        rig.snapshots.prepare(&c, None, options).await.unwrap();
        // A mount that fails does not count.
        rig.snapshots.mount(&c, &dir.join("missing")).await.unwrap_err();
        rig.snapshots.mount(&c, &target).await.unwrap();
        let table = sys::mount::Table::own().unwrap();
        let entry = table.entries.iter().rfind(|entry| entry.point == target).unwrap();
        assert!(entry.super_options.contains("volatile"), "{entry:?}");
        rig.snapshots.unmount(&c).await.unwrap();
        let error = rig.snapshots.mount(&c, &target).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Spent(_)), "{error}");
        assert!(rig.snapshots.remove(&c).await.unwrap());
        rig.close().await;
    });
}

pub(crate) fn others_are_mounted_again(dir: &Path) {
    block_on(async {
        let (c, target) = (key("c"), point(dir, "at"));
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let image = small_image();
        image.unpack(&rig.snapshots).await;
        rig.snapshots.prepare(&c, image.top().as_ref(), PrepareOptions::default()).await.unwrap();
        rig.snapshots.mount(&c, &target).await.unwrap();
        fs::write(target.join("kept"), "x").unwrap();
        rig.snapshots.unmount(&c).await.unwrap();
        rig.close().await;
        // In another life of the daemon, too.
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        rig.snapshots.mount(&c, &target).await.unwrap();
        assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "x");
        rig.close().await;
        // It stays mounted while nobody is there, and the next one knows.
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        rig.snapshots.mount(&c, &target).await.unwrap();
        assert!(rig.snapshots.remove(&c).await.unwrap());
        assert_eq!(names(&target), [""; 0]);
        rig.close().await;
    });
}

fn maps() -> IdMaps {
    IdMaps::same(vec![IdRange { inside: 0, outside: 100_000, count: 65_536 }]).unwrap()
}

fn mapped(at: &Path, snapshotter: Snapshotter) {
    block_on(async {
        let rig = Rig::open(at, snapshotter).await;
        let image = small_image();
        image.unpack(&rig.snapshots).await;
        let (c, plain) = (key("c"), key("plain"));
        let options = PrepareOptions { idmap: Some(maps()), ..PrepareOptions::default() };
        rig.snapshots.prepare(&c, image.top().as_ref(), options.clone()).await.unwrap();
        let target = point(at, "mapped");
        rig.snapshots.mount(&c, &target).await.unwrap();
        check_mapped(&target, 100_000);
        // Changed through the mount: copied up with the ids it shows.
        fs::write(target.join("etc/motd"), "mine").unwrap();
        assert_eq!(fs::metadata(target.join("etc/motd")).unwrap().uid(), 100_000);
        // One layer alone is a bind mount.
        let lowest = image.chain_ids().remove(0);
        let view = PrepareOptions { read_only_view: true, ..options };
        rig.snapshots.prepare(&key("view"), Some(&lowest), view).await.unwrap();
        let seen = point(at, "view");
        rig.snapshots.mount(&key("view"), &seen).await.unwrap();
        assert_eq!(fs::metadata(seen.join("etc")).unwrap().uid(), 100_003);
        assert!(rig.snapshots.remove(&key("view")).await.unwrap());
        // Others see the layers as they are.
        let options = PrepareOptions::default();
        rig.snapshots.prepare(&plain, image.top().as_ref(), options).await.unwrap();
        let other = point(at, "plain");
        rig.snapshots.mount(&plain, &other).await.unwrap();
        check_mapped(&other, 0);
        let root = rig.snapshots.fs_info().mountpoint;
        assert_eq!(names(&root.join("mapped")), [""; 0]);
        assert!(rig.snapshots.remove(&c).await.unwrap());
        assert!(rig.snapshots.remove(&plain).await.unwrap());
        rig.close().await;
    });
}

#[track_caller]
fn check_mapped(root: &Path, shift: u32) {
    let owner = |name: &str| {
        let meta = fs::symlink_metadata(root.join(name)).unwrap();
        (meta.uid() - shift, meta.gid() - shift)
    };
    assert_eq!(owner(""), (0, 0));
    assert_eq!(owner("etc"), (3, 3));
    assert_eq!(owner("etc/motd"), (0, 0));
    assert_eq!(owner("bin"), (0, 0));
    assert_eq!(owner("usr/bin/sh"), (0, 5));
    let mode = fs::metadata(root.join("usr/bin/sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o4755);
}

pub(crate) fn ids_are_mapped_on_an_overlay(dir: &Path) {
    mapped(dir, Snapshotter::Overlayfs);
}

pub(crate) fn ids_are_shifted_in_a_copy(dir: &Path) {
    mapped(dir, Snapshotter::Native);
}

pub(crate) fn the_first_commit_wins(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let archive = tarball([file("f", "x")]);
        let image = Image::new([archive.clone()]);
        let id = image.top().unwrap();
        let mut commits = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let staging = rig.snapshots.stage(&id, None).unwrap();
            let applied =
                apply_layer(&archive[..], staging.dir(), &ApplyOptions::default()).unwrap();
            let snapshots = rig.snapshots.clone();
            commits.spawn(async move { snapshots.commit(staging, applied).await.unwrap() });
        }
        let all = commits.join_all().await;
        assert!(all.iter().all(|record| Arc::ptr_eq(record, &all[0])));
        let root = rig.snapshots.fs_info().mountpoint;
        assert_eq!(names(&root.join("layers")), [id.hex()]);
        assert_eq!(names(&root.join("staging")), [""; 0]);
        assert_eq!(names(&root.join("layers").join(id.hex())), ["f"]);
        rig.close().await;
    });
}

pub(crate) fn a_layer_needs_its_parent_to_commit(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Native).await;
        let image = small_image();
        let chain = image.chain_ids();
        let apply = |n: usize, parent| {
            let staging = rig.snapshots.stage(&chain[n], parent).unwrap();
            let applied =
                apply_layer(&image.layers[n][..], staging.dir(), &ApplyOptions::default());
            (staging, applied.unwrap())
        };
        let (staging, applied) = apply(1, Some(&chain[0]));
        let error = rig.snapshots.commit(staging, applied).await.unwrap_err();
        assert!(matches!(error, SnapshotError::NoLayer(_)), "{error}");
        let (staging, applied) = apply(1, None);
        let error = rig.snapshots.commit(staging, applied).await.unwrap_err();
        assert!(matches!(error, SnapshotError::WrongChain { .. }), "{error}");
        let root = rig.snapshots.fs_info().mountpoint;
        assert_eq!(names(&root.join("staging")), [""; 0]);
        assert_eq!(names(&root.join("layers")), [""; 0]);
        let c = key("c");
        let missing = rig.snapshots.prepare(&c, Some(&chain[0]), PrepareOptions::default());
        assert_eq!(missing.await.unwrap_err().kind(), Kind::NotFound);
        rig.close().await;
    });
}

pub(crate) fn what_is_not_needed_is_collected(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let base = tarball([file("base", "x")]);
        let image = |name: &str| Image::new([base.clone(), tarball([file(name, "x")])]);
        let (kept, held, used, loose) = (image("a"), image("b"), image("c"), image("d"));
        for image in [&kept, &held, &used, &loose] {
            image.unpack(&rig.snapshots).await;
        }
        assert_eq!(rig.snapshots.layers().len(), 5);
        let hold = rig.snapshots.hold(&held.chain_ids()[1..]).await;
        let options = PrepareOptions::default();
        rig.snapshots.prepare(&key("c"), used.top().as_ref(), options).await.unwrap();
        let keep: BTreeSet<_> = kept.top().into_iter().collect();
        let gone = rig.snapshots.gc(keep.clone()).await.unwrap();
        assert_eq!(gone.layers, [loose.top().unwrap()]);
        assert!(gone.usage.inodes >= 2);
        drop(hold);
        let gone = rig.snapshots.gc(keep).await.unwrap();
        assert_eq!(gone.layers, [held.top().unwrap()]);
        let gone = rig.snapshots.gc(BTreeSet::new()).await.unwrap();
        assert_eq!(gone.layers, [kept.top().unwrap()]);
        assert_eq!(rig.snapshots.layers().len(), 2);
        rig.snapshots.remove(&key("c")).await.unwrap();
        assert_eq!(rig.snapshots.gc(BTreeSet::new()).await.unwrap().layers.len(), 2);
        rig.close().await;
    });
}

pub(crate) fn layers_in_use_stay(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let image = small_image();
        image.unpack(&rig.snapshots).await;
        let chain = image.chain_ids();
        let refused = |error: SnapshotError, text: &str| {
            assert_eq!(error.kind(), Kind::FailedPrecondition);
            assert!(error.to_string().contains(text), "{error}");
        };
        refused(rig.snapshots.remove_layer(&chain[0]).await.unwrap_err(), "used by layer sha256:");
        let options = PrepareOptions::default();
        rig.snapshots.prepare(&key("c"), Some(&chain[1]), options).await.unwrap();
        refused(rig.snapshots.remove_layer(&chain[1]).await.unwrap_err(), "used by snapshot c");
        rig.snapshots.remove(&key("c")).await.unwrap();
        let hold = rig.snapshots.hold(&chain).await;
        refused(rig.snapshots.remove_layer(&chain[1]).await.unwrap_err(), "used by a pull");
        drop(hold);
        assert!(rig.snapshots.remove_layer(&chain[1]).await.unwrap());
        assert!(!rig.snapshots.remove_layer(&chain[1]).await.unwrap());
        assert!(rig.snapshots.remove_layer(&chain[0]).await.unwrap());
        rig.close().await;
    });
}

pub(crate) fn removal_does_not_wait_for_the_disk(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let (c, target) = (key("c"), point(dir, "at"));
        rig.snapshots.prepare(&c, None, PrepareOptions::default()).await.unwrap();
        rig.snapshots.mount(&c, &target).await.unwrap();
        for n in 0..30_000 {
            if n % 1000 == 0 {
                fs::create_dir(target.join((n / 1000).to_string())).unwrap();
            }
            fs::write(target.join(format!("{}/{n}", n / 1000)), "").unwrap();
        }
        let trash = rig.snapshots.fs_info().mountpoint.join("trash");
        // The kernel forgets what it knew of the tree; that is not ours to hasten.
        rig.snapshots.unmount(&c).await.unwrap();
        let began = tokio::time::Instant::now();
        rig.snapshots.remove(&c).await.unwrap();
        let took = began.elapsed();
        let left = !names(&trash).is_empty();
        until("the trash is emptied", || names(&trash).is_empty()).await;
        let all = began.elapsed();
        assert!(left && took < all / 4, "removed after {took:?}, deleted after {all:?}");
        rig.close().await;
    });
}

pub(crate) fn usage_is_sampled(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let (c, target) = (key("c"), point(dir, "at"));
        rig.snapshots.prepare(&c, None, PrepareOptions::default()).await.unwrap();
        let first = rig.snapshots.usage(&c).unwrap().unwrap();
        assert_eq!(first.usage.inodes, 1);
        rig.snapshots.mount(&c, &target).await.unwrap();
        fs::write(target.join("data"), vec![7; 3 << 20]).unwrap();
        fs::create_dir(target.join("d")).unwrap();
        let now = || rig.snapshots.usage(&c).unwrap().unwrap();
        until("it is counted", || now().usage.bytes >= 3 << 20 && now().usage.inodes == 3).await;
        assert!(now().at > first.at);
        assert!(rig.snapshots.fs_info().usage.bytes >= 3 << 20);
        let missing = rig.snapshots.usage(&key("other")).unwrap_err();
        assert_eq!(missing.kind(), Kind::NotFound);
        rig.snapshots.remove(&c).await.unwrap();
        assert_eq!(rig.snapshots.fs_info().usage.bytes, 0);
        rig.close().await;
    });
}

pub(crate) fn a_start_cleans_up(dir: &Path) {
    block_on(async {
        let image = small_image();
        let top = image.top().unwrap();
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        image.unpack(&rig.snapshots).await;
        for name in ["whole", "broken"] {
            let options = PrepareOptions::default();
            rig.snapshots.prepare(&key(name), Some(&top), options).await.unwrap();
        }
        let root = rig.snapshots.fs_info().mountpoint;
        rig.close().await;

        // What a crash could leave.
        for litter in ["staging/half", "layers/unknown", "snapshots/never-recorded"] {
            fs::create_dir_all(root.join(litter).join("deep/er")).unwrap();
        }
        let mapped = root.join("mapped/left");
        fs::create_dir(&mapped).unwrap();
        sys::mount::bind(&root, sys::mount::Depth::One).unwrap().attach(&mapped).unwrap();
        fs::remove_dir_all(root.join("snapshots/broken")).unwrap();

        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let found = rig.snapshots.recovery();
        assert_eq!(found.orphans, 3);
        assert_eq!(found.lost_layers, []);
        assert_eq!(found.broken_snapshots, [(key("broken"), "its files are gone")]);
        for (at, want) in [("staging", 0), ("layers", 2), ("snapshots", 1), ("mapped", 0)] {
            assert_eq!(names(&root.join(at)).len(), want, "{at}");
        }
        until("the trash is emptied", || names(&root.join("trash")).is_empty()).await;
        let target = point(dir, "at");
        rig.snapshots.mount(&key("whole"), &target).await.unwrap();
        check_tree(&target);
        rig.snapshots.mount(&key("broken"), &target).await.unwrap_err();
        assert!(rig.snapshots.remove(&key("broken")).await.unwrap());
        assert!(rig.snapshots.remove(&key("whole")).await.unwrap());
        rig.close().await;
    });
}

pub(crate) fn layers_of_another_boot_are_lost(dir: &Path) {
    block_on(async {
        let (synced, not) = (small_image(), Image::new([tarball([file("f", "x")])]));
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        synced.unpack(&rig.snapshots).await;
        rig.snapshots.sync().await.unwrap();
        not.unpack(&rig.snapshots).await;
        rig.snapshots
            .prepare(&key("c"), not.top().as_ref(), PrepareOptions::default())
            .await
            .unwrap();
        // As if the machine had gone down here.
        let layers = rig.store.table::<LayerRecord>().unwrap();
        let record = rig.snapshots.layer(&not.top().unwrap()).unwrap();
        let unsynced_boot = Some("another boot".to_owned());
        layers.put(LayerRecord { unsynced_boot, ..(*record).clone() }).await.unwrap();
        rig.close().await;

        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let found = rig.snapshots.recovery().clone();
        let why = "the machine went down before it was synced";
        assert_eq!(found.lost_layers, [(not.top().unwrap(), why)]);
        assert_eq!(found.broken_snapshots, [(key("c"), "its layers are lost")]);
        assert!(!rig.snapshots.has(&not.top().unwrap()));
        assert!(synced.chain_ids().iter().all(|id| rig.snapshots.has(id)));
        let error = rig.snapshots.mount(&key("c"), &point(dir, "at")).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Broken { .. }), "{error}");
        // The next pull brings it back.
        not.unpack(&rig.snapshots).await;
        rig.snapshots.mount(&key("c"), &dir.join("at")).await.unwrap();
        rig.snapshots.remove(&key("c")).await.unwrap();
        rig.close().await;
    });
}

pub(crate) fn one_store_at_a_time(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        let again = SnapshotsConfig::new(dir.join("snapshots"), Snapshotter::Overlayfs);
        let error = Snapshots::open(again, &rig.store).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Locked(_)), "{error}");
        // Another snapshotter beside it is another directory.
        let other = SnapshotsConfig::new(dir.join("snapshots"), Snapshotter::Native);
        let other = Snapshots::open(other, &rig.store).await.unwrap();
        let image = small_image();
        image.unpack(&other).await;
        assert!(!rig.snapshots.has(&image.top().unwrap()));
        assert_eq!(rig.snapshots.gc(BTreeSet::new()).await.unwrap().layers, []);
        assert!(other.has(&image.top().unwrap()));
        let private = fs::metadata(other.fs_info().mountpoint).unwrap().permissions().mode();
        assert_eq!(private & 0o7777, 0o700);
        other.close().await;
        drop(other);
        rig.close().await;
    });
}

/// A dropped future abandons the wait, not the work.
pub(crate) fn callers_may_go_away(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Native).await;
        let many: Vec<Item> = (0..500).map(|n| file(format!("f{n}"), "x")).collect();
        let image = Image::new([tarball(many)]);
        image.unpack(&rig.snapshots).await;
        let c = key("c");
        let top = image.top();
        let prepare = rig.snapshots.prepare(&c, top.as_ref(), PrepareOptions::default());
        let gone = tokio::time::timeout(Duration::from_millis(1), prepare).await;
        assert!(gone.is_err(), "it was too quick to test");
        // A second request meanwhile is told, not queued.
        match rig.snapshots.prepare(&c, top.as_ref(), PrepareOptions::default()).await {
            Err(SnapshotError::Busy(_) | SnapshotError::SnapshotExists(_)) => {}
            other => panic!("{other:?}"),
        }
        until("it is prepared", || rig.snapshots.get(&c).is_some()).await;
        assert!(rig.snapshots.remove(&c).await.unwrap());
        rig.close().await;
    });
}

pub(crate) fn nothing_starts_after_the_end(dir: &Path) {
    block_on(async {
        let rig = Rig::open(dir, Snapshotter::Overlayfs).await;
        rig.snapshots.close().await;
        let error = rig.snapshots.prepare(&key("c"), None, PrepareOptions::default()).await;
        assert!(matches!(error, Err(SnapshotError::Closed)));
        rig.snapshots.close().await;
        rig.close().await;
    });
}
