//! Programs beside the daemon: systemd and criu.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    host::{HostPaths, Settings, find_program},
    program::{Deadline, run},
    report::Row,
};

const GROUP: &str = "services";

pub(crate) fn rows(host: &HostPaths, settings: &Settings) -> Vec<Row> {
    vec![systemd(host), criu_row(host, settings)]
}

fn systemd(host: &HostPaths) -> Row {
    let row = Row::ok(GROUP, "systemd", "running");
    if host.systemd_runs() {
        return row;
    }
    Row { found: "not running".into(), ..row }
        .warn("nothing restarts the daemon when it dies, and cgroups are made by cgroupfs")
        .remedy("put the daemon under a supervisor of yours")
}

/// Why containers cannot be checkpointed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCriu {
    #[error("criu is not installed: install the package criu")]
    Absent,
    #[error("`{} check` fails: {why}: install a criu that knows this kernel", path.display())]
    Broken { path: PathBuf, why: String },
}

/// The criu in the first of these directories that has one, if it works on this kernel. Blocks
/// for at most `limit`.
pub fn criu(dirs: &[PathBuf], limit: Duration) -> Result<PathBuf, NoCriu> {
    let path = find_program(dirs, "criu").ok_or(NoCriu::Absent)?;
    match check(&path, limit) {
        Ok(()) => Ok(path),
        Err(why) => Err(NoCriu::Broken { path, why }),
    }
}

fn check(criu: &Path, limit: Duration) -> Result<(), String> {
    match run(Command::new(criu).arg("check"), Deadline::after(limit)) {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) => Err(ended.complaint()),
        Err(error) => Err(error.to_string()),
    }
}

/// Optional: only checkpoints need it, so its absence is no defect.
fn criu_row(host: &HostPaths, settings: &Settings) -> Row {
    let row = Row::ok(GROUP, "criu", "absent");
    match criu(&host.path_dirs, settings.limit) {
        Ok(path) => Row { found: path.display().to_string(), ..row },
        Err(NoCriu::Absent) => row.because("containers cannot be checkpointed"),
        Err(NoCriu::Broken { path, why }) => Row { found: path.display().to_string(), ..row }
            .warn(format!("`criu check` fails, so containers cannot be checkpointed: {why}"))
            .remedy("install a criu that knows this kernel, as root, or do without checkpoints"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect, misbehaving},
    };

    #[track_caller]
    fn expect_row(fake: &FakeHost, name: &str, want: Verdict, text: &str) {
        expect(&rows(&fake.paths, &fake.settings()), name, want, text);
    }

    #[test]
    fn systemd_fails() {
        let fake = FakeHost::good();
        expect_row(&fake, "systemd", Verdict::Ok, "running");
        fake.remove("run/systemd");
        expect_row(&fake, "systemd", Verdict::Warn, "supervisor");
    }

    #[test]
    fn criu_fails() {
        let fake = FakeHost::good();
        let found = || criu(&fake.paths.path_dirs, fake.settings().limit);
        expect_row(&fake, "criu", Verdict::Ok, "cannot be checkpointed");
        assert_eq!(found(), Err(NoCriu::Absent));
        fake.link(misbehaving("refuses"), "bin/criu");
        expect_row(&fake, "criu", Verdict::Warn, "refused on purpose");
        let broken = found().unwrap_err().to_string();
        assert!(broken.contains("refused on purpose: install a criu"), "{broken}");
        fake.remove("bin/criu");
        fake.link("/bin/true", "bin/criu");
        expect_row(&fake, "criu", Verdict::Ok, "bin/criu");
        assert!(found().unwrap().ends_with("bin/criu"));
    }
}
