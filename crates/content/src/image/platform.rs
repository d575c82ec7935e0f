//! What a machine can run, and which entry of an index suits it best.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::manifest::Descriptor;

/// As OCI writes it. [`Platform::normal`] spells out equal things equally.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    #[serde(rename = "os.version", default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    #[serde(rename = "os.features", default, skip_serializing_if = "Vec::is_empty")]
    pub os_features: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a platform: os/architecture[/variant]")]
pub struct PlatformError(String);

impl Platform {
    /// The one this program was built for. 32-bit ARM counts as v7, the oldest that Rust's
    /// hard-float target runs on.
    pub fn host() -> Self {
        Self {
            os: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            ..Self::default()
        }
        .normal()
    }

    /// Go's names for architectures, and no variant where it is the default one.
    #[must_use]
    pub fn normal(mut self) -> Self {
        self.os = self.os.to_ascii_lowercase();
        let variant = self.variant.take().map(|variant| variant.to_ascii_lowercase());
        let variant = variant.as_deref().filter(|variant| !variant.is_empty());
        let architecture = self.architecture.to_ascii_lowercase();
        let (architecture, variant) = match (architecture.as_str(), variant) {
            ("x86_64" | "x86-64" | "amd64", None | Some("v1")) => ("amd64", None),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64", variant),
            ("aarch64" | "arm64", None | Some("8" | "v8")) => ("arm64", None),
            ("aarch64" | "arm64", variant) => ("arm64", variant),
            ("armhf", _) | ("arm", None | Some("7")) => ("arm", Some("v7")),
            ("armel", _) | ("arm", Some("6")) => ("arm", Some("v6")),
            ("arm", Some("5")) => ("arm", Some("v5")),
            ("arm", Some("8")) => ("arm", Some("v8")),
            ("i386" | "i686" | "x86" | "386", _) => ("386", None),
            ("loongarch64", variant) => ("loong64", variant),
            ("powerpc64le", variant) => ("ppc64le", variant),
            (other, variant) => (other, variant),
        };
        self.variant = variant.map(str::to_owned);
        self.architecture = architecture.to_owned();
        self
    }

    /// How well `offered` suits a machine that is `self`; smaller is better, `None` cannot
    /// run. Both must be normal.
    fn rank(&self, offered: &Self) -> Option<u32> {
        if self.os != offered.os || self.architecture != offered.architecture {
            return None;
        }
        if !offered.os_features.iter().all(|feature| self.os_features.contains(feature)) {
            return None;
        }
        let version = match (&self.os_version, &offered.os_version) {
            // Windows asks for the same build; a revision may differ.
            (Some(want), Some(have)) if want == have || have.starts_with(&format!("{want}.")) => 0,
            (Some(_), Some(_)) => return None,
            // Said by one side only: usable, behind what says the same.
            (Some(_), None) | (None, Some(_)) => 1,
            (None, None) => 0,
        };
        Some(version + 2 * self.variant_distance(offered)?)
    }

    /// An ARM or x86-64 level runs what was built for it and for the ones below.
    fn variant_distance(&self, offered: &Self) -> Option<u32> {
        let level = |platform: &Self| -> Option<u32> {
            let default = match platform.architecture.as_str() {
                "amd64" => 1,
                "arm64" => 8,
                _ => return None,
            };
            match &platform.variant {
                None => Some(default),
                Some(variant) => variant.strip_prefix('v')?.parse().ok(),
            }
        };
        let arm = |platform: &Self| -> Option<u32> {
            platform.variant.as_deref()?.strip_prefix('v')?.parse().ok()
        };
        let (own, other) = match self.architecture.as_str() {
            "arm" => (arm(self), arm(offered)),
            _ => (level(self), level(offered)),
        };
        match (own, other) {
            (Some(own), Some(other)) => own.checked_sub(other),
            _ => (self.variant == offered.variant).then_some(0),
        }
    }

    /// Whether an image that says `offered` of itself runs on `self`. What it does not
    /// say is taken to suit.
    pub fn runs(&self, offered: &Self) -> bool {
        let mut offered = offered.clone();
        if offered.os.is_empty() {
            offered.os.clone_from(&self.os);
        }
        if offered.architecture.is_empty() {
            offered.architecture.clone_from(&self.architecture);
            offered.variant.clone_from(&self.variant);
        }
        // What an ARM image leaves out is not v7 but unknown.
        if self.architecture == "arm" && offered.variant.is_none() {
            offered.variant.clone_from(&self.variant);
        }
        self.rank(&offered.normal()).is_some()
    }
}

/// The best entry for `want`; the first of equals. Entries that name no platform come
/// after all that do, and only if there is exactly one: an index of several unnamed ones
/// leaves nothing to choose by.
pub fn choose<'a>(want: &Platform, entries: &'a [Descriptor]) -> Option<&'a Descriptor> {
    let want = want.clone().normal();
    let named = entries.iter().filter_map(|entry| {
        let rank = want.rank(&entry.platform.clone()?.normal())?;
        Some((rank, entry))
    });
    if let Some((_, entry)) = named.min_by_key(|(rank, _)| *rank) {
        return Some(entry);
    }
    let mut unnamed = entries.iter().filter(|entry| entry.platform.is_none());
    unnamed.next().filter(|_| unnamed.next().is_none())
}

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let parts: Vec<&str> = text.split('/').collect();
        let is_word = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        };
        if !parts.iter().all(is_word) {
            return Err(PlatformError(text.to_owned()));
        }
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(PlatformError(text.to_owned())),
        };
        let (os, architecture) = (os.to_owned(), architecture.to_owned());
        Ok(Self { os, architecture, variant, ..Self::default() }.normal())
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if let Some(variant) = &self.variant {
            write!(f, "/{variant}")?;
        }
        if let Some(version) = &self.os_version {
            write!(f, " ({version})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::sha256;

    /// `""` is an entry without platform, `os/arch@1.2` one with an os.version.
    fn entries(platforms: &[&str]) -> Vec<Descriptor> {
        let platform = |text: &&str| {
            let (text, version) = match text.split_once('@') {
                Some((text, version)) => (text, Some(version.to_owned())),
                None => (*text, None),
            };
            let parsed: Option<Platform> = text.parse().ok();
            parsed.map(|parsed| Platform { os_version: version, ..parsed })
        };
        let entry = |(at, text): (usize, &&str)| Descriptor {
            platform: platform(text),
            ..Descriptor::new(super::super::media::OCI_MANIFEST, sha256(&at.to_le_bytes()), 1)
        };
        platforms.iter().enumerate().map(entry).collect()
    }

    #[track_caller]
    fn check(want: &str, offered: &[&str], at: Option<usize>) {
        let offered_entries = entries(offered);
        let want = entries(&[want]).remove(0).platform.expect("a platform");
        let got = choose(&want, &offered_entries);
        let got = got.map(|got| offered_entries.iter().position(|entry| entry == got));
        assert_eq!(got.flatten(), at, "{want} of {offered:?}");
    }

    #[test]
    fn the_nearest_variant_that_runs_is_chosen() {
        check("linux/amd64", &["linux/arm64", "linux/amd64"], Some(1));
        check("linux/amd64", &["linux/amd64/v3", "linux/amd64/v1"], Some(1));
        check("linux/amd64/v3", &["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], Some(1));
        check("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6", "linux/arm64"], Some(1));
        check("linux/arm/v6", &["linux/arm/v7"], None);
        check("linux/arm64", &["linux/arm64/v8"], Some(0));
        check("linux/arm64/v9", &["linux/arm64/v8", "linux/arm64/v9"], Some(1));
        check("linux/riscv64", &["linux/amd64"], None);
        check("linux/amd64", &["windows/amd64", "unknown/unknown"], None);
        check("linux/x86_64", &["linux/amd64", "linux/amd64"], Some(0));
    }

    #[test]
    fn an_os_version_narrows_the_choice() {
        let windows = ["windows/amd64@10.0.17763.1", "windows/amd64@10.0.20348.7"];
        check("windows/amd64@10.0.20348", &windows, Some(1));
        check("windows/amd64@10.0.2034", &windows, None);
        check("linux/amd64", &["linux/amd64@5.4", "linux/amd64"], Some(1));
        check("linux/amd64", &["linux/amd64@5.4"], Some(0));
    }

    #[test]
    fn what_names_no_platform_is_taken_only_alone_and_last() {
        check("linux/amd64", &[""], Some(0));
        check("linux/amd64", &["", ""], None);
        check("linux/amd64", &["", "linux/amd64"], Some(1));
        check("linux/amd64", &["", "linux/arm64"], Some(0));
    }

    #[test]
    fn required_os_features_must_be_ours() {
        let mut offered = entries(&["linux/amd64"]);
        offered[0].platform.as_mut().expect("has one").os_features = vec!["win32k".to_owned()];
        assert_eq!(choose(&"linux/amd64".parse().expect("parses"), &offered), None);
    }

    #[test]
    fn an_image_that_says_little_runs() {
        let runs =
            |own: &str, offered: Platform| own.parse::<Platform>().expect("parses").runs(&offered);
        let arm = Platform { architecture: "arm".to_owned(), ..Platform::default() };
        assert!(runs("linux/amd64", Platform::default()));
        assert!(runs("linux/arm/v6", arm.clone()));
        assert!(!runs("linux/amd64", arm));
        assert!(!runs("linux/amd64", "windows/amd64".parse().expect("parses")));
    }

    proptest! {
        #[test]
        fn text_round_trips(text in "[a-z]{1,6}/[a-z0-9]{1,6}(/v[0-9])?") {
            let platform: Platform = text.parse().expect("is of the form");
            prop_assert_eq!(platform.to_string().parse(), Ok(platform.clone()));
            prop_assert_eq!(platform.clone().normal(), platform);
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Platform>();
        }
    }
}
