//! From a spec to what is started: the one way, for the daemon and on paper.

use std::sync::Arc;

use nri::{Ask, FieldKey, Nri, Owners, Story, api::Field};
use oci::{Ignored, Limits, OciError, Spec};

use crate::error::{EngineError, Result};

/// A container as plugins want it, and as host and handler can have it.
#[derive(Clone, Debug)]
pub struct Adjusted {
    pub spec: Spec,
    /// Classes that plugins gave it, by name; an empty one was taken away.
    pub block_io_class: Option<String>,
    pub rdt_class: Option<String>,
    /// Asked for, and without effect.
    pub ignored: Vec<Ignored>,
    /// Who set what.
    pub story: Story,
}

/// Asks plugins about a container that is to be created from `container.spec`. An error means
/// that it must not be.
///
/// Cancel safe: a dropped request is undone.
pub(crate) async fn adjust(
    nri: &Nri,
    pod: &nri::Pod,
    container: &nri::Container,
    host: Arc<dyn nri::Host + Send + Sync>,
    limits: Limits<'_>,
) -> Result<Adjusted> {
    let created = nri.create_container(pod, container, host, &Ask::default()).await?;
    let mut spec = Arc::unwrap_or_clone(created.spec);
    let ignored = oci::check_adjusted(&container.spec, &mut spec, limits);
    let journal = nri.journal(&container.id);
    let ignored = ignored.map_err(|error| {
        let owners = journal.as_ref().map(|journal| &journal.owners);
        blame(owners, &container.id, error)
    })?;
    let story = journal.map(|journal| journal.story(&container.id, &spec)).unwrap_or_default();
    let (block_io_class, rdt_class) = (created.block_io_class, created.rdt_class);
    Ok(Adjusted { spec, block_io_class, rdt_class, ignored, story })
}

/// Names the plugins that set what host or handler cannot do.
fn blame(owners: Option<&Owners>, container: &str, error: OciError) -> EngineError {
    let fields = error.field().map(fields_of).unwrap_or_default();
    let setters = owners.map(|owners| owners.setters(container, &fields)).unwrap_or_default();
    let plugins = setters.into_iter().map(str::to_owned).collect();
    EngineError::Adjustment { plugins, source: Box::new(error.into()) }
}

/// The fields of NRI that a field of ours is made of, entries left out.
pub(super) fn fields_of(field: &str) -> Vec<FieldKey> {
    let name = field.split('[').next().unwrap_or_default();
    let fields: &[Field] = match name.strip_prefix("resources.").unwrap_or(name) {
        "cpu_shares" => &[Field::CpuShares],
        "cpu_quota" => &[Field::CpuQuota],
        "cpu_period" => &[Field::CpuPeriod],
        "cpu_realtime_runtime" => &[Field::CpuRealtimeRuntime, Field::CpuRealtimePeriod],
        "cpuset_cpus" => &[Field::CpuSetCpUs],
        "cpuset_mems" => &[Field::CpuSetMems],
        "memory_limit" => &[Field::MemLimit],
        "memory_reservation" => &[Field::MemReservation],
        "memory_swap" => &[Field::MemSwapLimit, Field::MemLimit],
        "memory_swappiness" => &[Field::MemSwappiness],
        "memory.kernel" => &[Field::MemKernelLimit],
        "memory.kernel_tcp" => &[Field::MemTcpLimit],
        "memory.use_hierarchy" => &[Field::MemUseHierarchy],
        "hugepages" => &[Field::HugepageLimits],
        "unified" => &[Field::CgroupsUnified],
        "blockio_class" => &[Field::BlockioClass],
        "rdt_class" => &[Field::RdtClass],
        "pids_limit" => &[Field::PidsLimit],
        "cgroups_path" => &[Field::CgroupsPath],
        "io_priority" => &[Field::IoPriority],
        "scheduler" => &[Field::LinuxSched],
        "net_devices" => &[Field::LinuxNetDevices],
        "memory_policy" => &[Field::MemoryPolicy],
        "seccomp_policy" => &[Field::SeccompPolicy],
        "rdt" => {
            &[Field::RdtClass, Field::RdtClosId, Field::RdtSchemata, Field::RdtEnableMonitoring]
        }
        _ => &[],
    };
    fields.iter().map(|field| FieldKey::from(*field)).collect()
}

#[cfg(test)]
mod tests {
    use base::Kind;

    use super::*;

    #[test]
    fn who_set_what_cannot_be_is_named() {
        let wire = |field: Field, plugin: &str| {
            let simple = [(field as i32, plugin.to_owned())].into();
            nri::api::FieldOwners { simple, ..Default::default() }
        };
        let mut fields = wire(Field::MemLimit, "10-a");
        fields.simple.extend(wire(Field::CgroupsPath, "20-b").simple);
        let owners = [("c".to_owned(), fields)].into();
        let owners = Owners::from_wire(nri::api::OwningPlugins { owners });
        let check = |field: &str, want: &str| {
            let error = OciError::Invalid { field: field.to_owned(), why: "no".to_owned() };
            let blamed = blame(Some(&owners), "c", error);
            assert_eq!(base::Chain(&blamed).to_string(), format!("{want}: {field}: no"));
            assert_eq!(blamed.kind(), Kind::Invalid);
        };
        check("resources.memory_limit", "apply what plugin 10-a asks for");
        check("resources.memory_swap", "apply what plugin 10-a asks for");
        check("cgroups_path", "apply what plugin 20-b asks for");
        check("resources.unified[\"x\"]", "apply what plugins 10-a, 20-b ask for");
        check("something else", "apply what plugins 10-a, 20-b ask for");
    }
}
