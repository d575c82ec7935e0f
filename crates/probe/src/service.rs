//! Programs beside the daemon: systemd and criu.

use std::process::Command;

use crate::{
    host::{HostPaths, Settings},
    program::{Deadline, run},
    report::Row,
};

const GROUP: &str = "services";

pub(crate) fn rows(host: &HostPaths, settings: &Settings) -> Vec<Row> {
    vec![systemd(host), criu(host, settings)]
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

/// Optional: only checkpoints need it, so its absence is no defect.
fn criu(host: &HostPaths, settings: &Settings) -> Row {
    let row = Row::ok(GROUP, "criu", "absent");
    let Some(path) = host.program("criu") else {
        return row.because("containers cannot be checkpointed");
    };
    let row = Row { found: path.display().to_string(), ..row };
    let why = match run(Command::new(&path).arg("check"), Deadline::after(settings.limit)) {
        Ok(ended) if ended.status.success() => return row,
        Ok(ended) => ended.complaint(),
        Err(error) => error.to_string(),
    };
    row.warn(format!("`criu check` fails, so containers cannot be checkpointed: {why}"))
        .remedy("install a criu that knows this kernel, as root, or do without checkpoints")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect, misbehaving},
    };

    #[track_caller]
    fn check(fake: &FakeHost, name: &str, want: Verdict, text: &str) {
        expect(&rows(&fake.paths, &fake.settings()), name, want, text);
    }

    #[test]
    fn systemd_fails() {
        let fake = FakeHost::good();
        check(&fake, "systemd", Verdict::Ok, "running");
        fake.remove("run/systemd");
        check(&fake, "systemd", Verdict::Warn, "supervisor");
    }

    #[test]
    fn criu_fails() {
        let fake = FakeHost::good();
        check(&fake, "criu", Verdict::Ok, "cannot be checkpointed");
        fake.link(misbehaving("refuses"), "bin/criu");
        check(&fake, "criu", Verdict::Warn, "refused on purpose");
        fake.remove("bin/criu");
        fake.link("/bin/true", "bin/criu");
        check(&fake, "criu", Verdict::Ok, "bin/criu");
    }
}
