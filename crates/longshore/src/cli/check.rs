use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use probe::{Driver, HostPaths, Paint, Verdict};

use super::daemon::SettingsArgs;
use crate::config::{CgroupDriver, Handlers, Settings};

/// Look at this host: what works, what is missing, and how to get it.
///
/// OCI runtimes are judged by a container that really runs. Ends with 1 if something fails
/// that every container needs.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Less than this is gone after a few pulls.
const MIN_FREE_BYTES: u64 = 2 << 30;

/// For one program or trial container.
const LIMIT: Duration = Duration::from_secs(10);

impl Check {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let settings = self.settings.settings()?;
        let path: OsString = std::env::var_os("PATH").unwrap_or_default();
        let report = probe::check(&HostPaths::real(&path), &probe_settings(&settings));
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &report.json())?;
            writeln!(out)?;
        } else {
            let colour = io::stdout().is_terminal();
            let paint = if colour { Paint::Ansi } else { Paint::Plain };
            write!(out, "{}", report.table(terminal_width(), paint))?;
        }
        Ok(match report.verdict() {
            Verdict::Ok | Verdict::Warn => ExitCode::SUCCESS,
            Verdict::Fail => ExitCode::FAILURE,
        })
    }
}

fn probe_settings(settings: &Settings) -> probe::Settings {
    probe::Settings {
        root: settings.root.clone(),
        cni_conf_dir: settings.cni_conf_dir.clone(),
        cni_bin_dirs: settings.cni_bin_dirs.clone(),
        runtimes: match &settings.handlers {
            Handlers::Search => Vec::new(),
            Handlers::Given { binaries, .. } => binaries.clone(),
        },
        driver: match settings.cgroup_driver {
            CgroupDriver::Auto => None,
            CgroupDriver::Systemd => Some(Driver::Systemd),
            CgroupDriver::Cgroupfs => Some(Driver::Cgroupfs),
        },
        min_free_bytes: MIN_FREE_BYTES,
        limit: LIMIT,
    }
}

/// Of the terminal, or what reads well in a file.
fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(100, |size| size.ws_col.into())
}
