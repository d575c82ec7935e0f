//! Commands that find a certain OCI runtime before all others.
//!
//! A daemon takes the first OCI runtime that works, crun before runc, and so do most tests. To run them
//! with a certain one they get a mount namespace of their own, in which crun is hidden, or the host's
//! cgroups suit it. Mounts of the host still arrive there; none made there reaches the host.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::setup;

/// The OCI runtime that tests run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OciRuntime {
    Runc,
    Crun,
}

/// A host on which commands can be confined to an OCI runtime, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Confinement {
    runtime: OciRuntime,
    is_root: bool,
    /// Mount points that the host did not have; removed in the end.
    made: Vec<PathBuf>,
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// Hides crun; what is not found first is not taken.
const FOR_RUNC: &str = "\
set -e
for dir in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
  if [ -x $dir/crun ]; then mount --bind /dev/null $dir/crun; fi
done
mount --make-rshared /
exec \"$@\"";

/// crun refuses hybrid cgroups for as long as a controller is on the v2 side. Those that nobody uses
/// can be moved to v1 by mounting them there; they return with the end of the namespace.
const FOR_CRUN: &str = "\
set -e
for controller in $(cat /sys/fs/cgroup/unified/cgroup.controllers 2>/dev/null); do
  mount -t cgroup -o $controller none /sys/fs/cgroup/$controller
done
mount --make-rshared /
exec \"$@\"";

impl OciRuntime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }

    /// Prepares the host. Without root nothing is confined: tests with containers skip themselves.
    pub(crate) fn prepare(self) -> Result<Confinement> {
        let is_root = setup::is_root()?;
        let mut made = Vec::new();
        if is_root && self == Self::Crun {
            let file = Path::new(CGROUPS).join("unified/cgroup.controllers");
            // No such file: the host has no hybrid cgroups.
            let controllers = fs::read_to_string(file).unwrap_or_default();
            for controller in controllers.split_whitespace() {
                let dir = Path::new(CGROUPS).join(controller);
                if fs::create_dir(&dir).is_ok() {
                    made.push(dir);
                }
            }
        }
        Ok(Confinement { runtime: self, is_root, made })
    }
}

impl Confinement {
    /// Returns a command that runs `command` where the runtime is found first.
    pub(crate) fn command(&self, command: &Command) -> Command {
        let mut confined = if self.is_root {
            let script = match self.runtime {
                OciRuntime::Runc => FOR_RUNC,
                OciRuntime::Crun => FOR_CRUN,
            };
            let mut confined = Command::new("unshare");
            confined.args(["--mount", "--propagation", "slave", "--", "sh", "-c", script, "sh"]);
            confined.arg(command.get_program());
            confined
        } else {
            Command::new(command.get_program())
        };
        confined.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => confined.env(key, value),
                None => confined.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            confined.current_dir(dir);
        }
        confined.env("LONGSHORE_TEST_RUNTIME", self.runtime.name()).stdin(Stdio::null());
        confined
    }

    /// Checks that `longshore`, confined, takes the runtime. The error says why it does not.
    pub(crate) fn check(&self, longshore: &Path) -> Result<()> {
        ensure!(self.is_root, "containers need root");
        let output = self
            .command(Command::new(longshore).args(["check", "--json"]))
            .output()
            .context("run longshore check")?;
        let report: Report = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("longshore check: {}", String::from_utf8_lossy(&output.stderr).trim_end())
        })?;
        report.takes(self.runtime)
    }
}

impl Drop for Confinement {
    fn drop(&mut self) {
        for dir in &self.made {
            if let Err(e) = fs::remove_dir(dir) {
                println!("{} was left: {e}", dir.display());
            }
        }
    }
}

/// The part of `longshore check --json` that matters here.
#[derive(Debug, Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    group: String,
    name: String,
    found: String,
    #[serde(default)]
    reason: String,
}

impl Report {
    fn takes(&self, runtime: OciRuntime) -> Result<()> {
        let row =
            |name| self.rows.iter().find(|row| row.group == "OCI runtimes" && row.name == name);
        let default = row("default").context("longshore check found no OCI runtime")?;
        let name = runtime.name();
        let reason = row(name).map_or("not installed", |row| &row.reason);
        ensure!(default.found == name, "{name}: {reason}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_directory_and_arguments_are_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $0 $KEY $LONGSHORE_TEST_RUNTIME; pwd", "a b"]);
        command.env("KEY", "value").current_dir("/usr");
        let output = OciRuntime::Runc.prepare().unwrap().command(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b value runc\n/usr\n");
    }

    #[test]
    fn crun_is_hidden_where_runc_is_wanted() {
        if !setup::is_root().unwrap() || !Path::new("/usr/bin/crun").exists() {
            return;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "command -v crun || echo none"]);
        let output = OciRuntime::Runc.prepare().unwrap().command(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "none\n");
        assert!(command.output().unwrap().stdout.ends_with(b"crun\n"), "and nowhere else");
    }

    fn check(runtime: OciRuntime, report: &str, want: &str) {
        let report: Report = serde_json::from_str(report).unwrap();
        let taken = report.takes(runtime);
        assert_eq!(taken.err().map(|e| e.to_string()).unwrap_or_default(), want);
    }

    #[test]
    fn a_runtime_that_is_not_taken_is_refused_with_the_reason() {
        let report = r#"{"rows": [
            {"group": "OCI runtimes", "name": "crun", "found": "1.8", "reason": "hybrid cgroups"},
            {"group": "OCI runtimes", "name": "runc", "found": "1.1", "reason": ""},
            {"group": "OCI runtimes", "name": "default", "found": "runc", "reason": ""},
            {"group": "kernel", "name": "crun", "found": "", "reason": "another group"}
        ]}"#;
        check(OciRuntime::Runc, report, "");
        check(OciRuntime::Crun, report, "crun: hybrid cgroups");
        check(OciRuntime::Crun, r#"{"rows": []}"#, "longshore check found no OCI runtime");
    }
}
