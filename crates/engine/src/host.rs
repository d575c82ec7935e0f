//! What is so on this host, looked up once.

use std::{collections::BTreeSet, fs, path::Path};

use oci::{Arch, CgroupFacts, CgroupVersion, HostFacts, Kernel, SelinuxContexts};
use sys::{
    cgroup::{Layout, LayoutMode, Version},
    process::Capabilities,
};

use crate::error::{EngineError, Result};

const CONTROLLERS: [&str; 8] =
    ["cpu", "cpuset", "memory", "hugetlb", "pids", "devices", "blkio", "io"];

/// Blocking.
pub fn look() -> Result<HostFacts> {
    let uname = rustix::system::uname();
    let machine = uname.machine().to_string_lossy().into_owned();
    let unknown = |what: &str, value: &str| EngineError::Failed {
        doing: format!("know this host's {what}"),
        why: format!("{value:?} is unknown"),
        kind: base::Kind::Unimplemented,
    };
    let release = uname.release().to_string_lossy().into_owned();
    let capabilities = Capabilities::own()?;
    let own_score = sys::process::oom_score_adj(std::process::id())?;
    let may_lower = capabilities.effective.has("CAP_SYS_RESOURCE");
    Ok(HostFacts {
        hostname: uname.nodename().to_string_lossy().into_owned(),
        capabilities: capabilities.bounding.names().map(str::to_owned).collect(),
        oom_score_floor: (!may_lower).then_some(own_score),
        cgroup: cgroup()?,
        arch: Arch::of_machine(&machine).ok_or_else(|| unknown("machine", &machine))?,
        kernel: Kernel::of_release(&release).ok_or_else(|| unknown("kernel", &release))?,
        seccomp: Path::new("/proc/sys/kernel/seccomp").exists(),
        apparmor: fs::read_to_string("/sys/module/apparmor/parameters/enabled")
            .is_ok_and(|text| text.trim() == "Y"),
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        resctrl: Path::new("/sys/fs/resctrl/schemata").exists(),
    })
}

/// What the policy in force has for containers. Blocking.
pub fn selinux_contexts() -> Option<SelinuxContexts> {
    let etc = Path::new("/etc/selinux");
    fs::metadata("/sys/fs/selinux/enforce").ok()?;
    let config = fs::read_to_string(etc.join("config")).unwrap_or_default();
    let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE="));
    let path = etc.join(policy.unwrap_or("targeted").trim()).join("contexts/lxc_contexts");
    let contexts = SelinuxContexts::parse(&fs::read_to_string(path).ok()?)?;
    // Debian's policy has the file, and not the types that it names.
    let known = |label: &String| fs::write("/sys/fs/selinux/context", label).is_ok();
    contexts.defaults().iter().all(known).then_some(contexts)
}

fn cgroup() -> Result<CgroupFacts> {
    let layout = Layout::detect()?;
    let unified = layout.mode == LayoutMode::V2;
    // On a host of v1 no OCI runtime uses what the v2 side has beside it.
    let in_force = if unified { Version::V2 } else { Version::V1 };
    let controllers: BTreeSet<String> = CONTROLLERS
        .into_iter()
        .filter(|name| layout.version_of(name) == Some(in_force))
        .map(str::to_owned)
        .collect();
    let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
    let swap = if unified {
        // Only non-root groups have the file; ours is as good as any.
        fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.path().join("memory.swap.max").exists())
    } else {
        Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()
    };
    Ok(CgroupFacts { version, controllers, swap, mount_options: Vec::new() })
}
