//! Unary calls: what they carry, and what a server answers when it cannot serve them.

mod support;

use std::time::Duration;

use futures_util::FutureExt;
use prost::Message;
use support::{LONG, Pair, name};
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Code, Context, Error, MethodName, Server, ServerContext, Service, Status};

#[track_caller]
fn status(answer: Result<impl std::fmt::Debug, Error>) -> Status {
    match answer {
        Err(Error::Status(status)) => status,
        other => panic!("not a status: {other:?}"),
    }
}

#[tokio::test]
async fn metadata_and_deadline_reach_the_handler() {
    let pair = Pair::new(4096);
    let ask = async |ctx: Context| {
        let answer =
            support::ask::<String, String>(&pair.client, "Metadata", ctx, String::from("K"));
        answer.await.unwrap()
    };
    assert_eq!(ask(Context::new()).await, " false");
    let ctx = Context::timeout(LONG).with_metadata("k", "1").with_metadata("K", "2");
    assert_eq!(ask(ctx).await, "1,2 true");
}

#[tokio::test]
async fn a_refusal_arrives_with_code_text_and_details() {
    let pair = Pair::new(4096);
    let answer =
        support::ask::<String, ()>(&pair.client, "Fail", Context::new(), String::from("gone"));
    let status = status(answer.await);
    assert_eq!((status.code, status.message.as_str()), (Code::NotFound, "gone"));
    assert_eq!(status.details[0].type_url, "t/x");
}

#[tokio::test]
async fn unknown_names_are_answered_as_go_does() {
    let pair = Pair::new(4096);
    let ask = async |name: MethodName<'_>| {
        let answer = pair.client.call::<(), ()>(name, &Context::new(), &()).await;
        let status = status(answer);
        (status.code, status.message)
    };
    let unknown = |what: &str| (Code::Unimplemented, what.to_owned());
    assert_eq!(ask(MethodName::new("no.Such", "Echo")).await, unknown("service no.Such"));
    assert_eq!(ask(name("Nothing")).await, unknown("method Nothing"));
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn an_argument_that_does_not_decode_is_an_invalid_argument() {
    let pair = Pair::new(4096);
    // Field 1 of `Echo` is a string; this one is a number.
    let answer = support::ask::<u64, String>(&pair.client, "Echo", Context::new(), 7);
    assert_eq!(status(answer.await).code, Code::InvalidArgument);
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn a_result_that_does_not_decode_is_an_error_of_that_call() {
    let pair = Pair::new(4096);
    let answer =
        support::ask::<String, u64>(&pair.client, "Echo", Context::new(), String::from("x"));
    assert!(matches!(answer.await, Err(Error::Decode(_))));
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn a_panicking_handler_is_an_internal_error_and_the_connection_lives() {
    let pair = Pair::new(4096);
    for _ in 0..3 {
        let answer =
            support::ask::<String, ()>(&pair.client, "Panic", Context::new(), String::from("x"));
        assert_eq!(status(answer.await).code, Code::Internal);
    }
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn a_handler_that_panics_before_its_first_await_is_caught_too() {
    let service = Service::new("p.P").unary("P", |_: ServerContext, (): ()| {
        // Not inside the future.
        assert!(std::hint::black_box(false), "at once");
        std::future::ready(Ok::<(), Status>(()))
    });
    let (near, far) = tokio::io::duplex(4096);
    let server = Server::builder().service(service).build();
    let client = Client::new(near);
    let call = async {
        let name = MethodName::new("p.P", "P");
        let answer = client.call::<(), ()>(name, &Context::timeout(LONG), &()).await;
        client.close();
        answer
    };
    let (answer, _) = tokio::join!(call, server.serve_connection(far));
    assert_eq!(status(answer).code, Code::Internal);
}

#[tokio::test]
async fn calls_are_answered_in_any_order() {
    let pair = Pair::new(4096);
    let ctx = Context::timeout(LONG);
    let slow = support::ask::<String, String>(&pair.client, "Wait", ctx, String::from("slow"));
    let fast = async {
        pair.started(1).await;
        for i in 0..100 {
            assert_eq!(pair.echo(&format!("{i}")).await.unwrap(), format!("{i}"));
        }
        pair.seen.go.notify_one();
    };
    let (slow, ()) = tokio::join!(slow, fast);
    assert_eq!(slow.unwrap(), "slow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_a_connection() {
    let pair = Pair::new(1000);
    let tasks = TaskTracker::new();
    for caller in 0..32 {
        let client = pair.client.clone();
        tasks.spawn(async move {
            for i in 0..50 {
                let text = format!("{caller} {i} {}", "x".repeat(i * 20));
                let ctx = Context::timeout(LONG);
                let answer =
                    support::ask::<String, String>(&client, "Echo", ctx, text.clone()).await;
                assert_eq!(answer.unwrap(), text);
            }
        });
    }
    tasks.close();
    tasks.wait().await;
    assert_eq!(pair.echo("end").await.unwrap(), "end");
}

#[tokio::test]
async fn a_deadline_ends_the_call_on_both_sides() {
    let pair = Pair::new(4096);
    let ctx = Context::timeout(Duration::from_millis(50));
    let answer = support::ask::<String, String>(&pair.client, "Wait", ctx, String::from("x")).await;
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    // The handler was told what was left, and is gone.
    pair.ended(1).await;
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn no_time_left_is_not_no_limit() {
    let pair = Pair::new(4096);
    let ctx = Context::timeout(Duration::ZERO);
    let answer = support::ask::<String, String>(&pair.client, "Wait", ctx, String::from("x")).await;
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_server_enforces_the_deadline_of_a_client_that_does_not() {
    let (mut raw, ..) = support::raw_client();
    for (stream_id, timeout_nano) in [(1, 20_000_000), (3, -1)] {
        let late = support::RawRequest {
            service: support::SERVICE.into(),
            method: "Wait".into(),
            payload: String::from("x").encode_to_vec(),
            timeout_nano,
        };
        let (kind, flags) = (ttrpc::MessageType::REQUEST, ttrpc::Flags::NONE);
        raw.write(&support::frame(stream_id, kind, flags, &late.encode_to_vec())).await;
        let (id, code, _) = raw.response().await;
        assert_eq!((id, code), (stream_id, Code::DeadlineExceeded as i32));
    }
}

#[tokio::test]
async fn a_handler_passes_time_and_metadata_on() {
    let pair = Pair::new(4096);
    let next = pair.client.clone();
    let relay = Service::new("relay.Relay").unary("Ask", move |ctx: ServerContext, key: String| {
        let next = next.clone();
        async move {
            let answer: String = next.call(name("Metadata"), &ctx.outgoing(), &key).await?;
            Ok(answer)
        }
    });
    let (near, far) = tokio::io::duplex(4096);
    let server = Server::builder().service(relay).build();
    let client = Client::new(near);
    let ask = async {
        let ctx = Context::timeout(LONG).with_metadata("trace", "7");
        let name = MethodName::new("relay.Relay", "Ask");
        let answer = client.call::<String, String>(name, &ctx, &"trace".into()).await;
        client.close();
        answer
    };
    let (answer, _) = tokio::join!(ask, server.serve_connection(far));
    assert_eq!(answer.unwrap(), "7 true");
}

#[tokio::test]
async fn encoded_calls_carry_bytes_and_later_ones_wait_to_be_sent() {
    let pair = Pair::new(1 << 16);
    let ctx = Context::timeout(LONG);
    let request = String::from("hello").encode_to_vec();
    let answer = pair.client.call_encoded(name("Echo"), &ctx, &request).await.unwrap();
    assert_eq!(String::decode(answer).unwrap(), "hello");

    let mut later: Vec<_> = (0..3)
        .map(|_| Box::pin(pair.client.call_encoded_later(name("Echo"), &ctx, &request, |_| ())))
        .collect();
    for call in &mut later {
        assert!(call.as_mut().now_or_never().is_none());
    }
    let long_enough = Duration::from_millis(20);
    assert!(tokio::time::timeout(long_enough, &mut later[0]).await.is_err(), "it is not sent");
    drop(later.remove(1));
    pair.client.flush();
    for call in later {
        assert_eq!(String::decode(call.await.unwrap()).unwrap(), "hello");
    }
    // One that is sent at once takes along what waits.
    let mut waiting =
        Box::pin(pair.client.call_encoded_later(name("Echo"), &ctx, &request, |_| ()));
    assert!(waiting.as_mut().now_or_never().is_none());
    pair.echo("now").await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn later_calls_that_find_no_room_are_sent_without_being_asked() {
    let pair = Pair::new(1 << 16);
    let ctx = Context::timeout(LONG);
    let request = "x".repeat(300_000).encode_to_vec();
    let calls =
        (0..8).map(|_| pair.client.call_encoded_later(name("Echo"), &ctx, &request, |_| ()));
    let flush = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        pair.client.flush();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), flush);
    answers.into_iter().for_each(|answer| drop(answer.unwrap()));
}
