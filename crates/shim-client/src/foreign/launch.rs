//! Running the binary of a foreign shim: to start one, and to tidy up after one.

use std::{
    ffi::OsStr,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use sys::process::output_within;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command as AsyncCommand,
    time::{Instant, timeout, timeout_at},
};

use super::{
    bootstrap::{self, Answer, Caller},
    record::{NAMESPACE, PodFile},
};
use crate::{ShimError, start::DEFAULT_PATH};

/// Of what it prints; more is a shim gone mad.
const MAX_OUTPUT: u64 = 64 << 10;
/// A shim that keeps the output of its starter open tells nothing more by it.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Who calls, as shims know containerd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address<'a> {
    /// Of the events server.
    pub(crate) events: &'a Path,
}

/// Starts the shim of a pod; its bundle is complete.
pub(crate) async fn start(
    pod: &PodFile,
    address: Address<'_>,
    limit: Duration,
) -> Result<Answer, ShimError> {
    let events = address.events.to_string_lossy();
    let caller = Caller {
        id: &pod.id,
        namespace: NAMESPACE,
        address: &events,
        events: &events,
        binary: &pod.binary.to_string_lossy(),
    };
    let input = bootstrap::input(pod.form, caller, pod.options.to_any());
    let mut command = AsyncCommand::from(command(pod, &pod.id, &pod.bundle, &events, "start"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let doing = || ShimError::io(format!("start {}", pod.binary.display()));
    let mut child = command.kill_on_drop(true).spawn().map_err(doing())?;
    let until = Instant::now() + limit;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let talk = async {
        let write = async {
            // A shim that fails before it read all of it says why on stderr.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&input).await;
            }
        };
        tokio::join!(write, read(stdout, &mut out), read(stderr, &mut err));
    };
    let ended = async {
        let mut talk = std::pin::pin!(talk);
        tokio::select! {
            () = &mut talk => child.wait().await,
            status = child.wait() => {
                let _ = timeout(LAST_WORDS, talk).await;
                status
            }
        }
    };
    let over = ShimError::Timeout { call: "start shim", limit };
    let status = timeout_at(until, ended).await.map_err(|_| over)?.map_err(doing())?;
    if !status.success() {
        return Err(ShimError::Start { stderr: complaint(&err, &out, &status) });
    }
    bootstrap::parse(&out).map_err(|why| ShimError::Start { stderr: why })
}

fn complaint(err: &[u8], out: &[u8], status: &std::process::ExitStatus) -> String {
    let said = [err, out].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    let said = said.into_iter().find(|text| !text.is_empty());
    said.unwrap_or_else(|| format!("ended with {status}"))
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(pipe) = pipe {
        // What was read before an error is all there is.
        let _ = pipe.take(MAX_OUTPUT).read_to_end(into).await;
    }
}

/// Has the shim's binary remove what is left of a task whose shim is dead. Blocking.
pub(crate) fn delete(pod: &PodFile, id: &str, bundle: &Path, limit: Duration) -> io::Result<()> {
    let output = output_within(command(pod, id, bundle, "", "delete"), &[], limit)?;
    let Output { status, stdout, stderr } = output;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(complaint(&stderr, &stdout, &status))),
    }
}

/// What a shim prints of its version: what it is, and so what it expects when it is started. An
/// error if it cannot be run at all. Blocking.
pub fn ask_version(binary: &Path, limit: Duration) -> io::Result<String> {
    let mut command = Command::new(binary);
    command.arg("-v").current_dir("/").env_clear();
    let output = output_within(command, &[], limit)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Flags and environment are those every shim knows, old or new.
fn command(pod: &PodFile, id: &str, bundle: &Path, events: &str, action: &str) -> Command {
    let mut command = Command::new(&pod.binary);
    command
        .args(["-namespace", NAMESPACE, "-address", events, "-publish-binary", "/bin/true"])
        .args(["-id", id, "-bundle"])
        .arg(bundle)
        .arg(action)
        .current_dir(bundle)
        // Our environment may hold secrets, and shims live long.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").as_deref().unwrap_or(OsStr::new(DEFAULT_PATH)))
        .env("GOMAXPROCS", "2")
        .env("MAX_SHIM_VERSION", "2")
        .env("TTRPC_ADDRESS", events)
        .env("GRPC_ADDRESS", events)
        .env("NAMESPACE", NAMESPACE)
        .process_group(0);
    command
}
