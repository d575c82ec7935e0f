//! `make conformance`: critest, the conformance suite of CRI, against the daemon under a
//! root of its own, with images made here and served from loopback.
//!
//! ```text
//!   packages ──> images ──> registry (loopback) <──pull── daemon <──CRI── critest
//!                                                                          │
//!                    list in the repository ──compare── report <──JSON─────┘
//! ```
//!
//! The list in the repository says what passed when it was last written; what passed then
//! must pass now.

#![allow(clippy::print_stdout, reason = "the report is the product")]

mod images;
mod interrupt;
mod packages;
mod report;
mod suite;

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use testkit::{Cri, DaemonProcess, GoTool, registry::Registry};

use crate::{interrupt::Interrupt, packages::Programs, report::Report, suite::Suite};

/// Runs critest against the daemon and compares with what passed before.
#[derive(Debug, Parser)]
struct Args {
    /// The daemon; `longshore-shim` lies beside it
    #[arg(long, default_value = "target/debug/longshore")]
    longshore: PathBuf,
    /// The OCI runtime, as the daemon takes it
    #[arg(long, value_name = "NAME=BINARY", default_value = "runc=runc")]
    handler: String,
    /// What passed before
    #[arg(long, value_name = "FILE", default_value = "crates/conformance/expected/runc.txt")]
    expected: PathBuf,
    /// Writes what passes now to that file
    #[arg(long)]
    bless: bool,
    /// Only specs that match
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Exec, attach and port-forward over WebSocket
    #[arg(long)]
    websocket: bool,
    /// A spec that fails is a failure, whether it passed before or not
    #[arg(long)]
    strict: bool,
    /// Build and download what a run needs, so that it can be made without Go and network
    #[arg(long)]
    prepare: bool,
    /// Keep the daemon's log here
    #[arg(long, value_name = "FILE")]
    daemon_log: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!(testkit::is_root(), "containers need root");
    let daemon = args.longshore.display();
    ensure!(args.longshore.exists(), "{daemon} is not there: cargo build -p longshore -p shim");
    let Some(critest) = GoTool::Critest.build()? else {
        println!("SKIPPED: conformance: Go is not installed");
        return Ok(ExitCode::SUCCESS);
    };
    let cache = critest.parent().context("the tool has a directory")?.join("conformance");
    let programs = match packages::get(&cache) {
        Ok(programs) => programs,
        Err(e) => {
            println!("SKIPPED: conformance: {e:#}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    if args.prepare {
        GoTool::Crictl.build()?;
        GoTool::Runc.build()?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(run(&args, &critest, &programs))?;
    print!("{report}");
    if args.bless {
        ensure!(args.focus.is_none(), "--bless needs a whole run");
        fs::write(&args.expected, report.to_list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = fs::read_to_string(&args.expected)
        .with_context(|| format!("read {}", args.expected.display()))?;
    let lost = report.lost(&list, args.focus.is_some());
    for name in &lost {
        println!("REGRESSION: {name}");
    }
    let red = !lost.is_empty() || args.strict && report.is_red();
    Ok(if red { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn run(args: &Args, critest: &Path, programs: &Programs) -> Result<Report> {
    let mut interrupt = Interrupt::catch()?;
    let work = tempfile::Builder::new().prefix("ls-conf").tempdir()?;
    let registry = Registry::start().await?;
    let digest = images::push_all(&registry, programs)?;
    let certs = work.path().join("certs.d");
    suite::map_registries(&certs, &registry.url())?;
    let networks = work.path().join("net.d");
    let bridge = suite::bridge(&networks, work.path())?;
    let handler = from_here(&args.handler)?;
    let mut daemon = DaemonProcess::start_with(&args.longshore, |command| {
        command.arg("--registry-config").arg(&certs).arg("--cni-conf-dir").arg(&networks);
        command.args(["--handler", &handler]);
        // An interrupt from a terminal must not end it before its pods are removed.
        command.process_group(0);
    })
    .await?;
    let suite = Suite {
        program: suite::with_digest(critest, work.path(), &digest)?,
        socket: daemon.cri_socket(),
        dir: work.path().to_owned(),
        focus: args.focus.clone(),
        websocket: args.websocket,
    };
    let report = suite.run(&mut interrupt).await;
    remove_pods(&daemon).await?;
    let ended = daemon.stop().await?;
    if let Some(path) = &args.daemon_log {
        fs::write(path, &ended.stderr)?;
    }
    suite::remove_bridge(&bridge);
    if ended.code != Some(0) {
        bail!("the daemon ended with {:?}: {}", ended.code, ended.stderr);
    }
    report
}

/// The daemon takes the name of a program, or its absolute path.
fn from_here(handler: &str) -> Result<String> {
    let (name, binary) = handler.split_once('=').context("--handler is NAME=BINARY")?;
    let path = match binary.contains('/') {
        true => fs::canonicalize(binary).with_context(|| format!("--handler: {binary}"))?,
        false => binary.into(),
    };
    Ok(format!("{name}={}", path.display()))
}

/// Removes the pods that a failed or interrupted spec left.
async fn remove_pods(daemon: &DaemonProcess) -> Result<()> {
    let cri = Cri::connect(&daemon.cri_socket()).await?;
    for pod in cri.pods().await? {
        cri.remove_pod(&pod.id).await.with_context(|| format!("remove pod {}", pod.id))?;
    }
    Ok(())
}
