//! What a shim is told on the standard input of its start, and what it answers. Pure.
//!
//! Both have changed over the years. Options of the runtime were an `Any` by themselves, and
//! since containerd 2.3 are an extension of parameters; the two look alike on the wire, so
//! that a shim cannot tell them apart and has to be given what it expects. The answer was an
//! address, then JSON, then a message; these differ in their first byte.

use api_shim::bootstrap::{BootstrapParams, BootstrapResult, Extension};
use prost::Message;
use prost_types::Any;
use serde::{Deserialize, Serialize};

/// What a shim expects on its standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootstrapForm {
    /// The options of the runtime, or nothing. Shims up to containerd 2.2, and most others.
    #[default]
    Options,
    /// Parameters, with the options among them. containerd 2.3 and later.
    Params,
}

impl BootstrapForm {
    /// By what the shim prints for `-v`. One that does not say is of the older kind.
    pub fn of_version(printed: &str) -> Self {
        let version = shim_version(printed).unwrap_or_default().trim_start_matches('v');
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (2, 3) => Self::Params,
            _ => Self::Options,
        }
    }
}

/// The version in what a shim prints for `-v`.
pub fn shim_version(printed: &str) -> Option<&str> {
    let found = printed.lines().find_map(|line| line.trim().strip_prefix("Version:"));
    found.map(str::trim).filter(|version| !version.is_empty())
}

/// Who starts and what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) id: &'a str,
    pub(crate) namespace: &'a str,
    /// Where containerd would serve; ours is only a name that nobody else has.
    pub(crate) address: &'a str,
    pub(crate) events: &'a str,
    pub(crate) binary: &'a str,
}

pub(crate) fn input(form: BootstrapForm, caller: Caller<'_>, options: Option<Any>) -> Vec<u8> {
    match form {
        BootstrapForm::Options => options.map(|any| any.encode_to_vec()).unwrap_or_default(),
        BootstrapForm::Params => {
            let params = BootstrapParams {
                instance_id: caller.id.to_owned(),
                namespace: caller.namespace.to_owned(),
                containerd_ttrpc_address: caller.events.to_owned(),
                containerd_grpc_address: caller.address.to_owned(),
                containerd_binary: caller.binary.to_owned(),
                extensions: options.map(|any| Extension { value: Some(any) }).into_iter().collect(),
                ..BootstrapParams::default()
            };
            params.encode_to_vec()
        }
    }
}

/// Where a started shim listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Of the Task API.
    pub(crate) version: u32,
    pub(crate) address: String,
}

#[derive(Deserialize)]
struct JsonAnswer {
    version: u32,
    address: String,
    protocol: String,
}

/// The text says what is wrong with it.
pub(crate) fn parse(answer: &[u8]) -> Result<Answer, String> {
    let (version, address, protocol) = match answer.trim_ascii() {
        [] => return Err("the shim answered nothing".to_owned()),
        text @ [b'{', ..] => {
            let json: JsonAnswer = serde_json::from_slice(text).map_err(|e| e.to_string())?;
            (json.version, json.address, json.protocol)
        }
        // The tag of its first or second field, which no text begins with.
        [0x08 | 0x12, ..] => {
            let message = BootstrapResult::decode(answer).map_err(|e| e.to_string())?;
            let version = u32::try_from(message.version).unwrap_or_default();
            (version, message.address, message.protocol)
        }
        text => (2, String::from_utf8_lossy(text).into_owned(), "ttrpc".to_owned()),
    };
    if !(2..=3).contains(&version) {
        return Err(format!("version {version} of its API is none of 2 and 3"));
    }
    if protocol != "ttrpc" {
        return Err(format!("it speaks {protocol:?}: only \"ttrpc\" is implemented"));
    }
    if !address.starts_with("unix:///") {
        return Err(format!("its address {address:?} is no unix:// path"));
    }
    Ok(Answer { version, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(answer: &[u8], version: u32) {
        let want = Answer { version, address: "unix:///run/s/x".to_owned() };
        assert_eq!(parse(answer), Ok(want), "{}", answer.escape_ascii());
    }

    #[test]
    fn answers_of_all_ages_are_understood() {
        check(b"unix:///run/s/x", 2);
        check(b"unix:///run/s/x\n", 2);
        check(br#"{"version":3,"address":"unix:///run/s/x","protocol":"ttrpc"}"#, 3);
        check(br#"{"version":2,"address":"unix:///run/s/x","protocol":"ttrpc","new":1}"#, 2);
        let message = BootstrapResult {
            version: 3,
            address: "unix:///run/s/x".to_owned(),
            protocol: "ttrpc".to_owned(),
            ..BootstrapResult::default()
        };
        check(&message.encode_to_vec(), 3);
    }

    #[track_caller]
    fn refuse(answer: &[u8], want: &str) {
        assert_eq!(parse(answer), Err(want.to_owned()));
    }

    #[test]
    fn what_we_cannot_talk_to_is_refused_by_name() {
        refuse(b" \n", "the shim answered nothing");
        refuse(
            br#"{"version":4,"address":"unix:///x","protocol":"ttrpc"}"#,
            "version 4 of its API is none of 2 and 3",
        );
        refuse(
            br#"{"version":3,"address":"unix:///x","protocol":"grpc"}"#,
            "it speaks \"grpc\": only \"ttrpc\" is implemented",
        );
        refuse(b"vsock://3:1", "its address \"vsock://3:1\" is no unix:// path");
        assert!(parse(b"{").is_err());
        assert!(parse(&[0x08]).is_err());
    }

    #[test]
    fn the_form_follows_the_version() {
        let of = |version: &str| {
            BootstrapForm::of_version(&format!("shim:\n  Version:  {version}\n  Revision: x\n"))
        };
        for old in ["1.6.20~ds1", "v2.2.9", "2.0.0-rc.1", "", "(devel)"] {
            assert_eq!(of(old), BootstrapForm::Options, "{old}");
        }
        for new in ["2.3.0", "v2.3.0-rc.0", "2.10.1", "3.0"] {
            assert_eq!(of(new), BootstrapForm::Params, "{new}");
        }
        assert_eq!(
            BootstrapForm::of_version("flag provided but not defined"),
            BootstrapForm::Options
        );
    }

    const CALLER: Caller<'_> =
        Caller { id: "p", namespace: "k8s.io", address: "/a", events: "/e", binary: "/b" };

    #[test]
    fn options_travel_in_either_form() {
        let any = Any { type_url: "t".to_owned(), value: vec![1, 2] };
        let old = input(BootstrapForm::Options, CALLER, Some(any.clone()));
        assert_eq!(Any::decode(&old[..]).unwrap(), any);
        assert!(input(BootstrapForm::Options, CALLER, None).is_empty());
        let new = input(BootstrapForm::Params, CALLER, Some(any.clone()));
        let params = BootstrapParams::decode(&new[..]).unwrap();
        assert_eq!((params.instance_id.as_str(), params.namespace.as_str()), ("p", "k8s.io"));
        assert_eq!(params.extensions, [Extension { value: Some(any) }]);
    }
}
