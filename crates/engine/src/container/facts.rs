//! What has to be looked up before a spec can be made: mount sources, devices, files of
//! the image. All blocking.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use base::{Id, Labels};
use oci::{
    Accounts, ContainerFacts, ContainerRequest, DeviceFacts, DeviceKind, DeviceNode, MountRequest,
    MountSource, NamespaceMode, Profile, SeccompProfile, SelinuxLabels, SourceFacts,
    SourcePropagation,
};
use rustix::fs::{Mode, OFlags, major, minor};
use sys::{beneath::Root, mount::Table};

use super::{classes, images};
use crate::error::{EngineError, Result};

/// No file we parse is larger on a sane system.
const MAX_FILE: u64 = 4 << 20;

/// What the engine knows already.
pub(super) struct Known<'a> {
    pub(super) id: Id,
    pub(super) rootfs: PathBuf,
    pub(super) request: &'a ContainerRequest,
    /// The processes of other containers of the pod, for namespaces shared with one.
    pub(super) pids: &'a BTreeMap<Id, u32>,
    pub(super) device_paths: Vec<PathBuf>,
    pub(super) volumes: BTreeMap<PathBuf, PathBuf>,
    pub(super) pod_annotations: &'a Labels,
    pub(super) block_io_classes: &'a Path,
    pub(super) apparmor_loaded: bool,
    pub(super) selinux: Option<SelinuxLabels>,
    /// Where the image of a mount is shown.
    pub(super) image: &'a dyn Fn(usize) -> PathBuf,
}

pub(super) fn gather(known: &Known<'_>) -> Result<ContainerFacts> {
    let Known { id, rootfs, request, .. } = known;
    Ok(ContainerFacts {
        id: *id,
        rootfs: rootfs.clone(),
        sources: sources(known)?,
        volumes: known.volumes.clone(),
        targets: targets(known)?,
        seccomp: seccomp(request)?,
        apparmor_loaded: known.apparmor_loaded,
        selinux: known.selinux.clone(),
        devices: devices(known)?,
        classes: classes::gather(known.block_io_classes, request, known.pod_annotations)?,
        init: None,
    })
}

/// The image's own users and groups, whatever links it has on the way there.
pub(super) fn accounts(rootfs: &Path) -> Result<Accounts> {
    let root = Root::open(rootfs)?;
    let read = |path: &str| -> Result<Option<String>> {
        let opened =
            root.open_in_root(Path::new(path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = match opened {
            Ok(fd) => fs::File::from(fd),
            Err(e) if e.io_kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_FILE).read_to_end(&mut bytes);
        read.map_err(EngineError::io("read", rootfs.join(path)))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    };
    Ok(Accounts { passwd: read("etc/passwd")?, group: read("etc/group")? })
}

fn sources(known: &Known<'_>) -> Result<Vec<SourceFacts>> {
    let table = Table::own()?;
    let source = |(number, mount): (usize, &MountRequest)| match &mount.source {
        MountSource::Tmpfs => Ok(SourceFacts::default()),
        MountSource::Image { sub_path, .. } => {
            let path = images::part(number, &(known.image)(number), sub_path.as_deref())?;
            Ok(SourceFacts { path, propagation: SourcePropagation::Private })
        }
        MountSource::Host(path) => host_source(&table, number, path),
    };
    known.request.mounts.iter().enumerate().map(source).collect()
}

fn host_source(table: &Table, number: usize, path: &Path) -> Result<SourceFacts> {
    let refuse = |why: String| EngineError::invalid(format!("mounts[{number}].host_path"), why);
    if path.as_os_str().is_empty() {
        return Err(refuse("is empty".to_owned()));
    }
    // The kubelet counts on it: a source that is not there becomes a directory.
    if fs::symlink_metadata(path).is_err() {
        crate::files::make_dir(path, 0o755)?;
    }
    let path = fs::canonicalize(path).map_err(|e| match fs::read_link(path) {
        Ok(to) => refuse(format!("{} is a link to {}: {e}", path.display(), to.display())),
        Err(_) => refuse(format!("{}: {e}", path.display())),
    })?;
    let tags = table.covering(&path).map(|entry| entry.tags.as_slice()).unwrap_or_default();
    let tagged = |tag: &str| tags.iter().any(|t| t.starts_with(tag));
    let propagation = if tagged("shared:") {
        SourcePropagation::Shared
    } else if tagged("master:") {
        SourcePropagation::Slave
    } else {
        SourcePropagation::Private
    };
    Ok(SourceFacts { path, propagation })
}

fn targets(known: &Known<'_>) -> Result<BTreeMap<Id, PathBuf>> {
    let namespaces = &known.request.security.namespaces;
    let mut wanted = Vec::new();
    for mode in [namespaces.pid, namespaces.network, namespaces.ipc, namespaces.uts] {
        if let NamespaceMode::Target(id) = mode {
            wanted.push(id);
        }
    }
    let path = |id: Id| match known.pids.get(&id) {
        Some(pid) => Ok((id, PathBuf::from(format!("/proc/{pid}/ns")))),
        None => Err(EngineError::invalid(
            "namespace_options.target_id",
            format!("{id} is no running container of this pod"),
        )),
    };
    wanted.into_iter().map(path).collect()
}

fn seccomp(request: &ContainerRequest) -> Result<Option<SeccompProfile>> {
    let Some(Profile::Localhost(path)) = &request.security.seccomp else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(EngineError::io("read seccomp profile", path))?;
    let parsed = SeccompProfile::parse(&text);
    parsed.map(Some).map_err(|e| EngineError::invalid("seccomp", format!("{path}: {e}")))
}

fn devices(known: &Known<'_>) -> Result<DeviceFacts> {
    let host =
        if known.request.security.privileged { nodes(Path::new("/dev"))? } else { Vec::new() };
    Ok(DeviceFacts { host, ..device_nodes(known.device_paths.clone())? })
}

/// The devices at these paths.
pub(crate) fn device_nodes(paths: impl IntoIterator<Item = PathBuf>) -> Result<DeviceFacts> {
    let found = |path: PathBuf| nodes(&path).map(|nodes| (path, nodes));
    let by_path = paths.into_iter().map(found).collect::<Result<_>>()?;
    Ok(DeviceFacts { by_path, ..DeviceFacts::default() })
}

/// The device at `path`, or all below that directory.
fn nodes(path: &Path) -> Result<Vec<DeviceNode>> {
    let missing =
        |e: io::Error| EngineError::invalid("devices", format!("{}: {e}", path.display()));
    let real = fs::canonicalize(path).map_err(missing)?;
    if let Some(node) = node(&real).map_err(missing)? {
        return Ok(vec![node]);
    }
    let mut found = Vec::new();
    let mut waiting = vec![real];
    while let Some(dir) = waiting.pop() {
        // Other file systems are mounted below /dev, and vanish as they like.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let skipped = ["pts", "shm", "fd", "mqueue", ".lxc", "console", ".udev"];
            let is_skipped = dir == Path::new("/dev")
                && entry.file_name().to_str().is_some_and(|name| skipped.contains(&name));
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_skipped => waiting.push(path),
                Ok(kind) if !kind.is_symlink() && !is_skipped => {
                    found.extend(node(&path).ok().flatten());
                }
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn node(path: &Path) -> io::Result<Option<DeviceNode>> {
    let meta = fs::symlink_metadata(path)?;
    let kind = if meta.file_type().is_block_device() {
        DeviceKind::Block
    } else if meta.file_type().is_char_device() {
        DeviceKind::Char
    } else {
        return Ok(None);
    };
    Ok(Some(DeviceNode {
        path: path.to_owned(),
        kind,
        major: major(meta.rdev()),
        minor: minor(meta.rdev()),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
    }))
}
