//! Pods on and off their networks.
//!
//! ```text
//!   shim pins the namespace ──> attach: ADD ──> … ──> detach: DEL ──> release
//!                                                └── not in time: goes on in the background,
//!                                                    and the namespace stays until it is done
//! ```
//!
//! **Invariant:** nobody waits for a CNI program for ever, and no address is forgotten: the
//! `net` crate has a record of whatever a program may have given. A pod on the host's network
//! comes to none of this.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use base::{Chain, Id};
use net::{Bandwidth, PodNet, Readiness};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::{
    config::Handler,
    error::{EngineError, Result},
    files::blocking,
    health::Health,
    phase::PodPhase,
    record::PodRecord,
    request::{PodNamespace, PodRequest, PortMapping, Protocol},
    shared::Shared,
};

/// How Kubernetes asks for limits.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// Refuses what no network could be told, before anything is made.
pub(crate) fn check(request: &PodRequest) -> Result<()> {
    if request.network == PodNamespace::Pod {
        ports(&request.ports)?;
        bandwidth(request)?;
    }
    Ok(())
}

/// Its addresses; none on the host's network. Cancel safe: [`detach`] is right whether it
/// is attached by then or not.
pub(crate) async fn attach(shared: &Shared, pod: &PodRecord) -> Result<Vec<IpAddr>> {
    if !pod.own_network() {
        return Ok(Vec::new());
    }
    let pod = describe(pod, shared.layout.netns(&pod.id))?;
    Ok(shared.networks.add(pod).await?.ips)
}

/// Takes it off its networks. What cannot be done, or not within `patience`, is tried again
/// in the background.
pub(crate) async fn detach(shared: &Shared, pod: &PodRecord, patience: Duration) {
    // What has just failed is not waited for a second time.
    let failed = |left: &net::Leftover| left.id == pod.id && left.failures > 0;
    if !pod.own_network() || shared.networks.leftovers().iter().any(failed) {
        return;
    }
    let why = match tokio::time::timeout(patience, shared.networks.del(&pod.id)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => format!("it took longer than {patience:?}"),
    };
    tracing::warn!(pod = %pod.id, why, "the pod stays on its networks for now: tried again");
}

/// Lets its namespace go, unless a DEL that is still to come wants to find it: then it goes
/// with that one. Idempotent.
pub(crate) async fn release(shared: &Shared, pod: &PodRecord) -> Result<()> {
    if !pod.own_network() || shared.networks.holds(&pod.id) {
        return Ok(());
    }
    let path = shared.layout.netns(&pod.id);
    blocking(move || Ok(sys::namespace::unpin(&path)?)).await
}

/// What pods that are gone without a trace left on their networks.
pub(crate) async fn collect_garbage(shared: Arc<Shared>) {
    let ended = |phase: &PodPhase| matches!(phase, PodPhase::Stopped { .. } | PodPhase::Removing);
    let lives = |id: &base::Id| shared.pods.get(id).is_some_and(|pod| !ended(&pod.phase));
    let collected = shared.stop.run_until_cancelled(shared.networks.gc(lives)).await;
    if let Some(Err(error)) = collected {
        tracing::warn!(error = %Chain(&error), "collect what pods left on their networks");
    }
}

/// Keeps the condition that clients see in step with the configuration.
pub(crate) async fn tell(health: Arc<Health>, mut readiness: watch::Receiver<Readiness>) {
    loop {
        show(&health, &readiness.borrow_and_update());
        if readiness.changed().await.is_err() {
            return;
        }
    }
}

pub(crate) fn show(health: &Health, readiness: &Readiness) {
    match (readiness.fault(), &readiness.load_fault) {
        (Some(fault), _) => health.network.fail("NetworkPluginNotReady", fault),
        (None, Some(fault)) => {
            let message = format!("the last good configuration is used: {fault}");
            health.network.warn("NetworkConfigBroken", message);
        }
        (None, None) => health.network.recover(),
    }
}

pub(crate) fn details(shared: &Shared) -> Value {
    let of_handler = |handler: &Handler| {
        let Readiness { networks, load_fault, status_fault } =
            shared.networks.readiness(&handler.name).borrow().clone();
        let networks: Vec<_> = networks.iter().map(|network| network.name.clone()).collect();
        let told = json!({
            "networks": networks, "loadFault": load_fault, "statusFault": status_fault,
        });
        (handler.name.clone(), told)
    };
    let left = |left: net::Leftover| json!({"pod": left.id, "failures": left.failures, "error": left.error});
    json!({
        "handlers": shared.config.handlers.iter().map(of_handler).collect::<Map<_, _>>(),
        "leftovers": shared.networks.leftovers().into_iter().map(left).collect::<Vec<_>>(),
    })
}

/// What its networks answered, by interface; `null` for a pod that is on none.
pub(crate) fn results(shared: &Shared, pod: &Id) -> Option<Map<String, Value>> {
    let interfaces = shared.networks.result(pod)?.interfaces;
    Some(interfaces.into_iter().map(|it| (it.name, Value::Object(it.result.raw))).collect())
}

fn describe(pod: &PodRecord, netns: PathBuf) -> Result<PodNet> {
    let request = &pod.request;
    let dns = |dns: &crate::request::Dns| net::Dns {
        servers: dns.servers.clone(),
        searches: dns.searches.clone(),
        options: dns.options.clone(),
    };
    Ok(PodNet {
        id: pod.id,
        name: request.name.name.clone(),
        namespace: request.name.namespace.clone(),
        uid: request.name.uid.clone(),
        handler: pod.handler.clone(),
        netns,
        release: true,
        ports: ports(&request.ports)?,
        bandwidth: bandwidth(request)?,
        dns: request.dns.as_ref().map(dns),
        cgroup_path: request.cgroup_parent.clone().unwrap_or_default(),
        annotations: request.annotations.0.clone(),
    })
}

/// Those that are to be published.
fn ports(asked: &[PortMapping]) -> Result<Vec<net::PortMapping>> {
    let published = asked.iter().enumerate().filter(|(_, port)| port.host_port > 0);
    published.map(|(at, port)| publish(at, port)).collect()
}

fn publish(at: usize, port: &PortMapping) -> Result<net::PortMapping> {
    let wrong = |field: &str, why: String| {
        Err(EngineError::invalid(format!("port_mappings[{at}].{field}"), why))
    };
    let host_ip = match port.host_ip.as_str() {
        "" => None,
        text => match text.parse() {
            Ok(ip) => Some(ip),
            Err(_) => return wrong("host_ip", format!("{text:?} is no address")),
        },
    };
    if port.container_port == 0 {
        return wrong("container_port", "0 cannot be published".to_owned());
    }
    let protocol = match port.protocol {
        Protocol::Tcp => net::Protocol::Tcp,
        Protocol::Udp => net::Protocol::Udp,
        Protocol::Sctp => net::Protocol::Sctp,
    };
    let (host_port, container_port) = (port.host_port, port.container_port);
    Ok(net::PortMapping { host_port, container_port, protocol, host_ip })
}

fn bandwidth(request: &PodRequest) -> Result<Bandwidth> {
    let rate = |name: &str| match request.annotations.0.get(name) {
        Some(text) => Bandwidth::parse_rate(text)
            .map(Some)
            .map_err(|error| EngineError::invalid(format!("annotations[{name:?}]"), Chain(&error))),
        None => Ok(None),
    };
    Ok(Bandwidth { ingress: rate(INGRESS)?, egress: rate(EGRESS)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host_port: u16, container_port: u16, host_ip: &str) -> PortMapping {
        let (protocol, host_ip) = (Protocol::Udp, host_ip.to_owned());
        PortMapping { protocol, container_port, host_port, host_ip }
    }

    fn asking(ports: Vec<PortMapping>, annotations: &[(&str, &str)]) -> PodRequest {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        PodRequest { ports, annotations: annotations.collect(), ..PodRequest::default() }
    }

    #[test]
    fn only_published_ports_are_told() {
        let told = ports(&[mapping(0, 80, "nonsense"), mapping(8080, 80, "::1")]).unwrap();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].to_string(), "[::1]:8080/udp");
    }

    #[track_caller]
    fn refused(request: &PodRequest, want: &str) {
        assert_eq!(check(request).unwrap_err().to_string(), want);
        let on_host = PodRequest { network: PodNamespace::Node, ..request.clone() };
        check(&on_host).unwrap();
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        refused(
            &asking(vec![mapping(0, 0, ""), mapping(80, 80, "localhost")], &[]),
            "port_mappings[1].host_ip: \"localhost\" is no address",
        );
        refused(
            &asking(vec![mapping(80, 0, "")], &[]),
            "port_mappings[0].container_port: 0 cannot be published",
        );
        refused(
            &asking(vec![], &[(INGRESS, "fast")]),
            "annotations[\"kubernetes.io/ingress-bandwidth\"]: bandwidth: \"fast\" is no rate: \
             write a number, or one with k, M, G, Ki, Mi, Gi",
        );
    }

    #[test]
    fn limits_come_from_annotations() {
        let both = asking(vec![], &[(INGRESS, "10M"), (EGRESS, "1G")]);
        let want = Bandwidth { ingress: Some(10_000_000), egress: Some(1_000_000_000) };
        assert_eq!(bandwidth(&both).unwrap(), want);
    }

    #[test]
    fn a_broken_file_beside_a_good_configuration_is_a_warning() {
        let health = Health::default();
        let conf = br#"{"cniVersion":"1.0.0","name":"a","type":"x"}"#;
        let good = Arc::new(net::conf::NetworkList::parse(conf).unwrap());
        let broken = Some("10.conflist: what is this".to_owned());
        let state = Readiness { networks: vec![good], load_fault: broken, status_fault: None };
        show(&health, &state);
        let told = health.network.told();
        assert!(told.holds);
        assert_eq!(told.reason, "NetworkConfigBroken");
        show(&health, &Readiness { networks: Vec::new(), ..state.clone() });
        assert!(!health.network.told().holds);
        show(&health, &Readiness { load_fault: None, ..state });
        assert_eq!(health.network.told().message, "");
    }
}
