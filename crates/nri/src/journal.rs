//! What happened to a container at the hands of plugins, kept as long as the container.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use nri_wire::{
    PluginId,
    api::{ContainerAdjustment, LinuxResources},
};
use oci_spec::runtime as oci;

use crate::owners::{FieldKey, Owners};

/// Updates that are remembered per container; older ones are forgotten.
pub(crate) const UPDATES: usize = 32;

/// One container's story.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// The specification no plugin has touched.
    pub original: Option<Arc<oci::Spec>>,
    /// What each plugin answered to its creation, in order.
    pub adjustments: Vec<Adjusted>,
    /// What all of it came to.
    pub merged: ContainerAdjustment,
    pub owners: Owners,
    /// What plugins changed later, oldest first.
    pub updates: VecDeque<Updated>,
}

/// One plugin's answer.
#[derive(Clone, Debug)]
pub struct Adjusted {
    pub plugin: PluginId,
    pub took: Duration,
    /// `None` where it asked for nothing.
    pub adjust: Option<Box<ContainerAdjustment>>,
    /// Why nothing of it was granted, where that is so.
    pub refused: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Updated {
    /// By whom, where it was one plugin; several are told apart by `owners`.
    pub by: String,
    pub resources: LinuxResources,
    pub owners: Vec<(FieldKey, String)>,
    /// Why it was not made, where that is so.
    pub error: Option<String>,
}

/// An eviction that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The plugin that asked for it.
    pub by: String,
    pub reason: String,
    /// The request with whose answer it came, as in `CreateContainer pod/container`, or
    /// `unsolicited`.
    pub cause: String,
}

impl Journal {
    pub(crate) fn update(
        &mut self,
        by: &str,
        container: &str,
        resources: LinuxResources,
        owners: &Owners,
        error: Option<String>,
    ) -> &Updated {
        if self.updates.len() == UPDATES {
            self.updates.pop_front();
        }
        let of_this = owners.iter().filter(|(id, ..)| *id == container);
        let owners = of_this.map(|(_, field, owner)| (field, owner.to_owned())).collect();
        self.updates.push_back(Updated { by: by.to_owned(), resources, owners, error });
        &self.updates[self.updates.len() - 1]
    }
}
