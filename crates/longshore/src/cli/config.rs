use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Subcommand;

use crate::config::{load, sample};

/// Show or check the configuration.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print a sample file: every key, what it means and its default.
    Default,
    /// Check a file as the daemon would, without starting it.
    Check {
        /// The file to check.
        file: PathBuf,
    },
}

impl ConfigCommand {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        match self {
            Self::Default => write!(out, "{}", sample())?,
            Self::Check { file } => {
                load(Some(&file))?.check()?;
                writeln!(out, "{}: ok", file.display())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
