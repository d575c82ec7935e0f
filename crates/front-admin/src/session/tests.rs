use std::time::Duration;

use parking_lot::Mutex;

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
