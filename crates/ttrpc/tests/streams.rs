//! The three streaming kinds, and readers that are slow.

mod support;

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::TryStreamExt;
use prost::Message;
use support::{LONG, Pair, RawRequest, RawResponse, eventually, frame, name, raw_client};
use tokio::time::Instant;
use ttrpc::{Code, Context, Error, Flags, MAX_PAYLOAD, MessageType, Receiver};

fn ctx() -> Context {
    Context::timeout(LONG)
}

async fn count(pair: &Pair, to: u64) -> Receiver<u64> {
    pair.client.server_stream(name("Count"), &ctx(), &to).await.expect("the call is sent")
}

#[tokio::test]
async fn items_come_in_order_and_then_the_end() {
    let pair = Pair::new(100);
    let all: Vec<u64> = count(&pair, 1000).await.try_collect().await.unwrap();
    assert_eq!(all, (0..1000).collect::<Vec<_>>());
    let none: Vec<u64> = count(&pair, 0).await.try_collect().await.unwrap();
    assert_eq!(none, [0u64; 0]);
}

#[tokio::test]
async fn an_error_comes_after_the_items_before_it() {
    let pair = Pair::new(4096);
    let mut items = count(&pair, 13).await;
    for want in 0..13 {
        assert_eq!(items.recv().await.unwrap(), Some(want));
    }
    assert_eq!(items.recv().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(items.recv().await.unwrap(), None);
}

#[tokio::test]
async fn many_requests_one_result() {
    let pair = Pair::new(100);
    let mut sum = pair.client.client_stream::<u64, u64>(name("Sum"), &ctx()).await.unwrap();
    for number in 0..=100 {
        sum.send(&number).await.unwrap();
    }
    assert_eq!(sum.finish().await.unwrap(), 5050);
    let empty = pair.client.client_stream::<u64, u64>(name("Sum"), &ctx()).await.unwrap();
    assert_eq!(empty.finish().await.unwrap(), 0);
}

#[tokio::test]
async fn a_result_before_the_last_request_ends_the_sending() {
    let pair = Pair::new(4096);
    let mut sum = pair.client.client_stream::<u64, u64>(name("Sum"), &ctx()).await.unwrap();
    sum.send(&u64::MAX).await.unwrap();
    let ended = loop {
        match sum.send(&1).await {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, Error::StreamEnded), "{ended:?}");
    assert_eq!(sum.finish().await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(pair.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn both_sides_talk_at_once() {
    let pair = Pair::new(64);
    let (mut words, mut shouts) =
        pair.client.duplex::<String, String>(name("Shout"), &ctx()).await.unwrap();
    let send = async {
        for i in 0..500 {
            words.send(&format!("word {i}")).await.unwrap();
        }
        // An empty message is an item, not an end.
        words.send(&String::new()).await.unwrap();
        words.close().await.unwrap();
    };
    let receive = async {
        for i in 0..500 {
            assert_eq!(shouts.recv().await.unwrap(), Some(format!("WORD {i}")));
        }
        assert_eq!(shouts.recv().await.unwrap(), Some(String::new()));
        assert_eq!(shouts.recv().await.unwrap(), None);
    };
    tokio::join!(send, receive);
}

#[tokio::test]
async fn a_stream_has_a_deadline_too() {
    let pair = Pair::new(4096);
    let ctx = Context::timeout(Duration::from_millis(50));
    let (_words, mut shouts) =
        pair.client.duplex::<String, String>(name("Shout"), &ctx).await.unwrap();
    assert_eq!(shouts.recv().await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn unknown_streaming_methods_are_refused() {
    let pair = Pair::new(4096);
    let mut items: Receiver<u64> =
        pair.client.server_stream(name("NoSuch"), &ctx(), &1u64).await.unwrap();
    assert_eq!(items.recv().await.unwrap_err().code(), Code::Unimplemented);
    let sum = pair.client.client_stream::<u64, u64>(name("NoSuch"), &ctx()).await.unwrap();
    assert_eq!(sum.finish().await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn an_item_above_the_limit_costs_itself_only() {
    let pair = Pair::new(64 << 10);
    let (mut words, mut shouts) =
        pair.client.duplex::<String, String>(name("Shout"), &ctx()).await.unwrap();
    let too_large = words.send(&"x".repeat(MAX_PAYLOAD)).await;
    assert!(matches!(too_large, Err(Error::Oversize(_))), "{too_large:?}");
    words.send(&"fine".into()).await.unwrap();
    assert_eq!(shouts.recv().await.unwrap().as_deref(), Some("FINE"));
}

#[tokio::test]
async fn a_handler_learns_of_an_item_above_the_limit_and_answers() {
    let (mut raw, ..) = raw_client();
    let open =
        RawRequest { service: support::SERVICE.into(), method: "Sum".into(), ..Default::default() };
    raw.write(&frame(1, MessageType::REQUEST, Flags::REMOTE_OPEN, &open.encode_to_vec())).await;
    raw.write(&frame(1, MessageType::DATA, Flags::NONE, &vec![0; MAX_PAYLOAD + 1])).await;
    let (id, code, _) = raw.response().await;
    assert_eq!((id, code), (1, Code::ResourceExhausted as i32));
}

#[tokio::test]
async fn an_item_may_come_in_the_request_and_with_the_end() {
    let (mut raw, ..) = raw_client();
    let open = RawRequest {
        service: support::SERVICE.into(),
        method: "Sum".into(),
        payload: 5u64.encode_to_vec(),
        timeout_nano: 0,
    };
    raw.write(&frame(1, MessageType::REQUEST, Flags::REMOTE_OPEN, &open.encode_to_vec())).await;
    raw.write(&frame(1, MessageType::DATA, Flags::REMOTE_CLOSED, &6u64.encode_to_vec())).await;
    let (_, code, RawResponse { payload, .. }) = raw.response().await;
    assert_eq!((code, u64::decode(&*payload).unwrap()), (0, 11));
}

/// Items that a connection takes while nobody reads them: the pipe, the queue of the
/// server and that of the stream, with room to spare.
const IN_TRANSIT: usize = 3 * (1 << 20) / 64;

#[tokio::test]
async fn a_reader_that_pauses_holds_the_sender_back_and_loses_nothing() {
    const ALL: u64 = 200_000;
    let pair = Pair::new(4096);
    let mut items = count(&pair, ALL).await;
    assert_eq!(items.recv().await.unwrap(), Some(0));
    // Shorter than the patience of the connection.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sent = pair.seen.sent.load(Ordering::SeqCst);
    assert!(sent < IN_TRANSIT, "the sender was not held back: {sent}");
    for want in 1..ALL {
        assert_eq!(items.recv().await.unwrap(), Some(want));
    }
    assert_eq!(items.recv().await.unwrap(), None);
}

#[tokio::test]
async fn a_reader_that_stops_is_cut_off_and_others_go_on() {
    let pair = Pair::new(4096);
    let mut items = count(&pair, u64::MAX).await;
    let mut sent = (0, Instant::now());
    eventually("the stream is full", || {
        let now = pair.seen.sent.load(Ordering::SeqCst);
        if now != sent.0 {
            sent = (now, Instant::now());
        }
        now > 0 && sent.1.elapsed() > Duration::from_millis(100)
    })
    .await;
    // Behind the full stream at first, then free.
    let before = Instant::now();
    assert_eq!(pair.echo("through").await.unwrap(), "through");
    assert!(before.elapsed() < Duration::from_secs(5));

    let error = loop {
        match items.recv().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended without a reason"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Lagged), "{error:?}");
}
