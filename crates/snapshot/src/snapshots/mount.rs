//! From layers and a directory for changes to a file system somewhere.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use sys::{
    host::FsType,
    idmap::{self, IdMaps},
    mount::{self, Attrs, Depth, Detached, Overlay, Unmount, Upper},
};

use super::layout::{Layout, make_dir};
use crate::{LayerDir, SnapshotError, SnapshotRecord, Snapshotter, sweep::random};

pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";
pub(crate) const ROOT: &str = "root";

/// `chain`: the layers, topmost first. `ids`: as in the record.
pub(crate) fn mount(
    layout: &Layout,
    record: &SnapshotRecord,
    chain: &[LayerDir],
    ids: Option<&IdMaps>,
    target: &Path,
) -> Result<(), SnapshotError> {
    let own = layout.snapshot(&record.key);
    if record.snapshotter == Snapshotter::Native {
        let view = mount::bind(&own.join(ROOT), Depth::One)?;
        if record.read_only_view {
            view.restrict(Attrs::READ_ONLY, Depth::One)?;
        }
        return Ok(view.attach(target)?);
    }
    let upper =
        (!record.read_only_view).then(|| Upper { dir: own.join(UPPER), work: own.join(WORK) });
    let overlay = |lower| Overlay {
        lower,
        upper,
        volatile: record.volatile,
        // An index would tie the upper directory to one set of layers on one disk.
        index: Some(false),
        label: record.label.clone(),
        ..Overlay::default()
    };
    // The kernel makes no overlay of one layer, and nothing else takes a label.
    let base = (record.read_only_view && record.label.is_some()).then(|| layout.empty());
    if chain.is_empty() {
        return Ok(overlay(vec![layout.empty()]).mount_at(target, Attrs::default())?);
    }
    let Some(ids) = ids else {
        let lower = chain.iter().map(|layer| layer.path.clone()).chain(base).collect();
        return Ok(overlay(lower).mount_at(target, Attrs::default())?);
    };
    let mapped = Mapped::new(layout, ids)?;
    let names: Vec<_> = chain.iter().filter_map(|layer| layer.path.file_name()).collect();
    let lower = |at: &Path| {
        let layers = names.iter().map(|name| at.join(name));
        layers.chain(base.clone()).collect::<Vec<_>>()
    };
    let mut overlay = overlay(lower(&mapped.by_descriptor()));
    // Before Linux 6.15 overlay takes layers only from mounts that are attached.
    if overlay.mount_at(target, Attrs::default()).is_ok() {
        return Ok(());
    }
    let attached = mapped.attach(layout)?;
    overlay.lower = lower(&attached.0);
    if let Some(upper) = &overlay.upper {
        forget_attempt(&upper.work)?;
    }
    Ok(overlay.mount_at(target, Attrs::default())?)
}

/// The kernel marks a volatile overlay before it looks at all layers; one that it then refused
/// was never seen by anybody, and its mark would bar the next attempt.
fn forget_attempt(work: &Path) -> Result<(), SnapshotError> {
    match fs::remove_dir_all(work.join("work")) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(SnapshotError::io("clear", work)(e)),
        _ => Ok(()),
    }
}

/// All layers at once, shown to the ids of a user namespace: one mount, however many
/// layers an image has.
struct Mapped(Detached);

impl Mapped {
    fn new(layout: &Layout, ids: &IdMaps) -> Result<Self, SnapshotError> {
        let layers = layout.layers();
        let all = mount::bind(&layers, Depth::One)?;
        let namespace = idmap::user_namespace(ids)?;
        match all.idmap(namespace, Depth::One) {
            Ok(()) => Ok(Self(all)),
            Err(e) if e.is(Errno::INVAL) => Err(SnapshotError::NoIdmap {
                fs: FsType::of(&layers)?.to_string(),
                root: layout.root.clone(),
            }),
            Err(e) => Err(e.into()),
        }
    }

    fn by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd()).into()
    }

    fn attach(self, layout: &Layout) -> Result<Attached, SnapshotError> {
        let point = layout.mapped().join(format!("{:016x}", random()));
        make_dir(&point)?;
        let attached = Attached(point);
        self.0.attach(&attached.0)?;
        Ok(attached)
    }
}

/// Gone with the value; what a crash leaves, the next start removes.
struct Attached(PathBuf);

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = detach(&self.0) {
            let error = base::Chain(&error);
            tracing::warn!(point = %self.0.display(), %error, "mapped layers stay mounted");
        }
    }
}

pub(crate) fn detach(point: &Path) -> Result<(), SnapshotError> {
    mount::unmount(point, Unmount::Lazy)?;
    fs::remove_dir(point).map_err(SnapshotError::io("remove", point))
}

/// At once if nobody uses it, else when the last user goes.
pub(crate) fn unmount(target: &Path) -> Result<bool, SnapshotError> {
    match mount::unmount(target, Unmount::Now) {
        Err(e) if e.is(Errno::BUSY) => Ok(mount::unmount(target, Unmount::Lazy)?),
        done => Ok(done?),
    }
}

/// Whether the kernel has marked it: mounted without syncing, and to be trusted no more.
pub(crate) fn is_spent(layout: &Layout, record: &SnapshotRecord) -> bool {
    layout.snapshot(&record.key).join(WORK).join("work/incompat/volatile").exists()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, chown};

    use sys::idmap::IdRange;

    use super::*;

    /// As kernels before 6.15 do it: the first attempt fails and leaves its mark.
    #[test]
    fn an_attempt_that_was_refused_does_not_bar_the_next() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let check = move || {
            sys::namespace::unshare_mounts().unwrap();
            let layout = Layout::open(&root, Snapshotter::Overlayfs).unwrap();
            let layer = LayerDir { path: layout.layers().join("a"), form: crate::Form::Overlay };
            fs::create_dir(&layer.path).unwrap();
            let key: crate::Key = "k".parse().unwrap();
            for part in [UPPER, "work/work/incompat/volatile"] {
                fs::create_dir_all(layout.snapshot(&key).join(part)).unwrap();
            }
            let record = SnapshotRecord {
                snapshotter: Snapshotter::Overlayfs,
                key,
                top: None,
                uids: Vec::new(),
                gids: Vec::new(),
                volatile: true,
                read_only_view: false,
                created: jiff::Timestamp::now(),
                target: None,
                spent: false,
                label: None,
            };
            let range = IdRange { inside: 0, outside: 100_000, count: 65_536 };
            let ids = IdMaps::same(vec![range]).unwrap();
            let target = root.join("target");
            fs::create_dir(&target).unwrap();
            mount(&layout, &record, &[layer], Some(&ids), &target).unwrap();
            assert!(unmount(&target).unwrap());
        };
        std::thread::spawn(check).join().unwrap();
    }

    /// On new kernels layers go by descriptor; this is how they go on old ones. A thread
    /// has a mount namespace of its own if it wants.
    #[test]
    fn mapped_layers_can_be_attached() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let check = move || {
            sys::namespace::unshare_mounts().unwrap();
            let layout = Layout::open(&root, Snapshotter::Overlayfs).unwrap();
            for name in ["a", "b"] {
                let layer = layout.layers().join(name);
                fs::create_dir(&layer).unwrap();
                fs::write(layer.join(name), name).unwrap();
                chown(layer.join(name), Some(5), Some(6)).unwrap();
            }
            let range = IdRange { inside: 0, outside: 100_000, count: 65_536 };
            let mapped = Mapped::new(&layout, &IdMaps::same(vec![range]).unwrap()).unwrap();
            let attached = mapped.attach(&layout).unwrap();
            let lower = ["a", "b"].map(|name| attached.0.join(name)).to_vec();
            let target = root.join("target");
            fs::create_dir(&target).unwrap();
            let overlay = Overlay { lower, ..Overlay::default() };
            overlay.mount_at(&target, Attrs::default()).unwrap();
            drop(attached);
            assert_eq!(fs::read_dir(layout.mapped()).unwrap().count(), 0);
            for name in ["a", "b"] {
                let meta = fs::metadata(target.join(name)).unwrap();
                assert_eq!((meta.uid(), meta.gid()), (100_005, 100_006));
            }
            assert!(unmount(&target).unwrap());
        };
        std::thread::spawn(check).join().unwrap();
    }
}
