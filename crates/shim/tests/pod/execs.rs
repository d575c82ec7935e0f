//! Processes added to a container.

use std::time::Duration;

use serde_json::json;
use shim_client::{ExecFifos, ExecStreams, ExecTask, Exit, ShimError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use crate::world::{Pod, Wish, World};

fn process(args: &[&str], tty: bool) -> Vec<u8> {
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
        fifos.into_streams().unwrap()
    }

    async fn end_exec(&self, id: &str, exec_id: &str) -> Exit {
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
    assert_eq!(busy.kind(), base::Kind::FailedPrecondition);
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

#[tokio::test]
async fn execs_that_cannot_be_are_refused() {
    let Some(world) = World::new("execs_that_cannot_be_are_refused") else { return };
    let pod = world.start().await;
    let id = pod.create("c", &["sleep", "1000"], Wish::default()).await;
    let task = |exec_id: &str, args: &[&str]| ExecTask {
        id: id.clone(),
        exec_id: exec_id.to_owned(),
        process_json: process(args, false),
        tty: false,
        stdin: None,
        stdout: None,
        stderr: None,
    };
    pod.shim.exec(task("early", &["true"])).await.unwrap();
    let kind = |result: Result<u32, ShimError>| result.unwrap_err().kind();
    assert_eq!(kind(pod.shim.start_exec(&id, "early").await), base::Kind::FailedPrecondition);
    pod.shim.start(&id).await.unwrap();
    pod.shim.start_exec(&id, "early").await.unwrap();
    assert_eq!(kind(pod.shim.start_exec(&id, "early").await), base::Kind::FailedPrecondition);
    assert_eq!(kind(pod.shim.start_exec(&id, "absent").await), base::Kind::NotFound);
    let twice = pod.shim.exec(task("early", &["true"])).await.unwrap_err();
    assert_eq!(twice.kind(), base::Kind::AlreadyExists);
    let nobody_reads = ExecTask {
        tty: true,
        stdout: Some(pod.world.dir.path().join("absent")),
        ..task("deaf", &["true"])
    };
    pod.shim.exec(nobody_reads).await.unwrap();
    let error = pod.shim.start_exec(&id, "deaf").await.unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
    pod.shim.exec(task("odd", &["/no/such/program"])).await.unwrap();
    let error = pod.shim.start_exec(&id, "odd").await.unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
    // What never ran has an end, so that nobody waits for ever.
    assert_eq!(pod.end_exec(&id, "odd").await.code, 255);
    pod.end(&id).await;
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
