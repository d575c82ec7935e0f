//! Pods, both ways.

use std::collections::BTreeMap;

use api_cri::v1;
use base::{Labels, time};
use engine::{
    record::PodRecord,
    request::{Dns, PodName, PodRequest, PortMapping, Protocol},
    view::PodView,
};

use crate::{
    container,
    field::{Invalid, Result, Under, known, not_windows, number, path, set},
    namespace::{self, PodNamespaces},
    resources,
    security::{self, PodSecurity},
};

const NO_METADATA: Invalid = Invalid::Request("sandbox config must include metadata");

pub(crate) fn request(wire: v1::RunPodSandboxRequest) -> Result<PodRequest> {
    let v1::RunPodSandboxRequest { config, runtime_handler } = wire;
    let v1::PodSandboxConfig {
        metadata,
        hostname,
        log_directory,
        dns_config,
        port_mappings,
        labels,
        annotations,
        linux,
        windows,
    } = config.ok_or(NO_METADATA)?;
    let name = pod_name(metadata)?;
    not_windows(windows)?;
    let v1::LinuxPodSandboxConfig { cgroup_parent, security_context, sysctls, overhead, resources } =
        linux.unwrap_or_default();
    let PodSecurity { namespaces, privileged, selinux, seccomp, apparmor } =
        security::of_pod(security_context).under("linux.security_context")?;
    let PodNamespaces { network, ipc, pid, user } = namespaces;
    Ok(PodRequest {
        name,
        handler: runtime_handler,
        hostname,
        log_directory: path(log_directory),
        dns: dns_config.map(dns),
        ports: ports(port_mappings)?,
        labels: Labels(labels),
        annotations: Labels(annotations),
        cgroup_parent: set(cgroup_parent),
        sysctls,
        overhead: resources::of_pod(overhead).under("linux.overhead")?,
        resources: resources::of_pod(resources).under("linux.resources")?,
        network,
        ipc,
        pid,
        user,
        privileged,
        selinux,
        seccomp,
        apparmor,
    })
}

/// A container's request repeats its pod's configuration; we kept the first.
pub(crate) fn check_repeated(config: Option<v1::PodSandboxConfig>) -> Result<()> {
    config.and_then(|config| config.metadata).map(drop).ok_or(NO_METADATA)
}

pub(crate) fn item(pod: &PodRecord) -> v1::PodSandbox {
    v1::PodSandbox {
        id: pod.id.to_string(),
        metadata: Some(metadata(&pod.request.name)),
        state: state(pod).into(),
        created_at: time::to_unix_nanos(pod.created_at),
        labels: pod.request.labels.0.clone(),
        annotations: pod.request.annotations.0.clone(),
        runtime_handler: pod.request.handler.clone(),
    }
}

pub(crate) fn status(pod: &PodRecord) -> v1::PodSandboxStatus {
    let options = Some(namespace::wire(&pod.request));
    v1::PodSandboxStatus {
        id: pod.id.to_string(),
        metadata: Some(metadata(&pod.request.name)),
        state: state(pod).into(),
        created_at: time::to_unix_nanos(pod.created_at),
        network: Some(network(pod)),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
        labels: pod.request.labels.0.clone(),
        annotations: pod.request.annotations.0.clone(),
        runtime_handler: pod.request.handler.clone(),
    }
}

pub(crate) fn attributes(pod: &PodRecord) -> v1::PodSandboxAttributes {
    v1::PodSandboxAttributes {
        id: pod.id.to_string(),
        metadata: Some(metadata(&pod.request.name)),
        labels: pod.request.labels.0.clone(),
        annotations: pod.request.annotations.0.clone(),
    }
}

pub(crate) fn response(
    view: &PodView,
    info: BTreeMap<String, String>,
) -> v1::PodSandboxStatusResponse {
    v1::PodSandboxStatusResponse {
        status: Some(status(&view.pod)),
        info,
        containers_statuses: view.containers.iter().map(|c| container::status(c)).collect(),
        timestamp: time::to_unix_nanos(view.at),
    }
}

/// All empty on the host's network, and of a pod that was stopped.
fn network(pod: &PodRecord) -> v1::PodSandboxNetworkStatus {
    let mut ips = pod.ips.iter().map(ToString::to_string);
    let ip = ips.next().unwrap_or_default();
    let additional_ips = ips.map(|ip| v1::PodIp { ip }).collect();
    v1::PodSandboxNetworkStatus { ip, additional_ips }
}

fn pod_name(metadata: Option<v1::PodSandboxMetadata>) -> Result<PodName> {
    let v1::PodSandboxMetadata { name, uid, namespace, attempt } = metadata.ok_or(NO_METADATA)?;
    Ok(PodName { name, namespace, uid, attempt })
}

fn metadata(name: &PodName) -> v1::PodSandboxMetadata {
    let PodName { name, namespace, uid, attempt } = name.clone();
    v1::PodSandboxMetadata { name, uid, namespace, attempt }
}

fn state(pod: &PodRecord) -> v1::PodSandboxState {
    if pod.phase.is_ready() {
        v1::PodSandboxState::SandboxReady
    } else {
        v1::PodSandboxState::SandboxNotready
    }
}

fn dns(config: v1::DnsConfig) -> Dns {
    let v1::DnsConfig { servers, searches, options } = config;
    Dns { servers, searches, options }
}

fn ports(mappings: Vec<v1::PortMapping>) -> Result<Vec<PortMapping>> {
    let one = |(i, mapping)| port(mapping).under(format_args!("port_mappings[{i}]"));
    mappings.into_iter().enumerate().map(one).collect()
}

/// A host port of 0 or less asks for none.
fn port(mapping: v1::PortMapping) -> Result<PortMapping> {
    let v1::PortMapping { protocol, container_port, host_port, host_ip } = mapping;
    Ok(PortMapping {
        protocol: match known("protocol", protocol)? {
            v1::Protocol::Tcp => Protocol::Tcp,
            v1::Protocol::Udp => Protocol::Udp,
            v1::Protocol::Sctp => Protocol::Sctp,
        },
        container_port: number("container_port", container_port)?,
        host_port: number("host_port", host_port.max(0))?,
        host_ip,
    })
}

#[cfg(test)]
mod tests {
    use engine::phase::PodPhase;

    use super::*;
    use crate::sample;

    #[test]
    fn every_field_reaches_the_engine() {
        insta::assert_json_snapshot!(request(sample::run_pod()).unwrap());
    }

    #[test]
    fn the_least_a_pod_needs() {
        let config = Some(v1::PodSandboxConfig {
            metadata: sample::run_pod().config.unwrap().metadata,
            ..Default::default()
        });
        let got = request(v1::RunPodSandboxRequest { config, ..Default::default() }).unwrap();
        let want = PodRequest {
            name: got.name.clone(),
            pid: engine::request::PodPid::Pod,
            ..Default::default()
        };
        assert_eq!(got, want);
    }

    #[test]
    fn status_echoes_what_was_asked() {
        let asked = sample::run_pod();
        let record = sample::pod_record(request(asked.clone()).unwrap());
        let config = asked.config.unwrap();
        let got = status(&record);
        assert_eq!(got.id, record.id.to_string());
        assert_eq!(got.metadata, config.metadata);
        assert_eq!(got.labels, config.labels);
        assert_eq!(got.annotations, config.annotations);
        assert_eq!(got.runtime_handler, asked.runtime_handler);
        assert_eq!(got.created_at, sample::CREATED_AT);
        assert_eq!(got.network, Some(v1::PodSandboxNetworkStatus::default()));
        let namespaces = got.linux.unwrap().namespaces.unwrap().options;
        let asked = config.linux.unwrap().security_context.unwrap().namespace_options;
        assert_eq!(namespaces, asked);

        let got = item(&record);
        assert_eq!(got.id, record.id.to_string());
        assert_eq!((got.metadata, got.labels), (config.metadata, config.labels));
        assert_eq!((got.annotations, got.created_at), (config.annotations, sample::CREATED_AT));
        assert_eq!(got.runtime_handler, "kata");
    }

    #[test]
    fn the_first_address_is_the_pods() {
        let mut record = sample::pod_record(PodRequest::default());
        record.ips = vec!["10.1.2.3".parse().unwrap(), "fd00::3".parse().unwrap()];
        let network = status(&record).network.unwrap();
        assert_eq!(network.ip, "10.1.2.3");
        assert_eq!(network.additional_ips, [v1::PodIp { ip: "fd00::3".into() }]);
    }

    #[track_caller]
    fn state_is(phase: PodPhase, want: v1::PodSandboxState) {
        let mut record = sample::pod_record(PodRequest::default());
        record.phase = phase;
        assert_eq!(status(&record).state(), want);
        assert_eq!(item(&record).state(), want);
    }

    #[test]
    fn only_ready_is_ready() {
        let at = time::from_unix_nanos(1);
        state_is(PodPhase::Ready, v1::PodSandboxState::SandboxReady);
        state_is(PodPhase::Lost { at }, v1::PodSandboxState::SandboxNotready);
        state_is(PodPhase::Stopped { at }, v1::PodSandboxState::SandboxNotready);
        state_is(PodPhase::Removing, v1::PodSandboxState::SandboxNotready);
    }

    #[test]
    fn a_response_holds_its_containers_and_its_moment() {
        let view = PodView {
            pod: sample::pod_record(PodRequest::default()).into(),
            containers: vec![sample::container_record(Default::default()).into()],
            at: time::from_unix_nanos(42),
        };
        let got = response(&view, BTreeMap::new());
        assert_eq!(got.timestamp, 42);
        assert_eq!(got.containers_statuses, [container::status(&view.containers[0])]);
        assert_eq!(got.status, Some(status(&view.pod)));
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut v1::PodSandboxConfig), want: &str) {
        let mut asked = sample::run_pod();
        change(asked.config.as_mut().unwrap());
        assert_eq!(request(asked).unwrap_err().to_string(), want);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let none = request(v1::RunPodSandboxRequest::default()).unwrap_err();
        assert_eq!(none.to_string(), "sandbox config must include metadata");
        refused(|c| c.metadata = None, "sandbox config must include metadata");
        refused(
            |c| c.port_mappings[1].container_port = 65_536,
            "port_mappings[1].container_port: 65536 is out of range",
        );
        refused(
            |c| c.port_mappings[0].container_port = -1,
            "port_mappings[0].container_port: -1 is out of range",
        );
        refused(
            |c| c.port_mappings[0].host_port = 70_000,
            "port_mappings[0].host_port: 70000 is out of range",
        );
        refused(|c| c.port_mappings[0].protocol = 9, "port_mappings[0].protocol: unknown value 9");
        refused(
            |c| c.linux.as_mut().unwrap().overhead.as_mut().unwrap().cpu_shares = -3,
            "linux.overhead.cpu_shares: -3 is out of range",
        );
        refused(
            |c| c.linux.as_mut().unwrap().resources.as_mut().unwrap().cpu_period = -3,
            "linux.resources.cpu_period: -3 is out of range",
        );
        refused(
            |c| {
                let context = c.linux.as_mut().unwrap().security_context.as_mut().unwrap();
                context.run_as_user = None;
            },
            "linux.security_context.run_as_group: needs run_as_user",
        );
        refused(
            |c| {
                let context =
                    v1::WindowsSandboxSecurityContext { host_process: true, ..Default::default() };
                c.windows = Some(v1::WindowsPodSandboxConfig { security_context: Some(context) });
            },
            "windows: this is a Linux node",
        );
    }

    #[test]
    fn a_repeated_configuration_must_name_its_pod() {
        assert_eq!(check_repeated(None), Err(NO_METADATA));
        assert_eq!(check_repeated(Some(v1::PodSandboxConfig::default())), Err(NO_METADATA));
        assert_eq!(check_repeated(sample::run_pod().config), Ok(()));
    }
}
