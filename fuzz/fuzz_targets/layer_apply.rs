//! Layers made of entries that fight: whatever their names, links and order, nothing beside
//! the layer is touched, and what comes out is a tree that a second layer fits onto.
//! Wants ASAN_OPTIONS=detect_odr_violation=0: SQLite, which is linked in, has two `aiOff`.
#![no_main]

use std::{fs, path::Path};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use snapshot::{ApplyOptions, Form, LayerDir, Limits, apply_layer, rebase_layer};

#[derive(Arbitrary, Debug)]
struct Image {
    plain: bool,
    layers: Vec<Vec<Entry>>,
    /// Changes to the finished archive: where, and what.
    flips: Vec<(u16, u8)>,
    /// Bytes that are no archive at all.
    noise: Option<Vec<u8>>,
}

#[derive(Arbitrary, Debug)]
struct Entry {
    kind: u8,
    name: Vec<u8>,
    link: Vec<u8>,
    mode: u16,
    uid: u32,
    data: Vec<u8>,
    records: Option<Vec<u8>>,
}

/// Few names, so that they meet; those that have a meaning are all here.
const NAMES: &[&str] = &[
    "a", "b", "c", "/", "/a", "..", ".", "a/b", "../a", ".wh.a", ".wh.b", ".wh..wh..opq", "outside",
    "secret", ".wh.", ".wh...", "a/../b",
];
const KINDS: &[u8] = b"0123456\x00xgLKS7Z";

fn path(bytes: &[u8]) -> String {
    let parts: Vec<_> = bytes.iter().take(4).map(|b| NAMES[usize::from(*b) % NAMES.len()]).collect();
    parts.join("/")
}

fn header(entry: &Entry, kind: u8, name: &str, size: usize) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, format!("{:07o}\0", entry.mode & 0o7777).as_bytes());
    put(108, format!("{:07o}\0", entry.uid & 0o777_7777).as_bytes());
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000001\0");
    put(156, &[kind]);
    let link = path(&entry.link);
    put(157, &link.as_bytes()[..link.len().min(100)]);
    put(257, b"ustar\x0000");
    put(329, b"0000001\0");
    put(337, format!("{:07o}\0", entry.uid % 4).as_bytes());
    put(148, b"        ");
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut push = |header: [u8; 512], data: &[u8]| {
        bytes.extend(header);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    };
    for entry in entries.iter().take(32) {
        let name = path(&entry.name);
        if let Some(records) = &entry.records {
            push(header(entry, b'x', "pax", records.len()), records);
        }
        let kind = KINDS[usize::from(entry.kind) % KINDS.len()];
        push(header(entry, kind, &name, entry.data.len()), &entry.data);
    }
    bytes.extend([0; 1024]);
    bytes
}

fn outside(dir: &Path) -> Vec<(String, u64)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .expect("the directory is there")
        .map(|entry| entry.expect("an entry"))
        .map(|e| (e.file_name().to_string_lossy().into_owned(), e.metadata().expect("meta").len()))
        .collect();
    all.sort();
    all
}

fuzz_target!(|image: Image| {
    let shm = Path::new("/dev/shm");
    let home = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(home).expect("a directory");
    let beside = dir.path().join("outside");
    fs::create_dir(&beside).expect("a directory");
    fs::write(beside.join("secret"), "secret").expect("a file");
    let before = outside(&beside);
    let limits = Limits { bytes: 1 << 20, entries: 200, ..Limits::default() };
    let form = if image.plain { Form::Plain } else { Form::Overlay };
    let mut archives: Vec<_> =
        image.layers.iter().take(3).map(|entries| archive(entries)).collect();
    if let Some(last) = archives.last_mut() {
        for (at, with) in image.flips.iter().take(8) {
            let at = usize::from(*at) % last.len();
            last[at] ^= with;
        }
    }
    archives.extend(image.noise);
    let mut below: Vec<LayerDir> = Vec::new();
    for (n, archive) in archives.iter().enumerate() {
        let path = dir.path().join(format!("layer-{n}"));
        fs::create_dir(&path).expect("a directory");
        let layer = LayerDir::new(path, form);
        let options = ApplyOptions { limits, diff_id: None };
        let done = apply_layer(&archive[..], &layer, &options)
            .and_then(|applied| rebase_layer(&layer, applied, &below));
        match done {
            Ok(_) => below.insert(0, layer),
            // It is always the archive's fault.
            Err(error) => assert_ne!(error.kind(), base::Kind::Internal, "{error:?}"),
        }
    }
    assert_eq!(outside(&beside), before);
    assert_eq!(fs::read_to_string(beside.join("secret")).expect("still there"), "secret");
    let names = outside(dir.path());
    assert_eq!(names.len(), 1 + archives.len(), "{names:?}");
});
