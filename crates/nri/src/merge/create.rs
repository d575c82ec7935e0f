//! Adjustments of a container that is being created.

use std::sync::Arc;

use nri_wire::api::{
    Container, ContainerAdjustment, CreateContainerResponse, Field, Hooks, LinuxContainer,
    LinuxContainerAdjustment, LinuxCpu, LinuxMemory, LinuxNamespace, LinuxRdt, LinuxResources,
    PosixRlimit,
};

use super::{
    Claimant, Ledger, MergeError, Updates,
    list::{merge_list, merge_map, removed},
    resources::{is_empty, overlay, set, set_text},
};
use crate::owners::Owners;

/// Merges the answers to CreateContainer.
///
/// ```
/// use nri::{Claimant, Creation, api};
/// let answer = |value: &str| api::CreateContainerResponse {
///     adjust: Some(api::ContainerAdjustment {
///         env: vec![api::KeyValue { key: "COLOUR".into(), value: value.into() }],
///         ..Default::default()
///     }),
///     ..Default::default()
/// };
/// let mut creation = Creation::of(api::Container { id: "c0".into(), ..Default::default() });
/// creation.merge(Claimant::new("10-a"), answer("red"))?;
/// assert_eq!(creation.container().env, ["COLOUR=red"]);
/// let conflict = creation.merge(Claimant::new("20-b"), answer("blue")).unwrap_err();
/// assert!(conflict.to_string().starts_with(r#"plugins "20-b" and "10-a" both tried to set Env"#));
/// # Ok::<(), nri::MergeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Creation {
    original: Arc<Container>,
    /// The same until a plugin wants it changed.
    container: Arc<Container>,
    merged: Merged,
}

/// What all plugins together ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    pub adjust: ContainerAdjustment,
    /// Of other containers.
    pub updates: Updates,
    pub owners: Owners,
}

impl Creation {
    pub fn of(container: impl Into<Arc<Container>>) -> Self {
        let original = container.into();
        Self { container: Arc::clone(&original), original, merged: Merged::default() }
    }

    /// As adjusted so far: what the next plugin is asked about.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// The same, to be kept.
    pub(crate) fn shared_container(&self) -> Arc<Container> {
        Arc::clone(&self.container)
    }

    /// As it was before any plugin was asked: what validators see.
    pub fn original(&self) -> &Container {
        &self.original
    }

    pub fn merged(&self) -> &Merged {
        &self.merged
    }

    pub fn finish(self) -> Merged {
        self.merged
    }

    pub fn merge(
        &mut self,
        by: Claimant<'_>,
        response: CreateContainerResponse,
    ) -> Result<(), MergeError> {
        let CreateContainerResponse { adjust, update, evict } = response;
        let created = self.original.id.clone();
        if let Some(adjust) = adjust.filter(|adjust| *adjust != ContainerAdjustment::default()) {
            self.adjust(by, &created, adjust)?;
        }
        let plugin = || by.plugin.to_owned();
        for update in update {
            if update.container_id == created {
                return Err(MergeError::UpdateOfCreated { plugin: plugin(), container: created });
            }
            self.merged.updates.merge(by, &update, &mut self.merged.owners)?;
        }
        for eviction in evict {
            if eviction.container_id == created {
                return Err(MergeError::EvictionOfCreated { plugin: plugin(), container: created });
            }
            self.merged.updates.evict(by, eviction);
        }
        Ok(())
    }

    fn adjust(
        &mut self,
        by: Claimant<'_>,
        id: &str,
        adjust: ContainerAdjustment,
    ) -> Result<(), MergeError> {
        let Merged { adjust: all, owners, .. } = &mut self.merged;
        let view = Arc::make_mut(&mut self.container);
        let ledger = &mut Ledger { owners, container: id, by };
        let annotations = &mut view.annotations;
        merge_map(
            ledger,
            Field::Annotations,
            &mut all.annotations,
            adjust.annotations,
            annotations,
        )?;
        merge_list(ledger, &mut all.mounts, adjust.mounts, &mut view.mounts)?;
        merge_list(ledger, &mut all.env, adjust.env, &mut view.env)?;
        merge_args(ledger, &mut all.args, adjust.args, &mut view.args, &self.original.args)?;
        merge_hooks(ledger, all, adjust.hooks, view)?;
        if let Some(linux) = adjust.linux.and_then(stripped) {
            let all = all.linux.get_or_insert_default();
            merge_linux(ledger, all, linux, view.linux.get_or_insert_default())?;
        }
        merge_rlimits(ledger, &mut all.rlimits, adjust.rlimits, &mut view.rlimits)?;
        for device in adjust.cdi_devices {
            ledger.claim_entry(Field::CdiDevices, &device.name)?;
            view.cdi_devices.push(device.clone());
            all.cdi_devices.push(device);
        }
        Ok(())
    }
}

/// An empty first argument takes the arguments over from an earlier plugin.
fn merge_args(
    ledger: &mut Ledger<'_>,
    all: &mut Vec<String>,
    mut args: Vec<String>,
    view: &mut Vec<String>,
    original: &[String],
) -> Result<(), MergeError> {
    if args.first().is_some_and(String::is_empty) {
        args.remove(0);
        ledger.clear(Field::Args)?;
        all.clear();
        original.clone_into(view);
    }
    if !args.is_empty() {
        ledger.claim(Field::Args)?;
        view.clone_from(&args);
        *all = args;
    }
    Ok(())
}

fn merge_hooks(
    ledger: &mut Ledger<'_>,
    all: &mut ContainerAdjustment,
    hooks: Option<Hooks>,
    view: &mut Container,
) -> Result<(), MergeError> {
    let Some(hooks) = hooks.filter(|hooks| *hooks != Hooks::default()) else { return Ok(()) };
    ledger.accumulate(Field::OciHooks)?;
    append_hooks(view.hooks.get_or_insert_default(), hooks.clone());
    append_hooks(all.hooks.get_or_insert_default(), hooks);
    Ok(())
}

fn append_hooks(all: &mut Hooks, hooks: Hooks) {
    let Hooks { prestart, create_runtime, create_container, start_container, poststart, poststop } =
        hooks;
    all.prestart.extend(prestart);
    all.create_runtime.extend(create_runtime);
    all.create_container.extend(create_container);
    all.start_container.extend(start_container);
    all.poststart.extend(poststart);
    all.poststop.extend(poststop);
}

fn merge_rlimits(
    ledger: &mut Ledger<'_>,
    all: &mut Vec<PosixRlimit>,
    rlimits: Vec<PosixRlimit>,
    view: &mut Vec<PosixRlimit>,
) -> Result<(), MergeError> {
    for rlimit in rlimits {
        ledger.claim_entry(Field::Rlimits, &rlimit.r#type)?;
        view.retain(|have| have.r#type != rlimit.r#type);
        view.push(rlimit.clone());
        all.push(rlimit);
    }
    Ok(())
}

/// Without the parts that say nothing; `None` where none says anything.
fn stripped(mut linux: LinuxContainerAdjustment) -> Option<LinuxContainerAdjustment> {
    if let Some(resources) = &mut linux.resources {
        resources.memory.take_if(|memory| *memory == LinuxMemory::default());
        resources.cpu.take_if(|cpu| *cpu == LinuxCpu::default());
    }
    linux.resources.take_if(|resources| is_empty(resources));
    linux.rdt.take_if(|rdt| *rdt == LinuxRdt::default());
    (linux != LinuxContainerAdjustment::default()).then_some(linux)
}

fn merge_linux(
    ledger: &mut Ledger<'_>,
    all: &mut LinuxContainerAdjustment,
    linux: LinuxContainerAdjustment,
    view: &mut LinuxContainer,
) -> Result<(), MergeError> {
    merge_list(ledger, &mut all.devices, linux.devices, &mut view.devices)?;
    if let Some(resources) = &linux.resources {
        merge_resources(ledger, all, resources, view)?;
    }
    set_text(ledger, Field::CgroupsPath, &mut all.cgroups_path, &linux.cgroups_path)?;
    if !linux.cgroups_path.is_empty() {
        view.cgroups_path.clone_from(&linux.cgroups_path);
    }
    set_both(
        ledger,
        Field::OomScoreAdj,
        &mut all.oom_score_adj,
        &mut view.oom_score_adj,
        linux.oom_score_adj,
    )?;
    set_both(
        ledger,
        Field::IoPriority,
        &mut all.io_priority,
        &mut view.io_priority,
        linux.io_priority,
    )?;
    set_both(
        ledger,
        Field::SeccompPolicy,
        &mut all.seccomp_policy,
        &mut view.seccomp_policy,
        linux.seccomp_policy,
    )?;
    merge_namespaces(ledger, &mut all.namespaces, linux.namespaces, &mut view.namespaces)?;
    merge_map(ledger, Field::Sysctl, &mut all.sysctl, linux.sysctl, &mut view.sysctl)?;
    let devices = &mut view.net_devices;
    merge_map(ledger, Field::LinuxNetDevices, &mut all.net_devices, linux.net_devices, devices)?;
    set_both(ledger, Field::LinuxSched, &mut all.scheduler, &mut view.scheduler, linux.scheduler)?;
    if let Some(rdt) = linux.rdt {
        merge_rdt(ledger, all, rdt, view)?;
    }
    set(ledger, Field::MemoryPolicy, &mut all.memory_policy, linux.memory_policy.as_ref())
}

fn set_both<T: Clone>(
    ledger: &mut Ledger<'_>,
    field: Field,
    all: &mut Option<T>,
    view: &mut Option<T>,
    value: Option<T>,
) -> Result<(), MergeError> {
    if value.is_some() {
        ledger.claim(field)?;
        view.clone_from(&value);
        *all = value;
    }
    Ok(())
}

fn merge_resources(
    ledger: &mut Ledger<'_>,
    all: &mut LinuxContainerAdjustment,
    resources: &LinuxResources,
    view: &mut LinuxContainer,
) -> Result<(), MergeError> {
    let all = all.resources.get_or_insert_default();
    overlay(ledger, all, resources)?;
    // Rules add up and nobody owns them, but who may not set devices may not allow them.
    if !resources.devices.is_empty() {
        ledger.by.may(Field::Devices)?;
        all.devices.extend(resources.devices.iter().cloned());
    }
    // The same once more for the view, where nothing can conflict any longer.
    let mut nobody = Owners::default();
    let mut unclaimed = Ledger { owners: &mut nobody, ..*ledger };
    let view = view.resources.get_or_insert_default();
    view.devices.extend(resources.devices.iter().cloned());
    overlay(&mut unclaimed, view, resources)
}

/// A namespace is set or removed by one plugin; there is no taking over.
fn merge_namespaces(
    ledger: &mut Ledger<'_>,
    all: &mut Vec<LinuxNamespace>,
    namespaces: Vec<LinuxNamespace>,
    view: &mut Vec<LinuxNamespace>,
) -> Result<(), MergeError> {
    for namespace in namespaces {
        let kind = removed(&namespace.r#type);
        let removal = kind.is_some();
        let kind = kind.unwrap_or(&namespace.r#type).to_owned();
        ledger.claim_entry(Field::Namespace, &kind)?;
        view.retain(|have| have.r#type != kind);
        if !removal {
            view.push(namespace.clone());
        }
        all.push(namespace);
    }
    Ok(())
}

/// `remove` forgets all that was set before; what is set beside it starts afresh.
fn merge_rdt(
    ledger: &mut Ledger<'_>,
    all: &mut LinuxContainerAdjustment,
    rdt: LinuxRdt,
    view: &mut LinuxContainer,
) -> Result<(), MergeError> {
    if rdt.remove {
        for field in [Field::RdtClosId, Field::RdtSchemata, Field::RdtEnableMonitoring] {
            ledger.clear(field)?;
        }
        all.rdt = Some(LinuxRdt { remove: true, ..LinuxRdt::default() });
        view.rdt = None;
    }
    let LinuxRdt { clos_id, schemata, enable_monitoring, remove: _ } = rdt;
    if clos_id.is_none() && schemata.is_none() && enable_monitoring.is_none() {
        return Ok(());
    }
    let (all, view) = (all.rdt.get_or_insert_default(), view.rdt.get_or_insert_default());
    set_both(ledger, Field::RdtClosId, &mut all.clos_id, &mut view.clos_id, clos_id)?;
    set_both(ledger, Field::RdtSchemata, &mut all.schemata, &mut view.schemata, schemata)?;
    let (all, view) = (&mut all.enable_monitoring, &mut view.enable_monitoring);
    set_both(ledger, Field::RdtEnableMonitoring, all, view, enable_monitoring)
}
