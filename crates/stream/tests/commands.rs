//! Exec and attach, over both transports, with a client that speaks the bare protocol.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use stream::{Attach, Wanted, spdy::frame::Frame};
use support::{ALL, Stage, path, request, spdy, websocket};
use tokio::io::AsyncReadExt;
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

const V4: &str = "v4.channel.k8s.io";
const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;

async fn types<T>(client: &mut support::Spdy<T>, names: &[&str]) -> Vec<u32>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut ids = Vec::new();
    for name in names {
        ids.push(client.open(&[("streamType", name)]).await);
    }
    ids
}

#[tokio::test]
async fn what_goes_in_comes_out_and_the_end_is_told() {
    let stage = Stage::new(None).await;
    let mut client = spdy(stage.address, &stage.exec("cat", ALL), V4).await;
    let ids = types(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
    client.data(ids[1], "hello ", false).await;
    client.data(ids[1], "world", true).await;
    let (texts, ended) = client.rest().await;
    let texts: Vec<_> = texts.into_iter().filter(|(_, text)| !text.is_empty()).collect();
    assert_eq!(texts, [(ids[0], SUCCESS.to_owned()), (ids[2], "hello world".to_owned())]);
    assert_eq!(ended, [ids[2], ids[3], ids[0]], "the verdict comes last");
    stage.end().await;
}

#[tokio::test]
async fn exit_codes_and_failures_are_told() {
    let stage = Stage::new(None).await;
    let stdout = Wanted { stdout: true, ..Wanted::default() };
    for (command, protocol, want) in [
        ("exit 7", V4, r#""causes":[{"message":"7","reason":"ExitCode"}]"#),
        ("exit 7", "v2.channel.k8s.io", "command terminated with exit code 7"),
        ("fly", V4, r#""message":"no command [\"fly\"]""#),
    ] {
        let mut client = spdy(stage.address, &stage.exec(command, stdout), protocol).await;
        let ids = types(&mut client, &["error", "stdout"]).await;
        let (texts, _) = client.rest().await;
        let error = texts.iter().find(|(id, _)| *id == ids[0]).unwrap();
        assert!(error.1.contains(want), "{error:?}");
    }
    stage.end().await;
}

#[tokio::test]
async fn sizes_reach_the_command() {
    let stage = Stage::new(None).await;
    let terminal = Wanted { tty: true, stdin: true, stdout: true, stderr: false };
    let mut client = spdy(stage.address, &stage.exec("size", terminal), V4).await;
    let ids = types(&mut client, &["error", "stdin", "stdout", "resize"]).await;
    client.data(ids[3], "{\"Width\":100,\"Height\":30}\n", false).await;
    let (texts, _) = client.rest().await;
    assert!(texts.contains(&(ids[2], "100x30".to_owned())), "{texts:?}");
    stage.end().await;
}

#[tokio::test]
async fn attach_is_served_too() {
    let stage = Stage::new(None).await;
    let attach = Attach { container: "c9".to_owned(), wanted: ALL };
    let path = path(&stage.server.attach(attach).unwrap());
    let mut client = spdy(stage.address, &path, V4).await;
    let ids = types(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
    client.data(ids[1], "x", true).await;
    let (texts, _) = client.rest().await;
    assert!(texts.contains(&(ids[3], "attached to c9".to_owned())), "{texts:?}");
    stage.end().await;
}

// === tokens ===

#[tokio::test]
async fn a_token_opens_one_door_once() {
    let stage = Stage::new(None).await;
    let exec = stage.exec("cat", ALL);
    let upgrade = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", V4)];
    let status = async |path: String, headers: &[(&str, &str)]| {
        request(stage.address, &path, headers).await.0[0].clone()
    };
    assert_eq!(status(exec.clone(), &upgrade).await, "http/1.1 101 switching protocols");
    assert_eq!(status(exec, &upgrade).await, "http/1.1 404 not found");
    let elsewhere = stage.exec("cat", ALL).replace("/exec/", "/attach/");
    assert_eq!(status(elsewhere, &upgrade).await, "http/1.1 404 not found");
    assert_eq!(status("/exec/guess".to_owned(), &upgrade).await, "http/1.1 404 not found");
    assert_eq!(status("/".to_owned(), &upgrade).await, "http/1.1 404 not found");
    let plain = status(stage.exec("cat", ALL), &[]).await;
    assert_eq!(plain, "http/1.1 400 bad request");
    let strange = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v9")];
    let (lines, _) = request(stage.address, &stage.exec("cat", ALL), &strange).await;
    assert_eq!(lines[0], "http/1.1 403 forbidden");
    assert!(lines.iter().any(|line| line == "x-accepted-stream-protocol-versions: channel.k8s.io"));
    stage.end().await;
}

#[tokio::test]
async fn a_server_that_stops_lets_commands_tell_their_clients() {
    let mut stage = Stage::new(None).await;
    let stdout = Wanted { stdout: true, ..Wanted::default() };
    let mut over_spdy = spdy(stage.address, &stage.exec("leave", stdout), V4).await;
    let ids = types(&mut over_spdy, &["error", "stdout"]).await;
    let mut over_socket = websocket(stage.address, &stage.exec("leave", stdout), V4).await;
    // Nobody waits for these two for ever: one that is deaf, one whose work does not end.
    let _deaf = websocket(stage.address, &stage.exec("flood", stdout), V4).await;
    let _endless = websocket(stage.address, &stage.exec("cat", ALL), V4).await;
    for _ in 0..2 {
        while stage.note().await != "begun" {}
    }
    stage.stop.cancel();
    let (texts, _) = over_spdy.rest().await;
    let error = texts.iter().find(|(id, _)| *id == ids[0]).unwrap();
    assert!(error.1.contains(r#""message":"left running""#), "{error:?}");
    let mut heard = String::new();
    while let Some(Ok(message)) = over_socket.next().await {
        heard += &String::from_utf8_lossy(&message.into_data());
    }
    assert!(heard.contains(r#""message":"left running""#), "{heard:?}");
    stage.end().await;
}

// === clients that misbehave ===

#[tokio::test]
async fn one_that_vanishes_is_noticed() {
    let mut stage = Stage::new(None).await;
    let mut client = spdy(stage.address, &stage.exec("vanish", ALL), V4).await;
    types(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
    assert_eq!(stage.note().await, "begun");
    drop(client);
    assert_eq!(stage.note().await, "gone");
    let mut client = websocket(stage.address, &stage.exec("vanish", ALL), V4).await;
    assert_eq!(stage.note().await, "begun");
    client.close(None).await.unwrap();
    assert_eq!(stage.note().await, "gone");
    stage.end().await;
}

#[tokio::test]
async fn one_that_does_not_read_makes_the_command_wait() {
    let mut stage = Stage::new(None).await;
    let stdout = Wanted { stdout: true, ..Wanted::default() };
    let mut client = spdy(stage.address, &stage.exec("flood", stdout), V4).await;
    types(&mut client, &["error", "stdout"]).await;
    // Until the buffers of the kernel are full, and then no more.
    let mut sent = 0;
    while let Ok(Some(_)) =
        tokio::time::timeout(std::time::Duration::from_secs(2), stage.notes.recv()).await
    {
        sent += 1;
        assert!(sent < 5000, "fifty megabytes are in nobody's buffers");
    }
    assert!(sent > 0);
    // It goes on as soon as there is room.
    while stage.notes.try_recv().is_err() {
        client.next().await.unwrap();
    }
    stage.end().await;
}

#[tokio::test]
async fn one_that_counts_gets_what_it_has_room_for() {
    let stage = Stage::new(None).await;
    let mut client = spdy(stage.address, &stage.exec("cat", ALL), V4).await;
    client.send(&Frame::Settings(vec![(7, 1000)])).await;
    let ids = types(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
    client.data(ids[1], vec![b'x'; 2500], true).await;
    let mut got = 0;
    while got < 1000 {
        match client.next().await.unwrap() {
            Frame::Data { id, bytes, .. } if id == ids[2] => got += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, 1000);
    // Nothing follows but the answer to a ping: the rest waits for room.
    client.send(&Frame::Ping(1)).await;
    assert_eq!(client.next().await, Some(Frame::Ping(1)));
    client.send(&Frame::Window { id: ids[2], more: 5000 }).await;
    let (texts, _) = client.rest().await;
    let more: usize =
        texts.iter().filter(|(id, _)| *id == ids[2]).map(|(_, text)| text.len()).sum();
    assert_eq!(more, 1500);
    stage.end().await;
}

/// A command that ends while its client still sends: the verdict must not be lost with what
/// was not read.
#[tokio::test]
async fn the_verdict_reaches_one_that_still_sends() {
    let stage = Stage::new(None).await;
    for _ in 0..20 {
        let mut client = spdy(stage.address, &stage.exec("exit 3", ALL), V4).await;
        let ids = types(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
        for _ in 0..20 {
            client.data(ids[1], vec![0; 50_000], false).await;
        }
        let (texts, _) = client.rest().await;
        assert!(texts.iter().any(|(id, text)| *id == ids[0] && text.contains("ExitCode")));
    }
    stage.end().await;
}

#[tokio::test]
async fn streams_that_make_no_sense_are_reset() {
    let stage = Stage::new(None).await;
    let mut client = spdy(stage.address, &stage.exec("cat", ALL), V4).await;
    let headers = stream::spdy::headers::Headers::default().with("streamtype", "error");
    client.send(&Frame::SynStream { id: 2, headers: headers.clone(), fin: false }).await;
    assert_eq!(client.next().await, Some(Frame::Reset { id: 2, status: 1 }));
    client.data(9, "x", false).await;
    assert_eq!(client.next().await, Some(Frame::Reset { id: 9, status: 2 }));
    types(&mut client, &["error", "stdin"]).await;
    client.send(&Frame::SynStream { id: 1, headers, fin: false }).await;
    assert_eq!(client.next().await, Some(Frame::Reset { id: 1, status: 1 }));
    // The stream of another name is taken and ended, and counts for nothing.
    let odd = client.open(&[("streamtype", "gossip")]).await;
    let end = Frame::Data { id: odd, bytes: Bytes::new(), fin: true };
    assert_eq!(client.next().await, Some(end));
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_opens_nothing_is_given_up() {
    let stage = Stage::new(None).await;
    let mut client = spdy(stage.address, &stage.exec("cat", ALL), V4).await;
    types(&mut client, &["error"]).await;
    let mut rest = Vec::new();
    client.io.read_to_end(&mut rest).await.unwrap();
    stage.end().await;
}

// === WebSocket ===

/// All messages until the end, and how it ended.
async fn messages(
    client: &mut (
             impl futures_util::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>>
             + Unpin
         ),
) -> (Vec<Bytes>, Option<CloseCode>) {
    let mut all = Vec::new();
    while let Some(Ok(message)) = client.next().await {
        match message {
            Message::Close(frame) => return (all, frame.map(|frame| frame.code)),
            message => all.push(message.into_data()),
        }
    }
    (all, None)
}

#[tokio::test]
async fn version_5_ends_stdin_alone() {
    let stage = Stage::new(None).await;
    let mut client = websocket(stage.address, &stage.exec("cat", ALL), "v5.channel.k8s.io").await;
    client.send(Message::binary(&b"\0hello"[..])).await.unwrap();
    client.send(Message::binary(&b"\xff\0"[..])).await.unwrap();
    let (all, code) = messages(&mut client).await;
    let status = format!("\u{3}{SUCCESS}");
    assert_eq!(all, [&b"\x01"[..], b"\x01hello", status.as_bytes()]);
    assert_eq!(code, Some(CloseCode::Normal));
    stage.end().await;
}

#[tokio::test]
async fn base64_and_nameless_clients_are_served() {
    let stage = Stage::new(None).await;
    let path = stage.exec("cat", ALL);
    let mut client = websocket(stage.address, &path, "v4.base64.channel.k8s.io").await;
    client.send(Message::text("0Zm9vCg==")).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap().into_data(), "1");
    assert_eq!(client.next().await.unwrap().unwrap().into_data(), "1Zm9vCg==");
    let stdout = Wanted { stdout: true, ..Wanted::default() };
    let mut client = websocket(stage.address, &stage.exec("exit 4", stdout), "").await;
    let (all, _) = messages(&mut client).await;
    assert_eq!(all, ["\u{1}", "\u{3}command terminated with exit code 4"]);
    stage.end().await;
}

#[tokio::test]
async fn sizes_come_on_a_channel_too() {
    let stage = Stage::new(None).await;
    let terminal = Wanted { tty: true, stdin: true, stdout: true, stderr: false };
    let mut client = websocket(stage.address, &stage.exec("size", terminal), V4).await;
    client.send(Message::binary(&b"\x04{\"Width\":9,\"Height\":8}"[..])).await.unwrap();
    let (all, _) = messages(&mut client).await;
    assert_eq!(all[1], "\u{1}9x8");
    stage.end().await;
}
