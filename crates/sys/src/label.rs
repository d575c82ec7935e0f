//! SELinux labels of files: an extended attribute of each.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{fs::XattrFlags, io::Errno};

use crate::error::{Error, Result, on};

const NAME: &str = "security.selinux";

/// Labels `path` and all below it; links themselves, not what they lead to. A file system
/// without labels is left as it is, and so is what vanishes meanwhile.
pub fn set_tree(path: &Path, label: &str) -> Result<()> {
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        if !set(&path, label)? {
            continue;
        }
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            waiting.extend(children(&path)?);
        }
    }
    Ok(())
}

/// Whether the file system took it.
fn set(path: &Path, label: &str) -> Result<bool> {
    // As the kernel gives it: with its end.
    let value = [label.as_bytes(), b"\0"].concat();
    match rustix::fs::lsetxattr(path, NAME, &value, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::NOENT) => Ok(false),
        // A read-only one may be mounted on the way.
        Err(Errno::ROFS) if get(path).is_ok_and(|now| now == label) => Ok(true),
        Err(e) => Err(on("label", path)(e)),
    }
}

/// The label of the file itself.
pub fn get(path: &Path) -> Result<String> {
    let mut value = [0; 4096];
    let len =
        rustix::fs::lgetxattr(path, NAME, &mut value).map_err(on("read the label of", path))?;
    let text = String::from_utf8_lossy(&value[..len]);
    Ok(text.trim_end_matches('\0').to_owned())
}

fn children(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: io::Error| {
        let errno = e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        Error::new(format!("read directory {}", dir.display()), errno)
    };
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(failed)?,
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

    /// Works without SELinux: to the kernel it is then an attribute as any other.
    #[test]
    fn a_tree_is_labelled_and_links_are_not_followed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        fs::write(&outside, "x").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        set_tree(&tree, LABEL).unwrap();
        if get(&tree).is_err() {
            return; // this file system has none
        }
        for path in ["", "a", "a/b", "a/b/file", "a/link"] {
            assert_eq!(get(&tree.join(path)).unwrap(), LABEL, "{path}");
        }
        assert!(get(&outside).map_or(true, |label| label != LABEL));
        set_tree(Path::new("/proc/self/status"), LABEL).unwrap();
        set_tree(&dir.path().join("nothing"), LABEL).unwrap();
    }
}
