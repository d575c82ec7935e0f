//! Programs for the images, from Debian's packages, which are unpacked and not installed: a
//! web server that starts by itself is not what a developer asked for.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// nginx, and the shell of the dynamic busybox: that of the static one runs applets without
/// a look at the file system, so that a masked `/bin/ls` would still run.
const PACKAGES: [&str; 2] = ["busybox", "nginx"];

/// Where the programs are.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) shell: PathBuf,
    pub(crate) nginx: PathBuf,
}

/// A file for an image, and where it goes.
pub(crate) type Placed = (String, Vec<u8>);

/// Downloads what `cache` does not have yet.
pub(crate) fn get(cache: &Path) -> Result<Programs> {
    let tree = cache.join("tree");
    if !tree.exists() {
        let fresh = cache.join("fresh");
        // Of a run that was cut off.
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir_all(&fresh)?;
        let script = format!(
            "apt-get -q -o Acquire::Retries=5 download {} && for p in *.deb; do dpkg-deb -x $p .; done",
            PACKAGES.join(" ")
        );
        let done = Command::new("sh").args(["-c", &script]).current_dir(&fresh).output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "get the packages {PACKAGES:?}: {said}");
        fs::rename(&fresh, &tree)?;
    }
    Ok(Programs { shell: tree.join("bin/busybox"), nginx: tree.join("usr/sbin/nginx") })
}

/// The shared libraries of `program`, as `ldd` finds them on this machine.
pub(crate) fn libraries(program: &Path) -> Result<Vec<Placed>> {
    let found = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8(found.stdout)?;
    text.lines().filter_map(path_of).map(|path| Ok((path.to_owned(), fs::read(path)?))).collect()
}

/// Of `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld.so (0x…)` the path.
fn path_of(line: &str) -> Option<&str> {
    let at = line.find('/')?;
    line[at..].split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_is_read() {
        assert_eq!(path_of("\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)"), Some("/lib/x/libc.so.6"));
        assert_eq!(path_of("\t/lib64/ld-linux.so.2 (0x7f)"), Some("/lib64/ld-linux.so.2"));
        assert_eq!(path_of("\tlinux-vdso.so.1 (0x7f)"), None);
    }
}
