//! The generated code is what `tests/generated/` shows, and it works: client and server
//! made from one file talk to each other.

use std::{env, fs, path::Path, time::Duration};

use ttrpc::{Client, Code, Context, Error, Receiver, ReplySender, Server, ServerContext, Status};

mod example {
    #![allow(clippy::all, unreachable_pub, reason = "generated")]
    include!("generated/longshore.example.v1.rs");
}

use example::{Counter, CounterClient, CounterServer, Number, Secret};

fn compile_into(dir: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    ttrpc_build::configure()
        .prost(|prost| {
            let everything = ["."];
            prost.out_dir(dir).bytes(everything).btree_map(everything);
            prost.skip_debug(["longshore.example.v1.Secret"]);
        })
        .compile(&[here.join("example.proto")], &[here])
        .expect("the example compiles");
}

/// With `UPDATE=1` in the environment the files are written anew instead.
#[test]
fn generated_code_is_as_shown() {
    let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generated");
    if env::var_os("UPDATE").is_some() {
        return compile_into(&shown);
    }
    let dir = tempfile::tempdir().unwrap();
    compile_into(dir.path());
    let read = |dir: &Path| fs::read_to_string(dir.join("longshore.example.v1.rs")).unwrap();
    assert_eq!(read(dir.path()), read(&shown), "run again with UPDATE=1 and look at the diff");
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

struct Impl;

impl Counter for Impl {
    async fn increment(&self, _ctx: ServerContext, request: Number) -> Result<Number, Status> {
        Ok(Number { value: request.value + 1 })
    }

    async fn countdown(
        &self,
        _ctx: ServerContext,
        request: Number,
        mut replies: ReplySender<Number>,
    ) -> Result<(), Status> {
        for value in (0..request.value).rev() {
            replies.send(&Number { value }).await?;
        }
        Ok(())
    }

    async fn sum(
        &self,
        _ctx: ServerContext,
        mut requests: Receiver<Number>,
    ) -> Result<Number, Status> {
        let mut value = 0;
        while let Some(number) = requests.recv().await? {
            value += number.value;
        }
        Ok(Number { value })
    }

    async fn double(
        &self,
        _ctx: ServerContext,
        mut requests: Receiver<Number>,
        mut replies: ReplySender<Number>,
    ) -> Result<(), Status> {
        while let Some(Number { value }) = requests.recv().await? {
            replies.send(&Number { value: 2 * value }).await?;
        }
        Ok(())
    }

    async fn reset(&self, _ctx: ServerContext, (): ()) -> Result<(), Status> {
        Ok(())
    }
}

/// A client of `Impl`, and the server's end to be awaited.
fn connect() -> (CounterClient, impl Future<Output = std::io::Result<()>>) {
    let (near, far) = tokio::io::duplex(4096);
    let server = Server::builder().service(CounterServer::new(Impl)).build();
    let serving = async move { server.serve_connection(far).await };
    (CounterClient::new(Client::new(near)), serving)
}

#[tokio::test]
async fn all_kinds_of_methods_work() {
    let (client, serving) = connect();
    let ctx = Context::timeout(Duration::from_secs(10));
    let calls = async {
        let number = |value| Number { value };
        assert_eq!(client.increment(&ctx, &number(41)).await?, number(42));
        client.reset(&ctx, &()).await?;

        let mut countdown = client.countdown(&ctx, &number(3)).await?;
        for value in [2, 1, 0] {
            assert_eq!(countdown.recv().await?, Some(number(value)));
        }
        assert_eq!(countdown.recv().await?, None);

        let mut sum = client.sum(&ctx).await?;
        for value in 1..=10 {
            sum.send(&number(value)).await?;
        }
        assert_eq!(sum.finish().await?, number(55));

        let (mut requests, mut replies) = client.double(&ctx).await?;
        for value in [0, 1, 2] {
            requests.send(&number(value)).await?;
            assert_eq!(replies.recv().await?, Some(number(2 * value)));
        }
        requests.close().await?;
        assert_eq!(replies.recv().await?, None);
        client.connection().close();
        Ok::<_, Error>(())
    };
    let (calls, served) = tokio::join!(calls, serving);
    calls.unwrap();
    served.unwrap();
}

#[tokio::test]
async fn a_method_that_is_not_implemented_says_its_name() {
    let (client, serving) = connect();
    let call = async {
        let answer = client.r#match(&Context::new(), &Number::default()).await;
        client.connection().close();
        answer
    };
    let (answer, _) = tokio::join!(call, serving);
    let Err(Error::Status(status)) = answer else { panic!("{answer:?}") };
    assert_eq!((status.code, status.message.as_str()), (Code::Unimplemented, "method Match"));
}

#[test]
fn prost_options_are_passed_on() {
    let secret = Secret { token: "s3cret".into(), ..Secret::default() };
    let _: &bytes::Bytes = &secret.blob;
    let _: &std::collections::BTreeMap<String, String> = &secret.labels;
    assert!(!format!("{secret:?}").contains("s3cret"));
}

#[test]
fn a_file_that_does_not_compile_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.proto"), "syntax = \"proto3\"; message {").unwrap();
    let result = ttrpc_build::compile(&[dir.path().join("bad.proto")], &[dir.path()]);
    assert!(matches!(result, Err(ttrpc_build::Error::Compile(_))), "{result:?}");
}
