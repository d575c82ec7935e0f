//! Adds OCI hooks to containers, as files in directories describe them: what CRI-O and podman
//! do by themselves, for every runtime with NRI.
//!
//! ```text
//! hook-injector --idx 10 --hooks-dir /usr/share/containers/oci/hooks.d
//! ```
//!
//! Files that come, go or change count from the next container on.

mod definition;
#[path = "../program/mod.rs"]
mod program;

use std::{fs, io, path::PathBuf, process::ExitCode, sync::Arc, time::SystemTime};

use clap::Parser;
use definition::{Definitions, hooks_for};
use nri_sdk::{
    Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox, Stub, stop_signal,
};
use parking_lot::Mutex;

/// An NRI plugin that adds OCI hooks to containers, as files in directories describe them.
///
/// Files that come, go or change count from the next container on.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
    /// Directory with hook definitions; of two files of one name the later directory's counts
    #[arg(
        long = "hooks-dir",
        default_values = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"]
    )]
    directories: Vec<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("hook-injector", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plugin = HookInjector::new(arguments.directories);
    let stub = arguments.nri.apply(Stub::builder(plugin)).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

struct HookInjector {
    directories: Vec<PathBuf>,
    known: Mutex<Known>,
}

/// What was read, and from what.
#[derive(Default)]
struct Known {
    stamps: Vec<Stamp>,
    definitions: Arc<Definitions>,
}

/// Changes when a file comes, goes or is written.
type Stamp = (PathBuf, u64, SystemTime);

impl Plugin for HookInjector {
    fn handlers() -> Handlers<Self> {
        Handlers::new().create_container(Self::create_container)
    }
}

impl HookInjector {
    fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, known: Mutex::default() }
    }

    async fn create_container(
        self: Arc<Self>,
        _: Context,
        _: PodSandbox,
        container: Container,
    ) -> Answer<Adjustment> {
        // Files, even a few small ones, are not for the thread that answers.
        let definitions = tokio::task::spawn_blocking(move || self.definitions()).await??;
        let mut adjustment = Adjustment::new();
        adjustment.hooks = hooks_for(&definitions, &container);
        Ok(adjustment)
    }

    /// As of now.
    fn definitions(&self) -> io::Result<Arc<Definitions>> {
        let stamps = self.stamps()?;
        let mut known = self.known.lock();
        if known.stamps != stamps {
            let definitions = Arc::new(definition::read(&self.directories)?);
            *known = Known { stamps, definitions };
        }
        Ok(Arc::clone(&known.definitions))
    }

    fn stamps(&self) -> io::Result<Vec<Stamp>> {
        let mut stamps = Vec::new();
        for directory in &self.directories {
            let entries = match fs::read_dir(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let metadata = entry.metadata()?;
                stamps.push((entry.path(), metadata.len(), metadata.modified()?));
            }
        }
        stamps.sort();
        Ok(stamps)
    }
}

#[cfg(test)]
mod tests {
    use nri_sdk::{
        api::Hook,
        testing::{FakeRuntime, container, pod},
    };
    use tempfile::TempDir;

    use super::*;

    fn write(directory: &TempDir, name: &str, path: &str, command: &str, stages: &str) {
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "{path}", "args": ["x"], "timeout": 3}},
                "when": {{"commands": ["{command}"]}}, "stages": {stages}}}"#
        );
        fs::write(directory.path().join(name), text).unwrap();
    }

    fn paths(hooks: &[Hook]) -> Vec<&str> {
        hooks.iter().map(|hook| hook.path.as_str()).collect()
    }

    #[tokio::test]
    async fn files_become_hooks_in_the_order_of_their_names() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(&first, "20-b.json", "/b", "nginx", r#"["prestart", "poststop"]"#);
        write(&first, "10-A.JSON", "/a", "nginx", r#"["prestart"]"#);
        write(&first, "30-c.json", "/c", "redis", r#"["prestart"]"#);
        write(&first, "40-d.json", "/old", "nginx", r#"["prestart"]"#);
        write(&second, "40-d.json", "/new", "nginx", r#"["startContainer"]"#);
        fs::write(first.path().join("50-broken.json"), "{").unwrap();
        fs::write(first.path().join("README"), "not a hook").unwrap();
        let missing = first.path().join("missing");
        let directories = vec![first.path().into(), missing, second.path().into()];
        let runtime = FakeRuntime::start(HookInjector::new(directories)).await.unwrap();
        let web = pod("web");
        let mut nginx = container(&web, "nginx");
        nginx.args = vec!["/usr/sbin/nginx".into()];
        let hooks = runtime.create_container(&web, &nginx).await.unwrap().adjustment.hooks;
        assert_eq!(paths(&hooks.prestart), ["/a", "/b"]);
        assert_eq!(paths(&hooks.poststop), ["/b"]);
        assert_eq!(paths(&hooks.start_container), ["/new"]);
        assert_eq!(hooks.prestart[0].timeout.as_ref().unwrap().value, 3);
        assert!(hooks.poststart.is_empty());
    }

    #[tokio::test]
    async fn a_new_file_counts_from_the_next_container_on() {
        let directory = tempfile::tempdir().unwrap();
        let injector = HookInjector::new(vec![directory.path().into()]);
        let runtime = FakeRuntime::start(injector).await.unwrap();
        let web = pod("web");
        let shell = container(&web, "shell");
        let mut seen = Vec::new();
        for name in ["a.json", "b.json"] {
            let created = runtime.create_container(&web, &shell).await.unwrap();
            seen.push(created.adjustment.hooks.prestart.len());
            write(&directory, name, "/x", "", r#"["prestart"]"#);
        }
        fs::remove_file(directory.path().join("a.json")).unwrap();
        let created = runtime.create_container(&web, &shell).await.unwrap();
        seen.push(created.adjustment.hooks.prestart.len());
        assert_eq!(seen, [0, 1, 1]);
    }
}
