//! Starting a shim.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use api_shim::start::{Bootstrap, CgroupHierarchy, Description};
use sys::{
    cgroup::{Layout, Version},
    mount::{Attrs, Depth, Detached, bind},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::timeout,
};

use crate::{Shim, ShimError, StartPod, bury, connect::connect_to};

/// Of what it prints; more is a shim gone mad.
const MAX_OUTPUT: u64 = 64 << 10;

/// Starts the shim of a pod: its namespaces are made and pinned, the host name and sysctls
/// set, when this returns. After an error nothing of the attempt is left, but maybe, if it
/// took too long, the pin of the network namespace.
///
/// Not cancel safe: a shim that was about to be ready lives on; [`crate::connect`] finds it
/// and [`crate::bury`] removes it.
pub async fn start(spec: &StartPod, limit: Duration) -> Result<Shim, ShimError> {
    let begun = async {
        let bootstrap = launch(spec).await?;
        connect_to(&spec.dir, bootstrap, limit).await
    };
    match timeout(limit, begun).await {
        Ok(result) => result,
        Err(_) => {
            undo(&spec.dir).await;
            Err(ShimError::Timeout { call: "start shim", limit })
        }
    }
}

async fn launch(spec: &StartPod) -> Result<Bootstrap, ShimError> {
    let description = describe(spec)?;
    let (mut child, _binary) = spawn(&spec.shim_binary)?;
    let doing = || ShimError::io("talk to a starting shim");
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        // A shim that fails before it read all of it says why on stderr.
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(&description).await;
        }
    };
    let ((), out, err) = tokio::join!(write, read_all(stdout), read_all(stderr));
    let status = child.wait().await.map_err(doing())?;
    let (out, err) = (out.map_err(doing())?, err.map_err(doing())?);
    if !status.success() {
        let stderr = String::from_utf8_lossy(&err).trim().to_owned();
        let stderr = if stderr.is_empty() { format!("ended with {status}") } else { stderr };
        return Err(ShimError::Start { stderr });
    }
    serde_json::from_slice(&out).map_err(ShimError::io("understand a starting shim"))
}

fn describe(spec: &StartPod) -> Result<Vec<u8>, ShimError> {
    let spec = spec.clone();
    let description = Description {
        id: spec.id,
        dir: spec.dir,
        runtime: spec.runtime,
        namespaces: spec.namespaces,
        hostname: spec.hostname,
        sysctls: spec.sysctls,
        cgroup: spec.cgroup,
        pid1: spec.pid1,
        log_level: spec.log_level,
        hierarchies: hierarchies()?,
    };
    serde_json::to_vec(&description).map_err(ShimError::io("describe the pod"))
}

fn hierarchies() -> Result<Vec<CgroupHierarchy>, ShimError> {
    let layout = Layout::detect().map_err(ShimError::io("find the cgroups"))?;
    let all = layout.hierarchies().into_iter().map(|(hierarchy, controllers)| CgroupHierarchy {
        v2: hierarchy.version == Version::V2,
        mount: hierarchy.mount,
        root: hierarchy.root,
        controllers,
    });
    Ok(all.collect())
}

/// The binary is run from a read-only view of its own: containers that share a PID
/// namespace see it as /proc/1/exe, and must not be able to write to the host's file.
fn spawn(binary: &Path) -> Result<(Child, Detached), ShimError> {
    let doing = || format!("start {}", binary.display());
    let view = bind(binary, Depth::One).map_err(ShimError::io(doing()))?;
    view.restrict(Attrs::READ_ONLY, Depth::One).map_err(ShimError::io(doing()))?;
    let program = PathBuf::from(format!("/proc/self/fd/{}", view.as_fd().as_raw_fd()));
    let child = Command::new(program)
        .arg0("longshore-shim")
        .arg("start")
        .current_dir("/")
        // Our environment may hold secrets, and /proc/1/environ shows it to containers.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").as_deref().unwrap_or(OsStr::new(DEFAULT_PATH)))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ShimError::io(doing()))?;
    Ok((child, view))
}

pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

async fn read_all(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// The starter was killed with its future; a shim it had already made ready is here.
async fn undo(dir: &Path) {
    match bury(dir, UNDO_LIMIT).await {
        Ok(_) | Err(ShimError::NotFound { .. }) => {}
        Err(error) => {
            let error = base::Chain(&error);
            tracing::warn!(dir = %dir.display(), %error, "a late shim is left behind");
        }
    }
}

const UNDO_LIMIT: Duration = Duration::from_secs(10);
