//! The programs that run inside, each on the second disk under the path it has outside.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    chosen::{Chosen, Lsm, Target},
    image::make_disk,
    machine::{run_quietly, show},
    script::{self, Run},
};

const SIZE: &str = "4G";

/// Where everything is, outside and inside.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    pub(crate) tests: BTreeMap<Target, PathBuf>,
    pub(crate) daemon: PathBuf,
    pub(crate) conformance: PathBuf,
    /// Looked for beside the daemon.
    pub(crate) others: Vec<PathBuf>,
    /// A directory: what was built from Go, and what images are made of.
    pub(crate) tools: PathBuf,
    /// A directory: what critest passes, a list per OCI runtime.
    pub(crate) expected: PathBuf,
    /// Directories that hold all of these.
    pub(crate) places: Vec<PathBuf>,
}

/// With the tests of a package come its programs.
const ALWAYS: [&str; 4] = ["longshore", "shim", "testkit", "conformance"];

pub(crate) fn build(root: &Path, bins: &Path, machines: &[Chosen]) -> Result<Programs> {
    println!("test-vm: building the tests");
    let targets = machines.iter().flat_map(Chosen::targets);
    let named = targets.map(|target| target.package.as_str());
    let packages: BTreeSet<&str> = ALWAYS.into_iter().chain(named).collect();
    let output = Command::new("cargo")
        .current_dir(root)
        .args(["test", "--locked", "--no-run", "--test=*", "--message-format=json"])
        .args(packages.iter().map(|package| format!("--package={package}")))
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo test")?;
    ensure!(output.status.success(), "cargo test --no-run: {}", output.status);
    let conformance = bins.join("conformance");
    // Go is outside, and so is the network.
    let prepared = Command::new(&conformance)
        .current_dir(root)
        .arg("--prepare")
        .status()
        .context("run conformance")?;
    ensure!(prepared.success(), "conformance --prepare: {prepared}");
    Ok(Programs {
        tests: built_tests(&String::from_utf8_lossy(&output.stdout)),
        daemon: bins.join("longshore"),
        conformance,
        others: ["longshore-shim", "sandbox-shim"].map(|name| bins.join(name)).to_vec(),
        tools: root.join("target/tools"),
        expected: root.join("crates/conformance/expected"),
        places: vec![root.to_owned(), bins.to_owned()],
    })
}

/// From what cargo says of each thing that it has built.
fn built_tests(messages: &str) -> BTreeMap<Target, PathBuf> {
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let test = |message: Value| {
        let executable = message["executable"].as_str()?;
        let target = &message["target"];
        target["kind"].as_array()?.contains(&"test".into()).then_some(())?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let package = manifest.parent()?.file_name()?.to_str()?.to_owned();
        let name = target["name"].as_str()?.to_owned();
        Some((Target { package, name }, executable.into()))
    };
    parsed.filter_map(test).collect()
}

/// Writes the disk; returns its path.
pub(crate) fn pack(cache: &Path, programs: &Programs, runs: &[(Lsm, Vec<Run>)]) -> Result<PathBuf> {
    let dir = cache.join("payload");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(show("create", &dir))?;
    let single = [&programs.daemon, &programs.conformance];
    let lists = lists(&programs.expected)?;
    let tests = programs.tests.values();
    let files = single.into_iter().chain(&lists).chain(&programs.others).chain(tests);
    for file in files {
        place(file, &inside(&dir, file))?;
    }
    let tools = inside(&dir, &programs.tools);
    fs::create_dir_all(&tools).with_context(show("create", &tools))?;
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(programs.tools.join(".")).arg(&tools);
    run_quietly(copy)?;
    let scripts = runs.iter().map(|(lsm, runs)| (lsm.name(), script::write(runs, programs)));
    for (name, text) in scripts.chain([("start", start(&programs.places))]) {
        fs::write(dir.join(name), text).with_context(show("write", &dir))?;
    }
    let disk = cache.join("payload.img");
    let _ = fs::remove_file(&disk);
    make_disk(&dir, &disk, SIZE)?;
    fs::remove_dir_all(&dir).with_context(show("remove", &dir))?;
    Ok(disk)
}

fn lists(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(show("read", dir))?;
    entries.map(|entry| Ok(entry.with_context(show("read", dir))?.path())).collect()
}

fn inside(dir: &Path, path: &Path) -> PathBuf {
    dir.join("files").join(path.strip_prefix("/").unwrap_or(path))
}

/// Without what only a debugger reads, which is most of a test program.
fn place(file: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file has a directory")?;
    fs::create_dir_all(parent).with_context(show("create", parent))?;
    let meta = fs::metadata(file).with_context(show("look at", file))?;
    if meta.permissions().mode() & 0o111 == 0 {
        return fs::copy(file, to).with_context(show("copy", file)).map(drop);
    }
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(to).arg(file);
    run_quietly(strip)
}

/// sudo, which critest uses, complains of a host without an address, and critest of sudo. What is
/// to be run depends on which machine this is.
const RUN: &str = "\
echo 127.0.1.1 $(cat /etc/hostname) >> /etc/hosts
case $(cat /proc/cmdline) in *security=selinux*) lsm=selinux ;; *) lsm=apparmor ;; esac
cd / && sh /payload/$lsm
";

/// Puts the tree in its place.
fn start(places: &[PathBuf]) -> String {
    let bind = |place: &PathBuf| {
        let place = place.display();
        format!("mkdir -p '{place}' && mount --bind '/payload/files{place}' '{place}'\n")
    };
    places.iter().map(bind).collect::<String>() + RUN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_among_what_cargo_built() {
        let messages = [
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/shim/Cargo.toml",
                "target":{"kind":["test"],"name":"pod"},"executable":"/t/pod-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/shim/Cargo.toml",
                "target":{"kind":["bin"],"name":"longshore-shim"},"executable":"/t/shim"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/oci/Cargo.toml",
                "target":{"kind":["lib"],"name":"oci"},"executable":null}"#,
            "noise",
        ];
        let messages = messages.map(|message| message.replace('\n', " ")).join("\n");
        let built = built_tests(&messages);
        let target = Target { package: "shim".into(), name: "pod".into() };
        assert_eq!(built.into_iter().collect::<Vec<_>>(), [(target, PathBuf::from("/t/pod-1"))]);
    }

    #[test]
    fn paths_are_the_same_inside() {
        let dir = Path::new("/c/payload");
        assert_eq!(inside(dir, Path::new("/w/t/x")), Path::new("/c/payload/files/w/t/x"));
    }
}
