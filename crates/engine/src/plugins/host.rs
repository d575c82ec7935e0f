//! What a plugin's adjustment needs to know of this host.

use std::{path::Path, sync::Arc};

use nri::{HostError, Propagation};
use oci::{IdMappings, LinuxBlockIo, LinuxIntelRdt, Spec};
use sys::mount::Table;

use crate::{
    container::{self, classes},
    record::PodRecord,
    shared::Shared,
};

pub(super) struct Host {
    shared: Arc<Shared>,
    /// Of the container's pod.
    handler: String,
    mapping: Option<IdMappings>,
}

impl Host {
    pub(super) fn new(shared: &Arc<Shared>, pod: &PodRecord) -> Self {
        let (handler, mapping) = (pod.handler.clone(), container::mapping(pod));
        Self { shared: Arc::clone(shared), handler, mapping }
    }
}

/// A class of block I/O that somebody defined on this host.
pub(crate) fn block_io(shared: &Shared, class: &str) -> Result<LinuxBlockIo, HostError> {
    let known = classes::block_io(&shared.config.block_io_classes, class)?;
    known.ok_or_else(|| format!("no block I/O class {class:?} is defined here").into())
}

/// What a class of RDT means; nothing, where there is no class.
pub(crate) fn rdt(class: &str) -> Result<Option<LinuxIntelRdt>, HostError> {
    if class.is_empty() {
        return Ok(None);
    }
    let Some(known) = classes::rdt()? else {
        return Err("resctrl is not available on this host".into());
    };
    if !known.contains(class) {
        return Err(format!("no RDT class {class:?} is defined here").into());
    }
    let mut rdt = LinuxIntelRdt::default();
    rdt.set_clos_id(Some(class.to_owned()));
    Ok(Some(rdt))
}

impl nri::Host for Host {
    fn block_io(&self, class: &str) -> Result<LinuxBlockIo, HostError> {
        block_io(&self.shared, class)
    }

    fn rdt(&self, class: &str) -> Result<LinuxIntelRdt, HostError> {
        Ok(rdt(class)?.unwrap_or_default())
    }

    fn inject_cdi(&self, spec: &mut Spec, devices: &[String]) -> Result<(), HostError> {
        let (registry, faults) = oci::cdi::load(&self.shared.config.cdi_dirs);
        for fault in faults {
            tracing::warn!(error = %base::Chain(&fault), "CDI file not used");
        }
        let found = container::device_nodes(registry.device_paths(devices)?)?;
        let injection = oci::cdi::Injection {
            registry: &registry,
            devices: &found,
            mapping: self.mapping.as_ref(),
            handler: &self.shared.handler(&self.handler)?.facts,
        };
        Ok(injection.inject(spec, devices)?)
    }

    fn propagation(&self, source: &Path) -> Result<Propagation, HostError> {
        let source = std::fs::canonicalize(source)?;
        let table = Table::own()?;
        let tags = table.covering(&source).map(|mount| mount.tags.clone()).unwrap_or_default();
        let tagged = |tag: &str| tags.iter().any(|have| have.starts_with(tag));
        Ok(match (tagged("shared:"), tagged("master:")) {
            (true, _) => Propagation::Shared,
            (false, true) => Propagation::Slave,
            (false, false) => Propagation::Private,
        })
    }
}
