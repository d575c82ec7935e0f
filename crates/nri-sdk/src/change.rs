//! What a plugin asks of containers that exist: updates and evictions.
//!
//! **Invariant:** a container appears once in [`Updates`]: adding it again overlays what was
//! asked before, because a runtime takes two updates of one field for a conflict.

use std::collections::BTreeMap;

use nri_wire::api::{
    ContainerEviction, ContainerUpdate, CreateContainerResponse, LinuxContainerUpdate,
    UpdateContainerResponse, UpdateContainersRequest,
};

use crate::{Adjustment, AdjustmentError, Resources};

/// New resources for one container.
///
/// ```
/// # use nri_sdk::Update;
/// let mut update = Update::of("8f2a");
/// update.resources.cpu.cpus = "4-7".into();
/// update.ignore_failure = true;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Update {
    pub container_id: String,
    pub resources: Resources,
    /// Neither a conflict nor a failure to apply it fails the request it goes with.
    pub ignore_failure: bool,
}

/// Updates of several containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Updates {
    /// In the order in which the containers were first named.
    list: Vec<Update>,
}

/// Updates and evictions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub updates: Updates,
    /// Reasons by container id. No released runtime of others evicts yet.
    pub evictions: BTreeMap<String, String>,
}

/// The answer to the creation of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Creation {
    pub adjustment: Adjustment,
    /// Of others: the container that is being created has the adjustment.
    pub updates: Updates,
    /// Reasons by container id.
    pub evictions: BTreeMap<String, String>,
}

// === impl Update, Updates, Changes ===

impl Update {
    pub fn of(container_id: impl Into<String>) -> Self {
        Self { container_id: container_id.into(), ..Self::default() }
    }
}

impl Updates {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an update. If the container has one already the new one is laid over it; a
    /// failure is then ignored only if both say so.
    pub fn add(&mut self, update: Update) -> &mut Self {
        match self.list.iter_mut().find(|known| known.container_id == update.container_id) {
            Some(known) => {
                known.resources.overlay(update.resources);
                known.ignore_failure &= update.ignore_failure;
            }
            None => self.list.push(update),
        }
        self
    }

    pub fn get(&self, container_id: &str) -> Option<&Update> {
        self.list.iter().find(|update| update.container_id == container_id)
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Update> {
        self.list.iter()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.evictions.is_empty()
    }

    pub fn evict(
        &mut self,
        container_id: impl Into<String>,
        reason: impl Into<String>,
    ) -> &mut Self {
        self.evictions.insert(container_id.into(), reason.into());
        self
    }
}

// === conversions between them ===

impl Extend<Update> for Updates {
    fn extend<I: IntoIterator<Item = Update>>(&mut self, updates: I) {
        for update in updates {
            self.add(update);
        }
    }
}

impl FromIterator<Update> for Updates {
    fn from_iter<I: IntoIterator<Item = Update>>(updates: I) -> Self {
        let mut all = Self::new();
        all.extend(updates);
        all
    }
}

impl IntoIterator for Updates {
    type Item = Update;
    type IntoIter = std::vec::IntoIter<Update>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Updates {
    type Item = &'a Update;
    type IntoIter = std::slice::Iter<'a, Update>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl From<Vec<Update>> for Updates {
    fn from(updates: Vec<Update>) -> Self {
        updates.into_iter().collect()
    }
}

impl From<Update> for Updates {
    fn from(update: Update) -> Self {
        Self { list: vec![update] }
    }
}

impl From<()> for Updates {
    fn from((): ()) -> Self {
        Self::new()
    }
}

impl From<Updates> for Changes {
    fn from(updates: Updates) -> Self {
        Self { updates, evictions: BTreeMap::new() }
    }
}

impl From<Vec<Update>> for Changes {
    fn from(updates: Vec<Update>) -> Self {
        Updates::from(updates).into()
    }
}

impl From<Update> for Changes {
    fn from(update: Update) -> Self {
        Updates::from(update).into()
    }
}

impl From<()> for Changes {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<Adjustment> for Creation {
    fn from(adjustment: Adjustment) -> Self {
        Self { adjustment, ..Self::default() }
    }
}

impl From<()> for Creation {
    fn from((): ()) -> Self {
        Self::default()
    }
}

// === messages ===

impl From<ContainerUpdate> for Update {
    fn from(wire: ContainerUpdate) -> Self {
        let resources = wire.linux.and_then(|linux| linux.resources);
        Self {
            container_id: wire.container_id,
            resources: resources.as_ref().map(Resources::from).unwrap_or_default(),
            ignore_failure: wire.ignore_failure,
        }
    }
}

impl From<Update> for ContainerUpdate {
    fn from(update: Update) -> Self {
        let resources = update.resources.to_wire();
        Self {
            container_id: update.container_id,
            linux: resources.map(|resources| LinuxContainerUpdate { resources: Some(resources) }),
            ignore_failure: update.ignore_failure,
        }
    }
}

impl From<Updates> for Vec<ContainerUpdate> {
    fn from(updates: Updates) -> Self {
        updates.into_iter().map(Into::into).collect()
    }
}

impl From<Vec<ContainerUpdate>> for Updates {
    fn from(wire: Vec<ContainerUpdate>) -> Self {
        wire.into_iter().map(Update::from).collect()
    }
}

impl From<Changes> for UpdateContainersRequest {
    fn from(changes: Changes) -> Self {
        Self { update: changes.updates.into(), evict: evictions_to_wire(changes.evictions) }
    }
}

impl From<UpdateContainersRequest> for Changes {
    fn from(wire: UpdateContainersRequest) -> Self {
        Self { updates: wire.update.into(), evictions: evictions_from_wire(wire.evict) }
    }
}

impl From<Changes> for UpdateContainerResponse {
    fn from(changes: Changes) -> Self {
        Self { update: changes.updates.into(), evict: evictions_to_wire(changes.evictions) }
    }
}

impl From<UpdateContainerResponse> for Changes {
    fn from(wire: UpdateContainerResponse) -> Self {
        Self { updates: wire.update.into(), evictions: evictions_from_wire(wire.evict) }
    }
}

impl TryFrom<Creation> for CreateContainerResponse {
    type Error = AdjustmentError;

    fn try_from(creation: Creation) -> Result<Self, AdjustmentError> {
        let adjust = match creation.adjustment.is_empty() {
            true => None,
            false => Some(creation.adjustment.try_into()?),
        };
        let evict = evictions_to_wire(creation.evictions);
        Ok(Self { adjust, update: creation.updates.into(), evict })
    }
}

impl From<CreateContainerResponse> for Creation {
    fn from(wire: CreateContainerResponse) -> Self {
        Self {
            adjustment: wire.adjust.map(Adjustment::from).unwrap_or_default(),
            updates: wire.update.into(),
            evictions: evictions_from_wire(wire.evict),
        }
    }
}

fn evictions_to_wire(evictions: BTreeMap<String, String>) -> Vec<ContainerEviction> {
    let eviction = |(container_id, reason)| ContainerEviction { container_id, reason };
    evictions.into_iter().map(eviction).collect()
}

fn evictions_from_wire(wire: Vec<ContainerEviction>) -> BTreeMap<String, String> {
    wire.into_iter().map(|eviction| (eviction.container_id, eviction.reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(id: &str, cpus: &str, ignore_failure: bool) -> Update {
        let mut update = Update::of(id);
        update.resources.cpu.cpus = cpus.into();
        update.ignore_failure = ignore_failure;
        update
    }

    #[test]
    fn a_container_is_updated_once() {
        let mut first = update("a", "0", true);
        first.resources.memory.limit = Some(1);
        let updates: Updates =
            [first, update("b", "1", true), update("a", "2", false)].into_iter().collect();
        let ids: Vec<_> = updates.iter().map(|update| update.container_id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        let a = updates.get("a").unwrap();
        assert_eq!((a.resources.cpu.cpus.as_str(), a.resources.memory.limit), ("2", Some(1)));
        assert!(!a.ignore_failure, "one of the two must not be ignored");
        assert!(updates.get("b").unwrap().ignore_failure);
    }

    #[test]
    fn answers_survive_the_wire() {
        let mut changes = Changes::from(vec![update("a", "0", true), update("b", "1", false)]);
        changes.evict("c", "noisy").evict("c", "too noisy");
        let wire = UpdateContainerResponse::from(changes.clone());
        assert_eq!(wire.evict.len(), 1);
        assert_eq!(Changes::from(wire), changes);
        let wire = UpdateContainersRequest::from(changes.clone());
        assert_eq!(Changes::from(wire), changes);
        let mut adjustment = Adjustment::new();
        adjustment.env.set("A", "1");
        let Changes { updates, evictions } = changes;
        let creation = Creation { adjustment, updates, evictions };
        let wire = CreateContainerResponse::try_from(creation.clone()).unwrap();
        assert_eq!(Creation::from(wire), creation);
    }

    #[test]
    fn nothing_asked_is_nothing_sent() {
        let wire = CreateContainerResponse::try_from(Creation::default()).unwrap();
        assert_eq!(wire, CreateContainerResponse::default());
    }
}
