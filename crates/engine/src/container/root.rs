//! The root file system of a container whose task is deleted to be made again.
//!
//! It is ours, and it is mounted once; but some shims unmount it with the task.

use std::path::PathBuf;

use sys::mount::{self, Depth, Detached};

use crate::error::Result;

/// What is mounted there, held so that it can be put back.
#[derive(Debug)]
pub(crate) struct HeldRoot {
    path: PathBuf,
    mount: Detached,
}

impl HeldRoot {
    /// `None`: nothing is mounted there.
    pub(crate) fn of(path: PathBuf) -> Result<Option<Self>> {
        if !mount::is_mount_point(&path)? {
            return Ok(None);
        }
        let mount = mount::bind(&path, Depth::Tree)?;
        Ok(Some(Self { path, mount }))
    }

    /// Only while nobody else mounts or unmounts it.
    pub(crate) fn put_back(self) -> Result<()> {
        if !mount::is_mount_point(&self.path)? {
            self.mount.attach(&self.path)?;
        }
        Ok(())
    }
}
