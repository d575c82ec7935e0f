//! Kernel version, namespaces and seccomp.

use crate::{
    host::{HostPaths, read, status_field},
    report::Row,
};

const KERNEL: &str = "kernel";
const NAMESPACES: &str = "namespaces";

/// `openat2` and time namespaces: paths inside a container's root cannot be walked safely without it.
const OLDEST: (u32, u32) = (5, 6);
/// Overlayfs takes idmapped lower layers.
const COMFORTABLE: (u32, u32) = (5, 19);

/// Name in `/proc/self/ns`, whether every container needs it, and what is lost without it.
const KINDS: [(&str, bool, &str); 8] = [
    ("mnt", true, "a container needs its own mounts"),
    ("pid", true, "a container needs its own processes"),
    ("net", true, "a pod needs its own network"),
    ("ipc", true, "a pod needs its own shared memory"),
    ("uts", true, "a pod needs its own host name"),
    ("user", false, "pods with hostUsers: false cannot run"),
    ("cgroup", false, "containers see the host's cgroup paths"),
    ("time", false, "containers cannot have their own boot time"),
];

pub(crate) fn rows(host: &HostPaths) -> Vec<Row> {
    let mut rows = vec![version(host), seccomp(host)];
    rows.extend(KINDS.iter().map(|&(kind, needed, lost)| namespace(host, kind, needed, lost)));
    rows.push(unprivileged(host));
    rows
}

fn version(host: &HostPaths) -> Row {
    let release = read(&host.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let row = Row::ok(KERNEL, "version", &release);
    match parse_release(&release) {
        None => row.fail("the version of the kernel cannot be read").remedy("mount /proc"),
        Some(found) if found < OLDEST => row
            .fail("openat2, pidfd and the mount API need Linux 5.6")
            .remedy("install a kernel of the 5.19 series or newer"),
        Some(found) if found < COMFORTABLE => row
            .warn("overlayfs takes idmapped layers from Linux 5.19 on: pods with a user namespace cannot share layers")
            .remedy("install a kernel of the 5.19 series or newer"),
        Some(_) => row,
    }
}

/// Major and minor of a release such as `6.1.0-18-amd64`.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn seccomp(host: &HostPaths) -> Row {
    const WANTED: [&str; 4] = ["errno", "allow", "kill_process", "user_notif"];
    let status = read(&host.proc.join("self/status")).unwrap_or_default();
    let actions = read(&host.proc.join("sys/kernel/seccomp/actions_avail")).unwrap_or_default();
    let row = Row::ok(KERNEL, "seccomp", &actions);
    if status_field(&status, "Seccomp").is_none() || actions.is_empty() {
        return Row { found: "absent".into(), ..row }
            .fail("the kernel has no seccomp filters: containers could make any system call")
            .remedy("use a kernel with CONFIG_SECCOMP_FILTER");
    }
    let has = |action: &&str| actions.split_whitespace().any(|have| have == *action);
    let missing: Vec<_> = WANTED.into_iter().filter(|action| !has(action)).collect();
    if missing.is_empty() {
        return row;
    }
    row.warn(format!("profiles that use {} are refused", missing.join(", ")))
        .remedy("use a newer kernel")
}

fn namespace(host: &HostPaths, kind: &str, needed: bool, lost: &str) -> Row {
    let exists = host.proc.join("self/ns").join(kind).symlink_metadata().is_ok();
    let sysctl = format!("user.max_{kind}_namespaces");
    // Kernels without the limit file have no limit.
    let limit = read(&host.proc.join(format!("sys/user/max_{kind}_namespaces"))).ok();
    let verdict = |row: Row, remedy: String| match needed {
        true => row.fail(lost).remedy(remedy),
        false => row.warn(lost).remedy(remedy),
    };
    match (exists, limit) {
        (false, _) => {
            let option = format!("CONFIG_{}_NS", kind.to_uppercase());
            verdict(Row::ok(NAMESPACES, kind, "absent"), format!("use a kernel with {option}"))
        }
        (true, Some(limit)) if limit == "0" => verdict(
            Row::ok(NAMESPACES, kind, format!("forbidden, {sysctl} is 0")),
            format!("sysctl -w {sysctl}=10000"),
        ),
        (true, Some(limit)) => Row::ok(NAMESPACES, kind, format!("at most {limit}")),
        (true, None) => Row::ok(NAMESPACES, kind, "present"),
    }
}

/// Two distributions' own switches. They do not bind the daemon, which is root,
/// but programs inside containers that make a user namespace themselves.
fn unprivileged(host: &HostPaths) -> Row {
    const SWITCHES: [(&str, &str); 2] =
        [("unprivileged_userns_clone", "0"), ("apparmor_restrict_unprivileged_userns", "1")];
    let closed = SWITCHES.into_iter().find(|(name, off)| {
        read(&host.proc.join("sys/kernel").join(name)).is_ok_and(|value| value == *off)
    });
    let row = Row::ok(NAMESPACES, "unprivileged user", "allowed");
    let Some((name, off)) = closed else { return row };
    let on = if off == "0" { "1" } else { "0" };
    Row { found: format!("restricted, kernel.{name} is {off}"), ..row }
        .warn("browsers, sandboxes and image builders inside containers cannot make their own user namespace")
        .remedy(format!("sysctl -w kernel.{name}={on}, if you trust such programs"))
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

    #[test]
    fn good_host_is_ok() {
        let fake = FakeHost::good();
        for row in rows(&fake.paths) {
            assert_eq!(row.verdict, Verdict::Ok, "{row:?}");
        }
    }

    #[test]
    fn version_fails() {
        let fake = FakeHost::good();
        for (release, want, text) in [
            ("6.18.44-x", Verdict::Ok, "6.18.44-x"),
            ("5.19.0", Verdict::Ok, ""),
            ("5.10.0-28-amd64", Verdict::Warn, "5.19"),
            ("5.4.0", Verdict::Fail, "openat2"),
            ("4.19.0", Verdict::Fail, "openat2"),
            ("nonsense", Verdict::Fail, "cannot be read"),
            ("", Verdict::Fail, "cannot be read"),
        ] {
            fake.write("proc/sys/kernel/osrelease", release);
            check(&fake, "version", want, text);
        }
    }

    #[test]
    fn seccomp_fails() {
        let fake = FakeHost::good();
        fake.write("proc/sys/kernel/seccomp/actions_avail", "kill_process errno trace allow\n");
        check(&fake, "seccomp", Verdict::Warn, "user_notif");
        fake.remove("proc/sys/kernel/seccomp/actions_avail");
        check(&fake, "seccomp", Verdict::Fail, "CONFIG_SECCOMP_FILTER");

        let fake = FakeHost::good();
        fake.write("proc/self/status", "Name:\tx\n");
        check(&fake, "seccomp", Verdict::Fail, "any system call");
    }

    #[test]
    fn each_namespace_fails_when_absent_or_forbidden() {
        for (kind, needed, lost) in KINDS {
            let want = if needed { Verdict::Fail } else { Verdict::Warn };
            let fake = FakeHost::good();
            fake.write(&format!("proc/sys/user/max_{kind}_namespaces"), "0\n");
            check(&fake, kind, want, lost);
            check(&fake, kind, want, &format!("sysctl -w user.max_{kind}_namespaces"));
            fake.remove(&format!("proc/self/ns/{kind}"));
            check(&fake, kind, want, &format!("CONFIG_{}_NS", kind.to_uppercase()));
        }
    }

    #[test]
    fn unprivileged_user_namespaces_fail() {
        let fake = FakeHost::good();
        fake.write("proc/sys/kernel/unprivileged_userns_clone", "1\n");
        check(&fake, "unprivileged user", Verdict::Ok, "allowed");
        fake.write("proc/sys/kernel/unprivileged_userns_clone", "0\n");
        check(&fake, "unprivileged user", Verdict::Warn, "kernel.unprivileged_userns_clone=1");

        let fake = FakeHost::good();
        fake.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
        check(&fake, "unprivileged user", Verdict::Warn, "restrict_unprivileged_userns=0");
    }
}
