//! Which hierarchy holds which controller.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Component, Path, PathBuf},
};

use crate::{
    error::{Result, on},
    host::FsType,
    mount::Table,
};

const ROOT: &str = "/sys/fs/cgroup";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    V1,
    /// v1 hierarchies with a v2 one beside them, which may hold controllers too.
    Hybrid,
    V2,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V1 => "v1",
            Self::Hybrid => "hybrid",
            Self::V2 => "v2",
        })
    }
}

/// A mounted hierarchy. `root` is the group one sees at `mount`: `/`, except in a
/// container that was given a part of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub version: Version,
    pub mount: PathBuf,
    pub root: PathBuf,
}

impl Hierarchy {
    /// The directory of a group, always inside the hierarchy: groups have no `..`, and one
    /// in a name somebody gave us is left out.
    pub fn dir(&self, group: &Path) -> PathBuf {
        let below = group.strip_prefix(&self.root).unwrap_or(group);
        let names = below.components().filter(|part| matches!(part, Component::Normal(_)));
        self.mount.iter().chain(names.map(|part| part.as_os_str())).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub mode: Mode,
    /// Only what is really there: no controller may be taken for granted.
    pub controllers: BTreeMap<String, Hierarchy>,
    /// v1 hierarchies that only group, as systemd's: OCI runtimes make groups there too.
    pub named: Vec<Hierarchy>,
    pub unified: Option<Hierarchy>,
}

impl Layout {
    pub fn detect() -> Result<Self> {
        Self::detect_at(Path::new(ROOT))
    }

    pub fn detect_at(root: &Path) -> Result<Self> {
        let (kind, table) = (FsType::of(root)?, Table::own()?);
        let unified = unified(root, kind, &table);
        let available = match &unified {
            Some(hierarchy) => {
                let path = hierarchy.mount.join("cgroup.controllers");
                fs::read_to_string(&path).map_err(on("read", &path))?
            }
            None => String::new(),
        };
        Ok(Self::resolve(root, kind, &table, &available))
    }

    /// The pure part: `kind` is the type of `root`, `available` the `cgroup.controllers`
    /// of the v2 hierarchy (empty without one).
    pub fn resolve(root: &Path, kind: FsType, table: &Table, available: &str) -> Self {
        let unified = unified(root, kind, table);
        let mode = match (kind, &unified) {
            (FsType::CGROUP2, _) => Mode::V2,
            (_, Some(_)) => Mode::Hybrid,
            (_, None) => Mode::V1,
        };
        let (mut controllers, mut named) = (BTreeMap::new(), Vec::new());
        if mode != Mode::V2 {
            for entry in table.below(root).filter(|entry| entry.fs_type == "cgroup") {
                let (mount, root) = (entry.point.clone(), entry.root.clone());
                let hierarchy = Hierarchy { version: Version::V1, mount, root };
                for option in entry.super_options.split(',') {
                    if is_v1(option) {
                        let known = controllers.entry(option.to_owned());
                        known.or_insert_with(|| hierarchy.clone());
                    } else if option.starts_with("name=") {
                        named.push(hierarchy.clone());
                    }
                }
            }
        }
        if let Some(hierarchy) = &unified {
            for name in available.split_whitespace() {
                controllers.entry(name.to_owned()).or_insert_with(|| hierarchy.clone());
            }
        }
        Self { mode, controllers, named, unified }
    }

    pub fn version_of(&self, controller: &str) -> Option<Version> {
        self.controllers.get(controller).map(|hierarchy| hierarchy.version)
    }

    /// Where a process is in the hierarchy that says who is in a group.
    pub fn path_of(&self, memberships: &[Membership]) -> Option<PathBuf> {
        let (_, names) = self.hierarchies().into_iter().next()?;
        let by_name =
            memberships.iter().find(|m| m.controllers.iter().any(|own| names.contains(own)));
        let found = by_name.or_else(|| memberships.iter().find(|m| m.is_unified()));
        found.map(|membership| membership.path.clone())
    }

    /// Each hierarchy once, with its controllers, if it has any. The first is the one to ask who is in
    /// a group: `pids` where there is a choice, for it is the one nobody leaves out.
    pub fn hierarchies(&self) -> Vec<(Hierarchy, Vec<String>)> {
        let mut all: Vec<(Hierarchy, Vec<String>)> = Vec::new();
        for (name, hierarchy) in &self.controllers {
            match all.iter_mut().find(|(known, _)| known == hierarchy) {
                Some((_, names)) => names.push(name.clone()),
                None => all.push((hierarchy.clone(), vec![name.clone()])),
            }
        }
        all.extend(self.named.iter().map(|hierarchy| (hierarchy.clone(), Vec::new())));
        if let Some(unified) = &self.unified
            && !all.iter().any(|(known, _)| known == unified)
        {
            all.push((unified.clone(), Vec::new()));
        }
        let rank = |names: &[String]| {
            let of = |wanted: &str| names.iter().any(|name| name == wanted);
            ["pids", "memory", "freezer", "cpu"].into_iter().position(of).unwrap_or(usize::MAX)
        };
        all.sort_by_key(|(hierarchy, names)| {
            // On a hybrid host processes are placed by the v1 side.
            (self.mode != Mode::V2 && hierarchy.version == Version::V2, rank(names))
        });
        all
    }
}

fn unified(root: &Path, kind: FsType, table: &Table) -> Option<Hierarchy> {
    let entry = match kind {
        // Of mounts on one point the last is the one to be seen.
        FsType::CGROUP2 => table.entries.iter().rfind(|entry| entry.point == root),
        _ => table.below(root).find(|entry| entry.fs_type == "cgroup2"),
    }?;
    Some(Hierarchy { version: Version::V2, mount: entry.point.clone(), root: entry.root.clone() })
}

/// Controllers as they appear among the mount options of a v1 hierarchy.
fn is_v1(option: &str) -> bool {
    matches!(
        option,
        "blkio"
            | "cpu"
            | "cpuacct"
            | "cpuset"
            | "devices"
            | "freezer"
            | "hugetlb"
            | "memory"
            | "misc"
            | "net_cls"
            | "net_prio"
            | "perf_event"
            | "pids"
            | "rdma"
    )
}

/// Where a process is in one hierarchy; no controllers means the v2 one (or a v1 one
/// with only a name).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub hierarchy: u32,
    pub controllers: Vec<String>,
    pub path: PathBuf,
}

impl Membership {
    pub fn of(pid: u32) -> Result<Vec<Self>> {
        let path = format!("/proc/{pid}/cgroup");
        Ok(memberships(&fs::read_to_string(&path).map_err(on("read", &path))?))
    }

    pub fn is_unified(&self) -> bool {
        self.hierarchy == 0
    }
}

/// The text of `/proc/<pid>/cgroup`: lines `id:controllers:path`.
pub fn memberships(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            // The path may hold colons, so it is what remains.
            let mut fields = line.splitn(3, ':');
            let hierarchy = fields.next()?.parse().ok()?;
            let controllers = fields.next()?.split(',').filter(|name| !name.is_empty());
            let controllers = controllers.map(str::to_owned).collect();
            Some(Membership { hierarchy, controllers, path: fields.next()?.into() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V2: &str = "22 1 0:21 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn layout(table: &str, kind: FsType, available: &str) -> Layout {
        Layout::resolve(Path::new(ROOT), kind, &Table::parse(table.as_bytes()).unwrap(), available)
    }

    fn show(layout: &Layout) -> String {
        let one = |(name, h): (&String, &Hierarchy)| {
            format!("{name}={:?}@{}", h.version, h.mount.display())
        };
        let all: Vec<_> = layout.controllers.iter().map(one).collect();
        format!("{}: {}", layout.mode, all.join(" ").replace("/sys/fs/cgroup", "~"))
    }

    #[test]
    fn the_type_of_the_root_decides() {
        let pure = layout(V2, FsType::CGROUP2, "cpu memory\n");
        assert_eq!(show(&pure), "v2: cpu=V2@~ memory=V2@~");
        let hybrid = layout(HYBRID, FsType::TMPFS, "hugetlb\n");
        assert_eq!(
            show(&hybrid),
            "hybrid: cpu=V1@~/cpu,cpuacct cpuacct=V1@~/cpu,cpuacct hugetlb=V2@~/unified \
             memory=V1@~/memory pids=V1@~/pids"
        );
        let v1 = HYBRID.lines().filter(|l| !l.contains("cgroup2")).map(|l| format!("{l}\n"));
        let v1 = layout(&v1.collect::<String>(), FsType::TMPFS, "");
        assert_eq!((v1.mode, v1.unified.is_none(), v1.controllers.len()), (Mode::V1, true, 4));
        assert_eq!(show(&layout("", FsType::TMPFS, "")), "v1: ");
    }

    #[test]
    fn a_cgroup2_mount_elsewhere_means_nothing() {
        let elsewhere = HYBRID.replace("/sys/fs/cgroup/unified", "/mnt/test");
        assert_eq!(layout(&elsewhere, FsType::TMPFS, "").mode, Mode::V1);
    }

    #[test]
    fn hierarchies_come_once_and_pids_first() {
        let names = |layout: &Layout| -> Vec<String> {
            let all = layout.hierarchies().into_iter().map(|(hierarchy, names)| {
                let mount = hierarchy.mount.strip_prefix(ROOT).unwrap();
                format!("{}:{}", mount.display(), names.join("+"))
            });
            all.collect()
        };
        assert_eq!(
            names(&layout(HYBRID, FsType::TMPFS, "")),
            ["pids:pids", "memory:memory", "cpu,cpuacct:cpu+cpuacct", "systemd:", "unified:"]
        );
        assert_eq!(names(&layout(V2, FsType::CGROUP2, "cpu pids")), [":cpu+pids"]);
        assert_eq!(names(&layout(V2, FsType::CGROUP2, "")), [":"]);
    }

    #[test]
    fn groups_have_directories() {
        let at = |root: &str, group: &str| {
            let hierarchy =
                Hierarchy { version: Version::V1, mount: "/m".into(), root: root.into() };
            hierarchy.dir(Path::new(group)).display().to_string()
        };
        assert_eq!(at("/", "/a/b"), "/m/a/b");
        assert_eq!(at("/docker/1", "/docker/1/a"), "/m/a");
        assert_eq!(at("/docker/1", "/docker/12"), "/m/docker/12");
        assert_eq!(at("/", "a"), "/m/a");
        assert_eq!(at("/", "/"), "/m");
        assert_eq!(at("/", "/../a/../../b/."), "/m/a/b");
    }

    #[test]
    fn memberships_of_both_versions() {
        let text = "9:name=systemd:/\n4:memory:/a:b\n2:cpu,cpuacct:/c\n0::/d\n";
        let all = memberships(text);
        assert_eq!(all[1].path, Path::new("/a:b"));
        assert_eq!(all[2].controllers, ["cpu", "cpuacct"]);
        assert!(all[3].is_unified() && all[3].controllers.is_empty());
        assert!(!Membership::of(std::process::id()).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([0-9]{0,3}:[a-z,=]{0,8}:?[/a-z:]{0,8}\n?){0,4}") {
            let _ = memberships(&text);
        }
    }
}
