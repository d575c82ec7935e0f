mod explain;
mod plugins;
mod pod_file;
mod quantity;
mod report;
mod simulate;
mod story;
mod watch;

use std::{io::Write, process::ExitCode};

use clap::Subcommand;

/// NRI plugins, and what they do to containers.
#[derive(Debug, Subcommand)]
pub(super) enum NriCommand {
    Plugins(plugins::Plugins),
    Explain(explain::Explain),
    Watch(watch::Watch),
    Restart(plugins::Restart),
    Simulate(simulate::Simulate),
}

impl NriCommand {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        match self {
            Self::Plugins(plugins) => plugins.run(out),
            Self::Explain(explain) => explain.run(out),
            Self::Watch(watch) => watch.run(out),
            Self::Restart(restart) => restart.run(out),
            Self::Simulate(simulate) => simulate.run(out),
        }
    }
}
