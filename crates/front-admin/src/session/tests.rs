use parking_lot::Mutex;
use tokio::{io::duplex, sync::mpsc};

use super::*;

/// Writes down what it is given.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<String>>>);

impl Keyboard for Paper {
    async fn write(&mut self, bytes: &[u8]) {
        self.0.lock().push(String::from_utf8_lossy(bytes).into_owned());
    }

    async fn close(&mut self) {
        self.0.lock().push("close".to_owned());
    }

    async fn resize(&mut self, width: u16, height: u16) -> engine::Result<()> {
        self.0.lock().push(format!("{width}x{height}"));
        Ok(())
    }
}

async fn fed(inputs: Vec<Result<SessionInput, Status>>) -> (Vec<String>, Option<Status>) {
    let paper = Paper::default();
    let feeding = feed(tokio_stream::iter(inputs), paper.clone());
    let status = tokio::time::timeout(Duration::from_secs(1), feeding).await.ok();
    let written = paper.0.lock().clone();
    (written, status)
}

#[tokio::test(start_paused = true)]
async fn input_is_passed_on_in_order_and_its_end_closes_stdin() {
    let size = Size { width: 80, height: 24 };
    let inputs = [
        SessionInput::stdin("a".into()),
        SessionInput::resize(size),
        SessionInput::default(),
        SessionInput::stdin("b".into()),
    ];
    let (written, status) = fed(inputs.into_iter().map(Ok).collect()).await;
    assert_eq!(written, ["a", "80x24", "b", "close"]);
    assert!(status.is_none(), "the session goes on without input");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_breaks_off_ends_the_session() {
    let inputs = vec![Ok(SessionInput::stdin("a".into())), Err(Status::cancelled("gone"))];
    let (written, status) = fed(inputs).await;
    assert_eq!((written, status.unwrap().message()), (vec!["a".to_owned()], "gone"));
    let huge = SessionInput::resize(Size { width: 1 << 16, height: 1 });
    let (_, status) = fed(vec![Ok(huge)]).await;
    assert_eq!(status.unwrap().code(), tonic::Code::InvalidArgument);
}

fn channel() -> (Sender<SessionOutput>, mpsc::Receiver<Result<SessionOutput, Status>>) {
    mpsc::channel(1)
}

async fn pieces(mut from: mpsc::Receiver<Result<SessionOutput, Status>>) -> Vec<Bytes> {
    let mut all = Vec::new();
    while let Some(message) = from.recv().await {
        match message.unwrap().output {
            Some(session_output::Output::Stdout(bytes)) => all.push(bytes),
            other => panic!("{other:?}"),
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn output_comes_whole_in_bounded_pieces_also_to_a_slow_client() {
    let (mut process, ours) = duplex(1 << 20);
    let (out, receiver) = channel();
    let ended = CancellationToken::new();
    // It ends at once, long before the client has read everything.
    ended.cancel();
    let text: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let written = text.clone();
    let produce = async move {
        process.write_all(&written).await.unwrap();
        drop(process);
    };
    let pumping = async {
        pump(Some(ours), session_output::Output::Stdout, &out, &ended).await;
        drop(out);
    };
    let reading = async {
        tokio::time::sleep(QUIET * 20).await;
        pieces(receiver).await
    };
    let ((), (), got) = tokio::join!(produce, pumping, reading);
    assert!(got.iter().all(|piece| !piece.is_empty() && piece.len() <= MAX_CHUNK_BYTES));
    assert_eq!(got.concat(), text);
}

#[tokio::test(start_paused = true)]
async fn output_held_open_after_the_end_is_given_up_once_it_is_silent() {
    let (mut child, ours) = duplex(1024);
    let (out, receiver) = channel();
    let ended = CancellationToken::new();
    ended.cancel();
    let chatter = async {
        for _ in 0..3 {
            tokio::time::sleep(QUIET / 2).await;
            child.write_all(b"x").await.unwrap();
        }
    };
    let pumping = async {
        pump(Some(ours), session_output::Output::Stdout, &out, &ended).await;
        drop(out);
    };
    let ((), (), got) = tokio::join!(chatter, pumping, pieces(receiver));
    assert_eq!(got.concat(), b"xxx");
}

#[tokio::test(start_paused = true)]
async fn before_the_end_silence_means_nothing() {
    let (_process, ours) = duplex(1024);
    let (out, _receiver) = channel();
    let ended = CancellationToken::new();
    let pumping = pump(Some(ours), session_output::Output::Stdout, &out, &ended);
    assert!(tokio::time::timeout(QUIET * 100, pumping).await.is_err());
}
