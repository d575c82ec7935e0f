//! What a table holds, and how a stored row becomes a value again.
//!
//! A row is `key, version, value`: the key as text, the version of the record type that
//! wrote it, the value as JSON, so that `sqlite3` alone can read the state. Decoding is
//! pure; the caller moves what it refuses to the quarantine.

use std::{error::Error, fmt};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::db;

pub type MigrateError = Box<dyn Error + Send + Sync>;

/// A kind of record, kept in a table of its own.
pub trait Record: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Lower-case letters and underscores; checked when the program is compiled.
    const TABLE: &'static str;

    /// Counted from 1. Raise it, and extend [`Record::migrate`], when older values no
    /// longer decode or mean something else.
    const VERSION: u32;

    /// Written by `Display`, so two different keys must not print the same text.
    type Key: Ord + Clone + fmt::Display + fmt::Debug + Send + Sync + 'static;

    fn key(&self) -> Self::Key;

    /// One step: takes the value of a record of version `from`, gives that of version
    /// `from + 1`. Called once per row and step when the table is opened; the result is
    /// stored.
    fn migrate(from: u32, value: Value) -> Result<Value, MigrateError> {
        let _ = value;
        Err(format!("no migration from version {from}").into())
    }
}

/// A row as it lies in the file, before anything about it is believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRow<'a> {
    pub(crate) key: Option<&'a str>,
    pub(crate) version: Option<i64>,
    pub(crate) value: Option<&'a [u8]>,
}

#[derive(Debug)]
pub(crate) struct Decoded<T> {
    pub(crate) record: T,
    /// The row holds an older version and should be written again.
    pub(crate) migrated: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("{0} has the wrong type")]
    Column(&'static str),
    #[error("version {found} is not in 1..={known}")]
    Version { found: i64, known: u32 },
    #[error("not the JSON of this record: {0}")]
    Json(#[from] serde_json::Error),
    #[error("migration from version {from}: {source}")]
    Migrate { from: u32, source: MigrateError },
    #[error("stored under {stored:?} but the record says its key is {own:?}")]
    Key { stored: String, own: String },
}

/// Fails the build of a program whose record type cannot be stored.
pub(crate) const fn assert_storable<T: Record>() {
    assert!(db::is_table_name(T::TABLE), "Record::TABLE: lower-case letters and underscores only");
    assert!(T::VERSION > 0, "Record::VERSION counts from 1");
}

pub(crate) fn encode<T: Record>(record: &T) -> Result<String, serde_json::Error> {
    serde_json::to_string(record)
}

pub(crate) fn decode<T: Record>(row: RawRow<'_>) -> Result<Decoded<T>, DecodeError> {
    let stored = row.key.ok_or(DecodeError::Column("key"))?;
    let found = row.version.ok_or(DecodeError::Column("version"))?;
    let value = row.value.ok_or(DecodeError::Column("value"))?;
    let version = u32::try_from(found)
        .ok()
        .filter(|version| (1..=T::VERSION).contains(version))
        .ok_or(DecodeError::Version { found, known: T::VERSION })?;
    let record: T = if version == T::VERSION {
        serde_json::from_slice(value)?
    } else {
        let step = |value, from| {
            T::migrate(from, value).map_err(|source| DecodeError::Migrate { from, source })
        };
        serde_json::from_value(
            (version..T::VERSION).try_fold(serde_json::from_slice(value)?, step)?,
        )?
    };
    let own = record.key().to_string();
    if own != stored {
        return Err(DecodeError::Key { stored: stored.to_owned(), own });
    }
    Ok(Decoded { record, migrated: version < T::VERSION })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    /// Version 1 had `size` as text, version 2 as a number, version 3 calls it `bytes`.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Blob {
        name: String,
        bytes: u64,
    }

    impl Record for Blob {
        const TABLE: &'static str = "blobs";
        const VERSION: u32 = 3;
        type Key = String;

        fn key(&self) -> String {
            self.name.clone()
        }

        fn migrate(from: u32, mut value: Value) -> Result<Value, MigrateError> {
            let size = value["size"].take();
            match from {
                1 => {
                    value["size"] = size.as_str().ok_or("size is not text")?.parse::<u64>()?.into()
                }
                2 => value["bytes"] = size,
                _ => return Err("no such version".into()),
            }
            Ok(value)
        }
    }

    #[track_caller]
    fn check(key: &str, version: i64, value: &str, want: &str) {
        let row = RawRow { key: Some(key), version: Some(version), value: Some(value.as_bytes()) };
        let got = match decode::<Blob>(row) {
            Ok(Decoded { record, migrated }) => format!("{} {migrated}", record.bytes),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{key} {version} {value}");
    }

    #[test]
    fn old_versions_migrate_step_by_step() {
        check("a", 3, r#"{"name":"a","bytes":7}"#, "7 false");
        check("a", 2, r#"{"name":"a","size":7}"#, "7 true");
        check("a", 1, r#"{"name":"a","size":"7"}"#, "7 true");
    }

    #[test]
    fn what_does_not_decode_is_told_why() {
        check("a", 0, "{}", "version 0 is not in 1..=3");
        check("a", 4, "{}", "version 4 is not in 1..=3");
        check("a", -1, "{}", "version -1 is not in 1..=3");
        check(
            "b",
            3,
            r#"{"name":"a","bytes":7}"#,
            r#"stored under "b" but the record says its key is "a""#,
        );
        check("a", 1, r#"{"name":"a","size":7}"#, "migration from version 1: size is not text");
        check(
            "a",
            3,
            "{",
            "not the JSON of this record: EOF while parsing an object at line 1 column 1",
        );
        let no_key = RawRow { key: None, version: Some(1), value: Some(b"{}") };
        assert_eq!(
            decode::<Blob>(no_key).expect_err("key is missing").to_string(),
            "key has the wrong type"
        );
    }

    proptest! {
        #[test]
        fn round_trip(name in "\\PC*", bytes: u64) {
            let blob = Blob { name: name.clone(), bytes };
            let value = encode(&blob).expect("encodes");
            let row = RawRow { key: Some(&name), version: Some(3), value: Some(value.as_bytes()) };
            prop_assert_eq!(decode::<Blob>(row).expect("decodes").record, blob);
        }

        #[test]
        fn garbage_never_panics(version: i64, value: Vec<u8>) {
            let _ = decode::<Blob>(RawRow { key: Some("a"), version: Some(version), value: Some(&value) });
        }
    }
}
