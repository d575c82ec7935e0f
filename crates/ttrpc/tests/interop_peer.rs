//! Talks to the published `ttrpc` crate, in both directions.

#[path = "support/interop.rs"]
mod interop;
#[path = "support/peer.rs"]
mod peer;

use std::time::Duration;

use futures_util::future::join_all;
use prost::Message;
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Code};
use ttrpc_peer::{Error as PeerError, asynchronous::Client as PeerClient};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn our_client_talks_to_their_server() {
    let (near, far) = tokio::io::duplex(64 << 10);
    let mut server = peer::serve(far).await;
    let client = Client::new(near);
    interop::exercise(&client).await;
    client.close();
    client.closed().await;
    server.shutdown().await.unwrap();
}

async fn ask<Req: Message, Res: Message + Default>(
    client: &PeerClient,
    method: &str,
    argument: Req,
) -> Result<Res, PeerError> {
    let request = peer::request(method, argument.encode_to_vec(), LONG);
    let response = client.request(request).await?;
    Ok(Res::decode(&*response.payload).expect("a result"))
}

#[track_caller]
fn code<T>(answer: Result<T, PeerError>) -> Code {
    match answer {
        Err(PeerError::RpcStatus(status)) => Code::from(status.code.value()),
        Err(other) => panic!("not a status: {other}"),
        Ok(_) => Code::Ok,
    }
}

#[tokio::test]
async fn their_client_talks_to_our_server() {
    let (near, far) = tokio::io::duplex(64 << 10);
    let server = interop::server();
    let tasks = TaskTracker::new();
    let serving = server.clone();
    tasks.spawn(async move { serving.serve_connection(far).await });
    let client = peer::connect(near);

    unary_calls(&client).await;
    refusals(&client).await;
    streams(&client).await;

    drop(client);
    tokio::time::timeout(LONG, server.shutdown()).await.unwrap();
}

async fn unary_calls(client: &PeerClient) {
    for size in interop::SIZES {
        let bytes = vec![0xA5u8; size];
        let echo: Vec<u8> = ask(client, "Echo", bytes.clone()).await.expect("an echo");
        assert!(echo == bytes, "{size} bytes came back as {}", echo.len());
    }
    let mut request = peer::request("Metadata", String::from("key").encode_to_vec(), LONG);
    for (key, value) in [("key", "1"), ("key", "2")] {
        let mut pair = ttrpc_peer::proto::KeyValue::new();
        (pair.key, pair.value) = (key.into(), value.into());
        request.metadata.push(pair);
    }
    let response = client.request(request).await.expect("an answer");
    assert_eq!(String::decode(&*response.payload).expect("a text"), "1,2 true");

    join_all((0..64usize).map(async |i| {
        let bytes = vec![7u8; 1000 * i];
        let echo: Vec<u8> = ask(client, "Echo", bytes.clone()).await.expect("an echo");
        assert!(echo == bytes);
    }))
    .await;
}

async fn refusals(client: &PeerClient) {
    for number in 1..=16 {
        let answer = ask::<_, ()>(client, "Fail", i64::from(number)).await;
        assert_eq!(code(answer), Code::from(number));
    }
    assert_eq!(code(ask::<_, ()>(client, "NoSuch", ()).await), Code::Unimplemented);
    assert_eq!(code(ask::<_, ()>(client, "Metadata", 7i64).await), Code::InvalidArgument);
    assert_eq!(code(ask::<_, Vec<u8>>(client, "Big", 4i64 << 20).await), Code::ResourceExhausted);

    let short = peer::request("Sleep", 10_000i64.encode_to_vec(), Duration::from_millis(50));
    // Whichever side is first to notice says it.
    let late = client.request(short).await.expect_err("no answer in time").to_string();
    assert!(late.to_lowercase().contains("deadline"), "{late}");
    ask::<_, ()>(client, "Empty", ()).await.expect("the connection is sound");
}

async fn streams(client: &PeerClient) {
    let open = async |method: &str, payload: Vec<u8>, sends: bool, receives: bool| {
        let request = peer::request(method, payload, LONG);
        client.new_stream(request, sends, receives).await.expect("sent")
    };
    let number = |bytes: Result<Vec<u8>, PeerError>| {
        i64::decode(&*bytes.expect("an item")).expect("a number")
    };

    let mut count = open("Count", 100i64.encode_to_vec(), false, true).await;
    for want in 0..100 {
        assert_eq!(number(count.recv().await), want);
    }
    assert!(matches!(count.recv().await, Err(PeerError::Eof)));

    let mut sum = open("Sum", Vec::new(), true, false).await;
    for n in 0..=100i64 {
        sum.send(n.encode_to_vec()).await.expect("sent");
    }
    sum.close_send().await.expect("sent");
    assert_eq!(number(sum.recv().await), 5050);

    let mut double = open("Double", Vec::new(), true, true).await;
    for n in 0..100i64 {
        double.send(n.encode_to_vec()).await.expect("sent");
        assert_eq!(number(double.recv().await), 2 * n);
    }
    double.close_send().await.expect("sent");
    assert!(matches!(double.recv().await, Err(PeerError::Eof)));
}
