use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    sync::mpsc,
    thread,
};

use rustix::io::Errno;
use sys::{
    idmap::{IdMaps, IdRange},
    mount::{Attrs, Depth, Tmpfs, Unmount, bind, is_mount_point, unmount},
    namespace::{
        self, Holder, Namespace, Spaces, clone_into, identity, in_child, in_thread, is_namespace,
        unpin,
    },
    pidfd::{Exit, Pidfd},
};

const POD: [Namespace; 3] = [Namespace::Network, Namespace::Ipc, Namespace::Uts];

fn maps() -> IdMaps {
    IdMaps::same(vec![IdRange { inside: 0, outside: 200_000, count: 65_536 }]).unwrap()
}

fn spaces(user: bool, others: &[Namespace]) -> Spaces {
    Spaces { user: user.then(maps), others: others.to_vec() }
}

fn own(kind: Namespace) -> (u64, u64) {
    identity(Path::new(&format!("/proc/thread-self/ns/{}", kind.name()))).unwrap()
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Children of this process, zombies and those without SIGCHLD too.
fn children() -> String {
    let path = format!("/proc/self/task/{}/children", rustix::thread::gettid().as_raw_nonzero());
    fs::read_to_string(path).unwrap()
}

pub(crate) fn pins_outlive_their_holder(dir: &Path) {
    let holder = Holder::park(&spaces(false, &POD)).unwrap();
    for kind in POD {
        holder.pin(kind, &dir.join(kind.name())).unwrap();
    }
    drop(holder);
    for kind in POD {
        let path = dir.join(kind.name());
        assert!(is_namespace(&path).unwrap() && is_mount_point(&path).unwrap());
        let file = namespace::open(&path).unwrap();
        assert_eq!(Namespace::of(&file).unwrap(), kind);
        assert_ne!(identity(&path).unwrap(), own(kind));
        drop(file);
        unpin(&path).unwrap();
        assert!(!path.exists());
        unpin(&path).unwrap();
    }
}

pub(crate) fn unpinning_takes_pins_only(dir: &Path) {
    let path = dir.join("uts");
    let holder = Holder::park(&spaces(false, &[Namespace::Uts])).unwrap();
    holder.pin(Namespace::Uts, &path).unwrap();
    let below = bind(&path, Depth::One).unwrap();
    below.attach(&path).unwrap();
    unpin(&path).unwrap();
    assert!(!path.exists(), "one over the other, both gone");

    let (file, other) = (dir.join("file"), dir.join("other"));
    fs::write(&file, "").unwrap();
    fs::write(&other, "").unwrap();
    bind(&other, Depth::One).unwrap().attach(&file).unwrap();
    assert!(unpin(&file).unwrap_err().is(Errno::BUSY));
    assert!(unmount(&file, Unmount::Now).unwrap());
}

pub(crate) fn a_user_namespace_owns_the_others(dir: &Path) {
    let holder = Holder::park(&spaces(true, &POD)).unwrap();
    let user = holder.open(Namespace::User).unwrap();
    let ino = fs::File::from(user.try_clone().unwrap()).metadata().unwrap().ino();
    for kind in POD {
        let path = dir.join(kind.name());
        holder.pin(kind, &path).unwrap();
        let file = namespace::open(&path).unwrap();
        assert_eq!(owner(&file), ino, "{kind:?}");
        unpin(&path).unwrap();
    }
    holder.pin(Namespace::User, &dir.join("user")).unwrap();
    drop(holder);
    assert_eq!(identity(&dir.join("user")).unwrap().1, ino);
    unpin(&dir.join("user")).unwrap();
}

/// The inode of the user namespace that owns this one.
fn owner(file: &OwnedFd) -> u64 {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: the request takes no argument and returns a new descriptor.
    let user = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_USERNS) };
    assert!(user >= 0);
    // SAFETY: the kernel has just opened it for us.
    unsafe { fs::File::from_raw_fd(user) }.metadata().unwrap().ino()
}

pub(crate) fn holders_leave_no_process(_: &Path) {
    let holders: Vec<_> =
        (0..5).map(|_| Holder::park(&spaces(true, &[Namespace::Network])).unwrap()).collect();
    assert_eq!(children().split_whitespace().count(), 5);
    // Nobody who waits for any child meets them.
    assert!(rustix::process::wait(rustix::process::WaitOptions::NOHANG).is_err());
    drop(holders);
    assert_eq!(children(), "");

    // One whose parent is killed ends too.
    let (mut reader, writer) = io::pipe().unwrap();
    let parent = clone_into(&Spaces::default(), vec![writer.into()], |mut fds| {
        let holder = Holder::park(&spaces(false, &[Namespace::Uts])).unwrap();
        io::Write::write_all(&mut fs::File::from(fds.remove(0)), children().as_bytes()).unwrap();
        let _held = holder;
        loop {
            thread::park();
        }
    })
    .unwrap();
    let mut pid = String::new();
    io::Read::read_to_string(&mut reader, &mut pid).unwrap();
    let orphan = Pidfd::open(pid.trim().parse().unwrap()).unwrap();
    parent.pidfd.signal(9).unwrap();
    assert_eq!(parent.pidfd.wait().unwrap(), Exit::Signal(9));
    assert!(orphan.wait_end(Some(std::time::Duration::from_secs(10))).unwrap());
}

pub(crate) fn holders_work_beside_threads(dir: &Path) {
    thread::scope(|scope| {
        for at in 0..8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let holder = Holder::park(&spaces(true, &POD)).unwrap();
                    let path = dir.join(format!("{at}-{round}"));
                    holder.pin(Namespace::Network, &path).unwrap();
                    drop(holder);
                    assert!(is_namespace(&path).unwrap());
                    unpin(&path).unwrap();
                }
            });
        }
    });
    assert_eq!(children(), "");
}

pub(crate) fn a_failed_pin_leaves_no_file(dir: &Path) {
    let holder = Holder::park(&spaces(false, &[Namespace::Uts])).unwrap();
    let path = dir.join("uts");
    fs::write(&path, "someone else's").unwrap();
    assert!(holder.pin(Namespace::Uts, &path).unwrap_err().is(Errno::EXIST));
    assert_eq!(fs::read_to_string(&path).unwrap(), "someone else's");
    let nowhere = dir.join("missing/uts");
    assert!(holder.pin(Namespace::Uts, &nowhere).unwrap_err().is(Errno::NOENT));
    // Our own mount namespace cannot be pinned inside itself.
    let path = dir.join("mnt");
    assert!(holder.pin(Namespace::Mount, &path).unwrap_err().is(Errno::INVAL));
    assert!(!path.exists());
}

pub(crate) fn pid_namespaces_need_an_init(_: &Path) {
    let error = Holder::park(&spaces(false, &[Namespace::Pid])).unwrap_err();
    assert!(error.is(Errno::INVAL) && error.to_string().contains("PID 1"), "{error}");
}

pub(crate) fn an_init_is_pid_one_and_has_nothing_of_ours(dir: &Path) {
    let _secret = fs::File::create_new(dir.join("secret")).unwrap();
    let (mut reader, writer) = io::pipe().unwrap();
    let wanted = spaces(true, &[Namespace::Pid, Namespace::Mount, Namespace::Network]);
    let init = clone_into(&wanted, vec![writer.into()], |mut out| {
        // The mount namespace is a copy, so this is still the host's /proc.
        sys::mount::proc(Attrs::default()).unwrap().attach(Path::new("/proc")).unwrap();
        let fds = fs::read_dir("/proc/self/fd").unwrap().count();
        let map = fs::read_to_string("/proc/self/uid_map").unwrap();
        let map: Vec<_> = map.split_whitespace().collect();
        io::Write::write_all(
            &mut fs::File::from(out.remove(0)),
            format!("{} {fds} {}", std::process::id(), map.join(",")).as_bytes(),
        )
        .unwrap();
        42
    })
    .unwrap();
    let mut text = String::new();
    io::Read::read_to_string(&mut reader, &mut text).unwrap();
    // The pipe, the gate and the directory being read.
    assert_eq!(text, "1 3 0,200000,65536");
    assert_eq!(init.pidfd.wait().unwrap(), Exit::Code(42));

    let init = clone_into(&wanted, vec![], |_| panic!("on purpose")).unwrap();
    assert_eq!(init.pidfd.wait().unwrap(), Exit::Code(101));
}

pub(crate) fn threads_enter_and_do_not_stay(dir: &Path) {
    let holder = Holder::park(&spaces(false, &POD)).unwrap();
    let before = (hostname(), own(Namespace::Network));
    let fds: Vec<_> = POD.iter().map(|kind| holder.open(*kind).unwrap()).collect();
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let inside = in_thread(&borrowed, || {
        rustix::system::sethostname(b"inside").unwrap();
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        (hostname(), own(Namespace::Network))
    })
    .unwrap();
    assert_eq!(inside.0, "inside");
    assert_ne!(inside.1, before.1);
    assert_eq!((hostname(), own(Namespace::Network)), before);
    // It is kept in the namespace, not in the thread.
    assert_eq!(in_thread(&borrowed, hostname).unwrap(), "inside");

    let user = Holder::park(&spaces(true, &[])).unwrap().open(Namespace::User).unwrap();
    assert!(in_thread(&[user.as_fd()], || ()).unwrap_err().is(Errno::INVAL));
    let plain = fs::File::open(dir).unwrap();
    assert!(in_thread(&[plain.as_fd()], || ()).is_err());
}

pub(crate) fn children_become_root_inside(dir: &Path) {
    let holder = Holder::park(&spaces(true, &POD)).unwrap();
    let fds: Vec<_> = [Namespace::User, Namespace::Network, Namespace::Ipc, Namespace::Uts]
        .into_iter()
        .map(|kind| holder.open(kind).unwrap())
        .collect();
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    in_child(&borrowed, || {
        rustix::system::sethostname(b"inside")?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        fs::write("/proc/sys/kernel/shmmni", "123")?;
        fs::write(dir.join("made"), fs::read_to_string("/proc/sys/kernel/shmmni")?)
    })
    .unwrap();
    let made = dir.join("made");
    assert_eq!(fs::metadata(&made).unwrap().uid(), 200_000);
    assert_eq!(fs::read_to_string(&made).unwrap().trim(), "123");
    let uts = holder.open(Namespace::Uts).unwrap();
    assert_eq!(in_thread(&[uts.as_fd()], hostname).unwrap(), "inside");
    assert_eq!(children().split_whitespace().count(), 1, "only the holder");
}

pub(crate) fn children_report_what_went_wrong(_: &Path) {
    let text = |error: sys::Error| std::error::Error::source(&error).unwrap().to_string();
    let error = in_child(&[], || fs::write("/nowhere/x", "")).unwrap_err();
    assert!(text(error).contains("No such file"));
    let error = in_child(&[], || panic!("on purpose")).unwrap_err();
    assert_eq!(text(error), "the child ended with 101");
    in_child(&[], || Ok(())).unwrap();
    assert_eq!(children(), "");
}

pub(crate) fn forking_beside_threads_is_refused(_: &Path) {
    let (stop, stopped) = mpsc::channel::<()>();
    let other = thread::spawn(move || stopped.recv());
    assert!(in_child(&[], || Ok(())).unwrap_err().is(Errno::BUSY));
    assert!(clone_into(&Spaces::default(), vec![], |_| 0).unwrap_err().is(Errno::BUSY));
    drop(stop);
    other.join().unwrap().unwrap_err();
}

pub(crate) fn mount_namespaces_can_be_pinned_and_entered(dir: &Path) {
    // A pin of a mount namespace must lie on a mount of its own that is private.
    let pins = dir.join("pins");
    fs::create_dir(&pins).unwrap();
    Tmpfs { bytes: 0, inodes: 0, mode: 0o700 }
        .create(Attrs::default())
        .unwrap()
        .attach(&pins)
        .unwrap();
    let holder = Holder::park(&spaces(false, &[Namespace::Mount])).unwrap();
    let path = pins.join("mnt");
    holder.pin(Namespace::Mount, &path).unwrap();
    drop(holder);
    let file = namespace::open(&path).unwrap();
    let inner = dir.join("inner");
    fs::create_dir(&inner).unwrap();
    in_thread(&[file.as_fd()], || {
        bind(dir, Depth::One).unwrap().attach(&inner).unwrap();
        assert!(is_mount_point(&inner).unwrap());
    })
    .unwrap();
    assert!(!is_mount_point(&inner).unwrap(), "it is mounted only inside");
    assert!(in_thread(&[file.as_fd()], || is_mount_point(&inner).unwrap()).unwrap());
    drop(file);
    unpin(&path).unwrap();
    unmount(&pins, Unmount::Now).unwrap();
}
