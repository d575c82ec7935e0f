//! What this process is and may: reaping, privileges, capabilities, its place with the
//! OOM killer; and programs it runs within a limit.

use std::{
    fmt, fs,
    io::{self, Write},
    process::{Command, Output, Stdio},
    time::Duration,
};

use rustix::process::{DumpableBehavior, getpid};

use crate::{
    error::{Error, Result, on, to},
    pidfd::Pidfd,
};

const SIGKILL: i32 = 9;

/// Runs a program to its end, or kills it at the limit: `TimedOut`. What it is told and what
/// it prints fit into a pipe; one that ends before it was told all says why by its status.
/// Blocking.
pub fn output_within(mut command: Command, input: &[u8], limit: Duration) -> io::Result<Output> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    let mut child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        let _ = pipe.write_all(input);
    }
    let process = Pidfd::open(child.id())?;
    if process.wait_end(Some(limit))? {
        return child.wait_with_output();
    }
    process.signal(SIGKILL)?;
    child.wait_with_output()?;
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("took longer than {limit:?}")))
}

/// The same for a program that has to succeed; otherwise what to say of it. Blocking.
pub fn succeed_within(
    command: Command,
    input: &[u8],
    limit: Duration,
) -> std::result::Result<(), String> {
    let program = command.get_program().display().to_string();
    let Output { status, stderr, .. } =
        output_within(command, input, limit).map_err(|e| format!("run {program}: {e}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{program}: {status}: {}", String::from_utf8_lossy(&stderr).trim()))
}

/// Orphans below us become our children, so that none of their exits is lost.
pub fn become_subreaper() -> Result<()> {
    rustix::process::set_child_subreaper(Some(getpid())).map_err(to("become a subreaper"))
}

/// No program started from here on gains privileges by set-uid or file capabilities.
/// Cannot be taken back.
pub fn forbid_new_privileges() -> Result<()> {
    rustix::thread::set_no_new_privs(true).map_err(to("forbid new privileges"))
}

/// Makes `/proc/<us>` root's: nobody of our uid may ptrace us or look through our links.
pub fn forbid_inspection() -> Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(to("forbid inspection"))
}

/// A process with one thread may fork and run ordinary code in the child, and may change
/// its user namespace.
pub fn is_single_threaded() -> Result<bool> {
    let tasks = "/proc/self/task";
    Ok(fs::read_dir(tasks).map_err(on("list", tasks))?.take(2).count() == 1)
}

/// What a process has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    pub all: u64,
    pub sockets: u64,
}

/// Reads a link per descriptor.
pub fn descriptors(pid: u32) -> Result<Descriptors> {
    let dir = format!("/proc/{pid}/fd");
    let mut open = Descriptors::default();
    for entry in fs::read_dir(&dir).map_err(on("list", &dir))? {
        let entry = entry.map_err(on("list", &dir))?;
        // Closed meanwhile.
        let Ok(to) = fs::read_link(entry.path()) else { continue };
        open.all += 1;
        open.sockets += u64::from(to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
    }
    Ok(open)
}

/// The soft limits of a process by the kernel's names, `Max open files`; without those that
/// do not limit.
pub fn soft_limits(pid: u32) -> Result<Vec<(String, u64)>> {
    let path = format!("/proc/{pid}/limits");
    Ok(parse_limits(&fs::read_to_string(&path).map_err(on("read", &path))?))
}

/// A table with columns of fixed width: name, soft limit, hard limit, unit.
fn parse_limits(text: &str) -> Vec<(String, u64)> {
    const NAME: usize = 25;
    let row = |line: &str| {
        let (name, values) = line.split_at_checked(NAME)?;
        let soft = values.split_whitespace().next()?.parse().ok()?;
        Some((name.trim().to_owned(), soft))
    };
    text.lines().skip(1).filter_map(row).collect()
}

/// −1000 (never) to 1000 (first).
pub fn oom_score_adj(pid: u32) -> Result<i32> {
    let path = format!("/proc/{pid}/oom_score_adj");
    let text = fs::read_to_string(&path).map_err(on("read", &path))?;
    text.trim().parse().map_err(|_| Error::malformed(format!("read {path}"), text.trim()))
}

/// Going below the lowest value a privileged process ever set needs CAP_SYS_RESOURCE;
/// without it this is `EACCES`, and callers clamp to their own value.
pub fn set_oom_score_adj(pid: u32, value: i32) -> Result<()> {
    let path = format!("/proc/{pid}/oom_score_adj");
    fs::write(&path, value.to_string()).map_err(on("write", &path))
}

/// The names, by number. A kernel with more has numbers we cannot name, and containers
/// cannot ask for.
const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// A set of capabilities, as `/proc/<pid>/status` has them.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CapSet(pub u64);

impl CapSet {
    /// By name, `CAP_SYS_ADMIN`. False for a name nobody knows.
    pub fn has(self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// In order of their numbers.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let numbered = CAPABILITIES.into_iter().enumerate();
        numbered.filter(move |(number, _)| self.0 >> number & 1 == 1).map(|(_, name)| name)
    }
}

impl fmt::Debug for CapSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// All names, in order of their numbers.
pub fn capability_names() -> &'static [&'static str] {
    &CAPABILITIES
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capabilities {
    pub effective: CapSet,
    pub permitted: CapSet,
    /// The most any program we start can have: what "all" and "privileged" mean here.
    pub bounding: CapSet,
}

impl Capabilities {
    pub fn own() -> Result<Self> {
        let path = "/proc/self/status";
        let text = fs::read_to_string(path).map_err(on("read", path))?;
        Self::parse(&text).ok_or_else(|| Error::malformed(path, "no capability lines"))
    }

    pub fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(line.trim(), 16).ok().map(CapSet)
        };
        Some(Self {
            effective: field("CapEff:")?,
            permitted: field("CapPrm:")?,
            bounding: field("CapBnd:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATUS: &str = "Name:\tsh\nCapInh:\t0000000000000000\nCapPrm:\t000001fffeffffff\n\
        CapEff:\t0000000000000001\nCapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000000\n";

    #[test]
    fn programs_run_to_their_end_or_to_the_limit() {
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let limit = Duration::from_secs(60);
        let told = output_within(sh("read x; echo $x; echo no >&2; exit 3"), b"yes\n", limit);
        let Output { status, stdout, stderr } = told.unwrap();
        assert_eq!((status.code(), &*stdout, &*stderr), (Some(3), &b"yes\n"[..], &b"no\n"[..]));
        let deaf = output_within(sh("exec <&-; exit 4"), &[b'x'; 60_000], limit).unwrap();
        assert_eq!(deaf.status.code(), Some(4));
        let said = succeed_within(sh("echo no >&2; exit 3"), &[], limit);
        assert_eq!(said, Err("sh: exit status: 3: no".to_owned()));
        assert_eq!(succeed_within(sh("exit 0"), &[], limit), Ok(()));
        let late = output_within(sh("exec sleep 1000"), &[], Duration::from_millis(10));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn capabilities_come_from_status() {
        let caps = Capabilities::parse(STATUS).unwrap();
        assert_eq!(caps.effective.names().collect::<Vec<_>>(), ["CAP_CHOWN"]);
        assert_eq!(caps.bounding.names().count(), 40);
        assert!(!caps.bounding.has("CAP_SYS_RESOURCE"));
        assert!(caps.bounding.has("CAP_CHECKPOINT_RESTORE"));
        assert!(!caps.bounding.has("CAP_FLY"));
        assert_eq!(Capabilities::parse("CapEff: 1"), None);
        assert!(Capabilities::own().is_ok());
    }

    proptest! {
        #[test]
        fn no_status_panics(text: String, lines in "(Cap(Eff|Prm|Bnd):[ \t]*[0-9a-fg]{0,20}\n){0,4}") {
            let _ = Capabilities::parse(&text);
            let _ = Capabilities::parse(&lines);
        }
    }

    #[test]
    fn raising_our_own_oom_score_is_allowed() {
        // A child, because lowering it again may not be.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = oom_score_adj(std::process::id()).unwrap();
        let raised = (own + 7).min(1000);
        set_oom_score_adj(child.id(), raised).unwrap();
        assert_eq!(oom_score_adj(child.id()).unwrap(), raised);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn test_processes_have_threads() {
        assert!(!is_single_threaded().unwrap());
    }

    #[test]
    fn descriptors_are_counted_by_kind() {
        let pair = std::os::unix::net::UnixStream::pair().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdin(std::os::fd::OwnedFd::from(pair.0))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let got = descriptors(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let got = got.unwrap();
        assert_eq!(got.sockets, 1, "{got:?}");
        assert!(got.all >= 3, "{got:?}");
        assert!(descriptors(0).is_err());
    }

    #[test]
    fn limits_without_those_that_do_not_limit() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max cpu time              unlimited            unlimited            seconds   \n\
                    Max open files            1024                 1048576              files     \n\
                    Max realtime timeout      unlimited            unlimited            us        \n";
        assert_eq!(parse_limits(text), [("Max open files".to_owned(), 1024)]);
        assert!(parse_limits("é").is_empty());
        let own = soft_limits(std::process::id()).unwrap();
        assert!(own.iter().any(|(name, soft)| name == "Max open files" && *soft > 0), "{own:?}");
    }
}
