//! What containers write, and where it ends up.

use std::{fs, time::Duration};

use shim_client::{LogFormat, LogTarget, Stdio};
use tokio::time::{Instant, sleep};

use crate::world::{LIMIT, Wish, World, lines, read_log};

#[tokio::test]
async fn both_streams_are_logged_line_by_line() {
    let Some(world) = World::new("both_streams_are_logged_line_by_line") else { return };
    let pod = world.start().await;
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let script =
        "echo out; sleep 0.1; echo err >&2; sleep 0.1; printf 'dos\\r\\n'; sleep 0.1; printf end";
    pod.outcome("c", &["sh", "-c", script], wish).await;
    let want = [
        ("stdout", "F", "out"),
        ("stderr", "F", "err"),
        ("stdout", "F", "dos"),
        ("stdout", "P", "end"),
    ];
    assert_eq!(read_log(&pod.log_path("c")), lines(&want));
    pod.finish().await;
}

#[tokio::test]
async fn long_lines_are_cut_into_parts() {
    let Some(world) = World::new("long_lines_are_cut_into_parts") else { return };
    let pod = world.start().await;
    let log = LogTarget { max_line: 10, ..pod.log("c") };
    let wish = Wish { log: Some(log), ..Wish::default() };
    pod.outcome("c", &["echo", "0123456789abcdefghij!"], wish).await;
    let want = [("stdout", "P", "0123456789"), ("stdout", "P", "abcdefghij"), ("stdout", "F", "!")];
    assert_eq!(read_log(&pod.log_path("c")), lines(&want));
    pod.finish().await;
}

#[tokio::test]
async fn dockers_format_is_written_too() {
    let Some(world) = World::new("dockers_format_is_written_too") else { return };
    let pod = world.start().await;
    let log = LogTarget { format: LogFormat::JsonFile, ..pod.log("c") };
    pod.outcome("c", &["printf", "say \"hi\"\\nend"], Wish { log: Some(log), ..Wish::default() })
        .await;
    let text = fs::read_to_string(pod.log_path("c")).unwrap();
    let said: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(said[0]["log"], "say \"hi\"\n");
    assert_eq!(said[1]["log"], "end");
    assert_eq!(said[1]["stream"], "stdout");
    pod.finish().await;
}

#[tokio::test]
async fn a_log_that_was_moved_away_is_begun_anew() {
    let Some(world) = World::new("a_log_that_was_moved_away_is_begun_anew") else { return };
    let pod = world.start().await;
    let wish = Wish {
        log: Some(pod.log("c")),
        stdio: Stdio { stdin: true, ..Stdio::default() },
        ..Wish::default()
    };
    let id = pod.run("c", &["cat"], wish).await;
    let mut io = pod.shim.attach(&id, true, true, false).await.unwrap();
    io.input.write(b"one\n").await.unwrap();
    let path = pod.log_path("c");
    logged(&path, "one").await;
    fs::rename(&path, path.with_extension("1")).unwrap();
    pod.shim.reopen_log(&id).await.unwrap();
    io.input.write(b"two\n").await.unwrap();
    logged(&path, "two").await;
    assert_eq!(read_log(&path.with_extension("1")), lines(&[("stdout", "F", "one")]));
    assert_eq!(read_log(&path), lines(&[("stdout", "F", "two")]));
    pod.end(&id).await;
    pod.finish().await;
}

async fn logged(path: &std::path::Path, text: &str) {
    let until = Instant::now() + LIMIT;
    while !fs::read_to_string(path).is_ok_and(|log| log.contains(text)) {
        assert!(Instant::now() < until, "{text} was not logged");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn much_output_is_logged_whole_and_fast() {
    let Some(world) = World::new("much_output_is_logged_whole_and_fast") else { return };
    const MIB: u64 = 50;
    let pod = world.start().await;
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let line = "x".repeat(99);
    let script = format!("yes {line} | head -c {}", MIB << 20);
    let begin = Instant::now();
    pod.outcome("c", &["sh", "-c", &script], wish).await;
    let took = begin.elapsed();
    let log = read_log(&pod.log_path("c"));
    let whole = usize::try_from((MIB << 20) / 100).unwrap();
    assert_eq!(log.iter().filter(|(_, tag, text)| tag == "F" && *text == line).count(), whole);
    let bytes: usize = log.iter().map(|(_, tag, text)| text.len() + usize::from(tag == "F")).sum();
    assert_eq!(bytes as u64, MIB << 20);
    eprintln!("{MIB} MiB logged in {took:?}, with start and end of the container");
    pod.finish().await;
}

#[tokio::test]
async fn a_full_disk_stops_no_container() {
    let Some(world) = World::new("a_full_disk_stops_no_container") else { return };
    let pod = world.start().await;
    let log = LogTarget { path: "/dev/full".into(), ..pod.log("c") };
    let wish = Wish { log: Some(log), ..Wish::default() };
    let id = pod.run("c", &["sh", "-c", "yes | head -c 1000000; exit 5"], wish).await;
    assert_eq!(pod.wait(&id).await.code, 5);
    let exit = pod.shim.delete(&id).await.unwrap();
    assert!(exit.log_errors > 0, "{exit:?}");
    pod.finish().await;
}

#[tokio::test]
async fn a_terminal_is_logged_as_stdout() {
    let Some(world) = World::new("a_terminal_is_logged_as_stdout") else { return };
    let pod = world.start().await;
    let wish = Wish {
        log: Some(pod.log("c")),
        stdio: Stdio { tty: true, ..Stdio::default() },
        ..Wish::default()
    };
    let id = pod
        .create("c", &["sh", "-c", "test -t 0 && test -t 1 && echo err >&2; stty size"], wish)
        .await;
    pod.shim.resize(&id, "", 132, 40).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    assert_eq!(
        read_log(&pod.log_path("c")),
        lines(&[("stdout", "F", "err"), ("stdout", "F", "40 132")])
    );
    pod.finish().await;
}

/// Not a bound, a figure to read: other work shares these processors.
#[tokio::test]
async fn how_fast_a_log_is_written() {
    let Some(world) = World::new("how_fast_a_log_is_written") else { return };
    const LINES: usize = 1 << 20;
    let line = format!("{}\n", "x".repeat(99));
    fs::write(world.rootfs().join("etc/much"), line.repeat(LINES)).unwrap();
    let pod = world.start().await;
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let id = pod.create("c", &["cat", "/etc/much"], wish).await;
    let begin = Instant::now();
    pod.shim.start(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    let took = begin.elapsed();
    pod.shim.delete(&id).await.unwrap();
    let logged = fs::metadata(pod.log_path("c")).unwrap().len();
    assert_eq!(
        logged,
        (LINES * (line.len() + "2026-01-02T03:04:05.000000006Z stdout F ".len())) as u64
    );
    let rate = (LINES * line.len()) as f64 / took.as_secs_f64() / 1e6;
    eprintln!("{} MiB of output logged in {took:?}: {rate:.0} MB/s", (LINES * line.len()) >> 20);
    pod.finish().await;
}
