//! Clients at a container's streams.

use std::time::Duration;

use bytes::BytesMut;
use shim_client::{AttachOutput, Chunk, ShimError, Stdio, Stream};

use crate::world::{LIMIT, Wish, World};

/// Everything up to the end of the output; stdout and stderr apart.
async fn read_all(output: &mut AttachOutput) -> (String, String, Chunk) {
    let (mut out, mut err) = (BytesMut::new(), BytesMut::new());
    loop {
        let next = tokio::time::timeout(LIMIT, output.next()).await.expect("in time");
        match next.expect("a chunk") {
            Chunk::Data(Stream::Stdout, bytes) => out.extend_from_slice(&bytes),
            Chunk::Data(Stream::Stderr, bytes) => err.extend_from_slice(&bytes),
            last => {
                let text = |bytes: BytesMut| String::from_utf8_lossy(&bytes).into_owned();
                return (text(out), text(err), last);
            }
        }
    }
}

fn with_stdin(stdin_once: bool) -> Wish {
    Wish { stdio: Stdio { stdin: true, stdin_once, tty: false }, ..Wish::default() }
}

#[tokio::test]
async fn all_clients_see_what_they_asked_for() {
    let Some(world) = World::new("all_clients_see_what_they_asked_for") else { return };
    let pod = world.start().await;
    let id = pod
        .create("c", &["sh", "-c", "read x; echo out $x; echo err >&2"], with_stdin(false))
        .await;
    let mut both = pod.shim.attach(&id, true, true, true).await.unwrap();
    let mut only_err = pod.shim.attach(&id, false, false, true).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    both.input.write(b"hello\n").await.unwrap();
    let end = Chunk::End;
    assert_eq!(
        read_all(&mut both.output).await,
        ("out hello\n".into(), "err\n".into(), end.clone())
    );
    assert_eq!(read_all(&mut only_err.output).await, (String::new(), "err\n".into(), end.clone()));
    pod.wait(&id).await;
    // Late ones find the end at once.
    let mut late = pod.shim.attach(&id, false, true, true).await.unwrap();
    assert_eq!(read_all(&mut late.output).await, (String::new(), String::new(), end));
    pod.shim.delete(&id).await.unwrap();
    let gone = pod.shim.attach(&id, false, true, true).await.unwrap_err();
    assert!(matches!(gone, ShimError::NotFound { .. }), "{gone}");
    pod.finish().await;
}

#[tokio::test]
async fn input_ends_once_when_asked() {
    let Some(world) = World::new("input_ends_once_when_asked") else { return };
    let pod = world.start().await;
    let once = pod.run("once", &["cat"], with_stdin(true)).await;
    let mut io = pod.shim.attach(&once, true, true, true).await.unwrap();
    io.input.write(b"all of it").await.unwrap();
    drop(io.input);
    assert_eq!(read_all(&mut io.output).await.0, "all of it");
    assert_eq!(pod.wait(&once).await.code, 0);
    pod.shim.delete(&once).await.unwrap();

    let kept = pod.run("kept", &["cat"], with_stdin(false)).await;
    drop(pod.shim.attach(&kept, true, true, true).await.unwrap());
    let mut io = pod.shim.attach(&kept, true, true, true).await.unwrap();
    io.input.write(b"again").await.unwrap();
    let chunk = io.output.next().await.unwrap();
    assert_eq!(chunk, Chunk::Data(Stream::Stdout, "again".into()));
    pod.shim.close_stdin(&kept, "").await.unwrap();
    assert_eq!(pod.wait(&kept).await.code, 0);
    pod.shim.delete(&kept).await.unwrap();
    pod.finish().await;
}

#[tokio::test]
async fn a_terminal_answers_who_is_attached() {
    let Some(world) = World::new("a_terminal_answers_who_is_attached") else { return };
    let pod = world.start().await;
    let stdio = Stdio { stdin: true, stdin_once: true, tty: true };
    let id = pod.run("c", &["sh"], Wish { stdio, ..Wish::default() }).await;
    let mut io = pod.shim.attach(&id, true, true, false).await.unwrap();
    io.input.write(b"echo $((6*7)); exit 3\n").await.unwrap();
    let (out, _, end) = read_all(&mut io.output).await;
    assert!(out.contains("\r\n42\r\n"), "{out:?}");
    assert_eq!((end, pod.wait(&id).await.code), (Chunk::End, 3));
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}

#[tokio::test]
async fn a_slow_client_is_cut_off_and_stalls_nobody() {
    let Some(world) = World::new("a_slow_client_is_cut_off_and_stalls_nobody") else { return };
    // More than sockets and the shim hold, and little enough for the slowest machine to be done
    // before the shim loses patience with one that does not fetch its last bytes.
    const BYTES: usize = 4 << 20;
    let pod = world.start().await;
    let script = format!("read x; yes | head -c {BYTES}");
    let mut wish = with_stdin(false);
    wish.log = Some(pod.log("c"));
    let id = pod.run("c", &["sh", "-c", &script], wish).await;
    let mut slow = pod.shim.attach(&id, false, true, true).await.unwrap();
    let mut fast = pod.shim.attach(&id, true, true, true).await.unwrap();
    fast.input.write(b"go\n").await.unwrap();
    let reader = async { read_all(&mut fast.output).await };
    let caller = async {
        // Calls are answered while output runs at full speed.
        for _ in 0..20 {
            let begin = tokio::time::Instant::now();
            pod.shim.state(&id).await.unwrap();
            assert!(begin.elapsed() < Duration::from_secs(2));
        }
    };
    let ((out, _, end), ()) = tokio::join!(reader, caller);
    assert_eq!((out.len(), end), (BYTES, Chunk::End));
    assert_eq!(pod.wait(&id).await.code, 0);
    let (seen, _, end) = read_all(&mut slow.output).await;
    assert_eq!(end, Chunk::Lagged);
    assert!(!seen.is_empty() && seen.len() < BYTES);
    let logged = std::fs::metadata(pod.log_path("c")).unwrap().len();
    assert!(logged > BYTES as u64, "the log has all of it");
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}
