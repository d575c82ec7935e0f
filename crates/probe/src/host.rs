//! Where the host is read. Every path is a parameter, so that a test can show
//! the rows a host that never was.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use sys::mount::{Entry, Table};

/// No file read here is larger on a sane host; a larger one is cut.
const MAX_FILE: u64 = 1 << 20;

/// The mount points and directories of the host.
#[derive(Clone, Debug)]
pub struct HostPaths {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub etc: PathBuf,
    pub run: PathBuf,
    /// Where programs are searched, in this order.
    pub path_dirs: Vec<PathBuf>,
}

/// What the daemon is going to use on this host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The daemon's root. Need not exist: then its nearest ancestor is looked at.
    pub root: PathBuf,
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Configured OCI runtimes, the default first. Empty: search the known ones.
    pub runtimes: Vec<(String, PathBuf)>,
    /// `None`: systemd where it runs, else cgroupfs.
    pub driver: Option<Driver>,
    /// Below this many free bytes the root's row warns.
    pub min_free_bytes: u64,
    /// How long one program, or one trial container, may take.
    pub limit: Duration,
}

/// Who makes the containers' cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    Systemd,
    Cgroupfs,
}

// === impl HostPaths ===

impl HostPaths {
    /// The host we run on. `path` is the value of `PATH`; the system directories
    /// follow it, because a plain user's `PATH` often lacks the `sbin` ones.
    pub fn real(path: &OsStr) -> Self {
        let mut path_dirs: Vec<PathBuf> =
            std::env::split_paths(path).filter(|dir| dir.is_absolute()).collect();
        for dir in ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
            if !path_dirs.iter().any(|known| known == Path::new(dir)) {
                path_dirs.push(dir.into());
            }
        }
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            etc: "/etc".into(),
            run: "/run".into(),
            path_dirs,
        }
    }

    /// The driver a daemon takes that was not told one.
    pub fn default_driver(&self) -> Driver {
        if self.systemd_runs() { Driver::Systemd } else { Driver::Cgroupfs }
    }

    /// systemd is PID 1, by the test of `sd_booted(3)`.
    pub(crate) fn systemd_runs(&self) -> bool {
        self.run.join("systemd/system").is_dir()
    }

    /// Empty where it cannot be read: then nothing is mounted as far as we can tell.
    pub(crate) fn mounts(&self) -> Table {
        let text = fs::read(self.proc.join("self/mountinfo")).unwrap_or_default();
        Table::parse(&text).unwrap_or_default()
    }

    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        find_program(&self.path_dirs, name)
    }
}

/// In the first of the directories that has it.
pub(crate) fn find_program(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(name)).find(|path| is_program(path))
}

impl Settings {
    /// The place whose file system the root is, or will be, on.
    pub(crate) fn root_or_ancestor(&self) -> &Path {
        self.root.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"))
    }
}

impl Driver {
    pub fn name(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Cgroupfs => "cgroupfs",
        }
    }
}

/// Either the mount or its file system may be.
pub(crate) fn is_read_only(mount: &Entry) -> bool {
    let options = [&mount.options, &mount.super_options];
    options.into_iter().flat_map(|list| list.split(',')).any(|option| option == "ro")
}

pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The text of a small file, without the white space around it.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The value of a `Name:\tvalue` line of `/proc/self/status`.
pub(crate) fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim())
    })
}

/// Three significant digits are enough for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = UNITS[0];
    let mut tenths = u128::from(bytes) * 10 / 1024;
    for next in &UNITS[1..] {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    match tenths {
        0..100 => format!("{}.{} {unit}", tenths / 10, tenths % 10),
        _ => format!("{} {unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_keeps_order_and_gains_sbin() {
        let host = HostPaths::real(OsStr::new("/opt/x:relative::/usr/bin"));
        assert_eq!(host.path_dirs[..2], [PathBuf::from("/opt/x"), "/usr/bin".into()]);
        assert!(host.path_dirs.contains(&"/usr/sbin".into()));
        assert_eq!(host.path_dirs.iter().filter(|dir| dir.ends_with("usr/bin")).count(), 1);
    }

    #[test]
    fn directories_and_plain_files_are_no_programs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::fs::write(dir.path().join("text"), "x").unwrap();
        assert!(!is_program(&dir.path().join("folder")));
        assert!(!is_program(&dir.path().join("text")));
        assert!(!is_program(&dir.path().join("absent")));
        assert!(is_program(Path::new("/bin/sh")));
    }

    #[test]
    fn bytes_for_people() {
        for (bytes, want) in [
            (0, "0.0 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (80 << 30, "80 GiB"),
            (1023 << 30, "1023 GiB"),
            (u64::MAX, "16383 PiB"),
        ] {
            assert_eq!(human_bytes(bytes), want);
        }
    }

    #[test]
    fn fields_of_status() {
        let status = "Name:\tx\nCapEff:\t000001fffeffffff\nSeccomp:\t0\n";
        assert_eq!(status_field(status, "CapEff"), Some("000001fffeffffff"));
        assert_eq!(status_field(status, "Cap"), None);
    }
}
