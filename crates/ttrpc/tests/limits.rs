//! What is too large, too many or against the protocol costs its own call and no other.

mod support;

use std::sync::Arc;

use prost::Message;
use support::{LONG, Pair, Raw, RawResponse, frame, raw_client, request};
use tokio_util::task::TaskTracker;
use ttrpc::{
    Client, Code, Context, Direction, Error, Flags, Header, MAX_PAYLOAD, MessageType, Oversize,
};

#[tokio::test]
async fn a_request_above_the_limit_is_refused_before_it_is_sent() {
    let pair = Pair::new(64 << 10);
    let text = "x".repeat(MAX_PAYLOAD);
    let answer = support::ask::<String, String>(&pair.client, "Echo", Context::new(), text).await;
    let Err(Error::Oversize(Oversize { direction: Direction::Sent, len })) = answer else {
        panic!("{answer:?}");
    };
    assert!(len > MAX_PAYLOAD && len < MAX_PAYLOAD + 100, "{len}");
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn the_largest_messages_pass() {
    let pair = Pair::new(64 << 10);
    // The envelope of a request with a deadline takes less than this.
    let text = "x".repeat(MAX_PAYLOAD - 64);
    assert_eq!(pair.echo(&text).await.unwrap().len(), text.len());
}

#[tokio::test]
async fn a_response_above_the_limit_becomes_a_status() {
    let pair = Pair::new(64 << 10);
    let ask = async |len: usize| {
        let ctx = Context::timeout(LONG);
        support::ask::<u64, Vec<u8>>(&pair.client, "Big", ctx, len as u64).await
    };
    let Err(Error::Status(status)) = ask(MAX_PAYLOAD).await else { panic!("no status") };
    assert_eq!(status.code, Code::ResourceExhausted);
    assert_eq!(ask(1000).await.unwrap().len(), 1000);
}

#[tokio::test]
async fn a_server_drops_an_oversize_request_answers_it_and_goes_on() {
    let (mut raw, ..) = raw_client();
    let too_large = vec![0; MAX_PAYLOAD + 1];
    let write = async {
        let (mut far, near) = (raw, frame(1, MessageType::REQUEST, Flags::NONE, &too_large));
        far.write(&near).await;
        far.write(&request(3, "Echo", &String::from("next"))).await;
        far
    };
    raw = write.await;
    let (id, code, _) = raw.response().await;
    assert_eq!((id, code), (1, Code::ResourceExhausted as i32));
    let (id, code, response) = raw.response().await;
    assert_eq!((id, code), (3, 0));
    assert_eq!(String::decode(&*response.payload).unwrap(), "next");
}

#[tokio::test]
async fn a_client_drops_an_oversize_response_and_goes_on() {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (client, mut server) = (Client::new(near), Raw::new(far));
    let ctx = Context::timeout(LONG);
    let calls = async {
        let first =
            support::ask::<String, String>(&client, "Echo", ctx.clone(), String::from("1")).await;
        let second =
            support::ask::<String, String>(&client, "Echo", ctx.clone(), String::from("2")).await;
        (first, second)
    };
    let answers = async {
        let too_large = vec![0; MAX_PAYLOAD + 1];
        server.frame().await;
        server.write(&frame(1, MessageType::RESPONSE, Flags::NONE, &too_large)).await;
        server.frame().await;
        let fine = RawResponse { status: None, payload: String::from("2").encode_to_vec() };
        server.write(&frame(3, MessageType::RESPONSE, Flags::NONE, &fine.encode_to_vec())).await;
    };
    let ((first, second), ()) = tokio::join!(calls, answers);
    let want = Oversize { direction: Direction::Received, len: MAX_PAYLOAD + 1 };
    assert!(matches!(first, Err(Error::Oversize(got)) if got == want), "{first:?}");
    assert_eq!(second.unwrap(), "2");
}

#[tokio::test]
async fn one_call_too_many_is_refused_at_once() {
    let pair = Arc::new(Pair::with(4096, 2));
    let waiting = TaskTracker::new();
    for _ in 0..2 {
        let pair = Arc::clone(&pair);
        waiting.spawn(async move {
            let ctx = Context::timeout(LONG);
            support::ask::<String, String>(&pair.client, "Wait", ctx.clone(), String::from("x"))
                .await
                .unwrap();
        });
    }
    pair.started(2).await;
    assert_eq!(pair.echo("x").await.unwrap_err().code(), Code::ResourceExhausted);
    pair.seen.go.notify_waiters();
    waiting.close();
    waiting.wait().await;
    assert_eq!(pair.echo("room again").await.unwrap(), "room again");
}

/// Sends the frames, then a good call, and expects the codes in order before its answer.
async fn check_refusals(frames: &[Vec<u8>], want: &[(u32, Code)]) {
    let (mut raw, ..) = raw_client();
    for frame in frames {
        raw.write(frame).await;
    }
    raw.write(&request(101, "Echo", &String::from("ok"))).await;
    for &(stream_id, code) in want {
        let (id, got, response) = raw.response().await;
        assert_eq!((id, got), (stream_id, code as i32), "{response:?}");
    }
    let (id, code, _) = raw.response().await;
    assert_eq!((id, code), (101, 0));
}

#[tokio::test]
async fn wrong_stream_ids_are_refused_on_their_own_stream() {
    let echo = |id| request(id, "Echo", &String::from("x"));
    check_refusals(&[echo(2)], &[(2, Code::InvalidArgument)]).await;
    check_refusals(&[echo(0)], &[(0, Code::InvalidArgument)]).await;
    let no_such = |id| request(id, "NoSuch", &());
    let refused = [(5, Code::Unimplemented), (5, Code::InvalidArgument)];
    check_refusals(&[no_such(5), no_such(5)], &refused).await;
    let refused = [(5, Code::Unimplemented), (3, Code::InvalidArgument)];
    check_refusals(&[no_such(5), no_such(3)], &refused).await;
}

#[tokio::test]
async fn malformed_and_stray_messages_are_refused_or_skipped() {
    let junk = frame(1, MessageType::REQUEST, Flags::NONE, b"\xff\xff\xff");
    check_refusals(&[junk], &[(1, Code::InvalidArgument)]).await;
    let stray = frame(1, MessageType::DATA, Flags::NONE, b"");
    check_refusals(&[stray], &[(1, Code::InvalidArgument)]).await;
    let from_the_future = frame(1, MessageType(77), Flags(0xff), b"whatever");
    check_refusals(&[from_the_future], &[]).await;
    let not_for_servers = frame(1, MessageType::RESPONSE, Flags::NONE, b"");
    check_refusals(&[not_for_servers], &[]).await;
}

#[tokio::test]
async fn a_client_survives_answers_nobody_asked_for() {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (client, mut server) = (Client::new(near), Raw::new(far));
    let ctx = Context::timeout(LONG);
    let call = support::ask::<String, String>(&client, "Echo", ctx.clone(), String::from("x"));
    let answer = async {
        let (Header { stream_id, .. }, _) = server.frame().await.unwrap();
        server.write(&frame(99, MessageType::RESPONSE, Flags::NONE, b"")).await;
        server.write(&frame(2, MessageType::DATA, Flags::NONE, b"")).await;
        server.write(&frame(stream_id, MessageType::RESPONSE, Flags::NONE, b"\xff")).await;
    };
    let (answer, ()) = tokio::join!(call, answer);
    assert!(matches!(answer, Err(Error::Decode(_))), "{answer:?}");
    assert!(!client.is_closed());
}

#[tokio::test]
async fn data_in_answer_to_a_unary_call_is_an_error_of_that_call() {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (client, mut server) = (Client::new(near), Raw::new(far));
    let ctx = Context::timeout(LONG);
    let call = support::ask::<String, String>(&client, "Echo", ctx.clone(), String::from("x"));
    let answer = async {
        let (Header { stream_id, .. }, _) = server.frame().await.unwrap();
        server.write(&frame(stream_id, MessageType::DATA, Flags::NONE, b"")).await;
    };
    let (answer, ()) = tokio::join!(call, answer);
    assert!(matches!(answer, Err(Error::Protocol(_))), "{answer:?}");
}
