//! Reading a configuration directory.
//!
//! Files ending in `.conf`, `.conflist` or `.json` count, in the order of their names; hidden
//! ones do not. The first so many are the networks. If one of these is broken, all of them
//! are: a pod on fewer networks than meant, or on the next best one, is worse than a pod that
//! waits.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::OFlags;

use crate::conf::{ConfError, Draft, NetworkList};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("configuration directory {} is not there", dir.display())]
    NoDirectory { dir: PathBuf },
    #[error("no network configuration in {}", dir.display())]
    NoFile { dir: PathBuf },
    #[error("network configuration {}", path.display())]
    Broken { path: PathBuf, source: ConfError },
    #[error("read {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// No configuration file in the field is a hundredth of this.
const MAX_FILE: u64 = 1 << 20;
/// A chain this long is a mistake, or a directory that is not for us.
const MAX_BESIDE: usize = 64;

/// The networks of `dir`, at most `max` of them, all if that is 0. Blocks.
pub(crate) fn load(dir: &Path, max: usize) -> Result<Vec<Arc<NetworkList>>, LoadError> {
    let files = match list(dir, &["conf", "conflist", "json"]) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(LoadError::NoDirectory { dir: dir.to_owned() });
        }
        files => files.map_err(|source| LoadError::Io { path: dir.to_owned(), source })?,
    };
    if files.is_empty() {
        return Err(LoadError::NoFile { dir: dir.to_owned() });
    }
    let count = if max == 0 { files.len() } else { max };
    files.iter().take(count).map(|file| network(dir, file).map(Arc::new)).collect()
}

fn network(dir: &Path, file: &Path) -> Result<NetworkList, LoadError> {
    let broken = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Broken { path, source }
    };
    let mut draft = Draft::parse(&read(file)?).map_err(broken(file))?;
    if draft.open_ended {
        let beside = dir.join(&draft.list.name);
        let more = match list(&beside, &["conf"]) {
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Vec::new()
            }
            more => more.map_err(|source| LoadError::Io { path: beside, source })?,
        };
        for path in more.iter().take(MAX_BESIDE) {
            draft.push(&read(path)?).map_err(broken(path))?;
        }
    }
    draft.finish().map_err(broken(file))
}

/// Files and links with one of the endings, in order.
fn list(dir: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let ending = path.extension().and_then(|ending| ending.to_str());
        let counts = !hidden && ending.is_some_and(|ending| endings.contains(&ending));
        if counts && !entry.file_type()?.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    // Without waiting: opening a named pipe would, for ever.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "not a file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn conf(name: &str) -> String {
        format!(r#"{{"cniVersion":"1.0.0","name":"{name}","type":"x"}}"#)
    }

    fn dir(files: &[(&str, &str)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], max: usize, want: &str) {
        let dir = dir(files);
        let got = match load(dir.path(), max) {
            Ok(networks) => {
                let names: Vec<_> = networks.iter().map(|network| network.name.as_str()).collect();
                names.join(" ")
            }
            Err(error) => base::Chain(&error).to_string(),
        };
        assert_eq!(got.replace(dir.path().to_str().unwrap(), "DIR"), want, "{files:?}");
    }

    #[test]
    fn the_first_files_count() {
        let (a, b) = (conf("a"), conf("b"));
        check(&[("20.conf", &b), ("10.conflist", &a)], 1, "a");
        check(&[("20.json", &b), ("10.conflist", &a)], 2, "a b");
        check(&[("20.json", &b), ("10.conflist", &a)], 0, "a b");
        check(&[("10.txt", &a), (".10.conf", &a), ("10.conf.d/x", &a), ("20.conf", &b)], 1, "b");
    }

    #[test]
    fn nothing_and_broken_are_told_apart() {
        let (a, b) = (conf("a"), conf("b"));
        check(&[], 1, "no network configuration in DIR");
        check(
            &[("10.conf", ""), ("20.conf", &b)],
            1,
            "network configuration DIR/10.conf: not JSON: EOF while parsing a value at line 1 column 0",
        );
        // Not among the first, not looked at.
        check(&[("10.conf", &a), ("20.conf", "")], 1, "a");
        check(
            &[("10.conf", &a), ("20.conf", "{}")],
            2,
            "network configuration DIR/20.conf: name is missing",
        );
        let gone = load(Path::new("/nowhere/net.d"), 1).unwrap_err();
        assert_eq!(gone.to_string(), "configuration directory /nowhere/net.d is not there");
    }

    #[test]
    fn programs_beside_the_file_join_the_chain() {
        let list = r#"{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"a"}]}"#;
        let dir = dir(&[
            ("10.conflist", list),
            ("pods/2.conf", r#"{"type":"c"}"#),
            ("pods/1.conf", r#"{"type":"b"}"#),
        ]);
        let networks = load(dir.path(), 1).unwrap();
        let programs: Vec<_> = networks[0].plugins.iter().map(|p| p.program.as_str()).collect();
        assert_eq!(programs, ["a", "b", "c"]);
        fs::write(dir.path().join("pods/3.conf"), "{").unwrap();
        assert!(load(dir.path(), 1).unwrap_err().to_string().ends_with("pods/3.conf"));
    }

    #[test]
    fn strange_files_do_not_stop_us() {
        let strange = dir(&[]);
        let pipe = strange.path().join("10.conf");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        assert!(matches!(load(strange.path(), 1), Err(LoadError::Io { .. })));
        fs::remove_file(&pipe).unwrap();
        File::create(&pipe).unwrap().set_len(MAX_FILE + 1).unwrap();
        assert!(matches!(load(strange.path(), 1), Err(LoadError::Io { .. })));
        fs::remove_file(&pipe).unwrap();
        std::os::unix::fs::symlink("/nowhere", &pipe).unwrap();
        assert!(matches!(load(strange.path(), 1), Err(LoadError::Io { .. })));
    }
}
