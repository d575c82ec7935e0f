//! A look at the state from outside, beside a running daemon or without one.

use std::path::Path;

use rusqlite::Connection;

use super::{
    FILE, connect, fault, keep_log, log_exists, quarantine, quarantine::Quarantined, schema,
};
use crate::error::StoreError;

/// What [`check`] found. Healthy when `problems` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Integrity {
    pub schema: u32,
    pub records: u64,
    /// One line each: damaged pages, rows that are not JSON.
    pub problems: Vec<String>,
    pub quarantined: Vec<Quarantined>,
}

/// Reads the whole state database in `dir`; `None` when there is none yet. Blocks.
pub fn check(dir: &Path) -> Result<Option<Integrity>, StoreError> {
    let path = dir.join(FILE);
    if !path.try_exists().map_err(StoreError::io("look for", &path))? {
        return Ok(None);
    }
    let crashed = log_exists(&path)?;
    let conn = connect(&path)?;
    // A look moves nothing; but the empty files it makes itself go when it ends.
    keep_log(&conn, crashed).map_err(fault("check", &path))?;
    conn.pragma_update(None, "query_only", true).map_err(fault("check", &path))?;
    let schema = schema::version(&conn, &path)?;
    if schema == 0 {
        return Ok(None);
    }
    let look = || {
        let mut problems =
            damaged_pages(&conn).unwrap_or_else(|error| vec![format!("check pages: {error}")]);
        let mut records = 0;
        for table in schema::record_tables(&conn)? {
            match count_records(&conn, &table) {
                Ok((count, strange)) => {
                    records += count;
                    if strange > 0 {
                        problems.push(format!("{strange} records of table {table} are not JSON"));
                    }
                }
                Err(error) => problems.push(format!("read table {table}: {error}")),
            }
        }
        let quarantined = quarantine::list(&conn)?;
        Ok(Integrity { schema, records, problems, quarantined })
    };
    look().map(Some).map_err(fault("check", &path))
}

fn damaged_pages(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut pragma = conn.prepare("PRAGMA integrity_check(20)")?;
    let lines =
        pragma.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

fn count_records(conn: &Connection, table: &str) -> rusqlite::Result<(u64, u64)> {
    let sql =
        format!("SELECT count(*), count(*) FILTER (WHERE NOT json_valid(value)) FROM \"{table}\"");
    conn.query_row(&sql, (), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        .map(|(count, strange)| (count.unsigned_abs(), strange.unsigned_abs()))
}
