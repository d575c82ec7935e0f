//! `/proc/self/mountinfo`, as far as the rows need it.
//!
//! ```text
//! 36 35 98:0 /subtree /mnt/a\040b rw,noatime master:1 - ext4 /dev/sda rw,errors=continue
//!                     point       options    optional*    kind        superblock
//! ```

use std::path::{Path, PathBuf};

use crate::host::{HostPaths, read};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    /// Of this mount and of its superblock: either may be read-only.
    pub(crate) read_only: bool,
    /// Options of the superblock; a v1 hierarchy lists its controllers here.
    pub(crate) superblock: Vec<String>,
}

pub(crate) fn mounts(host: &HostPaths) -> Vec<Mount> {
    let text = read(&host.proc.join("self/mountinfo")).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// The mount that `path` is on: the longest mount point above it, the last of equals,
/// since a later mount hides an earlier one.
pub(crate) fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

fn parse(line: &str) -> Option<Mount> {
    let (mount, device) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(4);
    let (point, options) = (mount.next()?, mount.next()?);
    let mut device = device.split(' ');
    let (kind, _source, superblock) = (device.next()?, device.next()?, device.next()?);
    let superblock: Vec<_> = superblock.split(',').map(str::to_owned).collect();
    Some(Mount {
        point: unescape(point).into(),
        kind: kind.to_owned(),
        read_only: options.split(',').any(|o| o == "ro") || superblock.iter().any(|o| o == "ro"),
        superblock,
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match after.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                out.push(char::from(byte));
                rest = &after[3..];
            }
            _ => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn real_lines() {
        let mount = parse(
            r"36 35 98:0 /x /mnt/a\040b rw,noatime master:1 propagate_from:2 - ext4 /dev/sda ro,errors=continue",
        );
        let mount = mount.unwrap();
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!(mount.kind, "ext4");
        assert!(mount.read_only);
        let cpu =
            parse("32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct");
        let cpu = cpu.unwrap();
        assert_eq!(cpu.superblock, ["rw", "cpu", "cpuacct"]);
        assert!(!cpu.read_only);
        assert_eq!(parse("36 35 98:0 / /x rw"), None);
    }

    #[test]
    fn later_mounts_hide_earlier_ones() {
        let lines = [
            "1 0 0:1 / / rw - ext4 a rw",
            "2 1 0:2 / /a rw - tmpfs b rw",
            "3 1 0:3 / /a rw - xfs c rw",
        ];
        let mounts: Vec<_> = lines.into_iter().filter_map(parse).collect();
        assert_eq!(mount_of(&mounts, Path::new("/a/b")).unwrap().kind, "xfs");
        assert_eq!(mount_of(&mounts, Path::new("/ab")).unwrap().kind, "ext4");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_not_but_never_panics(line in ".*") {
            let _ = parse(&line);
        }

        #[test]
        fn escapes_come_back(path in "/[ -~\t\n]*") {
            let escaped: String = path.chars().map(|c| match c {
                ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(c)),
                c => c.to_string(),
            }).collect();
            prop_assert_eq!(unescape(&escaped), path);
        }
    }
}
