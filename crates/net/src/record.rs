//! What is remembered of a pod's networks, so that DEL works without anything else: after the
//! configuration changed, after a restart, with the namespace gone.
//!
//! ```text
//!   Attaching ──ADD──> Attached ──> Leaving ──DEL──> no record
//!       └────────a failure, a restart─────^
//! ```
//! **Invariant:** the record is written before the first program runs and deleted after the
//! last DEL succeeded. Whatever a program may have made is behind a record.

use std::{path::PathBuf, sync::Arc};

use base::Id;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Record;

use crate::{
    conf::NetworkList,
    error::NetError,
    pod::PodNet,
    ports::PortMapping,
    result::{CniResult, IpPreference},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Programs may have run, and none of their results is known.
    Attaching,
    Attached,
    /// DEL is to be tried until it succeeds.
    Leaving,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodNetRecord {
    pub(crate) id: Id,
    pub(crate) phase: Phase,
    pub(crate) netns: PathBuf,
    /// A namespace that lies at the path later may be another one.
    pub(crate) netns_identity: (u64, u64),
    #[serde(default)]
    pub(crate) release: bool,
    /// `CNI_ARGS`
    pub(crate) args: String,
    /// All capability arguments, by name.
    pub(crate) told: Map<String, Value>,
    /// Those that a program publishes.
    pub(crate) ports: Vec<PortMapping>,
    pub(crate) attachments: Vec<Attachment>,
}

/// One network of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// As it was at ADD.
    pub(crate) network: Arc<NetworkList>,
    pub(crate) ifname: String,
    /// Of the last program that succeeded.
    pub(crate) result: Option<Map<String, Value>>,
}

impl Record for PodNetRecord {
    const TABLE: &'static str = "pod_networks";
    const VERSION: u32 = 1;
    type Key = Id;

    fn key(&self) -> Id {
        self.id
    }
}

/// A pod on its networks.
#[derive(Clone, Debug, PartialEq)]
pub struct NetResult {
    /// Of the first network; the first is *the* address of the pod.
    pub ips: Vec<std::net::IpAddr>,
    pub interfaces: Vec<PodInterface>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PodInterface {
    /// `eth0`, `eth1`…, as asked for.
    pub name: String,
    pub network: String,
    pub result: CniResult,
}

// === impl PodNetRecord ===

impl PodNetRecord {
    /// The intent: what is about to be done for `pod`.
    pub(crate) fn plan(
        pod: &PodNet,
        networks: &[Arc<NetworkList>],
        netns_identity: (u64, u64),
    ) -> Result<Self, NetError> {
        let publishes = networks.iter().any(|network| network.has_capability("portMappings"));
        let attachments = networks.iter().enumerate().map(|(index, network)| Attachment {
            network: Arc::clone(network),
            ifname: format!("eth{index}"),
            result: None,
        });
        Ok(Self {
            id: pod.id,
            phase: Phase::Attaching,
            netns: pod.netns.clone(),
            netns_identity,
            release: pod.release,
            args: pod.cni_args()?,
            told: pod.capability_args(),
            ports: if publishes { pod.ports.clone() } else { Vec::new() },
            attachments: attachments.collect(),
        })
    }

    /// `None` while a network has no result.
    pub(crate) fn result(&self, preference: IpPreference) -> Option<NetResult> {
        let interface = |attachment: &Attachment| {
            let raw = attachment.result.clone()?;
            Some(PodInterface {
                name: attachment.ifname.clone(),
                network: attachment.network.name.clone(),
                result: CniResult::from_raw(raw, attachment.network.version).ok()?,
            })
        };
        let interfaces = self.attachments.iter().map(interface).collect::<Option<Vec<_>>>()?;
        let first = interfaces.first()?;
        Some(NetResult { ips: first.result.pod_ips(&first.name, preference), interfaces })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{pod, ports::Protocol};

    fn network(name: &str, capabilities: &Value) -> Arc<NetworkList> {
        let conf =
            json!({"cniVersion": "1.0.0", "name": name, "type": "x", "capabilities": capabilities});
        Arc::new(NetworkList::parse(conf.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn each_network_has_its_interface() {
        let pod = pod::example(Id::random());
        let networks = [network("a", &json!({})), network("b", &json!({}))];
        let mut record = PodNetRecord::plan(&pod, &networks, (1, 2)).unwrap();
        let names: Vec<_> = record.attachments.iter().map(|a| a.ifname.as_str()).collect();
        assert_eq!(names, ["eth0", "eth1"]);
        let answer = |address: &str| json!({"ips": [{"address": address}]}).as_object().cloned();
        record.attachments[0].result = answer("10.0.0.2/8");
        assert_eq!(record.result(IpPreference::V4), None);
        record.attachments[1].result = answer("10.0.0.3/8");
        let result = record.result(IpPreference::V4).unwrap();
        assert_eq!(result.ips, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(
            (result.interfaces[1].name.as_str(), result.interfaces[1].network.as_str()),
            ("eth1", "b")
        );
    }

    #[test]
    fn ports_that_nobody_publishes_are_nobodys() {
        let mut pod = pod::example(Id::random());
        pod.ports = vec![PortMapping {
            host_port: 80,
            container_port: 80,
            protocol: Protocol::Tcp,
            host_ip: None,
        }];
        let claimed = |capabilities: Value| {
            PodNetRecord::plan(&pod, &[network("a", &capabilities)], (1, 2)).unwrap().ports.len()
        };
        assert_eq!(claimed(json!({"portMappings": true})), 1);
        assert_eq!(claimed(json!({"portMappings": false})), 0);
    }

    #[test]
    fn a_record_reads_back() {
        let mut record =
            PodNetRecord::plan(&pod::example(Id::random()), &[network("a", &json!({}))], (1, 2))
                .unwrap();
        record.attachments[0].result = json!({"ips": []}).as_object().cloned();
        let stored = serde_json::to_vec(&record).unwrap();
        assert_eq!(serde_json::from_slice::<PodNetRecord>(&stored).unwrap(), record);
    }
}
