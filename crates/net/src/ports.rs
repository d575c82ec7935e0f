//! Ports of the host that pods publish, and who holds which.
//!
//! No CNI program minds when two pods publish the same port: the second one's rule is simply
//! never reached. So we keep the books, and refuse.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use base::Id;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// As CNI's `portMappings` capability has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: Protocol,
    /// Unset or unspecified: every address of the host.
    #[serde(rename = "hostIP", default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// Who holds what. Small: a node publishes tens of ports.
#[derive(Debug, Default)]
pub(crate) struct PortBook {
    held: BTreeMap<Id, Vec<PortMapping>>,
}

/// A mapping somebody else has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clash {
    pub(crate) wanted: PortMapping,
    pub(crate) holder: Id,
}

// === impl PortMapping ===

impl PortMapping {
    /// Whether a packet could be meant for both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let same = (self.host_port, self.protocol) == (other.host_port, other.protocol);
        same && meet(self.host_ip, other.host_ip)
    }
}

fn meet(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    let wide = one.is_unspecified() || other.is_unspecified();
    one == other || wide && one.is_ipv4() == other.is_ipv4()
}

/// `10.0.0.1:80/tcp`
impl fmt::Display for PortMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            None => {}
        }
        write!(f, "{}/{}", self.host_port, self.protocol)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

// === impl PortBook ===

impl PortBook {
    /// All of `wanted`, or none.
    pub(crate) fn claim(&mut self, id: Id, wanted: &[PortMapping]) -> Result<(), Clash> {
        for (index, one) in wanted.iter().enumerate() {
            let own = wanted[..index].iter().map(|other| (&id, other));
            let others = self.held.iter().filter(|(holder, _)| **holder != id);
            let others = others.flat_map(|(holder, all)| all.iter().map(move |one| (holder, one)));
            if let Some((holder, _)) = own.chain(others).find(|(_, other)| one.overlaps(other)) {
                return Err(Clash { wanted: one.clone(), holder: *holder });
            }
        }
        if !wanted.is_empty() {
            self.held.insert(id, wanted.to_vec());
        }
        Ok(())
    }

    pub(crate) fn release(&mut self, id: &Id) {
        self.held.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> PortMapping {
        let (address, protocol) = text.split_once('/').unwrap();
        let (host_ip, host_port) = match address.rsplit_once(':') {
            Some((ip, port)) => (Some(ip.trim_matches(['[', ']']).parse().unwrap()), port),
            None => (None, address),
        };
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => Protocol::Sctp,
        };
        PortMapping { host_port: host_port.parse().unwrap(), container_port: 1, protocol, host_ip }
    }

    #[track_caller]
    fn check(one: &str, other: &str, want: bool) {
        let (one, other) = (port(one), port(other));
        assert_eq!((one.overlaps(&other), other.overlaps(&one)), (want, want), "{one} {other}");
    }

    #[test]
    fn overlaps() {
        check("80/tcp", "80/tcp", true);
        check("80/tcp", "80/udp", false);
        check("80/tcp", "81/tcp", false);
        check("10.0.0.1:80/tcp", "80/tcp", true);
        check("10.0.0.1:80/tcp", "10.0.0.2:80/tcp", false);
        check("0.0.0.0:80/tcp", "10.0.0.2:80/tcp", true);
        check("0.0.0.0:80/tcp", "[::]:80/tcp", false);
        check("[::]:80/tcp", "[fd00::1]:80/tcp", true);
    }

    #[test]
    fn a_port_has_one_holder() {
        let mut book = PortBook::default();
        let (one, two) = (Id::random(), Id::random());
        book.claim(one, &[port("80/tcp"), port("81/tcp")]).unwrap();
        let clash = book.claim(two, &[port("90/tcp"), port("10.0.0.1:81/tcp")]).unwrap_err();
        assert_eq!(clash, Clash { wanted: port("10.0.0.1:81/tcp"), holder: one });
        // The refused claim holds nothing.
        book.claim(Id::random(), &[port("90/tcp")]).unwrap();
        book.claim(one, &[port("80/tcp")]).unwrap();
        book.release(&one);
        book.claim(two, &[port("80/tcp")]).unwrap();
    }

    #[test]
    fn a_pod_may_clash_with_itself() {
        let id = Id::random();
        let clash = PortBook::default().claim(id, &[port("80/tcp"), port("80/tcp")]).unwrap_err();
        assert_eq!(clash.holder, id);
    }
}
