//! The daemon as its operator meets it: started, asked, signalled, ended.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use api_cri::{
    RPCS,
    client::connect,
    v1::{
        StatusRequest, VersionRequest, VersionResponse,
        runtime_service_client::RuntimeServiceClient,
    },
};
use rustix::{
    net::{Shutdown, shutdown},
    process::Signal,
};
use testkit::DaemonProcess;
use tonic::{Code, Request, transport::Channel};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

async fn client(daemon: &DaemonProcess) -> RuntimeServiceClient<Channel> {
    RuntimeServiceClient::new(connect(&daemon.cri_socket()).await.unwrap())
}

#[tokio::test]
async fn version_and_status_are_answered() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mut client = client(&daemon).await;
    let version = client.version(VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!(version.version, "0.1.0");
    assert_eq!(version.runtime_name, "longshore");
    assert_eq!(version.runtime_api_version, "v1");
    let status = client.status(StatusRequest::default()).await.unwrap().into_inner();
    let conditions = status.status.unwrap().conditions;
    let types: Vec<_> = conditions.iter().map(|c| c.r#type.as_str()).collect();
    assert_eq!(types, ["RuntimeReady", "NetworkReady", "LongshoreHasNoDeprecationWarnings"]);
    assert!(conditions.iter().all(|c| c.status || !c.reason.is_empty()));
}

/// Calls `service/method` with an empty request and returns the status.
async fn call(channel: &Channel, service: &str, method: &str) -> tonic::Status {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = format!("/runtime.v1.{service}/{method}").parse().unwrap();
    let codec = tonic_prost::ProstCodec::<VersionRequest, VersionResponse>::default();
    let answer = grpc.server_streaming(Request::new(VersionRequest::default()), path, codec).await;
    answer.map(|_| tonic::Status::ok("")).unwrap_or_else(|status| status)
}

#[tokio::test]
async fn what_is_not_implemented_says_so_by_name() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let channel = connect(&daemon.cri_socket()).await.unwrap();
    let absent = BTreeSet::from(["CheckpointPod", "RestorePod"]);
    for (service, method) in RPCS {
        let status = call(&channel, service, method).await;
        if absent.contains(method) {
            assert_eq!(status.code(), Code::Unimplemented, "{method}: {status:?}");
            assert_eq!(status.message(), format!("{method} is not implemented"));
        } else {
            assert_ne!(status.code(), Code::Unimplemented, "{method}: {status:?}");
        }
    }
}

#[tokio::test]
async fn messages_of_16_mib_pass_and_larger_ones_are_refused() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mut client = client(&daemon).await;
    let fits = VersionRequest { version: "x".repeat((16 << 20) - 64) };
    client.version(fits).await.unwrap();
    let large = VersionRequest { version: "x".repeat((16 << 20) + 64) };
    let code = client.version(large).await.unwrap_err().code();
    assert!(matches!(code, Code::OutOfRange | Code::ResourceExhausted), "{code:?}");
    client.version(VersionRequest::default()).await.expect("the connection lives on");
}

#[tokio::test]
async fn sigterm_ends_it_in_order_and_leaves_nothing() {
    let mut daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(daemon.cri_socket()), 0o600);
    assert_eq!(mode(daemon.state()), 0o711);
    assert_eq!(mode(daemon.root()), 0o700);
    // A client that stays connected, as a kubelet does, does not delay the end.
    let mut idle = client(&daemon).await;
    idle.version(VersionRequest::default()).await.unwrap();

    let exit = daemon.stop().await.unwrap();
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    let left: Vec<_> = daemon.state().read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, [""; 0].map(PathBuf::from), "the state directory is empty");
    assert!(!daemon.root().join("store/state.db-wal").exists(), "the store was closed");
}

#[tokio::test]
async fn after_sigkill_the_next_one_takes_over() {
    let home = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut child =
            DaemonProcess::command(LONGSHORE.as_ref(), home.path()).unwrap().spawn().unwrap();
        let socket = home.path().join("run/longshore.sock");
        let served = async {
            loop {
                if let Ok(channel) = connect(&socket).await
                    && let Ok(answer) =
                        RuntimeServiceClient::new(channel).version(VersionRequest::default()).await
                {
                    return answer;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let served = tokio::time::timeout(std::time::Duration::from_secs(30), served).await;
        child.kill().unwrap();
        child.wait().unwrap();
        served.expect("a stale socket and lock are taken over");
    }
}

#[tokio::test]
async fn when_a_critical_part_dies_the_daemon_ends_with_an_error() {
    let mut daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    // From outside: a listening TCP socket that is shut down accepts nothing, ever.
    shutdown(daemon.steal_tcp_listener().unwrap(), Shutdown::Both).unwrap();
    let exit = daemon.exited().await.unwrap();
    assert_eq!(exit.code, Some(1), "{}", exit.stderr);
    assert!(exit.stderr.contains("streaming server failed"), "{}", exit.stderr);
    assert!(!daemon.cri_socket().exists() && !daemon.metrics_socket().exists());
}

#[tokio::test]
async fn sighup_reloads_and_a_broken_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, "log.level = 'info'").unwrap();
    let daemon = DaemonProcess::start_with(LONGSHORE, |command| {
        command.arg("--config").arg(&file);
    })
    .await
    .unwrap();

    std::fs::write(&file, "log.level = 'debug'\ncgroup_driver = 'cgroupfs'").unwrap();
    daemon.signal(Signal::HUP).unwrap();
    daemon.logged("configuration reloaded").await.unwrap();
    daemon.logged("takes effect only after a restart").await.unwrap();
    call(&connect(&daemon.cri_socket()).await.unwrap(), "RuntimeService", "Attach").await;
    daemon.logged("container_id: must not be empty").await.unwrap();

    std::fs::write(&file, "log.level = 'loud'").unwrap();
    daemon.signal(Signal::HUP).unwrap();
    daemon.logged("configuration not reloaded").await.unwrap();
    client(&daemon).await.version(VersionRequest::default()).await.unwrap();
}

#[tokio::test]
async fn metrics_count_calls() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    client(&daemon).await.version(VersionRequest::default()).await.unwrap();
    let text = get(&daemon.metrics_socket(), "/metrics").await;
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(text.contains("application/openmetrics-text"), "{text}");
    assert!(text.contains("longshore_cri_calls_total{rpc=\"Version\",code=\"OK\"}"), "{text}");
    assert!(text.contains("longshore_build_info{version="), "{text}");
    let missing = get(&daemon.metrics_socket(), "/other").await;
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
}

async fn get(socket: &Path, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_root_or_socket_in_use_is_refused_and_nothing_is_left() {
    let first = DaemonProcess::start(LONGSHORE).await.unwrap();
    let other = tempfile::tempdir().unwrap();

    let same_root = run(&["daemon", "--root", str(&first.root()), "--state", str(other.path())]);
    refused(&same_root, "is in use by another daemon");

    let (lib, run_dir) = (other.path().join("lib"), other.path().join("run"));
    let same_socket = run(&[
        "daemon",
        "--root",
        str(&lib),
        "--state",
        str(&run_dir),
        "--cri-socket",
        str(&first.cri_socket()),
    ]);
    refused(&same_socket, "is served by another process");
    assert!(!lib.exists() && !run_dir.exists(), "what the refused start made is gone");
    client(&first).await.version(VersionRequest::default()).await.unwrap();
}

#[test]
fn bad_input_ends_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let (root, state) = (dir.path().join("lib"), dir.path().join("run"));
    let check = |content: &str, want: &str| {
        std::fs::write(&file, content).unwrap();
        let output =
            run(&["daemon", "--config", str(&file), "--root", str(&root), "--state", str(&state)]);
        refused(&output, want);
        assert!(!root.exists() && !state.exists(), "nothing is half-created");
    };
    check("log.level = 5", "c.toml:1: invalid type: integer `5`");
    check("[cri]\nsokcet = '/x'", "did you mean \"cri.socket\"?");
    let long = format!("cri.socket = '/{}'", "x".repeat(120));
    check(&long, "choose a shorter path");

    let missing = run(&["daemon", "--config", "/nonexistent/c.toml"]);
    refused(&missing, "read configuration /nonexistent/c.toml");
    let checked = run(&["config", "check", "/nonexistent/c.toml"]);
    refused(&checked, "read configuration /nonexistent/c.toml");
}

#[test]
fn a_full_or_read_only_disk_is_named_and_nothing_is_left() {
    if !testkit::is_root() {
        return testkit::skip("a_full_or_read_only_disk_is_named", "needs root to mount a tmpfs");
    }
    let check = |options: &str, fill: &str, want: &str| {
        let dir = tempfile::tempdir().unwrap();
        // In a mount namespace of its own: gone with the shell.
        let script = format!(
            "mount -t tmpfs -o {options} none \"$1\" && {fill} && \
             \"$2\" daemon --root \"$1/lib\" --state \"$1/run\"; code=$?; ls -A \"$1\" | grep -v filler; exit $code"
        );
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script, "sh", str(dir.path()), LONGSHORE])
            .output()
            .unwrap();
        refused(&output, want);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is left");
    };
    check(
        "size=16k",
        "{ head -c 64k /dev/zero > \"$1/filler\" 2>/dev/null; true; }",
        "No space left on device",
    );
    check("size=1m", "mount -o remount,ro \"$1\"", "Read-only file system");
}

#[test]
fn help_and_version_and_completion_are_there() {
    for args in
        [vec!["--help"], vec!["daemon", "--help"], vec!["version"], vec!["completion", "bash"]]
    {
        let output = run(&args);
        assert!(output.status.success(), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("longshore"), "{args:?}");
    }
}

#[tokio::test]
async fn info_shows_the_answers() {
    let daemon = DaemonProcess::start(LONGSHORE).await.unwrap();
    let socket = daemon.cri_socket();
    let info =
        tokio::task::spawn_blocking(move || run(&["info", "--json", "--cri-socket", str(&socket)]));
    let output = info.await.unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["name"], "longshore");
    assert_eq!(json["conditions"][0]["type"], "RuntimeReady");
    let gone = run(&["info", "--cri-socket", "/nonexistent.sock"]);
    refused(&gone, "is the daemon running?");
}

/// A daemon that a test started itself.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command of ours that knows nothing but these.
fn with_environment(args: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(LONGSHORE);
    for name in ["CONFIG", "ROOT", "STATE", "CRI_SOCKET"] {
        command.env_remove(format!("LONGSHORE_{name}"));
    }
    command.args(args).envs(environment.iter().copied()).env_remove("NOTIFY_SOCKET");
    command
}

/// Starts a daemon, and waits until a command that is told the same finds it.
async fn found_by_commands(home: &Path, args: &[&str], environment: &[(&str, &str)]) {
    let words: Vec<_> = ["daemon"].iter().chain(args).copied().collect();
    let log = std::fs::File::create(home.join("stderr")).unwrap();
    let mut daemon = with_environment(&words, environment);
    let daemon = Started(daemon.stderr(log).stdin(Stdio::null()).spawn().unwrap());
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let words: Vec<_> = ["ps", "--json"].iter().chain(args).copied().collect();
        let listed = with_environment(&words, environment).output().unwrap();
        if listed.status.success() {
            break;
        }
        let why = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert!(tokio::time::Instant::now() < until, "{why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for command in ["info", "ps"] {
        let words: Vec<_> = [command].iter().chain(args).copied().collect();
        let output = with_environment(&words, environment).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    drop(daemon);
}

#[tokio::test]
async fn commands_find_a_daemon_by_what_it_was_started_with() {
    let home = tempfile::tempdir().unwrap();
    let (root, state) = (home.path().join("lib"), home.path().join("run"));
    found_by_commands(
        home.path(),
        &[],
        &[("LONGSHORE_ROOT", str(&root)), ("LONGSHORE_STATE", str(&state))],
    )
    .await;
    let file = home.path().join("c.toml");
    let socket = home.path().join("own.sock");
    std::fs::write(&file, format!("root = {root:?}\nstate = {state:?}\ncri.socket = {socket:?}\n"))
        .unwrap();
    found_by_commands(home.path(), &["--config", str(&file)], &[]).await;
    found_by_commands(home.path(), &[], &[("LONGSHORE_CONFIG", str(&file))]).await;
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(args: &[&str]) -> Output {
    Command::new(LONGSHORE).args(args).env_remove("LONGSHORE_CONFIG").output().unwrap()
}

#[track_caller]
fn refused(output: &Output, want: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(want), "{stderr:?} lacks {want:?}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "one sentence: {stderr}");
}
