//! Port-forward, over SPDY, WebSocket, and SPDY inside WebSocket.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use stream::{Limits, PortForward};
use support::{Spdy, Stage, late_answerer, path, spdy, websocket};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::task::TaskTracker;

const PROTOCOL: &str = "portforward.k8s.io";

fn forward(stage: &Stage, ports: &[u16]) -> String {
    let forward = PortForward { pod: "p1".to_owned(), ports: ports.to_vec() };
    path(&stage.server.port_forward(forward).unwrap())
}

/// Two connections over one session, both half-closed before the answer.
async fn two_connections<T: AsyncRead + AsyncWrite + Unpin>(client: &mut Spdy<T>) {
    let mut data = Vec::new();
    for (request, size) in [("0", 10), ("1", 200_000)] {
        let error = [("streamtype", "error"), ("port", "80"), ("requestid", request)];
        let error = client.open(&error).await;
        client.data(error, "", true).await;
        let stream = [("streamtype", "data"), ("port", "80"), ("requestid", request)];
        let stream = client.open(&stream).await;
        for _ in 0..size / 10 {
            client.data(stream, vec![b'x'; 10], false).await;
        }
        client.data(stream, "", true).await;
        data.push((stream, format!("heard {size}")));
    }
    let (mut texts, mut ended) = (std::collections::BTreeMap::<u32, String>::new(), 0);
    while ended < 4 {
        if let stream::spdy::frame::Frame::Data { id, bytes, fin } = client.next().await.unwrap() {
            *texts.entry(id).or_default() += &String::from_utf8_lossy(&bytes);
            ended += u32::from(fin);
        }
    }
    for (id, want) in data {
        assert_eq!(texts[&id], want);
    }
}

#[tokio::test]
async fn both_sides_end_for_themselves() {
    let mut stage = Stage::new(Some(late_answerer().await)).await;
    let mut client = spdy(stage.address, &forward(&stage, &[]), PROTOCOL).await;
    two_connections(&mut client).await;
    assert_eq!(stage.note().await, "p1:80");
    stage.end().await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_told() {
    let stage = Stage::new(None).await;
    let mut client = spdy(stage.address, &forward(&stage, &[]), PROTOCOL).await;
    // As old clients do it: without a request id.
    let error = client.open(&[("streamtype", "error"), ("port", "81")]).await;
    let data = client.open(&[("streamtype", "data"), ("port", "81")]).await;
    let mut told = (String::new(), Vec::new());
    while told.1.len() < 2 {
        if let stream::spdy::frame::Frame::Data { id, bytes, fin } = client.next().await.unwrap() {
            told.0 += &String::from_utf8_lossy(&bytes);
            told.1.extend(fin.then_some(id));
        }
    }
    assert_eq!(told, ("forward port 81: nobody listens".to_owned(), vec![data, error]));
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn half_a_connection_is_given_up() {
    let limits = Limits { open: Duration::from_secs(5), ..Limits::default() };
    let stage = Stage::with(None, limits).await;
    let mut client = spdy(stage.address, &forward(&stage, &[]), PROTOCOL).await;
    let id = client.open(&[("streamtype", "error"), ("port", "81"), ("requestid", "7")]).await;
    let end = stream::spdy::frame::Frame::Data { id, bytes: bytes::Bytes::new(), fin: true };
    assert_eq!(client.next().await, Some(end));
    stage.end().await;
}

#[tokio::test]
async fn a_websocket_has_two_channels_per_port() {
    let stage = Stage::new(Some(late_answerer().await)).await;
    let path = forward(&stage, &[80, 0x1234]);
    let mut client = websocket(stage.address, &path, "v4.channel.k8s.io").await;
    let mut first: Vec<_> = Vec::new();
    for _ in 0..4 {
        first.push(client.next().await.unwrap().unwrap().into_data());
    }
    first.sort();
    assert_eq!(first, [&[0, 80, 0][..], &[1, 80, 0], &[2, 0x34, 0x12], &[3, 0x34, 0x12]]);
    client.send(Message::binary(&b"\0hello"[..])).await.unwrap();
    client.close(None).await.unwrap();
    stage.end().await;
}

#[tokio::test]
async fn spdy_goes_through_a_websocket() {
    let stage = Stage::new(Some(late_answerer().await)).await;
    let tunnel = "SPDY/3.1+portforward.k8s.io";
    let socket = websocket(stage.address, &forward(&stage, &[]), tunnel).await;
    // The client's end of the tunnel: bytes to messages and back.
    let (near, far) = duplex(1 << 20);
    let tasks = TaskTracker::new();
    let (mut sink, mut source) = socket.split();
    let (mut read, mut write) = tokio::io::split(far);
    tasks.spawn(async move {
        let mut buffer = vec![0; 1000];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            if sink.send(Message::binary(buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    });
    tasks.spawn(async move {
        while let Some(Ok(Message::Binary(bytes))) = source.next().await {
            write.write_all(&bytes).await.unwrap();
        }
    });
    two_connections(&mut Spdy::over(near)).await;
    stage.end().await;
}
