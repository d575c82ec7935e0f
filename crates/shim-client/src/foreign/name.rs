//! From the name of a runtime to the binary of its shim.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// Why a name means no binary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("{0:?} is neither an absolute path nor a name like \"io.containerd.runc.v2\"")]
    Malformed(String),
    #[error("no {binary} on PATH, for {name:?}")]
    NotFound { name: String, binary: String },
}

/// `io.containerd.runc.v2` is `containerd-shim-runc-v2`: the last two parts count. An absolute
/// path is itself.
///
/// ```
/// # use shim_client::shim_binary_name;
/// assert_eq!(shim_binary_name("io.containerd.runc.v2").as_deref(), Ok("containerd-shim-runc-v2"));
/// assert_eq!(shim_binary_name("/opt/kata/shim").as_deref(), Ok("/opt/kata/shim"));
/// assert!(shim_binary_name("bin/shim").is_err());
/// ```
pub fn shim_binary_name(name: &str) -> Result<String, BadName> {
    if name.starts_with('/') {
        return Ok(name.to_owned());
    }
    let malformed = || BadName::Malformed(name.to_owned());
    let mut parts = name.rsplit('.');
    match (parts.next(), parts.next()) {
        (Some(version), Some(runtime))
            if !name.contains('/') && !name.starts_with('.') && !version.is_empty() =>
        {
            Ok(format!("containerd-shim-{runtime}-{version}"))
        }
        _ => Err(malformed()),
    }
}

/// The binary itself, looked for in the directories of `path`.
pub fn find_shim(name: &str, path: &OsStr) -> Result<PathBuf, BadName> {
    let binary = shim_binary_name(name)?;
    let found = match binary.starts_with('/') {
        true => Some(PathBuf::from(&binary)).filter(|path| path.is_file()),
        false => std::env::split_paths(path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(&binary))
            .find(|path: &PathBuf| Path::is_file(path)),
    };
    found.ok_or_else(|| BadName::NotFound { name: name.to_owned(), binary })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_binaries() {
        let check = |name: &str, want: &str| assert_eq!(shim_binary_name(name).unwrap(), want);
        check("io.containerd.kata.v2", "containerd-shim-kata-v2");
        check("io.containerd.kata-qemu.v2", "containerd-shim-kata-qemu-v2");
        check("runsc.v1", "containerd-shim-runsc-v1");
        for name in ["", "runc", ".v2", "./x.v2", "a/b.v2", "io.runc."] {
            assert_eq!(shim_binary_name(name), Err(BadName::Malformed(name.to_owned())));
        }
    }

    #[test]
    fn binaries_are_found_on_the_path_only() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("containerd-shim-x-v2");
        let path = std::env::join_paths([Path::new("."), dir.path()]).unwrap();
        let missing = find_shim("io.x.v2", &path).unwrap_err();
        assert_eq!(missing.to_string(), "no containerd-shim-x-v2 on PATH, for \"io.x.v2\"");
        std::fs::write(&binary, "").unwrap();
        assert_eq!(find_shim("io.x.v2", &path).unwrap(), binary);
        assert_eq!(find_shim(binary.to_str().unwrap(), OsStr::new("")).unwrap(), binary);
        assert!(find_shim("/nowhere/shim", &path).is_err());
    }
}
