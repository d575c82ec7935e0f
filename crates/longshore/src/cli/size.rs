//! Sizes for people: `12.3 MB`.

use std::fmt;

/// In decimal units, as registries and disks count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) u64);

const UNITS: [(&str, u64); 4] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match UNITS.into_iter().find(|(_, scale)| self.0 >= *scale) {
            // Tenths that are cut, not rounded: 999 999 is not 1000.0 kB.
            Some((unit, scale)) => {
                format!("{}.{} {unit}", self.0 / scale, self.0 % scale / (scale / 10))
            }
            None => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, want) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_999, "999.9 kB"),
            (12_345_678, "12.3 MB"),
            (u64::MAX, "18446744.0 TB"),
        ] {
            assert_eq!(Size(bytes).to_string(), want);
        }
        assert_eq!(format!("{:>8}|", Size(5)), "     5 B|");
    }
}
