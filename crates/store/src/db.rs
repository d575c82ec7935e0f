//! SQLite, and the only modules that name it.
//!
//! Every connection runs with `journal_mode=WAL`, `synchronous=NORMAL` and
//! `wal_autocheckpoint=0`: a commit writes frames and syncs nothing, checkpoints come
//! when `store-sync` makes them. One sync is left in SQLite's writer, that of the header
//! when a WAL begins. So a WAL is always begun by [`Database::mark`], a write of one
//! counter, on a thread that may wait: at open, and after each complete checkpoint.
//!
//! POSIX drops all locks a process has on a file when it closes *any* descriptor of that
//! file. [`Hold`] therefore keeps its descriptor of the database as long as a connection
//! lives.

pub(crate) mod check;
pub(crate) mod open;
pub(crate) mod quarantine;
mod schema;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, config::DbConfig, ffi};

use crate::{
    error::StoreError,
    record::{RawRow, Record},
};

pub(crate) const FILE: &str = "state.db";

/// Another process that writes (it should not) is waited for this long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// KiB of pages each connection may keep; our reads come from memory anyway.
const CACHE_KIB: i64 = 512;

/// One connection and what must outlive it.
pub(crate) struct Database {
    conn: Connection,
    hold: Arc<Hold>,
}

/// Dropped when the last connection is closed.
pub(crate) struct Hold {
    path: PathBuf,
    /// The database's own descriptor, to sync it beside SQLite.
    file: File,
    /// The state directory, locked against other processes.
    _dir: File,
}

/// The SQL of one table, made once.
#[derive(Debug)]
pub(crate) struct Statements {
    put: String,
    delete: String,
}

/// What one operation does to its table; no row means delete.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) statements: Arc<Statements>,
    pub(crate) key: String,
    pub(crate) row: Option<Row>,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) version: u32,
    pub(crate) value: String,
}

/// What to do with a row that was read at start.
pub(crate) enum Verdict {
    Keep,
    Rewrite(Row),
    Quarantine(String),
}

/// A reader that stands still: checkpoints do not move what it does not see.
pub(crate) struct Pin {
    _conn: Connection,
}

pub(crate) const fn is_table_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if !matches!(bytes[i], b'a'..=b'z' | b'_') {
            return false;
        }
        i += 1;
    }
    !bytes.is_empty() && !schema::is_reserved(bytes)
}

// === impl Statements ===

impl Statements {
    pub(crate) fn new(table: &str) -> Self {
        Self {
            put: format!("REPLACE INTO \"{table}\" (key, version, value) VALUES (?1, ?2, ?3)"),
            delete: format!("DELETE FROM \"{table}\" WHERE key = ?1"),
        }
    }
}

// === impl Write ===

impl Write {
    /// About what it adds to the WAL: its own pages, and one of the tree above them.
    pub(crate) fn wal_bytes(&self) -> u64 {
        const PAGE: u64 = 4096;
        let value = self.row.as_ref().map_or(0, |row| row.value.len() as u64);
        (value.div_ceil(PAGE) + 1) * PAGE
    }
}

// === impl Database ===

impl Database {
    fn connect(hold: Arc<Hold>) -> Result<Self, StoreError> {
        let conn = connect(&hold.path)?;
        Ok(Self { conn, hold })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.hold.path
    }

    /// One transaction: all of the writes or none.
    pub(crate) fn commit<'a>(
        &mut self,
        writes: impl Iterator<Item = &'a Write>,
    ) -> Result<(), StoreError> {
        let run = |conn: &mut Connection| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for Write { statements, key, row } in writes {
                match row {
                    Some(Row { version, value }) => {
                        tx.prepare_cached(&statements.put)?.execute((key, version, value))?
                    }
                    None => tx.prepare_cached(&statements.delete)?.execute((key,))?,
                };
            }
            tx.commit()
        };
        run(&mut self.conn).map_err(fault("write", &self.hold.path))
    }

    /// Shows every row of a table to `judge` and does what it says, in one transaction.
    /// Writes nothing when there is nothing to change.
    pub(crate) fn load<T: Record>(
        &mut self,
        mut judge: impl FnMut(RawRow<'_>) -> Verdict,
    ) -> Result<Vec<quarantine::Quarantined>, StoreError> {
        let path = &self.hold.path;
        let tx = self.conn.transaction().map_err(fault("read", path))?;
        schema::prepare_table::<T>(&tx, path)?;
        let mut moves = Vec::new();
        let mut rewrites = Vec::new();
        {
            let sql = format!("SELECT key, version, value FROM \"{}\"", T::TABLE);
            let mut select = tx.prepare(&sql).map_err(fault("read", path))?;
            let mut rows = select.query(()).map_err(fault("read", path))?;
            while let Some(row) = rows.next().map_err(fault("read", path))? {
                let [key, version, value] = [0, 1, 2].map(|column| row.get_ref_unwrap(column));
                let raw = RawRow {
                    key: key.as_str().ok(),
                    version: version.as_i64().ok(),
                    value: value.as_bytes().ok(),
                };
                match judge(raw) {
                    Verdict::Keep => {}
                    Verdict::Rewrite(row) => rewrites.push((raw.key.map(str::to_owned), row)),
                    Verdict::Quarantine(error) => {
                        moves.push((quarantine::RawKey::from(key), error))
                    }
                }
            }
        }
        let statements = Statements::new(T::TABLE);
        for (key, Row { version, value }) in rewrites {
            tx.execute(&statements.put, (key, version, value)).map_err(fault("migrate", path))?;
        }
        let quarantined = quarantine::set_aside(&tx, T::TABLE, moves)
            .map_err(fault("quarantine a record of", path))?;
        tx.commit().map_err(fault("read", path))?;
        Ok(quarantined)
    }

    /// A write that carries nothing: it begins the WAL if it is empty.
    pub(crate) fn mark(&mut self) -> Result<(), StoreError> {
        self.conn
            .execute("UPDATE wal_mark SET count = count + 1", ())
            .map(drop)
            .map_err(fault("write", &self.hold.path))
    }

    pub(crate) fn pin(&self) -> Result<Pin, StoreError> {
        let conn = connect(&self.hold.path)?;
        conn.execute_batch("BEGIN; SELECT count FROM wal_mark;")
            .map_err(fault("read", &self.hold.path))?;
        Ok(Pin { _conn: conn })
    }

    /// Moves what no reader still needs, waits for nobody.
    pub(crate) fn checkpoint_beside_writer(&mut self) -> Result<(), StoreError> {
        self.checkpoint("PRAGMA wal_checkpoint(PASSIVE)").map(drop)
    }

    /// For the last connection of an orderly end: leaves a database without a WAL.
    pub(crate) fn finish(&mut self) -> Result<(), StoreError> {
        self.truncate()?;
        keep_log(&self.conn, false).map_err(fault("close", &self.hold.path))
    }

    /// Moves everything and empties the WAL; false when a reader was in the way.
    pub(crate) fn truncate(&mut self) -> Result<bool, StoreError> {
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)").map(|busy| !busy)
    }

    fn checkpoint(&mut self, sql: &str) -> Result<bool, StoreError> {
        self.conn
            .query_row(sql, (), |row| row.get(0))
            .map_err(fault("move the log into", &self.hold.path))
    }

    /// What a checkpoint moved is on the disk after this.
    pub(crate) fn sync_file(&self) -> Result<(), StoreError> {
        let Hold { path, file, .. } = &*self.hold;
        file.sync_data().map_err(|source| StoreError::Io {
            doing: "sync",
            path: path.clone(),
            source: Arc::new(source),
        })
    }
}

/// SQLite's name for the WAL of a database.
fn log_of(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

fn log_exists(path: &Path) -> Result<bool, StoreError> {
    log_of(path).try_exists().map_err(StoreError::io("look for the log of", path))
}

/// Whether the log stays when the last connection is closed. If not, it is moved into the
/// database and removed. While the store runs it stays: a thread that ends must not sync,
/// and after a failure nothing may move.
fn keep_log(conn: &Connection, keep: bool) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(fault("open", path))?;
    let settle = || {
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.set_prepared_statement_cache_capacity(64);
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        conn.pragma_update(None, "trusted_schema", false)
    };
    settle().map_err(fault("open", path))?;
    Ok(conn)
}

/// Sorts SQLite's refusals by what the reader of the message can do about them.
fn fault(doing: &'static str, path: &Path) -> impl FnOnce(rusqlite::Error) -> StoreError {
    move |error| {
        let path = path.to_owned();
        let code = error.sqlite_error().map(|error| (error.code, error.extended_code));
        match code {
            // SHMSIZE: the index of the WAL could not grow.
            Some((ErrorCode::DiskFull, _) | (_, ffi::SQLITE_IOERR_SHMSIZE)) => {
                StoreError::Full { path }
            }
            Some((ErrorCode::ReadOnly | ErrorCode::PermissionDenied, _)) => {
                StoreError::ReadOnly { path }
            }
            Some((ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _)) => {
                StoreError::Busy { path }
            }
            Some((ErrorCode::NotADatabase, _)) => StoreError::NotDatabase { path },
            Some((ErrorCode::DatabaseCorrupt, _)) => {
                StoreError::Corrupt { path, source: Arc::new(error) }
            }
            _ => StoreError::Database { doing, path, source: Arc::new(error) },
        }
    }
}
