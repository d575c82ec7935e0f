use std::{io::Write, process::ExitCode};

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

/// Print a completion script, e.g. `longshore completion bash > /etc/bash_completion.d/longshore`.
#[derive(Debug, Args)]
pub(super) struct Completion {
    shell: Shell,
}

impl Completion {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        // Into memory first: the generator panics where a write fails.
        let mut script = Vec::new();
        generate(self.shell, &mut super::Cli::command(), "longshore", &mut script);
        out.write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
