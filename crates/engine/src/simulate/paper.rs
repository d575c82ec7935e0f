//! What there is on paper: one pod, its containers, and the ideal host they are on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use base::{Id, Kind};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use nri::{Domain, DomainError, HostError, Propagation};
use oci::{
    Accounts, Arch, CgroupDriver, CgroupFacts, CgroupVersion, ClassFacts, ContainerFacts,
    DeviceFacts, HandlerFacts, HostFacts, Kernel, LinuxBlockIo, MountRequest, MountSource, Policy,
    SourceFacts, SourcePropagation, Spec,
};
use parking_lot::Mutex;

use super::record;
use crate::{
    container::{limits, make},
    error::{EngineError, Result},
    layout::Layout,
    phase::{ContainerEvent, KILLED_CODE},
    plugins::{K8S, describe},
    record::{ContainerRecord, PodRecord},
    request::NewContainer,
};

/// Of processes that nobody runs.
const FIRST_PID: u32 = 1000;

#[derive(Debug)]
pub(super) struct Paper {
    host: HostFacts,
    handler: HandlerFacts,
    policy: Policy,
    layout: Layout,
    world: Mutex<World>,
}

#[derive(Debug, Default)]
struct World {
    pod: Option<PodRecord>,
    /// By their names in the pod.
    containers: BTreeMap<String, Sheet>,
    /// Containers that there have been.
    made: u8,
    /// Names of those whose end has yet to be told.
    evicted: Vec<String>,
}

/// One container.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) record: ContainerRecord,
    pub(super) spec: Spec,
}

/// Of the nth object: told apart by its first digits, the same in every run.
pub(super) fn id(number: u8) -> Id {
    let text = format!("{:f<64}", format!("{number:02x}"));
    text.parse().expect("these are 64 digits")
}

fn ideal_host() -> HostFacts {
    let controllers = ["cpu", "cpuset", "memory", "hugetlb", "pids", "io"];
    HostFacts {
        hostname: "paper".to_owned(),
        capabilities: Policy::default().capabilities.into_iter().collect(),
        oom_score_floor: None,
        cgroup: CgroupFacts {
            version: CgroupVersion::V2,
            controllers: controllers.map(str::to_owned).into_iter().collect(),
            swap: true,
            mount_options: Vec::new(),
        },
        arch: Arch::of_machine(std::env::consts::ARCH).unwrap_or(Arch::X86_64),
        kernel: Kernel { major: 6, minor: 12 },
        seccomp: true,
        apparmor: false,
        selinux: false,
        resctrl: true,
    }
}

// === the pod ===

impl Paper {
    pub(super) fn new() -> Self {
        let handler = HandlerFacts {
            name: "ideal".to_owned(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            ..HandlerFacts::default()
        };
        let (policy, layout) = (Policy::default(), Layout::usual());
        Self { host: ideal_host(), handler, policy, layout, world: Mutex::default() }
    }

    pub(super) fn limits(&self) -> oci::Limits<'_> {
        oci::Limits { host: &self.host, handler: &self.handler, policy: &self.policy }
    }

    pub(super) fn begin(&self, pod: PodRecord) -> Result<()> {
        let mut world = self.world.lock();
        if let Some(there) = &world.pod {
            let name = pod.request.name.to_string();
            return Err(EngineError::NameTaken { name, id: there.id });
        }
        world.pod = Some(pod);
        Ok(())
    }

    pub(super) fn pod(&self) -> Result<PodRecord> {
        self.with_pod(|pod| pod.clone())
    }

    pub(super) fn with_pod<T>(&self, act: impl FnOnce(&mut PodRecord) -> T) -> Result<T> {
        let absent = || EngineError::NotFound { what: "pod", id: "on paper".to_owned() };
        self.world.lock().pod.as_mut().map(act).ok_or_else(absent)
    }

    pub(super) fn described_pod(&self) -> Result<nri::Pod> {
        Ok(self.describe(&self.pod()?))
    }

    pub(super) fn describe(&self, pod: &PodRecord) -> nri::Pod {
        let cgroup = describe::cgroup(self.handler.cgroup_driver, pod);
        describe::pod_with(pod, cgroup, describe::namespaces(&self.layout, pod))
    }

    pub(super) fn clear(&self) {
        *self.world.lock() = World::default();
    }
}

// === containers ===

impl Paper {
    pub(super) fn new_container(
        &self,
        pod: &PodRecord,
        new: &NewContainer,
    ) -> Result<ContainerRecord> {
        let mut world = self.world.lock();
        let name = &new.container.name;
        if let Some(there) = world.containers.get(name) {
            return Err(EngineError::NameTaken { name: name.clone(), id: there.record.id });
        }
        let full = || EngineError::invalid("containers", "are too many");
        world.made = world.made.checked_add(1).ok_or_else(full)?;
        Ok(record(pod, id(world.made), new))
    }

    /// As the daemon makes it, from what would be found on a host that has everything.
    pub(super) fn spec(&self, pod: &PodRecord, container: &ContainerRecord) -> Result<Spec> {
        let request = make::effective(pod, &container.request.container);
        let facts = ContainerFacts {
            id: container.id,
            rootfs: "rootfs".into(),
            sources: request.mounts.iter().map(source).collect(),
            volumes: BTreeMap::new(),
            targets: BTreeMap::new(),
            seccomp: None,
            // As a host would have it.
            apparmor_loaded: true,
            selinux: None,
            devices: DeviceFacts::default(),
            classes: classes(&request, pod),
            init: None,
        };
        let built = oci::build(&oci::Inputs {
            request: &request,
            image: &container.image.facts,
            container: &facts,
            accounts: &Accounts::default(),
            pod: &make::pod_facts(&self.layout, pod),
            host: &self.host,
            handler: &self.handler,
            policy: &self.policy,
            cdi: &oci::cdi::Registry::default(),
        })?;
        Ok(built.spec)
    }

    pub(super) fn add(&self, sheet: Sheet) {
        let name = sheet.record.request.container.name.clone();
        self.world.lock().containers.insert(name, sheet);
    }

    pub(super) fn forget(&self, name: &str) {
        self.world.lock().containers.remove(name);
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Sheet) -> Result<T>) -> Result<T> {
        let absent = || EngineError::NotFound { what: "container", id: name.to_owned() };
        act(self.world.lock().containers.get_mut(name).ok_or_else(absent)?)
    }

    pub(super) fn both(&self, name: &str) -> Result<(nri::Pod, nri::Container)> {
        let pod = self.described_pod()?;
        let described = |sheet: &mut Sheet| {
            Ok(describe::container(&sheet.record, Arc::new(sheet.spec.clone())))
        };
        Ok((pod, self.with(name, described)?))
    }

    pub(super) fn pid_of(&self, name: &str) -> Result<u32> {
        self.with(name, |sheet| {
            let number = u8::from_str_radix(&sheet.record.id.as_str()[..2], 16);
            Ok(FIRST_PID + u32::from(number.unwrap_or_default()))
        })
    }

    pub(super) fn moved(&self, name: &str, event: &ContainerEvent) -> Result<()> {
        self.with(name, |sheet| {
            sheet.record = sheet.record.on(event)?;
            Ok(())
        })
    }

    /// What never ran cannot exit; it is only told that it is over.
    pub(super) fn ended(&self, name: &str, code: i32, at: Timestamp) -> Result<()> {
        self.with(name, |sheet| {
            if sheet.record.phase.is_live() {
                sheet.record = sheet.record.on(&ContainerEvent::Exited { code, at, oom: false })?;
            }
            Ok(())
        })
    }

    pub(super) fn evicted(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().evicted)
    }

    fn name_of(&self, id: &str) -> Result<String, DomainError> {
        let world = self.world.lock();
        let found = world.containers.iter().find(|(_, sheet)| sheet.record.id.as_str() == id);
        found.map(|(name, _)| name.clone()).ok_or(DomainError::Gone)
    }

    /// By the rules of the daemon; classes by their names only.
    pub(super) fn change(&self, id: &str, asked: &nri::Resources) -> Result<()> {
        let gone = |_| EngineError::NotFound { what: "container", id: id.to_owned() };
        let name = self.name_of(id).map_err(gone)?;
        let limits = self.limits();
        self.with(&name, |sheet| {
            oci::update_linux(&mut sheet.spec, &asked.linux, limits)?;
            let made = &mut sheet.record.made;
            made.resources = oci::resources_of(&sheet.spec);
            for (class, into) in [
                (&asked.block_io_class, &mut made.block_io_class),
                (&asked.rdt_class, &mut made.rdt_class),
            ] {
                if let Some(class) = class {
                    *into = (!class.is_empty()).then(|| class.clone());
                }
            }
            Ok(())
        })
    }

    fn read(&self, id: &str) -> Result<nri::Resources, DomainError> {
        let name = self.name_of(id)?;
        let read = self.with(&name, |sheet| {
            let mut now = oci::resources_of(&sheet.spec);
            limits::complete(&mut now, &self.host.cgroup);
            Ok(nri::Resources { linux: oci::to_linux(&now)?, ..nri::Resources::default() })
        });
        read.map_err(told)
    }

    fn end(&self, id: &str, reason: &str) -> Result<(), DomainError> {
        let (name, at) = (self.name_of(id)?, Timestamp::now());
        let ended = self.with(&name, |sheet| {
            sheet.record.evicted = Some(reason.to_owned());
            let event = match sheet.record.phase.is_live() {
                true => ContainerEvent::Exited { code: KILLED_CODE, at, oom: false },
                false => ContainerEvent::Evicted { at },
            };
            sheet.record = sheet.record.on(&event)?;
            Ok(())
        });
        ended.map_err(told)?;
        self.world.lock().evicted.push(name);
        Ok(())
    }
}

fn told(error: EngineError) -> DomainError {
    match error.kind() {
        Kind::NotFound => DomainError::Gone,
        _ => DomainError::Failed(Box::new(error)),
    }
}

fn source(mount: &MountRequest) -> SourceFacts {
    let path = match &mount.source {
        MountSource::Host(path) => path.clone(),
        MountSource::Image { reference, .. } => PathBuf::from("/images").join(reference),
        MountSource::Tmpfs => PathBuf::new(),
    };
    SourceFacts { path, propagation: SourcePropagation::Shared }
}

/// Every class that is asked for exists.
fn classes(request: &oci::ContainerRequest, pod: &PodRecord) -> ClassFacts {
    let asked = oci::classes(request, &pod.request.annotations);
    ClassFacts {
        block_io: asked.block_io.map(|_| LinuxBlockIo::default()),
        rdt: Some(asked.rdt.into_iter().map(str::to_owned).collect::<BTreeSet<_>>()),
    }
}

impl Domain for Paper {
    fn name(&self) -> &str {
        K8S
    }

    fn resources<'a>(
        &'a self,
        container: &'a str,
    ) -> BoxFuture<'a, Result<Option<nri::Resources>, DomainError>> {
        Box::pin(async move {
            match self.read(container) {
                Ok(resources) => Ok(Some(resources)),
                Err(DomainError::Gone) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn update<'a>(
        &'a self,
        container: &'a str,
        resources: &'a nri::Resources,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        Box::pin(async move { self.change(container, resources).map_err(told) })
    }

    fn evict<'a>(
        &'a self,
        container: &'a str,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        Box::pin(async move { self.end(container, reason) })
    }
}

/// Knows every class and every device, and what they mean is nothing.
pub(super) struct Ideal;

impl nri::Host for Ideal {
    fn block_io(&self, _: &str) -> Result<LinuxBlockIo, HostError> {
        Ok(LinuxBlockIo::default())
    }

    fn inject_cdi(&self, _: &mut Spec, _: &[String]) -> Result<(), HostError> {
        Ok(())
    }

    fn propagation(&self, _: &Path) -> Result<Propagation, HostError> {
        Ok(Propagation::Shared)
    }
}
