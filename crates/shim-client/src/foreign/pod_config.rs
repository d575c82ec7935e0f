//! What a Sandbox service is told of its pod, in plain types, and in CRI's words on the wire.

use std::{collections::BTreeMap, path::PathBuf};

use api_shim::{name, pod_config as wire};
use prost::Message;
use prost_types::Any;
use serde::{Deserialize, Serialize};

use crate::shim::any;

/// A pod, as far as it concerns whoever makes its sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodConfig {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
    /// Empty: the host's.
    pub hostname: String,
    pub log_directory: Option<PathBuf>,
    pub dns: Option<PodDns>,
    pub ports: Vec<PodPort>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// What the shim is told beside, as OCI runtimes are.
    pub passed_annotations: BTreeMap<String, String>,
    pub cgroup_parent: String,
    pub sysctls: BTreeMap<String, String>,
    pub overhead: PodResources,
    pub resources: PodResources,
    pub host_network: bool,
    pub host_ipc: bool,
    pub pids: PodPids,
    pub privileged: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodDns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPort {
    pub protocol: PodProtocol,
    pub container: u16,
    /// 0: not published.
    pub host: u16,
    pub host_ip: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodProtocol {
    Tcp,
    Udp,
    Sctp,
}

/// 0 stands for what is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodResources {
    pub cpu_period: i64,
    pub cpu_quota: i64,
    pub cpu_shares: i64,
    pub memory: i64,
}

/// Whose processes its containers see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPids {
    Pod,
    #[default]
    Container,
    Node,
}

impl PodConfig {
    pub(crate) fn to_any(&self) -> Any {
        any(name::POD_CONFIG, self.to_wire().encode_to_vec())
    }

    fn to_wire(&self) -> wire::PodSandboxConfig {
        let metadata = wire::PodSandboxMetadata {
            name: self.name.clone(),
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            attempt: self.attempt,
        };
        let directory = self.log_directory.as_ref().map(|path| path.to_string_lossy().into_owned());
        wire::PodSandboxConfig {
            metadata: Some(metadata),
            hostname: self.hostname.clone(),
            log_directory: directory.unwrap_or_default(),
            dns_config: self.dns.clone().map(|PodDns { servers, searches, options }| {
                wire::DnsConfig { servers, searches, options }
            }),
            port_mappings: self.ports.iter().map(port).collect(),
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            linux: Some(self.linux()),
        }
    }

    fn linux(&self) -> wire::LinuxPodSandboxConfig {
        use wire::NamespaceMode::{Container, Node, Pod};
        let of_pod = |host: bool| if host { Node } else { Pod };
        let pid = match self.pids {
            PodPids::Pod => Pod,
            PodPids::Container => Container,
            PodPids::Node => Node,
        };
        let namespaces = wire::NamespaceOption {
            network: of_pod(self.host_network).into(),
            pid: pid.into(),
            ipc: of_pod(self.host_ipc).into(),
        };
        wire::LinuxPodSandboxConfig {
            cgroup_parent: self.cgroup_parent.clone(),
            security_context: Some(wire::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces),
                privileged: self.privileged,
            }),
            sysctls: self.sysctls.clone(),
            overhead: resources(self.overhead),
            resources: resources(self.resources),
        }
    }
}

fn port(port: &PodPort) -> wire::PortMapping {
    let protocol = match port.protocol {
        PodProtocol::Tcp => wire::Protocol::Tcp,
        PodProtocol::Udp => wire::Protocol::Udp,
        PodProtocol::Sctp => wire::Protocol::Sctp,
    };
    wire::PortMapping {
        protocol: protocol.into(),
        container_port: port.container.into(),
        host_port: port.host.into(),
        host_ip: port.host_ip.clone(),
    }
}

fn resources(given: PodResources) -> Option<wire::LinuxContainerResources> {
    let PodResources { cpu_period, cpu_quota, cpu_shares, memory } = given;
    (given != PodResources::default()).then_some(wire::LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares,
        memory_limit_in_bytes: memory,
    })
}

#[cfg(test)]
mod tests {
    use api_cri::v1 as cri;

    use super::*;

    fn map(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    /// Our description of the message is a part of CRI's: CRI reads what we write.
    #[test]
    fn it_is_read_as_cri_reads_it() {
        let config = PodConfig {
            name: "n".into(),
            namespace: "s".into(),
            uid: "u".into(),
            attempt: 3,
            hostname: "h".into(),
            log_directory: Some("/logs".into()),
            dns: Some(PodDns { servers: vec!["1.1.1.1".into()], ..PodDns::default() }),
            ports: vec![PodPort {
                protocol: PodProtocol::Udp,
                container: 53,
                host: 5353,
                host_ip: "::".into(),
            }],
            labels: map("a", "1"),
            annotations: map("b", "2"),
            passed_annotations: map("c", "3"),
            cgroup_parent: "/kube".into(),
            sysctls: map("net.core.somaxconn", "9"),
            overhead: PodResources { memory: 7, ..PodResources::default() },
            resources: PodResources { cpu_period: 1, cpu_quota: 2, cpu_shares: 3, memory: 4 },
            host_network: false,
            host_ipc: true,
            pids: PodPids::Container,
            privileged: true,
        };
        let any = config.to_any();
        assert_eq!(any.type_url, "runtime.v1.PodSandboxConfig");
        let read = cri::PodSandboxConfig::decode(&*any.value).unwrap();
        let metadata = read.metadata.unwrap();
        assert_eq!((&*metadata.name, &*metadata.namespace, metadata.attempt), ("n", "s", 3));
        assert_eq!((&*metadata.uid, &*read.hostname, &*read.log_directory), ("u", "h", "/logs"));
        assert_eq!(read.dns_config.unwrap().servers, ["1.1.1.1"]);
        let port = &read.port_mappings[0];
        assert_eq!((port.protocol(), port.container_port), (cri::Protocol::Udp, 53));
        assert_eq!((port.host_port, &*port.host_ip), (5353, "::"));
        assert_eq!((&read.labels["a"], &read.annotations["b"]), (&"1".into(), &"2".into()));
        let linux = read.linux.unwrap();
        assert_eq!((&*linux.cgroup_parent, linux.sysctls.len()), ("/kube", 1));
        assert_eq!(linux.overhead.unwrap().memory_limit_in_bytes, 7);
        let given = linux.resources.unwrap();
        assert_eq!((given.cpu_period, given.cpu_quota, given.cpu_shares), (1, 2, 3));
        let security = linux.security_context.unwrap();
        let spaces = security.namespace_options.unwrap();
        assert!(security.privileged);
        assert_eq!(
            (spaces.network(), spaces.ipc()),
            (cri::NamespaceMode::Pod, cri::NamespaceMode::Node)
        );
        assert_eq!(spaces.pid(), cri::NamespaceMode::Container);
    }

    #[test]
    fn what_is_not_set_is_not_said() {
        let linux = PodConfig::default().linux();
        assert_eq!((linux.overhead, linux.resources), (None, None));
    }
}
