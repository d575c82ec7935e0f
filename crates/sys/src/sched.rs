//! Whom the kernel lets run first, and whose I/O: priorities of threads.
//!
//! Both belong to a thread, live through `exec`, and are handed down by `fork` and `clone`; only
//! what has a deadline or [`Scheduler::RESET_ON_FORK`] is not.

use std::{collections::BTreeSet, fs, io, os::unix::process::CommandExt, process::Command};

use rustix::io::Errno;

use crate::{
    error::{Error, Result, on},
    fd::last_errno,
};

/// I/O priority, in the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoPriority {
    /// 1 real-time, 2 best effort, 3 idle.
    pub class: u8,
    /// 0 is first, 7 is last.
    pub level: u8,
}

/// What `sched_setattr(2)` takes, in the kernel's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduler {
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    /// Nanoseconds, like the next two: of [`Scheduler::DEADLINE`] only.
    pub runtime: u64,
    pub deadline: u64,
    pub period: u64,
}

impl Scheduler {
    pub const OTHER: u32 = 0;
    pub const FIFO: u32 = 1;
    pub const RR: u32 = 2;
    pub const BATCH: u32 = 3;
    /// Reserved: no kernel has it.
    pub const ISO: u32 = 4;
    pub const IDLE: u32 = 5;
    pub const DEADLINE: u32 = 6;

    pub const RESET_ON_FORK: u64 = 0x01;
    pub const RECLAIM: u64 = 0x02;
    pub const DL_OVERRUN: u64 = 0x04;
    pub const KEEP_POLICY: u64 = 0x08;
    pub const KEEP_PARAMS: u64 = 0x10;
    pub const UTIL_CLAMP_MIN: u64 = 0x20;
    pub const UTIL_CLAMP_MAX: u64 = 0x40;
}

/// The kernel's `struct sched_attr`, as of Linux 5.3. The library's has no utilisation.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

const SIZE: u32 = 56;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize);

/// Of one thread; 0 is the calling one. `ESRCH`: it has ended.
pub fn set_io_priority(thread: u32, to: IoPriority) -> Result<()> {
    give_io(thread, to).map_err(|e| Error::new(format!("set I/O priority of {thread}"), e))
}

pub fn io_priority(thread: u32) -> Result<IoPriority> {
    // SAFETY: two integers.
    let got = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread) };
    match u16::try_from(got) {
        Ok(got) => Ok(IoPriority { class: (got >> 13) as u8, level: (got & 7) as u8 }),
        Err(_) => Err(Error::new(format!("read I/O priority of {thread}"), last_errno())),
    }
}

/// Of one thread; 0 is the calling one. `ESRCH`: it has ended.
pub fn set_scheduler(thread: u32, to: &Scheduler) -> Result<()> {
    give_scheduler(thread, to).map_err(|e| Error::new(format!("set scheduler of {thread}"), e))
}

pub fn scheduler(thread: u32) -> Result<Scheduler> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most SIZE bytes, which is the size of what we point to.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, SIZE, 0u32) };
    if done != 0 {
        return Err(Error::new(format!("read scheduler of {thread}"), last_errno()));
    }
    let Attributes { policy, flags, nice, priority, runtime, deadline, period, .. } = attributes;
    Ok(Scheduler { policy, flags, nice, priority, runtime, deadline, period })
}

/// What `command` will start begins with these. If the kernel refuses one, so does `spawn`.
pub fn start_with(command: &mut Command, io: Option<IoPriority>, scheduler: Option<Scheduler>) {
    let give = move || {
        io.map_or(Ok(()), |io| give_io(0, io))?;
        scheduler.map_or(Ok(()), |scheduler| give_scheduler(0, &scheduler))?;
        io::Result::Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls on values it owns, and allocates
    // nothing, in case of an error neither.
    unsafe { command.pre_exec(give) };
}

/// Does `act` to every thread of a process, those that appear meanwhile too. One that ended
/// needs nothing any more.
pub fn each_thread(pid: u32, mut act: impl FnMut(u32) -> Result<()>) -> Result<()> {
    // What makes threads faster than they can be listed is handed down what its makers got.
    const PASSES: usize = 16;
    let mut done = BTreeSet::new();
    for _ in 0..PASSES {
        let new: Vec<_> = threads(pid)?.difference(&done).copied().collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            match act(thread) {
                Err(error) if !error.is(Errno::SRCH) => return Err(error),
                _ => done.insert(thread),
            };
        }
    }
    Ok(())
}

fn threads(pid: u32) -> Result<BTreeSet<u32>> {
    let dir = format!("/proc/{pid}/task");
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.map_err(on("list", &dir))?,
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

const IOPRIO_WHO_PROCESS: i32 = 1;

fn give_io(thread: u32, to: IoPriority) -> std::result::Result<(), Errno> {
    // The kernel has three bits for each and would take others for something else.
    if to.class > 7 || to.level > 7 {
        return Err(Errno::INVAL);
    }
    let value = i32::from(to.class) << 13 | i32::from(to.level);
    // SAFETY: three integers.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, thread, value) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

fn give_scheduler(thread: u32, to: &Scheduler) -> std::result::Result<(), Errno> {
    let Scheduler { policy, flags, nice, priority, runtime, deadline, period } = *to;
    let attributes = Attributes {
        size: SIZE,
        policy,
        flags,
        nice,
        priority,
        runtime,
        deadline,
        period,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads `size` bytes, which is the size of what we point to.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0u32) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use std::process::Child;

    use super::*;

    const BATCH: Scheduler = Scheduler {
        policy: Scheduler::BATCH,
        nice: 5,
        flags: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };

    fn kill(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_is_set_is_read_back() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let low = IoPriority { class: 2, level: 6 };
        let io = set_io_priority(child.id(), low).and_then(|()| io_priority(child.id()));
        let got = set_scheduler(child.id(), &BATCH).and_then(|()| scheduler(child.id()));
        kill(child);
        assert_eq!(io.unwrap(), low);
        let got = got.unwrap();
        assert_eq!((got.policy, got.nice), (Scheduler::BATCH, 5));
    }

    #[test]
    fn a_program_begins_with_what_it_is_given() {
        let mut command = Command::new("sleep");
        let idle = IoPriority { class: 3, level: 0 };
        start_with(command.arg("1000"), Some(idle), Some(BATCH));
        let child = command.spawn().unwrap();
        let got = (io_priority(child.id()), scheduler(child.id()));
        kill(child);
        assert_eq!(got.0.unwrap().class, 3);
        assert_eq!(got.1.unwrap().policy, Scheduler::BATCH);
        // The own thread is as it was.
        assert_eq!(scheduler(0).unwrap().policy, Scheduler::OTHER);
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        let odd = Scheduler { policy: 77, ..BATCH };
        assert!(set_scheduler(0, &odd).unwrap_err().is(Errno::INVAL));
        let mut command = Command::new("true");
        start_with(&mut command, None, Some(odd));
        assert_eq!(command.spawn().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for (class, level) in [(4, 0), (9, 0), (2, 8)] {
            assert!(set_io_priority(0, IoPriority { class, level }).unwrap_err().is(Errno::INVAL));
        }
    }

    #[test]
    fn every_thread_is_reached_and_none_twice() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || stopped.recv());
        let mut seen = Vec::new();
        each_thread(std::process::id(), |thread| {
            seen.push(thread);
            Ok(())
        })
        .unwrap();
        drop(stop);
        waiting.join().unwrap().unwrap_err();
        assert!(seen.len() >= 2 && seen.contains(&std::process::id()), "{seen:?}");
        let all: BTreeSet<_> = seen.iter().collect();
        assert_eq!(all.len(), seen.len());
        each_thread(u32::MAX, |_| panic!("nobody is there")).unwrap();
    }
}
