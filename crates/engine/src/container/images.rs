//! Images that a container mounts: each shown read-only in the bundle, for this container alone.
//!
//! The layers are shared with everybody, so a view costs one mount; and what belongs to one
//! container goes with it, also after a crash.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::AsRawFd,
    path::{Component, Path, PathBuf},
};

use oci::MountSource;
use rustix::fs::{Mode, OFlags};
use sys::beneath::Root;

use super::{labels, make::mapping};
use crate::{
    error::{EngineError, Result},
    files::{blocking, make_dir},
    record::{ContainerRecord, MountedImage, PodRecord},
    shared::Shared,
    storage::NewView,
};

/// Which mounts of the request are of images, and which.
fn wanted(container: &ContainerRecord) -> impl Iterator<Item = (usize, &str)> {
    let mounts = container.request.container.mounts.iter().enumerate();
    mounts.filter_map(|(number, mount)| match &mount.source {
        MountSource::Image { reference, .. } => Some((number, reference.as_str())),
        _ => None,
    })
}

/// Idempotent.
pub(super) async fn show(
    shared: &Shared,
    pod: &PodRecord,
    container: &ContainerRecord,
) -> Result<BTreeMap<usize, MountedImage>> {
    let mut shown = BTreeMap::new();
    for (number, reference) in wanted(container) {
        let image = show_one(shared, pod, container, number, reference).await;
        shown.insert(number, image.map_err(|source| failed(number, source))?);
    }
    Ok(shown)
}

async fn show_one(
    shared: &Shared,
    pod: &PodRecord,
    container: &ContainerRecord,
    number: usize,
    reference: &str,
) -> Result<MountedImage> {
    let image = shared.storage.image(reference).await?;
    let target = shared.layout.image(&pod.id, &container.id, number);
    let dir = target.clone();
    blocking(move || make_dir(&dir, 0o711)).await?;
    let view = NewView {
        container: container.id,
        number,
        image: image.id.clone(),
        chain: image.chain,
        snapshotter: shared.handler(&pod.handler)?.snapshotter.clone(),
        target,
        mapping: mapping(pod),
        label: labels::of(shared, pod, &container.request.container)?.map(|labels| labels.mount),
    };
    shared.storage.show(view).await?;
    Ok(MountedImage { id: image.id, repo_digest: image.repo_digest })
}

/// Of what was never shown, nothing.
pub(super) async fn hide(shared: &Shared, container: &ContainerRecord) -> Result<()> {
    for (number, _) in wanted(container) {
        shared.storage.hide(container.id, number).await?;
    }
    Ok(())
}

/// Where the wanted part of the image shown at `root` is. Blocking.
pub(super) fn part(number: usize, root: &Path, sub_path: Option<&Path>) -> Result<PathBuf> {
    let Some(sub_path) = sub_path else { return Ok(root.to_owned()) };
    within(root, sub_path).map_err(|source| failed(number, source))
}

/// The links on the way are the image's own and stay inside; what is found does not change.
fn within(root: &Path, sub_path: &Path) -> Result<PathBuf> {
    let refuse = |why: String| {
        EngineError::invalid("image_sub_path", format_args!("{:?} {why}", sub_path.display()))
    };
    stays_inside(sub_path).map_err(|why| refuse(why.to_owned()))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = Root::open(root)?.open_in_root(sub_path, flags, Mode::empty());
    let dir =
        opened.map_err(|e| refuse(format!("is no directory of the image: {}", base::Chain(&e))))?;
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    fs::read_link(&link).map_err(EngineError::io("read", link))
}

/// Refuses what the kernel would clamp to the root of the image.
fn stays_inside(sub_path: &Path) -> std::result::Result<(), &'static str> {
    let mut depth = 0_usize;
    for component in sub_path.components() {
        depth = match component {
            Component::RootDir | Component::Prefix(_) => return Err("must be a relative path"),
            Component::ParentDir => depth.checked_sub(1).ok_or("leads out of the image")?,
            Component::Normal(_) => depth + 1,
            Component::CurDir => depth,
        };
    }
    Ok(())
}

fn failed(number: usize, source: EngineError) -> EngineError {
    EngineError::ImageVolume { field: format!("mounts[{number}]"), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_part_of_an_image_is_a_directory_inside_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("view");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("a/file"), "x").unwrap();
        symlink("/a/b", root.join("link")).unwrap();
        symlink("../../../../../../etc", root.join("a/up")).unwrap();
        let found = |sub: &str| within(&root, Path::new(sub));
        assert_eq!(found("a/b").unwrap(), root.join("a/b"));
        assert_eq!(found("./a/../a").unwrap(), root.join("a"));
        assert_eq!(found("link").unwrap(), root.join("a/b"));
        assert_eq!(found("a/up").unwrap(), root.join("etc"), "the image's own");
        for (sub_path, why) in [
            ("no", "is no directory of the image: open no: No such file or directory"),
            ("a/file", "is no directory of the image: open a/file: Not a directory"),
            ("/a", "must be a relative path"),
            ("..", "leads out of the image"),
            ("a/../..", "leads out of the image"),
            ("a/../../etc", "leads out of the image"),
        ] {
            let error = found(sub_path).unwrap_err().to_string();
            assert!(error.contains(&format!("{sub_path:?} {why}")), "{error}");
        }
    }
}
