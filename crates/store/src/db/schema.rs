//! What the file contains besides records, and how it got there.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction};

use super::fault;
use crate::{error::StoreError, record::Record};

/// "LgSh": tells our files from other people's.
const APPLICATION_ID: u32 = 0x4c67_5368;

/// Step `i` brings schema `i` to schema `i + 1`. Steps are never edited, only added.
const STEPS: &[&str] = &["
    CREATE TABLE record_version (
        tbl     TEXT PRIMARY KEY NOT NULL,
        version INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE quarantine (
        id      INTEGER PRIMARY KEY,
        tbl     TEXT NOT NULL,
        key,
        version,
        value,
        error   TEXT NOT NULL,
        at      TEXT NOT NULL
    );
    CREATE TABLE wal_mark (count INTEGER NOT NULL);
    INSERT INTO wal_mark VALUES (0);
"];

const RESERVED: &[&str] = &["record_version", "quarantine", "wal_mark"];

pub(super) const fn is_reserved(name: &[u8]) -> bool {
    let mut i = 0;
    while i < RESERVED.len() {
        if starts_with(name, RESERVED[i].as_bytes()) && name.len() == RESERVED[i].len() {
            return true;
        }
        i += 1;
    }
    starts_with(name, b"sqlite_")
}

const fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    let mut i = 0;
    while i < prefix.len() {
        if i >= name.len() || name[i] != prefix[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Whose file it is and how old, without changing it.
pub(super) fn version(conn: &Connection, path: &Path) -> Result<u32, StoreError> {
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
    let objects = || conn.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0));
    let objects: u32 = objects().map_err(fault("read", path))?;
    let owner = pragma("application_id").map_err(fault("read", path))?;
    let found = pragma("user_version").map_err(fault("read", path))?;
    let empty = objects == 0 && found == 0;
    if owner != APPLICATION_ID && !empty {
        return Err(StoreError::NotDatabase { path: path.to_owned() });
    }
    let known = known();
    if found > known {
        return Err(StoreError::NewerSchema { path: path.to_owned(), found, known });
    }
    Ok(found)
}

fn known() -> u32 {
    u32::try_from(STEPS.len()).expect("there are few steps")
}

/// Brings an empty or older file to the newest schema, whole or not at all.
pub(super) fn migrate(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let found = version(conn, path)?;
    if found == known() {
        return Ok(());
    }
    let run = |conn: &mut Connection| {
        let tx = conn.transaction()?;
        for (step, sql) in (0..).zip(STEPS) {
            if step >= found {
                tx.execute_batch(sql)?;
            }
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", known())?;
        tx.commit()
    };
    run(conn).map_err(fault("migrate", path))
}

/// Makes the table of a record type if it is new; refuses records of a newer program
/// whole, because a daemon without its pods would take them for garbage.
pub(super) fn prepare_table<T: Record>(
    tx: &Transaction<'_>,
    path: &Path,
) -> Result<(), StoreError> {
    let found: Option<u32> = tx
        .query_row("SELECT version FROM record_version WHERE tbl = ?1", (T::TABLE,), |row| {
            row.get(0)
        })
        .optional()
        .map_err(fault("read", path))?;
    match found {
        Some(found) if found > T::VERSION => {
            return Err(StoreError::NewerRecords {
                path: path.to_owned(),
                table: T::TABLE,
                found,
                known: T::VERSION,
            });
        }
        Some(found) if found == T::VERSION => return Ok(()),
        _ => {}
    }
    let create = format!(
        "CREATE TABLE IF NOT EXISTS \"{}\" (
            key     TEXT PRIMARY KEY NOT NULL,
            version INTEGER NOT NULL,
            value   TEXT NOT NULL
        ) WITHOUT ROWID",
        T::TABLE
    );
    tx.execute_batch(&create).map_err(fault("migrate", path))?;
    tx.execute("REPLACE INTO record_version VALUES (?1, ?2)", (T::TABLE, T::VERSION))
        .map(drop)
        .map_err(fault("migrate", path))
}

/// The tables that hold records.
pub(super) fn record_tables(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut select = conn.prepare("SELECT tbl FROM record_version ORDER BY tbl")?;
    select.query_map((), |row| row.get(0))?.collect()
}
