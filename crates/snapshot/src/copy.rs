//! Files copied with all that they are: into a layer that links to one below it, and into
//! snapshots of file systems that cannot show layers as one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{
        FileType, Mode, OFlags, SeekFrom, Stat, copy_file_range, ftruncate, mknodat, openat,
        readlinkat, seek, symlinkat,
    },
    io::{Errno, pread, pwrite},
};
use sys::idmap::{IdMaps, IdRange};

use crate::{
    Usage,
    node::{self, Metadata},
};

/// A name in an open directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'p> {
    pub(crate) dir: BorrowedFd<'p>,
    pub(crate) name: &'p [u8],
}

/// Copies anything but a directory to where nothing is.
pub(crate) fn copy_node(
    from: Place<'_>,
    stat: &Stat,
    to: Place<'_>,
    ids: Option<&IdMaps>,
) -> Result<Usage, Errno> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::RegularFile {
        return copy_file(from, stat, to, ids);
    }
    let metadata = shifted(Metadata::of(stat, node::xattrs_at(from.dir, from.name)?), ids);
    if kind == FileType::Symlink {
        let target = readlinkat(from.dir, from.name, Vec::new())?;
        symlinkat(target, to.dir, to.name)?;
        metadata.set_on_link(to.dir, to.name)?;
    } else {
        mknodat(to.dir, to.name, kind, Mode::from_raw_mode(0o600), stat.st_rdev)?;
        metadata.set_on_node(to.dir, to.name)?;
    }
    Ok(Usage::NODE)
}

fn copy_file(
    from: Place<'_>,
    stat: &Stat,
    to: Place<'_>,
    ids: Option<&IdMaps>,
) -> Result<Usage, Errno> {
    let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(from.dir, from.name, read, Mode::empty())?;
    let write = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = openat(to.dir, to.name, write, Mode::from_raw_mode(0o600))?;
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    ftruncate(&target, size)?;
    let data = copy_data(&source, &target, size)?;
    let metadata = Metadata::of(stat, node::xattrs(source.as_fd())?);
    shifted(metadata, ids).set(target.as_fd())?;
    Ok(Usage::of_file(data))
}

/// A directory takes over what another one is, but for its times.
pub(crate) fn copy_dir_metadata(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    ids: Option<&IdMaps>,
) -> Result<Metadata, Errno> {
    let metadata = Metadata::of(&rustix::fs::fstat(from)?, node::xattrs(from)?);
    let metadata = shifted(metadata, ids);
    metadata.set_but_times(to)?;
    Ok(metadata)
}

/// Holes stay holes. Returns the bytes between them.
fn copy_data(from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<u64, Errno> {
    let mut copied = 0;
    let mut at = 0;
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            // The file system knows nothing of holes.
            Err(Errno::INVAL) => at,
            Err(e) => return Err(e),
        };
        let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        copy_range(from, to, start, end)?;
        copied += end.saturating_sub(start);
        at = end.max(start + 1);
    }
    Ok(copied)
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut read, mut write) = (start, start);
    while read < end {
        let len = usize::try_from(end - read).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(from, Some(&mut read), to, Some(&mut write), len) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                return copy_bytes(from, to, read, end);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn copy_bytes(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<(), Errno> {
    let mut buffer = vec![0; 128 << 10];
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let len = pread(from, &mut buffer[..most], at)?;
        if len == 0 {
            return Ok(());
        }
        let mut written = 0;
        while written < len {
            written += pwrite(to, &buffer[written..len], at + written as u64)?;
        }
        at += len as u64;
    }
    Ok(())
}

fn shifted(mut metadata: Metadata, ids: Option<&IdMaps>) -> Metadata {
    if let Some(ids) = ids {
        metadata.uid = outside(ids.uids(), metadata.uid).unwrap_or(NOBODY);
        metadata.gid = outside(ids.gids(), metadata.gid).unwrap_or(NOBODY);
        let capability = metadata.xattrs.iter_mut().find(|(name, _)| name == CAPABILITY);
        if let (Some((_, value)), Some(root)) = (capability, outside(ids.uids(), 0)) {
            *value = owned_capability(value, root);
        }
    }
    metadata
}

const CAPABILITY: &[u8] = b"security.capability";

/// Capabilities of a file count for the user namespace whose root they name; those of the
/// second revision name nobody, which is the root of the host.
fn owned_capability(value: &[u8], root: u32) -> Vec<u8> {
    const REVISION_2: u8 = 2;
    match value {
        // The revision is the highest byte of a little-endian word, flags the lowest.
        [flags, 0, 0, REVISION_2, sets @ ..] if sets.len() == 16 => {
            [&[*flags, 0, 0, REVISION_2 + 1], sets, &root.to_le_bytes()].concat()
        }
        other => other.to_vec(),
    }
}

/// Who owns what the map has no name for, as the kernel shows it.
const NOBODY: u32 = 65_534;

/// What an id of the inside is called outside; `None`: it has no name there.
pub(crate) fn outside(ranges: &[IdRange], id: u32) -> Option<u32> {
    let range =
        ranges.iter().find(|range| id >= range.inside && id - range.inside < range.count)?;
    Some(range.outside + (id - range.inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shifted_range_by_range() {
        let r = |inside, outside, count| IdRange { inside, outside, count };
        let ranges = [r(0, 1000, 1), r(1, 100_000, 65_535)];
        let check = |id, want| assert_eq!(outside(&ranges, id), want, "{id}");
        check(0, Some(1000));
        check(1, Some(100_000));
        check(65_535, Some(165_534));
        check(65_536, None);
        check(u32::MAX, None);
    }

    #[test]
    fn capabilities_go_to_the_root_of_the_namespace() {
        let old = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let new = owned_capability(&old, 100_000);
        assert_eq!(new[..4], [1, 0, 0, 3]);
        assert_eq!((&new[4..20], &new[20..]), (&old[4..], &100_000u32.to_le_bytes()[..]));
        assert_eq!(owned_capability(&new, 7), new);
        assert_eq!(owned_capability(b"odd", 7), b"odd");
    }

    #[test]
    fn holes_stay_holes() {
        use std::{fs, io::Write, os::unix::fs::MetadataExt};
        let dir = tempfile::tempdir().unwrap();
        let mut file = fs::File::create(dir.path().join("a")).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        rustix::fs::seek(&file, SeekFrom::Start(9 << 20)).unwrap();
        file.write_all(b"middle").unwrap();
        file.set_len(20 << 20).unwrap();
        let at = fs::File::open(dir.path()).unwrap();
        let place = |name| Place { dir: at.as_fd(), name };
        let stat = rustix::fs::fstat(&file).unwrap();
        copy_node(place(b"a"), &stat, place(b"b"), None).unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap());
        let blocks = fs::metadata(&b).unwrap().blocks();
        assert!(blocks < 200, "{blocks} blocks");
        assert_eq!(fs::metadata(&a).unwrap().mtime_nsec(), fs::metadata(&b).unwrap().mtime_nsec());
    }
}
