//! A shim that makes the pod itself: it is told of the pod by its Sandbox service, when the pod is
//! on its networks. Containers are tasks of the same shim.

use std::{collections::BTreeMap, sync::Arc};

use base::Labels;
use oci::Resources;
use shim_client::{
    PodConfig, PodDns, PodPids, PodPort, PodProtocol, PodResources, Sandboxer, Shim,
};

use super::{Controller, foreign};
use crate::{
    container::pod_facts,
    error::Result,
    files::{blocking, make_dir},
    pod::{check, files::hostname},
    record::PodRecord,
    request::{Dns, PodNamespace, PodPid, PortMapping, Protocol},
    shared::Shared,
};

#[derive(Debug)]
pub(crate) struct Service<'a>(pub(super) &'a Shared);

impl Controller for Service<'_> {
    /// Only the namespaces, as for other shims that are not ours.
    async fn create(&self, pod: &PodRecord) -> Result<Option<Arc<Shim>>> {
        let config = Box::new(self.describe(pod)?);
        foreign::prepare(self.0, pod, Sandboxer::Service(config)).await?;
        Ok(None)
    }

    async fn start(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        let bundle = self.0.layout.sandbox(&pod.id);
        blocking(move || make_dir(&bundle, 0o711)).await?;
        foreign::launch(self.0, pod).await
    }

    async fn connect(&self, pod: &PodRecord) -> Result<Arc<Shim>> {
        foreign::connect(self.0, pod).await
    }
}

impl Service<'_> {
    fn describe(&self, pod: &PodRecord) -> Result<PodConfig> {
        let (config, request) = (&self.0.config, &pod.request);
        let handler = &self.0.handler(&pod.handler)?.facts;
        let facts = pod_facts(&self.0.layout, pod);
        let cgroup_parent = match &request.cgroup_parent {
            Some(parent) => parent.clone(),
            None => {
                let path = oci::pod_cgroup_path(config.cgroup_driver, None, &pod.id)?;
                path.to_string_lossy().into_owned()
            }
        };
        // With the host's network comes the host's name.
        let hostname = pod.own_network().then(|| hostname(request)).transpose()?;
        Ok(PodConfig {
            name: request.name.name.clone(),
            namespace: request.name.namespace.clone(),
            uid: request.name.uid.clone(),
            attempt: request.name.attempt,
            hostname: hostname.unwrap_or_default(),
            log_directory: request.log_directory.clone(),
            dns: request.dns.as_ref().map(dns),
            ports: request.ports.iter().map(port).collect(),
            labels: map(&request.labels),
            annotations: map(&request.annotations),
            passed_annotations: BTreeMap::from_iter(oci::sandbox_annotations(&facts, handler)),
            cgroup_parent,
            sysctls: check::sysctls(config, request)?,
            overhead: resources(&pod.overhead),
            resources: resources(&pod.resources),
            host_network: !pod.own_network(),
            host_ipc: request.ipc == PodNamespace::Node,
            pids: match request.pid {
                PodPid::Pod => PodPids::Pod,
                PodPid::Container => PodPids::Container,
                PodPid::Node => PodPids::Node,
            },
            privileged: request.privileged,
        })
    }
}

fn map(labels: &Labels) -> BTreeMap<String, String> {
    labels.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn dns(dns: &Dns) -> PodDns {
    let Dns { servers, searches, options } = dns.clone();
    PodDns { servers, searches, options }
}

fn port(port: &PortMapping) -> PodPort {
    PodPort {
        protocol: match port.protocol {
            Protocol::Tcp => PodProtocol::Tcp,
            Protocol::Udp => PodProtocol::Udp,
            Protocol::Sctp => PodProtocol::Sctp,
        },
        container: port.container_port,
        host: port.host_port,
        host_ip: port.host_ip.clone(),
    }
}

fn resources(given: &Resources) -> PodResources {
    let signed = |value: Option<u64>| i64::try_from(value.unwrap_or_default()).unwrap_or(i64::MAX);
    PodResources {
        cpu_period: signed(given.cpu_period),
        cpu_quota: given.cpu_quota.unwrap_or_default(),
        cpu_shares: signed(given.cpu_shares),
        memory: given.memory_limit.unwrap_or_default(),
    }
}
