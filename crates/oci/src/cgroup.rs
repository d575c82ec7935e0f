//! Where in the cgroup tree a container lives, as the OCI runtime is told and as the files are
//! found.
//!
//! With cgroupfs both are one path. systemd is told `slice:prefix:name` and makes
//! `<slice's path>/prefix-name.scope` of it, where the path of `a-b.slice` is
//! `a.slice/a-b.slice`.

use std::path::{Path, PathBuf};

use base::{Id, cgroup::slice_dir};

use crate::{
    error::{OciError, Result},
    facts::CgroupDriver,
};

/// Below this when the front end does not say where; also what our scopes are called by.
const OURS: &str = "longshore";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPath {
    /// For `linux.cgroupsPath`.
    pub spec: PathBuf,
    /// Below the root of each hierarchy, from `/`.
    pub dir: PathBuf,
}

/// The cgroup all of a pod's containers are in. A parent that was given is the pod's own; the
/// kubelet makes it.
pub fn pod_cgroup_path(driver: CgroupDriver, parent: Option<&str>, pod: &Id) -> Result<PathBuf> {
    match (driver, parent) {
        (CgroupDriver::Cgroupfs, Some(parent)) => plain(parent),
        (CgroupDriver::Cgroupfs, None) => Ok(Path::new("/").join(OURS).join(pod.as_str())),
        (CgroupDriver::Systemd, parent) => Ok(slice_dir(&slice(parent, pod)?)),
    }
}

/// Returns the cgroup of the pod's own first process, inside the pod's: a plain directory with
/// both drivers, because that process is nobody's unit.
pub fn sandbox_cgroup_path(
    driver: CgroupDriver,
    parent: Option<&str>,
    pod: &Id,
) -> Result<PathBuf> {
    Ok(pod_cgroup_path(driver, parent, pod)?.join(pod.as_str()))
}

/// The container's own cgroup, inside the pod's.
pub fn container_cgroup_path(
    driver: CgroupDriver,
    parent: Option<&str>,
    pod: &Id,
    container: &Id,
) -> Result<CgroupPath> {
    let pod_dir = pod_cgroup_path(driver, parent, pod)?;
    match driver {
        CgroupDriver::Cgroupfs => {
            let path = pod_dir.join(container.as_str());
            Ok(CgroupPath { spec: path.clone(), dir: path })
        }
        CgroupDriver::Systemd => Ok(CgroupPath {
            spec: format!("{}:{OURS}:{container}", slice(parent, pod)?).into(),
            dir: pod_dir.join(format!("{OURS}-{container}.scope")),
        }),
    }
}

fn plain(parent: &str) -> Result<PathBuf> {
    let mut path = PathBuf::from("/");
    for part in parent.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." || part.contains('\0') {
            return Err(invalid(parent, "leaves the tree"));
        }
        path.push(part);
    }
    Ok(path)
}

/// The kubelet gives a slice with all the slices above it; systemd wants the last name.
fn slice(parent: Option<&str>, pod: &Id) -> Result<String> {
    let Some(parent) = parent else { return Ok(format!("{OURS}-{pod}.slice")) };
    let name = parent.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let Some(stem) = name.strip_suffix(".slice") else {
        return Err(invalid(parent, "is not a slice, and systemd owns the cgroups here"));
    };
    let sound = stem == "-" || !stem.split('-').any(str::is_empty);
    if !sound || stem.contains([':', '\0']) {
        return Err(invalid(parent, "is not the name of a slice"));
    }
    Ok(name.to_owned())
}

fn invalid(parent: &str, why: &str) -> OciError {
    OciError::invalid("cgroup_parent", format!("{parent:?} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> Id {
        digit.to_string().repeat(64).parse().unwrap()
    }

    #[track_caller]
    fn check(driver: CgroupDriver, parent: Option<&str>, want: Result<(&str, &str), &str>) {
        let (pod, container) = (id('a'), id('b'));
        let got = container_cgroup_path(driver, parent, &pod, &container);
        let short = |path: PathBuf| {
            path.to_string_lossy().replace(pod.as_str(), "P").replace(container.as_str(), "C")
        };
        let got = got.map(|path| (short(path.spec), short(path.dir))).map_err(|e| e.to_string());
        let want = want.map(|(spec, dir)| (spec.to_owned(), dir.to_owned()));
        assert_eq!(got, want.map_err(|why| format!("cgroup_parent: {why}")), "{parent:?}");
    }

    #[test]
    fn cgroupfs() {
        let check = |parent, want| check(CgroupDriver::Cgroupfs, parent, want);
        check(None, Ok(("/longshore/P/C", "/longshore/P/C")));
        check(Some("/kubepods/pod1"), Ok(("/kubepods/pod1/C", "/kubepods/pod1/C")));
        check(Some("kubepods//./pod1/"), Ok(("/kubepods/pod1/C", "/kubepods/pod1/C")));
        check(Some("/a.slice"), Ok(("/a.slice/C", "/a.slice/C")));
        check(Some("/a/../../b"), Err("\"/a/../../b\" leaves the tree"));
    }

    #[test]
    fn the_pods_first_process_is_below_the_pod() {
        let check = |driver, parent, want: &str| {
            let got = sandbox_cgroup_path(driver, parent, &id('a')).unwrap();
            assert_eq!(got.to_string_lossy().replace(id('a').as_str(), "P"), want);
        };
        check(CgroupDriver::Cgroupfs, None, "/longshore/P/P");
        check(CgroupDriver::Cgroupfs, Some("/kubepods/pod1"), "/kubepods/pod1/P");
        check(CgroupDriver::Systemd, Some("a-b.slice"), "/a.slice/a-b.slice/P");
    }

    #[test]
    fn systemd() {
        let check = |parent, want| check(CgroupDriver::Systemd, parent, want);
        let own = "/longshore.slice/longshore-P.slice/longshore-C.scope";
        check(None, Ok(("longshore-P.slice:longshore:C", own)));
        let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice";
        let scope = format!("{pod}/longshore-C.scope");
        let spec = "kubepods-burstable-pod1.slice:longshore:C";
        check(Some(pod), Ok((spec, &scope)));
        check(Some("kubepods-burstable-pod1.slice"), Ok((spec, &scope)));
        check(Some("-.slice"), Ok(("-.slice:longshore:C", "/longshore-C.scope")));
        let why = "\"/kubepods/pod1\" is not a slice, and systemd owns the cgroups here";
        check(Some("/kubepods/pod1"), Err(why));
        check(Some("a--b.slice"), Err("\"a--b.slice\" is not the name of a slice"));
        check(Some(".slice"), Err("\".slice\" is not the name of a slice"));
    }
}
