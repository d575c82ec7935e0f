//! What is mounted where, and in which order.
//!
//! ```text
//!  defaults, minus those a user mount replaces     /proc /dev /dev/pts … /sys/fs/cgroup
//!  then the user's, by depth                       pod files, image volumes, request, CDI
//! ```
//!
//! **Invariant:** no user mount is hidden by a later one that lies above it. The defaults come
//! first as a block: who binds the host's `/sys` wants the host's `/sys/fs/cgroup` in it, not ours.

use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::Mount;

use crate::{
    builder::Inputs,
    error::{OciError, Result},
    facts::{CgroupVersion, Kernel, SourceFacts, SourcePropagation},
    namespaces::mappings_to_spec,
    process,
    request::{
        ContainerRequest, IdMappings, ImageFacts, MountRequest, MountSource, NamespaceMode,
        Propagation,
    },
    user::maps,
};

/// The group of terminals, by convention.
const TTY_GROUP: u32 = 5;
/// What Docker gives a container of its own, and CRI engines give a pod.
const SHM_SIZE: u64 = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Mounts {
    defaults: Vec<Mount>,
    user: Vec<Mount>,
    /// What the root file system needs so that mounts travel as asked.
    pub(crate) root_propagation: Option<&'static str>,
}

impl Mounts {
    /// `base` are a base spec's; without one ours are used.
    pub(crate) fn build(inputs: &Inputs<'_>, base: Option<Vec<Mount>>) -> Result<Self> {
        let defaults = base.unwrap_or_else(|| ordinary(inputs));
        let mut mounts = Self { defaults, ..Self::default() };
        mounts.defaults.retain(|mount| !is(mount, "/run"));
        if !mounts.defaults.iter().any(|mount| is(mount, "/sys/fs/cgroup")) {
            mounts.defaults.push(cgroup(inputs));
        }
        mounts.fit_to_namespaces(inputs)?;
        if inputs.request.security.privileged {
            mounts.defaults.iter_mut().for_each(open_to_the_privileged);
        }
        mounts.add_pod_files(inputs)?;
        mounts.add_volumes(inputs)?;
        mounts.add_requested(inputs)?;
        mounts.add_init(inputs)?;
        Ok(mounts)
    }

    /// Those of a spec, which are in order.
    pub(crate) fn of(all: Vec<Mount>) -> Self {
        Self { defaults: all, ..Self::default() }
    }

    /// Takes the place of whatever is there.
    pub(crate) fn replace(&mut self, mount: Mount) {
        self.user.retain(|other| clean(other.destination()) != clean(mount.destination()));
        self.user.push(mount);
    }

    pub(crate) fn finish(mut self) -> Vec<Mount> {
        let own_dev = self.user.iter().any(|mount| is(mount, "/dev"));
        let user = &self.user;
        self.defaults.retain(|default| {
            let to = default.destination();
            let replaced = user.iter().any(|mount| clean(mount.destination()) == clean(to));
            let inside_own_dev = own_dev && to.starts_with("/dev");
            !replaced && !inside_own_dev
        });
        self.user.sort_by_key(|mount| clean(mount.destination()).components().count());
        self.defaults.append(&mut self.user);
        self.defaults
    }

    fn fit_to_namespaces(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        let Some(mapping) = &inputs.pod.mapping else { return Ok(()) };
        if !maps(&mapping.gids, TTY_GROUP) {
            for mount in self.defaults.iter_mut().filter(|mount| is(mount, "/dev/pts")) {
                edit_options(mount, |options| options.retain(|o| !o.starts_with("gid=")));
            }
        }
        // A sysfs of a network namespace that belongs to the host is refused to others.
        if inputs.pod.namespaces.network.is_none() {
            if !inputs.handler.abilities.recursive_readonly {
                return Err(inputs.unable("security.namespaces.user"));
            }
            self.defaults.retain(|mount| !is(mount, "/sys"));
            let options = ["rbind", "rro", "nosuid", "nodev", "noexec"];
            let at = self.defaults.iter().position(|m| m.destination().starts_with("/sys"));
            let sys = mount("/sys", "bind", "/sys", &options);
            self.defaults.insert(at.unwrap_or(self.defaults.len()), sys);
        }
        Ok(())
    }

    fn add_pod_files(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        let files = &inputs.pod.files;
        let mode = if inputs.request.security.readonly_rootfs { "ro" } else { "rw" };
        for (to, from) in [
            ("/etc/hostname", &files.hostname),
            ("/etc/hosts", &files.hosts),
            ("/etc/resolv.conf", &files.resolv_conf),
        ] {
            let Some(from) = from.as_ref().filter(|_| !covers(inputs.request, to)) else {
                continue;
            };
            let mut file = mount(to, "bind", from, &["rbind", "rprivate", mode]);
            // Without this they belong to nobody inside; all can read them all the same.
            if let Some(mapping) = &inputs.pod.mapping
                && inputs.handler.abilities.idmapped_mounts
            {
                set_mapping(&mut file, mapping)?;
            }
            self.user.push(file);
        }
        // Who has an IPC namespace of its own has shared memory of its own: the default mount.
        if let Some(shm) = &files.shm
            && inputs.request.security.namespaces.ipc != NamespaceMode::Container
            && !covers(inputs.request, "/dev/shm")
        {
            self.user.push(mount("/dev/shm", "bind", shm, &["rbind", "rprivate", "rw"]));
        }
        Ok(())
    }

    fn add_volumes(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        for to in image_volumes(inputs.request, inputs.image) {
            let Some(from) = inputs.container.volumes.get(&to) else {
                return Err(OciError::Missing { what: format!("volume {}", to.display()) });
            };
            self.user.push(mount(&to, "bind", from, &["rbind", "rprivate", "rw"]));
        }
        Ok(())
    }

    fn add_requested(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        let (asked, sources) = (&inputs.request.mounts, &inputs.container.sources);
        if asked.len() != sources.len() {
            let what = format!("{} of {} mount sources", sources.len(), asked.len());
            return Err(OciError::Missing { what });
        }
        for (i, (request, source)) in asked.iter().zip(sources).enumerate() {
            let at = At { request, source, field: format!("mounts[{i}]") };
            let mount = at.build(inputs)?;
            self.root_propagation = root_propagation(self.root_propagation, request.propagation);
            self.user.push(mount);
        }
        Ok(())
    }

    fn add_init(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        if !process::runs_init(inputs.request) {
            return Ok(());
        }
        let Some(init) = &inputs.container.init else {
            return Err(OciError::Missing { what: "the init program".to_owned() });
        };
        self.replace(mount(process::INIT, "bind", init, &["bind", "ro"]));
        Ok(())
    }
}

/// The image's volumes this container needs a directory for, those the request covers aside.
pub fn image_volumes(request: &ContainerRequest, image: &ImageFacts) -> Vec<PathBuf> {
    let volumes = image.volumes.iter().map(|volume| clean(volume));
    volumes.filter(|to| !covers(request, to) && to != Path::new("/")).collect()
}

fn covers(request: &ContainerRequest, path: impl AsRef<Path>) -> bool {
    request.mounts.iter().any(|mount| clean(&mount.container_path) == path.as_ref())
}

// === one of the request ===

struct At<'a> {
    request: &'a MountRequest,
    source: &'a SourceFacts,
    field: String,
}

impl At<'_> {
    fn build(&self, inputs: &Inputs<'_>) -> Result<Mount> {
        let to = self.destination()?;
        self.check_options()?;
        let extra = self.request.options.iter().map(String::as_str);
        if self.request.source == MountSource::Tmpfs {
            let mode = if self.request.readonly { "ro" } else { "rw" };
            let options: Vec<&str> = ["noexec", "nosuid", "nodev", mode]
                .into_iter()
                .filter(|default| !overridden(default, &self.request.options))
                .chain(extra)
                .collect();
            return Ok(mount(&to, "tmpfs", "tmpfs", &options));
        }
        let mut options = vec!["rbind", self.propagation()?, self.writability(inputs)?];
        options.extend(extra);
        let mut bind = mount(&to, "bind", &self.source.path, &options);
        // An image was shown with the pod's ids already.
        let of_image = matches!(self.request.source, MountSource::Image { .. });
        if let Some(mapping) = self.request.mapping.as_ref().filter(|_| !of_image) {
            self.check_mapping(inputs)?;
            set_mapping(&mut bind, mapping)?;
        }
        Ok(bind)
    }

    fn invalid(&self, name: &str, why: impl Into<String>) -> OciError {
        OciError::invalid(format!("{}.{name}", self.field), why)
    }

    fn destination(&self) -> Result<PathBuf> {
        let to = &self.request.container_path;
        if !to.is_absolute() {
            let why = format!("{:?} is not an absolute path", to.display());
            return Err(self.invalid("container_path", why));
        }
        let to = clean(to);
        if to == Path::new("/") {
            return Err(self.invalid("container_path", "the root cannot be mounted over"));
        }
        Ok(to)
    }

    fn propagation(&self) -> Result<&'static str> {
        use SourcePropagation as Source;
        match (self.request.propagation, self.source.propagation) {
            (Propagation::Private, _) => Ok("rprivate"),
            (Propagation::HostToContainer, Source::Shared | Source::Slave) => Ok("rslave"),
            (Propagation::Bidirectional, Source::Shared) => Ok("rshared"),
            (Propagation::HostToContainer, Source::Private) => {
                Err(self.unshared("not on a shared or slave mount"))
            }
            (Propagation::Bidirectional, _) => Err(self.unshared("not on a shared mount")),
        }
    }

    fn unshared(&self, why: &str) -> OciError {
        self.invalid("propagation", format!("{} is {why}", self.source.path.display()))
    }

    fn writability(&self, inputs: &Inputs<'_>) -> Result<&'static str> {
        let request = self.request;
        if matches!(request.source, MountSource::Image { .. }) && !request.readonly {
            return Err(self.invalid("readonly", "an image can only be mounted read-only"));
        }
        match (request.readonly, request.recursive_readonly) {
            (true, false) => Ok("ro"),
            (false, false) => Ok("rw"),
            (false, true) => Err(self.invalid("recursive_readonly", "needs readonly beside it")),
            (true, true) if request.propagation != Propagation::Private => {
                Err(self.invalid("recursive_readonly", "needs private propagation"))
            }
            (true, true) if !inputs.handler.abilities.recursive_readonly => {
                Err(OciError::RecursiveReadonly {
                    field: format!("{}.recursive_readonly", self.field),
                    handler: inputs.handler.name.clone(),
                })
            }
            (true, true) => Ok("rro"),
        }
    }

    fn check_mapping(&self, inputs: &Inputs<'_>) -> Result<()> {
        let field = format!("{}.mapping", self.field);
        if inputs.host.kernel < (Kernel { major: 5, minor: 12 }) {
            return Err(OciError::Host { field, what: "mounting with mapped ids" });
        }
        if !inputs.handler.abilities.idmapped_mounts {
            return Err(inputs.unable(&field));
        }
        Ok(())
    }

    /// An option of the kind `ro` or `rbind` would undo what the other fields say.
    fn check_options(&self) -> Result<()> {
        const FLAGS: [&str; 12] = [
            "dev",
            "exec",
            "noatime",
            "nodev",
            "nodiratime",
            "noexec",
            "norelatime",
            "nosuid",
            "nosymfollow",
            "relatime",
            "strictatime",
            "suid",
        ];
        const TMPFS: [&str; 7] =
            ["size=", "mode=", "uid=", "gid=", "nr_inodes=", "nr_blocks=", "huge="];
        let tmpfs = self.request.source == MountSource::Tmpfs;
        let known = |option: &str| {
            FLAGS.contains(&option)
                || tmpfs
                    && (["ro", "rw"].contains(&option)
                        || TMPFS.iter().any(|prefix| option.starts_with(prefix)))
        };
        match self.request.options.iter().position(|option| !known(option)) {
            Some(i) => {
                let why = format!("{:?} is not an option here", self.request.options[i]);
                Err(self.invalid(&format!("options[{i}]"), why))
            }
            None => Ok(()),
        }
    }
}

/// `exec` undoes `noexec`.
fn overridden(default: &str, options: &[String]) -> bool {
    let opposite = match default {
        "rw" => "ro",
        "ro" => "rw",
        no => no.trim_start_matches("no"),
    };
    options.iter().any(|option| option == opposite || option == default)
}

fn root_propagation(so_far: Option<&'static str>, asked: Propagation) -> Option<&'static str> {
    match (so_far, asked) {
        (_, Propagation::Bidirectional) => Some("rshared"),
        (Some("rshared"), _) | (_, Propagation::Private) => so_far,
        (_, Propagation::HostToContainer) => Some("rslave"),
    }
}

// === defaults ===

fn ordinary(inputs: &Inputs<'_>) -> Vec<Mount> {
    let shm_size = format!("size={}k", inputs.request.shm_size.unwrap_or(SHM_SIZE).div_ceil(1024));
    let pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    let dev = ["nosuid", "strictatime", "mode=755", "size=65536k"];
    let shm = ["nosuid", "noexec", "nodev", "mode=1777", &shm_size];
    vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &dev),
        mount("/dev/pts", "devpts", "devpts", &pts),
        mount("/dev/shm", "tmpfs", "shm", &shm),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ]
}

fn cgroup(inputs: &Inputs<'_>) -> Mount {
    let host = &inputs.host.cgroup;
    let v2 = host.version == CgroupVersion::V2;
    let mode = if inputs.handler.cgroup_writable && v2 { "rw" } else { "ro" };
    let mut options = vec!["nosuid", "noexec", "nodev", "relatime", mode];
    // The options of v2 belong to the one superblock of a cgroup namespace: mounting it again in
    // the host's namespace without them would take them away from the host.
    let security = &inputs.request.security;
    let shares_the_hosts = match security.namespaces.cgroup {
        None => security.privileged,
        Some(mode) => mode != NamespaceMode::Container,
    };
    if v2 && shares_the_hosts {
        options.extend(host.mount_options.iter().map(String::as_str));
    }
    mount("/sys/fs/cgroup", "cgroup", "cgroup", &options)
}

fn open_to_the_privileged(mount: &mut Mount) {
    let bound_sys = is(mount, "/sys");
    if bound_sys || matches!(mount.typ().as_deref(), Some("sysfs" | "cgroup")) {
        edit_options(mount, |options| {
            for option in options.iter_mut().filter(|o| ["ro", "rro"].contains(&o.as_str())) {
                "rw".clone_into(option);
            }
        });
    }
}

// === pieces ===

pub(crate) fn mount(
    to: impl AsRef<Path>,
    typ: &str,
    from: impl AsRef<Path>,
    options: &[&str],
) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(to.as_ref().to_owned())
        .set_typ(Some(typ.to_owned()))
        .set_source(Some(from.as_ref().to_owned()))
        .set_options(Some(options.iter().map(|&option| option.to_owned()).collect()));
    mount
}

pub(crate) fn set_mapping(mount: &mut Mount, mapping: &IdMappings) -> Result<()> {
    mount.set_uid_mappings(Some(mappings_to_spec(&mapping.uids)?));
    mount.set_gid_mappings(Some(mappings_to_spec(&mapping.gids)?));
    Ok(())
}

fn is(mount: &Mount, path: &str) -> bool {
    clean(mount.destination()) == Path::new(path)
}

fn edit_options(mount: &mut Mount, edit: impl FnOnce(&mut Vec<String>)) {
    if let Some(options) = mount.options_mut() {
        edit(options);
    }
}

/// Without `.`, `..` and doubled slashes, by the text alone: what is in the image does not count.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}
