//! How far a pull has come, for whoever cares to look.
//!
//! Readers look as often as they like; nothing queues and nothing waits for them.

use std::sync::Arc;

use base::Digest;
use parking_lot::Mutex;

use crate::layer::Board;

/// Made by the caller, given to the pull, read from anywhere.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Vec<Part>>);

#[derive(Debug)]
struct Part {
    digest: Digest,
    size: u64,
    stage: Stage,
    board: Option<Arc<Board>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// For its turn.
    Waiting,
    /// Arriving, and unpacked as it arrives.
    Pulling,
    /// All is here; unpacking goes on.
    Unpacking,
    Done,
}

/// One layer at the moment of looking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    pub digest: Digest,
    pub size: u64,
    /// Compressed bytes that are here.
    pub here: u64,
    pub stage: Stage,
}

impl Progress {
    /// Lowest layer first; empty until the manifest is known.
    pub fn layers(&self) -> Vec<LayerProgress> {
        self.0.lock().iter().map(Part::look).collect()
    }

    pub(crate) fn begin<'a>(&self, layers: impl Iterator<Item = (&'a Digest, u64)>) {
        let part = |(digest, size): (&Digest, u64)| Part {
            digest: digest.clone(),
            size,
            stage: Stage::Waiting,
            board: None,
        };
        *self.0.lock() = layers.map(part).collect();
    }

    pub(crate) fn watch(&self, layer: usize, board: &Arc<Board>) {
        self.change(layer, |part| part.board = Some(Arc::clone(board)));
    }

    /// All its bytes were here from the start.
    pub(crate) fn unpacking(&self, layer: usize) {
        self.change(layer, |part| part.stage = Stage::Unpacking);
    }

    pub(crate) fn done(&self, layer: usize) {
        self.change(layer, |part| part.stage = Stage::Done);
    }

    fn change(&self, layer: usize, change: impl FnOnce(&mut Part)) {
        if let Some(part) = self.0.lock().get_mut(layer) {
            change(part);
        }
    }
}

impl Part {
    fn look(&self) -> LayerProgress {
        let arrived = self.board.as_ref().map_or(0, |board| board.here());
        let (here, stage) = match self.stage {
            Stage::Waiting if arrived == 0 => (0, Stage::Waiting),
            Stage::Waiting | Stage::Pulling if arrived < self.size => (arrived, Stage::Pulling),
            Stage::Waiting | Stage::Pulling | Stage::Unpacking => (self.size, Stage::Unpacking),
            Stage::Done => (self.size, Stage::Done),
        };
        LayerProgress { digest: self.digest.clone(), size: self.size, here, stage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{digest::sha256, layer::Arrival};

    #[test]
    fn a_layer_goes_through_its_stages() {
        let progress = Progress::default();
        assert_eq!(progress.layers(), []);
        let digest = sha256(b"x");
        progress.begin([(&digest, 10)].into_iter());
        let check = |here, stage| {
            let got = progress.layers().remove(0);
            assert_eq!((got.here, got.stage), (here, stage));
        };
        check(0, Stage::Waiting);
        let (arrival, board) = (Arc::new(Arrival::new()), Arc::new(Board::default()));
        progress.watch(0, &board);
        board.show(&arrival);
        arrival.advance(4);
        check(4, Stage::Pulling);
        arrival.advance(10);
        check(10, Stage::Unpacking);
        progress.done(0);
        check(10, Stage::Done);
        progress.done(7);
    }
}
