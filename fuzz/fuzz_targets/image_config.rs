//! Image configurations: no input panics, and a chain is as long as its layers.

#![no_main]

use content::{ImageConfig, Platform, digest::chain_ids};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = ImageConfig::parse(bytes) else { return };
    let _ = config.user();
    let _ = Platform::host().runs(&config.platform);
    let platform = config.platform.clone().normal();
    assert_eq!(platform.clone().normal(), platform);
    assert_eq!(chain_ids(&config.diff_ids).len(), config.diff_ids.len());
});
