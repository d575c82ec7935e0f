//! From a request to a ready pod.
//!
//! ```text
//!   directory ──> shim, with the namespaces ──> CNI ADD beside the pod's files ──> ready
//!                 or the namespaces alone                        └─> and then the shim
//! ```

use std::{sync::Arc, time::Duration};

use base::Id;
use shim_client::Shim;

use super::{files, remove::remove_cgroup};
use crate::{
    container::labels,
    controller::{self, Controller, Keeper},
    error::Result,
    files::blocking,
    network,
    phase::PodEvent,
    record::PodRecord,
    shared::Shared,
    stages::Stages,
    steps::Plan,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Directory,
    Shim,
    /// And beside it the files, which take no time.
    Network,
    /// The shim, if it is one that wants to find the network.
    StartShim,
    /// Plugins agree that it may be ready.
    Plugins,
}

/// Works on a record that nobody else writes while it is being made.
#[derive(Debug)]
pub(crate) struct MakePod {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pod: PodRecord,
    pub(crate) shim: Option<Arc<Shim>>,
    /// How long its undo waits for CNI programs.
    pub(crate) patience: Duration,
}

impl MakePod {
    pub(crate) fn new(shared: &Arc<Shared>, pod: &PodRecord, patience: Duration) -> Self {
        Self { shared: Arc::clone(shared), pod: pod.clone(), shim: None, patience }
    }

    fn kept_by(&mut self, shim: Arc<Shim>) {
        let info = shim.info();
        self.pod.pid1 = info.pod_pid;
        self.pod.pid_namespace = info.pod_pid.and(info.namespaces.pid_pin.clone());
        self.shim = Some(shim);
    }
}

impl Plan for MakePod {
    type Step = Step;

    const OPERATION: &'static str = "run-pod";
    const STEPS: &'static [Step] =
        &[Step::Directory, Step::Shim, Step::Network, Step::StartShim, Step::Plugins];

    fn name(step: Step) -> &'static str {
        match step {
            Step::Directory => "directory",
            Step::Shim => "shim",
            Step::Network => "network",
            Step::StartShim => "start-shim",
            Step::Plugins => "plugins",
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
            Step::Directory => {
                let (layout, pod) = (self.shared.layout.clone(), self.pod.clone());
                blocking(move || files::make_dirs(&layout, &pod.id, &pod.request)).await
            }
            Step::Shim => {
                let keeper = Keeper::by_handler(&self.shared, &self.pod)?;
                if let Some(shim) = keeper.create(&self.pod).await? {
                    self.kept_by(shim);
                }
                Ok(())
            }
            Step::Network => {
                let (layout, pod) = (self.shared.layout.clone(), self.pod.clone());
                let label = labels::of_pod(&self.shared, &pod);
                let files = blocking(move || files::make(&layout, &pod, label.as_deref()));
                // An ADD that is given up here is stopped by the undo.
                let attached = network::attach(&self.shared, &self.pod);
                let ((), ips) = tokio::try_join!(files, attached)?;
                self.pod.ips = ips;
                Ok(())
            }
            Step::StartShim => {
                if self.shim.is_none() {
                    let keeper = Keeper::by_handler(&self.shared, &self.pod)?;
                    let shim = keeper.start(&self.pod).await?;
                    self.kept_by(shim);
                }
                Ok(())
            }
            Step::Plugins => self.shared.plugins.run_pod(&self.shared, &self.pod).await,
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
            Step::Directory => {
                let (layout, id) = (self.shared.layout.clone(), self.pod.id);
                blocking(move || files::remove(&layout, &id)).await
            }
            Step::Shim => {
                controller::bury(&self.shared, &self.pod).await?;
                network::release(&self.shared, &self.pod).await?;
                remove_cgroup(&self.shared, &self.pod).await
            }
            Step::Network => {
                network::detach(&self.shared, &self.pod, self.patience).await;
                Ok(())
            }
            // The network namespace outlives its shim, for the detaching.
            Step::StartShim => controller::bury(&self.shared, &self.pod).await.map(drop),
            Step::Plugins => {
                self.shared.plugins.undo_pod(&self.shared, &self.pod).await;
                Ok(())
            }
        }
    }
}
