use std::{fmt, str::FromStr};

use crate::{hex, text::serde_as_text};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    pub fn hex_len(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names content by its hash: `sha256:9f86d0…`. Well-formed by construction; whether
/// some bytes match it is for whoever hashes them to say.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    /// The whole `algorithm:hex`, which is what callers want most.
    text: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("digest {0:?} is not of the form algorithm:hex")]
    Form(String),
    #[error("digest algorithm {0:?} is not sha256 or sha512")]
    Algorithm(String),
    #[error("{algorithm} digest {hex:?} is not {} lower-case hexadecimal digits", .algorithm.hex_len())]
    Hex { algorithm: Algorithm, hex: String },
}

impl Digest {
    pub fn sha256(hash: [u8; 32]) -> Self {
        Self::of(Algorithm::Sha256, &hash)
    }

    pub fn sha512(hash: [u8; 64]) -> Self {
        Self::of(Algorithm::Sha512, &hash)
    }

    fn of(algorithm: Algorithm, hash: &[u8]) -> Self {
        let mut text = String::with_capacity(algorithm.name().len() + 1 + algorithm.hex_len());
        text.push_str(algorithm.name());
        text.push(':');
        hex::push(&mut text, hash);
        Self { algorithm, text: text.into() }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The digits after the colon.
    pub fn hex(&self) -> &str {
        &self.text[self.algorithm.name().len() + 1..]
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let (name, hex) = text.split_once(':').ok_or_else(|| DigestError::Form(text.to_owned()))?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return Err(DigestError::Algorithm(name.to_owned())),
        };
        if hex.len() != algorithm.hex_len() || !hex::is_lower_hex(hex) {
            return Err(DigestError::Hex { algorithm, hex: hex.to_owned() });
        }
        Ok(Self { algorithm, text: text.into() })
    }
}

serde_as_text!(Digest);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, want: Result<(), &str>) {
        let got = text.parse::<Digest>().map(|digest| assert_eq!(digest.as_str(), text));
        assert_eq!(got.map_err(|e| e.to_string()), want.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn forms() {
        let short = "a".repeat(4);
        check(&format!("sha256:{}", "0a".repeat(32)), Ok(()));
        check(&format!("sha512:{}", "0a".repeat(64)), Ok(()));
        check(&short, Err("digest \"aaaa\" is not of the form algorithm:hex"));
        check("", Err("digest \"\" is not of the form algorithm:hex"));
        check("md5:aa", Err("digest algorithm \"md5\" is not sha256 or sha512"));
        check("SHA256:aa", Err("digest algorithm \"SHA256\" is not sha256 or sha512"));
        let hex = "sha256 digest \"aa\" is not 64 lower-case hexadecimal digits";
        check("sha256:aa", Err(hex));
        assert!(format!("sha256:{}", "0A".repeat(32)).parse::<Digest>().is_err());
        assert!(format!("sha256:{}", "0a".repeat(64)).parse::<Digest>().is_err());
    }

    proptest! {
        #[test]
        fn hashes_round_trip(hash: [u8; 32], long: [u8; 32]) {
            let mut wide = [0; 64];
            wide[..32].copy_from_slice(&long);
            for digest in [Digest::sha256(hash), Digest::sha512(wide)] {
                prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest.clone()));
                prop_assert_eq!(digest.hex().len(), digest.algorithm().hex_len());
            }
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Digest>();
        }
    }
}
