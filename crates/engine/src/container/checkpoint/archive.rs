//! What a checkpoint is made of, under the names that other tools know.
//!
//! | name | holds |
//! |---|---|
//! | `config.dump`, `spec.dump` | what the container is: [`Description`], OCI runtime spec |
//! | `checkpoint/` | its memory, as criu writes it |
//! | `dump.log`, `stats-dump` | what criu says of its work |
//! | `rootfs-diff.tar`, `deleted.files` | what it changed of its image, where it did |
//! | `container.log` | its log so far |
//!
//! **Invariant:** under the name of an archive there is a whole one or none.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use base::Id;
use jiff::Timestamp;
use serde::Serialize;
use snapshot::Exactly;
use tar::{Builder, EntryType, Header};

use crate::{
    error::{EngineError, Result},
    files,
    storage::GoOn,
};

pub(super) const IMAGES: &str = "checkpoint";
pub(super) const CHANGES: &str = "rootfs-diff.tar";
pub(super) const LOG: &str = "dump.log";
const DELETED: &str = "deleted.files";
const CONTAINER_LOG: &str = "container.log";

/// Where an archive goes, and what it is called until it is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    archive: PathBuf,
    /// In the same directory, so that it only has to be renamed.
    pub(super) partial: PathBuf,
}

impl Target {
    pub(super) fn of(location: &Path) -> Result<Self> {
        let invalid = |why: &str| EngineError::invalid("location", why);
        if location.as_os_str().is_empty() {
            return Err(invalid("is empty"));
        }
        if !location.is_absolute() {
            return Err(invalid("is not an absolute path"));
        }
        let ends_in_name = !location.as_os_str().as_encoded_bytes().ends_with(b"/");
        if location.file_name().is_none() || !ends_in_name {
            return Err(invalid("does not name a file"));
        }
        let name = format!(".longshore-checkpoint-{}", Id::random().short());
        Ok(Self { archive: location.to_owned(), partial: location.with_file_name(name) })
    }

    /// Empty, for its owner alone. Blocking.
    pub(super) fn create(&self) -> Result<()> {
        if self.archive.is_dir() {
            let why = format!("{} is a directory", self.archive.display());
            return Err(EngineError::invalid("location", why));
        }
        let created =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.partial);
        created.map(drop).map_err(EngineError::io("create", &self.partial))
    }
}

/// As `config.dump` has it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Description {
    pub(super) id: Id,
    pub(super) name: String,
    pub(super) rootfs_image: String,
    pub(super) rootfs_image_ref: String,
    pub(super) rootfs_image_name: String,
    pub(super) runtime: String,
    pub(super) created_time: Timestamp,
    pub(super) checkpointed_time: Timestamp,
}

impl Description {
    /// With the runtime spec beside it. Blocking.
    pub(super) fn write(&self, parts: &Path, spec: &Path) -> Result<()> {
        let json = serde_json::to_vec_pretty(self).expect("a description is JSON");
        files::write(&parts.join("config.dump"), &json, 0o600)?;
        let spec = fs::read(spec).map_err(EngineError::io("read", spec))?;
        files::write(&parts.join("spec.dump"), &spec, 0o600)
    }
}

/// Of nothing, no list. Blocking.
pub(super) fn list_deleted(parts: &Path, deleted: &[PathBuf]) -> Result<()> {
    if deleted.is_empty() {
        return Ok(());
    }
    let paths: Vec<_> = deleted.iter().map(|path| path.to_string_lossy()).collect();
    let json = serde_json::to_vec(&paths).expect("a list of texts is JSON");
    files::write(&parts.join(DELETED), &json, 0o600)
}

/// Makes one file of the parts, and of the log where there is one; returns its size. Blocking.
pub(super) fn write(
    parts: &Path,
    log: Option<&Path>,
    target: &Target,
    go_on: &GoOn,
) -> Result<u64> {
    let failed = || EngineError::io("write", &target.partial);
    let opened = OpenOptions::new().write(true).truncate(true).open(&target.partial);
    let out = BufWriter::with_capacity(256 << 10, opened.map_err(failed())?);
    let mut tar = Builder::new(out);
    for name in names(parts)? {
        let path = parts.join(&name);
        if !path.is_dir() {
            append(&mut tar, Path::new(&name), &path, go_on)?;
            continue;
        }
        let put = tar.append_data(&mut header(EntryType::Directory, 0o700), &name, io::empty());
        put.map_err(failed())?;
        for file in names(&path)? {
            append(&mut tar, &Path::new(&name).join(&file), &path.join(&file), go_on)?;
        }
    }
    if let Some(log) = log.filter(|log| log.is_file()) {
        append(&mut tar, Path::new(CONTAINER_LOG), log, go_on)?;
    }
    let out = tar.into_inner().map_err(failed())?;
    let file = out.into_inner().map_err(|e| failed()(e.into_error()))?;
    file.sync_all().map_err(failed())?;
    let bytes = file.metadata().map_err(failed())?.len();
    fs::rename(&target.partial, &target.archive)
        .map_err(EngineError::io("rename to", &target.archive))?;
    Ok(bytes)
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let failed = || EngineError::io("read", dir);
    let entries = fs::read_dir(dir).map_err(failed())?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed())?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn append(
    tar: &mut Builder<BufWriter<File>>,
    name: &Path,
    path: &Path,
    go_on: &GoOn,
) -> Result<()> {
    let failed = || EngineError::io("archive", path);
    let file = File::open(path).map_err(failed())?;
    let size = file.metadata().map_err(failed())?.len();
    let mut header = header(EntryType::Regular, 0o600);
    header.set_size(size);
    tar.append_data(&mut header, name, Exactly::new(file, size, go_on)).map_err(failed())
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(u64::try_from(Timestamp::now().as_second()).unwrap_or_default());
    header
}

/// What went wrong, from criu's log. The cause comes before what follows from it, and after what
/// criu could do without. Blocking.
pub(super) fn complaint(log: &Path) -> Option<String> {
    /// More than any log that people read.
    const MOST: u64 = 64 << 20;
    const LAST: usize = 3;
    let mut errors: Vec<String> = Vec::new();
    let mut lines = BufReader::new(File::open(log).ok()?.take(MOST));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).ok()? > 0 {
        let text = String::from_utf8_lossy(&line);
        if let Some((_, error)) = text.split_once("Error (")
            && let Some((_, error)) = error.split_once("): ")
            && !error.starts_with("Dumping FAILED")
        {
            errors.push(error.trim().to_owned());
        }
        line.clear();
    }
    let last = errors.split_off(errors.len().saturating_sub(LAST));
    (!last.is_empty()).then(|| last.join("; "))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[track_caller]
    fn refused(location: &str, why: &str) {
        let error = Target::of(Path::new(location)).unwrap_err();
        assert_eq!(error.to_string(), format!("location: {why}"));
        assert_eq!(error.kind(), base::Kind::Invalid);
    }

    #[test]
    fn a_location_names_a_file() {
        refused("", "is empty");
        refused("x.tar", "is not an absolute path");
        refused("/", "does not name a file");
        refused("/a/b/", "does not name a file");
        refused("/a/..", "does not name a file");
        let target = Target::of(Path::new("/a/b.tar")).unwrap();
        assert_eq!(target.partial.parent(), Some(Path::new("/a")));
    }

    struct Case {
        dir: tempfile::TempDir,
        target: Target,
    }

    impl Case {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let parts = dir.path().join("parts");
            fs::create_dir_all(parts.join(IMAGES)).unwrap();
            fs::write(parts.join("checkpoint/core-1.img"), "memory").unwrap();
            fs::write(parts.join("spec.dump"), "{}").unwrap();
            let target = Target::of(&dir.path().join("out.tar")).unwrap();
            target.create().unwrap();
            Self { dir, target }
        }

        fn write(&self, log: Option<&Path>, go_on: bool) -> Result<u64> {
            write(
                &self.dir.path().join("parts"),
                log,
                &self.target,
                &(Box::new(move || go_on) as _),
            )
        }
    }

    #[test]
    fn all_parts_are_in_one_file_for_its_owner_alone() {
        let case = Case::new();
        let log = case.dir.path().join("c.log");
        fs::write(&log, "said\n").unwrap();
        let bytes = case.write(Some(&log), true).unwrap();
        let out = fs::metadata(&case.target.archive).unwrap();
        assert_eq!((out.len(), out.permissions().mode() & 0o777), (bytes, 0o600));
        assert!(!case.target.partial.exists());
        let mut archive = tar::Archive::new(File::open(&case.target.archive).unwrap());
        let parts: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect();
        let want = [
            ("checkpoint", ""),
            ("checkpoint/core-1.img", "memory"),
            ("spec.dump", "{}"),
            ("container.log", "said\n"),
        ];
        assert_eq!(parts, want.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_log_that_is_gone_is_left_out() {
        let case = Case::new();
        case.write(Some(Path::new("/nowhere/c.log")), true).unwrap();
    }

    #[test]
    fn what_is_told_to_end_leaves_no_archive() {
        let case = Case::new();
        let error = case.write(None, false).unwrap_err();
        assert_eq!(error.kind(), base::Kind::Deadline, "{error}");
        assert!(!case.target.archive.exists());
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::of(dir.path()).unwrap();
        let error = target.create().unwrap_err();
        assert!(error.to_string().ends_with("is a directory"), "{error}");
    }

    #[test]
    fn the_cause_is_found_in_a_long_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(LOG);
        assert_eq!(complaint(&log), None);
        fs::write(&log, "(00.1) Warn  (criu/x.c:1): odd\n").unwrap();
        assert_eq!(complaint(&log), None);
        let text = "(00.0) Error (criu/util.c:1): rlimit: Operation not permitted\n\
                    (00.1) Error (criu/sk-inet.c:2): inet: Connected TCP socket\n\
                    (00.1) Error (criu/cr-dump.c:3): Dump files (pid: 7) failed with -1\n\
                    (00.2) Error (criu/cr-dump.c:4): Dumping FAILED.\n";
        fs::write(&log, text).unwrap();
        let want = "rlimit: Operation not permitted; inet: Connected TCP socket; \
                    Dump files (pid: 7) failed with -1";
        assert_eq!(complaint(&log).as_deref(), Some(want));
    }
}
