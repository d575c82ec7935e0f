//! The CRI wire types and services, generated from `proto/cri`.
//!
//! **Invariant:** no logic here, and no secret in `Debug` output: every log line of a
//! request goes through it.

pub mod client;

use std::fmt;

pub mod v1 {
    #![allow(
        clippy::all,
        clippy::needless_pass_by_value,
        clippy::large_futures,
        clippy::cast_possible_truncation,
        unreachable_pub,
        missing_debug_implementations,
        reason = "generated code"
    )]
    tonic::include_proto!("runtime.v1");
}

/// All RPCs: the name of the service and of the method.
pub const RPCS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/rpcs.rs"));

/// The only value of `VersionResponse.version` that the kubelet takes.
pub const KUBE_API_VERSION: &str = "0.1.0";

/// The package suffix, `VersionResponse.runtime_api_version`.
pub const RUNTIME_API_VERSION: &str = "v1";

/// What the kubelet sends and takes at most; tonic's own default is 4 MiB.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

impl fmt::Debug for v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password, auth, server_address, identity_token, registry_token } =
            self;
        f.debug_struct("AuthConfig")
            .field("username", username)
            .field("password", &Hidden(password))
            .field("auth", &Hidden(auth))
            .field("server_address", server_address)
            .field("identity_token", &Hidden(identity_token))
            .field("registry_token", &Hidden(registry_token))
            .finish()
    }
}

/// Tells whether a secret is there, not what it is, nor how long.
struct Hidden<'a>(&'a str);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::v1::*;

    #[test]
    fn credentials_never_show_in_debug() {
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "ann".into(),
                password: "SECRET".into(),
                auth: "SECRET".into(),
                server_address: "registry.example".into(),
                identity_token: "SECRET".into(),
                registry_token: "SECRET".into(),
            }),
            ..Default::default()
        };
        for shown in [format!("{request:?}"), format!("{request:#?}")] {
            assert!(shown.contains("ann") && shown.contains("registry.example"), "{shown}");
            assert!(!shown.contains("SECRET"), "{shown}");
        }
    }

    #[test]
    fn environment_values_need_not_be_utf8() {
        let pair = KeyValue { key: "K".into(), value: vec![0xff, 0x00].into() };
        assert_eq!(KeyValue::decode(pair.encode_to_vec().as_slice()), Ok(pair));
    }

    /// Numbers that a slip in the .proto would silently break, as bytes on the wire.
    #[test]
    fn field_numbers_of_late_additions() {
        #[track_caller]
        fn check(message: &impl Message, key: &[u8]) {
            assert_eq!(&message.encode_to_vec()[..key.len()], key);
        }
        check(&Mount { mount_options: vec!["noexec".into()], ..Default::default() }, &[0x5a, 6]);
        check(&ImageSpec { image_ref: "r".into(), ..Default::default() }, &[0xa2, 0x01]);
        check(&ContainerConfig { stop_signal: 23, ..Default::default() }, &[0x90, 0x01, 23]);
        check(&PodSandboxStatusResponse { timestamp: 1, ..Default::default() }, &[0x20, 1]);
        assert_eq!(Signal::Sigterm as i32, 23);
    }
}
