//! Devices for a spec that is complete, as plugins ask for them.

use std::{collections::BTreeSet, path::PathBuf};

use oci_spec::runtime::{Linux, Process, Spec};

use super::{
    Name, Registry,
    edits::{Around, Target, edit},
    is_qualified,
};
use crate::{
    devices::Devices,
    error::{OciError, Result},
    facts::{DeviceFacts, HandlerFacts},
    mounts::Mounts,
    process::user_to_spec,
    request::IdMappings,
    user::ResolvedUser,
};

/// What is known of devices, and of where they go.
#[derive(Clone, Copy, Debug)]
pub struct Injection<'a> {
    pub registry: &'a Registry,
    /// Nodes of the host at [`Registry::device_paths`].
    pub devices: &'a DeviceFacts,
    /// Of the pod.
    pub mapping: Option<&'a IdMappings>,
    pub handler: &'a HandlerFacts,
}

impl Registry {
    /// Every path of the host somebody must look at before these can be injected.
    pub fn device_paths(&self, names: &[String]) -> Result<BTreeSet<PathBuf>> {
        let edits = self.edits(&qualified(names)?)?;
        let nodes = edits.into_iter().flat_map(|edits| &edits.device_nodes);
        Ok(nodes.map(|node| node.host_path().to_owned()).collect())
    }
}

impl Injection<'_> {
    /// An error leaves the spec as it was.
    pub fn inject(&self, spec: &mut Spec, names: &[String]) -> Result<()> {
        let edits = self.registry.edits(&qualified(names)?)?;
        let mut new = spec.clone();
        let mut process = new.process().clone().unwrap_or_default();
        let mut linux = new.linux().clone().unwrap_or_default();
        let mut resources = linux.resources().clone().unwrap_or_default();
        let mut devices =
            Devices::of(linux.devices().clone().unwrap_or_default(), resources.devices().clone());
        let mut mounts = Mounts::of(new.mounts().clone().unwrap_or_default());
        let mut user = user_of(&process);
        let (spec_part, around) = (
            &mut new,
            Around { devices: self.devices, mapping: self.mapping, handler: self.handler },
        );
        edit(
            around,
            &edits,
            &mut user,
            &mut Target {
                process: &mut process,
                devices: &mut devices,
                mounts: &mut mounts,
                spec: spec_part,
                linux: &mut linux,
            },
        )?;
        process.set_user(user_to_spec(&user));
        let (nodes, rules) = devices.finish();
        resources.set_devices(Some(rules));
        put_together(&mut new, process, linux_with(linux, nodes, resources), mounts);
        *spec = new;
        Ok(())
    }
}

fn linux_with(
    mut linux: Linux,
    nodes: Vec<oci_spec::runtime::LinuxDevice>,
    resources: oci_spec::runtime::LinuxResources,
) -> Linux {
    linux.set_devices((!nodes.is_empty()).then_some(nodes)).set_resources(Some(resources));
    linux
}

fn put_together(spec: &mut Spec, process: Process, linux: Linux, mounts: Mounts) {
    spec.set_process(Some(process)).set_linux(Some(linux)).set_mounts(Some(mounts.finish()));
}

fn user_of(process: &Process) -> ResolvedUser {
    let user = process.user();
    let groups = user.additional_gids().clone().unwrap_or_default();
    ResolvedUser { uid: user.uid(), gid: user.gid(), groups }
}

fn qualified(names: &[String]) -> Result<Vec<Name>> {
    let name = |text: &String| match is_qualified(text) {
        true => Ok(Name { text: text.clone(), field: "cdi_devices".to_owned() }),
        false => {
            let why = format!("{text:?} is not a name such as vendor.com/class=name");
            Err(OciError::invalid("cdi_devices", why))
        }
    };
    names.iter().map(name).collect()
}
