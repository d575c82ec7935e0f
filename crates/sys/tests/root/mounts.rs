use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use sys::{
    beneath::Root,
    host::{FsType, KernelVersion},
    idmap::{self, IdMaps, IdRange},
    mount::{
        self, Attrs, Depth, Overlay, Propagation, Table, Tmpfs, Unmount, Upper, bind,
        is_mount_point, unmount, unmount_tree,
    },
};

/// Makes a directory with files in it.
fn tree(path: &Path, files: &[(&str, &str)]) -> PathBuf {
    fs::create_dir_all(path).unwrap();
    for (name, text) in files {
        fs::write(path.join(name), text).unwrap();
    }
    path.to_owned()
}

fn empty(path: &Path) -> PathBuf {
    tree(path, &[])
}

fn upper(dir: &Path) -> Upper {
    Upper { dir: empty(&dir.join("upper")), work: empty(&dir.join("work")) }
}

/// Whether the kernel takes layers one by one: an overlay without a place needs that.
fn takes_layers_one_by_one() -> bool {
    KernelVersion::running().unwrap() >= KernelVersion::new(6, 8)
}

fn options_of(point: &Path) -> (String, String) {
    let table = Table::own().unwrap();
    let entry = table.entries.iter().rfind(|entry| entry.point == point).unwrap();
    (entry.options.clone(), entry.super_options.clone())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

pub(crate) fn overlay_shows_layers_and_keeps_changes_above(dir: &Path) {
    let overlay = Overlay {
        lower: vec![
            tree(&dir.join("top"), &[("both", "top"), ("a", "1")]),
            tree(&dir.join("bottom"), &[("both", "bottom"), ("b", "2")]),
        ],
        upper: Some(upper(dir)),
        ..Overlay::default()
    };
    let target = empty(&dir.join("merged"));
    match overlay.create(Attrs::default()) {
        Ok(mount) => mount.attach(&target).unwrap(),
        Err(error) => {
            assert!(!takes_layers_one_by_one(), "{error}");
            overlay.mount_at(&target, Attrs::default()).unwrap();
        }
    }
    assert_eq!(FsType::of(&target).unwrap(), FsType::OVERLAY);
    assert_eq!(read(&target.join("both")), "top");
    assert_eq!((read(&target.join("a")), read(&target.join("b"))), ("1".into(), "2".into()));
    fs::write(target.join("b"), "changed").unwrap();
    fs::remove_file(target.join("a")).unwrap();
    assert!(unmount(&target, Unmount::Now).unwrap());
    assert_eq!(read(&dir.join("bottom/b")), "2");
    assert_eq!(read(&dir.join("upper/b")), "changed");

    overlay.mount_at(&target, Attrs::default()).unwrap();
    assert_eq!(read(&target.join("b")), "changed");
    assert!(!target.join("a").exists());
    unmount(&target, Unmount::Now).unwrap();
}

/// 400 layers: their paths alone are more than the 4 KiB the old call takes.
pub(crate) fn overlay_takes_more_layers_than_fit_a_page(dir: &Path) {
    let layer = |n: usize| tree(&dir.join(format!("layer-{n:03}")), &[(&format!("f{n}"), "x")]);
    let lower: Vec<_> = (0..400).map(layer).collect();
    let overlay = Overlay { lower, ..Overlay::default() };
    let target = empty(&dir.join("merged"));
    let mounted = overlay.mount_at(&target, Attrs::default());
    if !takes_layers_one_by_one() {
        let error = mounted.unwrap_err().to_string();
        return assert!(error.contains("layer-"), "{error}");
    }
    mounted.unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 400);
    unmount(&target, Unmount::Now).unwrap();
}

pub(crate) fn overlay_takes_paths_longer_than_fsconfig(dir: &Path) {
    let long = dir.join("x".repeat(200)).join("y".repeat(200));
    let overlay = Overlay {
        lower: vec![tree(&long.join("one, two:three"), &[("deep", "yes")])],
        upper: Some(upper(&long)),
        ..Overlay::default()
    };
    let target = empty(&dir.join("merged"));
    overlay.mount_at(&target, Attrs::default()).unwrap();
    assert_eq!(read(&target.join("deep")), "yes");
    fs::write(target.join("new"), "up").unwrap();
    unmount(&target, Unmount::Now).unwrap();
    assert_eq!(read(&long.join("upper/new")), "up");
}

pub(crate) fn overlay_the_old_way(dir: &Path) {
    let layer = |n: usize| tree(&dir.join(format!("layer,{n}:x")), &[(&format!("f{n}"), "x")]);
    let mut overlay = Overlay { lower: (0..200).map(layer).collect(), ..Overlay::default() };
    let target = empty(&dir.join("merged"));
    overlay.mount_by_string(&target, Attrs::default()).unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 200);
    assert!(options_of(&target).0.starts_with("ro"));
    unmount(&target, Unmount::Now).unwrap();

    overlay.upper = Some(upper(dir));
    overlay.index = Some(false);
    overlay.mount_by_string(&target, Attrs { no_dev: true, ..Attrs::default() }).unwrap();
    fs::write(target.join("new"), "up").unwrap();
    assert!(options_of(&target).0.contains("nodev"));
    unmount(&target, Unmount::Now).unwrap();
    assert_eq!(read(&dir.join("upper/new")), "up");
}

pub(crate) fn overlay_options_reach_the_kernel(dir: &Path) {
    let overlay = Overlay {
        lower: vec![empty(&dir.join("lower"))],
        upper: Some(upper(dir)),
        volatile: true,
        index: Some(true),
        metacopy: Some(true),
        userxattr: false,
        label: None,
    };
    let target = empty(&dir.join("merged"));
    overlay.mount_at(&target, Attrs { no_suid: true, ..Attrs::default() }).unwrap();
    let (own, fs_options) = options_of(&target);
    // Newer kernels print `fsync=volatile`.
    for option in ["volatile", "index=on", "metacopy=on"] {
        assert!(fs_options.split(',').any(|o| o.ends_with(option)), "{option} in {fs_options}");
    }
    assert!(own.contains("nosuid"), "{own}");
    unmount(&target, Unmount::Now).unwrap();
    // The mark of a volatile mount: it cannot be mounted again.
    assert!(overlay.mount_at(&target, Attrs::default()).is_err());
    assert!(!is_mount_point(&target).unwrap());
}

pub(crate) fn views_are_read_only(dir: &Path) {
    let target = empty(&dir.join("view"));
    let one = tree(&dir.join("one"), &[("a", "1")]);
    let two = tree(&dir.join("two"), &[("b", "2")]);
    for lower in [vec![one.clone()], vec![one, two]] {
        let view = Overlay { lower, volatile: true, ..Overlay::default() };
        view.mount_at(&target, Attrs::default()).unwrap();
        assert_eq!(read(&target.join("a")), "1");
        let error = fs::write(target.join("a"), "2").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        unmount(&target, Unmount::Now).unwrap();
    }
    assert_eq!(read(&dir.join("one/a")), "1");
}

pub(crate) fn a_refusal_says_what_the_kernel_said(dir: &Path) {
    let overlay = Overlay {
        lower: vec![dir.join("missing"), empty(&dir.join("there"))],
        ..Overlay::default()
    };
    let error = overlay.create(Attrs::default()).unwrap_err();
    if takes_layers_one_by_one() {
        assert!(error.is(Errno::NOENT), "{error:?}");
        assert!(error.to_string().contains("missing"), "{error}");
    }
    let error = mount::filesystem("tmpfs", &[("size", "plenty")], Attrs::default()).unwrap_err();
    assert!(error.to_string().contains("Bad value for 'size'"), "{error}");
}

pub(crate) fn bind_trees_are_read_only_all_the_way(dir: &Path) {
    let source = empty(&dir.join("source/inner"));
    let tmpfs = Tmpfs { bytes: 1 << 20, inodes: 100, mode: 0o755 };
    tmpfs.create(Attrs::default()).unwrap().attach(&source).unwrap();
    fs::write(source.join("file"), "in").unwrap();

    let target = empty(&dir.join("target"));
    let tree = bind(&dir.join("source"), Depth::Tree).unwrap();
    tree.restrict(Attrs::READ_ONLY, Depth::Tree).unwrap();
    tree.attach(&target).unwrap();
    assert_eq!(read(&target.join("inner/file")), "in");
    assert!(fs::write(target.join("inner/file"), "x").is_err());
    assert!(fs::write(target.join("file"), "x").is_err());
    fs::write(source.join("file"), "the original is as it was").unwrap();
    assert_eq!(unmount_tree(&target, Unmount::Now).unwrap(), 2);

    // Only the top, and without what is mounted below.
    let top = bind(&dir.join("source"), Depth::One).unwrap();
    top.restrict(Attrs::READ_ONLY, Depth::One).unwrap();
    top.attach(&target).unwrap();
    assert!(!target.join("inner/file").exists());
    unmount(&target, Unmount::Now).unwrap();
    unmount(&source, Unmount::Now).unwrap();
}

pub(crate) fn attributes_add_up(dir: &Path) {
    let (source, target) = (empty(&dir.join("source")), empty(&dir.join("target")));
    let mount = bind(&source, Depth::One).unwrap();
    mount
        .restrict(Attrs { no_exec: true, no_atime: true, ..Attrs::default() }, Depth::One)
        .unwrap();
    mount.restrict(Attrs { no_dev: true, no_suid: true, ..Attrs::default() }, Depth::One).unwrap();
    mount.restrict(Attrs::default(), Depth::One).unwrap();
    mount.attach(&target).unwrap();
    assert_eq!(options_of(&target).0, "rw,nosuid,nodev,noexec,noatime");
    unmount(&target, Unmount::Now).unwrap();
}

pub(crate) fn detached_mounts_vanish_when_dropped(dir: &Path) {
    let before = Table::own().unwrap();
    let tmpfs = Tmpfs { bytes: 0, inodes: 0, mode: 0o700 }.create(Attrs::default()).unwrap();
    let file = rustix::fs::openat(
        &tmpfs,
        "written-before-it-is-anywhere",
        OFlags::CREATE | OFlags::WRONLY,
        Mode::from_raw_mode(0o600),
    )
    .unwrap();
    fs::File::from(file).write_all(b"x").unwrap();
    assert_eq!(Table::own().unwrap(), before);
    drop(tmpfs);
    assert!(!is_mount_point(dir).unwrap());
}

pub(crate) fn attach_to_an_open_directory(dir: &Path) {
    let (source, inside) = (tree(&dir.join("source"), &[("f", "x")]), empty(&dir.join("root/etc")));
    symlink("/", dir.join("root/escape")).unwrap();
    let root = Root::open(&dir.join("root")).unwrap();
    let target = root.open_in_root(Path::new("escape/etc"), OFlags::PATH, Mode::empty()).unwrap();
    bind(&source, Depth::One).unwrap().attach_to(target).unwrap();
    assert_eq!(read(&inside.join("f")), "x");
    // A file on a file, from a descriptor.
    let file = fs::File::open(source.join("f")).unwrap();
    let target = tree(&dir.join("files"), &[("f", "")]).join("f");
    mount::bind_fd(&file, Depth::One).unwrap().attach(&target).unwrap();
    assert_eq!(read(&target), "x");
    unmount(&target, Unmount::Now).unwrap();
    unmount(&inside, Unmount::Now).unwrap();
}

pub(crate) fn tmpfs_has_its_limits(dir: &Path) {
    let target = empty(&dir.join("tmp"));
    let tmpfs = Tmpfs { bytes: 65_536, inodes: 10, mode: 0o1777 };
    let attrs = Attrs { no_exec: true, ..Attrs::default() };
    tmpfs.create(attrs).unwrap().attach(&target).unwrap();
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o1777);
    let error = fs::write(target.join("big"), vec![0; 70_000]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(options_of(&target).0.contains("noexec"));
    unmount(&target, Unmount::Now).unwrap();

    mount::proc(Attrs::READ_ONLY).unwrap().attach(&target).unwrap();
    assert!(target.join("self/status").exists());
    unmount(&target, Unmount::Now).unwrap();
}

pub(crate) fn unmounting(dir: &Path) {
    assert!(!unmount(&dir.join("missing"), Unmount::Now).unwrap());
    assert!(!unmount(dir, Unmount::Now).unwrap());
    assert!(!is_mount_point(&dir.join("missing")).unwrap());
    let target = empty(&dir.join("target"));
    bind(dir, Depth::One).unwrap().attach(&target).unwrap();
    assert!(is_mount_point(&target).unwrap());
    // A link to it is not it, and is not followed.
    symlink(&target, dir.join("link")).unwrap();
    assert!(!is_mount_point(&dir.join("link")).unwrap());
    assert!(!unmount(&dir.join("link"), Unmount::Now).unwrap());
    assert!(unmount(&target, Unmount::Now).unwrap());
    assert!(!unmount(&target, Unmount::Now).unwrap());
}

pub(crate) fn unmount_tree_takes_all_and_only_that(dir: &Path) {
    let tmpfs = Tmpfs { bytes: 4096, inodes: 100, mode: 0o755 };
    let on = |path: PathBuf| tmpfs.create(Attrs::default()).unwrap().attach(&empty(&path)).unwrap();
    on(dir.join("a"));
    on(dir.join("a/b c"));
    on(dir.join("a/b c/d"));
    on(dir.join("a/b c/d")); // one over the other
    on(dir.join("ab"));
    assert_eq!(unmount_tree(&dir.join("a"), Unmount::Now).unwrap(), 4);
    assert_eq!(unmount_tree(&dir.join("a"), Unmount::Now).unwrap(), 0);
    assert!(is_mount_point(&dir.join("ab")).unwrap());
    unmount(&dir.join("ab"), Unmount::Now).unwrap();
}

pub(crate) fn busy_mounts_are_said_to_be(dir: &Path) {
    let tmpfs = Tmpfs { bytes: 4096, inodes: 100, mode: 0o755 };
    tmpfs.create(Attrs::default()).unwrap().attach(dir).unwrap();
    let mut user = fs::File::create_new(dir.join("open")).unwrap();
    assert!(unmount(dir, Unmount::Now).unwrap_err().is(Errno::BUSY));
    assert!(unmount(dir, Unmount::Lazy).unwrap());
    assert!(!is_mount_point(dir).unwrap());
    user.write_all(b"still works").unwrap();
}

pub(crate) fn propagation(dir: &Path) {
    let tags = |path: &Path| {
        let table = Table::own().unwrap();
        table.entries.iter().rfind(|e| e.point == path).unwrap().tags.join(" ")
    };
    let (source, target) = (empty(&dir.join("source")), empty(&dir.join("target")));
    bind(&source, Depth::One).unwrap().attach(&source).unwrap();
    mount::set_propagation(&source, Propagation::Shared, Depth::One).unwrap();
    assert!(tags(&source).starts_with("shared:"));

    let slave = bind(&source, Depth::One).unwrap();
    slave.set_propagation(Propagation::Slave, Depth::One).unwrap();
    slave.attach(&target).unwrap();
    assert!(tags(&target).starts_with("master:"));
    empty(&source.join("later"));
    bind(dir, Depth::One).unwrap().attach(&source.join("later")).unwrap();
    assert!(is_mount_point(&target.join("later")).unwrap(), "it came through");
    unmount(&source.join("later"), Unmount::Now).unwrap();
    assert!(!is_mount_point(&target.join("later")).unwrap());

    mount::set_propagation(&target, Propagation::Private, Depth::One).unwrap();
    assert_eq!(tags(&target), "");
    mount::set_propagation(&target, Propagation::Unbindable, Depth::One).unwrap();
    assert!(bind(&target, Depth::One).is_err());
    unmount(&target, Unmount::Now).unwrap();
    unmount(&source, Unmount::Now).unwrap();
}

pub(crate) fn ids_are_mapped_both_ways(dir: &Path) {
    let ranges = vec![
        IdRange { inside: 0, outside: 100_000, count: 1000 },
        IdRange { inside: 1000, outside: 300_000, count: 10 },
    ];
    let namespace = idmap::user_namespace(&IdMaps::same(ranges).unwrap()).unwrap();
    let source = tree(&dir.join("source"), &[("roots", ""), ("users", ""), ("nobodys", "")]);
    chown(source.join("users"), Some(1003), Some(7)).unwrap();
    chown(source.join("nobodys"), Some(5000), Some(5000)).unwrap();
    let target = empty(&dir.join("target"));
    let mount = bind(&source, Depth::One).unwrap();
    mount.idmap(&namespace, Depth::One).unwrap();
    mount.attach(&target).unwrap();

    let owner = |path: PathBuf| fs::metadata(path).map(|m| (m.uid(), m.gid())).unwrap();
    assert_eq!(owner(target.join("roots")), (100_000, 100_000));
    assert_eq!(owner(target.join("users")), (300_003, 100_007));
    assert_eq!(owner(target.join("nobodys")), (65_534, 65_534));
    chown(target.join("roots"), Some(300_001), Some(100_002)).unwrap();
    assert_eq!(owner(source.join("roots")), (1001, 2));
    unmount(&target, Unmount::Now).unwrap();
}

pub(crate) fn idmap_probe_tells_file_systems_apart(dir: &Path) {
    assert!(idmap::works_on(dir).unwrap(), "on {}", FsType::of(dir).unwrap());
    assert!(!idmap::works_on(Path::new("/proc")).unwrap());
    assert!(idmap::works_on(&dir.join("missing")).unwrap_err().is(Errno::NOENT));
}

pub(crate) fn nothing_is_left_in_the_table(dir: &Path) {
    let text = || {
        let mut text = Vec::new();
        fs::File::open("/proc/self/mountinfo").unwrap().read_to_end(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let before = text();
    for (at, test) in [
        overlay_shows_layers_and_keeps_changes_above,
        bind_trees_are_read_only_all_the_way,
        unmount_tree_takes_all_and_only_that,
        ids_are_mapped_both_ways,
        propagation,
        crate::namespaces::pins_outlive_their_holder,
    ]
    .into_iter()
    .enumerate()
    {
        let dir = empty(&dir.join(at.to_string()));
        test(&dir);
        assert_eq!(text(), before, "after test {at}");
    }
}
