//! The daemon's root: file system, space, overlay and idmapped mounts, all really tried.

use std::path::Path;

use rustix::fs::statvfs;

use crate::{
    host::{HostPaths, Settings, human_bytes, is_read_only},
    overlay::{OverlayError, try_overlay},
    report::Row,
};

const GROUP: &str = "storage";

pub(crate) fn rows(host: &HostPaths, settings: &Settings) -> Vec<Row> {
    let place = settings.root_or_ancestor();
    vec![root(host, settings, place), overlay(place), idmap(place)]
}

fn root(host: &HostPaths, settings: &Settings, place: &Path) -> Row {
    let name = "root";
    let real = place.canonicalize().unwrap_or_else(|_| place.to_owned());
    let mounts = host.mounts();
    let mount = mounts.covering(&real);
    let kind = mount.map_or("unknown", |mount| mount.fs_type.as_str());
    let space = match statvfs(place) {
        Ok(space) => space,
        Err(error) => {
            return Row::ok(GROUP, name, place.display().to_string())
                .fail(format!("the file system cannot be asked: {error}"))
                .remedy("choose another root");
        }
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let all = space.f_blocks.saturating_mul(space.f_frsize);
    let (free_text, all_text) = (human_bytes(free), human_bytes(all));
    let place = place.display();
    let row = Row::ok(GROUP, name, format!("{kind} at {place}, {free_text} free of {all_text}"));
    let elsewhere = "choose a root on ext4, xfs or btrfs";
    if mount.is_some_and(is_read_only) {
        return row.fail("it is mounted read-only").remedy("remount it, or choose another root");
    }
    if free < settings.min_free_bytes {
        let wanted = human_bytes(settings.min_free_bytes);
        return row
            .warn(format!("less than {wanted} are free: pulls and writes of containers will fail"))
            .remedy("free some space, or choose another root");
    }
    match kind {
        "ext4" | "xfs" | "btrfs" | "zfs" | "f2fs" | "bcachefs" => row,
        "tmpfs" | "ramfs" => {
            row.warn("images and state are lost at reboot and cost memory").remedy(elsewhere)
        }
        kind => row
            .warn(format!("{kind} is not known to carry overlayfs layers and SQLite well"))
            .remedy(elsewhere),
    }
}

fn overlay(place: &Path) -> Row {
    let row = Row::ok(GROUP, "overlayfs", "two layers, whiteouts, opaque directories, xattrs");
    let failed = match try_overlay(place) {
        Ok(()) => return row,
        Err(error) => error,
    };
    let remedy = match &failed {
        OverlayError::Absent => "modprobe overlay, or use a kernel with CONFIG_OVERLAY_FS",
        OverlayError::NotPermitted => "run as root",
        OverlayError::Prepare(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "run as root"
        }
        _ => "choose a root on ext4, xfs (made with ftype=1) or btrfs",
    };
    let found = format!("does not work at {}", place.display());
    Row { found, ..row }.fail(failed.to_string()).remedy(remedy)
}

fn idmap(place: &Path) -> Row {
    let row = Row::ok(GROUP, "idmapped mounts", "work");
    let lost = "layers cannot be shared by pods with a user namespace: each gets a copy";
    match sys::idmap::works_on(place) {
        Ok(true) => row,
        Ok(false) => Row { found: "not on this file system".into(), ..row }
            .warn(lost)
            .remedy("choose a root on ext4, xfs or btrfs, with Linux 5.12 or newer"),
        Err(error) => Row { found: "cannot be tried".into(), ..row }
            .warn(format!("{lost}: {error}"))
            .remedy("run as root, with user namespaces allowed"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect, is_root},
    };

    #[track_caller]
    fn check(fake: &FakeHost, settings: &Settings, name: &str, want: Verdict, text: &str) {
        expect(&rows(&fake.paths, settings), name, want, text);
    }

    fn at(fake: &FakeHost, root: impl Into<PathBuf>) -> Settings {
        Settings { root: root.into(), ..fake.settings() }
    }

    #[test]
    fn root_fails() {
        let fake = FakeHost::good();
        let good = fake.settings();
        check(&fake, &good, "root", Verdict::Ok, "ext4");
        let greedy = Settings { min_free_bytes: u64::MAX, ..good.clone() };
        check(&fake, &greedy, "root", Verdict::Warn, "16383 PiB are free");
        for (mount, want, text) in [
            ("/ tmpfs rw rw", Verdict::Warn, "lost at reboot"),
            ("/ nfs4 rw rw", Verdict::Warn, "nfs4 is not known"),
            ("/ ext4 ro rw", Verdict::Fail, "read-only"),
            ("/ ext4 rw ro", Verdict::Fail, "read-only"),
        ] {
            fake.mounts(&[mount]);
            check(&fake, &good, "root", want, text);
        }
    }

    #[test]
    fn overlay_fails_where_nothing_can_be_written() {
        let fake = FakeHost::good();
        check(&fake, &at(&fake, "/proc/sys"), "overlayfs", Verdict::Fail, "cannot prepare");
    }

    #[test]
    fn overlay_works_for_root() {
        if !is_root("overlay_works_for_root") {
            return;
        }
        let fake = FakeHost::good();
        // The root does not exist yet: its parent is tried.
        check(&fake, &fake.settings(), "overlayfs", Verdict::Ok, "two layers");
    }

    #[test]
    fn idmapped_mounts_fail_where_the_file_system_has_none() {
        if !is_root("idmapped_mounts_fail_where_the_file_system_has_none") {
            return;
        }
        let fake = FakeHost::good();
        check(&fake, &fake.settings(), "idmapped mounts", Verdict::Ok, "work");
        check(
            &fake,
            &at(&fake, "/proc"),
            "idmapped mounts",
            Verdict::Warn,
            "not on this file system",
        );
    }

    /// Capabilities belong to a thread: this one gives its own up and tries.
    #[test]
    fn trials_fail_without_the_privilege_to_mount() {
        if !is_root("trials_fail_without_the_privilege_to_mount") {
            return;
        }
        let fake = FakeHost::good();
        let rows = std::thread::spawn({
            let (paths, settings) = (fake.paths.clone(), fake.settings());
            move || {
                let mut held = rustix::thread::capabilities(None).unwrap();
                held.effective.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
                rustix::thread::set_capabilities(None, held).unwrap();
                rows(&paths, &settings)
            }
        });
        let rows = rows.join().unwrap();
        expect(&rows, "overlayfs", Verdict::Fail, "run as root");
        expect(&rows, "idmapped mounts", Verdict::Warn, "run as root");
    }
}
