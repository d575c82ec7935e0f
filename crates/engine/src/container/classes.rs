//! Classes that an operator defines and a pod names: of block I/O in a file, of cache and memory
//! bandwidth (RDT) in resctrl. Looked up when one is named, so that what was defined a moment ago
//! counts. All blocking.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Component, Path, PathBuf},
};

use base::{Kind, Labels};
use oci::{BlockIoClasses, ClassFacts, ContainerRequest, LinuxBlockIo, path_matches};
use rustix::fs::{major, minor};

use crate::error::{EngineError, Result};

const RESCTRL: &str = "/sys/fs/resctrl";

/// `file` defines the classes of block I/O.
pub(super) fn gather(
    file: &Path,
    request: &ContainerRequest,
    pod_annotations: &Labels,
) -> Result<ClassFacts> {
    let named = oci::classes(request, pod_annotations);
    let block_io = named.block_io.map(|name| block_io(file, name)).transpose()?.flatten();
    let rdt = named.rdt.map(|_| rdt()).transpose()?.flatten();
    Ok(ClassFacts { block_io, rdt })
}

pub(crate) fn block_io(file: &Path, name: &str) -> Result<Option<LinuxBlockIo>> {
    let text = match fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(EngineError::io("read classes of block I/O", file))?,
    };
    let classes = BlockIoClasses::parse(&text).map_err(|why| EngineError::Failed {
        doing: format!("read classes of block I/O {}", file.display()),
        why,
        kind: Kind::FailedPrecondition,
    })?;
    let class = classes.class(name, &|pattern| devices(Path::new(pattern)));
    Ok(class.transpose()?)
}

/// The classes of RDT; `None` where resctrl is not mounted.
pub(crate) fn rdt() -> Result<Option<BTreeSet<String>>> {
    rdt_at(Path::new(RESCTRL))
}

/// Directories that are classes; the kernel's own lie among them.
fn rdt_at(root: &Path) -> Result<Option<BTreeSet<String>>> {
    const KERNELS: [&str; 3] = ["info", "mon_data", "mon_groups"];
    if !root.join("schemata").exists() {
        return Ok(None);
    }
    let entries = fs::read_dir(root).map_err(EngineError::io("read", root))?;
    let dirs = entries.flatten().filter(|entry| entry.path().is_dir());
    let names = dirs.filter_map(|entry| entry.file_name().into_string().ok());
    Ok(Some(names.filter(|name| !KERNELS.contains(&name.as_str())).collect()))
}

/// The block devices that a pattern of paths means; one may be there by many names.
fn devices(pattern: &Path) -> Vec<(u32, u32)> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.components() {
        let Component::Normal(part) = part else { continue };
        let part = part.to_string_lossy();
        found = found.iter().flat_map(|dir| below(dir, &part)).collect();
    }
    found.iter().filter_map(|path| number(path)).collect()
}

fn below(dir: &Path, part: &str) -> Vec<PathBuf> {
    if !part.contains(['*', '?', '[', '\\']) {
        return vec![dir.join(part)];
    }
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .filter(|name| path_matches(part, &name.to_string_lossy()))
        .map(|name| dir.join(name))
        .collect()
}

fn number(path: &Path) -> Option<(u32, u32)> {
    let meta = fs::metadata(path).ok()?;
    meta.file_type().is_block_device().then(|| (major(meta.rdev()), minor(meta.rdev())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdt_classes_are_directories_but_not_the_kernels() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(rdt_at(dir.path()).unwrap(), None, "not mounted");
        for name in ["gold", "info", "mon_groups", "mon_data"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("schemata"), "L3:0=f").unwrap();
        assert_eq!(rdt_at(dir.path()).unwrap(), Some(BTreeSet::from(["gold".to_owned()])));
    }

    #[test]
    fn patterns_find_block_devices_and_nothing_else() {
        assert_eq!(devices(Path::new("/dev/nul[l]")), [], "not a block device");
        assert_eq!(devices(Path::new("/no/such/*")), []);
        let all = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        for name in all.filter_map(|entry| entry.file_name().into_string().ok()) {
            let Some(device) = number(&Path::new("/dev").join(&name)) else { continue };
            assert!(devices(Path::new("/dev/*")).contains(&device), "{name}");
            assert!(devices(&Path::new("/dev").join(&name)).contains(&device), "{name}");
        }
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("classes.yaml");
        assert_eq!(block_io(&file, "slow").unwrap(), None);
        fs::write(&file, "Classes:\n  slow:\n    - Weight: 20\n").unwrap();
        assert_eq!(block_io(&file, "slow").unwrap().unwrap().weight(), Some(20));
        assert_eq!(block_io(&file, "fast").unwrap(), None);
        fs::write(&file, "nonsense").unwrap();
        let error = block_io(&file, "slow").unwrap_err().to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
}
