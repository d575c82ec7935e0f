//! What the host needs beside Rust and make, by Debian package.
//!
//! Something that is there already, from a package or not, is left alone; with nothing missing
//! nothing is run, not even an update of the package lists.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};

struct Need {
    package: &'static str,
    why: &'static str,
    proof: Proof,
}

/// What shows that a need is met when the package itself is not installed.
enum Proof {
    /// A program of this name in one of [`BIN_DIRS`].
    Program(&'static str),
    /// One of these files.
    File(&'static [&'static str]),
    /// Nothing else will do.
    Package,
}

const NEEDS: &[Need] = &[
    Need { package: "gcc", why: "compiles the bundled SQLite", proof: Proof::Program("cc") },
    Need {
        package: "libc6-dev",
        why: "C headers for the same",
        proof: Proof::File(&["/usr/include/stdlib.h"]),
    },
    Need {
        package: "ca-certificates",
        why: "trust in registries",
        proof: Proof::File(&["/etc/ssl/certs/ca-certificates.crt"]),
    },
    Need { package: "crun", why: "OCI runtime", proof: Proof::Program("crun") },
    Need {
        package: "runc",
        why: "OCI runtime, where crun cannot work",
        proof: Proof::Program("runc"),
    },
    Need {
        package: "libseccomp-dev",
        why: "tests build OCI runtimes with it",
        proof: Proof::File(&["/usr/include/seccomp.h"]),
    },
    Need { package: "pkg-config", why: "finds it", proof: Proof::Program("pkg-config") },
    Need {
        package: "containerd",
        why: "its shim keeps pods in tests",
        proof: Proof::Program("containerd-shim-runc-v2"),
    },
    Need {
        package: "containernetworking-plugins",
        why: "CNI programs",
        proof: Proof::File(&["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"]),
    },
    Need { package: "iptables", why: "used by CNI portmap", proof: Proof::Program("iptables") },
    Need { package: "iproute2", why: "tests look at networks", proof: Proof::Program("ip") },
    // The other busybox package is linked dynamically: useless as a root file system.
    Need { package: "busybox-static", why: "root file system in tests", proof: Proof::Package },
    Need { package: "sqlite3", why: "tests look at the state", proof: Proof::Program("sqlite3") },
    Need { package: "skopeo", why: "tests copy images with it", proof: Proof::Program("skopeo") },
    Need {
        package: "umoci",
        why: "tests compare unpacked layers with its",
        proof: Proof::Program("umoci"),
    },
    Need { package: "strace", why: "tests look for fsync", proof: Proof::Program("strace") },
];

/// For `test-vm` alone.
const VM_NEEDS: &[Need] = &[
    Need {
        package: "qemu-system-x86",
        why: "a machine to test in",
        proof: Proof::Program("qemu-system-x86_64"),
    },
    Need { package: "debootstrap", why: "its system", proof: Proof::Program("debootstrap") },
    Need { package: "e2fsprogs", why: "its disks", proof: Proof::Program("mkfs.ext4") },
    Need { package: "binutils", why: "makes programs small", proof: Proof::Program("strip") },
];

const BIN_DIRS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Packages whose removal an installation may bring with it.
const REPLACED: &[&str] = &["busybox"];

/// Parts of the toolchain that a minimal installation of Rust leaves out.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt"), ("clippy", "clippy")];

pub(crate) fn run() -> Result<()> {
    run_for(NEEDS)
}

/// What it takes to run a machine, beside what it takes to build what runs there.
pub(crate) fn run_for_vm() -> Result<()> {
    run_for(VM_NEEDS)
}

fn run_for(needs: &[Need]) -> Result<()> {
    let installed = installed_packages(needs)?;
    let missing: Vec<_> = needs.iter().filter(|need| !need.is_met(&installed)).collect();
    for need in &missing {
        println!("setup: {} is missing ({})", need.package, need.why);
    }
    if !missing.is_empty() {
        let packages: Vec<_> = missing.iter().map(|need| need.package).collect();
        install(&packages)?;
    }
    let added = add_components()?;
    if missing.is_empty() && added == 0 {
        println!("setup: nothing is missing");
    }
    Ok(())
}

impl Need {
    fn is_met(&self, installed: &BTreeSet<String>) -> bool {
        installed.contains(self.package)
            || match self.proof {
                Proof::Program(name) => {
                    BIN_DIRS.iter().any(|dir| Path::new(dir).join(name).is_file())
                }
                Proof::File(paths) => paths.iter().any(|path| Path::new(path).is_file()),
                Proof::Package => false,
            }
    }
}

fn installed_packages(needs: &[Need]) -> Result<BTreeSet<String>> {
    let packages = needs.iter().map(|need| need.package);
    // It fails when one package is unknown and still tells about the others.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output()
        .context("ask dpkg-query what is installed: setup knows Debian and its relatives only")?;
    Ok(parse_installed(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_installed(answer: &str) -> BTreeSet<String> {
    let lines = answer.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, status)| *status == "installed").map(|(name, _)| name.to_owned()).collect()
}

fn install(packages: &[&str]) -> Result<()> {
    if !is_root()? {
        let list = packages.join(" ");
        bail!(
            "not root, so nothing was installed; run:\n\n    \
             sudo apt-get update && sudo apt-get install --no-install-recommends -y {list}\n"
        );
    }
    apt(&["update", "-qq"], &[])?;
    refuse_removals(packages)?;
    apt(&["install", "-y", "-qq", "--no-install-recommends"], packages)
}

/// Installing must not cost the host something it uses, a Docker for instance.
fn refuse_removals(packages: &[&str]) -> Result<()> {
    let output = apt_get(&["install", "--simulate", "--no-install-recommends"], packages)
        .output()
        .context("run apt-get")?;
    let removed = parse_removals(&String::from_utf8_lossy(&output.stdout));
    ensure!(
        removed.is_empty(),
        "apt-get would remove {} to install {}: settle this by hand",
        removed.join(", "),
        packages.join(", ")
    );
    Ok(())
}

/// Names on the `Remv name [version]` lines of a simulation, but for those we replace.
fn parse_removals(simulation: &str) -> Vec<String> {
    let names = simulation.lines().filter_map(|line| line.strip_prefix("Remv "));
    let names = names.filter_map(|rest| rest.split_whitespace().next());
    names.filter(|name| !REPLACED.contains(name)).map(str::to_owned).collect()
}

fn apt(args: &[&str], packages: &[&str]) -> Result<()> {
    println!("setup: apt-get {}", [args, packages].concat().join(" "));
    let status = apt_get(args, packages).status().context("run apt-get")?;
    ensure!(status.success(), "apt-get {}: {status}", args[0]);
    Ok(())
}

fn apt_get(args: &[&str], packages: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // A mirror that stumbles, or a package manager that runs beside, is no reason to give up.
    command.args(["-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=120"]);
    command.env("DEBIAN_FRONTEND", "noninteractive").args(args).args(packages);
    command.stdin(std::process::Stdio::null());
    command
}

pub(crate) fn is_root() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    Ok(effective_uid(&status) == Some(0))
}

fn effective_uid(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

/// Returns how many were added.
fn add_components() -> Result<usize> {
    let runs = |subcommand: &str| {
        let output = Command::new("cargo").args([subcommand, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let missing = COMPONENTS.iter().filter(|(_, subcommand)| !runs(subcommand));
    let missing: Vec<_> = missing.map(|(component, _)| *component).collect();
    for component in &missing {
        println!("setup: rustup component add {component}");
        let status = Command::new("rustup").args(["component", "add", component]).status();
        let added = status.is_ok_and(|status| status.success());
        ensure!(
            added,
            "{component} is missing and rustup could not add it: install it beside Rust"
        );
    }
    Ok(missing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let answer = "crun installed\nrunc config-files\nstrace not-installed\n";
        let installed = parse_installed(answer);
        assert_eq!(installed.into_iter().collect::<Vec<_>>(), ["crun"]);
    }

    #[test]
    fn a_need_is_met_by_its_package_or_by_its_proof() {
        let need = |proof| Need { package: "some-package", why: "", proof };
        let none = BTreeSet::new();
        let all = BTreeSet::from(["some-package".to_owned()]);
        assert!(need(Proof::Package).is_met(&all));
        assert!(!need(Proof::Package).is_met(&none));
        assert!(need(Proof::Program("sh")).is_met(&none));
        assert!(!need(Proof::Program("no-such-program")).is_met(&none));
        assert!(need(Proof::File(&["/no/such", "/proc/self/status"])).is_met(&none));
        assert!(!need(Proof::File(&["/no/such"])).is_met(&none));
    }

    #[test]
    fn removals_are_seen_except_the_replaced() {
        let simulation =
            "Inst runc (1.1.5 Debian)\nRemv containerd.io [1.7]\nRemv busybox [1:1.35]\n";
        assert_eq!(parse_removals(simulation), ["containerd.io"]);
        assert!(parse_removals("Inst crun (1.8.1)\nConf crun (1.8.1)\n").is_empty());
    }

    #[test]
    fn the_effective_uid_decides() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(0));
        assert_eq!(effective_uid("Uid:\t0\t1000\t0\t0\n"), Some(1000));
        assert_eq!(effective_uid(""), None);
    }
}
