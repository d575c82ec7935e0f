//! Indexes and manifests: no input panics, what is accepted is within its limits, is read
//! the same again, and an index gives an entry of its own or none.

#![no_main]

use content::{
    Platform,
    image::manifest::{Document, LAYER_LIMIT},
};
use libfuzzer_sys::fuzz_target;

const TYPES: [Option<&str>; 4] = [
    None,
    Some("application/vnd.oci.image.index.v1+json"),
    Some("application/vnd.docker.distribution.manifest.v2+json; charset=utf-8"),
    Some("text/html"),
];

fuzz_target!(|input: (u8, &[u8])| {
    let (served, bytes) = (TYPES[usize::from(input.0) % TYPES.len()], input.1);
    match Document::parse(bytes, served) {
        Err(_) => {}
        Ok(Document::Index(index)) => {
            let chosen = index.choose(&Platform::host());
            assert!(chosen.is_none_or(|entry| index.manifests.contains(entry)));
            let again = serde_json::to_vec(&index).expect("encodes");
            assert_eq!(Document::parse(&again, None), Ok(Document::Index(index)));
        }
        Ok(Document::Manifest(manifest)) => {
            assert!(manifest.layers.len() <= LAYER_LIMIT && manifest.size() < u64::MAX);
            let again = serde_json::to_vec(&manifest).expect("encodes");
            assert_eq!(Document::parse(&again, None), Ok(Document::Manifest(manifest)));
        }
    }
});
