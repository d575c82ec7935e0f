//! Files with holes. Four ways to write down where the data is: GNU's own header, and
//! GNU's three generations of extended-header records (0.0, 0.1, 1.0).
//!
//! **Invariant:** pieces ascend, do not overlap, end within the file, and are as long
//! together as the data in the archive.

use super::{
    header::{BLOCK, number},
    pax,
};
use crate::{ApplyError, Limited, Refusal, limits};

/// Data of `len` bytes belongs to `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// What records said, before it is believed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    major: Option<u64>,
    minor: Option<u64>,
    numbers: Option<Vec<u64>>,
}

impl Claims {
    /// `key` is what follows `GNU.sparse.`; false for a value that is none.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) -> bool {
        let slot = match key {
            b"name" => {
                self.name = Some(value.to_vec());
                return true;
            }
            b"map" => return self.take_map(value),
            // The first generation repeats these, in pairs.
            b"offset" | b"numbytes" => {
                let Some(number) = pax::decimal(value) else { return false };
                self.numbers.get_or_insert_default().push(number);
                return true;
            }
            b"size" | b"realsize" => &mut self.size,
            b"major" => &mut self.major,
            b"minor" => &mut self.minor,
            _ => return true,
        };
        *slot = pax::decimal(value);
        slot.is_some()
    }

    fn take_map(&mut self, value: &[u8]) -> bool {
        let numbers: Option<Vec<u64>> = match value {
            b"" => Some(Vec::new()),
            value => value.split(|&b| b == b',').map(pax::decimal).collect(),
        };
        let good = numbers.is_some();
        self.numbers = numbers;
        good
    }

    /// The map stands before the data.
    pub(crate) fn is_inline(&self) -> bool {
        (self.major, self.minor) == (Some(1), Some(0))
    }

    pub(crate) fn pieces(&self) -> Option<Vec<Piece>> {
        self.numbers.as_ref().and_then(|numbers| pairs(numbers))
    }
}

fn pairs(numbers: &[u64]) -> Option<Vec<Piece>> {
    let pairs = numbers.chunks(2).map(|pair| match *pair {
        [at, len] => Some(Piece { at, len }),
        _ => None,
    });
    pairs.collect()
}

/// From the fields of GNU's header: 24 bytes each, until an empty one.
pub(crate) fn from_fields(fields: &[u8], pieces: &mut Vec<Piece>) -> Option<()> {
    for field in fields.chunks_exact(24).take_while(|field| field[0] != 0) {
        let value = |field| number(field).and_then(|value| u64::try_from(value).ok());
        pieces.push(Piece { at: value(&field[..12])?, len: value(&field[12..])? });
    }
    Some(())
}

/// Reads a map that stands before the data: decimal lines, the number of pieces first, in
/// whole blocks. `next` gives a block.
pub(crate) fn read_inline(
    mut next: impl FnMut() -> Result<[u8; BLOCK], ApplyError>,
    refused: impl Fn() -> ApplyError,
) -> Result<Vec<Piece>, ApplyError> {
    let mut text = Vec::new();
    let mut lines = || -> Result<u64, ApplyError> {
        loop {
            if let Some(end) = text.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                return pax::decimal(&line[..end]).ok_or_else(&refused);
            }
            // Twenty digits are the longest number; a block without an end is no map.
            if text.len() > BLOCK {
                return Err(refused());
            }
            text.extend(next()?);
        }
    };
    let count = lines()?;
    if count > limits::SPARSE_PIECES {
        return Err(limits::limit(Limited::SparsePieces, limits::SPARSE_PIECES));
    }
    (0..count).map(|_| Ok(Piece { at: lines()?, len: lines()? })).collect()
}

/// Holds the invariant of this module.
pub(crate) fn check(pieces: &[Piece], size: u64, data: u64) -> Result<(), Refusal> {
    let (mut end, mut sum) = (0u64, 0u64);
    for piece in pieces {
        if piece.at < end {
            return Err(Refusal::Sparse);
        }
        end = piece.at.checked_add(piece.len).ok_or(Refusal::Sparse)?;
        sum = sum.checked_add(piece.len).ok_or(Refusal::Sparse)?;
    }
    if end > size || sum != data { Err(Refusal::Sparse) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_checked() {
        let test = |pieces: &[(u64, u64)], size, data, good: bool| {
            let pieces: Vec<_> = pieces.iter().map(|&(at, len)| Piece { at, len }).collect();
            assert_eq!(check(&pieces, size, data).is_ok(), good, "{pieces:?} {size} {data}");
        };
        test(&[], 100, 0, true);
        test(&[(0, 10), (20, 5), (100, 0)], 100, 15, true);
        test(&[(0, 10), (9, 1)], 100, 11, false);
        test(&[(20, 1), (0, 1)], 100, 2, false);
        test(&[(0, 101)], 100, 101, false);
        test(&[(0, 10)], 100, 11, false);
        test(&[(u64::MAX, 1)], u64::MAX, 1, false);
        test(&[(0, u64::MAX), (u64::MAX, 0)], u64::MAX, u64::MAX, true);
    }

    fn inline(text: &str) -> Result<Vec<Piece>, ApplyError> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        let mut blocks = bytes.chunks_exact(BLOCK).map(|c| c.try_into().unwrap());
        let refused = || ApplyError::refused(b"x", Refusal::Sparse);
        read_inline(|| blocks.next().ok_or_else(refused), refused)
    }

    #[test]
    fn inline_maps() {
        assert_eq!(inline("0\n").unwrap(), []);
        assert_eq!(inline("1\n5\n7\n").unwrap(), [Piece { at: 5, len: 7 }]);
        let many: String = (0..200).map(|n| format!("{}\n{}\n", n * 4096, 10)).collect();
        assert_eq!(inline(&format!("200\n{many}")).unwrap().len(), 200);
        for bad in ["", "x\n", "2\n1\n1\n", "1\n-1\n1\n", "99999999999\n", &"1".repeat(2000)] {
            assert!(inline(bad).is_err(), "{bad}");
        }
    }
}
