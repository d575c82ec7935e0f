//! Images on their way: pulls that are watched, archives that are written.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use api_admin::v1::{
    LayerProgress, LayerStage, PullImageRequest, PullImageResponse, SaveImagesResponse,
};
use bytes::Bytes;
use content::{AuthConfig, Progress, PullOptions, Stage};
use engine::Engine;
use tonic::Status;

use crate::{status::status, streams::Sender};

/// Between two looks at a pull.
const LOOK: Duration = Duration::from_millis(100);

/// Tells how far it is, at each change, and at last the image's id.
pub(crate) async fn pull(
    engine: Arc<Engine>,
    request: PullImageRequest,
    out: Sender<PullImageResponse>,
) -> Result<(), Status> {
    let images = engine.images().map_err(status)?;
    let progress = Arc::new(Progress::default());
    let PullImageRequest { image, username, password } = request;
    let options = PullOptions {
        auth: AuthConfig { username, password, ..AuthConfig::default() },
        progress: Some(Arc::clone(&progress)),
        ..PullOptions::default()
    };
    let tell = async {
        let mut told = None;
        loop {
            let now = look(&progress);
            if told.as_ref() != Some(&now) && out.send(Ok(now.clone())).await.is_err() {
                return;
            }
            told = Some(now);
            tokio::time::sleep(LOOK).await;
        }
    };
    let pulled = tokio::select! {
        pulled = images.pull(&image, options) => pulled.map_err(status)?,
        // Who went away is noticed by the stream.
        () = tell => return Ok(()),
    };
    let last = PullImageResponse { id: pulled.id.to_string(), ..look(&progress) };
    let _ = out.send(Ok(last)).await;
    Ok(())
}

fn look(progress: &Progress) -> PullImageResponse {
    let layer = |layer: content::LayerProgress| LayerProgress {
        digest: layer.digest.to_string(),
        size: layer.size,
        here: layer.here,
        stage: stage(layer.stage).into(),
    };
    PullImageResponse {
        layers: progress.layers().into_iter().map(layer).collect(),
        id: String::new(),
    }
}

fn stage(stage: Stage) -> LayerStage {
    match stage {
        Stage::Waiting => LayerStage::Waiting,
        Stage::Pulling => LayerStage::Pulling,
        Stage::Unpacking => LayerStage::Unpacking,
        Stage::Done => LayerStage::Done,
    }
}

/// Sends the archive as it is written.
pub(crate) async fn save(
    engine: Arc<Engine>,
    images: Vec<String>,
    out: Sender<SaveImagesResponse>,
) -> Result<(), Status> {
    if images.is_empty() {
        return Err(Status::invalid_argument("images: must not be empty"));
    }
    let store = engine.images().map_err(status)?;
    store.save(&images, Pieces(out)).await.map_err(status)
}

/// The writing end, on a thread that may block: a slow client slows only itself.
struct Pieces(Sender<SaveImagesResponse>);

/// What one message carries.
const PIECE: usize = 64 << 10;

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let message = SaveImagesResponse { archive: Bytes::copy_from_slice(piece) };
        let sent = self.0.blocking_send(Ok(message));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away"))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
