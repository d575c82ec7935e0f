//! Hashing, in the two algorithms a [`Digest`] may name.

use base::{Algorithm, Digest};
use sha2::{Digest as _, Sha256, Sha512};

/// Takes bytes as they come and says at the end what they are called.
#[derive(Clone, Debug)]
pub enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self {
            Self::Sha256(hash) => Digest::sha256(hash.finalize().into()),
            Self::Sha512(hash) => Digest::sha512(hash.finalize().into()),
        }
    }
}

/// The digest of `bytes` in the algorithm everybody uses.
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest::sha256(Sha256::digest(bytes).into())
}

/// Whether `bytes` are what `digest` names.
pub fn matches(digest: &Digest, bytes: &[u8]) -> bool {
    let mut hasher = Hasher::new(digest.algorithm());
    hasher.update(bytes);
    hasher.finish() == *digest
}

/// Names the file system below layer `n`: each layer's diff id hashed onto its parent's
/// chain id.
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff in diff_ids {
        let id = match chain.last() {
            None => diff.clone(),
            Some(parent) => sha256(format!("{parent} {diff}").as_bytes()),
        };
        chain.push(id);
    }
    chain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_answers() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b"").as_str(), empty);
        let abc = "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                   2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        assert!(matches(&abc.parse().expect("a digest"), b"abc"));
        assert!(!matches(&abc.parse().expect("a digest"), b"abd"));
    }

    #[test]
    fn a_chain_starts_with_the_first_diff_and_depends_on_every_one_below() {
        let diffs: Vec<_> = ["a", "b", "c"].iter().map(|text| sha256(text.as_bytes())).collect();
        let chain = chain_ids(&diffs);
        assert_eq!(chain[0], diffs[0]);
        assert_eq!(chain[1], sha256(format!("{} {}", diffs[0], diffs[1]).as_bytes()));
        assert_eq!(chain[2], sha256(format!("{} {}", chain[1], diffs[2]).as_bytes()));
        assert_eq!(chain_ids(&diffs[..2]), chain[..2]);
        assert_ne!(chain_ids(&[diffs[1].clone(), diffs[0].clone()])[1], chain[1]);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let mut hasher = Hasher::new(Algorithm::Sha256);
            hasher.update(head);
            hasher.update(tail);
            prop_assert_eq!(hasher.finish(), sha256(&bytes));
        }
    }
}
