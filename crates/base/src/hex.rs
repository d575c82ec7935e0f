//! Lower-case hexadecimal, the only spelling ids and digests have.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

pub(crate) fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The two digits of one byte.
pub(crate) fn digits(byte: u8) -> [u8; 2] {
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0xf)]]
}

pub(crate) fn push(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().flat_map(|&byte| digits(byte)).map(char::from));
}
