//! What a chain of programs answered: interfaces and their addresses.
//!
//! The answer is kept whole, as JSON, because the next program of the chain and a later DEL
//! are given it back; we ourselves read only interfaces and addresses.
//!
//! **Invariant:** a [`CniResult`] that exists has addresses that are addresses, each on an
//! interface that is there, and is written in the version its network speaks.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    cidr::{Cidr, CidrError},
    version::{SpecVersion, UnknownVersion},
};

#[derive(Clone, Debug, PartialEq)]
pub struct CniResult {
    pub interfaces: Vec<Interface>,
    pub addresses: Vec<Address>,
    /// As answered, in the version of the network.
    pub raw: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub mac: String,
    /// Whether it is in the pod's namespace, not the host's.
    pub in_pod: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub cidr: Cidr,
    pub gateway: Option<IpAddr>,
    /// Index into the interfaces; without one it is on the interface that was asked for.
    pub interface: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    #[error("the answer is empty")]
    Empty,
    #[error("the answer is not the JSON of a result: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Version(#[from] UnknownVersion),
    #[error(transparent)]
    Address(#[from] CidrError),
    #[error("{0:?} is no address of a gateway")]
    Gateway(String),
    #[error("an address is on interface {index} and there are {count}")]
    Interface { index: i64, count: usize },
}

/// Which address is *the* address of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpPreference {
    #[default]
    V4,
    V6,
    /// As the network answered.
    AsAnswered,
}

/// The members we read, as lenient as the field: Go writes `null` for what is empty.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    cni_version: Option<String>,
    interfaces: Option<Vec<WireInterface>>,
    ips: Option<Vec<WireAddress>>,
}

#[derive(Deserialize)]
struct WireInterface {
    name: String,
    mac: Option<String>,
    sandbox: Option<String>,
}

#[derive(Deserialize)]
struct WireAddress {
    address: String,
    gateway: Option<String>,
    interface: Option<i64>,
}

// === impl CniResult ===

impl CniResult {
    /// Reads what a program printed when it was called in version `spoken`. A program that
    /// answers in another version it knows is translated.
    pub fn parse(stdout: &[u8], spoken: SpecVersion) -> Result<Self, ResultError> {
        if stdout.trim_ascii().is_empty() {
            return Err(ResultError::Empty);
        }
        Self::from_raw(serde_json::from_slice(stdout)?, spoken)
    }

    pub fn from_raw(mut raw: Map<String, Value>, spoken: SpecVersion) -> Result<Self, ResultError> {
        let wire = Wire::deserialize(&raw)?;
        if let Some(answered) = &wire.cni_version {
            answered.parse::<SpecVersion>()?;
        }
        let interfaces: Vec<_> =
            wire.interfaces.unwrap_or_default().into_iter().map(interface).collect();
        let addresses = wire.ips.unwrap_or_default().into_iter();
        let addresses = addresses.map(|wire| address(wire, interfaces.len()));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        raw.insert("cniVersion".to_owned(), spoken.as_str().into());
        tell_families(&mut raw, &addresses, spoken);
        Ok(Self { interfaces, addresses, raw })
    }

    /// The addresses the pod has on `ifname`, the preferred one first, the rest as answered.
    pub fn pod_ips(&self, ifname: &str, preference: IpPreference) -> Vec<IpAddr> {
        let on_it =
            |address: &&Address| match address.interface.map(|index| &self.interfaces[index]) {
                None => true,
                Some(interface) => interface.in_pod && interface.name == ifname,
            };
        let mut ips: Vec<_> =
            self.addresses.iter().filter(on_it).map(|address| address.cidr.addr).collect();
        let first = match preference {
            IpPreference::V4 => ips.iter().position(IpAddr::is_ipv4),
            IpPreference::V6 => ips.iter().position(IpAddr::is_ipv6),
            IpPreference::AsAnswered => None,
        };
        if let Some(first) = first {
            ips[..=first].rotate_right(1);
        }
        ips
    }
}

fn interface(wire: WireInterface) -> Interface {
    Interface {
        name: wire.name,
        mac: wire.mac.unwrap_or_default(),
        in_pod: wire.sandbox.is_some_and(|sandbox| !sandbox.is_empty()),
    }
}

fn address(wire: WireAddress, interfaces: usize) -> Result<Address, ResultError> {
    let gateway = match wire.gateway {
        Some(text) if !text.is_empty() => {
            Some(text.parse().map_err(|_| ResultError::Gateway(text))?)
        }
        _ => None,
    };
    let there = |index: i64| {
        let there = usize::try_from(index).ok().filter(|index| *index < interfaces);
        there.ok_or(ResultError::Interface { index, count: interfaces })
    };
    let interface = wire.interface.map(there).transpose()?;
    Ok(Address { cidr: wire.address.parse()?, gateway, interface })
}

/// Versions before 1.0.0 demand a member that later ones do not have.
fn tell_families(raw: &mut Map<String, Value>, addresses: &[Address], spoken: SpecVersion) {
    let Some(Value::Array(ips)) = raw.get_mut("ips") else { return };
    for (ip, address) in ips.iter_mut().zip(addresses) {
        let Value::Object(ip) = ip else { continue };
        if spoken.tells_family() {
            let family = if address.cidr.is_v4() { "4" } else { "6" };
            ip.insert("version".to_owned(), family.into());
        } else {
            ip.remove("version");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn bridge() -> Value {
        json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": "cni0", "mac": "aa:bb:cc:dd:ee:01"},
                {"name": "veth1", "mac": "aa:bb:cc:dd:ee:02"},
                {"name": "eth0", "mac": "aa:bb:cc:dd:ee:03", "sandbox": "/run/netns/x"},
            ],
            "ips": [
                {"interface": 2, "address": "fd00::5/64", "gateway": "fd00::1"},
                {"interface": 2, "address": "10.9.0.5/24", "gateway": "10.9.0.1"},
                {"interface": 2, "address": "10.9.1.5/24"},
                {"interface": 0, "address": "10.9.0.1/24"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {},
        })
    }

    #[track_caller]
    fn refused(answer: &str, want: &str) {
        let error = CniResult::parse(answer.as_bytes(), SpecVersion::V1_0_0).unwrap_err();
        assert_eq!(error.to_string(), want, "{answer}");
    }

    #[track_caller]
    fn preferred(preference: IpPreference, want: &[&str]) {
        let result = CniResult::parse(bridge().to_string().as_bytes(), SpecVersion::V1_0_0);
        let ips = result.unwrap().pod_ips("eth0", preference);
        let ips: Vec<_> = ips.iter().map(IpAddr::to_string).collect();
        assert_eq!(ips, want, "{preference:?}");
    }

    #[test]
    fn the_preferred_family_comes_first_and_the_hosts_address_not_at_all() {
        preferred(IpPreference::V4, &["10.9.0.5", "fd00::5", "10.9.1.5"]);
        preferred(IpPreference::V6, &["fd00::5", "10.9.0.5", "10.9.1.5"]);
        preferred(IpPreference::AsAnswered, &["fd00::5", "10.9.0.5", "10.9.1.5"]);
    }

    #[test]
    fn an_address_without_interface_is_on_the_one_asked_for() {
        let answer = json!({"ips": [{"address": "10.9.0.5/24", "version": "4"}]}).to_string();
        let result = CniResult::parse(answer.as_bytes(), SpecVersion::V0_4_0).unwrap();
        assert_eq!(
            result.pod_ips("eth7", IpPreference::V4),
            ["10.9.0.5".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn null_is_empty() {
        let answer = br#"{"interfaces": null, "ips": null, "dns": null}"#;
        let result = CniResult::parse(answer, SpecVersion::V1_0_0).unwrap();
        assert!(result.interfaces.is_empty() && result.addresses.is_empty());
    }

    #[test]
    fn versions_are_translated() {
        let new = bridge().to_string();
        let old = CniResult::parse(new.as_bytes(), SpecVersion::V0_4_0).unwrap().raw;
        assert_eq!(old["cniVersion"], "0.4.0");
        assert_eq!(
            (&old["ips"][0]["version"], &old["ips"][1]["version"]),
            (&json!("6"), &json!("4"))
        );
        assert_eq!(old["routes"], bridge()["routes"]);
        let back = CniResult::from_raw(old, SpecVersion::V1_0_0).unwrap().raw;
        assert_eq!(Value::Object(back), bridge());
    }

    #[test]
    fn what_is_no_result_is_refused() {
        refused(" \n", "the answer is empty");
        refused(
            r#"{"cniVersion":"0.2.0"}"#,
            "CNI version \"0.2.0\" is not spoken here: 0.3.0 to 1.1.0 are",
        );
        refused(
            r#"{"ips":[{"address":"10.9.0.5"}]}"#,
            "\"10.9.0.5\" is no address with a prefix length, like 10.1.0.0/16 or fd00::/64",
        );
        refused(
            r#"{"ips":[{"address":"10.9.0.5/8","gateway":"x"}]}"#,
            "\"x\" is no address of a gateway",
        );
        for index in [-1, 1, i64::MAX] {
            refused(
                &json!({"interfaces": [{"name": "a"}], "ips": [{"address": "10.9.0.5/8", "interface": index}]}).to_string(),
                &format!("an address is on interface {index} and there are 1"),
            );
        }
        let whole = bridge().to_string();
        for end in 1..whole.len() {
            let half = CniResult::parse(&whole.as_bytes()[..end], SpecVersion::V1_0_0);
            assert!(matches!(half, Err(ResultError::Json(_))), "{}", &whole[..end]);
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes: Vec<u8>) {
            let _ = CniResult::parse(&bytes, SpecVersion::V1_0_0);
        }

        #[test]
        fn translation_there_and_back_changes_nothing(
            addresses: Vec<(IpAddr, u8)>,
            spoken in proptest::sample::select(SpecVersion::ALL.to_vec()),
        ) {
            let ips: Vec<_> = addresses.iter()
                .map(|(addr, prefix)| json!({"address": format!("{addr}/{}", prefix % 33)}))
                .collect();
            let answer = json!({"cniVersion": "1.1.0", "ips": ips}).to_string();
            let direct = CniResult::parse(answer.as_bytes(), SpecVersion::V1_1_0).unwrap();
            let there = CniResult::parse(answer.as_bytes(), spoken).unwrap();
            prop_assert_eq!(&there.addresses, &direct.addresses);
            let back = CniResult::from_raw(there.raw, SpecVersion::V1_1_0).unwrap();
            prop_assert_eq!(back, direct);
        }
    }
}
