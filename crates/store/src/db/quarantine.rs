use jiff::Timestamp;
use rusqlite::{Connection, Transaction, types::ValueRef};

/// A record that did not decode when its table was opened. Its value stays in the
/// `quarantine` table, where `sqlite3` can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub id: i64,
    pub table: String,
    pub key: String,
    pub error: String,
    pub at: Timestamp,
}

/// The key of a row that may not even be text: the bytes, and the SQL that turns them
/// back into what is stored.
pub(super) struct RawKey {
    bytes: Vec<u8>,
    sql: &'static str,
}

impl From<ValueRef<'_>> for RawKey {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Blob(bytes) => Self { bytes: bytes.to_vec(), sql: "?1" },
            // The column has text affinity, so there are no numbers; and it is not null.
            other => Self {
                bytes: other.as_bytes().unwrap_or_default().to_vec(),
                sql: "CAST(?1 AS TEXT)",
            },
        }
    }
}

/// Moves the named rows as they are, whatever the types of their columns.
pub(super) fn set_aside(
    tx: &Transaction<'_>,
    table: &str,
    rows: Vec<(RawKey, String)>,
) -> rusqlite::Result<Vec<Quarantined>> {
    let mut moved = Vec::new();
    for (RawKey { bytes, sql }, error) in rows {
        let at = Timestamp::now();
        let copy = format!(
            "INSERT INTO quarantine (tbl, key, version, value, error, at)
             SELECT ?2, key, version, value, ?3, ?4 FROM \"{table}\" WHERE key = {sql}"
        );
        tx.execute(&copy, (&bytes, table, &error, at.to_string()))?;
        let id = tx.last_insert_rowid();
        tx.execute(&format!("DELETE FROM \"{table}\" WHERE key = {sql}"), (&bytes,))?;
        let key = String::from_utf8_lossy(&bytes).into_owned();
        moved.push(Quarantined { id, table: table.to_owned(), key, error, at });
    }
    Ok(moved)
}

/// Oldest first.
pub(super) fn list(conn: &Connection) -> rusqlite::Result<Vec<Quarantined>> {
    let mut select = conn.prepare("SELECT id, tbl, key, error, at FROM quarantine ORDER BY id")?;
    let rows = select.query_map((), |row| {
        Ok(Quarantined {
            id: row.get(0)?,
            table: row.get(1)?,
            key: text(row.get_ref(2)?),
            error: row.get(3)?,
            at: row.get::<_, String>(4)?.parse().unwrap_or(Timestamp::UNIX_EPOCH),
        })
    })?;
    rows.collect()
}

/// For people: whatever the key was.
fn text(key: ValueRef<'_>) -> String {
    String::from_utf8_lossy(key.as_bytes().unwrap_or_default()).into_owned()
}
