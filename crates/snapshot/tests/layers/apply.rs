//! What archives say is what is there.

use std::{fs, io::Write, os::unix::fs::MetadataExt, path::Path, process::Command};

use snapshot::{ApplyOptions, Form, LayerDir, Limits, apply_layer, rebase_layer};

use crate::{
    Bench, skipped,
    tarball::{
        Item, THEN, Tarball, block_device, char_device, dir, fifo, file, hardlink, header, of_kind,
        record, sum, symlink, tarball,
    },
    tree::{self, Tree},
};

/// Layers, lowest first; returns the directory of the last one.
#[track_caller]
fn unpack(form: Form, layers: &[Vec<u8>]) -> (Bench, Tree) {
    let mut bench = Bench::new(form);
    for layer in layers {
        bench.add(layer).unwrap();
    }
    let tree = bench.tree();
    (bench, tree)
}

/// `kind mode uid:gid` of each name.
#[track_caller]
fn check(tree: &Tree, want: &[(&str, &str)]) {
    let got: Vec<_> = tree
        .iter()
        .map(|(name, n)| {
            (name.as_str(), format!("{} {:o} {}:{}", n.kind, n.mode, n.owner.0, n.owner.1))
        })
        .collect();
    let want: Vec<_> = want.iter().map(|(name, what)| (*name, (*what).to_owned())).collect();
    assert_eq!(got, want);
}

#[test]
fn every_kind_of_file() {
    if skipped("every_kind_of_file") {
        return;
    }
    let (_bench, tree) = unpack(
        Form::Overlay,
        &[tarball([
            dir("./").mode(0o711).owner(5, 6),
            dir("d").mode(0o1777),
            file("d/f", "hello").mode(0o4755).owner(1000, 100_000).mtime(1),
            symlink("d/l", "../nowhere").owner(7, 8).mtime(2),
            hardlink("h", "./d/f"),
            hardlink("hl", "d/l"),
            char_device("null", 1, 3).mode(0o666),
            block_device("disk", 259, 70_000),
            fifo("pipe").owner(9, 9),
        ])],
    );
    check(
        &tree,
        &[
            ("/", "d 711 5:6"),
            ("/d", "d 1777 0:0"),
            ("/d/f", "f 4755 1000:100000"),
            ("/d/l", "l 0 7:8"),
            ("/disk", "b 660 0:0"),
            ("/h", "f 4755 1000:100000"),
            ("/hl", "l 0 7:8"),
            ("/null", "c 666 0:0"),
            ("/pipe", "p 600 9:9"),
        ],
    );
    assert_eq!(tree["/d/f"].content, b"hello");
    assert_eq!((tree["/d/f"].mtime, tree["/d/l"].mtime), ((1, 0), (2, 0)));
    assert_eq!(tree["/d"].mtime, (THEN, 0));
    assert_eq!(tree["/"].mtime, (THEN, 0));
    assert_eq!(tree["/h"].group.as_deref(), Some("/d/f"));
    assert_eq!(tree["/hl"].group.as_deref(), Some("/d/l"));
    assert_eq!(tree["/null"].device, rustix::fs::makedev(1, 3));
    assert_eq!(tree["/disk"].device, rustix::fs::makedev(259, 70_000));
}

#[test]
fn extended_headers() {
    if skipped("extended_headers") {
        return;
    }
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    // A capability whose bytes hold a newline and zeros.
    let capability = [1, 0, 0, 2, 0x0a, 0x3d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (_bench, tree) = unpack(
        Form::Overlay,
        &[tarball([
            file(&long, "long"),
            symlink("long", &long),
            file("x", "x")
                .owner(3, 3)
                .pax("uid", "3000000000")
                .pax("gid", "4")
                .pax("mtime", "1500000000.123456789")
                .pax("atime", "1500000001.5")
                .xattr("security.capability", capability)
                .xattr("user.note", "a\nb=c"),
            file("old", "x").mtime(-86_400),
            file("older", "x").pax("mtime", "-1.25"),
            file("same", "x").pax("uid", "7").pax("uid", ""),
            dir("labelled")
                .xattr("user.a", "1")
                .xattr("trusted.b", "2")
                .xattr("security.selinux", "system_u:object_r:bin_t:s0"),
            symlink("l", "x").xattr("user.never", "on a link").xattr("trusted.ok", "1"),
            of_kind(b'7', "contiguous"),
            file("\u{e4}\u{2603}", "utf-8"),
            file(b"\xff\xfe", "not utf-8"),
        ])],
    );
    assert_eq!(tree[&format!("/{long}")].content, b"long");
    assert_eq!(tree["/long"].content, long.as_bytes());
    let x = &tree["/x"];
    assert_eq!(x.owner, (3_000_000_000, 4));
    assert_eq!(x.mtime, (1_500_000_000, 123_456_789));
    assert_eq!(x.xattrs["security.capability"], capability);
    assert_eq!(x.xattrs["user.note"], b"a\nb=c");
    assert_eq!(tree["/old"].mtime, (-86_400, 0));
    assert_eq!(tree["/older"].mtime, (-2, 750_000_000));
    assert_eq!(tree["/same"].owner.0, 0);
    let names: Vec<_> = tree["/labelled"].xattrs.keys().collect();
    assert_eq!(names, ["trusted.b", "user.a"]);
    assert_eq!(tree["/l"].xattrs.keys().collect::<Vec<_>>(), ["trusted.ok"]);
    assert_eq!(tree["/contiguous"].kind, 'f');
    assert_eq!(tree["/\\xc3\\xa4\\xe2\\x98\\x83"].content, b"utf-8");
    assert_eq!(tree["/\\xff\\xfe"].content, b"not utf-8");
}

/// Names too long for a header, in GNU's way.
#[test]
fn gnu_long_names() {
    if skipped("gnu_long_names") {
        return;
    }
    let name = "n".repeat(220);
    let target = "t".repeat(300);
    let long = |kind, text: &str| Item {
        data: [text.as_bytes(), b"\0"].concat(),
        ..of_kind(kind, "././@LongLink")
    };
    let archive = Tarball::default()
        .add(&long(b'L', &name))
        .add(&long(b'K', &target))
        .add(&symlink("cut", "cut"))
        .end();
    let (_bench, tree) = unpack(Form::Plain, &[archive]);
    assert_eq!(tree[&format!("/{name}")].content, target.as_bytes());
}

#[test]
fn directories_of_old_archives_end_in_a_slash() {
    if skipped("directories_of_old_archives_end_in_a_slash") {
        return;
    }
    let (_bench, tree) =
        unpack(Form::Plain, &[tarball([of_kind(0, "d/"), of_kind(0, "f"), of_kind(b'0', "g/")])]);
    let kinds: String = tree.values().map(|node| node.kind).collect();
    assert_eq!(kinds, "ddff");
}

fn gnu_sparse(pieces: &[(u64, u64)], size: u64, data: &[u8]) -> Vec<u8> {
    let field = |at: u64, len: u64| format!("{at:011o}\0{len:011o}\0");
    let mut block = header(&of_kind(b'S', "sparse"), data.len() as u64);
    block[257..265].copy_from_slice(b"ustar  \0");
    let (first, more) = pieces.split_at(pieces.len().min(4));
    for (at, &(offset, len)) in first.iter().enumerate() {
        block[386 + 24 * at..][..24].copy_from_slice(field(offset, len).as_bytes());
    }
    block[482] = u8::from(!more.is_empty());
    block[483..495].copy_from_slice(format!("{size:011o}\0").as_bytes());
    sum(&mut block);
    let mut tarball = Tarball::default().raw(&block);
    let chunks: Vec<_> = more.chunks(21).collect();
    for (n, chunk) in chunks.iter().enumerate() {
        let mut block = [0; 512];
        for (at, &(offset, len)) in chunk.iter().enumerate() {
            block[24 * at..][..24].copy_from_slice(field(offset, len).as_bytes());
        }
        block[504] = u8::from(n + 1 < chunks.len());
        tarball = tarball.raw(&block);
    }
    tarball.padded(data).add(&file("after", "after")).end()
}

#[test]
fn holes_in_all_four_ways() {
    if skipped("holes_in_all_four_ways") {
        return;
    }
    let size = 1 << 20;
    let mut want = vec![0; 1 << 20];
    want[4096..4099].copy_from_slice(b"one");
    want[900_000..900_003].copy_from_slice(b"two");
    let data = b"onetwo";
    let sparse = |item: Item, data: &[u8]| Item { data: data.to_vec(), ..item };
    let with_map = b"2\n4096\n3\n900000\n3\n";
    let mut inline = with_map.to_vec();
    inline.resize(512, 0);
    inline.extend_from_slice(data);
    let v00 = ["4096", "3", "900000", "3"].iter().zip(["offset", "numbytes"].iter().cycle()).fold(
        file("sparse", data).pax("GNU.sparse.size", "1048576").pax("GNU.sparse.numblocks", "2"),
        |item, (value, key)| item.pax(format!("GNU.sparse.{key}"), value),
    );
    let v01 = file("GNUSparseFile.0/sparse", data)
        .pax("GNU.sparse.size", "1048576")
        .pax("GNU.sparse.map", "4096,3,900000,3")
        .pax("GNU.sparse.name", "sparse");
    let v10 = sparse(
        file("GNUSparseFile.0/sparse", "")
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.name", "sparse")
            .pax("GNU.sparse.realsize", "1048576"),
        &inline,
    );
    let after = || file("after", "after");
    for archive in [
        gnu_sparse(&[(4096, 3), (900_000, 3), (size, 0)], size, data),
        tarball([v00, after()]),
        tarball([v01, after()]),
        tarball([v10, after()]),
    ] {
        let (bench, tree) = unpack(Form::Plain, &[archive]);
        assert!(tree["/sparse"].content == want);
        assert_eq!(tree["/after"].content, b"after");
        let blocks = fs::metadata(bench.top().join("sparse")).unwrap().blocks();
        assert!(blocks <= 64, "{blocks} blocks");
    }
    // More pieces than the header and one block hold.
    let pieces: Vec<_> = (0..60).map(|n| (n * 10_000, 1)).collect();
    let (_bench, tree) = unpack(Form::Plain, &[gnu_sparse(&pieces, size, &[b'x'; 60])]);
    let content = &tree["/sparse"].content;
    assert_eq!(content.iter().filter(|&&b| b == b'x').count(), 60);
    assert!((0..60).all(|n| content[n * 10_000] == b'x'));
}

/// GNU tar itself writes the archives here, from a tree with holes and long names.
#[test]
fn what_gnu_tar_packs_comes_out_again() {
    if skipped("what_gnu_tar_packs_comes_out_again") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let root = source.path();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/f"), vec![7; 100_000]).unwrap();
    fs::hard_link(root.join("a/b/f"), root.join("a/again")).unwrap();
    std::os::unix::fs::symlink("x".repeat(150), root.join("a/link")).unwrap();
    fs::write(root.join(format!("a/{}", "n".repeat(180))), "long").unwrap();
    let mut holes = fs::File::create(root.join("holes")).unwrap();
    for at in 0..40u64 {
        rustix::fs::seek(&holes, rustix::fs::SeekFrom::Start(at * 200_000)).unwrap();
        holes.write_all(&[b'h'; 5000]).unwrap();
    }
    let want = tree::read(root);
    let formats: &[&[&str]] = &[
        &["--format=gnu", "--sparse"],
        &["--format=pax", "--sparse", "--sparse-version=0.0"],
        &["--format=pax", "--sparse", "--sparse-version=0.1"],
        &["--format=pax", "--sparse", "--sparse-version=1.0"],
        &["--format=pax", "--xattrs", "--acls"],
        &["--format=oldgnu", "-z"],
    ];
    for args in formats {
        let output = Command::new("tar").args(*args).args(["-c", "-C"]).arg(root).arg(".").output();
        let output = output.expect("GNU tar");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let (_bench, mut got) = unpack(Form::Overlay, &[output.stdout]);
        let mut want = want.clone();
        if !args.contains(&"--format=pax") {
            // These formats have whole seconds.
            for node in want.values_mut().chain(got.values_mut()) {
                node.mtime.1 = 0;
            }
        }
        assert_eq!(tree::differences(&got, &want), [""; 0], "{args:?}");
    }
}

#[test]
fn later_entries_win() {
    if skipped("later_entries_win") {
        return;
    }
    let (_bench, tree) = unpack(
        Form::Plain,
        &[tarball([
            file("a", "first"),
            hardlink("b", "a"),
            file("a", "second").mode(0o600),
            dir("c"),
            file("c/inner", "x"),
            file("c", "now a file"),
            file("d", "was a file"),
            dir("d").mode(0o700),
            file("d/inner", "y"),
            symlink("e", "d"),
            dir("e"),
            dir("f").mode(0o700),
            file("f/kept", "z"),
            dir("f").mode(0o755).owner(1, 1),
        ])],
    );
    check(
        &tree,
        &[
            ("/", "d 755 0:0"),
            ("/a", "f 600 0:0"),
            ("/b", "f 644 0:0"),
            ("/c", "f 644 0:0"),
            ("/d", "d 700 0:0"),
            ("/d/inner", "f 644 0:0"),
            ("/e", "d 755 0:0"),
            ("/f", "d 755 1:1"),
            ("/f/kept", "f 644 0:0"),
        ],
    );
    assert_eq!((&tree["/a"].content[..], &tree["/b"].content[..]), (&b"second"[..], &b"first"[..]));
}

#[test]
fn implied_directories_are_those_below() {
    if skipped("implied_directories_are_those_below") {
        return;
    }
    let below = tarball([
        dir("/").mode(0o700).owner(1, 2).mtime(11),
        dir("tmp").mode(0o1777).owner(3, 4).mtime(22).xattr("user.k", "v"),
        dir("tmp/deep").mode(0o750).mtime(33),
    ]);
    let middle = tarball([file("elsewhere/x", "")]);
    let top = tarball([file("tmp/deep/new/x", "x"), file("tmp/y", "y")]);
    for form in [Form::Overlay, Form::Plain] {
        let (_bench, tree) = unpack(form, &[below.clone(), middle.clone(), top.clone()]);
        check(
            &tree,
            &[
                ("/", "d 700 1:2"),
                ("/tmp", "d 1777 3:4"),
                ("/tmp/deep", "d 750 0:0"),
                ("/tmp/deep/new", "d 755 0:0"),
                ("/tmp/deep/new/x", "f 644 0:0"),
                ("/tmp/y", "f 644 0:0"),
            ],
        );
        let times: Vec<_> = ["/", "/tmp", "/tmp/deep", "/tmp/deep/new"]
            .iter()
            .map(|name| tree[*name].mtime.0)
            .collect();
        assert_eq!(times, [11, 22, 33, 0]);
        assert_eq!(tree["/tmp"].xattrs["user.k"], b"v");
    }
}

/// A layer with `bin/x` on one where `bin` is a link to `usr/bin`: not a new `bin`.
#[test]
fn entries_go_through_links_of_layers_below() {
    if skipped("entries_go_through_links_of_layers_below") {
        return;
    }
    let below = tarball([
        dir("usr").mtime(1),
        dir("usr/bin").mode(0o711).mtime(2),
        symlink("bin", "usr/bin"),
        symlink("absolute", "/usr/lib"),
        symlink("twice", "bin/../../absolute"),
    ]);
    let top = tarball([
        file("bin/x", "x"),
        file("bin/.wh.gone", ""),
        file("usr/bin/y", "y"),
        file("twice/sub/z", "z"),
        hardlink("again", "bin/x"),
    ]);
    let (_bench, tree) = unpack(Form::Overlay, &[below, top]);
    check(
        &tree,
        &[
            ("/", "d 755 0:0"),
            ("/again", "f 644 0:0"),
            ("/usr", "d 755 0:0"),
            ("/usr/bin", "d 711 0:0"),
            ("/usr/bin/x", "f 644 0:0"),
            ("/usr/bin/y", "f 644 0:0"),
            ("/usr/lib", "d 755 0:0"),
            ("/usr/lib/sub", "d 755 0:0"),
            ("/usr/lib/sub/z", "f 644 0:0"),
        ],
    );
    assert_eq!(tree["/usr/bin"].mtime.0, 2);
    assert_eq!(tree["/again"].group, tree["/usr/bin/x"].group);
}

#[test]
fn links_of_the_same_layer_are_followed() {
    if skipped("links_of_the_same_layer_are_followed") {
        return;
    }
    let (_bench, tree) = unpack(
        Form::Plain,
        &[tarball([
            dir("real"),
            symlink("link", "/real"),
            symlink("up", "../../../real/./"),
            file("link/a", "a"),
            file("up/b", "b"),
            file("up/sub/c", "c"),
        ])],
    );
    let names: Vec<_> = tree.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["/", "/link", "/real", "/real/a", "/real/b", "/real/sub", "/real/sub/c", "/up"]
    );
}

#[test]
fn hard_links_reach_into_layers_below() {
    if skipped("hard_links_reach_into_layers_below") {
        return;
    }
    let below = tarball([
        dir("etc").mode(0o700),
        file("etc/a", "content").mode(0o640).owner(7, 7).mtime(5).xattr("user.k", "v"),
        symlink("etc/l", "a"),
        symlink("link-to-etc", "etc"),
    ]);
    let top = tarball([
        hardlink("one", "etc/a"),
        hardlink("two", "link-to-etc/a"),
        hardlink("three", "one"),
        hardlink("sym", "etc/l"),
        hardlink("replaced", "etc/a"),
        file("replaced", "by a file"),
    ]);
    for form in [Form::Overlay, Form::Plain] {
        let (_bench, tree) = unpack(form, &[below.clone(), top.clone()]);
        for name in ["/one", "/two", "/three", "/etc/a"] {
            let node = &tree[name];
            assert_eq!(node.group.as_deref(), Some("/etc/a"), "{name}");
            assert_eq!(
                (&node.content[..], node.mode, node.owner),
                (&b"content"[..], 0o640, (7, 7))
            );
            assert_eq!((node.mtime.0, &node.xattrs["user.k"][..]), (5, &b"v"[..]));
        }
        assert_eq!(tree["/sym"].content, b"a");
        assert_eq!(tree["/etc"].mode, 0o700);
        assert_eq!(
            (&tree["/replaced"].content[..], &tree["/replaced"].group),
            (&b"by a file"[..], &None)
        );
    }
}

#[test]
fn deletions_in_overlay_form() {
    if skipped("deletions_in_overlay_form") {
        return;
    }
    let below = tarball([
        dir("d").mode(0o711),
        file("d/f", "x"),
        dir("e"),
        file("e/f", "x"),
        file("gone", "x"),
        file("again", "x"),
        dir("dir-again"),
        file("dir-again/old", "x"),
    ]);
    let top = tarball([
        file(".wh.gone", ""),
        file(".wh.never-was", ""),
        file("d/.wh..wh..opq", ""),
        file("d/new", ""),
        file("e/.wh.f", ""),
        file(".wh.again", ""),
        file("again", "new"),
        file("dir-again/new", ""),
        file(".wh.dir-again", ""),
        file("fresh/.wh..wh..opq", ""),
        file(".wh..wh.plnk", ""),
    ]);
    let (_bench, tree) = unpack(Form::Overlay, &[below.clone(), top.clone()]);
    check(
        &tree,
        &[
            ("/", "d 755 0:0"),
            ("/again", "f 644 0:0"),
            ("/d", "d 711 0:0"),
            ("/d/new", "f 644 0:0"),
            ("/dir-again", "d 755 0:0"),
            ("/dir-again/new", "f 644 0:0"),
            ("/e", "d 755 0:0"),
            ("/e/f", "c 0 0:0"),
            ("/fresh", "d 755 0:0"),
            ("/gone", "c 0 0:0"),
        ],
    );
    assert_eq!(tree["/gone"].device, 0);
    let opaque: Vec<_> = tree
        .iter()
        .filter(|(_, node)| node.xattrs.get("trusted.overlay.opaque").is_some_and(|v| v == b"y"))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(opaque, ["/d", "/dir-again"]);

    let (_bench, tree) = unpack(Form::Plain, &[below, top.clone()]);
    let marks: Vec<_> = tree.keys().filter(|name| name.contains(".wh.")).collect();
    assert_eq!(marks, ["/.wh.gone", "/d/.wh..wh..opq", "/dir-again/.wh..wh..opq", "/e/.wh.f"]);

    // Below there is nothing to delete.
    let (_bench, tree) = unpack(Form::Overlay, &[top]);
    assert!(tree.values().all(|node| node.kind != 'c' && node.xattrs.is_empty()));
}

#[test]
fn usage_is_counted_on_the_way() {
    if skipped("usage_is_counted_on_the_way") {
        return;
    }
    let mut bench = Bench::new(Form::Plain);
    let usage = bench
        .add(&tarball([
            dir("d"),
            file("d/a", vec![1; 5000]),
            file("d/b", ""),
            hardlink("d/c", "d/a"),
            symlink("d/l", "a"),
            file("again", vec![1; 100_000]),
            file("again", vec![1; 10]),
        ]))
        .unwrap();
    // Root, d, a (8192), b, l, again (4096).
    assert_eq!((usage.inodes, usage.bytes), (6, 4096 * 5));
    let du = Command::new("du").args(["-s", "--inodes"]).arg(bench.top()).output().unwrap();
    assert!(String::from_utf8_lossy(&du.stdout).starts_with("6\t"));
}

#[test]
fn the_diff_id_is_verified() {
    if skipped("the_diff_id_is_verified") {
        return;
    }
    let apply = |diff_id: Option<base::Digest>, into: &Path| {
        let options = ApplyOptions { limits: Limits::default(), diff_id };
        apply_layer(&tarball([file("a", "x")])[..], &LayerDir::new(into, Form::Plain), &options)
    };
    let fresh = || tempfile::tempdir().unwrap();
    let right = apply(None, fresh().path()).unwrap().diff_id;
    assert_eq!(apply(Some(right.clone()), fresh().path()).unwrap().diff_id, right);
    let wrong: base::Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let error = apply(Some(wrong.clone()), fresh().path()).unwrap_err().to_string();
    assert_eq!(error, format!("layer has diff id {right}, its image says {wrong}"));
    let long: base::Digest = format!("sha512:{}", "0".repeat(128)).parse().unwrap();
    let error = apply(Some(long), fresh().path()).unwrap_err().to_string();
    assert!(error.starts_with("layer has diff id sha512:"), "{error}");
}

/// Rebasing does not depend on the order in which layers were applied.
#[test]
fn layers_apply_in_any_order() {
    if skipped("layers_apply_in_any_order") {
        return;
    }
    let archives = [
        tarball([dir("tmp").mode(0o1777), symlink("bin", "usr/bin"), file("f", "1")]),
        tarball([file("tmp/a", ""), file("bin/tool", ""), file(".wh.f", "")]),
        tarball([hardlink("tool", "bin/tool"), file("tmp/b", ""), file("f", "3")]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let layers: Vec<_> = (0..3)
        .map(|n| {
            let path = dir.path().join(n.to_string());
            fs::create_dir(&path).unwrap();
            LayerDir::new(path, Form::Overlay)
        })
        .collect();
    let mut applied: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .rev()
            .map(|n| {
                let (archive, layer) = (&archives[n], &layers[n]);
                let run = move || apply_layer(&archive[..], layer, &ApplyOptions::default());
                scope.spawn(run)
            })
            .collect();
        threads.into_iter().rev().map(|thread| Some(thread.join().unwrap().unwrap())).collect()
    });
    for n in 0..3 {
        let below: Vec<_> = layers[..n].iter().rev().cloned().collect();
        rebase_layer(&layers[n], applied[n].take().unwrap(), &below).unwrap();
    }
    let (_bench, want) = unpack(Form::Overlay, &archives);
    assert_eq!(tree::differences(&tree::read(&layers[2].path), &want), [""; 0]);
    assert_eq!(want["/tmp"].mode, 0o1777);
    assert_eq!(want["/tool"].group, want["/usr/bin/tool"].group);
}

/// Unused parts of what is tested elsewhere: an extended header over several records.
#[test]
fn records_of_several_headers_add_up() {
    if skipped("records_of_several_headers_add_up") {
        return;
    }
    let pax = |key: &str, value: &str| Item {
        data: record(key.as_bytes(), value.as_bytes()),
        ..of_kind(b'x', "pax")
    };
    let archive = Tarball::default()
        .add(&pax("uid", "5"))
        .add(&pax("gid", "6"))
        .add(&Item { data: record(b"uid", b"9"), ..of_kind(b'g', "global") })
        .add(&file("a", ""))
        .add(&file("b", ""))
        .end();
    let (_bench, tree) = unpack(Form::Plain, &[archive]);
    assert_eq!((tree["/a"].owner, tree["/b"].owner), ((5, 6), (0, 0)));
}
