//! What people call pods and containers, found. Pure.
//!
//! A container goes by `pod/container`, its id or the beginning of it, or the name or id of a
//! pod that has no other; a pod by its name, its id or the beginning of it.

use std::fmt;

use api_cri::v1::{
    Container, ContainerMetadata, ContainerState, PodSandbox, PodSandboxMetadata, PodSandboxState,
};
use base::Id;

/// All pods and containers of a daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Objects {
    pub(super) pods: Vec<PodSandbox>,
    pub(super) containers: Vec<Container>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Found<'a> {
    Pod(&'a PodSandbox),
    Container(&'a Container),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FindError {
    #[error("no {what} {text:?}: `longshore ps -a` lists all")]
    None { what: &'static str, text: String },
    #[error("{text:?} could be any of {candidates}: use an id")]
    Many { text: String, candidates: String },
    #[error("pod {text:?} has several containers: name one of {candidates}")]
    Which { text: String, candidates: String },
    #[error("pod {text:?} has no container")]
    Empty { text: String },
}

impl Objects {
    pub(super) fn find(&self, text: &str) -> Result<Found<'_>, FindError> {
        let found = self.candidates(text);
        match found.as_slice() {
            [] => Err(FindError::None { what: "pod or container", text: text.to_owned() }),
            [one] => Ok(*one),
            many => Err(FindError::Many {
                text: text.to_owned(),
                candidates: list(many.iter().map(|found| self.describe(*found))),
            }),
        }
    }

    /// A pod stands for its only container.
    pub(super) fn find_container(&self, text: &str) -> Result<&Container, FindError> {
        let pod = match self.find(text)? {
            Found::Container(container) => return Ok(container),
            Found::Pod(pod) => pod,
        };
        let of_pod: Vec<_> = self.of_pod(pod).collect();
        // Earlier attempts are not meant where there is a later one.
        let mut newest: Vec<&Container> = Vec::new();
        for container in of_pod {
            match newest.iter_mut().find(|other| metadata(other).name == metadata(container).name) {
                Some(other) if other.created_at < container.created_at => *other = container,
                Some(_) => {}
                None => newest.push(container),
            }
        }
        match newest.as_slice() {
            [] => Err(FindError::Empty { text: text.to_owned() }),
            [one] => Ok(one),
            many => Err(FindError::Which {
                text: text.to_owned(),
                candidates: list(many.iter().map(|container| self.container_name(container))),
            }),
        }
    }

    pub(super) fn of_pod<'a>(&'a self, pod: &'a PodSandbox) -> impl Iterator<Item = &'a Container> {
        self.containers.iter().filter(|container| container.pod_sandbox_id == pod.id)
    }

    /// By name if there is such a name, else by the beginning of an id.
    fn candidates(&self, text: &str) -> Vec<Found<'_>> {
        let named = match text.split_once('/') {
            Some((pod, name)) => self.containers_named(pod, name),
            None => self.pods_named(text),
        };
        if !named.is_empty() || text.is_empty() || text.contains('/') {
            return named;
        }
        let pods = self.pods.iter().filter(|pod| pod.id.starts_with(text)).map(Found::Pod);
        let containers = self.containers.iter().filter(|c| c.id.starts_with(text));
        pods.chain(containers.map(Found::Container)).collect()
    }

    fn pods_named(&self, name: &str) -> Vec<Found<'_>> {
        let mut newest: Vec<&PodSandbox> = Vec::new();
        for pod in self.pods.iter().filter(|pod| pod_metadata(pod).name == name) {
            let owner = |pod: &PodSandbox| {
                let PodSandboxMetadata { namespace, uid, .. } = pod_metadata(pod);
                (namespace, uid)
            };
            match newest.iter_mut().find(|other| owner(other) == owner(pod)) {
                Some(other) if other.created_at < pod.created_at => *other = pod,
                Some(_) => {}
                None => newest.push(pod),
            }
        }
        newest.into_iter().map(Found::Pod).collect()
    }

    fn containers_named(&self, pod: &str, name: &str) -> Vec<Found<'_>> {
        let pods = self.pods_named(pod).into_iter().filter_map(|found| match found {
            Found::Pod(pod) => Some(pod),
            Found::Container(_) => None,
        });
        let newest = pods.filter_map(|pod| {
            let named = self.of_pod(pod).filter(|container| metadata(container).name == name);
            named.max_by_key(|container| container.created_at)
        });
        newest.map(Found::Container).collect()
    }

    pub(super) fn container_name(&self, container: &Container) -> String {
        let pod = self.pods.iter().find(|pod| pod.id == container.pod_sandbox_id);
        let pod = pod.map(|pod| pod_metadata(pod).name).unwrap_or_default();
        format!("{pod}/{}", metadata(container).name)
    }

    fn describe(&self, found: Found<'_>) -> String {
        match found {
            Found::Pod(pod) => {
                let PodSandboxMetadata { name, namespace, .. } = pod_metadata(pod);
                format!("pod {name} of {namespace:?} ({})", short(&pod.id))
            }
            Found::Container(container) => {
                format!("{} ({})", self.container_name(container), short(&container.id))
            }
        }
    }
}

pub(super) fn metadata(container: &Container) -> ContainerMetadata {
    container.metadata.clone().unwrap_or_default()
}

pub(super) fn pod_metadata(pod: &PodSandbox) -> PodSandboxMetadata {
    pod.metadata.clone().unwrap_or_default()
}

/// As people tell them apart.
pub(super) fn short(id: &str) -> &str {
    id.get(..Id::SHORT_LEN).unwrap_or(id)
}

pub(super) fn container_state(state: ContainerState) -> &'static str {
    match state {
        ContainerState::ContainerCreated => "created",
        ContainerState::ContainerRunning => "running",
        ContainerState::ContainerExited => "exited",
        ContainerState::ContainerUnknown => "unknown",
    }
}

pub(super) fn pod_state(state: PodSandboxState) -> &'static str {
    match state {
        PodSandboxState::SandboxReady => "ready",
        PodSandboxState::SandboxNotready => "not ready",
    }
}

fn list(items: impl Iterator<Item = impl fmt::Display>) -> String {
    let mut all: Vec<_> = items.map(|item| item.to_string()).collect();
    all.sort();
    all.join(", ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cli) fn pod(id: &str, name: &str, namespace: &str, at: i64) -> PodSandbox {
        PodSandbox {
            id: id.into(),
            metadata: Some(PodSandboxMetadata {
                name: name.into(),
                uid: format!("{namespace}-{name}"),
                namespace: namespace.into(),
                attempt: 0,
            }),
            created_at: at,
            ..Default::default()
        }
    }

    pub(in crate::cli) fn container(id: &str, pod: &str, name: &str, at: i64) -> Container {
        Container {
            id: id.into(),
            pod_sandbox_id: pod.into(),
            metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
            created_at: at,
            ..Default::default()
        }
    }

    fn objects() -> Objects {
        Objects {
            pods: vec![
                pod("p1aa", "web", "a", 1),
                pod("p1bb", "db", "a", 2),
                pod("p2", "db", "b", 3),
                pod("old", "job", "a", 4),
                pod("new", "job", "a", 5),
            ],
            containers: vec![
                container("c1", "p1aa", "app", 1),
                container("c2", "p1aa", "app", 9),
                container("c3", "p1aa", "proxy", 2),
                container("d1", "new", "main", 2),
                container("d2", "new", "main", 3),
                container("d3", "old", "main", 3),
            ],
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        let all = objects();
        let got = match all.find(text) {
            Ok(Found::Pod(pod)) => format!("pod {}", pod.id),
            Ok(Found::Container(container)) => format!("container {}", container.id),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{text:?}");
    }

    #[track_caller]
    fn check_container(text: &str, want: &str) {
        let all = objects();
        let got = all.find_container(text).map(|c| c.id.clone()).unwrap_or_else(|e| e.to_string());
        assert_eq!(got, want, "{text:?}");
    }

    #[test]
    fn by_name_and_by_id() {
        check("web", "pod p1aa");
        check("p2", "pod p2");
        check("p1a", "pod p1aa");
        check("c3", "container c3");
        check("web/proxy", "container c3");
        // The last attempt is meant.
        check("web/app", "container c2");
        check("job", "pod new");
        check("job/main", "container d2");
    }

    #[test]
    fn what_is_not_there_or_not_clear() {
        check("x", "no pod or container \"x\": `longshore ps -a` lists all");
        check("", "no pod or container \"\": `longshore ps -a` lists all");
        check("web/x", "no pod or container \"web/x\": `longshore ps -a` lists all");
        check(
            "db",
            "\"db\" could be any of pod db of \"a\" (p1bb), pod db of \"b\" (p2): use an id",
        );
        check("c", "\"c\" could be any of web/app (c1), web/app (c2), web/proxy (c3): use an id");
    }

    #[test]
    fn a_pod_stands_for_its_only_container() {
        check_container("job", "d2");
        check_container("old", "d3");
        check_container("web/proxy", "c3");
        check_container(
            "web",
            "pod \"web\" has several containers: name one of web/app, web/proxy",
        );
        check_container("p2", "pod \"p2\" has no container");
    }
}
