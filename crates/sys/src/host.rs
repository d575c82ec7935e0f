//! What the kernel and its file systems are.

use std::{fmt, fs, path::Path, str::FromStr};

use crate::error::{Error, Result, on};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl KernelVersion {
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }

    pub fn running() -> Result<Self> {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        release.parse().map_err(|()| Error::malformed("kernel release", release))
    }
}

/// Distributions append what they like: `6.1.0-18-amd64`, `6.18.44-fc`, `5.15+`.
impl FromStr for KernelVersion {
    type Err = ();

    fn from_str(release: &str) -> std::result::Result<Self, ()> {
        let mut rest = release;
        let mut next = || {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, tail) = rest.split_at(end);
            // Only a dot leads on to the next number.
            rest = tail.strip_prefix('.').unwrap_or("");
            number.parse::<u32>().ok()
        };
        let (major, minor) = (next().ok_or(())?, next().ok_or(())?);
        Ok(Self { major, minor, patch: next().unwrap_or(0) })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The file system a path lies on, by the number `statfs` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsType(pub u32);

impl FsType {
    pub const CGROUP1: Self = Self(0x0027_e0eb);
    pub const CGROUP2: Self = Self(0x6367_7270);
    pub const NSFS: Self = Self(0x6e73_6673);
    pub const OVERLAY: Self = Self(0x794c_7630);
    pub const PROC: Self = Self(0x9fa0);
    pub const TMPFS: Self = Self(0x0102_1994);

    pub fn of(path: &Path) -> Result<Self> {
        let stat = rustix::fs::statfs(path).map_err(on("ask the file system of", path))?;
        Ok(Self::from_raw(stat.f_type))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the numbers are 32 bits wide, sign-extended"
    )]
    pub(crate) fn from_raw(raw: rustix::fs::FsWord) -> Self {
        Self(raw as u32)
    }

    /// The name in `/proc/filesystems`, for the ones people keep containers on.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::CGROUP1 => "cgroup",
            Self::CGROUP2 => "cgroup2",
            Self::NSFS => "nsfs",
            Self::OVERLAY => "overlay",
            Self::PROC => "proc",
            Self::TMPFS => "tmpfs",
            Self(0x0102_1997) => "9p",
            Self(0xca45_1a4e) => "bcachefs",
            Self(0x9123_683e) => "btrfs",
            Self(0x6264_6576) => "devtmpfs",
            Self(0xf15f) => "ecryptfs",
            Self(0xe0f5_e1e2) => "erofs",
            // ext2 and ext3 too: one number for three.
            Self(0xef53) => "ext4",
            Self(0xf2f5_2010) => "f2fs",
            Self(0x6573_5546) => "fuse",
            Self(0x6969) => "nfs",
            Self(0x8584_58f6) => "ramfs",
            Self(0x7371_7368) => "squashfs",
            Self(0x6265_6572) => "sysfs",
            Self(0x4d44) => "vfat",
            Self(0x5846_5342) => "xfs",
            Self(0x2fc1_2fc1) => "zfs",
            Self(_) => return None,
        })
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// How full a file system is. Bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    pub bytes_free: u64,
    /// Without what is reserved for root.
    pub bytes_available: u64,
    /// 0 where inodes are not limited (btrfs, overlay on it).
    pub inodes: u64,
    pub inodes_free: u64,
}

impl Space {
    pub fn of(path: &Path) -> Result<Self> {
        let stat = rustix::fs::statvfs(path).map_err(on("ask the space of", path))?;
        Ok(Self {
            bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            bytes_free: stat.f_bfree.saturating_mul(stat.f_frsize),
            bytes_available: stat.f_bavail.saturating_mul(stat.f_frsize),
            inodes: stat.f_files,
            inodes_free: stat.f_ffree,
        })
    }
}

/// Whether the kernel knows a file system *now*. One whose module is not loaded yet is
/// missing here and may still work: only a mount tells.
pub fn knows_filesystem(name: &str) -> Result<bool> {
    let path = "/proc/filesystems";
    let text = fs::read_to_string(path).map_err(on("read", path))?;
    Ok(lists_filesystem(&text, name))
}

/// Lines are `nodev\tname` or `\tname`.
fn lists_filesystem(text: &str, name: &str) -> bool {
    text.lines().any(|line| line.split('\t').next_back() == Some(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(release: &str, want: Option<(u32, u32, u32)>) {
        let got: Option<KernelVersion> = release.parse().ok();
        assert_eq!(got.map(|v| (v.major, v.minor, v.patch)), want, "{release}");
    }

    #[test]
    fn kernel_releases() {
        check("6.18.44-fc-v445", Some((6, 18, 44)));
        check("6.1.0-18-amd64", Some((6, 1, 0)));
        check("5.15+", Some((5, 15, 0)));
        check("4.19.0", Some((4, 19, 0)));
        check("6.9-rc1", Some((6, 9, 0)));
        check("6.9.rc1", Some((6, 9, 0)));
        check("6", None);
        check("linux", None);
        check("", None);
        check("99999999999.1", None);
        assert!(KernelVersion::new(6, 8) < "6.8.1".parse().unwrap());
        assert!(KernelVersion::running().unwrap() > KernelVersion::new(4, 0));
    }

    proptest! {
        #[test]
        fn releases_round_trip(major: u32, minor: u32, patch: u32, tail in "([-+a-z][ -~]*)?") {
            let version = KernelVersion { major, minor, patch };
            prop_assert_eq!(format!("{version}{tail}").parse(), Ok(version));
        }

        #[test]
        fn no_release_panics(text: String) {
            let _ = text.parse::<KernelVersion>();
        }
    }

    #[test]
    fn types_have_names() {
        assert_eq!(FsType::of(Path::new("/proc")).unwrap(), FsType::PROC);
        assert_eq!(FsType::of(Path::new("/proc/self/ns/net")).unwrap(), FsType::NSFS);
        assert_eq!(FsType::TMPFS.to_string(), "tmpfs");
        assert_eq!(FsType(0x1234).to_string(), "0x1234");
        // Numbers with the top bit set must not be sign-extended.
        assert_eq!(FsType::from_raw(0x9123_683e_u32.cast_signed().into()).name(), Some("btrfs"));
    }

    #[test]
    fn space_adds_up() {
        let space = Space::of(Path::new("/")).unwrap();
        assert!(space.bytes >= space.bytes_free && space.bytes_free >= space.bytes_available);
        assert!(space.bytes > 0);
    }

    #[test]
    fn filesystems_are_listed_whole() {
        let text = "nodev\tsysfs\nnodev\toverlay\n\text4\n";
        assert!(lists_filesystem(text, "overlay") && lists_filesystem(text, "ext4"));
        assert!(!lists_filesystem(text, "over") && !lists_filesystem(text, "nodev"));
        assert!(knows_filesystem("proc").unwrap());
    }
}
