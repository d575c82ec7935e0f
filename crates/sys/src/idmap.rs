//! Which ids inside a user namespace are which outside, and user namespaces made to
//! order: as the mapping of an idmapped mount, or for a pod to live in.

use std::{fmt, fs, os::fd::OwnedFd, path::Path};

use rustix::io::Errno;

use crate::{
    error::{Error, Result, on},
    mount::{self, Depth},
    namespace::{Holder, Namespace, Spaces},
};

/// `count` ids from `inside` on are those from `outside` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// Both maps of a user namespace. Checked: a mistake is told by name, where the kernel
/// would only say "invalid argument".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    uids: Vec<IdRange>,
    gids: Vec<IdRange>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdMapError {
    #[error("an id map has no ranges")]
    Empty,
    #[error("id map has {0} ranges, the kernel takes {MAX_RANGES}")]
    TooMany(usize),
    #[error("id range {0} is empty")]
    EmptyRange(IdRange),
    #[error("id range {0} goes beyond the last id")]
    Overflow(IdRange),
    #[error("id ranges {0} and {1} overlap")]
    Overlap(IdRange, IdRange),
}

const MAX_RANGES: usize = 340;

impl IdMaps {
    pub fn new(uids: Vec<IdRange>, gids: Vec<IdRange>) -> std::result::Result<Self, IdMapError> {
        check(&uids)?;
        check(&gids)?;
        Ok(Self { uids, gids })
    }

    /// The same ranges for users and groups.
    pub fn same(ranges: Vec<IdRange>) -> std::result::Result<Self, IdMapError> {
        Self::new(ranges.clone(), ranges)
    }

    pub fn uids(&self) -> &[IdRange] {
        &self.uids
    }

    pub fn gids(&self) -> &[IdRange] {
        &self.gids
    }

    /// Gives a fresh user namespace, that of `pid`, its maps. They cannot change after.
    pub(crate) fn write(&self, pid: u32) -> Result<()> {
        for (file, ranges) in [("uid_map", &self.uids), ("gid_map", &self.gids)] {
            let path = format!("/proc/{pid}/{file}");
            // One write: the kernel takes the map whole or not at all.
            fs::write(&path, lines(ranges)).map_err(on("write", &path))?;
        }
        Ok(())
    }
}

fn lines(ranges: &[IdRange]) -> String {
    ranges.iter().map(|r| format!("{} {} {}\n", r.inside, r.outside, r.count)).collect()
}

fn check(ranges: &[IdRange]) -> std::result::Result<(), IdMapError> {
    if ranges.is_empty() {
        return Err(IdMapError::Empty);
    }
    if ranges.len() > MAX_RANGES {
        return Err(IdMapError::TooMany(ranges.len()));
    }
    for (at, &range) in ranges.iter().enumerate() {
        if range.count == 0 {
            return Err(IdMapError::EmptyRange(range));
        }
        // u32::MAX is "no id", so a range must end before it.
        let room = u32::MAX - range.inside.max(range.outside);
        if range.count > room {
            return Err(IdMapError::Overflow(range));
        }
        if let Some(&other) = ranges[..at].iter().find(|other| other.overlaps(range)) {
            return Err(IdMapError::Overlap(other, range));
        }
    }
    Ok(())
}

impl IdRange {
    /// On either side: an id has one meaning.
    fn overlaps(self, other: Self) -> bool {
        let meet = |a: u32, b: u32| a < b + other.count && b < a + self.count;
        meet(self.inside, other.inside) || meet(self.outside, other.outside)
    }
}

/// As the kernel prints it: inside, outside, count.
impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.inside, self.outside, self.count)
    }
}

/// A user namespace with these maps, with nobody in it, held by the descriptor. Costs a
/// short-lived child, safe in any process.
pub fn user_namespace(maps: &IdMaps) -> Result<OwnedFd> {
    let spaces = Spaces { user: Some(maps.clone()), others: Vec::new() };
    Holder::park(&spaces)?.open(Namespace::User)
}

/// Tries an idmapped view of `dir`, which is the only way to know: it depends on the
/// kernel and on the file system. `Ok(false)` says no; an error is another trouble.
pub fn works_on(dir: &Path) -> Result<bool> {
    let range = IdRange { inside: 0, outside: 65_536, count: 65_536 };
    let maps = IdMaps::same(vec![range]).map_err(|e| Error::malformed("probe id maps", e))?;
    let namespace = user_namespace(&maps)?;
    match mount::bind(dir, Depth::One)?.idmap(namespace, Depth::One) {
        Ok(()) => Ok(true),
        Err(e) if e.is(Errno::INVAL) || e.is(Errno::NOSYS) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn r(inside: u32, outside: u32, count: u32) -> IdRange {
        IdRange { inside, outside, count }
    }

    #[test]
    fn maps_are_checked() {
        let check =
            |ranges: &[IdRange], want| assert_eq!(IdMaps::same(ranges.to_vec()).err(), want);
        check(&[r(0, 100_000, 65_536)], None);
        check(&[r(0, 1000, 1), r(1, 100_000, 65_535)], None);
        check(&[], Some(IdMapError::Empty));
        check(&[r(0, 0, 0)], Some(IdMapError::EmptyRange(r(0, 0, 0))));
        check(&[r(0, u32::MAX - 1, 1)], None);
        check(&[r(0, u32::MAX - 1, 2)], Some(IdMapError::Overflow(r(0, u32::MAX - 1, 2))));
        let (a, b) = (r(0, 1000, 10), r(9, 5000, 1));
        check(&[a, b], Some(IdMapError::Overlap(a, b)));
        let (a, b) = (r(0, 1000, 10), r(10, 1009, 1));
        check(&[a, b], Some(IdMapError::Overlap(a, b)));
        check(&vec![r(0, 0, 1); 341], Some(IdMapError::TooMany(341)));
    }

    #[test]
    fn lines_are_the_kernels() {
        assert_eq!(lines(&[r(0, 1000, 1), r(1, 100_000, 9)]), "0 1000 1\n1 100000 9\n");
    }

    proptest! {
        #[test]
        fn overlap_is_what_a_list_of_ids_says(
            a in (0u32..20, 0u32..20, 1u32..6),
            b in (0u32..20, 0u32..20, 1u32..6),
        ) {
            let (a, b) = (r(a.0, a.1, a.2), r(b.0, b.1, b.2));
            let meet = |a: u32, n: u32, b: u32, m: u32| (a..a + n).any(|id| (b..b + m).contains(&id));
            let want = meet(a.inside, a.count, b.inside, b.count)
                || meet(a.outside, a.count, b.outside, b.count);
            prop_assert_eq!(a.overlaps(b), want);
            prop_assert_eq!(b.overlaps(a), want);
        }
    }
}
