use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    longshore::cli::Cli::parse().run()
}
