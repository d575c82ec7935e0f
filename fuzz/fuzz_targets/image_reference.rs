//! Image names: whatever parses prints itself, in both spellings, and parses back.

#![no_main]

use base::{ImageQuery, ImageRef};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = text.parse::<ImageQuery>();
    let Ok(name) = text.parse::<ImageRef>() else { return };
    assert_eq!(name.to_string().parse().as_ref(), Ok(&name));
    assert_eq!(name.familiar().parse().as_ref(), Ok(&name));
    assert!(!name.repository().registry().is_empty() && !name.repository().path().is_empty());
});
