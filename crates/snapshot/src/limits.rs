use crate::{ApplyError, error::Limited};

/// What one layer may cost. The defaults let every honest image pass that we know of and
/// end a bomb long before it fills a disk of usual size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the unpacked stream, and of the files it makes: holes count.
    pub bytes: u64,
    pub entries: u64,
    /// How many bytes one compressed byte may become. gzip cannot do more than 1032, zstd
    /// can do any number.
    pub ratio: u64,
    /// This much is free of the ratio: an image full of zeros is foolish, not hostile.
    pub ratio_free: u64,
    /// Components of a path.
    pub depth: usize,
}

/// A path longer than this cannot be opened in one call.
pub(crate) const NAME_BYTES: usize = 4095;
/// Extended headers of one entry: names, owners, attributes. Attributes of 64 KiB are the
/// most that Linux stores.
pub(crate) const HEADER_BYTES: u64 = 1 << 20;
pub(crate) const SPARSE_PIECES: u64 = 1 << 18;

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 256 << 30, entries: 5_000_000, ratio: 250, ratio_free: 4 << 30, depth: 512 }
    }
}

impl Limits {
    pub(crate) fn check_stream(&self, compressed: u64, bytes: u64) -> Result<(), ApplyError> {
        if bytes > self.bytes {
            return Err(limit(Limited::Bytes, self.bytes));
        }
        let fair = compressed.saturating_mul(self.ratio).saturating_add(self.ratio_free);
        if bytes > fair {
            return Err(limit(Limited::Ratio, self.ratio));
        }
        Ok(())
    }
}

pub(crate) fn limit(what: Limited, limit: u64) -> ApplyError {
    ApplyError::Limit { what, limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_counts_beyond_what_is_free() {
        let limits = Limits { bytes: 10_000, ratio: 10, ratio_free: 1000, ..Limits::default() };
        let check = |compressed, bytes, want: Option<Limited>| {
            let got = limits.check_stream(compressed, bytes).err().map(|e| match e {
                ApplyError::Limit { what, .. } => what,
                other => panic!("{other}"),
            });
            assert_eq!(got, want, "{compressed} {bytes}");
        };
        check(0, 1000, None);
        check(0, 1001, Some(Limited::Ratio));
        check(10, 1100, None);
        check(10, 1101, Some(Limited::Ratio));
        check(10_000, 10_000, None);
        check(10_000, 10_001, Some(Limited::Bytes));
        check(u64::MAX, 10_000, None);
    }
}
