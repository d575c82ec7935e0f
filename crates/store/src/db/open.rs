//! From a directory to a connection, or to one sentence and nothing left behind.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::{Access, access};

use super::{
    Database, FILE, Hold, fault, keep_log, log_exists, log_of,
    quarantine::{self, Quarantined},
    schema,
};
use crate::{error::StoreError, sync::Disk};

pub(crate) struct Opened {
    /// For the writer.
    pub(crate) db: Database,
    /// For `store-sync`.
    pub(crate) disk: Disk,
    pub(crate) quarantined: Vec<Quarantined>,
}

/// Takes the directory (making it if its parent is there), brings the file to the newest
/// schema and begins its WAL.
pub(crate) fn open(dir: &Path) -> Result<Opened, StoreError> {
    let mut made = Made::default();
    make_dir(dir, &mut made)?;
    let locked = lock(dir)?;
    access(dir, Access::WRITE_OK).map_err(|errno| refused(dir, errno))?;
    let path = dir.join(FILE);
    let file = make_file(&path, &mut made)?;
    let fresh = made.file.is_some();
    let hold = Arc::new(Hold { path, file, _dir: locked });
    let crashed = log_exists(&hold.path)?;
    let mut db = Database::connect(hold)?;
    let Database { conn, hold } = &mut db;
    let path = &hold.path;
    // If we are refused, the log is as we found it.
    keep_log(conn, crashed).map_err(fault("open", path))?;
    schema::version(conn, path)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
        .map_err(fault("open", path))?;
    schema::migrate(conn, path)?;
    if fresh {
        hold._dir.sync_all().map_err(StoreError::io("sync", dir))?;
    }
    db.mark()?;
    let disk = Disk { db: Database::connect(Arc::clone(&db.hold))?, wal: open_wal(&db)? };
    // It works while the writer stands still: a reader in its way is not waited for.
    disk.db.conn.busy_timeout(Duration::ZERO).map_err(fault("open", db.path()))?;
    for conn in [&db.conn, &disk.db.conn] {
        keep_log(conn, true).map_err(fault("open", db.path()))?;
    }
    let quarantined =
        quarantine::list(&db.conn).map_err(fault("read the quarantine of", db.path()))?;
    made.keep();
    Ok(Opened { db, disk, quarantined })
}

fn open_wal(db: &Database) -> Result<File, StoreError> {
    let path = log_of(db.path());
    File::open(&path).map_err(StoreError::io("open", path))
}

fn make_dir(dir: &Path, made: &mut Made) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => made.dir = Some(dir.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(StoreError::io("create", dir)(error)),
    }
    Ok(())
}

/// Locks the directory itself: there is no lock file to leave behind.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let handle = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECTORY.bits().cast_signed())
        .open(dir)
        .map_err(StoreError::io("open", dir))?;
    match handle.try_lock() {
        Ok(()) => Ok(handle),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", dir)(error)),
    }
}

fn make_file(path: &Path, made: &mut Made) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            made.file = Some(path.to_owned());
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.open(path).map_err(StoreError::io("open", path))
        }
        Err(error) => Err(StoreError::io("create", path)(error)),
    }
}

fn refused(dir: &Path, errno: rustix::io::Errno) -> StoreError {
    use rustix::io::Errno;
    match errno {
        // An immutable directory answers EPERM.
        Errno::ROFS | Errno::ACCESS | Errno::PERM => StoreError::ReadOnly { path: dir.to_owned() },
        errno => StoreError::io("write to", dir)(errno.into()),
    }
}

/// What this attempt created; removed again unless it is kept. Declared before the
/// connection, so that it is dropped after it.
#[derive(Default)]
struct Made {
    dir: Option<PathBuf>,
    file: Option<PathBuf>,
}

impl Made {
    fn keep(mut self) {
        self.dir = None;
        self.file = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // Best effort: the error that brought us here is the one to report.
        if let Some(file) = &self.file {
            for suffix in ["", "-wal", "-shm", "-journal"] {
                let mut path = file.as_os_str().to_owned();
                path.push(suffix);
                let _ = fs::remove_file(path);
            }
        }
        if let Some(dir) = &self.dir {
            let _ = fs::remove_dir(dir);
        }
    }
}
