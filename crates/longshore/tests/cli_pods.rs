//! Pods and containers as people handle them: by the commands, in a shell and in a terminal.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::Value;
use testkit::Node;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

// === the commands ===

fn command(node: &Node, words: &[&str]) -> Command {
    let mut command = Command::new(LONGSHORE);
    command.args(words).env("LONGSHORE_CRI_SOCKET", node.daemon.cri_socket()).stdin(Stdio::null());
    command
}

fn call(node: &Node, words: &[&str]) -> Output {
    command(node, words).output().unwrap()
}

/// What it printed; it must have gone well.
#[track_caller]
fn good(node: &Node, words: &[&str]) -> String {
    let output = call(node, words);
    assert!(output.status.success(), "{words:?}: {output:?}\n{}", node.daemon.stderr());
    text(&output.stdout)
}

/// What it said of its failure, with its exit code.
#[track_caller]
fn bad(node: &Node, words: &[&str], code: i32) -> String {
    let output = call(node, words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    text(&output.stderr)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn list(node: &Node) -> Value {
    serde_json::from_str(&good(node, &["ps", "-a", "--json"])).unwrap()
}

/// Nothing of what `longshore run` made, logs included.
#[track_caller]
fn assert_nothing_left(node: &Node) {
    assert_eq!(list(node), serde_json::json!([]));
    let logs = fs::read_dir(node.daemon.root().join("logs")).into_iter().flatten();
    let logs: Vec<_> = logs.map(|entry| entry.unwrap().path()).collect();
    assert!(logs.is_empty(), "{logs:?}");
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Lines of a program that runs on; `None` at its end.
fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

// === run ===

#[tokio::test(flavor = "multi_thread")]
async fn a_container_in_the_foreground() {
    let Some(node) = Node::start("a_container_in_the_foreground", LONGSHORE).await else { return };
    let image = node.image().to_owned();
    let script = "echo out; echo err >&2; printf 'no end'; exit 7";
    let output = call(&node, &["run", "--rm", &image, "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\nno end".into(), "err\n".into())
    );
    assert_nothing_left(&node);

    // Kept for its log, but holding nothing.
    good(&node, &["run", "--name", "kept", &image, "echo", "said"]);
    assert_eq!(list(&node)[0]["state"], "not ready");
    assert_eq!(good(&node, &["logs", "kept"]), "said\n");
    assert_eq!(good(&node, &["ps"]).lines().count(), 1, "what has ended is not listed");
    good(&node, &["rm", "kept"]);
    assert_nothing_left(&node);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_leaves_nothing() {
    let name = "what_cannot_be_run_leaves_nothing";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let image = node.image().to_owned();
    let error = bad(&node, &["run", "--name", "x", &image, "no-such-program"], 125);
    assert!(error.contains("start x/busybox: ") && error.contains("no-such-program"), "{error}");
    let absent = format!("{}/no/such:1", node.registry.host());
    let error = bad(&node, &["run", &absent], 125);
    assert!(error.contains(&format!("pull {absent}: ")), "{error}");
    let error = bad(&node, &["run", "-it", &image], 125);
    assert!(error.contains("standard input is not a terminal: leave out -t"), "{error}");
    assert_nothing_left(&node);

    good(&node, &["run", "-d", "--name", "x", &image, "sleep", "1000"]);
    let error = bad(&node, &["run", "--name", "x", &image], 125);
    assert!(error.contains("there is a pod x already: choose another --name"), "{error}");
    assert_eq!(list(&node)[0]["containers"][0]["state"], "running", "the first one lives");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_limits_and_rights_of_a_container() {
    let name = "volumes_limits_and_rights_of_a_container";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let image = node.image().to_owned();
    let dir = node.daemon.home().join("data");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "of the host\n").unwrap();
    let script = "cat /data/file; touch /data/x 2>/dev/null || echo ro; \
                  touch /x 2>/dev/null || echo read-only";
    let mut run = command(&node, &["run", "--rm", "-v", "./data:/data:ro", "--read-only"]);
    let output =
        run.args([&*image, "sh", "-c", script]).current_dir(node.daemon.home()).output().unwrap();
    assert_eq!(text(&output.stdout), "of the host\nro\nread-only\n", "{output:?}");

    let words = ["run", "-d", "--name", "small", "--memory", "64m", "--cpus", "0.5"];
    good(&node, &[&words[..], &[&*image, "sleep", "1000"]].concat());
    let spec: Value = serde_json::from_str(&good(&node, &["inspect", "small/busybox"])).unwrap();
    let resources = &find(&spec, "runtimeSpec").unwrap()["linux"]["resources"];
    assert_eq!(resources["memory"]["limit"], 64 << 20, "{resources}");
    assert_eq!(resources["cpu"]["quota"], 50_000, "{resources}");

    // Every device of the host, and all capabilities.
    let script = "ls /dev/kmsg && grep CapEff /proc/self/status";
    let plain = bad(&node, &["run", "--rm", &image, "ls", "/dev/kmsg"], 1);
    assert!(plain.contains("No such file"), "{plain}");
    let seen = good(&node, &["run", "--rm", "--privileged", &image, "sh", "-c", script]);
    let host = fs::read_to_string("/proc/self/status").unwrap();
    let all = host.lines().find(|line| line.starts_with("CapEff")).unwrap();
    assert_eq!(seen.lines().nth(1), Some(all), "{seen}");
    node.finish().await.unwrap();
}

/// The first value of this key, however deep.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => {
            map.get(key).or_else(|| map.values().find_map(|value| find(value, key)))
        }
        Value::Array(list) => list.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_containers_use_is_shown_once_and_all_the_time() {
    let name = "what_containers_use_is_shown";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let image = node.image().to_owned();
    assert_eq!(good(&node, &["stats", "--interval", "10ms"]).lines().count(), 1);
    let busy = ["run", "-d", "--name", "busy", "--memory", "64m", &image];
    good(&node, &[&busy[..], &["sh", "-c", "while :; do :; done"]].concat());
    good(&node, &["run", "-d", "--name", "idle", &image, "sleep", "1000"]);

    let stats = good(&node, &["stats", "--json"]);
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(
        (&stats[0]["name"], &stats[1]["name"]),
        (&"busy/busybox".into(), &"idle/busybox".into())
    );
    let cpu = |at: usize| stats[at]["cpuPercent"].as_f64().unwrap();
    assert!(cpu(0) > cpu(1), "the busiest is first: {stats}");
    assert!(stats[0]["memoryBytes"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats[0]["memoryLimitBytes"], 64 << 20, "{stats}");
    let by_name = good(&node, &["stats", "--sort", "name", "--interval", "10ms"]);
    assert!(by_name.lines().nth(1).unwrap().starts_with("busy/busybox"), "{by_name}");

    let words = ["top", "--json", "--count", "3", "--interval", "100ms"];
    let top = good(&node, &words);
    let tables: Vec<Value> = top.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(tables.len(), 3);
    assert!(tables.iter().all(|table| table[0]["name"] == "busy/busybox"), "{top}");

    let mut terminal = Terminal::open(&node, &["top", "--interval", "200ms"]);
    terminal.resize(40, 133);
    terminal.shows("busy/busybox");
    terminal.type_in("n");
    terminal.shows("idle/busybox");
    terminal.type_in("q");
    assert!(terminal.child.wait().unwrap().success());
    assert_eq!(modes(&terminal.screen), terminal.before, "the user's terminal is as it was");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_passed_on_whole_to_containers_and_commands() {
    let name = "input_is_passed_on_whole_to_containers_and_commands";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let image = node.image().to_owned();
    let lines: String = (0..100_000).map(|i| format!("line {i}\n")).collect();
    let file = node.daemon.home().join("input");
    fs::write(&file, &lines).unwrap();
    let fed = |words: &[&str]| {
        let mut command = command(&node, words);
        let output = command.stdin(File::open(&file).unwrap()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    assert_eq!(fed(&["run", "--rm", "-i", &image, "cat"]).len(), lines.len());
    good(&node, &["run", "-d", "--name", "up", &image, "sleep", "1000"]);
    assert!(fed(&["exec", "-i", "up", "cat"]) == lines.as_bytes(), "not a byte is lost or changed");
    // One that does not read its input hinders nobody.
    assert!(fed(&["exec", "-i", "up", "true"]).is_empty());
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_the_container_politely() {
    let name = "ctrl_c_stops_the_container_politely";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let script = "trap 'echo bye; exit 5' TERM; echo up; while true; do sleep 0.05; done";
    let mut command = command(&node, &["run", "--rm", node.image(), "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = lines(&mut child);
    assert_eq!(said.next().as_deref(), Some("up"));
    signal(&child, Signal::INT);
    assert_eq!(said.next().as_deref(), Some("bye"));
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_nothing_left(&node);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_of_the_daemon_does_not_end_the_foreground() {
    let name = "kill_of_the_daemon_does_not_end_the_foreground";
    let Some(mut node) = Node::start(name, LONGSHORE).await else { return };
    let script =
        "echo before; while [ $i != 200 ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 6";
    let words = ["run", "--rm", "-e", "i=0", node.image(), "sh", "-c", script];
    let mut child = command(&node, &words).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = lines(&mut child);
    assert_eq!(said.next().as_deref(), Some("before"));
    node.daemon.kill().unwrap();
    let while_away = said.next();
    assert_eq!(while_away.as_deref(), Some("1"), "it is heard without a daemon");
    node.daemon.start_again().await.unwrap();
    let rest: Vec<_> = said.collect();
    let want: Vec<_> = (2..=200).map(|i| i.to_string()).collect();
    assert_eq!(rest, want);
    assert_eq!(child.wait().unwrap().code(), Some(6));
    assert_nothing_left(&node);
    node.finish().await.unwrap();
}

// === the rest ===

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_detached_pod() {
    let Some(node) = Node::start("the_life_of_a_detached_pod", LONGSHORE).await else { return };
    let script =
        "trap 'echo bye; exit 0' TERM; echo one; echo two; while true; do sleep 0.05; done";
    let ids = good(&node, &["run", "-d", "--name", "web", node.image(), "sh", "-c", script]);
    let (pod, container) = ids.trim().split_once(' ').unwrap();

    let table = good(&node, &["ps"]);
    let cells: Vec<Vec<_>> = table.lines().map(|line| line.split("  ").collect()).collect();
    assert!(cells[1].contains(&"web") && cells[1].contains(&&pod[..12]), "{table}");
    assert!(cells[2].contains(&"web/busybox") && cells[2].contains(&&container[..12]), "{table}");
    assert_eq!(list(&node)[0]["containers"][0]["id"], container);

    // By any name.
    for name in ["web", "web/busybox", container, &container[..6], &pod[..6]] {
        assert_eq!(bad(&node, &["exec", name, "sh", "-c", "echo $0 >&2; exit 3"], 3), "sh\n");
    }
    let env = ["exec", "-e", "A=b c", "-w", "/tmp", "web", "sh", "-c", "echo $A; pwd"];
    assert_eq!(good(&node, &env), "b c\n/tmp\n");
    let inspected: Value =
        serde_json::from_str(&good(&node, &["inspect", "web", "web/busybox"])).unwrap();
    assert_eq!(inspected[0]["containers"][0]["id"], inspected[1]["id"]);
    assert_eq!(inspected[1]["info"]["runtimeSpec"]["process"]["args"][0], "sh");

    eventually("both lines are logged", || good(&node, &["logs", "web"]) == "one\ntwo\n").await;
    assert_eq!(good(&node, &["logs", "-n", "1", "web"]), "two\n");
    let stamped = good(&node, &["logs", "-t", "-n", "1", "web"]);
    assert!(stamped.starts_with("20") && stamped.ends_with("Z two\n"), "{stamped}");
    let mut follower =
        command(&node, &["logs", "-f", "web"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut followed = lines(&mut follower);
    assert_eq!(followed.by_ref().take(2).collect::<Vec<_>>(), ["one", "two"]);

    let error = bad(&node, &["rm", "web"], 1);
    assert!(error.contains("web/busybox is running: stop it first"), "{error}");
    good(&node, &["stop", "web/busybox"]);
    assert_eq!(followed.collect::<Vec<_>>(), ["bye"], "the follower ends with the container");
    assert!(follower.wait().unwrap().success());
    let error = bad(&node, &["exec", "web", "true"], 125);
    assert!(error.contains("exec in web/busybox: ") && error.contains("is exited"), "{error}");
    good(&node, &["rm", "web"]);
    assert_nothing_left(&node);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_object_and_the_way_out() {
    let name = "errors_name_the_object_and_the_way_out";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    let unknown = "longshore: no pod or container \"x\": `longshore ps -a` lists all\n";
    for words in [["stop", "x"], ["rm", "x"], ["logs", "x"], ["inspect", "x"]] {
        assert_eq!(bad(&node, &words, 1), unknown);
    }
    assert_eq!(bad(&node, &["exec", "x", "true"], 125), unknown);
    assert_eq!(good(&node, &["ps", "--stages"]), "nothing is in flight\n");
    let mut nobody = command(&node, &["ps"]);
    let output = nobody.env("LONGSHORE_CRI_SOCKET", "/no/such.sock").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("no daemon at /no/such.sock") && error.contains("longshore daemon"));
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_takes_its_command_along() {
    let name = "a_client_that_goes_away_takes_its_command_along";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    good(&node, &["run", "-d", "--name", "up", node.image(), "sleep", "1000"]);
    let script = "echo $$; exec sleep 777";
    let words = ["exec", "up", "sh", "-c", script];
    let mut child = command(&node, &words).stdout(Stdio::piped()).spawn().unwrap();
    let pid = lines(&mut child).next().unwrap();
    let runs =
        || call(&node, &["exec", "up", "sh", "-c", &format!("kill -0 {pid}")]).status.success();
    assert!(runs());
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the command is gone", || !runs()).await;
    assert_eq!(list(&node)[0]["containers"][0]["state"], "running");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_show_what_a_slow_start_waits_for() {
    let name = "stages_show_what_a_slow_start_waits_for";
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path().join("slow-runc");
    // It waits until the test lets it go on, but only for ours.
    let gate = dir.path().join("gate");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' create '*)\nwhile [ -e {} ]; do sleep 0.02; done;; esac\n\
         exec runc \"$@\"\n",
        gate.display()
    );
    testkit::program(&slow, &script);
    let handler = format!("slow={}", slow.display());
    let add = |command: &mut Command| {
        command.args(["--handler", &handler]);
    };
    let Some(node) = Node::start_with(name, LONGSHORE, add).await else { return };

    let mut watch = command(&node, &["ps", "--stages", "--watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = lines(&mut watch);
    assert_eq!(seen.next().as_deref(), Some("[]"), "nothing is in flight yet");
    fs::write(&gate, "").unwrap();
    let mut run = command(&node, &["run", "--rm", "--name", "slow", node.image(), "true"]);
    let mut run = run.spawn().unwrap();
    let mut shown = String::new();
    eventually("the start waits for its task", || {
        shown = good(&node, &["ps", "--stages"]);
        shown.contains("create-task")
    })
    .await;
    let line = shown.lines().find(|line| line.contains("create-task")).unwrap();
    assert!(line.starts_with("start-container") && line.ends_with("slow/busybox"), "{shown}");
    let watched = seen.any(|line| line.contains("\"step\": \"create-task\""));
    assert!(watched, "the watch ended by itself");
    fs::remove_file(&gate).unwrap();
    assert!(run.wait().unwrap().success());
    eventually("nothing is in flight", || good(&node, &["ps", "--stages"]).contains("nothing"))
        .await;

    watch.kill().unwrap();
    watch.wait().unwrap();
    node.finish().await.unwrap();
}

// === terminals ===

/// A program in a terminal of its own, which the test types into.
struct Terminal {
    child: Child,
    keys: OwnedFd,
    /// Held open: its settings are looked at when the program has ended.
    screen: OwnedFd,
    shown: std::sync::mpsc::Receiver<Vec<u8>>,
    text: String,
    /// Its settings before the program could touch them.
    before: String,
}

impl Terminal {
    fn open(node: &Node, words: &[&str]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let screen = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let before = modes(&screen);
        let end = || Stdio::from(screen.try_clone().unwrap());
        // `setsid` makes it the controlling terminal, and then becomes the program.
        let child = Command::new("setsid")
            .args(["--ctty", LONGSHORE])
            .args(words)
            .env("LONGSHORE_CRI_SOCKET", node.daemon.cri_socket())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (sender, shown) = std::sync::mpsc::channel();
        let mut reader = File::from(keys.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, screen, shown, text: String::new(), before }
    }

    fn type_in(&mut self, keys: &str) {
        File::from(self.keys.try_clone().unwrap()).write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    /// Waits until it shows `text`, and forgets all up to there.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        loop {
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return;
            }
            let more = self.shown.recv_timeout(LIMIT);
            let more = more.unwrap_or_else(|_| {
                let (shown, state) = (&self.text, self.child.try_wait());
                panic!("{text:?} never came, but {shown:?}; the program: {state:?}")
            });
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }
}

#[track_caller]
fn modes(terminal: &impl AsFd) -> String {
    let settings = tcgetattr(terminal).unwrap();
    format!("{:?} {:?}", settings.local_modes, settings.input_modes)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_in_a_terminal() {
    let Some(node) = Node::start("a_shell_in_a_terminal", LONGSHORE).await else { return };
    let words = ["run", "--rm", "-it", "-e", "PS1=<prompt>", node.image(), "sh"];
    let mut terminal = Terminal::open(&node, &words);
    // What is typed waits for the shell, so this is answered however late we attached.
    terminal.type_in("echo re''ady\n");
    terminal.shows("ready");
    assert_ne!(modes(&terminal.screen), terminal.before, "keys are passed on one by one");
    terminal.resize(41, 133);
    // The size arrives a moment after the signal.
    terminal
        .type_in("while [ \"$(stty size)\" != '41 133' ]; do sleep 0.05; done; echo re''sized\n");
    terminal.shows("resized");
    // Quotes, so that what is typed does not look like what is printed.
    terminal.type_in(
        "(trap \"echo inter''rupted; exit\" INT; echo wait''ing; while :; do sleep 0.05; done)\n",
    );
    terminal.shows("waiting");
    terminal.type_in("\x03");
    terminal.shows("interrupted");
    terminal.shows("<prompt>");
    terminal.type_in("exit 9\n");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(9));
    assert_eq!(modes(&terminal.screen), terminal.before, "the user's terminal is as it was");
    assert_nothing_left(&node);
    node.finish().await.unwrap();
}

/// Nothing follows a prompt: only who is there from the first byte sees it.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_prompt_is_seen() {
    let Some(node) = Node::start("the_first_prompt_is_seen", LONGSHORE).await else { return };
    let words = ["run", "--rm", "-it", "-e", "PS1=<prompt>", node.image(), "sh"];
    for _ in 0..20 {
        let mut terminal = Terminal::open(&node, &words);
        terminal.shows("<prompt>");
        terminal.type_in("exit\n");
        assert!(terminal.child.wait().unwrap().success());
    }
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_whatever_ends_us() {
    let name = "the_terminal_is_given_back_whatever_ends_us";
    let Some(node) = Node::start(name, LONGSHORE).await else { return };
    good(&node, &["run", "-d", "--name", "up", node.image(), "sleep", "1000"]);
    let words = ["exec", "-it", "-e", "PS1=<prompt>", "up", "sh"];
    for (by, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut terminal = Terminal::open(&node, &words);
        terminal.shows("<prompt>");
        assert_ne!(modes(&terminal.screen), terminal.before);
        signal(&terminal.child, by);
        assert_eq!(terminal.child.wait().unwrap().code(), Some(code));
        assert_eq!(modes(&terminal.screen), terminal.before, "{by:?}");
    }
    // And when the daemon refuses.
    let mut terminal = Terminal::open(&node, &["exec", "-it", "up", "no-such-program"]);
    terminal.shows("no-such-program");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(125));
    assert_eq!(modes(&terminal.screen), terminal.before);
    node.finish().await.unwrap();
}
