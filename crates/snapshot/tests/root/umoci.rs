//! Our trees beside those of `umoci unpack`, which knows nothing of us.

use std::{fs, path::Path, process::Command};

use snapshot::{Key, PrepareOptions, Snapshotter};

use crate::{
    block_on,
    image::{Image, Rig},
    tarball::{Item, block_device, char_device, dir, fifo, file, hardlink, symlink, tarball},
    tree::{self, Tree},
};

fn has_umoci(test: &str) -> bool {
    let found = Command::new("umoci").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        testkit::skip(test, "umoci is not installed");
    }
    found
}

/// `None` in a run of usual length.
fn rounds() -> Option<u64> {
    std::env::var("LONGSHORE_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok())
}

fn theirs(image: &Image, dir: &Path) -> Tree {
    let (layout, rootfs) = (dir.join("layout"), dir.join("rootfs"));
    image.write_layout(&layout);
    let name = format!("{}:test", layout.display());
    let output = Command::new("umoci")
        .args(["raw", "unpack", "--image", &name])
        .arg(&rootfs)
        .output()
        .unwrap();
    assert!(output.status.success(), "umoci: {}", String::from_utf8_lossy(&output.stderr));
    tree::read(&rootfs)
}

fn ours(image: &Image, at: &Path, snapshotter: Snapshotter) -> Tree {
    block_on(async {
        let rig = Rig::open(at, snapshotter).await;
        image.unpack(&rig.snapshots).await;
        let key: Key = "c".parse().unwrap();
        let options = PrepareOptions { read_only_view: true, ..PrepareOptions::default() };
        rig.snapshots.prepare(&key, image.top().as_ref(), options).await.unwrap();
        let target = at.join("at");
        fs::create_dir(&target).unwrap();
        rig.snapshots.mount(&key, &target).await.unwrap();
        let tree = tree::read(&target);
        rig.snapshots.remove(&key).await.unwrap();
        rig.close().await;
        tree
    })
}

/// Directories get the time of the unpacking there when a layer puts something into them
/// without describing them, where ours keep that of the layer below. Our own tests say
/// which time that is; nothing in the images is of today.
fn without_times_of_today(tree: &mut Tree, ours: &Tree) {
    const TODAY: i64 = 1_750_000_000;
    for (name, node) in tree {
        if let Some(own) = ours.get(name).filter(|own| own.kind == 'd' && own.mtime.0 < TODAY)
            && node.mtime.0 >= TODAY
        {
            node.mtime = own.mtime;
        }
    }
}

fn compare(name: &str, image: &Image, dir: &Path) -> Vec<String> {
    let at = dir.join(name.replace([' ', ','], "-"));
    fs::create_dir_all(&at).unwrap();
    let mut theirs = theirs(image, &at);
    let mut all = Vec::new();
    for snapshotter in Snapshotter::ALL {
        let own = at.join(snapshotter.name());
        fs::create_dir(&own).unwrap();
        let ours = ours(image, &own, snapshotter);
        without_times_of_today(&mut theirs, &ours);
        let differences = tree::differences(&ours, &theirs);
        all.extend(differences.into_iter().map(|line| format!("{name}, {snapshotter}: {line}")));
    }
    fs::remove_dir_all(&at).unwrap();
    all
}

fn image<const N: usize>(layers: [Vec<Item>; N]) -> Image {
    Image::new(layers.map(tarball))
}

fn base() -> Vec<Item> {
    vec![
        dir("/").mode(0o755),
        dir("etc").mode(0o755),
        file("etc/passwd", "root:x:0:0").mode(0o644),
        file("etc/shadow", "root:!").mode(0o640).owner(0, 42),
        dir("tmp").mode(0o1777),
        dir("usr"),
        dir("usr/bin"),
        file("usr/bin/sudo", "#!").mode(0o4755),
        symlink("bin", "usr/bin"),
        dir("var/lib"),
        file("var/lib/a", "a"),
        file("var/lib/b", "b"),
    ]
}

type Named = (&'static str, Image);

/// Layers that add and replace.
fn additions() -> Vec<Named> {
    vec![
        ("one layer", image([base()])),
        ("an empty layer", image([base(), vec![]])),
        (
            "file replaced",
            image([base(), vec![file("etc/passwd", "other").mode(0o600).owner(1, 2)]]),
        ),
        (
            "no parent entries",
            image([base(), vec![file("tmp/x", "x"), file("etc/deep/er/y", "y")]]),
        ),
        ("no parent entries at all", image([vec![file("a/b/c/d", "x")]])),
        ("through a link below", image([base(), vec![file("bin/tool", "x").mode(0o755)]])),
        ("directory described again", image([base(), vec![dir("tmp").mode(0o700).owner(5, 5)]])),
    ]
}

/// Layers that take away.
fn deletions() -> Vec<Named> {
    vec![
        ("whiteout of a file", image([base(), vec![file("etc/.wh.shadow", "")]])),
        ("whiteout of a directory", image([base(), vec![file("var/.wh.lib", "")]])),
        ("whiteout of a link", image([base(), vec![file(".wh.bin", "")]])),
        (
            "whiteout over a hard link",
            image([
                vec![file("a", "x"), hardlink("b", "a"), hardlink("c", "a")],
                vec![file(".wh.a", "")],
            ]),
        ),
        (
            "whiteout, then again",
            image([
                base(),
                vec![file(".wh.var", "")],
                vec![dir("var").mode(0o700), file("var/new", "x")],
            ]),
        ),
        (
            "opaque",
            image([
                base(),
                vec![dir("var/lib"), file("var/lib/.wh..wh..opq", ""), file("var/lib/new", "x")],
            ]),
        ),
        ("opaque without its directory", image([base(), vec![file("var/lib/.wh..wh..opq", "")]])),
    ]
}

/// Names that change what they are, and files of several names.
fn changes() -> Vec<Named> {
    vec![
        (
            "file becomes a directory",
            image([base(), vec![dir("etc/passwd"), file("etc/passwd/x", "x")]]),
        ),
        ("directory becomes a file", image([base(), vec![file("var", "now a file")]])),
        (
            "directory, file, directory",
            image([base(), vec![file("var", "a file")], vec![dir("var"), file("var/new", "x")]]),
        ),
        ("link becomes a directory", image([base(), vec![dir("bin"), file("bin/x", "x")]])),
        (
            "hard links",
            image([vec![
                file("a", "x").mode(0o4711).owner(7, 8),
                hardlink("d/b", "a").mode(0o4711).owner(7, 8),
                symlink("l", "a"),
            ]]),
        ),
        ("hard link to a layer below", image([base(), vec![hardlink("copy", "etc/passwd")]])),
        (
            "one more name for a file below",
            image([
                vec![file("a", "x"), hardlink("b", "a"), hardlink("d/c", "a"), hardlink("e", "a")],
                vec![file("e", "another"), file(".wh.b", "")],
                vec![hardlink("f", "d/c")],
            ]),
        ),
    ]
}

/// All that a file can be.
fn kinds() -> Vec<Named> {
    let capability = [1u8, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        (
            "devices and pipes",
            image([vec![
                char_device("null", 1, 3).mode(0o666),
                block_device("disk", 8, 1).owner(0, 6),
                fifo("pipe").mode(0o644),
            ]]),
        ),
        (
            "capabilities and attributes",
            image([vec![
                file("ping", "x").mode(0o755).xattr("security.capability", capability),
                file("note", "x").xattr("user.k", "v").xattr("user.binary", [0, 1, 10, 255]),
                dir("d").xattr("user.k", "dir"),
            ]]),
        ),
        (
            "times",
            image([vec![
                file("ns", "x").pax("mtime", "1500000000.123456789"),
                file("old", "x").mtime(1),
                symlink("l", "x").pax("mtime", "1400000000.5"),
                dir("d").mtime(1_234_567_890),
                file("d/f", "x"),
            ]]),
        ),
        (
            "long and odd names",
            image([vec![
                file(format!("{}/{}", "d".repeat(200), "f".repeat(250)), "x"),
                file("with\nnewline and \"quotes\"", "x"),
                file("\u{e4}\u{2603}", "x"),
                symlink("long", "t".repeat(300)),
            ]]),
        ),
        (
            "same name twice",
            image([vec![file("a", "1"), file("a", "2"), dir("d"), dir("d").mode(0o700)]]),
        ),
        (
            "many layers",
            Image::new((0..20).map(|n| {
                tarball([
                    file(format!("d/f{n}"), "x"),
                    file("last", n.to_string()),
                    file(format!("d/.wh.f{}", n - 1), ""),
                ])
            })),
        ),
    ]
}

pub(crate) fn trees_are_equal(dir: &Path) {
    if !has_umoci("umoci::trees_are_equal") {
        return;
    }
    let images = [additions(), deletions(), changes(), kinds()].concat();
    assert!(images.len() >= 20);
    let differences: Vec<_> =
        images.iter().flat_map(|(name, image)| compare(name, image, dir)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// A whole distribution, with a layer of changes on top.
pub(crate) fn debian_is_equal(at: &Path) {
    if rounds().is_none() {
        return testkit::skip("umoci::debian_is_equal", "only in the long run");
    }
    if !has_umoci("umoci::debian_is_equal") {
        return;
    }
    let root = at.join("debian");
    let made =
        Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&root).output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        return testkit::skip("umoci::debian_is_equal", "debootstrap is missing or failed");
    }
    let packed = Command::new("tar")
        .args(["--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-c", "-C"])
        .arg(&root)
        .arg(".")
        .output()
        .unwrap();
    assert!(packed.status.success());
    let changes = tarball([
        file("etc/.wh.debian_version", ""),
        file("usr/share/doc/.wh..wh..opq", ""),
        file("bin/new-tool", "#!/bin/sh").mode(0o755),
        file("tmp/left", "x"),
        hardlink("usr/local/bin/perl", "usr/bin/perl"),
        dir("var/cache").mode(0o700).owner(1, 1),
    ]);
    let differences = compare("debian", &Image::new([packed.stdout, changes]), at);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Layers of random changes to a random tree, as a builder would write them.
pub(crate) fn random_images_are_equal(dir: &Path) {
    if !has_umoci("umoci::random_images_are_equal") {
        return;
    }
    for seed in 0..rounds().unwrap_or(25) {
        let image = random_image(seed);
        let differences = compare(&format!("seed {seed}"), &image, dir);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

/// Small numbers from one large one.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What a tree holds by name: true for a directory.
type Names = std::collections::BTreeMap<String, bool>;

fn random_image(seed: u64) -> Image {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let mut names = Names::new();
    let layers = 1 + dice.roll(5);
    Image::new((0..layers).map(|_| tarball(random_layer(&mut dice, &mut names))))
}

fn random_layer(dice: &mut Dice, names: &mut Names) -> Vec<Item> {
    let mut items = Vec::new();
    let mut touched: Vec<String> = Vec::new();
    let below: Vec<String> = names.keys().cloned().collect();
    for _ in 0..1 + dice.roll(12) {
        let dirs: Vec<_> = names.iter().filter(|(_, dir)| **dir).map(|(n, _)| n.clone()).collect();
        let at = match dirs.is_empty() || dice.roll(3) == 0 {
            true => String::new(),
            false => format!("{}/", dirs[usize::try_from(dice.roll(dirs.len() as u64)).unwrap()]),
        };
        let name =
            format!("{at}{}", ["a", "b", "c", "d", "e"][usize::try_from(dice.roll(5)).unwrap()]);
        // A builder writes each name once in a layer, and nothing below what it deletes.
        let related = |other: &String| {
            *other == name
                || other.starts_with(&format!("{name}/"))
                || name.starts_with(&format!("{other}/"))
        };
        let is_dir = names.get(&name).copied();
        let mode = [0o600, 0o644, 0o755, 0o4711, 0o1777][usize::try_from(dice.roll(5)).unwrap()];
        let owner = (dice.roll(3), dice.roll(3));
        let dressed = |item: Item| item.mode(mode).owner(owner.0, owner.1);
        match dice.roll(6) {
            0 if below.contains(&name) && !touched.iter().any(related) => {
                let (dir, last) = name.rsplit_once('/').map_or(("", &name[..]), |(d, l)| (d, l));
                items.push(file(format!("{dir}/.wh.{last}").trim_start_matches('/'), ""));
                names.retain(|other, _| *other != name && !other.starts_with(&format!("{name}/")));
                touched.push(name);
            }
            1 | 2 if is_dir != Some(false) && !touched.contains(&name) => {
                items.push(dressed(dir(&name)));
                names.insert(name.clone(), true);
                touched.push(name);
            }
            _ if is_dir != Some(true) && !touched.contains(&name) => {
                let item = match dice.roll(4) {
                    0 => symlink(&name, "/nowhere/at all"),
                    _ => {
                        dressed(file(&name, vec![b'x'; usize::try_from(dice.roll(9000)).unwrap()]))
                    }
                };
                items.push(item);
                names.insert(name.clone(), false);
                touched.push(name);
            }
            _ => {}
        }
    }
    items
}
