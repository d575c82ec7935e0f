//! What containers write is in their logs, whatever happens to the daemon.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    time::Duration,
};

use api_cri::v1::{ContainerConfig, ContainerState, Mount};
use jiff::Timestamp;
use testkit::{Node, Pod};
use tokio::time::Instant;

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// One line of a log in CRI format.
#[derive(Debug, PartialEq)]
struct Line {
    at: Timestamp,
    stream: String,
    tag: String,
    text: Vec<u8>,
}

/// Calls `each` for every line; every one of them must be well formed.
fn read_log(path: &Path, mut each: impl FnMut(Line)) {
    let mut reader = BufReader::new(fs::File::open(path).unwrap());
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).unwrap() > 0 {
        let whole = line.strip_suffix(b"\n").unwrap_or_else(|| panic!("torn: {line:?}"));
        let mut parts = whole.splitn(4, |byte| *byte == b' ');
        let mut word = || String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
        let (at, stream, tag) = (word().parse().unwrap(), word(), word());
        let text = parts.next().unwrap().to_vec();
        each(Line { at, stream, tag, text });
        line.clear();
    }
}

fn lines(path: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    read_log(path, |line| lines.push(line));
    lines
}

/// Mounts a directory through which the test opens gates.
fn gated(config: ContainerConfig, gates: &Path) -> ContainerConfig {
    fs::create_dir_all(gates).unwrap();
    let host_path = gates.display().to_string();
    let mount = Mount { host_path, container_path: "/gates".to_owned(), ..Mount::default() };
    ContainerConfig { mounts: vec![mount], ..config }
}

fn open_gate(gates: &Path, gate: u32) {
    fs::write(gates.join(gate.to_string()), "").unwrap();
}

async fn grown(path: &Path, beyond: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    while !fs::metadata(path).is_ok_and(|log| log.len() > beyond) {
        assert!(Instant::now() < until, "{} stays at {beyond} bytes", path.display());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |log| log.len())
}

/// Numbered lines of exactly 100 bytes, `per_gate` of them behind each gate.
fn torrent(gates: u32, per_gate: u32) -> String {
    // What separates two numbers of ten digits.
    let fill = "x".repeat(100 - 10 - 1 - 1);
    format!(
        "first=1000000001
         for gate in $(seq 1 {gates}); do
           until [ -e /gates/$gate ]; do sleep 0.01; done
           last=$((first + {per_gate} - 1))
           seq -s \" {fill}
\" $first $last
           first=$((last + 1))
         done"
    )
}

/// Every number is there, once, in order.
fn check_torrent(path: &Path, gates: u32, per_gate: u32) {
    let (mut next, mut last_at) = (1_000_000_001_u64, Timestamp::MIN);
    read_log(path, |line| {
        assert_eq!((line.stream.as_str(), line.tag.as_str()), ("stdout", "F"), "before {next}");
        let text = String::from_utf8(line.text).unwrap();
        let (number, fill) = text.split_once(' ').unwrap_or((&text, ""));
        assert_eq!(number, next.to_string(), "lost, doubled or out of order");
        assert!(fill.bytes().all(|byte| byte == b'x'), "{text}");
        // The last of a gate has nothing after it.
        let at_end = (next - 1_000_000_000).is_multiple_of(per_gate.into());
        assert_eq!(fill.len(), if at_end { 0 } else { 88 }, "{text}");
        assert!(line.at >= last_at, "time runs forward");
        last_at = line.at;
        next += 1;
    });
    assert_eq!(next - 1_000_000_001, u64::from(gates * per_gate), "all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_is_there_after_five_kills_of_the_daemon() {
    const KILLS: u32 = 5;
    let Some(mut node) = Node::start("every_byte_is_there", LONGSHORE).await else { return };
    let mut cri = node.cri().await.unwrap();
    // Two per kill, and one more: the last daemon sees the end.
    let (gates, megabytes) = (2 * KILLS + 1, testkit::rounds(20));
    let per_gate = megabytes * 10_000 / gates;
    let dir = node.daemon.home().join("gates");
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let torrent = gated(node.sh("c", &torrent(gates, per_gate)), &dir);
    let id = cri.run(&pod, torrent).await.unwrap();
    let log = node.log_path(&pod, "c");

    for kill in 1..=KILLS {
        let before = len(&log);
        open_gate(&dir, 2 * kill - 1);
        grown(&log, before).await;
        node.daemon.kill().unwrap();
        // It may all be written by now: there has to be more.
        let killed_at = len(&log);
        open_gate(&dir, 2 * kill);
        grown(&log, killed_at).await;
        node.daemon.start_again().await.unwrap();
        cri = node.cri().await.unwrap();
        assert_eq!(cri.status(&id).await.unwrap().state(), ContainerState::ContainerRunning);
    }
    open_gate(&dir, gates);
    let status = cri.exited(&id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"));
    check_torrent(&log, gates, per_gate);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_rotated_while_written_loses_nothing() {
    let Some(node) = Node::start("a_log_that_is_rotated", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let (gates, per_gate) = (5, 5_000);
    let dir = node.daemon.home().join("gates");
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let id = cri.run(&pod, gated(node.sh("c", &torrent(gates, per_gate)), &dir)).await.unwrap();
    let log = node.log_path(&pod, "c");
    let mut old = Vec::new();
    for gate in 1..=gates {
        open_gate(&dir, gate);
        grown(&log, 0).await;
        if gate < gates {
            let moved = log.with_extension(format!("log.{gate}"));
            fs::rename(&log, &moved).unwrap();
            cri.reopen_log(&id).await.unwrap();
            assert!(log.exists(), "the new file is there when the call returns");
            old.push(moved);
        }
    }
    cri.exited(&id).await.unwrap();
    let all: Vec<u8> = old.iter().chain([&log]).flat_map(|part| fs::read(part).unwrap()).collect();
    let whole = log.with_extension("whole");
    fs::write(&whole, all).unwrap();
    check_torrent(&whole, gates, per_gate);
    let gone = cri.reopen_log(&id).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::FailedPrecondition, "{gone}");
    node.finish().await.unwrap();
}

/// What `script` has in its log, as `stream tag text`.
async fn logged(node: &Node, pod: &Pod, name: &str, script: &str) -> Vec<String> {
    let cri = node.cri().await.unwrap();
    cri.run_to_end(pod, node.sh(name, script)).await.unwrap();
    let text = |line: Line| {
        format!("{} {} {}", line.stream, line.tag, String::from_utf8_lossy(&line.text))
    };
    lines(&node.log_path(pod, name)).into_iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_come_in_parts_where_they_must() {
    let Some(node) = Node::start("lines_come_in_parts", LONGSHORE).await else { return };
    let pod = node.cri().await.unwrap().run_pod(&node.pod("p")).await.unwrap();

    let got = logged(&node, &pod, "ends", r"printf 'one\r\ntwo\n\nlone\rcr\nlast'").await;
    let want =
        ["F one", "F two", "F ", "F lone\rcr", "P last"].map(|line| format!("stdout {line}"));
    assert_eq!(got, want);

    let long =
        "awk 'BEGIN { for (i = 0; i < 40000; i++) printf \"z\"; print \"\" }'; echo short >&2";
    let mut got = logged(&node, &pod, "long", long).await;
    let short = got.iter().position(|line| line == "stderr F short").unwrap();
    got.remove(short);
    let z = |len: usize| "z".repeat(len);
    let want = [
        format!("stdout P {}", z(16384)),
        format!("stdout P {}", z(16384)),
        format!("stdout F {}", z(40_000 - 2 * 16384)),
    ];
    assert!(got == want, "{:?}", got.iter().map(String::len).collect::<Vec<_>>());

    // Bytes that are no text, and a line that comes in two writes, stay whole.
    let odd = r"printf 'a\377\200b\n'; printf 'half'; sleep 0.2; printf ' and half\n'";
    logged(&node, &pod, "odd", odd).await;
    let odd: Vec<_> = lines(&node.log_path(&pod, "odd")).into_iter().map(|l| l.text).collect();
    assert_eq!(odd, [b"a\xff\x80b".to_vec(), b"half and half".to_vec()]);
    node.finish().await.unwrap();
}
