//! A fabricated host for tests: a directory tree that the rows read instead of `/`.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    host::{HostPaths, Settings},
    report::{Row, Verdict},
};

pub(crate) struct FakeHost {
    dir: tempfile::TempDir,
    pub(crate) paths: HostPaths,
}

impl FakeHost {
    /// A host with which every row is content: systemd, cgroup v2, all capabilities.
    pub(crate) fn good() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let paths = HostPaths {
            proc: at("proc"),
            sys: at("sys"),
            etc: at("etc"),
            run: at("run"),
            path_dirs: vec![at("bin")],
        };
        let fake = Self { dir, paths };
        fake.write("proc/sys/kernel/osrelease", "6.12.0\n");
        fake.write("proc/sys/kernel/cap_last_cap", "40\n");
        fake.write(
            "proc/sys/kernel/seccomp/actions_avail",
            "kill_process kill_thread trap errno user_notif trace log allow\n",
        );
        fake.write(
            "proc/self/status",
            "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n",
        );
        for kind in ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"] {
            fake.write(&format!("proc/self/ns/{kind}"), "");
            fake.write(&format!("proc/sys/user/max_{kind}_namespaces"), "1000\n");
        }
        fake.mounts(&["/ ext4 rw rw", "/sys/fs/cgroup cgroup2 rw rw"]);
        fake.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n");
        fs::create_dir_all(fake.paths.run.join("systemd/system")).unwrap();
        fs::create_dir_all(&fake.paths.path_dirs[0]).unwrap();
        fake
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            root: self.at("root"),
            cni_conf_dir: self.at("etc/cni/net.d"),
            cni_bin_dirs: vec![self.at("opt/cni/bin"), self.at("usr/lib/cni")],
            runtimes: Vec::new(),
            driver: None,
            min_free_bytes: 0,
            limit: Duration::from_secs(5),
        }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        let path = self.at(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// Puts a program into the search path that is there but never run.
    pub(crate) fn program(&self, name: &str) {
        self.link("/bin/true", &format!("bin/{name}"));
    }

    /// Programs are linked, never written: a file just written may be held open
    /// for writing by a fork of another test, and cannot be executed then.
    pub(crate) fn link(&self, target: impl AsRef<Path>, name: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// `/proc/self/mountinfo` from lines of mount point, type, mount options, super options.
    pub(crate) fn mounts(&self, mounts: &[&str]) {
        let mut text = String::new();
        for (id, mount) in mounts.iter().enumerate() {
            let [point, kind, options, superblock] =
                mount.split(' ').collect::<Vec<_>>().try_into().unwrap();
            text += &format!("{id} 1 0:{id} / {point} {options} - {kind} none {superblock}\n");
        }
        self.write("proc/self/mountinfo", &text);
    }
}

/// The host itself, for trials that need a real kernel.
pub(crate) fn real_host() -> HostPaths {
    HostPaths::real(OsStr::new("/usr/sbin:/usr/bin:/sbin:/bin"))
}

/// A program of `tests/programs`, made to misbehave in one way.
pub(crate) fn misbehaving(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Says so when a test cannot run for lack of root.
pub(crate) fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: needs root");
    }
    root
}

/// Finds the row `name` and compares its verdict; `text` occurs in what it says.
#[track_caller]
pub(crate) fn expect(rows: &[Row], name: &str, want: Verdict, text: &str) {
    let Some(row) = rows.iter().find(|row| row.name == name) else {
        panic!("no row {name:?} in {rows:?}");
    };
    assert_eq!(row.verdict, want, "{row:?}");
    let said = format!("{} {} {:?}", row.found, row.reason, row.remedy);
    assert!(said.contains(text), "{text:?} not in {row:?}");
    if want != Verdict::Ok {
        assert!(!row.reason.is_empty() && row.remedy.is_some(), "no way out: {row:?}");
    }
}
