//! The machine's own system: Debian of the host's release, because the tests are linked against
//! the host's C library.
//!
//! Made once and kept. Its name tells what it was made of, so that a changed list makes another.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::machine::{run_quietly, show};

const SIZE: &str = "8G";

/// What clusters have, then what our tests ask for, then what the images of critest are made of.
const PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "systemd",
    "systemd-sysv",
    "dbus",
    "kmod",
    "apparmor",
    "selinux-policy-default",
    "runc",
    "crun",
    "criu",
    "containernetworking-plugins",
    "iptables",
    "iproute2",
    "sudo",
    "ca-certificates",
    "busybox-static",
    "sqlite3",
    "strace",
    "procps",
    "gcc",
    "libc6-dev",
    "libssl3",
    "libpcre2-8-0",
    "zlib1g",
];

/// Runs what lies on the second disk, says all on the second serial port, and is gone.
const UNIT: &str = "\
[Unit]
Description=Tests of longshore
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/bin/sh /etc/longshore-test
";

const STARTER: &str = r#"#!/bin/sh
stty -F /dev/ttyS1 raw
exec >/dev/ttyS1 2>&1
mkdir /payload
mount -o ro /dev/vdb /payload && sh /payload/start
systemctl poweroff --force --force
"#;

#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) disk: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
}

/// Makes what `cache` does not have yet, which takes minutes.
pub(crate) fn get(cache: &Path) -> Result<Image> {
    let release = release(&fs::read_to_string("/etc/os-release").context("read /etc/os-release")?)?;
    let parts = format!("{release} {} {UNIT}{STARTER}{SIZE}", PACKAGES.join(" "));
    let dir = cache.join(format!("{release}-{:016x}", fingerprint(&parts)));
    if !dir.exists() {
        let fresh = cache.join("fresh");
        // Of a run that was cut off, and systems made of other parts.
        remove(cache)?;
        fs::create_dir_all(&fresh).with_context(show("create", &fresh))?;
        make(&fresh, &release)?;
        fs::rename(&fresh, &dir).with_context(show("rename", &fresh))?;
    }
    Ok(Image {
        disk: dir.join("root.img"),
        kernel: dir.join("vmlinuz"),
        initrd: dir.join("initrd"),
    })
}

fn remove(cache: &Path) -> Result<()> {
    match fs::remove_dir_all(cache) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(show("remove", cache))
        }
        _ => Ok(()),
    }
}

fn make(dir: &Path, release: &str) -> Result<()> {
    println!("test-vm: making a Debian system ({release}), once");
    let root = dir.join("root");
    // What it mounts goes with the namespace, however it ends.
    let mut bootstrap = Command::new("unshare");
    bootstrap.args(["--mount", "--propagation=private", "debootstrap", "--variant=minbase"]);
    bootstrap.arg(format!("--include={}", PACKAGES.join(","))).arg(release).arg(&root);
    run_quietly(bootstrap)?;
    let units = root.join("etc/systemd/system");
    let wants = units.join("multi-user.target.wants");
    fs::create_dir_all(&wants).with_context(show("create", &wants))?;
    let files = [
        (units.join("longshore-test.service"), UNIT),
        (root.join("etc/longshore-test"), STARTER),
        (root.join("etc/hostname"), "vm\n"),
    ];
    for (path, text) in files {
        fs::write(&path, text).with_context(show("write", &path))?;
    }
    let link = wants.join("longshore-test.service");
    std::os::unix::fs::symlink("../longshore-test.service", &link)
        .with_context(show("link", &link))?;
    for name in ["vmlinuz", "initrd"] {
        take_out(&root.join("boot"), name, &dir.join(name))?;
    }
    make_disk(&root, &dir.join("root.img"), SIZE)?;
    fs::remove_dir_all(&root).with_context(show("remove", &root))
}

/// A file system with the content of `dir`, without mounting anything.
pub(crate) fn make_disk(dir: &Path, disk: &Path, size: &str) -> Result<()> {
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-E", "root_owner=0:0", "-d"]).arg(dir).arg(disk).arg(size);
    run_quietly(mkfs)
}

/// The one file of the directory whose name begins so.
fn take_out(dir: &Path, prefix: &str, to: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(show("read", dir))?;
    let mut names = entries.flatten().map(|entry| entry.path());
    let found = names.find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    });
    let found = found.with_context(|| format!("{} has no {prefix}", dir.display()))?;
    fs::copy(&found, to).with_context(show("copy", &found)).map(drop)
}

fn release(os_release: &str) -> Result<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.context("/etc/os-release has no VERSION_CODENAME")?.trim_matches('"');
    ensure!(!name.is_empty(), "VERSION_CODENAME is empty");
    Ok(name.to_owned())
}

/// FNV-1a: the same on every machine and with every compiler.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_hosts() {
        let file = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(release(file).unwrap(), "bookworm");
        assert_eq!(release("VERSION_CODENAME=\"noble\"").unwrap(), "noble");
        assert!(release("ID=x\n").is_err());
    }

    #[test]
    fn another_list_is_another_system() {
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint("a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(fingerprint("a b"), fingerprint("b a"));
    }
}
