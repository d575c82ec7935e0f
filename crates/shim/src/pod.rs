//! The namespaces of a pod: made together, pinned, furnished.
//!
//! Without a shared PID namespace a child that only waits holds them until they are pinned.
//! With one, they are made together with its PID 1, which lives in all of them: a container
//! that may look at `/proc/1/ns` finds its own namespaces there, not the host's.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use api_shim::start::{Description, IdMap, Namespaces};
use rustix::io::Errno;
use sys::{
    cgroup::{Cgroup, Layout},
    idmap::{IdMaps, IdRange},
    namespace::{self, Child, Holder, Namespace, Spaces},
    process, sysctl,
};

use crate::{
    cgroup,
    error::{Error, Result},
    note, pid1,
};

/// Dropping it releases what is pinned and ends PID 1.
#[derive(Debug)]
pub(crate) struct Pod {
    first: Option<First>,
    /// That of PID 1. Dropped after it.
    group: Option<FirstGroup>,
    /// Has done its work once all is pinned.
    holder: Option<Holder>,
    pins: Pins,
}

/// PID 1 of a shared PID namespace.
#[derive(Debug)]
struct First(Child);

/// The cgroup of PID 1, which goes with it.
#[derive(Debug)]
struct FirstGroup {
    layout: Layout,
    path: PathBuf,
}

#[derive(Debug, Default)]
struct Pins(Vec<PathBuf>);

impl Pod {
    /// Only for a process with one thread.
    pub(crate) fn make(description: &Description) -> Result<Self> {
        let wanted = &description.namespaces;
        let spaces = spaces(wanted)?;
        let mut pod = Self { first: None, group: None, holder: None, pins: Pins::default() };
        if wanted.pid {
            let (group, opened) = FirstGroup::make(description)?.unzip();
            pod.group = group;
            let score = description.pid1.oom_score_adj;
            let first = First(pid1::spawn(spaces, |pid| place(pid, opened, score))?);
            let first = pod.first.insert(first);
            pod.pins.pin_all(wanted, |kind, path| first.0.pin(kind, path))?;
        } else if spaces.user.is_some() || !spaces.others.is_empty() {
            let holder = Holder::park(&spaces).map_err(Error::io("make namespaces"))?;
            pod.pins.pin_all(wanted, |kind, path| holder.pin(kind, path))?;
            pod.holder = Some(holder);
        }
        furnish(description)?;
        Ok(pod)
    }

    /// Its child takes the kernel a few milliseconds to end: not while somebody waits.
    pub(crate) fn settle(&mut self) {
        self.holder = None;
    }

    pub(crate) fn first_pid(&self) -> Option<u32> {
        self.first.as_ref().map(|first| first.0.pid)
    }

    /// Returns a descriptor that becomes readable when PID 1 has ended; `None` without one.
    pub(crate) fn watch_first(&self) -> Result<Option<OwnedFd>> {
        let fd = self.first.as_ref().map(|first| first.0.pidfd.as_fd().try_clone_to_owned());
        fd.transpose().map_err(Error::io("watch PID 1"))
    }

    /// Ends PID 1 and releases the namespaces. Every step is tried; the first failure is
    /// told, and what is left is tried again when the pod is dropped.
    pub(crate) fn release(&mut self) -> Result<()> {
        self.first = None;
        self.group = None;
        self.pins.release()
    }

    /// Leaves everything to whoever cleans up after the shim, as if it had been killed: the pod
    /// has to be taken off its networks before their namespace goes.
    pub(crate) fn abandon(&mut self) {
        self.pins.0.clear();
        if let Some(group) = self.group.take() {
            group.keep();
        }
    }
}

/// The controllers whose figures and limits are the pod's.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "memory", "pids"];
/// Within this the kernel lets go of the cgroup of a process that has ended.
const GROUP_LIMIT: Duration = Duration::from_secs(1);

impl FirstGroup {
    fn make(description: &Description) -> Result<Option<(Self, Cgroup)>> {
        let Some(path) = description.pid1.cgroup.clone() else { return Ok(None) };
        let layout = cgroup::layout(&description.hierarchies)?;
        let made = Cgroup::create(&layout, &path, &CONTROLLERS);
        // From here on dropping it removes what was made, also a part of it.
        let group = Self { layout, path };
        let made = made.map_err(Error::on("create cgroup", &group.path))?;
        Ok(Some((group, made)))
    }

    fn keep(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for FirstGroup {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let opened = Cgroup::open(&self.layout, &self.path);
        let removed = opened.and_then(|group| group.map_or(Ok(()), |g| g.remove(GROUP_LIMIT)));
        if let Err(error) = removed {
            note::warn(Error::on("remove cgroup", &self.path)(error));
        }
    }
}

fn place(pid: u32, group: Option<Cgroup>, oom_score_adj: Option<i32>) -> Result<()> {
    if let Some(group) = group {
        group.add(pid).map_err(Error::io("put PID 1 into the pod's cgroup"))?;
    }
    match oom_score_adj.map_or(Ok(()), |score| process::set_oom_score_adj(pid, score)) {
        // Without CAP_SYS_RESOURCE it cannot be below ours, which somebody raised meanwhile.
        Err(error) if error.is(Errno::ACCESS) => {
            note::warn(Error::io("set the OOM score of PID 1")(error));
            Ok(())
        }
        set => set.map_err(Error::io("set the OOM score of PID 1")),
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // Fails only for one that has ended; the reaper, where there is one by now, may
        // have been quicker.
        let _ = self.0.pidfd.signal(SIGKILL);
        let _ = self.0.pidfd.wait_end(None);
        let _ = self.0.pidfd.try_wait();
    }
}

const SIGKILL: i32 = 9;

fn spaces(wanted: &Namespaces) -> Result<Spaces> {
    let invalid = |e| Error::Invalid { field: "namespaces.user", why: format!("{e}") };
    let maps = |user: &api_shim::start::UserNs| {
        IdMaps::new(ranges(&user.uids), ranges(&user.gids)).map_err(invalid)
    };
    // PID 1 brings the PID namespace.
    let made = |kind: &Namespace| !matches!(kind, Namespace::User | Namespace::Pid);
    let others = pins(wanted).map(|(kind, _)| kind).filter(made);
    Ok(Spaces { user: wanted.user.as_ref().map(maps).transpose()?, others: others.collect() })
}

fn ranges(maps: &[IdMap]) -> Vec<IdRange> {
    let range =
        |map: &IdMap| IdRange { inside: map.inside, outside: map.outside, count: map.count };
    maps.iter().map(range).collect()
}

/// What is to be pinned where.
fn pins(wanted: &Namespaces) -> impl Iterator<Item = (Namespace, &Path)> {
    let user = wanted.user.as_ref().map(|user| &user.pin);
    [
        (Namespace::User, user),
        (Namespace::Network, wanted.net.as_ref()),
        (Namespace::Ipc, wanted.ipc.as_ref()),
        (Namespace::Uts, wanted.uts.as_ref()),
        (Namespace::Pid, wanted.pid_pin.as_ref().filter(|_| wanted.pid)),
    ]
    .into_iter()
    .filter_map(|(kind, path)| Some((kind, path?.as_path())))
}

// === impl Pins ===

impl Pins {
    fn pin_all(
        &mut self,
        wanted: &Namespaces,
        pin: impl Fn(Namespace, &Path) -> sys::Result<()>,
    ) -> Result<()> {
        for (kind, path) in pins(wanted) {
            pin(kind, path).map_err(Error::io(format!("pin the {} namespace", kind.name())))?;
            self.0.push(path.to_owned());
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        let mut failure = None;
        self.0.retain(|path| match namespace::unpin(path) {
            Ok(()) => false,
            Err(e) => {
                failure.get_or_insert(Error::on("release the namespace", path)(e));
                true
            }
        });
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            note::warn(error);
        }
    }
}

// === what is set inside ===

fn furnish(description: &Description) -> Result<()> {
    let Description { namespaces, hostname, sysctls, .. } = description;
    if hostname.is_none() && sysctls.is_empty() {
        return Ok(());
    }
    if hostname.is_some() && namespaces.uts.is_none() {
        return Err(Error::Invalid {
            field: "hostname",
            why: "the pod has the host's name: it has no UTS namespace".to_owned(),
        });
    }
    let sysctls = sysctl_files(sysctls, namespaces)?;
    let opened: Vec<OwnedFd> = pins(namespaces)
        .filter(|(kind, _)| *kind != Namespace::Pid)
        .map(|(_, path)| namespace::open(path))
        .collect::<sys::Result<_>>()
        .map_err(Error::io("enter the namespaces"))?;
    let joined: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    namespace::in_child(&joined, || {
        if let Some(name) = hostname {
            rustix::system::sethostname(name.as_bytes()).map_err(naming("set the host name"))?;
        }
        for (name, path, value) in &sysctls {
            fs::write(path, value).map_err(naming(&format!("set sysctl {name}={value}")))?;
        }
        Ok(())
    })
    .map_err(Error::io("furnish the pod"))
}

fn naming<E: Into<io::Error>>(step: &str) -> impl FnOnce(E) -> io::Error {
    move |e| {
        let e = e.into();
        io::Error::new(e.kind(), format!("{step}: {e}"))
    }
}

type Sysctl<'a> = (&'a str, PathBuf, &'a str);

fn sysctl_files<'a>(
    sysctls: &'a BTreeMap<String, String>,
    namespaces: &Namespaces,
) -> Result<Vec<Sysctl<'a>>> {
    let check = |(name, value): (&'a String, &'a String)| {
        let invalid =
            |why: &str| Error::Invalid { field: "sysctls", why: format!("{name}: {why}") };
        let path = sysctl::path(name).ok_or_else(|| invalid("is no name"))?;
        let own = match sysctl_namespace(&path) {
            Some(Namespace::Network) => namespaces.net.is_some(),
            Some(Namespace::Ipc) => namespaces.ipc.is_some(),
            Some(_) => namespaces.uts.is_some(),
            None => return Err(invalid("is not of a namespace, it would change the host")),
        };
        if !own {
            return Err(invalid("the pod shares this namespace with the host"));
        }
        Ok((name.as_str(), Path::new(sysctl::DIR).join(path), value.as_str()))
    };
    sysctls.iter().map(check).collect()
}

/// Whose value it is; `None` for those of the whole host.
fn sysctl_namespace(path: &Path) -> Option<Namespace> {
    let mut parts = path.to_str()?.splitn(2, '/');
    match (parts.next()?, parts.next()?) {
        ("net", _) => Some(Namespace::Network),
        ("kernel", "domainname" | "hostname") => Some(Namespace::Uts),
        ("kernel", "sem") => Some(Namespace::Ipc),
        ("kernel", name) if name.starts_with("shm") || name.starts_with("msg") => {
            Some(Namespace::Ipc)
        }
        ("fs", name) if name.starts_with("mqueue/") => Some(Namespace::Ipc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_the_pods_own_is_set() {
        let both =
            Namespaces { net: Some("/n".into()), ipc: Some("/i".into()), ..Namespaces::default() };
        let check = |name: &str, namespaces: &Namespaces, want: &str| {
            let sysctls = BTreeMap::from([(name.to_owned(), "1".to_owned())]);
            let got = match sysctl_files(&sysctls, namespaces) {
                Ok(files) => files[0].1.display().to_string(),
                Err(error) => error.to_string(),
            };
            assert_eq!(got, want);
        };
        check("net.core.somaxconn", &both, "/proc/sys/net/core/somaxconn");
        check("kernel.shm_rmid_forced", &both, "/proc/sys/kernel/shm_rmid_forced");
        check("fs.mqueue.msg_max", &both, "/proc/sys/fs/mqueue/msg_max");
        let shares = "the pod shares this namespace with the host";
        check("net.a", &Namespaces::default(), &format!("sysctls: net.a: {shares}"));
        check("kernel.hostname", &both, &format!("sysctls: kernel.hostname: {shares}"));
        let host = "is not of a namespace, it would change the host";
        check("vm.swappiness", &both, &format!("sysctls: vm.swappiness: {host}"));
        check("kernel.panic", &both, &format!("sysctls: kernel.panic: {host}"));
    }
}
