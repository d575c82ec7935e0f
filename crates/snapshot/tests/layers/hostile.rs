//! Archives that mean harm. Each ends with an error that says what is wrong, or does what
//! a container could do to itself; nothing beside the layer is ever touched.

use std::{fs, io::Read};

use snapshot::{ApplyError, Form, Limits};

use crate::{
    Bench, skipped,
    tarball::{
        Item, Tarball, block_device, char_device, dir, fifo, file, hardlink, header, of_kind,
        record, sum, symlink, tarball,
    },
    tree,
};

struct Case {
    name: &'static str,
    layers: Vec<Vec<u8>>,
    limits: Limits,
}

fn case(name: &'static str, items: impl IntoIterator<Item = Item>) -> Case {
    raw(name, tarball(items))
}

fn raw(name: &'static str, archive: Vec<u8>) -> Case {
    Case { name, layers: vec![archive], limits: Limits::default() }
}

impl Case {
    /// Another layer on top.
    fn then(mut self, items: impl IntoIterator<Item = Item>) -> Self {
        self.layers.push(tarball(items));
        self
    }

    fn with(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs it in both forms; what is outside must be as it was.
    fn run(&self, judge: impl Fn(&Bench, Result<(), ApplyError>)) {
        for form in [Form::Overlay, Form::Plain] {
            let mut bench = Bench::new(form);
            bench.limits = self.limits;
            let before = tree::read(&bench.outside());
            let result = self.layers.iter().try_for_each(|layer| bench.add(layer).map(drop));
            judge(&bench, result);
            assert_eq!(tree::read(&bench.outside()), before, "{}", self.name);
            let beside = fs::read_dir(bench.dir.path()).unwrap().count();
            assert_eq!(beside, 1 + bench.layers.len(), "{}", self.name);
        }
    }

    /// The error says it.
    #[track_caller]
    fn refused(self, text: &str) {
        self.run(|_, result| {
            let error = match result {
                Ok(()) => panic!("{} was accepted", self.name),
                Err(error) => error,
            };
            let chain = base::Chain(&error).to_string();
            assert!(chain.contains(text), "{}: {chain:?} lacks {text:?}", self.name);
            assert_ne!(error.kind(), base::Kind::Internal, "{}: {chain}", self.name);
        });
    }

    /// The names in the topmost layer.
    #[track_caller]
    fn gives(self, want: &[&str]) {
        self.run(|bench, result| {
            result.unwrap_or_else(|e| panic!("{}: {}", self.name, base::Chain(&e)));
            let tree = bench.tree();
            let names: Vec<_> = tree.keys().map(String::as_str).filter(|n| *n != "/").collect();
            assert_eq!(names, want, "{}", self.name);
        });
    }
}

#[test]
fn names_that_climb() {
    if skipped("names_that_climb") {
        return;
    }
    case("parent", [file("../outside/secret", "x")]).refused("holds `..`");
    case("parent inside", [file("a/../../outside/secret", "x")]).refused("holds `..`");
    case("parent at the end", [dir("a/..")]).refused("holds `..`");
    case("absolute", [file("/etc/passwd", "x")]).gives(&["/etc", "/etc/passwd"]);
    case("many slashes", [file("//////a", "x")]).gives(&["/a"]);
    case("in an extended header", [file("ok", "x").pax("path", "../../outside/secret")])
        .refused("holds `..`");
    case("sparse name", [file("ok", "x").pax("GNU.sparse.name", "../outside/secret")])
        .refused("holds `..`");
    case("link of links", [hardlink("a", "../outside/secret")]).refused("holds `..`");
    case("zero byte", [file("ok", "x").pax("path", "a\0b")]).refused("zero byte");
    case("no name", [file("", "x")]).refused("it has no name");
    case("root as a file", [file("./", "x")]).refused("only a directory can be the root");
    case("root as a link", [symlink("/", "/etc")]).refused("only a directory can be the root");
}

#[test]
fn symlinks_that_lead_out() {
    if skipped("symlinks_that_lead_out") {
        return;
    }
    case("up", [symlink("l", "../outside"), file("l/secret", "x")]).gives(&[
        "/l",
        "/outside",
        "/outside/secret",
    ]);
    case("absolute", [symlink("l", "/outside"), file("l/secret", "x")]).gives(&[
        "/l",
        "/outside",
        "/outside/secret",
    ]);
    case("far up", [symlink("l", "../../../../../../../tmp"), dir("l/evil")]).gives(&[
        "/l",
        "/tmp",
        "/tmp/evil",
    ]);
    case("two steps", [symlink("a", ".."), symlink("b", "a/outside"), file("b/secret", "x")])
        .gives(&["/a", "/b", "/outside", "/outside/secret"]);
    case("proc", [symlink("l", "/proc/self/root"), file("l/x", "x")]).gives(&[
        "/l",
        "/proc",
        "/proc/self",
        "/proc/self/root",
        "/proc/self/root/x",
    ]);
    case("over itself", [symlink("l", "../outside/secret"), file("l", "x")]).gives(&["/l"]);
    case("loop", [symlink("a", "b"), symlink("b", "a"), file("a/x", "x")])
        .refused("too many symlinks");
    case("to itself", [symlink("a", "a"), file("a/x", "x")]).refused("too many symlinks");
    case("directory over a link", [symlink("l", "../outside"), dir("l"), file("l/secret", "x")])
        .gives(&["/l", "/l/secret"]);
    case("to nothing", [symlink("a", "")]).refused("link to nothing");
    case("chmod through a link", [symlink("l", "../outside/secret"), file("l", "").mode(0o777)])
        .gives(&["/l"]);
    case("attributes of a link", [symlink("l", "../outside/secret").xattr("user.x", "1")])
        .gives(&["/l"]);
}

#[test]
fn symlinks_of_layers_below_that_lead_out() {
    if skipped("symlinks_of_layers_below_that_lead_out") {
        return;
    }
    case("up", [symlink("l", "../../outside")])
        .then([file("l/secret", "x")])
        .gives(&["/outside", "/outside/secret"]);
    case("loop", [symlink("a", "b"), symlink("b", "a")])
        .then([file("a/x", "x")])
        .refused("too many symlinks");
    case("to itself", [symlink("a", "a/b")]).then([file("a/x", "x")]).refused("symlinks");
    case("delete through a link", [symlink("l", "../outside")])
        .then([file("l/.wh.secret", "")])
        .gives(&["/outside"]);
    case("over its own way", [dir("a"), symlink("a/l", "/")])
        .then([file("a/l/a", "x")])
        .gives(&["/a"]);
    case("here", [symlink("a", ".")])
        .then([file("a/a/b", "x"), file("a/a/a/.wh.c", "")])
        .gives(&["/b"]);
    case("file in the way", [file("f", "x")]).then([file("f/x", "x")]).refused("not a directory");
    case("hard link through a link", [symlink("l", "../outside")])
        .then([hardlink("mine", "l/secret")])
        .refused("neither this layer nor one below");
}

#[test]
fn hard_links_to_what_is_not_theirs() {
    if skipped("hard_links_to_what_is_not_theirs") {
        return;
    }
    case("outside", [hardlink("a", "/outside/secret")]).refused("neither this layer nor one below");
    case("through a link", [symlink("l", "../outside"), hardlink("a", "l/secret")])
        .refused("neither this layer nor one below");
    case(
        "to a link that leads out",
        [symlink("l", "../outside/secret"), hardlink("a", "l"), file("a", "x")],
    )
    .gives(&["/a", "/l"]);
    case("to a directory", [dir("d"), hardlink("a", "d")]).refused("hard link to a directory");
    case("to the root", [hardlink("a", "/")]).refused("hard link to a directory");
    case("to itself", [file("a", "x"), hardlink("a", "./a")]).refused("link to itself");
    case(
        "to itself through a link",
        [dir("d"), symlink("l", "d"), file("d/a", "x"), hardlink("l/a", "d/a")],
    )
    .refused("link to itself");
    case("to what is not there", [hardlink("a", "b")]).refused("neither this layer nor one below");
    case("to what comes later", [hardlink("a", "b"), file("b", "x")])
        .refused("neither this layer nor one below");
    case("to a directory below", [dir("d")]).then([hardlink("a", "d")]).refused("to a directory");
    case("to what it replaces", [dir("d"), file("d/f", "x"), hardlink("d", "d/f")])
        .refused("neither this layer nor one below");
    case("to a whiteout", [hardlink("a", ".wh.b")]).refused("link to nothing");
}

#[test]
fn devices_and_marks() {
    if skipped("devices_and_marks") {
        return;
    }
    case("whiteout device", [char_device("etc", 0, 0)]).refused("how overlay marks deletions");
    case(
        "device out of range",
        [Item { device: (0, 0), ..char_device("d", 1, 1) }.pax("SCHILY.devmajor", "1")],
    )
    .refused("how overlay marks deletions");
    case("disk", [block_device("sda", 8, 0)]).gives(&["/sda"]);
    case("write into a device", [char_device("full", 1, 7), file("full", "x")]).gives(&["/full"]);
    case("write into a fifo", [fifo("p"), file("p", "x")]).gives(&["/p"]);
    case("redirect", [dir("d").xattr("trusted.overlay.redirect", "/outside")]).gives(&["/d"]);
    case("opaque by attribute", [dir("d"), file("d/f", "x")])
        .then([dir("d").xattr("trusted.overlay.opaque", "y").xattr("user.overlay.opaque", "y")])
        .gives(&["/d"]);
    case("metacopy", [file("f", "x").xattr("trusted.overlay.metacopy", "")]).gives(&["/f"]);
    case("whiteout of nothing", [file(".wh.", "")]).refused("whiteout of nothing");
    case("whiteout of here", [file("a/.wh..", "")]).refused("whiteout of nothing");
    case("whiteout of above", [file("a/.wh...", "")]).refused("whiteout of nothing");
    case("below a whiteout", [file(".wh.a/b", "")]).refused("named like a whiteout");
    case("opaque file", [file("f", "x"), file("f/.wh..wh..opq", "")]).refused("not a directory");
    case("whiteout with content", [file(".wh.a", "boo"), file("b", "x")]).gives(&["/b"]);
    case("case", [file(".WH.a", ""), file("A", "1"), file("a", "2")])
        .gives(&["/.WH.a", "/A", "/a"]);
    case("type", [of_kind(b'Z', "a")]).refused("type 0x5a is unknown");
    case("volume header", [of_kind(b'V', "a")]).refused("unknown");
}

/// The attributes of overlay are not only accepted without an error: they are not there.
#[test]
fn marks_of_overlay_do_not_come_from_archives() {
    if skipped("marks_of_overlay_do_not_come_from_archives") {
        return;
    }
    let mut bench = Bench::new(Form::Overlay);
    let item = dir("d").xattr("trusted.overlay.redirect", "/x").xattr("user.overlay.opaque", "y");
    bench.add(&tarball([item, file("f", "").xattr("trusted.overlay.metacopy", "")])).unwrap();
    assert!(bench.tree().values().all(|node| node.xattrs.is_empty()));
}

#[test]
fn owners_that_are_none() {
    if skipped("owners_that_are_none") {
        return;
    }
    case("minus one", [file("a", "").pax("uid", "4294967295")]).refused("owner or group");
    case("too large", [file("a", "").pax("gid", "4294967296")]).refused("owner or group");
    case("negative", [file("a", "").owner(u64::MAX, 0)]).refused("owner or group");
    case("text", [file("a", "").pax("uid", "root")]).refused("value in an extended header");
}

#[test]
fn archives_that_are_none() {
    if skipped("archives_that_are_none") {
        return;
    }
    let whole = tarball([file("a", vec![b'x'; 2000])]);
    raw("noise", vec![0x5a; 5000]).refused("checksum");
    raw("cut in a header", whole[..300].to_vec()).refused("ends inside a header");
    raw("cut in a file", whole[..1500].to_vec()).refused("ends inside a file");
    raw("cut after a file", whole[..2512].to_vec()).gives(&["/a"]);
    raw("cut within its padding", whole[..2530].to_vec()).gives(&["/a"]);
    raw("empty", Vec::new()).gives(&[]);
    raw("only its end", vec![0; 1024]).gives(&[]);
    raw("without an end", Tarball::default().add(&file("a", "x")).unended()).gives(&["/a"]);
    raw("hidden after an empty block", {
        Tarball::default().raw(&[0; 512]).add(&file("a", "x")).end()
    })
    .refused("empty block");
    raw("behind the end", Tarball::default().raw(&[0; 1024]).add(&file("a", "x")).end()).gives(&[]);
    raw("wrong checksum", {
        let mut block = header(&file("a", ""), 0);
        block[3] ^= 1;
        Tarball::default().raw(&block).end()
    })
    .refused("checksum");
    raw("negative size", {
        let mut block = header(&file("a", ""), 0);
        block[124..136].fill(0xff);
        sum(&mut block);
        Tarball::default().raw(&block).end()
    })
    .refused("number in a header");
    raw("size beyond the end", Tarball::default().add_sized(&file("a", "x"), 1 << 40).end())
        .refused("layer has");
    raw("size of all", Tarball::default().add_sized(&file("a", "x"), (1 << 63) - 1).end())
        .refused("layer has more than");
    raw("broken record", {
        let pax = Item { data: b"99 path=x\n".to_vec(), ..of_kind(b'x', "pax") };
        Tarball::default().add(&pax).add(&file("a", "")).end()
    })
    .refused("extended header is broken");
    raw("size that differs", {
        // The header says nothing of the data, the record does: what looks like an entry
        // to a reader that believes the header is data.
        let hidden = Tarball::default().add(&file("hidden", "x")).unended();
        let size = record(b"size", hidden.len().to_string().as_bytes());
        let pax = Item { data: size, ..of_kind(b'x', "pax") };
        Tarball::default().add(&pax).add_sized(&file("a", ""), 0).padded(&hidden).end()
    })
    .gives(&["/a"]);
}

#[test]
fn holes_that_do_not_fit() {
    if skipped("holes_that_do_not_fit") {
        return;
    }
    let sparse = |map: &str, size: &str, data: &str| {
        file("s", data).pax("GNU.sparse.size", size).pax("GNU.sparse.map", map)
    };
    case("overlap", [sparse("0,2,1,2", "10", "xxxx")]).refused("map of holes");
    case("backwards", [sparse("5,1,0,1", "10", "xx")]).refused("map of holes");
    case("beyond", [sparse("9,2", "10", "xx")]).refused("map of holes");
    case("more than there is", [sparse("0,3", "10", "xx")]).refused("map of holes");
    case("less than there is", [sparse("0,1", "10", "xx")]).refused("map of holes");
    case("overflow", [sparse("18446744073709551615,1", "10", "x")]).refused("map of holes");
    case("odd", [sparse("0,1,2", "10", "x")]).gives(&["/s"]);
    case("text", [sparse("a,b", "10", "x")]).refused("value in an extended header");
    case("endless", [sparse("0,1", "9223372036854775807", "x")]).refused("layer has more than");
    case(
        "no end of map",
        [file("s", vec![b'1'; 2048])
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.realsize", "10")],
    )
    .refused("map of holes");
    case(
        "many pieces",
        [file("s", "99999999\n")
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.realsize", "10")],
    )
    .refused("map of holes");
}

#[test]
fn bombs() {
    if skipped("bombs") {
        return;
    }
    let limits = Limits::default();
    let few = Limits { entries: 100, ..limits };
    case("entries", (0..101).map(|n| file(n.to_string(), ""))).with(few).refused("100 entries");
    raw("only headers", {
        let pax = Item { data: record(b"comment", b"x"), ..of_kind(b'x', "pax") };
        (0..200).fold(Tarball::default(), |tarball, _| tarball.add(&pax)).end()
    })
    .with(few)
    .refused("100 entries");
    case("depth", [dir("d/".repeat(600))]).refused("512 directories on the way");
    case("long name", [file(vec![b'n'; 5000], "")]).refused("4095 bytes in the name");
    case("long component", [file(vec![b'n'; 300], "")]).refused("longer than 255 bytes");
    case("deep by links", {
        let long = "x".repeat(250);
        let links = (0..20).map(move |n| symlink(format!("l{}", n + 1), format!("l{n}/{long}")));
        std::iter::once(symlink("l0", "/")).chain(links).chain([file("l20/f", "")])
    })
    .refused("4095 bytes in the name");
    raw("long header", Tarball::default().add_sized(&of_kind(b'L', "x"), 1 << 30).end())
        .refused("bytes of extended headers");
    raw("long record", Tarball::default().add_sized(&of_kind(b'x', "x"), 1 << 40).end())
        .refused("bytes of extended headers");
    case("bytes", [file("a", vec![0; 3000])])
        .with(Limits { bytes: 2000, ..limits })
        .refused("2000 bytes");
    case(
        "holes count",
        [file("s", "x").pax("GNU.sparse.size", "5000").pax("GNU.sparse.map", "0,1")],
    )
    .with(Limits { bytes: 4500, ..limits })
    .refused("4500 bytes");
    let zeros = tarball([file("zeros", vec![0; 20 << 20])]);
    let tight = Limits { ratio: 50, ratio_free: 1 << 20, ..limits };
    raw("zstd", zstd::encode_all(&zeros[..], 3).unwrap()).with(tight).refused("50 times");
    raw("gzip", {
        let mut packed = Vec::new();
        let level = flate2::Compression::best();
        flate2::read::GzEncoder::new(&zeros[..], level).read_to_end(&mut packed).unwrap();
        packed
    })
    .with(tight)
    .refused("50 times");
    raw("behind the end", {
        let bytes = [Tarball::default().add(&file("a", "x")).end(), vec![0; 20 << 20]].concat();
        zstd::encode_all(&bytes[..], 3).unwrap()
    })
    .with(tight)
    .refused("50 times");
}

/// Many names for one directory, replaced again and again: work that must not grow with
/// the square of the archive.
#[test]
fn replacing_is_not_quadratic() {
    if skipped("replacing_is_not_quadratic") {
        return;
    }
    let dirs = (0..5000).map(|n| file(format!("a{n}/f"), ""));
    let flips = (0..5000).map(|n| if n % 2 == 0 { dir("x") } else { file("x", "") });
    let mut bench = Bench::new(Form::Plain);
    bench.add(&tarball(dirs.chain(flips))).unwrap();
    assert_eq!(bench.tree()["/x"].kind, 'f');
}
