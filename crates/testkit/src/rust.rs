//! Test peers written in Rust, built once from the registry of crates.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

use crate::skip;

/// What a long run of tests builds, each by its own lock file.
#[derive(Clone, Copy, Debug)]
pub enum RustTool {
    /// An OCI runtime. Its seccomp wants Debian's libseccomp-dev.
    Youki,
    /// The shim for runc of containerd's Rust extensions.
    RuncShim,
}

impl RustTool {
    /// The package, its version, the program.
    fn origin(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Youki => ("youki", "0.7.0", "youki"),
            Self::RuncShim => ("containerd-runc-shim", "0.2.0", "containerd-shim-runc-v2-rs"),
        }
    }

    fn features(self) -> &'static str {
        match self {
            Self::Youki => "v1,v2,seccomp",
            Self::RuncShim => "",
        }
    }

    /// The path of the built tool, or `None`, loudly, where it cannot be built.
    pub fn find(self, test: &str) -> Option<PathBuf> {
        let built = self.build();
        built.map_err(|error| skip(test, &format!("{error:#}"))).ok()
    }

    /// The first caller builds, which takes minutes; others wait for it, and later runs have it.
    /// As with [`crate::GoTool`], `LONGSHORE_TOOLS` names a directory of what another machine
    /// built. Not for async code.
    pub fn build(self) -> anyhow::Result<PathBuf> {
        let (package, version, program) = self.origin();
        if let Some(dir) = std::env::var_os("LONGSHORE_TOOLS") {
            let tool = Path::new(&dir).join(program);
            return match tool.exists() {
                true => Ok(tool),
                false => bail!("LONGSHORE_TOOLS has no {program}"),
            };
        }
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join("target/tools");
        fs::create_dir_all(&tools)?;
        let root = tools.canonicalize()?.join(format!("{package}-{version}"));
        let tool = root.join("bin").join(program);
        let lock = fs::File::create(tools.join(format!("{package}.lock")))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        if !tool.exists() {
            self.install(&root)?;
        }
        Ok(tool)
    }

    fn install(self, root: &Path) -> anyhow::Result<()> {
        let (package, version, _) = self.origin();
        let build = root.join("build");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // Without optimisation it takes half the time, and tests wait for the kernel anyway. With
        // assertions youki talks on its stderr, which is the container's.
        let mut command = Command::new(cargo);
        command
            .args(["install", "--quiet", "--locked", "--debug", "--force", "--version", version])
            .args(["--features", self.features(), package, "--root"])
            .arg(root)
            .arg("--target-dir")
            .arg(&build)
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false")
            .current_dir("/");
        let output = command.output().context("run cargo install")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().rev().take(5).collect::<Vec<_>>();
            let last = last.into_iter().rev().collect::<Vec<_>>().join(" ");
            bail!("cargo install {package} {version}: {last}");
        }
        fs::remove_dir_all(&build).context("remove what it was built in")
    }
}
