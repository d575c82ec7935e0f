//! Amounts as Kubernetes writes them, and what a kubelet makes of them. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use oci::{HugepageLimit, Resources};
use serde::Deserialize;
use serde_json::Value;

/// Microseconds.
const PERIOD: u64 = 100_000;
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: u64 = 2;

/// Amounts by the names of resources.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub(super) struct List(BTreeMap<String, Value>);

/// What a node takes from a pod last, to what it takes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl List {
    /// In thousandths.
    fn milli(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        milli(&text).map(Some).with_context(|| format!("resources: {name}: {text:?}"))
    }

    fn whole(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.milli(name)?.map(|milli| milli.div_ceil(1000)))
    }

    /// Of a list that is limit and request in one.
    pub(super) fn limits(&self) -> Result<Resources> {
        of(self, self)
    }
}

/// `1`, `0.5`, `500m`, `64Mi`, `1G`.
fn milli(text: &str) -> Result<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: u64 = match unit {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        _ => bail!("is no amount"),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || part.len() > 9 {
        bail!("is no amount");
    }
    let scale = 10_u64.pow(u32::try_from(part.len()).unwrap_or(9));
    let digits: u64 = format!("{whole}{part}").parse().context("is no amount")?;
    let all = u128::from(digits) * u128::from(factor);
    u64::try_from(all.div_ceil(scale.into())).context("is too much")
}

/// The limits of one container.
pub(super) fn of(limits: &List, requests: &List) -> Result<Resources> {
    let (cpu, wanted) = (limits.milli("cpu")?, requests.milli("cpu")?);
    let hugepages = limits.0.keys().filter_map(|key| key.strip_prefix("hugepages-"));
    let hugepages = hugepages.map(|size| {
        let limit = limits.whole(&format!("hugepages-{size}"))?.unwrap_or_default();
        Ok(HugepageLimit { page_size: size.replace('i', "B"), limit })
    });
    Ok(Resources {
        // What is not requested is taken to be the limit.
        cpu_shares: wanted.or(cpu).map(|milli| (milli * 1024 / 1000).max(MIN_SHARES)),
        cpu_quota: cpu
            .map(|milli| i64::try_from(milli * PERIOD / 1000).unwrap_or(-1).max(MIN_QUOTA)),
        cpu_period: cpu.map(|_| PERIOD),
        memory_limit: limits.whole("memory")?.and_then(|bytes| i64::try_from(bytes).ok()),
        hugepages: hugepages.collect::<Result<_>>()?,
        ..Resources::default()
    })
}

/// The limits of a pod: the sum, of what every container has a limit for.
pub(super) fn total(demands: &[(&List, &List)]) -> Result<Resources> {
    let each: Vec<_> = demands.iter().map(|(l, r)| of(l, r)).collect::<Result<_>>()?;
    let shares = each.iter().filter_map(|r| r.cpu_shares).sum::<u64>();
    let all =
        |amount: fn(&Resources) -> Option<i64>| -> Option<i64> { each.iter().map(amount).sum() };
    let quota = all(|r| r.cpu_quota);
    Ok(Resources {
        cpu_shares: Some(shares.max(MIN_SHARES)),
        cpu_quota: quota,
        cpu_period: quota.map(|_| PERIOD),
        memory_limit: all(|r| r.memory_limit),
        ..Resources::default()
    })
}

pub(super) fn class(demands: &[(&List, &List)]) -> Class {
    let nothing = |list: &List| list.0.is_empty();
    if demands.iter().all(|(limits, requests)| nothing(limits) && nothing(requests)) {
        return Class::BestEffort;
    }
    let kept = |limits: &List, requests: &List, name: &str| {
        let limit = limits.milli(name).ok().flatten();
        let request = requests.milli(name).ok().flatten();
        limit.is_some() && request.is_none_or(|request| Some(request) == limit)
    };
    let guaranteed = demands.iter().all(|(l, r)| kept(l, r, "cpu") && kept(l, r, "memory"));
    if guaranteed { Class::Guaranteed } else { Class::Burstable }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts() {
        for (text, want) in [
            ("1", 1000),
            ("0.5", 500),
            ("500m", 500),
            ("64Mi", (64 << 20) * 1000),
            ("1.5Gi", (3 << 29) * 1000),
            ("2k", 2_000_000),
        ] {
            assert_eq!(milli(text).unwrap(), want, "{text}");
        }
        for text in ["", "x", "1X", ".5", "-1", "1.2.3", "999999999999Ti"] {
            assert!(milli(text).is_err(), "{text}");
        }
    }

    fn list(value: Value) -> List {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn classes_of_service() {
        let none = List::default();
        let both = list(json!({ "cpu": 1, "memory": "1Gi" }));
        let one = list(json!({ "cpu": "1" }));
        assert_eq!(class(&[(&none, &none)]), Class::BestEffort);
        assert_eq!(class(&[(&both, &none)]), Class::Guaranteed);
        assert_eq!(class(&[(&both, &one)]), Class::Guaranteed);
        assert_eq!(class(&[(&both, &none), (&none, &one)]), Class::Burstable);
    }

    #[test]
    fn a_pod_is_limited_where_all_its_containers_are() {
        let (a, b) = (list(json!({ "cpu": 1, "memory": "1Gi" })), list(json!({ "cpu": "500m" })));
        let sum = total(&[(&a, &a), (&b, &b)]).unwrap();
        assert_eq!((sum.cpu_quota, sum.memory_limit), (Some(150_000), None));
        let pages = of(&list(json!({ "hugepages-2Mi": "4Mi" })), &List::default()).unwrap();
        let want = HugepageLimit { page_size: "2MB".into(), limit: 4 << 20 };
        assert_eq!(pages.hugepages, [want]);
    }
}
