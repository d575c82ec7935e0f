use std::{io::Write, process::ExitCode};

use base::Span;
use clap::Args;

use super::{
    client::DaemonArgs,
    usage::{self, Readings, SortBy},
};

/// Show what containers use: CPU, memory, swap, disk, and the network of their pods.
///
/// The daemon is asked twice, and the share of CPUs is that of the time between; 100 % is one
/// CPU. `longshore top` shows the same all the time.
///
///     longshore stats --sort memory
///     longshore stats --interval 5s --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Stats {
    /// What comes first.
    #[arg(short, long, value_enum, default_value_t)]
    sort: SortBy,
    /// The time between the two questions.
    #[arg(short, long, default_value = "1s", value_name = "TIME")]
    interval: Span,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

impl Stats {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.daemon.connect().await?;
            let before = Readings::take(&client).await?;
            tokio::time::sleep(self.interval.0).await;
            let rows = usage::rows(&before, &Readings::take(&client).await?, self.sort);
            match self.json {
                true => writeln!(out, "{:#}", usage::json(&rows))?,
                false => write!(out, "{}", usage::table(&rows, usize::MAX))?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
