//! What the daemon writes down about a foreign shim, for the daemon after it: such shims
//! know neither logs nor what a dead daemon had begun.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api_shim::{
    name,
    start::{Files, TaskRecord},
    {runc, runtime_options},
};
use prost::Message;
use prost_types::Any;
use serde::{Deserialize, Serialize};

use super::{BootstrapForm, PodConfig};
use crate::{LogTarget, Namespaces, ShimError, Stdio, shim::any};

/// In whose name containers are kept inside the shims, as containerd calls it.
pub(crate) const NAMESPACE: &str = "k8s.io";

/// A pod: as intended before its shim is started, and then with what answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodFile {
    pub(crate) id: String,
    pub(crate) binary: PathBuf,
    pub(crate) form: BootstrapForm,
    pub(crate) options: RuntimeOptions,
    /// Of the sandbox, and the working directory of the shim.
    pub(crate) bundle: PathBuf,
    #[serde(default)]
    pub(crate) sandboxer: Sandboxer,
    #[serde(default)]
    pub(crate) namespaces: Namespaces,
    #[serde(default)]
    pub(crate) running: Option<Running>,
}

/// What is the pod, to its shim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Sandboxer {
    /// A first task, which sleeps.
    #[default]
    Task,
    /// What the shim's Sandbox service makes of this.
    Service(Box<PodConfig>),
}

/// A shim that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// Of the Task API.
    pub(crate) version: u32,
    pub(crate) address: String,
    pub(crate) pid: u32,
    /// Tells it from a later process with the same number.
    pub(crate) start_time: u64,
}

/// What a shim is told about the runtime below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuntimeOptions {
    #[default]
    None,
    /// For shims that call an OCI runtime.
    Runc {
        binary: PathBuf,
        /// Where it keeps its state.
        root: PathBuf,
        systemd_cgroup: bool,
    },
    /// For those that read a file of their own.
    ConfigFile(PathBuf),
}

impl RuntimeOptions {
    pub(crate) fn to_any(&self) -> Option<Any> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        match self {
            Self::None => None,
            Self::Runc { binary, root, systemd_cgroup } => {
                let options = runc::Options {
                    binary_name: text(binary),
                    root: text(root),
                    systemd_cgroup: *systemd_cgroup,
                    ..runc::Options::default()
                };
                Some(any(name::RUNC_OPTIONS, options.encode_to_vec()))
            }
            Self::ConfigFile(path) => {
                let options = runtime_options::Options {
                    config_path: text(path),
                    ..runtime_options::Options::default()
                };
                Some(any("runtimeoptions.v1.Options", options.encode_to_vec()))
            }
        }
    }
}

/// A container, or the sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskFile {
    #[serde(flatten)]
    pub(crate) task: TaskRecord,
    #[serde(default)]
    pub(crate) stdio: Stdio,
    #[serde(default)]
    pub(crate) log: Option<LogTarget>,
}

impl PodFile {
    fn path(dir: &Path) -> PathBuf {
        dir.join("foreign.json")
    }

    pub(crate) fn is_in(dir: &Path) -> bool {
        Self::path(dir).exists()
    }

    /// `None` if there is none.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, ShimError> {
        read(&Self::path(dir))
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), ShimError> {
        write(&Self::path(dir), self)
    }

    /// The last to go: with it the rest could not be found again.
    pub(crate) fn remove(dir: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_file(Self::path(dir)))
    }
}

impl TaskFile {
    /// Of one that is about to be made.
    pub(crate) fn intended(bundle: &Path, stdio: Stdio, log: Option<LogTarget>) -> Self {
        let bundle = bundle.to_owned();
        let task = TaskRecord { bundle, pid: 0, start_time: 0, cgroup: None, exit: None };
        Self { task, stdio, log }
    }

    fn path(dir: &Path, id: &str) -> PathBuf {
        Files::of(dir).tasks.join(id)
    }

    pub(crate) fn read(dir: &Path, id: &str) -> Result<Option<Self>, ShimError> {
        read(&Self::path(dir, id))
    }

    pub(crate) fn write(&self, dir: &Path, id: &str) -> Result<(), ShimError> {
        let tasks = Files::of(dir).tasks;
        fs::create_dir_all(&tasks).map_err(ShimError::io(format!("make {}", tasks.display())))?;
        write(&Self::path(dir, id), self)
    }

    pub(crate) fn remove(dir: &Path, id: &str) -> io::Result<()> {
        absent_is_fine(fs::remove_file(Self::path(dir, id)))
    }

    /// All that can be read, by their ids and in their order.
    pub(crate) fn all(dir: &Path) -> Vec<(String, Self)> {
        let entries = fs::read_dir(Files::of(dir).tasks).into_iter().flatten().flatten();
        let one = |entry: fs::DirEntry| {
            let id = entry.file_name().into_string().ok().filter(|id| !id.starts_with('.'))?;
            let file = Self::read(dir, &id).ok().flatten()?;
            Some((id, file))
        };
        let mut all: Vec<_> = entries.filter_map(one).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

pub(crate) fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A few hundred bytes on a tmpfs: not worth a blocking thread.
fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, ShimError> {
    let doing = || format!("read {}", path.display());
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(ShimError::io(doing())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(ShimError::io(doing())(e)),
    }
}

/// Whole or not at all.
fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), ShimError> {
    let doing = || format!("write {}", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let next = path.with_file_name(format!(".{name}.new"));
    let bytes = serde_json::to_vec(value).map_err(ShimError::io(doing()))?;
    fs::write(&next, bytes).map_err(ShimError::io(doing()))?;
    fs::rename(&next, path).map_err(ShimError::io(doing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_as_written_and_as_its_undertaker_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskRecord {
            bundle: "/b".into(),
            pid: 7,
            start_time: 9,
            cgroup: Some("/c".into()),
            exit: None,
        };
        let log = LogTarget { path: "/l".into(), format: crate::LogFormat::Cri, max_line: 5 };
        let stdio = Stdio { stdin: true, ..Stdio::default() };
        let file = TaskFile { task: task.clone(), stdio, log: Some(log) };
        file.write(dir.path(), "c").unwrap();
        assert_eq!(TaskFile::all(dir.path()), [("c".to_owned(), file)]);
        let plain = fs::read(dir.path().join("tasks/c")).unwrap();
        assert_eq!(serde_json::from_slice::<TaskRecord>(&plain).unwrap(), task);
        TaskFile::remove(dir.path(), "c").unwrap();
        TaskFile::remove(dir.path(), "c").unwrap();
        assert_eq!(TaskFile::read(dir.path(), "c").unwrap(), None);
    }

    #[test]
    fn options_are_named_by_their_kind() {
        assert_eq!(RuntimeOptions::None.to_any(), None);
        let options = RuntimeOptions::Runc {
            binary: "/usr/bin/runc".into(),
            root: "/r".into(),
            systemd_cgroup: true,
        };
        let any = options.to_any().unwrap();
        let decoded = runc::Options::decode(&any.value[..]).unwrap();
        assert_eq!(any.type_url, "containerd.runc.v1.Options");
        assert_eq!((decoded.binary_name.as_str(), decoded.systemd_cgroup), ("/usr/bin/runc", true));
        let any = RuntimeOptions::ConfigFile("/k.toml".into()).to_any().unwrap();
        assert_eq!(any.type_url, "runtimeoptions.v1.Options");
    }
}
