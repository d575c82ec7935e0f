mod abilities;

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::Args;
use probe::{HostPaths, Paint, Verdict};

use super::daemon::SettingsArgs;

/// Look at this host: what works, what is missing, and how to get it.
///
/// OCI runtimes are judged by a container that really runs. Ends with 1 if something fails
/// that every container needs.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print only what each handler can do, as a table in Markdown.
    #[arg(long, conflicts_with = "json")]
    abilities: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Check {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let settings = self.settings.settings()?;
        let path: OsString = std::env::var_os("PATH").unwrap_or_default();
        let mut report = probe::check(&HostPaths::real(&path), &settings.probe());
        let handlers = abilities::find(&settings.handlers, &report.runtimes, &path);
        if self.abilities {
            write!(out, "{}", abilities::markdown(&handlers))?;
            return Ok(ExitCode::SUCCESS);
        }
        report.rows.extend(handlers.iter().flat_map(abilities::Found::rows));
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

/// Of the terminal, or what reads well in a file.
fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(100, |size| size.ws_col.into())
}
