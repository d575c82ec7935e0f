//! Which pods and containers to list. No filter takes all.

use api_cri::v1;
use engine::view::{ContainerFilter, ContainerState, PodFilter};

use crate::field::{Result, Under, known, set};

pub(crate) fn pods(filter: Option<v1::PodSandboxFilter>) -> Result<PodFilter> {
    let v1::PodSandboxFilter { id, state, label_selector } = filter.unwrap_or_default();
    let ready = |v1::PodSandboxStateValue { state }| {
        Ok(known::<v1::PodSandboxState>("state", state)? == v1::PodSandboxState::SandboxReady)
    };
    Ok(PodFilter {
        id: set(id),
        ready: state.map(ready).transpose().under("filter.state")?,
        labels: label_selector.into_iter().collect(),
    })
}

pub(crate) fn containers(filter: Option<v1::ContainerFilter>) -> Result<ContainerFilter> {
    let v1::ContainerFilter { id, state, pod_sandbox_id, label_selector } =
        filter.unwrap_or_default();
    let named = |v1::ContainerStateValue { state }| {
        Ok(match known("state", state)? {
            v1::ContainerState::ContainerCreated => ContainerState::Created,
            v1::ContainerState::ContainerRunning => ContainerState::Running,
            v1::ContainerState::ContainerExited => ContainerState::Exited,
            v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
        })
    };
    Ok(ContainerFilter {
        id: set(id),
        state: state.map(named).transpose().under("filter.state")?,
        pod: set(pod_sandbox_id),
        labels: label_selector.into_iter().collect(),
    })
}

pub(crate) fn container_stats(filter: Option<v1::ContainerStatsFilter>) -> ContainerFilter {
    let v1::ContainerStatsFilter { id, pod_sandbox_id, label_selector } =
        filter.unwrap_or_default();
    ContainerFilter {
        id: set(id),
        state: None,
        pod: set(pod_sandbox_id),
        labels: label_selector.into_iter().collect(),
    }
}

pub(crate) fn pod_stats(filter: Option<v1::PodSandboxStatsFilter>) -> PodFilter {
    let v1::PodSandboxStatsFilter { id, label_selector } = filter.unwrap_or_default();
    PodFilter { id: set(id), ready: None, labels: label_selector.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::Selector;

    use super::*;

    fn labels() -> BTreeMap<String, String> {
        BTreeMap::from([("app".to_owned(), "web".to_owned())])
    }

    #[test]
    fn no_filter_takes_all() {
        for filter in [None, Some(v1::PodSandboxFilter::default())] {
            let PodFilter { id, ready, labels } = pods(filter).unwrap();
            assert_eq!((id, ready, labels), (None, None, Selector::default()));
        }
        for filter in [None, Some(v1::ContainerFilter::default())] {
            let ContainerFilter { id, state, pod, labels } = containers(filter).unwrap();
            assert_eq!((id, state, pod, labels), (None, None, None, Selector::default()));
        }
    }

    #[test]
    fn every_condition_is_taken_over() {
        let ready = |state| {
            let filter = v1::PodSandboxFilter {
                id: "ab".into(),
                state: Some(v1::PodSandboxStateValue { state }),
                label_selector: labels(),
            };
            let filter = pods(Some(filter)).unwrap();
            assert_eq!(filter.id.as_deref(), Some("ab"));
            assert_eq!(filter.labels, labels().into_iter().collect());
            filter.ready
        };
        assert_eq!([0, 1].map(ready), [Some(true), Some(false)]);

        let state = |state| {
            let filter = v1::ContainerFilter {
                id: "ab".into(),
                state: Some(v1::ContainerStateValue { state }),
                pod_sandbox_id: "cd".into(),
                label_selector: labels(),
            };
            let filter = containers(Some(filter)).unwrap();
            assert_eq!((filter.id.as_deref(), filter.pod.as_deref()), (Some("ab"), Some("cd")));
            assert_eq!(filter.labels, labels().into_iter().collect());
            filter.state.unwrap()
        };
        use ContainerState::{Created, Exited, Running, Unknown};
        assert_eq!([0, 1, 2, 3].map(state), [Created, Running, Exited, Unknown]);
    }

    #[test]
    fn unknown_states_are_refused() {
        let state = Some(v1::PodSandboxStateValue { state: 2 });
        let refused = pods(Some(v1::PodSandboxFilter { state, ..Default::default() }));
        assert_eq!(refused.unwrap_err().to_string(), "filter.state.state: unknown value 2");
        let state = Some(v1::ContainerStateValue { state: 4 });
        let refused = containers(Some(v1::ContainerFilter { state, ..Default::default() }));
        assert_eq!(refused.unwrap_err().to_string(), "filter.state.state: unknown value 4");
    }
}
