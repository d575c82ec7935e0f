//! A shim with the Sandbox service, for tests of what drives one: our own shim, which keeps real
//! containers, started and told of its pod as containerd does it. The sandbox is a container of
//! it that sleeps.
//!
//! ```text
//!   daemon ──Sandbox──> service ──Task──┐
//!          ──Task─────────────────────> our shim ── runc
//! ```

mod sandbox;

use std::{
    ffi::OsString,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use api_shim::{
    runc,
    start::{Bootstrap, Description, Files, LogLevel, Namespaces, OciRuntime},
};
use prost::Message;
use prost_types::Any;

/// As the daemon calls it.
#[derive(Debug, Default)]
struct Call {
    id: String,
    bundle: PathBuf,
    namespace: String,
    action: String,
}

impl Call {
    fn parse(mut args: impl Iterator<Item = OsString>) -> anyhow::Result<Self> {
        let mut call = Self::default();
        while let Some(arg) = args.next() {
            let arg = arg.into_string().ok().context("an argument is no text")?;
            let mut value = || args.next().with_context(|| format!("{arg} has no value"));
            match arg.as_str() {
                "-id" => call.id = value()?.to_string_lossy().into_owned(),
                "-bundle" => call.bundle = value()?.into(),
                "-namespace" => call.namespace = value()?.to_string_lossy().into_owned(),
                "-address" | "-publish-binary" => drop(value()?),
                "start" | "delete" | "-v" => call.action = arg,
                _ => bail!("{arg} is unknown"),
            }
        }
        Ok(call)
    }
}

fn main() -> ExitCode {
    let said = Call::parse(std::env::args_os().skip(1)).and_then(|call| match &*call.action {
        "start" => start(&call),
        "delete" => delete(&call).map(|()| String::new()),
        _ => Ok(concat!("sandbox-shim:\n  Version:  ", env!("CARGO_PKG_VERSION"), "\n").into()),
    });
    shim::say(said.map_err(|error| format!("{error:#}")))
}

/// Our shim, and the Sandbox service with it. What it prints is what containerd's shims print too.
fn start(call: &Call) -> anyhow::Result<String> {
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let options = runc::Options::decode(&*Any::decode(&*input)?.value)?;
    let description = Description {
        id: call.id.clone(),
        dir: call.bundle.clone(),
        runtime: OciRuntime {
            binary: options.binary_name.into(),
            args: Vec::new(),
            // As containerd's shim for runc does.
            root: Path::new(&options.root).join(&call.namespace),
            systemd_cgroup: options.systemd_cgroup,
        },
        namespaces: Namespaces::default(),
        hostname: None,
        sysctls: Default::default(),
        cgroup: None,
        pid1: Default::default(),
        log_level: LogLevel::default(),
        hierarchies: Vec::new(),
    };
    let service = sandbox::Service::new(&description);
    let started = shim::start(&description, || vec![service.into()]);
    started.map_err(|why| anyhow::anyhow!("{why}"))
}

/// Of a container whose shim is dead.
fn delete(call: &Call) -> anyhow::Result<()> {
    let shim = Files::of(&sandbox_beside(&call.bundle)?).bootstrap;
    let text = fs::read(&shim).with_context(|| format!("read {}", shim.display()))?;
    let runtime = serde_json::from_slice::<Bootstrap>(&text)?.runtime;
    let mut command = Command::new(&runtime.binary);
    command.arg("--root").arg(&runtime.root).args(["delete", "--force", &call.id]);
    let output = command.output().context("run the OCI runtime")?;
    if !output.status.success() {
        bail!("delete {}: {}", call.id, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The bundles of a pod are side by side, and the sandbox's has what the shim wrote of itself.
fn sandbox_beside(bundle: &Path) -> anyhow::Result<PathBuf> {
    let all = bundle.parent().context("a bundle has neighbours")?;
    let mut dirs = fs::read_dir(all)?.flatten().map(|entry| entry.path());
    let found = dirs.find(|dir| Files::of(dir).bootstrap.exists());
    found.with_context(|| format!("no shim was ever ready in {}", all.display()))
}
