//! From a request to a ready pod.

use std::sync::Arc;

use base::Id;
use shim_client::Shim;

use super::files;
use crate::{
    controller::{Controller, Own},
    error::Result,
    files::blocking,
    phase::PodEvent,
    record::PodRecord,
    shared::Shared,
    stages::Stages,
    steps::Plan,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Files,
    Shim,
}

/// Works on a record that nobody else writes while it is being made.
#[derive(Debug)]
pub(crate) struct MakePod {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pod: PodRecord,
    pub(crate) shim: Option<Arc<Shim>>,
}

impl Plan for MakePod {
    type Step = Step;

    const OPERATION: &'static str = "run-pod";
    const STEPS: &'static [Step] = &[Step::Files, Step::Shim];

    fn name(step: Step) -> &'static str {
        match step {
            Step::Files => "files",
            Step::Shim => "shim",
        }
    }

    fn id(&self) -> Id {
        self.pod.id
    }

    fn stages(&self) -> &Stages {
        &self.shared.stages
    }

    async fn intend(&mut self, step: Step) -> Result<()> {
        self.pod.phase = self.pod.phase.on(&PodEvent::Begun { step: Self::name(step) })?;
        self.shared.pods.put(self.pod.clone()).await?;
        Ok(())
    }

    async fn act(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Files => {
                let (layout, pod) = (self.shared.layout.clone(), self.pod.clone());
                blocking(move || files::make(&layout, &pod.id, &pod.request)).await
            }
            Step::Shim => {
                let shim = Own(&self.shared).start(&self.pod).await?;
                self.pod.pid1 = shim.info().pod_pid;
                self.shim = Some(shim);
                Ok(())
            }
        }
    }

    async fn complete(&mut self) -> Result<()> {
        let phase = self.pod.phase.on(&PodEvent::Made)?;
        let made = PodRecord { phase, ..self.pod.clone() };
        self.shared.pods.put(made.clone()).await?;
        self.pod = made;
        Ok(())
    }

    async fn undo(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Files => {
                let (layout, id) = (self.shared.layout.clone(), self.pod.id);
                blocking(move || files::remove(&layout, &id)).await
            }
            Step::Shim => Own(&self.shared).stop(&self.pod).await,
        }
    }
}
