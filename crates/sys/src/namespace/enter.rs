//! Doing something inside namespaces that exist.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    thread,
};

use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use super::{
    Namespace,
    child::{clone3, exit_code, require_one_thread},
};
use crate::{
    error::{Error, Result, to},
    pidfd::Exit,
};

/// Runs `work` in a thread of its own that has joined `spaces` and ends with it. Not for
/// user and PID namespaces, which no single thread can join.
pub fn in_thread<T: Send>(spaces: &[BorrowedFd<'_>], work: impl FnOnce() -> T + Send) -> Result<T> {
    let kinds = kinds(spaces, &[Namespace::User, Namespace::Pid])?;
    thread::scope(|scope| {
        let name = "in-namespace".to_owned();
        let worker = thread::Builder::new().name(name).spawn_scoped(scope, || {
            join(&kinds)?;
            Ok(work())
        });
        let worker = worker.map_err(to("start a thread"))?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` in each network namespace of `spaces`, one after the other, in a thread of
/// its own that ends with it.
pub fn in_each_network<T: Send>(
    spaces: &[BorrowedFd<'_>],
    work: impl Fn() -> T + Send + Sync,
) -> Result<Vec<Result<T>>> {
    if spaces.is_empty() {
        return Ok(Vec::new());
    }
    thread::scope(|scope| {
        let name = "in-networks".to_owned();
        let work = &work;
        let one = move |space: &BorrowedFd<'_>| {
            join(&[(Namespace::Network, *space)])?;
            Ok(work())
        };
        let worker = thread::Builder::new()
            .name(name)
            .spawn_scoped(scope, move || spaces.iter().map(one).collect());
        let worker = worker.map_err(to("start a thread"))?;
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Runs `work` in a child that has joined `spaces`; with a user namespace among them it
/// is that one's root, which some sysctls ask for. What `work` says of a failure comes
/// back as text.
///
/// Only for a process with one thread, as [`super::clone_into`]. The child has all the
/// descriptors, is reaped here, and sends no SIGCHLD.
pub fn in_child(spaces: &[BorrowedFd<'_>], work: impl FnOnce() -> io::Result<()>) -> Result<()> {
    let step = "work in namespaces";
    let kinds = kinds(spaces, &[Namespace::Pid])?;
    let (mut reader, mut writer) = io::pipe().map_err(to("make a pipe"))?;
    require_one_thread()?;
    // SAFETY: there is no other thread, so the child's copy of memory is consistent, and
    // the child never leaves the block below.
    let Some(child) = (unsafe { clone3(0, 0) }).map_err(to("fork"))? else {
        let code = exit_code(|| {
            let result =
                join(&kinds).map_err(|e| say(&e)).and_then(|()| work().map_err(|e| say(&e)));
            // A reader that is gone has no use for the text.
            result.map_or_else(|text| writer.write_all(text.as_bytes()).map_or(2, |()| 1), |()| 0)
        });
        // SAFETY: ends this process without running what belongs to the parent.
        unsafe { libc::_exit(code) }
    };
    drop(writer);
    let mut text = String::new();
    let read = reader.read_to_string(&mut text);
    let exit = child.pidfd.wait()?;
    read.map_err(to(step))?;
    match exit {
        Exit::Code(0) => Ok(()),
        Exit::Code(1) => Err(Error::malformed(step, text)),
        exit => Err(Error::malformed(step, format!("the child ended with {}", exit.status()))),
    }
}

fn say(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

type Kinds<'a> = Vec<(Namespace, BorrowedFd<'a>)>;

/// User namespaces last: joining one first would give up the rights over namespaces it
/// does not own.
fn kinds<'a>(spaces: &[BorrowedFd<'a>], refused: &[Namespace]) -> Result<Kinds<'a>> {
    let with_kind = spaces.iter().map(|fd| Ok((Namespace::of(fd)?, *fd)));
    let mut kinds = with_kind.collect::<Result<Kinds<'a>>>()?;
    if let Some((kind, _)) = kinds.iter().find(|(kind, _)| refused.contains(kind)) {
        return Err(Error::new(format!("join a {} namespace here", kind.name()), Errno::INVAL));
    }
    kinds.sort_by_key(|(kind, _)| *kind == Namespace::User);
    Ok(kinds)
}

fn join(kinds: &[(Namespace, BorrowedFd<'_>)]) -> Result<()> {
    for (kind, fd) in kinds {
        if *kind == Namespace::Mount {
            // Root and working directory are shared between threads until told otherwise.
            // SAFETY: the contract is about CLONE_FILES, which we do not ask for.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.map_err(to("unshare the root"))?;
        }
        move_into_link_name_space(fd.as_fd(), Some(link(*kind)))
            .map_err(|e| Error::new(format!("join a {} namespace", kind.name()), e))?;
        if *kind == Namespace::User {
            become_root()?;
        }
    }
    Ok(())
}

fn become_root() -> Result<()> {
    use rustix::{
        process::{Gid, Uid},
        thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
    };
    set_thread_groups(&[]).map_err(to("drop groups"))?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).map_err(to("become group 0"))?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).map_err(to("become user 0"))
}

fn link(kind: Namespace) -> LinkNameSpaceType {
    match kind {
        Namespace::Cgroup => LinkNameSpaceType::ControlGroup,
        Namespace::Ipc => LinkNameSpaceType::InterProcessCommunication,
        Namespace::Mount => LinkNameSpaceType::Mount,
        Namespace::Network => LinkNameSpaceType::Network,
        Namespace::Pid => LinkNameSpaceType::ProcessID,
        Namespace::User => LinkNameSpaceType::User,
        Namespace::Uts => LinkNameSpaceType::HostNameAndNISDomainName,
    }
}
