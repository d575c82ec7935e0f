//! Test peers written in Go, built once by the Go toolchain where there is one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

/// The tools that the modules below `tests/tools` pin.
#[derive(Clone, Copy, Debug)]
pub enum GoTool {
    Crictl,
    /// Newer than what distributions ship: it knows user namespaces by path and mapped ids of
    /// mounts.
    Runc,
    Critest,
    /// A plugin of ours on the official stub.
    NriPlugin,
    /// Calls Version by each kind of target that grpc-go has for a unix socket.
    GrpcClient,
}

impl GoTool {
    fn name(self) -> &'static str {
        match self {
            Self::Crictl => "crictl",
            Self::Runc => "runc",
            Self::Critest => "critest",
            Self::NriPlugin => "nri-go",
            Self::GrpcClient => "grpc-go",
        }
    }

    /// Where its `go.mod` is.
    fn module(self) -> &'static str {
        match self {
            Self::Crictl | Self::Critest => "tests/tools",
            Self::Runc => "tests/tools/runc",
            Self::NriPlugin => "tests/interop/nri-go",
            Self::GrpcClient => "tests/interop/grpc-go",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Crictl => "sigs.k8s.io/cri-tools/cmd/crictl",
            Self::Runc => "github.com/opencontainers/runc",
            Self::Critest => "sigs.k8s.io/cri-tools/cmd/critest",
            Self::NriPlugin | Self::GrpcClient => ".",
        }
    }

    /// A suite of tests is built as one.
    fn how(self) -> &'static [&'static str] {
        match self {
            Self::Crictl | Self::NriPlugin | Self::GrpcClient => &["build"],
            Self::Runc => &["build", "-tags", "seccomp"],
            Self::Critest => &["test", "-c"],
        }
    }

    /// The path of the built tool, or `None` where Go is not installed. A machine without Go may
    /// have been given what another one built, in a directory named by `LONGSHORE_TOOLS`.
    ///
    /// The first caller builds, which takes a minute or two; others wait for it. Not for
    /// async code.
    pub fn build(self) -> anyhow::Result<Option<PathBuf>> {
        if let Some(dir) = std::env::var_os("LONGSHORE_TOOLS") {
            let tool = Path::new(&dir).join(self.name());
            return Ok(tool.exists().then_some(tool));
        }
        if Command::new("go").arg("version").output().is_err() {
            return Ok(None);
        }
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let out = workspace.join("target/tools");
        fs::create_dir_all(&out)?;
        let lock = fs::File::create(out.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        // `go build` itself knows whether anything changed.
        let tool = out.join(self.name());
        let built = Command::new("go")
            .args(self.how())
            .args(["-trimpath", "-o"])
            .arg(&tool)
            .arg(self.package())
            .current_dir(workspace.join(self.module()))
            .env("GOFLAGS", "-mod=mod")
            .output()
            .context("run go build")?;
        if !built.status.success() {
            bail!("go build {}: {}", self.package(), String::from_utf8_lossy(&built.stderr));
        }
        Ok(Some(tool))
    }
}
