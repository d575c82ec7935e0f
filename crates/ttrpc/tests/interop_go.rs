//! Talks to the Go implementation, in both directions. Where there is no Go the tests say
//! so and pass.

#[path = "support/interop.rs"]
mod interop;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::{UnixListener, UnixStream},
    process::Command,
    sync::OnceCell,
};
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Code, Context, Error};

/// Builds the Go program once; `None` where there is no Go.
async fn program() -> Option<&'static Path> {
    static PROGRAM: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    PROGRAM.get_or_init(build).await.as_deref()
}

async fn build() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ttrpc-go");
    let built = Command::new("go")
        .current_dir(root.join("tests/interop/ttrpc-go"))
        .args(["build", "-o"])
        .args([program.as_os_str(), ".".as_ref()])
        .status()
        .await;
    match built {
        Ok(status) => {
            assert!(status.success(), "go build: {status}");
            Some(program)
        }
        Err(error) => {
            // Not by a print macro, which the test harness would hide.
            let skipped = format!("SKIPPED: ttrpc interop with Go: cannot run go: {error}\n");
            std::io::stderr().write_all(skipped.as_bytes()).expect("standard error is open");
            None
        }
    }
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("s");
    (dir, path)
}

#[tokio::test]
async fn our_client_talks_to_a_go_server() {
    let Some(program) = program().await else { return };
    let (_dir, path) = socket();
    // Its standard input ends with this test, and it with that.
    let mut server = Command::new(program)
        .arg("server")
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));

    let client = Client::new(UnixStream::connect(&path).await.unwrap());
    interop::exercise(&client).await;
    names_are_refused_in_the_words_of_go(&client).await;
    client.close();
    client.closed().await;
    drop(server.stdin.take());
    assert!(server.wait().await.unwrap().success());
}

/// What our own server must say as well; its tests check the same words.
async fn names_are_refused_in_the_words_of_go(client: &Client) {
    let check = async |service: &str, method: &str, want: &str| {
        let name = ttrpc::MethodName::new(service, method);
        let answer = client.call::<(), ()>(name, &Context::new(), &()).await;
        let Err(Error::Status(status)) = answer else { panic!("{answer:?}") };
        assert_eq!((status.code, status.message.as_str()), (Code::Unimplemented, want));
    };
    check("no.Such", "Echo", "service no.Such").await;
    check(interop::SERVICE, "NoSuch", "method NoSuch").await;
}

#[tokio::test]
async fn a_go_client_talks_to_our_server() {
    let Some(program) = program().await else { return };
    let (_dir, path) = socket();
    let server = interop::server();
    let listener = UnixListener::bind(&path).unwrap();
    let (tasks, serving) = (TaskTracker::new(), server.clone());
    tasks.spawn(async move { serving.serve(listener).await });

    let run = Command::new(program).arg("client").arg(&path).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 12, "all cases ran");
    tokio::time::timeout(Duration::from_secs(10), server.shutdown()).await.unwrap();
}
