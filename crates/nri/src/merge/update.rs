//! Updates: what plugins want changed in containers that exist.

use nri_wire::api::{
    ContainerEviction, ContainerUpdate, LinuxContainerUpdate, LinuxResources,
    UpdateContainerResponse,
};

use super::{Claimant, Ledger, MergeError, resources};
use crate::owners::Owners;

/// Updates and evictions of containers, in the order in which they were first asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Updates {
    updates: Vec<ContainerUpdate>,
    evictions: Vec<ContainerEviction>,
    /// Who asked for them, in the same order.
    evictors: Vec<String>,
}

impl Updates {
    /// Those that change something.
    pub fn updates(&self) -> impl Iterator<Item = &ContainerUpdate> {
        self.updates.iter().filter(|update| !is_empty(update))
    }

    pub fn evictions(&self) -> &[ContainerEviction] {
        &self.evictions
    }

    /// The plugin that asked first for the eviction of a container; empty where nobody did.
    pub fn evictor(&self, container: &str) -> &str {
        let all = self.evictions.iter().zip(&self.evictors);
        let mut found = all.filter(|(eviction, _)| eviction.container_id == container);
        found.next().map_or("", |(_, plugin)| plugin.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.evictions.is_empty() && self.updates().next().is_none()
    }

    /// Merges one update over what is collected for its container. A conflict in one that may
    /// fail is no error and leaves everything as it was.
    pub(super) fn merge(
        &mut self,
        by: Claimant<'_>,
        update: &ContainerUpdate,
        owners: &mut Owners,
    ) -> Result<(), MergeError> {
        let id = update.container_id.as_str();
        let at = self.updates.iter().position(|have| have.container_id == id);
        let mut merged = at.map_or_else(
            || ContainerUpdate { container_id: id.to_owned(), ..ContainerUpdate::default() },
            |at| self.updates[at].clone(),
        );
        // Only if all who ask for it can do without it.
        merged.ignore_failure = update.ignore_failure && at.is_none_or(|_| merged.ignore_failure);
        let base = merged.linux.get_or_insert_default().resources.get_or_insert_default();
        if !overlay_or_undo(by, base, update, owners)? {
            return Ok(());
        }
        match at {
            Some(at) => self.updates[at] = merged,
            None => self.updates.push(merged),
        }
        Ok(())
    }

    pub(super) fn evict(&mut self, by: Claimant<'_>, eviction: ContainerEviction) {
        if !self.evictions.iter().any(|have| have.container_id == eviction.container_id) {
            self.evictions.push(eviction);
            self.evictors.push(by.plugin.to_owned());
        }
    }

    pub(crate) fn push(&mut self, update: ContainerUpdate) {
        self.updates.push(update);
    }
}

/// Whether the update is in `base` now.
fn overlay_or_undo(
    by: Claimant<'_>,
    base: &mut LinuxResources,
    update: &ContainerUpdate,
    owners: &mut Owners,
) -> Result<bool, MergeError> {
    let id = update.container_id.as_str();
    let (saved, before) = (owners.save(id), base.clone());
    let asked = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let Some(asked) = asked else { return Ok(true) };
    let mut ledger = Ledger { owners, container: id, by };
    match resources::overlay(&mut ledger, base, asked) {
        Ok(()) => Ok(true),
        Err(MergeError::Conflict(_)) if update.ignore_failure => {
            owners.restore(id, saved);
            *base = before;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn is_empty(update: &ContainerUpdate) -> bool {
    let asked = update.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    asked.is_none_or(resources::is_empty)
}

/// Merges the answers to UpdateContainer, and to StopContainer, which has nothing of its own
/// to update.
///
/// ```
/// use nri::{Claimant, Updating, api};
/// let asked = api::LinuxResources {
///     cpu: Some(api::LinuxCpu { cpus: "0-3".into(), ..Default::default() }),
///     ..Default::default()
/// };
/// let mut updating = Updating::of("c0", asked);
/// let answer = api::ContainerUpdate {
///     container_id: "c0".into(),
///     linux: Some(api::LinuxContainerUpdate {
///         resources: Some(api::LinuxResources {
///             cpu: Some(api::LinuxCpu { mems: "0".into(), ..Default::default() }),
///             ..Default::default()
///         }),
///     }),
///     ..Default::default()
/// };
/// updating.merge(Claimant::new("10-numa"), vec![answer], vec![])?;
/// let (resources, others, _) = updating.finish();
/// let cpu = resources.cpu.unwrap();
/// assert_eq!((cpu.cpus.as_str(), cpu.mems.as_str()), ("0-3", "0"));
/// assert!(others.is_empty());
/// # Ok::<(), nri::MergeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Updating {
    id: String,
    resources: LinuxResources,
    own: Own,
    others: Updates,
    owners: Owners,
}

/// Whether the request itself updates a container, and what of it is from plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    None,
    AsAsked,
    Changed,
}

impl Updating {
    /// An update of one container to these resources.
    pub fn of(id: &str, mut resources: LinuxResources) -> Self {
        // Plugins of the reference find both there, always.
        resources.memory.get_or_insert_default();
        resources.cpu.get_or_insert_default();
        Self { own: Own::AsAsked, resources, ..Self::of_others(id) }
    }

    /// A stop, which may update others.
    pub fn of_others(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            resources: LinuxResources::default(),
            own: Own::None,
            others: Updates::default(),
            owners: Owners::default(),
        }
    }

    /// What the next plugin is asked about.
    pub fn resources(&self) -> &LinuxResources {
        &self.resources
    }

    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// What is to change besides the container itself.
    pub fn others(&self) -> &Updates {
        &self.others
    }

    pub fn merge(
        &mut self,
        by: Claimant<'_>,
        updates: Vec<ContainerUpdate>,
        evictions: Vec<ContainerEviction>,
    ) -> Result<(), MergeError> {
        for update in updates {
            match self.own != Own::None && update.container_id == self.id {
                true => {
                    if overlay_or_undo(by, &mut self.resources, &update, &mut self.owners)? {
                        self.own = Own::Changed;
                    }
                }
                false => self.others.merge(by, &update, &mut self.owners)?,
            }
        }
        evictions.into_iter().for_each(|eviction| self.others.evict(by, eviction));
        Ok(())
    }

    /// What to set, what else to change, and whose it is.
    pub fn finish(self) -> (LinuxResources, Updates, Owners) {
        (self.resources, self.others, self.owners)
    }

    /// The answer as the reference gives it: others first, then the container itself where a
    /// plugin changed it.
    pub fn into_response(mut self) -> UpdateContainerResponse {
        if self.own == Own::Changed {
            self.others.push(ContainerUpdate {
                container_id: self.id,
                linux: Some(LinuxContainerUpdate { resources: Some(self.resources) }),
                ignore_failure: false,
            });
        }
        let update = self.others.updates().cloned().collect();
        UpdateContainerResponse { update, evict: self.others.evictions }
    }
}
