use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A version of the CNI specification that we speak. Later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SpecVersion {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CNI version {0:?} is not spoken here: 0.3.0 to 1.1.0 are")]
pub struct UnknownVersion(pub String);

impl SpecVersion {
    pub const ALL: [Self; 5] =
        [Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// CHECK, and a `prevResult` in DEL.
    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// GC and STATUS.
    pub fn has_gc(self) -> bool {
        self >= Self::V1_1_0
    }

    /// Each address says its family, `"version": "4"`.
    pub fn tells_family(self) -> bool {
        self < Self::V1_0_0
    }
}

impl FromStr for SpecVersion {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let known = Self::ALL.into_iter().find(|version| version.as_str() == text);
        known.ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

impl TryFrom<String> for SpecVersion {
    type Error = UnknownVersion;

    fn try_from(text: String) -> Result<Self, UnknownVersion> {
        text.parse()
    }
}

impl From<SpecVersion> for String {
    fn from(version: SpecVersion) -> Self {
        version.as_str().to_owned()
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_back_and_are_ordered() {
        for version in SpecVersion::ALL {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert!(SpecVersion::ALL.is_sorted());
        for other in ["0.2.0", "1.2.0", "1.0", "", "v1.0.0"] {
            assert_eq!(other.parse::<SpecVersion>(), Err(UnknownVersion(other.into())));
        }
    }
}
