//! The alphabet of references, as registries and Docker share it.
//!
//! ```text
//! registry  = host [":" digits]          host = label *("." label) | "[" IPv6 "]"
//! path      = part *("/" part)           part = word *(("." | "_" | "__" | 1*"-") word)
//! tag       = (alnum | "_") up to 127 of (alnum | "_" | "." | "-")
//! ```
//! Words are lower case, host labels are not.

pub(super) const MAX_PATH: usize = 255;
pub(super) const MAX_TAG: usize = 128;

pub(super) fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        // A colon inside the brackets of an IPv6 address begins no port.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port_ok = port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    port_ok && is_host(host)
}

fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[') {
        let address = inner.strip_suffix(']').unwrap_or_default();
        return !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    }
    text.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

pub(super) fn is_path(text: &str) -> bool {
    text.split('/').all(is_part)
}

fn is_part(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut bytes = text.bytes().peekable();
    loop {
        // A word, then either the end or one separator.
        if bytes.next_if(|&b| is_word(b)).is_none() {
            return false;
        }
        while bytes.next_if(|&b| is_word(b)).is_some() {}
        match bytes.next() {
            None => return true,
            Some(b'.') => {}
            Some(b'_') => drop(bytes.next_if_eq(&b'_')),
            Some(b'-') => while bytes.next_if_eq(&b'-').is_some() {},
            Some(_) => return false,
        }
    }
}

pub(super) fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}
