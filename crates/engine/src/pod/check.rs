//! What is wrong with a pod that is asked for, said before anything is made.

use std::collections::BTreeMap;

use oci::{OciError, OwnNamespaces, UserNamespace};

use crate::{
    config::{EngineConfig, Handler},
    error::Result,
    network,
    pod::files,
    request::{PodNamespace, PodPid, PodRequest},
};

const USER: &str = "user namespace";

pub(crate) fn check(config: &EngineConfig, handler: &Handler, request: &PodRequest) -> Result<()> {
    user(handler, request)?;
    sysctls(config, request)?;
    network::check(request)?;
    hostname(request, &files::host_name()?)?;
    if let Some(selinux) = &request.selinux {
        oci::check_selinux(selinux, "selinux")?;
    }
    Ok(())
}

/// All that is to be set in the pod's namespaces.
pub(crate) fn sysctls(
    config: &EngineConfig,
    request: &PodRequest,
) -> Result<BTreeMap<String, String>> {
    let own_network = request.network == PodNamespace::Pod;
    let own = OwnNamespaces {
        network: own_network,
        ipc: request.ipc == PodNamespace::Pod,
        uts: own_network,
        user: matches!(request.user, Some(UserNamespace::Pod(_))),
    };
    Ok(oci::pod_sysctls(&request.sysctls, own, config.host.kernel, &config.policy)?)
}

/// Refuses a name that the pod could not have: with the host's network comes the host's name.
fn hostname(request: &PodRequest, host: &str) -> Result<()> {
    let asked = request.hostname.as_str();
    if request.network == PodNamespace::Pod || asked.is_empty() || asked == host {
        return Ok(());
    }
    let why = format!(
        "{asked:?} is not {host:?}, the name of the host, which a pod on the host's network has: \
         leave it empty"
    );
    Err(OciError::Invalid { field: "hostname".to_owned(), why }.into())
}

/// A pod whose first container would be refused is of no use to anybody.
fn user(handler: &Handler, request: &PodRequest) -> Result<()> {
    let Some(UserNamespace::Pod(mappings)) = &request.user else { return Ok(()) };
    oci::check_mappings(mappings, USER)?;
    let invalid = |why: &str| OciError::Invalid { field: USER.to_owned(), why: why.to_owned() };
    let unable =
        |field: &str| OciError::Unable { field: field.to_owned(), handler: handler.name.clone() };
    if request.pid == PodPid::Node || request.ipc == PodNamespace::Node {
        return Err(invalid("cannot be had with the host's PID or IPC namespace").into());
    }
    let abilities = &handler.facts.abilities;
    if !abilities.user_namespaces || !abilities.idmapped_mounts {
        return Err(unable(USER).into());
    }
    if request.network == PodNamespace::Node && !abilities.recursive_readonly {
        return Err(unable("user namespace on the host's network").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oci::{Abilities, HandlerFacts, IdMapping, IdMappings};

    use super::*;

    fn pod(change: impl FnOnce(&mut PodRequest)) -> PodRequest {
        let range = vec![IdMapping { container: 0, host: 100_000, len: 65_536 }];
        let maps = IdMappings { uids: range.clone(), gids: range };
        let mut request =
            PodRequest { user: Some(UserNamespace::Pod(maps)), ..PodRequest::default() };
        change(&mut request);
        request
    }

    #[track_caller]
    fn verdict(abilities: Abilities, request: &PodRequest, want: Result<(), &str>) {
        let handler = Handler {
            name: "old".into(),
            binary: "/x".into(),
            args: Vec::new(),
            shim: None,
            snapshotter: None,
            facts: HandlerFacts { abilities, ..HandlerFacts::default() },
        };
        let got = user(&handler, request).map_err(|e| base::Chain(&e).to_string());
        assert_eq!(got, want.map_err(str::to_owned));
    }

    #[test]
    fn a_name_of_its_own_needs_a_network_of_its_own() {
        let check = |network, name: &str| {
            let request =
                PodRequest { network, hostname: name.to_owned(), ..PodRequest::default() };
            hostname(&request, "node").map_err(|e| base::Chain(&e).to_string())
        };
        assert_eq!(check(PodNamespace::Pod, "web"), Ok(()));
        assert_eq!(check(PodNamespace::Pod, ""), Ok(()));
        assert_eq!(check(PodNamespace::Node, ""), Ok(()));
        assert_eq!(check(PodNamespace::Node, "node"), Ok(()));
        let why = check(PodNamespace::Node, "web").unwrap_err();
        assert!(why.starts_with("hostname: \"web\" is not \"node\""), "{why}");
    }

    #[test]
    fn a_user_namespace_needs_a_handler_that_can_and_namespaces_of_its_own() {
        let all = Abilities::default();
        verdict(all, &pod(|_| {}), Ok(()));
        verdict(all, &pod(|p| p.network = PodNamespace::Node), Ok(()));
        verdict(all, &PodRequest { pid: PodPid::Node, ..PodRequest::default() }, Ok(()));
        let hosts = "user namespace: cannot be had with the host's PID or IPC namespace";
        verdict(all, &pod(|p| p.pid = PodPid::Node), Err(hosts));
        verdict(all, &pod(|p| p.ipc = PodNamespace::Node), Err(hosts));
        let unable = "user namespace: handler \"old\" cannot do that";
        verdict(Abilities { user_namespaces: false, ..all }, &pod(|_| {}), Err(unable));
        verdict(Abilities { idmapped_mounts: false, ..all }, &pod(|_| {}), Err(unable));
        let no_rro = Abilities { recursive_readonly: false, ..all };
        verdict(no_rro, &pod(|_| {}), Ok(()));
        verdict(
            no_rro,
            &pod(|p| p.network = PodNamespace::Node),
            Err("user namespace on the host's network: handler \"old\" cannot do that"),
        );
    }
}
