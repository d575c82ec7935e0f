//! The service `interop.Test`, which every implementation serves and calls the same way.
//! Its Go twin is in `tests/interop/ttrpc-go`. All messages are protobuf's well-known
//! wrappers, which prost knows as plain Rust types.
#![allow(dead_code, unreachable_pub, reason = "each test target uses its own part")]

use std::time::Duration;

use futures_util::{TryStreamExt, future::join_all};
use prost::Message;
use ttrpc::{
    Client, Code, Context, Error, MethodName, Receiver, ReplySender, Server, ServerContext,
    Service, Status,
};

pub const SERVICE: &str = "interop.Test";

pub fn name(method: &str) -> MethodName<'_> {
    MethodName::new(SERVICE, method)
}

pub fn server() -> Server {
    let service = Service::new(SERVICE)
        .unary("Echo", async |_: ServerContext, bytes: Vec<u8>| Ok(bytes))
        .unary("Empty", async |_: ServerContext, (): ()| Ok(()))
        .unary("Metadata", async |ctx: ServerContext, key: String| {
            let values: Vec<_> = ctx.metadata.get_all(&key).collect();
            Ok(format!("{} {}", values.join(","), ctx.deadline.is_some()))
        })
        .unary("Fail", async |_: ServerContext, code: i64| -> Result<(), Status> {
            let number = i32::try_from(code).unwrap_or(-1);
            Err(Status::new(Code::from(number), format!("code {code}")))
        })
        .unary("Sleep", async |_: ServerContext, ms: i64| {
            tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
            Ok(())
        })
        .unary("Big", async |_: ServerContext, len: i64| {
            Ok(vec![0u8; usize::try_from(len).unwrap_or(0)])
        })
        .server_stream("Count", count)
        .client_stream("Sum", async |_: ServerContext, mut numbers: Receiver<i64>| {
            let mut sum = 0;
            while let Some(number) = numbers.recv().await? {
                sum += number;
            }
            Ok(sum)
        })
        .duplex("Double", double);
    Server::builder().service(service).build()
}

async fn count(_: ServerContext, to: i64, mut replies: ReplySender<i64>) -> Result<(), Status> {
    for number in 0..to {
        replies.send(&number).await?;
    }
    if to == 13 { Err(Status::unavailable("unlucky")) } else { Ok(()) }
}

async fn double(
    _: ServerContext,
    mut numbers: Receiver<i64>,
    mut replies: ReplySender<i64>,
) -> Result<(), Status> {
    while let Some(number) = numbers.recv().await? {
        replies.send(&(2 * number)).await?;
    }
    Ok(())
}

fn ctx() -> Context {
    Context::timeout(Duration::from_secs(30))
}

async fn ask<Req: Message, Res: Message + Default>(
    client: &Client,
    method: &str,
    request: Req,
) -> Result<Res, Error> {
    client.call(name(method), &ctx(), &request).await
}

/// Calls everything a foreign server has to offer.
pub async fn exercise(client: &Client) {
    payloads(client).await;
    ask::<_, ()>(client, "Empty", ()).await.expect("empty messages");
    metadata(client).await;
    statuses(client).await;
    deadline(client).await;
    concurrent(client).await;
    server_streams(client).await;
    client_streams(client).await;
    duplex(client).await;
    assert!(!client.is_closed());
}

/// Around the sizes of buffers, and up to the limit.
pub const SIZES: [usize; 8] = [0, 1, 4085, 4086, 4087, 36 << 10, 1 << 20, (4 << 20) - 100];

async fn payloads(client: &Client) {
    for size in SIZES {
        let bytes = vec![0xA5; size];
        let echo: Vec<u8> = ask(client, "Echo", bytes.clone()).await.expect("an echo");
        assert!(echo == bytes, "{size} bytes came back as {}", echo.len());
    }
}

async fn metadata(client: &Client) {
    let ask = async |ctx: Context| {
        let got = client.call::<_, String>(name("Metadata"), &ctx, &String::from("key")).await;
        got.expect("an answer")
    };
    let both = ctx().with_metadata("Key", "1").with_metadata("key", "2");
    assert_eq!(ask(both).await, "1,2 true");
    assert_eq!(ask(Context::new()).await, " false");
}

async fn statuses(client: &Client) {
    for number in 1..=16 {
        let answer: Result<(), _> = ask(client, "Fail", i64::from(number)).await;
        let Err(Error::Status(status)) = answer else { panic!("{number}: {answer:?}") };
        assert_eq!((status.code, status.message), (Code::from(number), format!("code {number}")));
    }
    let answer: Result<(), _> = ask(client, "NoSuch", ()).await;
    assert!(matches!(answer, Err(Error::Status(_))), "{answer:?}");
}

async fn deadline(client: &Client) {
    let ctx = Context::timeout(Duration::from_millis(50));
    let answer = client.call::<_, ()>(name("Sleep"), &ctx, &10_000i64).await;
    assert_eq!(answer.map_err(|e| e.code()), Err(Code::DeadlineExceeded));
    ask::<_, ()>(client, "Empty", ()).await.expect("the connection is sound");
}

async fn concurrent(client: &Client) {
    join_all((0..64usize).map(async |i| {
        for _ in 0..20 {
            let bytes = vec![7u8; 1000 * i];
            let echo: Vec<u8> = ask(client, "Echo", bytes.clone()).await.expect("an echo");
            assert!(echo == bytes);
        }
    }))
    .await;
}

async fn server_streams(client: &Client) {
    for to in [0, 1, 1000i64] {
        let numbers = client.server_stream::<_, i64>(name("Count"), &ctx(), &to).await;
        let all: Vec<i64> = numbers.expect("sent").try_collect().await.expect("all numbers");
        assert_eq!(all, (0..to).collect::<Vec<_>>());
    }
    let mut numbers: Receiver<i64> =
        client.server_stream(name("Count"), &ctx(), &13i64).await.expect("sent");
    for want in 0..13 {
        assert_eq!(numbers.recv().await.expect("an item"), Some(want));
    }
    assert_eq!(numbers.recv().await.map_err(|e| e.code()), Err(Code::Unavailable));
}

async fn client_streams(client: &Client) {
    for to in [0, 100] {
        let mut sum = client.client_stream::<i64, i64>(name("Sum"), &ctx()).await.expect("sent");
        for number in 0..=to {
            sum.send(&number).await.expect("sent");
        }
        assert_eq!(sum.finish().await.expect("a sum"), to * (to + 1) / 2);
    }
}

async fn duplex(client: &Client) {
    let (mut numbers, mut doubles) =
        client.duplex::<i64, i64>(name("Double"), &ctx()).await.expect("sent");
    for number in 0..200 {
        numbers.send(&number).await.expect("sent");
        assert_eq!(doubles.recv().await.expect("a double"), Some(2 * number));
    }
    numbers.close().await.expect("sent");
    assert_eq!(doubles.recv().await.expect("an end"), None);
}
