use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Room on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl Usage {
    const BLOCK: u64 = 4096;

    /// What a file of `bytes` takes, in the blocks nearly every file system has.
    pub(crate) fn of_file(bytes: u64) -> Self {
        Self { bytes: bytes.div_ceil(Self::BLOCK).saturating_mul(Self::BLOCK), inodes: 1 }
    }

    pub(crate) const DIRECTORY: Self = Self { bytes: Self::BLOCK, inodes: 1 };
    pub(crate) const NODE: Self = Self { bytes: 0, inodes: 1 };

    pub(crate) fn less(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}
