//! The image configuration: what to run, and which layers it stands on.

use std::collections::{BTreeMap, BTreeSet};

use base::{Digest, Kind, time::Timestamp};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{
    manifest::{CONFIG_LIMIT, LAYER_LIMIT, null_is_default, object},
    platform::Platform,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfig {
    pub platform: Platform,
    pub created: Option<Timestamp>,
    pub author: String,
    /// How a container of this image runs unless it is told otherwise.
    pub process: ProcessConfig,
    /// Hashes of the uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
    pub history: Vec<History>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ProcessConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub user: String,
    /// `NAME=value`, in order.
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "words")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "words")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub working_dir: String,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub stop_signal: String,
    #[serde(deserialize_with = "key_set")]
    pub volumes: BTreeSet<String>,
    /// `80/tcp`.
    #[serde(deserialize_with = "key_set")]
    pub exposed_ports: BTreeSet<String>,
    pub healthcheck: Option<Healthcheck>,
    #[serde(deserialize_with = "null_is_default")]
    pub shell: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub on_build: Vec<String>,
}

/// Docker's extension; times in nanoseconds, 0 means "as by default".
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Healthcheck {
    #[serde(deserialize_with = "null_is_default")]
    pub test: Vec<String>,
    pub interval: i64,
    pub timeout: i64,
    pub start_period: i64,
    pub start_interval: i64,
    pub retries: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct History {
    #[serde(deserialize_with = "instant")]
    pub created: Option<Timestamp>,
    #[serde(deserialize_with = "null_is_default")]
    pub created_by: String,
    #[serde(deserialize_with = "null_is_default")]
    pub author: String,
    #[serde(deserialize_with = "null_is_default")]
    pub comment: String,
    pub empty_layer: bool,
}

/// Whom an image runs as, for those who must know before a container exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    Uid(i64),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("image configuration of {bytes} bytes: the limit is {CONFIG_LIMIT}")]
    TooLarge { bytes: u64 },
    #[error("not an image configuration: {0}")]
    Json(String),
    #[error("root file system of type {0:?}: only layers are supported")]
    RootType(String),
    #[error("configuration names {diff_ids} layers and the manifest {layers}")]
    LayerCount { diff_ids: usize, layers: usize },
}

impl ConfigError {
    pub fn kind(&self) -> Kind {
        Kind::Invalid
    }
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default, deserialize_with = "instant")]
    created: Option<Timestamp>,
    #[serde(default, deserialize_with = "null_is_default")]
    author: String,
    #[serde(flatten)]
    platform: Platform,
    #[serde(default, deserialize_with = "null_is_default")]
    config: ProcessConfig,
    rootfs: RootFs,
    #[serde(default, deserialize_with = "null_is_default")]
    history: Vec<History>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default, deserialize_with = "null_is_default")]
    diff_ids: Vec<Digest>,
}

impl ImageConfig {
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.len() as u64 > CONFIG_LIMIT {
            return Err(ConfigError::TooLarge { bytes: bytes.len() as u64 });
        }
        let raw: Raw = object(bytes).map_err(ConfigError::Json)?;
        let Raw { created, author, platform, config: process, rootfs, history } = raw;
        if !matches!(rootfs.kind.as_str(), "" | "layers") {
            return Err(ConfigError::RootType(rootfs.kind));
        }
        let diff_ids = rootfs.diff_ids;
        if diff_ids.len() > LAYER_LIMIT {
            return Err(ConfigError::LayerCount { diff_ids: diff_ids.len(), layers: LAYER_LIMIT });
        }
        Ok(Self { platform, created, author, process, diff_ids, history })
    }

    /// `None` when the image does not say, which means root.
    pub fn user(&self) -> Option<ImageUser> {
        ImageUser::parse(&self.process.user)
    }
}

impl ImageUser {
    /// The part before the colon; the group is of no interest here.
    pub fn parse(user: &str) -> Option<Self> {
        let name = user.split(':').next().unwrap_or_default();
        if name.is_empty() {
            return None;
        }
        Some(name.parse().map_or_else(|_| Self::Name(name.to_owned()), Self::Uid))
    }
}

/// An entry point or command. Some old tools wrote a bare string for a list of one.
fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        Many(Vec<String>),
        One(String),
    }
    Ok(match Option::<Words>::deserialize(from)? {
        None => Vec::new(),
        Some(Words::Many(words)) => words,
        Some(Words::One(word)) => vec![word],
    })
}

/// Go's idiom for a set: an object of empty objects.
fn key_set<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    let map = Option::<BTreeMap<String, IgnoredAny>>::deserialize(from)?;
    Ok(map.unwrap_or_default().into_keys().collect())
}

/// A time nobody can read must not make an image unusable.
fn instant<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIFF: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn parse(json: &str) -> Result<ImageConfig, ConfigError> {
        ImageConfig::parse(json.as_bytes())
    }

    #[test]
    fn a_docker_configuration_is_read_whole() {
        let json = format!(
            r#"{{"architecture":"arm64","os":"linux","variant":"v8","created":"2024-01-02T03:04:05.6Z",
            "config":{{"User":"1002:50","Env":["A=b"],"Entrypoint":["/init"],"Cmd":"one","WorkingDir":"/w",
              "Labels":{{"a":"b"}},"StopSignal":"SIGUSR1","Volumes":{{"/data":{{}}}},"ExposedPorts":{{"80/tcp":{{}}}},
              "Healthcheck":{{"Test":["CMD","true"],"Interval":5}},"OnBuild":null,"ArgsEscaped":true}},
            "rootfs":{{"type":"layers","diff_ids":["{DIFF}"]}},
            "history":[{{"created_by":"x","empty_layer":true}}]}}"#
        );
        let config = parse(&json).expect("parses");
        assert_eq!(config.platform.to_string(), "linux/arm64/v8");
        assert_eq!(config.created.expect("set").to_string(), "2024-01-02T03:04:05.6Z");
        assert_eq!(config.user(), Some(ImageUser::Uid(1002)));
        let process = &config.process;
        assert_eq!(
            (&process.entrypoint[..], &process.cmd[..]),
            (&["/init".to_owned()][..], &["one".to_owned()][..])
        );
        assert!(process.volumes.contains("/data") && process.exposed_ports.contains("80/tcp"));
        assert_eq!(process.healthcheck.as_ref().map(|h| h.interval), Some(5));
        assert_eq!(config.diff_ids, [DIFF.parse().expect("a digest")]);
        assert!(config.history[0].empty_layer);
    }

    #[test]
    fn nulls_and_absences_are_empty() {
        let config =
            parse(r#"{"config":null,"rootfs":{"diff_ids":null},"history":null,"created":"never"}"#);
        let config = config.expect("parses");
        assert_eq!(config.process, ProcessConfig::default());
        assert_eq!((config.user(), config.created), (None, None));
        let nulls = r#"{"config":{"Env":null,"Cmd":null,"Labels":null,"Volumes":null},"rootfs":{"type":"layers"}}"#;
        assert_eq!(parse(nulls).expect("parses").process, ProcessConfig::default());
    }

    #[test]
    fn what_is_no_image_is_told() {
        let check = |json: &str, want: &str| {
            assert_eq!(parse(json).expect_err("refused").to_string(), want, "{json}");
        };
        check("{}", "not an image configuration: missing field `rootfs` at line 1 column 2");
        check(
            r#"{"rootfs":{"type":"snaps"}}"#,
            "root file system of type \"snaps\": only layers are supported",
        );
        let large = format!("{{{}", " ".repeat(8 << 20));
        assert!(matches!(parse(&large), Err(ConfigError::TooLarge { .. })));
    }

    #[test]
    fn users() {
        let check = |text: &str, want| assert_eq!(ImageUser::parse(text), want, "{text}");
        check("", None);
        check(":5", None);
        check("0", Some(ImageUser::Uid(0)));
        check("www-data:www", Some(ImageUser::Name("www-data".to_owned())));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = ImageConfig::parse(&bytes);
        }
    }
}
