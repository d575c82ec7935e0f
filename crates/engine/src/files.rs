//! Small blocking file work, off the async threads.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use crate::error::{EngineError, Result};

/// Runs blocking work on a thread made for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(_) => Err(EngineError::Closing),
    }
}

pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(EngineError::io("create directory", path))
}

/// Reads a file of ours. Blocking.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(EngineError::io("read", path))?;
    serde_json::from_slice(&text).map_err(|e| {
        EngineError::failed(format!("parse {}", path.display()), base::Kind::Internal, &e)
    })
}

pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let failed = |e| EngineError::io("write", path)(e);
    fs::write(path, content).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)
}

/// So that a reader, or a daemon after a crash, sees the old content or the new.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let new: PathBuf = path.with_extension("new");
    fs::write(&new, content).map_err(EngineError::io("write", &new))?;
    fs::rename(&new, path).map_err(EngineError::io("replace", path))
}

/// What is not there is removed already.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(EngineError::io("remove directory", path)(e))
        }
        _ => Ok(()),
    }
}
