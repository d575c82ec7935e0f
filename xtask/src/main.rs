//! The project's own build tool: `cargo xtask`, mostly behind `make`.
//!
//! Checks are pure functions over data (`cargo metadata`, `deny.toml`, the output of a test run);
//! everything around them only fetches and prints.

#![expect(clippy::print_stdout, reason = "a command line tool: printing is its purpose")]

mod bench;
mod confine;
mod conformance;
mod demo;
#[cfg(test)]
mod fabricate;
mod install;
mod layers;
mod licences;
mod metadata;
mod output;
mod setup;
mod spdx;
mod stages;
mod tally;
mod vm;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  setup       install the Debian packages that are missing
  demo        start a daemon under ./.demo, ask it who it is, stop it
  test        everything CI runs, or the stages that are named after it
  check       format, lints, dependency rules, unit tests
  test-long   the tests with random and long loops at full length
  bench       all benchmarks
  conformance run critest, the suite of CRI; its own flags follow
  test-vm     tests of containers in a machine with cgroup v2, systemd and AppArmor
  install     programs as they ship, below DESTDIR, for PREFIX (/usr/local)
  layers      do dependencies point down?
  licences    licences, sources and versions of what we build on";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let root = root()?;
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["setup"] => setup::run(),
        ["demo"] => demo::run(&root),
        ["demo-inside"] => demo::run_inside(&root),
        ["test", ref stages @ ..] => stages::test(&root, stages),
        ["run-if-listed", list, program, ref args @ ..] => {
            stages::run_if_listed(list, program, args)
        }
        ["check"] => stages::check(&root),
        ["test-long"] => stages::test_long(&root),
        ["bench"] => bench::run(&root),
        ["conformance", ref args @ ..] => conformance::run(&root, args),
        ["test-vm", ref args @ ..] => vm::run(&root, args),
        ["install"] => install::run(&root),
        ["layers"] => layers::run(&root),
        ["licences"] => licences::run(&root),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("unknown command: {}\n\n{USAGE}", args.join(" ")),
    }
}

/// The directory of the workspace: xtask lives right below it.
fn root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(Path::to_owned).context("xtask is not inside a workspace")
}

/// Where cargo puts what it builds, wherever that was set to be: beside us.
fn bin_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the path of xtask")?;
    own.parent().map(Path::to_owned).context("xtask has no directory")
}

/// One line when all is well, else one per fault, and an error.
fn report(check: &str, count: usize, what: &str, faults: &[String]) -> Result<()> {
    for fault in faults {
        println!("{check}: {fault}");
    }
    match faults.len() {
        0 => println!("{check}: {count} {what}, all as they should be"),
        1 => bail!("{check}: 1 fault"),
        n => bail!("{check}: {n} faults"),
    }
    Ok(())
}
