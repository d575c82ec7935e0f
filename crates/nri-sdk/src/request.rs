//! What handlers are given, where it is more than a pod and a container.

use std::time::Duration;

use nri_wire::{
    EventMask,
    api::{
        self, Container, Field, OwningPlugins, PluginInstance, PodSandbox, UpdatePodSandboxRequest,
        ValidateContainerAdjustmentRequest,
    },
    defaults,
};

use crate::{Adjustment, Resources, Updates, version};

/// What a runtime tells a plugin first.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Configuration {
    /// The content of the plugin's configuration file, in whatever syntax; empty without one.
    pub text: String,
    pub runtime: RuntimeInfo,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    /// `containerd`, `cri-o`, `docker`, `longshore`…
    pub name: String,
    pub version: String,
    /// Of the NRI library the runtime has. Where it does not say, it is inferred from its
    /// name and version, and empty where those are not known either.
    pub nri_version: String,
    /// From connecting to being registered.
    pub registration_timeout: Duration,
    /// For one answer.
    pub request_timeout: Duration,
}

/// Which events a plugin wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subscription {
    /// All it has handlers for.
    #[default]
    Handled,
    /// Some of these. An event without a handler is an error.
    Only(EventMask),
}

/// All pods and containers there are, from one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    pub pods: Vec<PodSandbox>,
    pub containers: Vec<Container>,
}

/// The resources of a pod that is about to change.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PodResources {
    pub overhead: Resources,
    pub resources: Resources,
}

/// What plugins want to make of a container that is about to be created.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Proposal {
    pub pod: PodSandbox,
    /// As it was before any plugin was asked.
    pub container: Container,
    /// Of all plugins together.
    pub adjustment: Adjustment,
    /// Of other containers.
    pub updates: Updates,
    pub owners: Owners,
    /// The plugins that were consulted.
    pub plugins: Vec<PluginInstance>,
}

/// Who set what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners(OwningPlugins);

/// The judgement of a validator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    #[default]
    Accept,
    /// With the reason that whoever asked for the container will read.
    Reject(String),
}

// === impl World ===

impl World {
    /// The pod of a container.
    pub fn pod_of(&self, container: &Container) -> Option<&PodSandbox> {
        self.pods.iter().find(|pod| pod.id == container.pod_sandbox_id)
    }
}

// === impl Owners ===

impl Owners {
    /// The plugins that set a field of a container, with the key of the entry where the
    /// field has entries, as annotations have. Several hooks of several plugins are one
    /// owner, as in `10-a,20-b`.
    pub fn of<'a>(
        &'a self,
        container_id: &str,
        field: Field,
    ) -> impl Iterator<Item = (Option<&'a str>, &'a str)> {
        let fields = self.0.owners.get(container_id);
        let number = field as i32;
        let simple = fields.and_then(|fields| fields.simple.get(&number));
        let compound = fields.and_then(|fields| fields.compound.get(&number));
        let entries = compound.into_iter().flat_map(|field| &field.owners);
        simple
            .map(|plugin| (None, plugin.as_str()))
            .into_iter()
            .chain(entries.map(|(key, plugin)| (Some(key.as_str()), plugin.as_str())))
    }
}

impl From<OwningPlugins> for Owners {
    fn from(owners: OwningPlugins) -> Self {
        Self(owners)
    }
}

impl From<Owners> for OwningPlugins {
    fn from(owners: Owners) -> Self {
        owners.0
    }
}

// === conversions ===

impl From<()> for Subscription {
    fn from((): ()) -> Self {
        Self::Handled
    }
}

impl From<EventMask> for Subscription {
    fn from(events: EventMask) -> Self {
        Self::Only(events)
    }
}

impl From<()> for Verdict {
    fn from((): ()) -> Self {
        Self::Accept
    }
}

impl From<api::ConfigureRequest> for Configuration {
    fn from(request: api::ConfigureRequest) -> Self {
        let time = |ms: i64, default: Duration| match u64::try_from(ms) {
            Ok(0) | Err(_) => default,
            Ok(ms) => Duration::from_millis(ms),
        };
        let inferred = match request.nri_version.as_str() {
            "" | "(devel)" | "0.0.0-unknown" | "unknown" => {
                version::infer(&request.runtime_name, &request.runtime_version)
                    .unwrap_or_default()
                    .to_owned()
            }
            _ => request.nri_version,
        };
        let runtime = RuntimeInfo {
            name: request.runtime_name,
            version: request.runtime_version,
            nri_version: inferred,
            registration_timeout: time(
                request.registration_timeout,
                defaults::REGISTRATION_TIMEOUT,
            ),
            request_timeout: time(request.request_timeout, defaults::REQUEST_TIMEOUT),
        };
        Self { text: request.config, runtime }
    }
}

impl From<api::SynchronizeRequest> for World {
    fn from(request: api::SynchronizeRequest) -> Self {
        Self { pods: request.pods, containers: request.containers }
    }
}

impl From<&UpdatePodSandboxRequest> for PodResources {
    fn from(request: &UpdatePodSandboxRequest) -> Self {
        let typed = |wire: &Option<api::LinuxResources>| {
            wire.as_ref().map(Resources::from).unwrap_or_default()
        };
        Self {
            overhead: typed(&request.overhead_linux_resources),
            resources: typed(&request.linux_resources),
        }
    }
}

impl From<ValidateContainerAdjustmentRequest> for Proposal {
    fn from(request: ValidateContainerAdjustmentRequest) -> Self {
        Self {
            pod: request.pod.unwrap_or_default(),
            container: request.container.unwrap_or_default(),
            adjustment: request.adjust.map(Adjustment::from).unwrap_or_default(),
            updates: request.update.into_iter().map(Into::into).collect(),
            owners: request.owners.unwrap_or_default().into(),
            plugins: request.plugins,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn times_that_are_not_said_are_the_defaults() {
        let request = api::ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "v2.2.0".into(),
            request_timeout: 250,
            registration_timeout: -1,
            ..Default::default()
        };
        let runtime = Configuration::from(request).runtime;
        assert_eq!(runtime.request_timeout, Duration::from_millis(250));
        assert_eq!(runtime.registration_timeout, defaults::REGISTRATION_TIMEOUT);
        assert_eq!(runtime.nri_version, "v0.10.0");
    }

    #[test]
    fn owners_of_simple_and_of_compound_fields() {
        let owner = |key: &str, plugin: &str| (key.to_owned(), plugin.to_owned());
        let compound = api::CompoundFieldOwners {
            owners: BTreeMap::from([owner("A", "10-a"), owner("B", "20-b")]),
        };
        let fields = api::FieldOwners {
            simple: BTreeMap::from([(Field::Args as i32, "10-a".to_owned())]),
            compound: BTreeMap::from([(Field::Env as i32, compound)]),
        };
        let owners: Owners =
            OwningPlugins { owners: BTreeMap::from([("c".to_owned(), fields)]) }.into();
        let of = |id, field| owners.of(id, field).collect::<Vec<_>>();
        assert_eq!(of("c", Field::Args), [(None, "10-a")]);
        assert_eq!(of("c", Field::Env), [(Some("A"), "10-a"), (Some("B"), "20-b")]);
        assert!(of("c", Field::Mounts).is_empty() && of("d", Field::Args).is_empty());
    }
}
