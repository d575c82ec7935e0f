//! Pod networks for tests: Debian's CNI programs, on a host that nobody else is on.

use std::{
    fs,
    net::IpAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use sys::namespace::{self, Holder, Namespace, Spaces};

use crate::{is_root, skip};

/// Where Debian has them.
const PROGRAMS: &str = "/usr/lib/cni";

/// Skips, loudly, where pods cannot be attached to a bridge.
pub fn installed(test: &str) -> bool {
    let missing = ["bridge", "host-local", "portmap"]
        .iter()
        .any(|name| !Path::new(PROGRAMS).join(name).exists());
    if missing {
        skip(test, "needs containernetworking-plugins");
    }
    !missing
}

/// Runs `test` in a network namespace of its own, which all it starts takes for the host's:
/// bridges, rules and addresses go with it. Skips without root or the programs.
pub fn on_own_network<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F + Send) {
    if !is_root() {
        return skip(name, "needs root");
    }
    if !installed(name) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let pin = Pin(dir.path().join("host"));
    let spaces = Spaces { user: None, others: vec![Namespace::Network] };
    let holder = Holder::park(&spaces).expect("a network namespace");
    holder.pin(Namespace::Network, &pin.0).expect("a pin");
    drop(holder);
    let file = namespace::open(&pin.0).expect("the pin is there");
    let joined = namespace::in_thread(&[file.as_fd()], || {
        command("ip", &["link", "set", "lo", "up"]);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test());
    });
    joined.expect("join the namespace");
}

struct Pin(PathBuf);

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = namespace::unpin(&self.0);
    }
}

/// A bridge with published ports, whose addresses are kept below `leases`.
pub fn bridge(leases: &Path, ranges: &[&str]) -> Value {
    let ranges: Vec<_> = ranges.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"cniVersion": "1.0.0", "name": "lstest", "plugins": [
        {"type": "bridge", "bridge": "lstest0", "isGateway": true, "ipMasq": true,
         "hairpinMode": true,
         "ipam": {"type": "host-local", "ranges": ranges, "dataDir": leases,
            "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]})
}

/// Puts a configuration into a directory as careful writers do.
pub fn configure(dir: &Path, file: &str, conf: &str) {
    fs::create_dir_all(dir).expect("a directory");
    let draft = dir.join(".new");
    fs::write(&draft, conf).expect("a file");
    fs::rename(draft, dir.join(file)).expect("its name");
}

/// A program made of shell.
pub fn program(dir: &Path, name: &str, script: &str) {
    fs::create_dir_all(dir).expect("a directory");
    let draft = dir.join(format!(".{name}"));
    crate::program(&draft, &format!("#!/bin/sh\n{script}\n"));
    fs::rename(draft, dir.join(name)).expect("its name");
}

/// Everything a pod could leave behind on its host's network.
#[derive(Debug, PartialEq)]
pub struct Traces {
    pub links: Vec<String>,
    pub rules: Vec<String>,
    pub leases: Vec<String>,
}

impl Traces {
    /// Of the namespace we are in, and of a [`bridge`] with these leases.
    pub fn now(leases: &Path) -> Self {
        let links = command("ip", &["-o", "link"]);
        let links = links.lines().filter_map(|line| line.split(": ").nth(1)).map(str::to_owned);
        let rules = command("iptables-save", &[]) + &command("ip6tables-save", &[]);
        // Without comments and counters.
        let rules = rules.lines().filter(|line| !line.starts_with('#'));
        let rules = rules.filter_map(|line| line.split(" [").next()).map(str::to_owned);
        // Beside the leases there is a lock and the last address that was given.
        let entries = fs::read_dir(leases.join("lstest")).into_iter().flatten().flatten();
        let leases = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut leases: Vec<_> = leases.filter(|name| name.parse::<IpAddr>().is_ok()).collect();
        leases.sort();
        Self { links: links.collect(), rules: rules.collect(), leases }
    }
}

/// What a program of the host printed; it must succeed.
#[track_caller]
pub fn command(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect(program);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {text}{error}");
    text
}
