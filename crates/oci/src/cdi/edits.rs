//! What a CDI device does to a spec that is otherwise complete.

use oci_spec::runtime::{
    Hook as SpecHook, Hooks, Linux, LinuxDevice, LinuxDeviceType, LinuxIntelRdt, LinuxNetDevice,
    Process, Spec,
};

use super::model::{Edits, Hook, IntelRdt, Mount, Node, Stage};
use crate::{
    builder::Inputs,
    devices::{self, Devices},
    error::{OciError, Result},
    facts::{DeviceFacts, HandlerFacts},
    mounts::{self, Mounts},
    request::IdMappings,
    user::ResolvedUser,
};

/// The parts of a spec that edits touch, before they are put together.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) process: &'a mut Process,
    pub(crate) devices: &'a mut Devices,
    pub(crate) mounts: &'a mut Mounts,
    pub(crate) spec: &'a mut Spec,
    pub(crate) linux: &'a mut Linux,
}

/// What edits depend on beside themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    /// Nodes of the host, by the paths that edits name.
    pub(crate) devices: &'a DeviceFacts,
    pub(crate) mapping: Option<&'a IdMappings>,
    pub(crate) handler: &'a HandlerFacts,
}

pub(crate) fn apply(
    inputs: &Inputs<'_>,
    user: &mut ResolvedUser,
    target: &mut Target<'_>,
) -> Result<()> {
    let around = Around {
        devices: &inputs.container.devices,
        mapping: inputs.pod.mapping.as_ref(),
        handler: inputs.handler,
    };
    edit(around, &inputs.cdi.edits(&super::names(inputs.request)?)?, user, target)
}

pub(crate) fn edit(
    around: Around<'_>,
    all: &[&Edits],
    user: &mut ResolvedUser,
    target: &mut Target<'_>,
) -> Result<()> {
    let unable = || {
        let handler = around.handler.name.clone();
        Err(OciError::Unable { field: "cdi_devices".to_owned(), handler })
    };
    let abilities = around.handler.abilities;
    for edits in all {
        environment(target.process, &edits.env);
        for node in &edits.device_nodes {
            let device = device(around, node, user)?;
            let access = match node.permissions.as_deref() {
                None | Some("") => "rwm",
                Some("none") => "",
                Some(some) => some,
            };
            target.devices.add(device, access);
        }
        for mount in &edits.mounts {
            target.mounts.replace(to_mount(around, mount)?);
        }
        for hook in &edits.hooks {
            add_hook(target.spec.hooks_mut().get_or_insert_default(), hook);
        }
        if let Some(rdt) = &edits.intel_rdt {
            if !abilities.intel_rdt {
                return unable();
            }
            target.linux.set_intel_rdt(Some(to_rdt(rdt)));
        }
        if !edits.net_devices.is_empty() && !abilities.net_devices {
            return unable();
        }
        for device in &edits.net_devices {
            let mut spec = LinuxNetDevice::default();
            spec.set_name(Some(device.name.clone()));
            let all = target.linux.net_devices_mut().get_or_insert_default();
            all.insert(device.host_interface_name.clone(), spec);
        }
        add_groups(user, edits);
    }
    Ok(())
}

/// Root's is not given away by a file.
fn add_groups(user: &mut ResolvedUser, edits: &Edits) {
    for &gid in edits.additional_gids.iter().filter(|&&gid| gid != 0) {
        if !user.groups.contains(&gid) {
            user.groups.push(gid);
        }
    }
}

fn environment(process: &mut Process, added: &[String]) {
    let env = process.env_mut().get_or_insert_default();
    for pair in added {
        let key = pair.split_once('=').map_or(pair.as_str(), |(key, _)| key);
        env.retain(|old| old.split_once('=').map_or(old.as_str(), |(old, _)| old) != key);
        env.push(pair.clone());
    }
}

/// What the file does not say is as the node on the host is.
fn device(around: Around<'_>, node: &Node, user: &ResolvedUser) -> Result<LinuxDevice> {
    let path = node.host_path();
    let found = around.devices.by_path.get(path).and_then(|nodes| match &nodes[..] {
        [one] => Some(one),
        _ => None,
    });
    let kind = node.kind.as_deref().filter(|kind| !kind.is_empty());
    let said = kind.filter(|&kind| kind == "p" || node.major.is_some_and(|major| major != 0));
    let mut device = match (said, found) {
        (Some(kind), found) => {
            let mut device = LinuxDevice::default();
            device
                .set_typ(typ(kind))
                .set_major(i64::from(node.major.unwrap_or(0)))
                .set_minor(i64::from(node.minor.unwrap_or(0)))
                .set_file_mode(found.map(|found| found.mode & 0o7777));
            device
        }
        (None, Some(found)) => {
            let mut device = devices::to_spec(found, path);
            if kind.is_some_and(|kind| typ(kind) != device.typ()) {
                let why = format!("{} is a device of another type", path.display());
                return Err(OciError::invalid("cdi_devices", why));
            }
            device.set_uid(None).set_gid(None);
            device
        }
        (None, None) => {
            let why = format!("no device at {}", path.display());
            return Err(OciError::NotFound { field: "cdi_devices".to_owned(), why });
        }
    };
    let not_root = |id: u32| (id != 0).then_some(id);
    if let Some(mode) = node.file_mode {
        device.set_file_mode(Some(mode & 0o7777));
    }
    device
        .set_path(node.path.clone())
        .set_uid(node.uid.or(not_root(user.uid)))
        .set_gid(node.gid.or(not_root(user.gid)));
    Ok(device)
}

fn typ(kind: &str) -> LinuxDeviceType {
    match kind {
        "b" => LinuxDeviceType::B,
        "p" => LinuxDeviceType::P,
        _ => LinuxDeviceType::C,
    }
}

fn to_mount(around: Around<'_>, asked: &Mount) -> Result<oci_spec::runtime::Mount> {
    let kind = asked.kind.as_deref().filter(|kind| !kind.is_empty());
    let is_bind = |option: &String| ["bind", "rbind"].contains(&option.as_str());
    let bind = kind.is_none_or(|kind| kind == "bind");
    let mut options: Vec<&str> = asked.options.iter().map(String::as_str).collect();
    if bind && !asked.options.iter().any(is_bind) {
        options.insert(0, "rbind");
    }
    let to = mounts::clean(&asked.container_path);
    let mut mount = mounts::mount(to, kind.unwrap_or("bind"), &asked.host_path, &options);
    if let Some(mapping) = around.mapping.filter(|_| bind)
        && around.handler.abilities.idmapped_mounts
    {
        mounts::set_mapping(&mut mount, mapping)?;
    }
    Ok(mount)
}

fn to_rdt(asked: &IntelRdt) -> LinuxIntelRdt {
    let mut rdt = LinuxIntelRdt::default();
    rdt.set_clos_id(asked.clos_id.clone())
        .set_l3_cache_schema(asked.l3_cache_schema.clone())
        .set_mem_bw_schema(asked.mem_bw_schema.clone())
        .set_schemata(asked.schemata.clone())
        .set_enable_monitoring(asked.enable_monitoring);
    rdt
}

fn add_hook(hooks: &mut Hooks, asked: &Hook) {
    let list = match asked.stage {
        Stage::Prestart => hooks.prestart_mut(),
        Stage::CreateRuntime => hooks.create_runtime_mut(),
        Stage::CreateContainer => hooks.create_container_mut(),
        Stage::StartContainer => hooks.start_container_mut(),
        Stage::Poststart => hooks.poststart_mut(),
        Stage::Poststop => hooks.poststop_mut(),
    };
    let mut hook = SpecHook::default();
    hook.set_path(asked.path.clone())
        .set_args(asked.args.clone())
        .set_env(asked.env.clone())
        .set_timeout(asked.timeout);
    list.get_or_insert_default().push(hook);
}
