//! Processes added to a container by a client that goes away before their end.

use std::time::Duration;

use shim_client::{ExecFifos, ExecTask};
use tokio::{io::AsyncReadExt, time::Instant};

use crate::{
    execs::process,
    world::{LIMIT, Pod, Wish, World},
};

impl Pod {
    /// Starts a command as a client that dies when the command has said its first word.
    async fn exec_and_die(&self, id: &str, exec_id: &str, args: &[&str], tty: bool) {
        let client = shim_client::connect(&self.world.pod_dir(), LIMIT).await.unwrap();
        let fifos = ExecFifos::create(self.world.dir.path(), exec_id, true, true, !tty).unwrap();
        let task = ExecTask {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            process_json: process(args, tty),
            tty,
            stdin: fifos.stdin.clone(),
            stdout: fifos.stdout.clone(),
            stderr: fifos.stderr.clone(),
        };
        client.exec(task).await.unwrap();
        client.start_exec(id, exec_id).await.unwrap();
        let mut streams = client.exec_streams(id, exec_id, fifos).unwrap();
        let first = streams.stdout.as_mut().unwrap().read(&mut [0; 64]).await.unwrap();
        assert_ne!(first, 0);
        assert_eq!(self.shim.state(id).await.unwrap().execs, [exec_id]);
    }

    /// Waits until the shim has forgotten all added processes.
    async fn until_forgotten(&self, id: &str) {
        let until = Instant::now() + LIMIT;
        while !self.shim.state(id).await.unwrap().execs.is_empty() {
            assert!(Instant::now() < until, "{:?}", self.shim.state(id).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A container that ends when a process added to it has left a word.
const LISTENS: [&str; 3] =
    ["sh", "-c", "while :; do sleep 0.05; test -e /tmp/said && exit 7; done"];

#[tokio::test]
async fn an_exec_outlives_its_client_and_is_then_forgotten() {
    let Some(world) = World::new("an_exec_outlives_its_client_and_is_then_forgotten") else {
        return;
    };
    let pod = world.start().await;
    let id = pod.run("c", &LISTENS, Wish::default()).await;
    // It reads its input to the end, and says much more than a pipe holds, to both sides.
    let script = "echo first; cat && seq 1 50000 && seq 1 50000 >&2 && echo x > /tmp/said";
    pod.exec_and_die(&id, "x1", &["sh", "-c", script], false).await;
    assert_eq!(pod.wait(&id).await.code, 7, "it came to its end");
    pod.until_forgotten(&id).await;
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}

#[tokio::test]
async fn a_shell_at_a_terminal_whose_client_is_gone_ends() {
    let Some(world) = World::new("a_shell_at_a_terminal_whose_client_is_gone_ends") else {
        return;
    };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let script = "echo first; seq 1 50000; sleep 0.5; exec sh";
    pod.exec_and_die(&id, "x1", &["sh", "-c", script], true).await;
    pod.until_forgotten(&id).await;
    pod.end(&id).await;
    pod.finish().await;
}
