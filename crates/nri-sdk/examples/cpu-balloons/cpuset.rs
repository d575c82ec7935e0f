//! Sets of CPUs, as the kernel writes them: `0-3,8`.

use std::{collections::BTreeSet, fmt, str::FromStr};

use anyhow::{Context, ensure};

/// More than any machine has; what is above is a typing error.
const MAX: u32 = 1 << 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuSet(pub(crate) BTreeSet<u32>);

impl CpuSet {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl FromStr for CpuSet {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let number = |text: &str| {
            let cpu: u32 = text.trim().parse().with_context(|| format!("CPU {text:?}"))?;
            ensure!(cpu < MAX, "there is no CPU {cpu}");
            Ok(cpu)
        };
        let mut cpus = BTreeSet::new();
        for range in text.trim().split(',').filter(|range| !range.is_empty()) {
            match range.split_once('-') {
                Some((first, last)) => cpus.extend(number(first)?..=number(last)?),
                None => drop(cpus.insert(number(range)?)),
            }
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_text_form_reads_back(cpus in proptest::collection::btree_set(0_u32..200, 0..40)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }

    #[test]
    fn ranges() {
        let set: CpuSet = "0-3,8,5-6\n".parse().unwrap();
        assert_eq!(set.to_string(), "0-3,5-6,8");
        assert_eq!("".parse::<CpuSet>().unwrap().len(), 0);
        for bad in ["a", "1-", "-1", "70000", "0-4000000000"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }
}
