//! What the shim leaves on disk for the case that it is killed.
//!
//! **Invariant:** a file is there whole or not at all.

use std::{
    fs,
    path::{Path, PathBuf},
};

use api_shim::start::{ExitRecord, TaskRecord, start_time};

use crate::{
    clock,
    error::{Error, Result},
    process::Ended,
};

/// A file that is replaced, never written to in place. No fsync: it is to survive us, not
/// the machine.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = PathBuf::from(next);
    fs::write(&next, bytes).map_err(Error::on("write", &next))?;
    fs::rename(&next, path).map_err(Error::on("write", path))
}

/// The record of one task, see [`TaskRecord`].
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
}

impl Record {
    pub(crate) fn new(dir: &Path, id: &str) -> Self {
        Self { path: dir.join(id) }
    }

    pub(crate) fn write(&self, record: &TaskRecord) -> Result<()> {
        let bytes = serde_json::to_vec(record).map_err(Error::on("write", &self.path))?;
        replace(&self.path, &bytes)
    }

    pub(crate) fn remove(&self) {
        // The directory goes with the pod, so a file that stays is no leak.
        let _ = fs::remove_file(&self.path);
    }
}

pub(crate) fn exit(ended: &Ended, oom: bool) -> ExitRecord {
    ExitRecord { status: ended.status, at: clock::unix_nanos(ended.at), oom }
}

/// Together with the number it names a process for ever.
pub(crate) fn start_time_of(pid: u32) -> Option<u64> {
    start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}
