//! Classes of block I/O, as an operator defines them. The format is the one that other engines
//! read, so that one file serves all:
//!
//! ```yaml
//! Classes:
//!   slow:
//!     - Weight: 50
//!     - Devices: ["/dev/vd[a-z]"]
//!       ThrottleReadBps: 50M
//!       ThrottleWriteIOPS: 10k
//! ```

use std::collections::BTreeMap;

use oci_spec::runtime::LinuxBlockIo;
use serde::Deserialize;

use crate::{
    error::Result,
    request::{BlockIo, DeviceRate, DeviceWeight},
    resources,
};

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct BlockIoClasses {
    #[serde(default)]
    classes: BTreeMap<String, Vec<Part>>,
}

/// Settings for some devices; without any, a weight for all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
struct Part {
    devices: Vec<String>,
    weight: Option<Amount>,
    throttle_read_bps: Option<Amount>,
    throttle_write_bps: Option<Amount>,
    #[serde(rename = "ThrottleReadIOPS")]
    throttle_read_iops: Option<Amount>,
    #[serde(rename = "ThrottleWriteIOPS")]
    throttle_write_iops: Option<Amount>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Amount {
    Number(u64),
    Text(String),
}

/// Numbers of block devices, by a pattern of their paths.
pub type FindDevices<'a> = &'a dyn Fn(&str) -> Vec<(u32, u32)>;

impl BlockIoClasses {
    /// `Err` says what is wrong, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parsed: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        for (name, parts) in &parsed.classes {
            for part in parts {
                part.check().map_err(|why| format!("class {name:?}: {why}"))?;
            }
        }
        Ok(parsed)
    }

    /// What the class of this name means on this host; `None` if there is no such class.
    pub fn class(&self, name: &str, devices: FindDevices<'_>) -> Option<Result<LinuxBlockIo>> {
        let mut all = BlockIo::default();
        for part in self.classes.get(name)? {
            part.add_to(&mut all, devices);
        }
        Some(resources::block_io(&all))
    }
}

impl Part {
    fn amounts(&self) -> [&Option<Amount>; 4] {
        let Self { throttle_read_bps, throttle_write_bps, .. } = self;
        [throttle_read_bps, throttle_write_bps, &self.throttle_read_iops, &self.throttle_write_iops]
    }

    fn check(&self) -> Result<(), String> {
        if self.devices.is_empty() && self.amounts().iter().any(|amount| amount.is_some()) {
            return Err("a throttle needs devices".to_owned());
        }
        for amount in self.amounts().into_iter().flatten() {
            amount.value().ok_or_else(|| format!("{amount:?} is not a number such as 50M"))?;
        }
        match self.weight.as_ref().map(Amount::weight) {
            Some(None) => Err("a weight is a number from 10 to 1000".to_owned()),
            _ => Ok(()),
        }
    }

    fn add_to(&self, all: &mut BlockIo, find: FindDevices<'_>) {
        let weight = self.weight.as_ref().and_then(Amount::weight);
        if self.devices.is_empty() {
            all.weight = weight.or(all.weight);
            return;
        }
        let mut found: Vec<_> = self.devices.iter().flat_map(|pattern| find(pattern)).collect();
        found.sort_unstable();
        found.dedup();
        let BlockIo { read_bps, write_bps, read_iops, write_iops, .. } = all;
        let lists = [read_bps, write_bps, read_iops, write_iops];
        for (list, amount) in lists.into_iter().zip(self.amounts()) {
            let Some(rate) = amount.as_ref().and_then(Amount::value) else { continue };
            list.extend(found.iter().map(|&(major, minor)| DeviceRate { major, minor, rate }));
        }
        if let Some(weight) = weight {
            let weigh = |&(major, minor): &(u32, u32)| DeviceWeight { major, minor, weight };
            all.weight_devices.extend(found.iter().map(weigh));
        }
    }
}

impl Amount {
    /// `k`, `M`, `G`, `T` are powers of 1000, with an `i` of 1024, as Kubernetes has it.
    fn value(&self) -> Option<u64> {
        let text = match self {
            Self::Number(number) => return Some(*number),
            Self::Text(text) => text.trim(),
        };
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let scale: u64 = match unit {
            "" => 1,
            "k" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(scale)
    }

    fn weight(&self) -> Option<u16> {
        self.value()?.try_into().ok().filter(|weight| (10..=1000).contains(weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
Classes:
  slow:
    - Weight: 50
    - Devices: [/dev/vd*, /dev/vda]
      ThrottleReadBps: 50M
      ThrottleWriteIOPS: 2Ki
      Weight: \"400\"
  none: []
";

    #[test]
    fn a_class_is_what_its_parts_say() {
        let classes = BlockIoClasses::parse(FILE).unwrap();
        let find = |pattern: &str| match pattern {
            "/dev/vd*" => vec![(254, 16), (254, 0)],
            _ => vec![(254, 0)],
        };
        let slow = classes.class("slow", &find).unwrap().unwrap();
        assert_eq!(slow.weight(), Some(50));
        let rates = |list: &Option<Vec<oci_spec::runtime::LinuxThrottleDevice>>| -> Vec<_> {
            let list = list.iter().flatten();
            list.map(|device| (device.major(), device.minor(), device.rate())).collect()
        };
        let read = rates(slow.throttle_read_bps_device());
        assert_eq!(read, [(254, 0, 50_000_000), (254, 16, 50_000_000)], "each device once");
        assert_eq!(rates(slow.throttle_write_iops_device())[0], (254, 0, 2048));
        assert_eq!(slow.throttle_write_bps_device(), &None);
        let weights = slow.weight_device().as_ref().unwrap();
        assert_eq!((weights.len(), weights[0].weight()), (2, Some(400)));
        assert_eq!(classes.class("none", &find).unwrap().unwrap(), LinuxBlockIo::default());
        assert!(classes.class("fast", &find).is_none());
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let check = |text: &str, want: &str| {
            let error = BlockIoClasses::parse(text).unwrap_err();
            assert!(error.contains(want), "{error}");
        };
        check("Classes:\n  a:\n    - ThrottleReadBps: 1", "class \"a\": a throttle needs devices");
        check("Classes:\n  a:\n    - Weight: 5", "a weight is a number from 10 to 1000");
        check("Classes:\n  a:\n    - Devices: [x]\n      ThrottleReadBps: 5Q", "such as 50M");
        check("Classes:\n  a:\n    - Wait: 5", "Wait");
        check("Klasses: {}", "Klasses");
    }
}
