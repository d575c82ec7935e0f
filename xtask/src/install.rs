//! The programs as they ship, and what systemd needs to run them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

const UNIT: &str = "dist/longshore.service";
const SAMPLE: &str = "docs/config.sample.toml";
/// The prefix in the unit.
const DEFAULT_PREFIX: &str = "/usr/local";

/// A file to be installed, and where to.
#[derive(Debug, PartialEq, Eq)]
struct Item {
    from: PathBuf,
    to: PathBuf,
    mode: u32,
}

/// Builds and installs below `DESTDIR`, for `PREFIX`.
pub(crate) fn run(root: &Path) -> Result<()> {
    build(root, &["--package=longshore", "--release"])?;
    build(root, &["--package=shim", "--profile=shim"])?;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let prefix = variable("PREFIX").unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
    let dest = variable("DESTDIR").unwrap_or_default();
    for item in items(root, &prefix) {
        let to = format!("{dest}{}", item.to.display());
        install(&item, Path::new(&to), &prefix)?;
        println!("install: {to}");
    }
    println!(
        "install: next, `{prefix}/bin/longshore check`, then `systemctl enable --now longshore`"
    );
    Ok(())
}

fn build(root: &Path, args: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    let status = cargo.current_dir(root).args(["build", "--locked"]).args(args).status();
    let status = status.context("run cargo build")?;
    ensure!(status.success(), "cargo build {}: {status}", args.join(" "));
    Ok(())
}

fn items(root: &Path, prefix: &str) -> Vec<Item> {
    let target = root.join("target");
    let item = |from: PathBuf, to: String, mode| Item { from, to: to.into(), mode };
    vec![
        item(target.join("release/longshore"), format!("{prefix}/bin/longshore"), 0o755),
        item(target.join("shim/longshore-shim"), format!("{prefix}/bin/longshore-shim"), 0o755),
        item(root.join(UNIT), "/etc/systemd/system/longshore.service".to_owned(), 0o644),
        item(root.join(SAMPLE), format!("{prefix}/share/longshore/config.sample.toml"), 0o644),
    ]
}

/// By a rename: a program that runs is replaced, not written into.
fn install(item: &Item, to: &Path, prefix: &str) -> Result<()> {
    let dir = to.parent().context("a path below a root")?;
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut bytes =
        fs::read(&item.from).with_context(|| format!("read {}", item.from.display()))?;
    if item.from.ends_with(UNIT) {
        bytes = String::from_utf8(bytes)?.replace(DEFAULT_PREFIX, prefix).into_bytes();
    }
    let fresh = to.with_extension("new");
    fs::write(&fresh, bytes).with_context(|| format!("write {}", fresh.display()))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(item.mode))?;
    fs::rename(&fresh, to).with_context(|| format!("install {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_names_the_program_that_is_installed() {
        let dir = std::env::temp_dir().join(format!("install-{}", std::process::id()));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("lies in the workspace");
        let items = items(root, "/opt/ls");
        let program = items[0].to.clone();
        let to = dir.join("longshore.service");
        install(&items[2], &to, "/opt/ls").expect("installs");
        let unit = fs::read_to_string(&to).expect("reads");
        fs::remove_dir_all(&dir).expect("removes");
        assert!(unit.contains(&format!("ExecStart={} daemon", program.display())), "{unit}");
        assert!(unit.contains("KillMode=process"), "pods outlive the daemon");
    }
}
