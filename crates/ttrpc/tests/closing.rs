//! The end of connections and servers: everybody gets an answer, nothing stays behind.

mod support;

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    task::{self, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use prost::Message;
use support::{LONG, Pair, Raw, RawResponse, ask, eventually, frame, name, service};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Code, Context, Error, Flags, MessageType, MessageWriter, Receiver, Server};

#[tokio::test]
async fn the_end_of_a_connection_answers_all_its_calls() {
    let (near, far) = tokio::io::duplex(256);
    let client = Client::new(near);
    // More than the pipe and the queue hold: some are written, some queued, some wait.
    let calls =
        (0..40).map(|_| ask::<_, String>(&client, "Echo", Context::new(), "x".repeat(100_000)));
    let end = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(far);
    };
    let (answers, ()) = tokio::join!(join_all(calls), end);
    for answer in answers {
        assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
    }
    client.closed().await;
    assert!(client.is_closed());
    let late = ask::<_, String>(&client, "Echo", Context::new(), String::new()).await;
    assert!(matches!(late, Err(Error::Closed { .. })), "{late:?}");
}

#[tokio::test]
async fn closing_a_client_ends_its_calls_and_streams() {
    let pair = Pair::new(4096);
    let mut items: Receiver<u64> =
        pair.client.server_stream(name("Count"), &Context::new(), &3u64).await.unwrap();
    for want in 0..3 {
        assert_eq!(items.recv().await.unwrap(), Some(want));
    }
    let (_requests, mut echoes) =
        pair.client.duplex::<String, String>(name("Shout"), &Context::new()).await.unwrap();
    let call = ask::<_, String>(&pair.client, "Wait", Context::new(), String::new());
    let close = async {
        pair.started(2).await;
        pair.client.close();
    };
    let (answer, ()) = tokio::join!(call, close);
    assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
    assert!(matches!(echoes.recv().await, Err(Error::Closed { .. })));
    assert_eq!(echoes.recv().await.unwrap(), None);
    pair.client.closed().await;
    pair.tasks.wait().await;
}

#[tokio::test]
async fn the_last_clone_takes_the_connection_with_it() {
    let Pair { client, tasks, .. } = Pair::new(4096);
    let clone = client.clone();
    drop(client);
    let ctx = Context::timeout(LONG);
    let items: Receiver<u64> = clone.server_stream(name("Count"), &ctx, &1u64).await.unwrap();
    drop(clone);
    // A stream keeps it.
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!tasks.is_empty());
    drop(items);
    tokio::time::timeout(LONG, tasks.wait()).await.expect("the server saw the end");
}

/// Fails at the given message, as a socket does whose other end is being closed.
struct Fails {
    after: i32,
}

impl MessageWriter for Fails {
    fn put(&mut self, _: Bytes) {
        self.after -= 1;
    }

    fn poll_flush(&mut self, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.after {
            0.. => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    fn poll_close(&mut self, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn what_the_server_said_before_writing_failed_is_still_heard() {
    let (near, far) = tokio::io::duplex(4096);
    let client = Client::from_parts(near, Fails { after: 1 });
    let first = ask::<_, String>(&client, "Echo", Context::new(), String::from("1"));
    let second = ask::<_, String>(&client, "Echo", Context::new(), String::from("2"));
    let mut server = Raw::new(far);
    let answer = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let fine = RawResponse { status: None, payload: String::from("heard").encode_to_vec() };
        let bytes = frame(1, MessageType::RESPONSE, Flags::NONE, &fine.encode_to_vec());
        server.write(&bytes).await;
        drop(server);
    };
    let (first, second, ()) = tokio::join!(first, second, answer);
    assert_eq!(first.unwrap(), "heard");
    let Err(Error::Closed { cause: Some(cause) }) = second else { panic!("{second:?}") };
    assert_eq!(cause.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn shutdown_lets_calls_finish_and_refuses_new_ones() {
    let pair = Pair::new(4096);
    let call = ask::<_, String>(&pair.client, "Wait", Context::timeout(LONG), String::from("x"));
    let rest = async {
        pair.started(1).await;
        let mut shutdown = Box::pin(pair.server.shutdown());
        assert!(shutdown.as_mut().now_or_never().is_none());
        let refused = pair.echo("late").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(matches!(refused, Error::Status(_)), "{refused:?}");
        pair.seen.go.notify_one();
        shutdown.await;
    };
    let (answer, ()) = tokio::join!(call, rest);
    assert_eq!(answer.unwrap(), "x");
    tokio::time::timeout(LONG, pair.client.closed()).await.expect("the server closed");
}

#[tokio::test]
async fn abort_does_not_wait_for_handlers() {
    let pair = Pair::new(4096);
    let call = ask::<_, String>(&pair.client, "Wait", Context::timeout(LONG), String::from("x"));
    let abort = async {
        pair.started(1).await;
        pair.server.abort();
        pair.server.shutdown().await;
        assert_eq!(pair.seen.ended.load(Ordering::SeqCst), 1);
    };
    let (answer, ()) = tokio::join!(call, abort);
    assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
}

#[tokio::test]
async fn dropping_the_serving_future_ends_its_handlers() {
    let seen = Arc::default();
    let server = Server::builder().service(service(&seen)).build();
    let (near, far) = tokio::io::duplex(4096);
    let client = Client::new(near);
    let call = ask::<_, String>(&client, "Wait", Context::new(), String::new());
    tokio::select! {
        _ = server.serve_connection(far) => panic!("nobody ended it"),
        _ = call => panic!("nobody answered"),
        () = eventually("it starts", || seen.started.load(Ordering::SeqCst) == 1) => {}
    }
    eventually("it ends", || seen.ended.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_listener_serves_many_and_stops_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::builder().service(service(&Arc::default())).build();
    let tasks = TaskTracker::new();
    let serving = server.clone();
    let accepting = tasks.spawn(async move { serving.serve(listener).await });

    let mut clients = Vec::new();
    for i in 0..10 {
        let client = Client::new(UnixStream::connect(&path).await.unwrap());
        let text = format!("{i}");
        let answer = ask::<_, String>(&client, "Echo", Context::timeout(LONG), text.clone());
        assert_eq!(answer.await.unwrap(), text);
        clients.push(client);
    }
    tokio::time::timeout(LONG, server.shutdown()).await.expect("idle connections end at once");
    accepting.await.unwrap().unwrap();
    join_all(clients.iter().map(Client::closed)).await;
    assert!(UnixStream::connect(&path).await.is_err(), "nobody listens");
}
