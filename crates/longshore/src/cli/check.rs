use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::Args;
use oci::Abilities;
use probe::{HostPaths, Paint, Row, Runtime, Verdict};

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
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Check {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let settings = self.settings.settings()?;
        let path: OsString = std::env::var_os("PATH").unwrap_or_default();
        let mut report = probe::check(&HostPaths::real(&path), &settings.probe());
        report.rows.extend(report.runtimes.iter().filter_map(abilities));
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

/// What a runtime lacks is refused by name when a container asks for it.
fn abilities(runtime: &Runtime) -> Option<Row> {
    runtime.works.as_ref().ok()?;
    let all = Abilities::of_features(runtime.features.as_ref()).list();
    let of = |wanted: bool| -> Vec<&str> {
        all.iter().filter(|(_, able)| *able == wanted).map(|(name, _)| *name).collect()
    };
    let lacks = of(false);
    Some(Row {
        group: "OCI runtimes",
        name: format!("{} can", runtime.name),
        verdict: Verdict::Ok,
        found: of(true).join(", "),
        reason: if lacks.is_empty() { String::new() } else { format!("not {}", lacks.join(", ")) },
        remedy: None,
    })
}

/// Of the terminal, or what reads well in a file.
fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(100, |size| size.ws_col.into())
}
