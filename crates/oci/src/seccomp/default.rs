//! The profile of a container that did not bring its own: what ordinary programs need, grouped by
//! what they need it for.
//!
//! Everything else is `EPERM`. A call that a capability guards comes with that capability; a new
//! call is allowed once it does nothing an old allowed one could not.

use oci_spec::runtime::{
    Arch as ScmpArch, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator as Op,
};

use super::{ArchMap, Condition, MinKernel, Rule, SeccompProfile};
use crate::facts::Kernel;

/// Allowed to all. Names that only 32-bit programs or other machines use are in the group of their
/// 64-bit fellows; an OCI runtime skips what its machine does not have.
const ALWAYS: [&str; 15] = [
    FILES,
    PATHS,
    METADATA,
    DESCRIPTORS,
    WAITING,
    MEMORY,
    PROCESSES,
    CREDENTIALS,
    SIGNALS,
    SCHEDULING,
    TIME,
    SOCKETS,
    IPC,
    SYNCHRONISATION,
    SYSTEM,
];

const FILES: &str = "\
    _llseek cachestat close close_range copy_file_range creat fadvise64 fadvise64_64 fallocate \
    fdatasync flock fsync ftruncate ftruncate64 io_cancel io_destroy io_getevents io_pgetevents \
    io_pgetevents_time64 io_setup io_submit lseek open openat openat2 pread64 preadv preadv2 \
    pwrite64 pwritev pwritev2 read readahead readv sendfile sendfile64 splice sync sync_file_range \
    syncfs tee truncate truncate64 vmsplice write writev";

const PATHS: &str = "\
    access chdir faccessat faccessat2 fchdir getcwd getdents getdents64 link linkat listmount \
    mkdir mkdirat mknod mknodat name_to_handle_at readlink readlinkat rename renameat renameat2 \
    rmdir statmount symlink symlinkat unlink unlinkat";

const METADATA: &str = "\
    chmod chown chown32 fchmod fchmodat fchmodat2 fchown fchown32 fchownat fgetxattr flistxattr \
    fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 futimesat getxattr getxattrat \
    lchown lchown32 lgetxattr listxattr listxattrat llistxattr lremovexattr lsetxattr lstat \
    lstat64 newfstatat removexattr removexattrat setxattr setxattrat stat stat64 statfs statfs64 \
    statx umask utime utimensat utimensat_time64 utimes";

const DESCRIPTORS: &str = "\
    dup dup2 dup3 eventfd eventfd2 fcntl fcntl64 ioctl memfd_create memfd_secret pidfd_open \
    pidfd_send_signal pipe pipe2 signalfd signalfd4 timerfd_create timerfd_gettime \
    timerfd_gettime64 timerfd_settime timerfd_settime64";

const WAITING: &str = "\
    _newselect epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 \
    epoll_wait epoll_wait_old fanotify_mark inotify_add_watch inotify_init inotify_init1 \
    inotify_rm_watch pause poll ppoll ppoll_time64 pselect6 pselect6_time64 select";

const MEMORY: &str = "\
    brk madvise map_shadow_stack membarrier mincore mlock mlock2 mlockall mmap mmap2 mprotect \
    mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect \
    process_mrelease remap_file_pages";

const PROCESSES: &str = "\
    execve execveat exit exit_group fork get_robust_list get_thread_area getpgid getpgrp getpid \
    getppid getrlimit getrusage getsid gettid prctl prlimit64 rseq set_robust_list set_thread_area \
    set_tid_address setpgid setrlimit setsid times ugetrlimit uretprobe vfork wait4 waitid waitpid";

const CREDENTIALS: &str = "\
    capget capset getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 \
    getresgid getresgid32 getresuid getresuid32 getuid getuid32 landlock_add_rule \
    landlock_create_ruleset landlock_restrict_self lsm_get_self_attr lsm_list_modules \
    lsm_set_self_attr seccomp setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups \
    setgroups32 setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid \
    setreuid32 setuid setuid32";

const SIGNALS: &str = "\
    alarm kill restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo \
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo \
    sigaltstack sigprocmask sigreturn tgkill tkill";

const SCHEDULING: &str = "\
    getcpu getpriority ioprio_get ioprio_set sched_get_priority_max sched_get_priority_min \
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval \
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler \
    sched_yield setpriority";

/// Setting a clock is refused by the kernel itself; `adjtimex` also reads it.
const TIME: &str = "\
    adjtimex clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime \
    clock_gettime64 clock_nanosleep clock_nanosleep_time64 getitimer gettimeofday nanosleep \
    setitimer time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 \
    timer_settime timer_settime64";

/// `socket` itself looks at the family.
const SOCKETS: &str = "\
    accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg \
    recvmmsg_time64 recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socketcall socketpair";

const IPC: &str = "\
    ipc mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend \
    mq_timedsend_time64 mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop \
    semtimedop_time64 shmat shmctl shmdt shmget";

const SYNCHRONISATION: &str = "\
    futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake";

const SYSTEM: &str = "getrandom sysinfo uname";

/// What comes with a capability.
const BY_CAPABILITY: [(&str, &str); 15] = [
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    ("CAP_SYS_ADMIN", ADMINISTRATION),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module finit_module init_module"),
    ("CAP_SYS_PACCT", "acct"),
    ("CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("CAP_SYS_PTRACE", TRACING),
    ("CAP_SYS_RAWIO", "ioperm iopl"),
    ("CAP_SYS_TIME", "clock_settime clock_settime64 settimeofday stime"),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    ("CAP_SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("CAP_SYSLOG", "syslog"),
    ("CAP_BPF", "bpf"),
    ("CAP_PERFMON", "perf_event_open"),
];

const ADMINISTRATION: &str = "\
    bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount \
    mount_setattr move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname \
    sethostname setns syslog umount umount2 unshare";

/// Before this kernel a tracer could slip past the filter of what it traces.
const TRACING_IS_SAFE: Kernel = Kernel { major: 4, minor: 8 };
const TRACING: &str = "process_vm_readv process_vm_writev ptrace";

const BY_ARCH: [(&str, &str); 5] = [
    ("amd64", "arch_prctl modify_ldt"),
    (
        "arm64",
        "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2",
    ),
    ("ppc64le", "swapcontext sync_file_range2"),
    ("riscv64", "riscv_flush_icache riscv_hwprobe"),
    ("s390x", "s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr"),
];

/// Kernel crypto and sockets to the hypervisor: large, and no container's business.
const AF_ALG: u64 = 38;
const AF_VSOCK: u64 = 40;

/// Linux, 32-bit Linux, both again with a `uname` that says 2.6, and the question which it is.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Every `CLONE_NEW…` but that of time.
const NEW_NAMESPACES: u64 = 0x7e02_0000;

const ENOSYS: u32 = 38;

/// Also programs of these machines' smaller siblings run.
const ARCHES: [(ScmpArch, &[ScmpArch]); 6] = [
    (ScmpArch::ScmpArchX86_64, &[ScmpArch::ScmpArchX86, ScmpArch::ScmpArchX32]),
    (ScmpArch::ScmpArchAarch64, &[ScmpArch::ScmpArchArm]),
    (ScmpArch::ScmpArchS390x, &[ScmpArch::ScmpArchS390]),
    (ScmpArch::ScmpArchPpc64le, &[]),
    (ScmpArch::ScmpArchRiscv64, &[]),
    (ScmpArch::ScmpArchLoongarch64, &[]),
];

impl SeccompProfile {
    /// What `RuntimeDefault` means.
    pub fn default_for_containers() -> Self {
        let mut rules = vec![allow(&ALWAYS.join(" "))];
        rules.push(Rule { includes: since(TRACING_IS_SAFE), ..allow(TRACING) });
        rules.extend(sockets());
        rules.extend(
            PERSONALITIES.map(|value| allow_if("personality", 0, Op::ScmpCmpEq, value, None)),
        );
        rules
            .extend(BY_CAPABILITY.map(|(cap, names)| Rule { includes: caps(cap), ..allow(names) }));
        rules.extend(BY_ARCH.map(|(arch, names)| Rule { includes: arches(arch), ..allow(names) }));
        rules.extend(threads());
        let arch_map = ARCHES.map(|(architecture, subs)| ArchMap {
            architecture,
            sub_architectures: Some(subs.to_vec()),
        });
        Self {
            default_action: LinuxSeccompAction::ScmpActErrno,
            default_errno_ret: None,
            architectures: None,
            arch_map: Some(arch_map.to_vec()),
            flags: None,
            listener_path: None,
            listener_metadata: None,
            syscalls: Some(rules),
        }
    }
}

/// All families but two. Three rules of one comparison each: conditions on one argument within a
/// rule, or an `ERRNO` beside a wider `ALLOW`, come out wrong in libseccomp.
fn sockets() -> [Rule; 3] {
    [
        allow_if("socket", 0, Op::ScmpCmpLt, AF_ALG, None),
        allow_if("socket", 0, Op::ScmpCmpEq, AF_ALG + 1, None),
        allow_if("socket", 0, Op::ScmpCmpGt, AF_VSOCK, None),
    ]
}

/// Threads and children, but no new namespaces. `clone3` has its flags in memory, where a filter
/// cannot see them: it does not exist, and C libraries then use `clone`. The flags are its first
/// argument, on s390x its second.
fn threads() -> [Rule; 3] {
    let clone = |index, includes, excludes| Rule {
        includes,
        excludes,
        ..allow_if("clone", index, Op::ScmpCmpMaskedEq, NEW_NAMESPACES, Some(0))
    };
    let admin = || caps("CAP_SYS_ADMIN");
    let or_s390x =
        Condition { arches: Some(vec!["s390x".to_owned()]), ..admin().unwrap_or_default() };
    [
        clone(0, None, Some(or_s390x)),
        clone(1, arches("s390x"), admin()),
        Rule {
            action: LinuxSeccompAction::ScmpActErrno,
            errno_ret: Some(ENOSYS),
            excludes: admin(),
            ..allow("clone3")
        },
    ]
}

fn allow(names: &str) -> Rule {
    Rule {
        names: Some(names.split_whitespace().map(str::to_owned).collect()),
        name: None,
        action: LinuxSeccompAction::ScmpActAllow,
        errno_ret: None,
        args: None,
        includes: None,
        excludes: None,
    }
}

fn allow_if(name: &str, index: usize, op: Op, value: u64, value_two: Option<u64>) -> Rule {
    Rule { args: Some(vec![argument(index, op, value, value_two)]), ..allow(name) }
}

fn argument(index: usize, op: Op, value: u64, value_two: Option<u64>) -> LinuxSeccompArg {
    let mut builder = LinuxSeccompArgBuilder::default().index(index).op(op).value(value);
    if let Some(value_two) = value_two {
        builder = builder.value_two(value_two);
    }
    builder.build().expect("every field of the builder has a default")
}

fn caps(name: &str) -> Option<Condition> {
    Some(Condition { caps: Some(vec![name.to_owned()]), ..Condition::default() })
}

fn arches(name: &str) -> Option<Condition> {
    Some(Condition { arches: Some(vec![name.to_owned()]), ..Condition::default() })
}

fn since(kernel: Kernel) -> Option<Condition> {
    Some(Condition { min_kernel: Some(MinKernel(kernel)), ..Condition::default() })
}
