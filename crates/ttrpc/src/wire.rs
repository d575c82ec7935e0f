//! The envelopes inside frames, as `proto/ttrpc.proto` declares them.
//!
//! They are declared here by hand, so that users of this crate need no build script; a
//! test compares the two. What is sent is written by [`message`](crate::message) without
//! building these first.

use bytes::Bytes;
use prost::Message;

use crate::Error;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) payload: Bytes,
    #[prost(int64, tag = "4")]
    pub(crate) timeout_nano: i64,
    #[prost(message, repeated, tag = "5")]
    pub(crate) metadata: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) payload: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

/// A message of a type known by its URL only: `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

impl Response {
    /// The encoded result, or what the server said instead.
    pub(crate) fn open(frame: Bytes) -> Result<Bytes, Error> {
        let Self { status, payload } = Self::decode(frame)?;
        match status {
            Some(status) if status.code != 0 => Err(crate::Status::from(status).into()),
            _ => Ok(payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_types::field_descriptor_proto::{Label, Type};

    use super::*;

    /// What `proto/ttrpc.proto` says a field is called and holds.
    fn declared(message: &str) -> Vec<(String, i32, Type, Label, String)> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
        let files = protox::compile(["ttrpc.proto"], [root]).unwrap().file;
        let found = files
            .iter()
            .flat_map(|file| &file.message_type)
            .find(|m| m.name() == message)
            .unwrap_or_else(|| panic!("no message {message}"));
        found
            .field
            .iter()
            .map(|f| {
                (f.name().to_owned(), f.number(), f.r#type(), f.label(), f.type_name().to_owned())
            })
            .collect()
    }

    #[track_caller]
    fn check(message: &str, want: &[(&str, i32, Type, Label, &str)]) {
        let want: Vec<_> = want
            .iter()
            .map(|&(name, number, kind, label, of)| {
                (name.to_owned(), number, kind, label, of.to_owned())
            })
            .collect();
        assert_eq!(declared(message), want);
    }

    #[test]
    fn the_contract_is_what_the_structs_say() {
        use Label::{Optional, Repeated};
        check(
            "Request",
            &[
                ("service", 1, Type::String, Optional, ""),
                ("method", 2, Type::String, Optional, ""),
                ("payload", 3, Type::Bytes, Optional, ""),
                ("timeout_nano", 4, Type::Int64, Optional, ""),
                ("metadata", 5, Type::Message, Repeated, ".ttrpc.KeyValue"),
            ],
        );
        check(
            "Response",
            &[
                ("status", 1, Type::Message, Optional, ".ttrpc.Status"),
                ("payload", 2, Type::Bytes, Optional, ""),
            ],
        );
        check(
            "Status",
            &[
                ("code", 1, Type::Int32, Optional, ""),
                ("message", 2, Type::String, Optional, ""),
                ("details", 3, Type::Message, Repeated, ".google.protobuf.Any"),
            ],
        );
        check(
            "KeyValue",
            &[("key", 1, Type::String, Optional, ""), ("value", 2, Type::String, Optional, "")],
        );
    }

    #[test]
    fn a_missing_status_and_code_zero_are_success() {
        let bytes = |code: Option<i32>| {
            let status = code.map(|code| Status { code, ..Status::default() });
            Bytes::from(Response { status, payload: "x".into() }.encode_to_vec())
        };
        assert_eq!(Response::open(bytes(None)).unwrap(), "x");
        assert_eq!(Response::open(bytes(Some(0))).unwrap(), "x");
        assert_eq!(Response::open(bytes(Some(5))).unwrap_err().code(), crate::Code::NotFound);
        assert!(matches!(Response::open("\x0a".into()), Err(Error::Decode(_))));
    }
}
