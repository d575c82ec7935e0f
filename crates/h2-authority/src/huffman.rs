//! The Huffman code of HPACK (RFC 7541, appendix B).
//!
//! The HPACK crate can decode it too, but builds its lookup tables anew for every string. That
//! costs 25 µs, more than the rest of the layer takes for a whole call.

/// The code lengths in bits, with the number of codes of each. The code is canonical (codes of the
/// same length are consecutive, and shorter ones come first), so this and [`OCTETS`] define it.
const LENGTHS: [(u32, u64); 21] = [
    (5, 10),
    (6, 26),
    (7, 32),
    (8, 6),
    (10, 5),
    (11, 3),
    (12, 2),
    (13, 6),
    (14, 2),
    (15, 3),
    (19, 3),
    (20, 8),
    (21, 13),
    (22, 26),
    (23, 29),
    (24, 12),
    (25, 4),
    (26, 15),
    (27, 19),
    (28, 29),
    (30, 4),
];

/// The octets in the order of their codes. The one code after them is the end-of-string symbol,
/// which must not occur.
#[rustfmt::skip]
const OCTETS: [u8; 256] = [
    48, 49, 50, 97, 99, 101, 105, 111, 115, 116, 32, 37, 45, 46, 47, 51,
    52, 53, 54, 55, 56, 57, 61, 65, 95, 98, 100, 102, 103, 104, 108, 109,
    110, 112, 114, 117, 58, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76,
    77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 89, 106, 107, 113, 118,
    119, 120, 121, 122, 38, 42, 44, 59, 88, 90, 33, 34, 40, 41, 63, 39,
    43, 124, 35, 62, 0, 36, 64, 91, 93, 126, 94, 125, 60, 96, 123, 92,
    195, 208, 128, 130, 131, 162, 184, 194, 224, 226, 153, 161, 167, 172, 176, 177,
    179, 209, 216, 217, 227, 229, 230, 129, 132, 133, 134, 136, 146, 154, 156, 160,
    163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190, 196, 198, 228, 232,
    233, 1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157,
    158, 165, 166, 168, 174, 175, 180, 182, 183, 188, 191, 197, 231, 239, 9, 142,
    144, 145, 148, 159, 171, 206, 215, 225, 236, 237, 199, 207, 234, 235, 192, 193,
    200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255, 203, 204, 211,
    212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253, 254,
    2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20,
    21, 23, 24, 25, 26, 27, 28, 29, 30, 31, 127, 220, 249, 10, 13, 22,
];

/// Decodes `coded` and appends the result to `out`. Returns `None` if it is malformed.
pub(crate) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut coded = coded.iter();
    // Bits that were read but not decoded yet, left-aligned.
    let (mut window, mut bits) = (0_u64, 0_u32);
    loop {
        while bits <= 56
            && let Some(&byte) = coded.next()
        {
            window |= u64::from(byte) << (56 - bits);
            bits += 8;
        }
        let Some((octet, length)) = first_octet(window, bits) else {
            return is_padding(window, bits).then_some(());
        };
        out.push(*OCTETS.get(octet)?);
        window <<= length;
        bits -= length;
    }
}

/// Returns the index into [`OCTETS`] and the length of the code at the start of the window, or
/// `None` if the window holds no complete code.
fn first_octet(window: u64, bits: u32) -> Option<(usize, u32)> {
    let (mut first, mut index, mut shorter) = (0, 0, 0);
    for (length, count) in LENGTHS.into_iter().take_while(|(length, _)| *length <= bits) {
        first <<= length - shorter;
        let past = (window >> (64 - length)).checked_sub(first)?;
        if past < count {
            return Some((usize::try_from(index + past).ok()?, length));
        }
        (first, index, shorter) = (first + count, index + count, length);
    }
    None
}

/// Whether the remaining bits are valid padding of the last byte: fewer than eight, all ones.
fn is_padding(window: u64, bits: u32) -> bool {
    bits < 8 && window.leading_ones() >= bits
}

#[cfg(test)]
mod tests {
    use loona_hpack::huffman::HuffmanDecoder;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(coded, &mut out).map(|()| out)
    }

    #[track_caller]
    fn check(coded: &[u8], want: Option<&str>) {
        assert_eq!(decoded(coded).as_deref(), want.map(str::as_bytes));
    }

    /// RFC 7541, C.4 and C.6.
    #[test]
    fn examples_of_the_standard() {
        check(b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", Some("www.example.com"));
        check(b"\xa8\xeb\x10\x64\x9c\xbf", Some("no-cache"));
        check(b"\x64\x02", Some("302"));
        check(b"", Some(""));
    }

    #[test]
    fn padding_is_short_and_all_ones() {
        // "0" is 00000.
        check(b"\x07", Some("0"));
        check(b"\x06", None);
        check(b"\x07\xff", None);
        check(b"\xff", None);
    }

    #[test]
    fn the_end_of_string_is_refused() {
        check(b"\xff\xff\xff\xff", None);
        check(b"\x07\xff\xff\xff\xff\xff\xff\xff\xff\xff", None);
    }

    proptest! {
        #[test]
        fn agrees_with_the_crate_on_any_bytes(coded in vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(decoded(&coded), HuffmanDecoder::new().decode(&coded).ok());
        }

        /// Random bytes rarely contain long codes, and rarely end in valid padding.
        #[test]
        fn agrees_with_the_crate_on_long_codes(
            coded in vec(prop_oneof![3 => Just(0xff_u8), 1 => any::<u8>()], 0..40)
        ) {
            prop_assert_eq!(decoded(&coded), HuffmanDecoder::new().decode(&coded).ok());
        }
    }
}
