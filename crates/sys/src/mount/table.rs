//! The mount table, `/proc/<pid>/mountinfo`.
//!
//! ```text
//! 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//! id parent dev root point options  tags…    - type source    super options
//! ```
//! Blanks, tabs, newlines and backslashes inside a field are `\` and three octal digits.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use crate::error::{Error, Result, on};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u64,
    pub parent: u64,
    pub device: (u32, u32),
    /// The directory of the file system that is mounted: not `/` for a bind.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Of the mount: `rw,nosuid`.
    pub options: String,
    /// `shared:1`, `master:2`, `unbindable`; none is private.
    pub tags: Vec<String>,
    pub fs_type: String,
    pub source: OsString,
    /// Of the file system: `rw,size=65536k`.
    pub super_options: String,
}

/// All mounts a process sees, parents before their children.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Table {
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the mount table is not understood: {text:?}")]
pub struct ParseError {
    pub line: usize,
    pub text: String,
}

impl Table {
    /// Of the calling thread's namespace, which is not always the process's.
    pub fn own() -> Result<Self> {
        Self::read("/proc/thread-self/mountinfo")
    }

    /// Of the mount namespace another process lives in.
    pub fn of(pid: u32) -> Result<Self> {
        Self::read(&format!("/proc/{pid}/mountinfo"))
    }

    fn read(path: &str) -> Result<Self> {
        let bytes = fs::read(path).map_err(on("read", path))?;
        Self::parse(&bytes).map_err(|e| Error::malformed(format!("read {path}"), e))
    }

    /// Takes bytes: names of files are not always UTF-8.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, ParseError> {
        let lines = bytes.split(|&b| b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
        let entries = lines.map(|(at, line)| {
            let text = || String::from_utf8_lossy(line).into_owned();
            Entry::parse(line).ok_or_else(|| ParseError { line: at + 1, text: text() })
        });
        entries.collect::<std::result::Result<_, _>>().map(|entries| Self { entries })
    }

    /// The mounts at `path` and below it, in the order they can be listed: a parent
    /// before its children, so that the reverse is the order to unmount in.
    pub fn below<'a>(&'a self, path: &'a Path) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.point.starts_with(path))
    }

    /// What `path` lies on: the last mount on the longest way there. `path` is absolute
    /// and free of symlinks.
    pub fn covering(&self, path: &Path) -> Option<&Entry> {
        let on_the_way = self.entries.iter().filter(|entry| path.starts_with(&entry.point));
        on_the_way.max_by_key(|entry| entry.point.components().count())
    }
}

impl Entry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&b| b == b' ');
        let mut next = || fields.next().filter(|field| !field.is_empty());
        let (id, parent) = (number(next()?)?, number(next()?)?);
        let device = text(next()?)?;
        let (major, minor) = device.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let (root, point) = (path(next()?), path(next()?));
        let options = text(next()?)?;
        let mut tags = Vec::new();
        loop {
            match next()? {
                b"-" => break,
                tag => tags.push(text(tag)?),
            }
        }
        let fs_type = text(next()?)?;
        // A source may be empty: then there are two blanks.
        let source = OsString::from_vec(unescape(fields.next()?));
        let super_options = text(fields.next()?)?;
        Some(Self {
            id,
            parent,
            device,
            root,
            point,
            options,
            tags,
            fs_type,
            source,
            super_options,
        })
    }
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Options may hold paths, so even these are not surely UTF-8; nobody compares them.
fn text(field: &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(&unescape(field)).into_owned())
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Entry {
        let mut table = Table::parse(line.as_bytes()).unwrap();
        assert_eq!(table.entries.len(), 1);
        table.entries.remove(0)
    }

    #[test]
    fn real_lines() {
        let root = one("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resuid=65534\n");
        assert_eq!((root.id, root.parent, root.device), (27, 1, (254, 0)));
        assert_eq!((root.fs_type.as_str(), root.tags.len()), ("ext4", 0));
        assert_eq!(root.super_options, "rw,discard,resuid=65534");

        let bind = one("36 35 98:0 /a /b\\040c rw shared:7 master:1 - ext3 /dev/root rw");
        assert_eq!(bind.point, Path::new("/b c"));
        assert_eq!(
            (bind.root.as_path(), bind.tags),
            (Path::new("/a"), vec!["shared:7".into(), "master:1".into()])
        );

        let pin = one("90 27 0:4 net:[4026532008] /run/netns/x rw shared:9 - nsfs nsfs rw");
        assert_eq!(pin.root, Path::new("net:[4026532008]"));

        let no_source = one("40 31 0:37 / /x rw - tmpfs  rw,size=4k");
        assert_eq!(
            (no_source.source.as_bytes(), no_source.super_options.as_str()),
            (&b""[..], "rw,size=4k")
        );
    }

    #[test]
    fn what_is_not_a_line_is_named() {
        let bad = |text: &str| Table::parse(text.as_bytes()).unwrap_err();
        assert_eq!(
            bad("27 1 254:0 / / rw - ext4 a rw\nnonsense"),
            ParseError { line: 2, text: "nonsense".into() }
        );
        for line in [
            "27 1 254 / / rw - ext4 a rw",
            "x 1 254:0 / / rw - ext4 a rw",
            "27 1 254:0 / / rw",
            "27 1 254:0 / / rw - ext4",
        ] {
            assert_eq!(bad(line).line, 1, "{line}");
        }
        assert_eq!(Table::parse(b"").unwrap().entries, []);
    }

    #[test]
    fn below_and_covering_go_by_whole_components() {
        let points = ["/", "/run", "/run/a", "/run/a/b", "/run/ab"];
        let text: String =
            points.iter().map(|p| format!("1 1 0:1 / {p} rw - tmpfs t rw\n")).collect();
        let table = Table::parse(text.as_bytes()).unwrap();
        let below: Vec<_> =
            table.below(Path::new("/run/a")).map(|e| e.point.to_str().unwrap()).collect();
        assert_eq!(below, ["/run/a", "/run/a/b"]);
        let covering =
            |path: &str| table.covering(Path::new(path)).unwrap().point.to_str().unwrap();
        assert_eq!(covering("/run/a/x"), "/run/a");
        assert_eq!(covering("/run/abc"), "/run");
        assert_eq!(covering("/etc"), "/");
    }

    #[test]
    fn our_own_table_has_a_root() {
        let table = Table::own().unwrap();
        assert!(table.covering(Path::new("/proc/self")).is_some_and(|e| e.fs_type == "proc"));
        assert!(Table::of(std::process::id()).unwrap().covering(Path::new("/")).is_some());
    }

    fn escape(bytes: &[u8]) -> Vec<u8> {
        let special = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\\');
        bytes
            .iter()
            .flat_map(|b| if special(b) { format!("\\{b:03o}").into_bytes() } else { vec![*b] })
            .collect()
    }

    proptest! {
        #[test]
        fn any_file_name_survives(name in proptest::collection::vec(1u8.., 1..30)) {
            let mut line = b"1 2 0:3 / /".to_vec();
            line.extend(escape(&name));
            line.extend(b" rw - tmpfs none rw\n");
            let table = Table::parse(&line).unwrap();
            prop_assert_eq!(&table.entries[0].point.as_os_str().as_bytes()[1..], &name[..]);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, near in "([0-9]{1,3} ){2}[0-9]:[0-9] [/a\\\\0-7]{0,9} [/a\\\\0-7]{0,9} rw( a:1)? ?- ?[a-z ]{0,9}") {
            let _ = Table::parse(&bytes);
            let _ = Table::parse(near.as_bytes());
        }
    }
}
