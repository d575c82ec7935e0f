//! One block of 512 bytes that describes an entry.
//!
//! ```text
//!   0 name 100 │ 100 mode 8 │ 108 uid 8 │ 116 gid 8 │ 124 size 12 │ 136 mtime 12
//! 148 checksum 8 │ 156 type │ 157 link 100 │ 257 magic 8 │ 265 user 32 │ 297 group 32
//! 329 major 8 │ 337 minor 8 │ 345 prefix 155 (POSIX), 131 (star)
//!                             345 times 24 │ 386 sparse 4×24 │ 482 more │ 483 real size 12 (GNU)
//! ```

pub(crate) const BLOCK: usize = 512;

pub(crate) type Block = [u8; BLOCK];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    V7,
    Posix,
    Star,
    Gnu,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'b>(pub(crate) &'b Block);

impl<'b> Header<'b> {
    /// What the header says its sum is must be so; old tools added signed bytes.
    pub(crate) fn is_sound(self) -> bool {
        let outside = |at: &usize| !(148..156).contains(at);
        let bytes = || (0..BLOCK).filter(outside).map(|at| self.0[at]);
        let blanks = 8 * i64::from(b' ');
        let unsigned = bytes().map(i64::from).sum::<i64>() + blanks;
        let signed = bytes().map(|b| i64::from(b.cast_signed())).sum::<i64>() + blanks;
        matches!(number(self.field(148, 8)), Some(sum) if sum == unsigned || sum == signed)
    }

    pub(crate) fn dialect(self) -> Dialect {
        match (self.field(257, 8), self.field(508, 4)) {
            (b"ustar  \0", _) => Dialect::Gnu,
            ([b'u', b's', b't', b'a', b'r', 0, ..], b"tar\0") => Dialect::Star,
            ([b'u', b's', b't', b'a', b'r', 0, ..], _) => Dialect::Posix,
            _ => Dialect::V7,
        }
    }

    pub(crate) fn kind(self) -> u8 {
        self.0[156]
    }

    pub(crate) fn name(self) -> Vec<u8> {
        let prefix = match self.dialect() {
            Dialect::Posix => text(self.field(345, 155)),
            Dialect::Star => text(self.field(345, 131)),
            Dialect::V7 | Dialect::Gnu => b"",
        };
        let name = text(self.field(0, 100));
        match prefix {
            [] => name.to_vec(),
            prefix => [prefix, b"/", name].concat(),
        }
    }

    pub(crate) fn link(self) -> &'b [u8] {
        text(self.field(157, 100))
    }

    pub(crate) fn mode(self) -> Option<i64> {
        number(self.field(100, 8))
    }

    pub(crate) fn uid(self) -> Option<i64> {
        number(self.field(108, 8))
    }

    pub(crate) fn gid(self) -> Option<i64> {
        number(self.field(116, 8))
    }

    pub(crate) fn size(self) -> Option<i64> {
        number(self.field(124, 12))
    }

    pub(crate) fn mtime(self) -> Option<i64> {
        number(self.field(136, 12))
    }

    pub(crate) fn device(self) -> Option<(i64, i64)> {
        match self.dialect() {
            Dialect::V7 => Some((0, 0)),
            _ => Some((number(self.field(329, 8))?, number(self.field(337, 8))?)),
        }
    }

    /// GNU's first four pieces, whether more blocks of them follow, and the size with holes.
    pub(crate) fn gnu_sparse(self) -> (&'b [u8], bool, Option<i64>) {
        (self.field(386, 96), self.0[482] != 0, number(self.field(483, 12)))
    }

    fn field(self, at: usize, len: usize) -> &'b [u8] {
        &self.0[at..at + len]
    }
}

pub(crate) fn text(field: &[u8]) -> &[u8] {
    field.split(|&b| b == 0).next().unwrap_or(field)
}

/// Octal digits between blanks; or, with the highest bit set, the bytes themselves, as a
/// signed number. Empty is 0. `None`: neither, or too large.
pub(crate) fn number(field: &[u8]) -> Option<i64> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 == 0 {
        return octal(field);
    }
    // Bit 6 of the first byte is the sign; it fills the bits that are not there.
    let negative = first & 0x40 != 0;
    let head = if negative { first | 0x80 } else { first & 0x7f };
    let start = i128::from(head.cast_signed());
    let value = rest.iter().try_fold(start, |value, &byte| {
        value.checked_mul(256).map(|value| value | i128::from(byte))
    });
    i64::try_from(value?).ok()
}

fn octal(field: &[u8]) -> Option<i64> {
    let field = text(field.trim_ascii_start()).trim_ascii();
    field.iter().try_fold(0i64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers() {
        let check = |field: &[u8], want: Option<i64>| assert_eq!(number(field), want, "{field:?}");
        check(b"0000644\0", Some(0o644));
        check(b"   644 \0", Some(0o644));
        check(b"77777777", Some(0o77_777_777));
        check(b"777777777777", Some(0o777_777_777_777));
        check(b"\0\0\0\0\0\0\0\0", Some(0));
        check(b"        ", Some(0));
        check(b"644\0junk", Some(0o644));
        check(b"0x1f\0\0\0\0", None);
        check(b"-1\0\0\0\0\0\0", None);
        check(b"00000888", None);
        check(&[0x80, 0, 0, 0, 0, 0, 1, 0], Some(256));
        check(&[0xff; 8], Some(-1));
        check(&[0xff; 12], Some(-1));
        check(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Some(i64::MAX));
        check(&[0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0], None);
        check(&[0xbf; 12], None);
    }

    fn block(path: &str) -> Block {
        let mut header = tar::Header::new_ustar();
        header.set_path(path).unwrap();
        header.set_size(7);
        header.set_mode(0o4755);
        header.set_cksum();
        *header.as_bytes()
    }

    #[test]
    fn prefixes_are_put_before_names() {
        let long = format!("{}/{}", "d".repeat(90), "f".repeat(90));
        let mut block = block(&long);
        assert_eq!(Header(&block).name(), long.as_bytes());
        assert!(Header(&block).is_sound());
        assert_eq!(Header(&block).dialect(), Dialect::Posix);
        block[508..].copy_from_slice(b"tar\0");
        assert_eq!(Header(&block).dialect(), Dialect::Star);
        block[257..265].copy_from_slice(b"ustar  \0");
        assert_eq!(Header(&block).name(), "f".repeat(90).as_bytes());
        assert!(!Header(&block).is_sound());
    }

    #[test]
    fn sums_of_signed_bytes_are_sound() {
        let mut header = block("x");
        header[0] = 0xe4;
        let sum: i64 = (0..BLOCK)
            .map(|at| if (148..156).contains(&at) { b' ' } else { header[at] })
            .map(|b| i64::from(b.cast_signed()))
            .sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(Header(&header).is_sound());
        header[1] ^= 1;
        assert!(!Header(&header).is_sound());
    }

    proptest! {
        #[test]
        fn fields_are_what_the_tar_crate_wrote(
            size in 0u64..1 << 40, mode in 0u32..0o10000, uid in 0u64..1 << 34, mtime in 0u64..1 << 36,
        ) {
            let mut header = tar::Header::new_gnu();
            header.set_path("a/b").unwrap();
            header.set_size(size);
            header.set_mode(mode);
            header.set_uid(uid);
            header.set_mtime(mtime);
            header.set_cksum();
            let ours = Header(header.as_bytes());
            prop_assert!(ours.is_sound());
            prop_assert_eq!(ours.size(), i64::try_from(size).ok());
            prop_assert_eq!(ours.mode(), Some(mode.into()));
            prop_assert_eq!(ours.uid(), i64::try_from(uid).ok());
            prop_assert_eq!(ours.mtime(), i64::try_from(mtime).ok());
            prop_assert_eq!(ours.name(), b"a/b");
        }

        #[test]
        fn no_block_panics(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
            let block: Block = bytes.try_into().unwrap();
            let header = Header(&block);
            let _ = (header.is_sound(), header.name(), header.size(), header.device());
            let _ = (header.mode(), header.uid(), header.gid(), header.mtime(), header.gnu_sparse());
        }
    }
}
