//! Calls that are dropped, at any moment, leave the connection whole.

mod support;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt;
use proptest::{collection::vec, prelude::*};
use prost::Message;
use support::{LONG, Pair, Raw, RawRequest, ask, eventually};
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Context, MessageType};

/// What a tormentor does with one call.
#[derive(Clone, Debug)]
struct Torment {
    len: usize,
    /// Polls the call this often, with other tasks in between, then drops it.
    polls: u32,
}

fn torments() -> impl Strategy<Value = Vec<Torment>> {
    let len = prop_oneof![0..50usize, 500..5000usize, Just(100_000)];
    vec((len, 0..12u32).prop_map(|(len, polls)| Torment { len, polls }), 1..40)
}

/// Drops the calls as told while others run to their end; all of those must be answered
/// with their own text, over a pipe so small that most messages are dropped half written.
async fn torture(pipe: usize, torments: Vec<Torment>) {
    let pair = Arc::new(Pair::new(pipe));
    let steady = TaskTracker::new();
    for task in 0..3 {
        let pair = Arc::clone(&pair);
        steady.spawn(async move {
            for i in 0..20 {
                let text = format!("{task}/{i}/{}", "y".repeat(i * 97));
                assert_eq!(pair.echo(&text).await.expect("an echo"), text);
            }
        });
    }
    steady.close();
    for Torment { len, polls } in torments {
        let text = "z".repeat(len);
        let mut call = Box::pin(ask::<_, String>(&pair.client, "Echo", Context::new(), text));
        for _ in 0..polls {
            if call.as_mut().now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    steady.wait().await;
    assert_eq!(pair.echo("end").await.expect("an echo"), "end");
    assert!(!pair.client.is_closed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn dropped_calls_never_hurt_the_others(pipe in 1usize..200, torments in torments()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(LONG, torture(pipe, torments)).await.expect("no call hangs");
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_that_pass_while_a_message_is_written_never_hurt_the_others() {
    let pair = Arc::new(Pair::new(64));
    let tasks = TaskTracker::new();
    for task in 0..8u64 {
        let pair = Arc::clone(&pair);
        tasks.spawn(async move {
            for i in 0..40u64 {
                // From far too short to ample, for a message that takes hundreds of writes.
                let limit = Duration::from_micros((task * 131 + i * 37) % 900);
                let text = "x".repeat(20_000);
                let _ = ask::<_, String>(&pair.client, "Echo", Context::timeout(limit), text).await;
                if i % 8 == 0 {
                    assert_eq!(pair.echo("steady").await.unwrap(), "steady");
                }
            }
        });
    }
    tasks.close();
    tasks.wait().await;
    assert_eq!(pair.echo("end").await.unwrap(), "end");
}

#[tokio::test]
async fn what_was_dropped_in_the_queue_is_never_sent() {
    let (near, far) = tokio::io::duplex(16);
    let client = Client::new(near);
    let call = |text: &str| {
        let client = client.clone();
        let text = text.to_owned();
        Box::pin(async move { ask::<_, String>(&client, "Echo", Context::new(), text).await })
    };
    let mut calls = ["first, and long", "second", "third"].map(call);
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
        // The first fills the pipe, so that those behind it wait in the queue.
        tokio::task::yield_now().await;
    }
    let [first, second, _third] = calls;
    drop((first, second));

    let mut server = Raw::new(far);
    let read = async {
        let mut texts = Vec::new();
        for _ in 0..2 {
            let (header, payload) = server.frame().await.unwrap();
            assert_eq!(header.kind, MessageType::REQUEST);
            let request = RawRequest::decode(payload).unwrap();
            texts.push((header.stream_id, String::decode(&*request.payload).unwrap()));
        }
        texts
    };
    let texts = tokio::time::timeout(LONG, read).await.unwrap();
    // The first was already being written and is completed.
    assert_eq!(texts, [(1, "first, and long".into()), (5, "third".into())]);
}

#[tokio::test]
async fn dropped_calls_leave_nothing_behind() {
    let pair = Pair::new(4096);
    for _ in 0..1000 {
        let call = ask::<_, String>(&pair.client, "Wait", Context::new(), String::new());
        assert!(call.now_or_never().is_none());
    }
    assert_eq!(pair.echo("x").await.unwrap(), "x");
    assert!(format!("{:?}", pair.client).contains("open: {}"), "{:?}", pair.client);
}

#[tokio::test]
async fn handlers_of_a_client_that_went_away_are_dropped() {
    let pair = Pair::new(4096);
    let mut calls: Vec<_> = (0..5)
        .map(|_| Box::pin(ask::<_, String>(&pair.client, "Wait", Context::new(), String::new())))
        .collect();
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    pair.started(5).await;
    assert_eq!(pair.seen.ended.load(Ordering::SeqCst), 0);
    pair.client.close();
    pair.tasks.wait().await;
    // Serving returns only after its handlers are gone.
    assert_eq!(pair.seen.ended.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_token_handed_to_other_tasks_fires_when_the_call_is_over() {
    use ttrpc::{Server, ServerContext, Service};
    let work = TaskTracker::new();
    let spawner = work.clone();
    let service =
        Service::new(support::SERVICE).unary("Echo", move |ctx: ServerContext, text: String| {
            let token = ctx.token();
            spawner.spawn(async move { token.cancelled().await });
            async move { if text == "hang" { std::future::pending().await } else { Ok(text) } }
        });
    let (near, far) = tokio::io::duplex(4096);
    let server = Server::builder().service(service).build();
    let serving = TaskTracker::new();
    serving.spawn(async move { server.serve_connection(far).await });
    let client = Client::new(near);

    let ctx = Context::timeout(Duration::from_millis(30));
    ask::<_, String>(&client, "Echo", Context::timeout(LONG), String::from("x")).await.unwrap();
    ask::<_, String>(&client, "Echo", ctx, String::from("hang")).await.unwrap_err();
    eventually("both tokens fire", || work.is_empty()).await;
}

#[tokio::test]
async fn a_connection_outlives_its_calls_and_its_end_is_told() {
    use ttrpc::{Server, ServerContext, Service};
    let work = TaskTracker::new();
    let spawner = work.clone();
    let service =
        Service::new(support::SERVICE).unary("Echo", move |ctx: ServerContext, text: String| {
            let (over, disconnected) = (ctx.token(), ctx.disconnected());
            spawner.spawn(async move {
                over.cancelled().await;
                assert!(!disconnected.is_cancelled(), "the call is over, its client is there");
                disconnected.cancelled().await;
            });
            async move { Ok(text) }
        });
    let (near, far) = tokio::io::duplex(4096);
    let server = Server::builder().service(service).build();
    let serving = TaskTracker::new();
    serving.spawn(async move { server.serve_connection(far).await });
    let client = Client::new(near);
    for text in ["x", "y"] {
        let text = text.to_owned();
        ask::<_, String>(&client, "Echo", Context::timeout(LONG), text).await.unwrap();
    }
    assert_eq!(work.len(), 2);
    client.close();
    eventually("the end of the connection is told", || work.is_empty()).await;
}
