//! PID 1 of a PID namespace that a pod's containers share.
//!
//! It reaps, and that is all. What makes it delicate is that containers see it: one that
//! may ptrace follows `/proc/1/root`, `/proc/1/cwd`, `/proc/1/fd`, `/proc/1/ns` wherever
//! they lead. So they lead nowhere: an empty read-only root of its own, no descriptors but
//! anonymous pipes, the pod's own namespaces, a user without rights.
//!
//! **Invariant:** no container is created before PID 1 has said that all this is so.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Gid, Uid, WaitOptions, chdir, pivot_root},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use sys::{
    idmap::IdRange,
    mount::{self, Attrs, Depth, Propagation, Tmpfs},
    namespace::{self, Child, Namespace, Spaces, clone_into},
    process,
};

use crate::error::{Error, Result};

/// Nobody's, and not the `nobody` that file servers use.
const UNPRIVILEGED: u32 = 65_535;

/// Makes the namespaces together with their PID 1, which is ready when this returns. `place` is
/// told its number before it does anything, and puts it where it belongs. Only for a process with
/// one thread.
pub(crate) fn spawn(mut spaces: Spaces, place: impl FnOnce(u32) -> Result<()>) -> Result<Child> {
    spaces.others.extend([Namespace::Pid, Namespace::Mount]);
    let uid = unprivileged(spaces.user.as_ref().map(|maps| maps.uids()));
    let gid = unprivileged(spaces.user.as_ref().map(|maps| maps.gids()));
    let (reader, writer) = io::pipe().map_err(Error::io("make a pipe"))?;
    let (placed, mut go) = io::pipe().map_err(Error::io("make a pipe"))?;
    let fds = vec![writer.into(), placed.into()];
    let child = clone_into(&spaces, fds, |fds| live(fds, uid, gid))
        .map_err(Error::io("make namespaces with a PID 1"))?;
    let begun = place(child.pid)
        .and_then(|()| go.write_all(&[GO]).map_err(Error::io("start PID 1")))
        .and_then(|()| await_ready(reader));
    if let Err(error) = begun {
        let _ = child.pidfd.signal(9);
        let _ = child.pidfd.wait();
        return Err(error);
    }
    Ok(child)
}

const GO: u8 = 1;
const READY: u8 = 0;

fn await_ready(mut reader: PipeReader) -> Result<()> {
    let mut said = [0; 256];
    let failure = match reader.read(&mut said) {
        Ok(1) if said[0] == READY => return Ok(()),
        Ok(len) => String::from_utf8_lossy(&said[..len]).into_owned(),
        Err(e) => e.to_string(),
    };
    Err(Error::io("harden PID 1")(io::Error::other(failure)))
}

/// In a user namespace only ids with a meaning outside can be taken.
fn unprivileged(map: Option<&[IdRange]>) -> u32 {
    let Some(map) = map else { return UNPRIVILEGED };
    let has = |range: &IdRange| (range.inside..range.inside + range.count).contains(&UNPRIVILEGED);
    if map.iter().any(has) {
        return UNPRIVILEGED;
    }
    map.iter().map(|range| range.inside + range.count - 1).max().unwrap_or(UNPRIVILEGED)
}

fn live(fds: Vec<OwnedFd>, uid: u32, gid: u32) -> i32 {
    let mut fds = fds.into_iter();
    let (Some(report), Some(placed)) = (fds.next(), fds.next()) else { return 1 };
    let (mut report, mut placed) = (PipeWriter::from(report), PipeReader::from(placed));
    if placed.read_exact(&mut [0]).is_err() {
        return 1;
    }
    drop(placed);
    let (exits, told) = match harden(uid, gid) {
        Ok(exits) => (exits, report.write_all(&[READY])),
        Err(error) => {
            let _ = report.write_all(error.to_string().as_bytes());
            return 1;
        }
    };
    drop(report);
    match told {
        Ok(()) => reap(exits),
        Err(_) => 1,
    }
}

fn harden(uid: u32, gid: u32) -> Result<UnixStream> {
    let (exits, woken) = UnixStream::pair().map_err(Error::io("make a socket pair"))?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, woken)
        .map_err(Error::io("listen for exits"))?;
    // Only now that it is in its own cgroup: that is the root of what it shows of them.
    namespace::unshare_cgroups().map_err(Error::io("hide the host's cgroups"))?;
    empty_root().map_err(Error::io("leave the host's file system"))?;
    set_thread_groups(&[]).map_err(Error::io("drop groups"))?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, gid).map_err(Error::io("drop the group"))?;
    // Takes the capabilities with it.
    set_thread_res_uid(uid, uid, uid).map_err(Error::io("drop the user"))?;
    process::forbid_new_privileges().map_err(Error::io("harden"))?;
    process::forbid_inspection().map_err(Error::io("harden"))?;
    rustix::thread::set_name(c"longshore-pod").map_err(Error::io("set the name"))?;
    Ok(exits)
}

/// Afterwards there is nothing below `/`, and no way back.
fn empty_root() -> io::Result<()> {
    mount::set_propagation(Path::new("/"), Propagation::Private, Depth::Tree)?;
    let attrs =
        Attrs { read_only: true, no_suid: true, no_dev: true, no_exec: true, ..Attrs::default() };
    // Any directory will do that can be reached without rights over the host's files.
    let place = Path::new("/proc");
    Tmpfs { bytes: 4096, inodes: 1, mode: 0o555 }.create(attrs)?.attach(place)?;
    chdir(place)?;
    // The old root ends up on top of the new one, where "." finds it.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

/// For ever: SIGKILL from outside is the only end.
fn reap(mut exits: UnixStream) -> i32 {
    let mut wakes = [0; 64];
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        match exits.read(&mut wakes) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return 1,
            _ => {}
        }
    }
}
