//! A bundle whose container says three things: a secret, its process id and its host name.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::host::{Driver, HostPaths};

pub(super) const HOST_NAME: &str = "longshore-check";
/// Marks every process of a trial, so that a lost one is found by its environment.
pub(super) const MARK: &str = "LONGSHORE_CHECK";

/// Directories a dynamically linked shell needs.
const SYSTEM: [&str; 5] = ["bin", "lib", "lib32", "lib64", "usr"];

/// Where the container's `/bin/sh` comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shell {
    /// A static busybox, put into an otherwise empty root.
    Busybox(PathBuf),
    /// The host's own shell and libraries, read-only.
    Host,
}

impl Shell {
    pub(super) fn find(host: &HostPaths) -> Self {
        let busybox = host.program("busybox");
        let is_static = |path: &PathBuf| fs::read(path).is_ok_and(|image| is_static_elf(&image));
        busybox.filter(is_static).map_or(Self::Host, Self::Busybox)
    }

    /// Makes every mount point now: the runtime finds the root as it will be, and need not write.
    fn prepare(&self, rootfs: &Path) -> io::Result<Vec<Value>> {
        for dir in ["proc", "dev", "sys"] {
            fs::create_dir_all(rootfs.join(dir))?;
        }
        let bind = |source: &Path, destination: &str| {
            let options = ["rbind", "ro", "nosuid", "nodev"];
            json!({ "destination": destination, "type": "bind", "source": source, "options": options })
        };
        if let Self::Busybox(path) = self {
            fs::create_dir_all(rootfs.join("bin"))?;
            fs::write(rootfs.join("bin/sh"), "")?;
            return Ok(vec![bind(path, "/bin/sh")]);
        }
        let mut mounts = Vec::new();
        for name in SYSTEM {
            let (here, there) = (Path::new("/").join(name), rootfs.join(name));
            match fs::read_link(&here) {
                Ok(target) => symlink(target, there)?,
                Err(_) if here.is_dir() => {
                    fs::create_dir_all(there)?;
                    mounts.push(bind(&here, &format!("/{name}")));
                }
                Err(_) => {}
            }
        }
        Ok(mounts)
    }
}

/// A container that must answer with `nonce`.
pub(super) struct Bundle<'a> {
    pub(super) shell: &'a Shell,
    pub(super) nonce: &'a str,
    pub(super) spec_version: &'a str,
    pub(super) cgroups_path: &'a str,
}

impl Bundle<'_> {
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let mut mounts = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                    "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
        ];
        mounts.extend(self.shell.prepare(&dir.join("rootfs"))?);
        fs::write(dir.join("config.json"), self.config(&mounts).to_string())
    }

    /// What a container of this bundle writes to stdout if it is one: the secret, from inside
    /// its own PID and UTS namespaces.
    pub(super) fn answer(&self) -> String {
        format!("{} 1 {HOST_NAME}\n", self.nonce)
    }

    fn config(&self, mounts: &[Value]) -> Value {
        // Builtins only: there may be no other program.
        let script = r#"read name < /proc/sys/kernel/hostname; echo "$0 $$ $name""#;
        let namespaces =
            ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({ "type": kind }));
        json!({
            "ociVersion": self.spec_version,
            "hostname": HOST_NAME,
            "root": { "path": "rootfs", "readonly": true },
            "process": {
                "terminal": false,
                "cwd": "/",
                "user": { "uid": 0, "gid": 0 },
                "args": ["/bin/sh", "-c", script, self.nonce],
                "env": ["PATH=/bin", format!("{MARK}={}", self.nonce)],
                "noNewPrivileges": true,
            },
            "mounts": mounts,
            "linux": { "cgroupsPath": self.cgroups_path, "namespaces": namespaces },
        })
    }
}

/// What `cgroupsPath` looks like differs by who makes the cgroup.
pub(super) fn cgroups_path(driver: Driver, nonce: &str) -> String {
    match driver {
        Driver::Cgroupfs => format!("/longshore-check-{nonce}"),
        // Slice, prefix, name: becomes longshore-check-NONCE.scope in system.slice.
        Driver::Systemd => format!("system.slice:longshore-check:{nonce}"),
    }
}

/// The same cgroup as a directory below a hierarchy's mount point.
pub(super) fn cgroup_dir(driver: Driver, nonce: &str) -> String {
    match driver {
        Driver::Cgroupfs => format!("longshore-check-{nonce}"),
        Driver::Systemd => format!("system.slice/longshore-check-{nonce}.scope"),
    }
}

/// A little-endian ELF program that asks for no interpreter.
fn is_static_elf(image: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, len: usize| {
        let bytes = image.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let headers = || {
        // Offset, size and count of the program headers, for 64 and for 32 bits.
        let (at, size, count) = match image.get(..6)? {
            b"\x7fELF\x02\x01" => (number(32, 8)?, number(54, 2)?, number(56, 2)?),
            b"\x7fELF\x01\x01" => (number(28, 4)?, number(42, 2)?, number(44, 2)?),
            _ => return None,
        };
        let at = |index: u64| usize::try_from(at.checked_add(index * size)?).ok();
        (0..count).map(|index| number(at(index)?, 4)).collect::<Option<Vec<_>>>()
    };
    headers().is_some_and(|kinds| !kinds.is_empty() && !kinds.contains(&INTERPRETER.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dynamic_programs_are_told_from_static_ones() {
        assert!(!is_static_elf(&fs::read("/bin/ls").unwrap()));
        assert!(!is_static_elf(b"#!/bin/sh\n"));
        match fs::read("/bin/busybox") {
            Ok(image) => assert!(is_static_elf(&image)),
            Err(_) => eprintln!("SKIPPED the static half: no /bin/busybox"),
        }
    }

    #[test]
    fn config_names_cgroup_version_and_secret() {
        let bundle = Bundle {
            shell: &Shell::Host,
            nonce: "abc",
            spec_version: "1.1.0",
            cgroups_path: &cgroups_path(Driver::Systemd, "abc"),
        };
        let config = bundle.config(&[]);
        assert_eq!(config["ociVersion"], "1.1.0");
        assert_eq!(config["linux"]["cgroupsPath"], "system.slice:longshore-check:abc");
        assert_eq!(config["process"]["args"][3], "abc");
        assert_eq!(bundle.answer(), "abc 1 longshore-check\n");
    }

    #[test]
    fn host_shell_is_bound_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Shell::Host.prepare(dir.path()).unwrap();
        let usr = mounts.iter().find(|mount| mount["destination"] == "/usr").unwrap();
        assert_eq!(usr["source"], "/usr");
        assert!(usr["options"].as_array().unwrap().contains(&"ro".into()));
        assert!(dir.path().join("usr").is_dir());
    }

    proptest! {
        #[test]
        fn any_bytes_are_elf_or_not(mut image in proptest::collection::vec(any::<u8>(), 0..200), head in 0..3) {
            let magic: &[u8] = match head { 0 => b"", 1 => b"\x7fELF\x02\x01", _ => b"\x7fELF\x01\x01" };
            image.splice(0..0, magic.iter().copied());
            let _ = is_static_elf(&image);
        }
    }
}
