//! What all sample plugins do as programs: they log, and they end with a sentence.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

/// Logs to standard error, with colours only on a terminal and without `NO_COLOR`.
pub(crate) fn log() {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(colours).init();
}

/// Makes an exit code of how the plugin ended. An error is told in one line, whatever
/// `RUST_BACKTRACE` says: it is for operators.
pub(crate) fn exit(name: &str, ended: anyhow::Result<()>) -> ExitCode {
    let Err(error) = ended else { return ExitCode::SUCCESS };
    // Without standard error there is nobody to tell.
    let _ = writeln!(io::stderr(), "{name}: {error:#}");
    ExitCode::FAILURE
}
