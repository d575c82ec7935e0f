//! What is in flight, and how far it is.

use std::{collections::BTreeMap, sync::Arc};

use base::Id;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::crash::{self, Moment};

/// One operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    pub id: Id,
    pub operation: &'static str,
    /// The step it is at.
    pub step: &'static str,
    /// When the operation began.
    pub since: Timestamp,
}

/// All operations in flight; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stages(Arc<Mutex<BTreeMap<Id, Stage>>>);

/// Leaves the list when the operation ends, however it ends.
#[derive(Debug)]
pub(crate) struct Entered {
    stages: Stages,
    id: Id,
    operation: &'static str,
}

impl Stages {
    pub(crate) fn enter(&self, id: Id, operation: &'static str) -> Entered {
        let stage = Stage { id, operation, step: "queued", since: Timestamp::now() };
        self.0.lock().insert(id, stage);
        Entered { stages: self.clone(), id, operation }
    }

    pub(crate) fn list(&self) -> Vec<Stage> {
        self.0.lock().values().copied().collect()
    }
}

impl Entered {
    /// The operation comes to `step`, with nothing of it done yet.
    pub(crate) fn at(&self, step: &'static str) {
        if let Some(stage) = self.stages.0.lock().get_mut(&self.id) {
            stage.step = step;
        }
        crash::point(self.operation, step, Moment::Intended);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.stages.0.lock().remove(&self.id);
    }
}
