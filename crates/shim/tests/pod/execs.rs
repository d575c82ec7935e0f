//! Processes added to a container.

use std::time::Duration;

use serde_json::json;
use shim_client::{ExecFifos, ExecStreams, ExecTask, Exit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use crate::{
    keeper::BUSY,
    world::{Pod, Wish, World},
};

pub(crate) fn process(args: &[&str], tty: bool) -> Vec<u8> {
    let user = json!({ "uid": 0, "gid": 0 });
    json!({ "terminal": tty, "user": user, "args": args, "env": ["PATH=/bin"], "cwd": "/" })
        .to_string()
        .into_bytes()
}

impl Pod {
    async fn exec(&self, id: &str, exec_id: &str, args: &[&str], tty: bool) -> ExecStreams {
        let dir = self.world.dir.path();
        let fifos = ExecFifos::create(dir, exec_id, true, true, !tty).unwrap();
        let task = ExecTask {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            process_json: process(args, tty),
            tty,
            stdin: fifos.stdin.clone(),
            stdout: fifos.stdout.clone(),
            stderr: fifos.stderr.clone(),
        };
        self.shim.exec(task).await.unwrap();
        self.shim.start_exec(id, exec_id).await.unwrap();
        self.shim.exec_streams(id, exec_id, fifos).unwrap()
    }

    pub(crate) async fn end_exec(&self, id: &str, exec_id: &str) -> Exit {
        let exit = self.shim.wait_exec(id, exec_id).await.unwrap();
        assert_eq!(self.shim.delete_exec(id, exec_id).await.unwrap().code, exit.code);
        exit
    }
}

async fn read(stream: Option<tokio::net::unix::pipe::Receiver>) -> String {
    let mut text = String::new();
    stream.unwrap().read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn streams_and_exit_codes_of_an_exec() {
    let Some(world) = World::new("streams_and_exit_codes_of_an_exec") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let script = "cat; echo err >&2; ls /proc/self/fd; exit 9";
    let mut streams = pod.exec(&id, "x1", &["sh", "-c", script], false).await;
    let mut stdin = streams.stdin.take().unwrap();
    stdin.write_all(b"typed\n").await.unwrap();
    drop(stdin);
    // No descriptor of ours; the fourth is that of the directory being listed.
    assert_eq!(read(streams.stdout).await, "typed\n0\n1\n2\n3\n");
    assert_eq!(read(streams.stderr).await, "err\n");
    assert_eq!(pod.end_exec(&id, "x1").await.code, 9);
    assert!(pod.shim.state(&id).await.unwrap().execs.is_empty());
    pod.end(&id).await;
    pod.finish().await;
}

#[tokio::test]
async fn an_exec_with_a_terminal() {
    let Some(world) = World::new("an_exec_with_a_terminal") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let script = "read line; echo got $line; stty size; test -t 1 && exit 4";
    let mut streams = pod.exec(&id, "x1", &["sh", "-c", script], true).await;
    pod.shim.resize(&id, "x1", 90, 30).await.unwrap();
    streams.stdin.as_mut().unwrap().write_all(b"words\n").await.unwrap();
    assert_eq!(read(streams.stdout).await, "words\r\ngot words\r\n30 90\r\n");
    assert_eq!(pod.end_exec(&id, "x1").await.code, 4);
    pod.end(&id).await;
    pod.finish().await;
}

#[tokio::test]
async fn an_exec_can_be_killed_and_ends_with_its_container() {
    let Some(world) = World::new("an_exec_can_be_killed_and_ends_with_its_container") else {
        return;
    };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let _first = pod.exec(&id, "x1", &["sleep", "1000"], false).await;
    let _second = pod.exec(&id, "x2", &["sleep", "1000"], false).await;
    let busy = pod.shim.delete_exec(&id, "x1").await.unwrap_err();
    assert_eq!(busy.kind(), BUSY);
    pod.shim.kill_exec(&id, "x1", 15).await.unwrap();
    assert_eq!(pod.end_exec(&id, "x1").await.code, 143);
    pod.shim.kill(&id, 9, false).await.unwrap();
    let end = pod.wait(&id).await;
    // Published first, so that it needs no waiting now.
    let of_exec = tokio::time::timeout(Duration::from_millis(500), pod.shim.wait_exec(&id, "x2"));
    let of_exec = of_exec.await.unwrap().unwrap();
    assert_eq!((end.code, of_exec.code), (137, 137));
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}

/// Not a bound, a figure to read: other work shares these processors.
#[tokio::test]
async fn how_long_an_exec_takes() {
    let Some(world) = World::new("how_long_an_exec_takes") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let mut took: Vec<Duration> = Vec::new();
    for n in 0..20 {
        let (exec_id, begin) = (format!("x{n}"), Instant::now());
        let _streams = pod.exec(&id, &exec_id, &["true"], false).await;
        assert_eq!(pod.end_exec(&id, &exec_id).await.code, 0);
        took.push(begin.elapsed());
    }
    took.sort();
    eprintln!("exec of `true`, from FIFOs to deletion: p50 {:?}, p90 {:?}", took[10], took[18]);
    pod.end(&id).await;
    pod.finish().await;
}
