//! Commands. Each returns an exit code; the one place that prints errors is here.

mod check;
mod client;
mod completion;
mod config;
mod daemon;
mod exec;
mod find;
mod image;
mod info;
mod inspect;
mod log_format;
mod logs;
mod nri;
mod ps;
mod pull;
mod rm;
mod rootfs_image;
mod run;
mod screen;
mod session;
mod size;
mod stats;
mod stop;
mod table;
mod tail;
mod terminal;
mod top;
mod usage;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// A node container engine for Kubernetes (CRI), with NRI plugins in every container.
///
/// Try `longshore check` first: it tells what this host can do and what it lacks.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Daemon(daemon::Daemon),
    Check(check::Check),
    Info(info::Info),
    Ps(ps::Ps),
    Run(run::Run),
    Exec(exec::Exec),
    Logs(logs::Logs),
    Stop(stop::Stop),
    Rm(rm::Rm),
    Inspect(inspect::Inspect),
    Stats(stats::Stats),
    Top(top::Top),
    Image(image::Image),
    #[command(subcommand)]
    Nri(nri::NriCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print the version of this program.
    Version,
    Completion(completion::Completion),
}

impl Cli {
    pub fn run(self) -> ExitCode {
        let mut out = io::stdout().lock();
        let failure = self.command.failure();
        match self.command.run(&mut out) {
            Ok(code) => code,
            // The reader went away: `longshore check | head`.
            Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("longshore: {error:#}");
                failure
            }
        }
    }
}

impl Command {
    /// Of our own failure. Commands that pass on an exit code have one that programs in
    /// containers hardly use.
    fn failure(&self) -> ExitCode {
        match self {
            Self::Run(_) | Self::Exec(_) => ExitCode::from(125),
            _ => ExitCode::FAILURE,
        }
    }

    fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        match self {
            Self::Daemon(daemon) => daemon.run(),
            Self::Check(check) => check.run(out),
            Self::Info(info) => info.run(out),
            Self::Ps(ps) => ps.run(out),
            Self::Run(run) => run.run(out),
            Self::Exec(exec) => exec.run(out),
            Self::Logs(logs) => logs.run(out),
            Self::Stop(stop) => stop.run(out),
            Self::Rm(rm) => rm.run(out),
            Self::Inspect(inspect) => inspect.run(out),
            Self::Stats(stats) => stats.run(out),
            Self::Top(top) => top.run(out),
            Self::Image(image) => image.run(out),
            Self::Nri(nri) => nri.run(out),
            Self::Config(config) => config.run(out),
            Self::Version => {
                writeln!(out, "longshore {}", crate::daemon::VERSION)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Completion(completion) => completion.run(out),
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>();
        let kind = io.or_else(|| json.and_then(serde_json::Error::io_error_kind));
        kind == Some(io::ErrorKind::BrokenPipe)
    })
}

/// That of a container, as a process can have it.
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// For commands that make a few calls and end.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let text = writeln!(Gone, "x").map_err(anyhow::Error::from);
        assert!(is_broken_pipe(&text.unwrap_err()));
        let json = serde_json::to_writer(Gone, "x").map_err(anyhow::Error::from);
        assert!(is_broken_pipe(&json.unwrap_err().context("print")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("other")));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
