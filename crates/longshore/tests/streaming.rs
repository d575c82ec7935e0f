//! Exec, attach and port-forward as crictl does them, over SPDY and over WebSocket.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use api_cri::v1::{AttachRequest, ContainerConfig, ExecRequest, PortForwardRequest};
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use sha2::{Digest, Sha256};
use testkit::{Cri, GoTool, Node, Pod, rounds};
use tokio_util::task::TaskTracker;
use tonic::Code;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
const TRANSPORTS: [&str; 2] = ["spdy", "websocket"];
/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(60);

/// A node with one pod, and crictl.
struct Stage {
    node: Node,
    cri: Cri,
    pod: Pod,
    crictl: PathBuf,
}

impl Stage {
    /// `None`, loudly, where it cannot be had.
    async fn new(test: &str) -> Option<Self> {
        let Some(crictl) =
            tokio::task::spawn_blocking(|| GoTool::Crictl.build().unwrap()).await.unwrap()
        else {
            testkit::skip(test, "crictl needs Go to be built");
            return None;
        };
        let node = Node::start(test, LONGSHORE).await?;
        let cri = node.cri().await.unwrap();
        let pod = cri.run_pod(&node.pod("p")).await.unwrap();
        Some(Self { node, cri, pod, crictl })
    }

    async fn run(&self, config: ContainerConfig) -> String {
        self.cri.run(&self.pod, config).await.unwrap()
    }

    /// A container to run commands in.
    async fn idle(&self) -> String {
        self.run(self.node.sh("idle", "exec sleep 100000")).await
    }

    fn crictl(&self, args: &[&str]) -> Command {
        let endpoint = format!("unix://{}", self.node.daemon.cri_socket().display());
        let mut command = Command::new(&self.crictl);
        command
            .args(["--config", "/dev/null", "--timeout", "60s"])
            .args(["--runtime-endpoint", &endpoint, "--image-endpoint", &endpoint])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn exec(&self, transport: &str, id: &str, command: &[&str]) -> Output {
        let mut args = vec!["exec", "--transport", transport, id];
        args.extend(command);
        self.crictl(&args).output().unwrap()
    }

    async fn end(self) {
        self.node.finish().await.unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for the end of a process, and kills it rather than waiting for ever.
fn ended(mut child: Child) -> Output {
    let since = tokio::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > LIMIT {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("it did not end: {} {}", text(&output.stdout), text(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// What cannot be executed, and why: in the same words with every OCI runtime.
const NO_PROGRAMS: [(&str, &str); 4] = [
    ("no-such-program", "executable file not found in $PATH"),
    ("/no/such/program", "no such file or directory"),
    ("/etc/passwd", "permission denied"),
    ("/bin/busybox/program", "not a directory"),
];

#[tokio::test(flavor = "multi_thread")]
async fn exec_tells_streams_and_exit_codes_apart() {
    let Some(stage) = Stage::new("exec_tells_streams_and_exit_codes_apart").await else { return };
    let id = stage.idle().await;
    for transport in TRANSPORTS {
        let output = stage.exec(transport, &id, &["sh", "-c", "echo out; echo err >&2"]);
        assert!(output.status.success(), "{transport}: {}", text(&output.stderr));
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((stdout.as_str(), stderr.as_str()), ("out\n", "err\n"), "{transport}");
        for code in [1, 42, 255] {
            let output = stage.exec(transport, &id, &["sh", "-c", &format!("exit {code}")]);
            let error = text(&output.stderr);
            assert!(!output.status.success());
            assert!(error.contains(&format!("exit code {code}")), "{transport}: {error}");
        }
        for (program, why) in NO_PROGRAMS {
            // crictl quotes what it logs.
            let error = text(&stage.exec(transport, &id, &[program]).stderr).replace('\\', "");
            assert!(error.contains(&format!("exec: {program:?}: {why}")), "{transport}: {error}");
        }
    }
    stage.end().await;
}

/// 100 MB, or what a test of everyday has time for.
fn megabytes() -> usize {
    if rounds(1) > 1 { 100 } else { 16 }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_piped_through_comes_out_unharmed() {
    let Some(stage) = Stage::new("what_is_piped_through_comes_out_unharmed").await else { return };
    let id = stage.idle().await;
    let mut bytes = vec![0; megabytes() << 20];
    // Noise, so that nothing could be lost or doubled unseen.
    let mut state = 1_u64;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    let path = stage.node.daemon.home().join("noise");
    fs::write(&path, &bytes).unwrap();
    let want = Sha256::digest(&bytes);
    drop(bytes);
    for transport in TRANSPORTS {
        let since = tokio::time::Instant::now();
        let mut command = stage.crictl(&["exec", "-i", "--transport", transport, &id, "cat"]);
        let child = command.stdin(fs::File::open(&path).unwrap()).stdout(Stdio::piped());
        let mut child = child.stderr(Stdio::inherit()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
        let mut total = 0;
        while let count @ 1.. = stdout.read(&mut buffer).unwrap() {
            hash.update(&buffer[..count]);
            total += count;
        }
        assert!(child.wait().unwrap().success(), "{transport}");
        assert_eq!((total, hash.finalize()), (megabytes() << 20, want), "{transport}");
        eprintln!("{transport}: {} MB there and back in {:?}", megabytes(), since.elapsed());
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once() {
    let Some(stage) = Stage::new("fifty_at_once").await else { return };
    let id = stage.idle().await;
    let start = |n: usize| {
        let transport = TRANSPORTS[n % 2];
        let word = format!("I am {n}");
        let args = ["exec", "--transport", transport, &id, "sh", "-c", "sleep 1; echo $0", &word];
        let child = stage.crictl(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        (word, child.unwrap())
    };
    let all: Vec<_> = (0..50).map(start).collect();
    for (word, child) in all {
        let output = ended(child);
        assert!(output.status.success(), "{word}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout).trim(), word);
    }
    stage.end().await;
}

// === terminals ===

/// A user at a terminal.
struct Terminal {
    screen: fs::File,
    child: Child,
}

fn size(width: u16, height: u16) -> Winsize {
    Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Terminal {
    fn open(mut command: Command) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        tcsetwinsize(&screen, size(80, 24)).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let user: OwnedFd =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let again = || Stdio::from(user.try_clone().unwrap());
        let child = command.stdin(again()).stdout(again()).stderr(again()).spawn().unwrap();
        Self { screen: screen.into(), child }
    }

    fn type_in(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until `want` is on the screen.
    fn shows(&mut self, want: &str) {
        let (mut seen, mut buffer) = (String::new(), [0; 4096]);
        while !seen.contains(want) {
            match self.screen.read(&mut buffer) {
                Ok(count @ 1..) => seen += &text(&buffer[..count]),
                other => panic!("{want:?} is not in {seen:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_a_size_and_takes_on_another() {
    let name = "a_terminal_has_a_size_and_takes_on_another";
    let Some(stage) = Stage::new(name).await else { return };
    let id = stage.idle().await;
    for transport in TRANSPORTS {
        let script = "while [ \"$(stty size)\" != '24 80' ]; do :; done; echo first; \
                      while [ \"$(stty size)\" != '33 99' ]; do :; done; echo second; read x; \
                      echo \"<$x>\"; exit 7";
        let args = ["exec", "-it", "--transport", transport, &id, "sh", "-c", script];
        let mut terminal = Terminal::open(stage.crictl(&args));
        terminal.shows("first");
        tcsetwinsize(&terminal.screen, size(99, 33)).unwrap();
        let pid = Pid::from_child(&terminal.child);
        kill_process(pid, Signal::WINCH).unwrap();
        terminal.shows("second");
        terminal.type_in("typed\r");
        terminal.shows("<typed>");
        let Terminal { screen, child } = terminal;
        assert!(!ended(child).status.success());
        drop(screen);
    }
    stage.end().await;
}

// === attach ===

#[tokio::test(flavor = "multi_thread")]
async fn attach_types_and_hears() {
    let Some(stage) = Stage::new("attach_types_and_hears").await else { return };
    for transport in TRANSPORTS {
        let mut config = stage.node.sh(transport, "while read x; do echo \"<$x>\"; done; exit 5");
        (config.stdin, config.stdin_once) = (true, true);
        let id = stage.run(config).await;
        let mut command = stage.crictl(&["attach", "-i", "--transport", transport, &id]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        for word in ["one", "two"] {
            stdin.write_all(format!("{word}\n").as_bytes()).unwrap();
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line, format!("<{word}>\n"), "{transport}");
        }
        // The container sees the end of its input, and its end is ours.
        drop(stdin);
        assert!(ended(child).status.success(), "{transport}");
        assert_eq!(stage.cri.exited(&id).await.unwrap().exit_code, 5);
    }
    stage.end().await;
}

// === port-forward ===

/// `crictl port-forward` while it runs, and the local port.
struct Forward {
    child: Child,
    local: u16,
}

impl Forward {
    fn start(stage: &Stage, transport: &str, port: u16) -> Self {
        let spec = format!("0:{port}");
        let mut command =
            stage.crictl(&["port-forward", "--transport", transport, &stage.pod.id, &spec]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let local = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
        let local = local.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        // It says more, and stops where nobody listens.
        std::thread::spawn(move || drop(std::io::copy(&mut lines, &mut std::io::sink())));
        Self { child, local }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hears all of each connection, then answers with how much it was.
fn late_answerer() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            std::thread::spawn(move || {
                let mut all = Vec::new();
                socket.read_to_end(&mut all).unwrap();
                socket.write_all(format!("heard {}", all.len()).as_bytes()).unwrap();
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_a_pod_on_the_hosts_network() {
    let Some(stage) = Stage::new("ports_of_a_pod_on_the_hosts_network").await else { return };
    let port = late_answerer();
    for transport in TRANSPORTS {
        let forward = Forward::start(&stage, transport, port);
        let talk = |size: usize| {
            let local = forward.local;
            std::thread::spawn(move || {
                let mut socket = TcpStream::connect(("127.0.0.1", local)).unwrap();
                socket.write_all(&vec![7; size]).unwrap();
                // The answer comes only after our side has ended.
                socket.shutdown(Shutdown::Write).unwrap();
                let mut answer = String::new();
                socket.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, format!("heard {size}"));
            })
        };
        let all: Vec<_> = [1, 100, 3_000_000, 5, 70_000].map(talk).into();
        for one in all {
            one.join().unwrap_or_else(|_| panic!("over {transport}"));
        }
    }
    stage.end().await;
}

// === requests, tokens, and clients that go ===

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_checked_and_tokens_spent_once() {
    let name = "requests_are_checked_and_tokens_spent_once";
    let Some(stage) = Stage::new(name).await else { return };
    let id = stage.idle().await;
    let created = stage.node.sh("created", "true");
    let created = stage.cri.create(&stage.pod, created).await.unwrap();
    let mut runtime = stage.cri.runtime();
    let good = ExecRequest {
        container_id: id.clone(),
        cmd: vec!["true".into()],
        stdout: true,
        ..Default::default()
    };
    let no_stream = ExecRequest { stdout: false, ..good.clone() };
    let not_running = ExecRequest { container_id: created.clone(), ..good.clone() };
    let nobody = ExecRequest { container_id: "nobody".into(), ..good.clone() };
    for (request, code) in [
        (no_stream, Code::InvalidArgument),
        (not_running, Code::FailedPrecondition),
        (nobody, Code::NotFound),
    ] {
        assert_eq!(runtime.exec(request).await.unwrap_err().code(), code);
    }
    let attach = AttachRequest { container_id: created, stdout: true, ..Default::default() };
    assert_eq!(runtime.attach(attach).await.unwrap_err().code(), Code::FailedPrecondition);
    let forward = PortForwardRequest { pod_sandbox_id: "nobody".into(), port: Vec::new() };
    assert_eq!(runtime.port_forward(forward).await.unwrap_err().code(), Code::NotFound);

    let url = runtime.exec(good).await.unwrap().into_inner().url;
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    let status = || {
        let mut socket = TcpStream::connect(address).unwrap();
        let request = format!(
            "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line).unwrap();
        line
    };
    assert_eq!(status(), "HTTP/1.1 101 Switching Protocols\r\n");
    assert_eq!(status(), "HTTP/1.1 404 Not Found\r\n");
    stage.end().await;
}

/// Processes in the node's containers whose command line has `word`.
fn processes(node: &Node, word: &str) -> usize {
    node.processes().iter().filter(|process| process.command.contains(word)).count()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = tokio::time::Instant::now();
    while !holds() {
        assert!(since.elapsed() < LIMIT, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Without a terminal the command runs on, with its input ended and its output thrown away;
/// with one, it goes with its terminal.
#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_of_a_command_whose_client_vanishes() {
    let name = "what_becomes_of_a_command_whose_client_vanishes";
    let Some(stage) = Stage::new(name).await else { return };
    let (id, mounts) = with_shared(&stage).await;
    for transport in TRANSPORTS {
        let script = format!(
            "touch /shared/{transport}.begun; cat >/dev/null; seq 1 200000; \
             touch /shared/{transport}.ended"
        );
        let args = ["exec", "-i", "--transport", transport, &id, "sh", "-c", &script];
        let mut command = stage.crictl(&args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let file = |what: &str| exists(&mounts, &format!("{transport}.{what}"));
        until("it begins", || file("begun")).await;
        child.kill().unwrap();
        child.wait().unwrap();
        until("it ends by itself", || file("ended")).await;

        let word = format!("30{transport}");
        let script = format!("touch /shared/{word}; : {word}; while true; do sleep 1000; done");
        let args = ["exec", "-it", "--transport", transport, &id, "sh", "-c", &script];
        let mut terminal = Terminal::open(stage.crictl(&args));
        until("it begins", || exists(&mounts, &word)).await;
        assert!(processes(&stage.node, &word) > 0);
        terminal.child.kill().unwrap();
        terminal.child.wait().unwrap();
        until("it is killed", || processes(&stage.node, &word) == 0).await;
    }
    stage.end().await;
}

/// A container to run commands in that has the directory `shared` of the node.
async fn with_shared(stage: &Stage) -> (String, PathBuf) {
    let shared = stage.node.daemon.home().join("shared");
    fs::create_dir(&shared).unwrap();
    let mut config = stage.node.sh("shared", "exec sleep 100000");
    config.mounts.push(api_cri::v1::Mount {
        container_path: "/shared".into(),
        host_path: shared.display().to_string(),
        ..Default::default()
    });
    (stage.run(config).await, shared)
}

/// Says a line each 50 ms, then more than a pipe holds, and leaves a file.
fn chatter(name: &str) -> String {
    format!(
        "for i in $(seq 1 40); do echo line $i; sleep 0.05; done; seq 1 50000; \
         seq 1 50000 >&2; touch /shared/{name}"
    )
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Asked,
    Killed,
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_on_when_the_daemon_ends() {
    let Some(mut stage) = Stage::new("commands_run_on_when_the_daemon_ends").await else { return };
    let (id, shared) = with_shared(&stage).await;
    for (transport, ends) in
        TRANSPORTS.into_iter().flat_map(|t| [(t, Ends::Asked), (t, Ends::Killed)])
    {
        let what = format!("{transport}-{ends:?}");
        let script = chatter(&what);
        let args = ["exec", "--transport", transport, &id, "sh", "-c", &script];
        let heard = stage.node.daemon.home().join(&what);
        let mut command = stage.crictl(&args);
        let command = command.stdout(fs::File::create(&heard).unwrap()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let size = || fs::metadata(&heard).unwrap().len();
        until("it says something", || size() > 0).await;
        match ends {
            Ends::Asked => assert_eq!(stage.node.daemon.stop().await.unwrap().code, Some(0)),
            Ends::Killed => stage.node.daemon.kill().unwrap(),
        }
        let output = ended(child);
        let error = text(&output.stderr);
        eprintln!("{what}: {}: {error}", output.status);
        if ends == Ends::Asked {
            assert!(!output.status.success(), "{what}: {error}");
            assert!(error.contains("the daemon is stopping; the command goes on"), "{error}");
        }
        assert!(!exists(&shared, &what), "{what}: it ended too early to tell");
        // Nobody is there but the shim.
        until("it ends by itself", || exists(&shared, &what)).await;
        stage.node.daemon.start_again().await.unwrap();
        stage.cri = stage.node.cri().await.unwrap();
        let output = stage.exec(transport, &id, &["echo", "well"]);
        assert_eq!(text(&output.stdout), "well\n", "{what}: {}", text(&output.stderr));
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_command_runs_on_when_the_daemon_stops() {
    let name = "a_synchronous_command_runs_on_when_the_daemon_stops";
    let Some(mut stage) = Stage::new(name).await else { return };
    let (id, shared) = with_shared(&stage).await;
    let script = format!("touch /shared/begun; {}", chatter("ended"));
    let (cri, of) = (stage.cri.clone(), id.clone());
    let tasks = TaskTracker::new();
    let call = tasks.spawn(async move { cri.exec(&of, &["sh", "-c", &script]).await });
    let (cri, of) = (stage.cri.clone(), id.clone());
    let script = "touch /shared/short; sleep 0.2; echo whole";
    let short = tasks.spawn(async move { cri.exec(&of, &["sh", "-c", script]).await });
    until("they begin", || exists(&shared, "begun") && exists(&shared, "short")).await;
    assert_eq!(stage.node.daemon.stop().await.unwrap().code, Some(0));
    assert_eq!(short.await.unwrap().unwrap().stdout, "whole\n", "a short one still ends");
    let error = call.await.unwrap().expect_err("a call that is not waited for");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("the command goes on"), "{error}");
    until("it ends by itself", || exists(&shared, "ended")).await;
    stage.node.daemon.start_again().await.unwrap();
    stage.end().await;
}

fn exists(dir: &Path, name: &str) -> bool {
    dir.join(name).exists()
}
