//! What the kernel lets us do, and which security modules stand around containers.

use crate::{
    host::{HostPaths, read, status_field},
    report::Row,
};

const GROUP: &str = "security";

/// Bit number, name, and what fails without it; `None` for those that only
/// containers feel, whose sets are cut to what the daemon has.
const CAPABILITIES: [(u32, &str, Option<&str>); 41] = [
    (0, "CHOWN", Some("layers cannot be unpacked")),
    (1, "DAC_OVERRIDE", Some("layers cannot be unpacked")),
    (2, "DAC_READ_SEARCH", None),
    (3, "FOWNER", Some("layers cannot be unpacked")),
    (4, "FSETID", None),
    (5, "KILL", Some("containers of other users cannot be stopped")),
    (6, "SETGID", Some("containers cannot change their group")),
    (7, "SETUID", Some("containers cannot change their user")),
    (8, "SETPCAP", Some("containers cannot give up capabilities")),
    (9, "LINUX_IMMUTABLE", None),
    (10, "NET_BIND_SERVICE", None),
    (11, "NET_BROADCAST", None),
    (12, "NET_ADMIN", Some("pod networks cannot be made")),
    (13, "NET_RAW", None),
    (14, "IPC_LOCK", None),
    (15, "IPC_OWNER", None),
    (16, "SYS_MODULE", None),
    (17, "SYS_RAWIO", None),
    (18, "SYS_CHROOT", Some("containers cannot enter their root")),
    (19, "SYS_PTRACE", None),
    (20, "SYS_PACCT", None),
    (21, "SYS_ADMIN", Some("nothing can be mounted")),
    (22, "SYS_BOOT", None),
    (23, "SYS_NICE", None),
    (24, "SYS_RESOURCE", None),
    (25, "SYS_TIME", None),
    (26, "SYS_TTY_CONFIG", None),
    (27, "MKNOD", Some("containers get no devices")),
    (28, "LEASE", None),
    (29, "AUDIT_WRITE", None),
    (30, "AUDIT_CONTROL", None),
    (31, "SETFCAP", Some("file capabilities of layers are lost")),
    (32, "MAC_OVERRIDE", None),
    (33, "MAC_ADMIN", None),
    (34, "SYSLOG", None),
    (35, "WAKE_ALARM", None),
    (36, "BLOCK_SUSPEND", None),
    (37, "AUDIT_READ", None),
    (38, "PERFMON", None),
    (39, "BPF", None),
    (40, "CHECKPOINT_RESTORE", None),
];

pub(crate) fn rows(host: &HostPaths) -> Vec<Row> {
    vec![privileges(host), capabilities(host), apparmor(host), selinux(host)]
}

fn privileges(host: &HostPaths) -> Row {
    let status = read(&host.proc.join("self/status")).unwrap_or_default();
    // Real, effective, saved, file system.
    let user = status_field(&status, "Uid").and_then(|ids| ids.split_whitespace().nth(1));
    let row =
        Row::ok(GROUP, "privileges", user.map_or("unknown".into(), |uid| format!("uid {uid}")));
    match user {
        Some("0") => row,
        _ => row
            .fail("the daemon makes mounts, namespaces and cgroups for others")
            .remedy("run as root"),
    }
}

fn capabilities(host: &HostPaths) -> Row {
    let status = read(&host.proc.join("self/status")).unwrap_or_default();
    let known = read(&host.proc.join("sys/kernel/cap_last_cap"))
        .ok()
        .and_then(|last| last.parse().ok())
        .unwrap_or(40);
    let row = Row::ok(GROUP, "capabilities", "all");
    let Some(held) =
        status_field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok())
    else {
        return Row { found: "unknown".into(), ..row }
            .fail("the capabilities of this process cannot be read")
            .remedy("mount /proc");
    };
    let missing: Vec<_> =
        CAPABILITIES.iter().filter(|(bit, ..)| *bit <= known && held & (1 << bit) == 0).collect();
    if missing.is_empty() {
        return row;
    }
    let names: Vec<_> = missing.iter().map(|(_, name, _)| *name).collect();
    let row = Row { found: format!("without {}", names.join(", ")), ..row };
    if let Some((_, name, Some(lost))) = missing.iter().find(|(.., lost)| lost.is_some()) {
        return row
            .fail(format!("without {name} {lost}"))
            .remedy("run as root, outside of containers that drop it");
    }
    let mut reason = "privileged containers get only what the daemon has".to_owned();
    if names.contains(&"SYS_RESOURCE") {
        reason +=
            "; oom_score_adj cannot go below the daemon's own, lower values are clamped to it";
    }
    row.warn(reason).remedy("start the daemon with the full set")
}

fn apparmor(host: &HostPaths) -> Row {
    let enabled = read(&host.sys.join("module/apparmor/parameters/enabled"))
        .is_ok_and(|value| value.starts_with('Y'));
    let row = Row::ok(GROUP, "AppArmor", "enabled");
    match (enabled, host.program("apparmor_parser")) {
        (true, Some(_)) => row,
        (true, None) => Row { found: "enabled, no apparmor_parser".into(), ..row }
            .warn("the default profile cannot be loaded: containers that name none run unconfined")
            .remedy("install the package apparmor"),
        (false, _) => Row { found: "not enabled".into(), ..row }
            .because("containers run without a profile, as pods that do not ask for one expect"),
    }
}

fn selinux(host: &HostPaths) -> Row {
    let row = Row::ok(GROUP, "SELinux", "not enabled");
    let Ok(enforce) = read(&host.sys.join("fs/selinux/enforce")) else { return row };
    let mode = if enforce == "1" { "enforcing" } else { "permissive" };
    let row = Row { found: mode.into(), ..row };
    let policy = read(&host.etc.join("selinux/config")).unwrap_or_default();
    let policy = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))
        .unwrap_or("targeted");
    // The policy module for containers brings this file along.
    let contexts = format!("selinux/{policy}/contexts/lxc_contexts");
    if host.etc.join(contexts).is_file() {
        return row;
    }
    let reason = format!("the policy {policy:?} knows no container domains");
    let remedy = "install the package container-selinux";
    match mode {
        "enforcing" => row.fail(reason).remedy(remedy),
        _ => row.warn(reason).remedy(remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect},
    };

    #[track_caller]
    fn check(fake: &FakeHost, name: &str, want: Verdict, text: &str) {
        expect(&rows(&fake.paths), name, want, text);
    }

    fn status(uid: u32, caps: &str) -> String {
        format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{caps}\nSeccomp:\t0\n")
    }

    #[test]
    fn capability_table_is_in_bit_order() {
        for (index, (bit, ..)) in CAPABILITIES.iter().enumerate() {
            assert_eq!(index, *bit as usize);
        }
    }

    #[test]
    fn privileges_fail() {
        let fake = FakeHost::good();
        check(&fake, "privileges", Verdict::Ok, "uid 0");
        fake.write("proc/self/status", &status(1000, "0"));
        check(&fake, "privileges", Verdict::Fail, "run as root");
        fake.write("proc/self/status", "");
        check(&fake, "privileges", Verdict::Fail, "unknown");
    }

    #[test]
    fn capabilities_fail() {
        let fake = FakeHost::good();
        check(&fake, "capabilities", Verdict::Ok, "all");
        for (caps, want, text) in [
            ("000001fffeffffff", Verdict::Warn, "oom_score_adj"),
            ("000001fffffeffff", Verdict::Warn, "without SYS_MODULE"),
            ("000001ffffdfffff", Verdict::Fail, "without SYS_ADMIN nothing can be mounted"),
            ("0000000000000000", Verdict::Fail, "run as root"),
            ("what", Verdict::Fail, "unknown"),
        ] {
            fake.write("proc/self/status", &status(0, caps));
            check(&fake, "capabilities", want, text);
        }
    }

    #[test]
    fn capabilities_an_old_kernel_does_not_know_are_not_missed() {
        let fake = FakeHost::good();
        fake.write("proc/self/status", &status(0, "0000003fffffffff"));
        fake.write("proc/sys/kernel/cap_last_cap", "37\n");
        check(&fake, "capabilities", Verdict::Ok, "all");
        fake.write("proc/sys/kernel/cap_last_cap", "40\n");
        check(&fake, "capabilities", Verdict::Warn, "PERFMON");
    }

    #[test]
    fn apparmor_wants_its_parser() {
        let fake = FakeHost::good();
        check(&fake, "AppArmor", Verdict::Ok, "not enabled");
        fake.write("sys/module/apparmor/parameters/enabled", "Y\n");
        check(&fake, "AppArmor", Verdict::Warn, "install the package apparmor");
        fake.program("apparmor_parser");
        check(&fake, "AppArmor", Verdict::Ok, "enabled");
    }

    #[test]
    fn selinux_fails_without_container_policy() {
        let fake = FakeHost::good();
        check(&fake, "SELinux", Verdict::Ok, "not enabled");
        fake.write("etc/selinux/config", "# x\nSELINUX=enforcing\nSELINUXTYPE=mls\n");
        fake.write("sys/fs/selinux/enforce", "0");
        check(&fake, "SELinux", Verdict::Warn, "permissive");
        fake.write("sys/fs/selinux/enforce", "1");
        check(&fake, "SELinux", Verdict::Fail, "container-selinux");
        fake.write("etc/selinux/mls/contexts/lxc_contexts", "");
        check(&fake, "SELinux", Verdict::Ok, "enforcing");
    }
}
