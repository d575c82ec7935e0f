//! A pod on paper: plugins are asked about it as the daemon would ask, and nothing is run.
//!
//! ```text
//!   Step, Step, ... --> records, spec --> describe --> Nri --> plugins
//!                        (as the daemon's)               `--> adjust --> Adjusted
//!                                          Paper <-- updates and evictions of others
//! ```
//!
//! The host and the handler are ideal: they can do all that can be asked for. Records, their
//! phases, the spec, what plugins see of it and what becomes of their answers are made by the
//! code that the daemon runs; only what is looked up on a host is made up.
//!
//! **Invariant:** touches nothing outside this process but the plugins it starts.

mod paper;

use std::sync::Arc;

use base::{Digest, Id};
use jiff::Timestamp;
use nri::{Ask, Nri, RuntimeInfo, Settings, State, Watch};
use oci::{ImageFacts, Resources};
use serde::{Deserialize, Serialize};

use self::paper::{Paper, Sheet};
use crate::{
    error::{EngineError, Result},
    phase::{ContainerEvent, ContainerPhase, PodEvent, PodPhase},
    plugins::{Adjusted, adjust, describe},
    record::{ContainerRecord, Made, PinnedImage, PodRecord},
    request::{NewContainer, PodRequest},
};

/// One event in the life of the pod. A sequence of them is a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", deny_unknown_fields)]
pub enum Step {
    RunPodSandbox {
        pod: Box<PodRequest>,
    },
    UpdatePodSandbox {
        #[serde(default)]
        overhead: Box<Resources>,
        #[serde(default)]
        resources: Box<Resources>,
    },
    PostUpdatePodSandbox,
    CreateContainer {
        container: Box<NewContainer>,
    },
    /// From here on containers go by the names they have in the pod.
    PostCreateContainer {
        container: String,
    },
    StartContainer {
        container: String,
    },
    PostStartContainer {
        container: String,
    },
    UpdateContainer {
        container: String,
        resources: Box<Resources>,
    },
    PostUpdateContainer {
        container: String,
    },
    StopContainer {
        container: String,
        #[serde(default)]
        exit_code: i32,
    },
    RemoveContainer {
        container: String,
    },
    StopPodSandbox,
    RemovePodSandbox,
}

/// What came of a creation.
#[derive(Clone, Debug)]
pub struct Creation {
    pub adjusted: Adjusted,
    /// What all plugins together asked for.
    pub merged: serde_json::Value,
}

/// Plugins, and the pod they are asked about.
#[derive(Debug)]
pub struct Simulation {
    nri: Nri,
    paper: Arc<Paper>,
}

impl Step {
    /// From the first event of a pod to the last, container by container.
    pub fn life(pod: PodRequest, containers: Vec<NewContainer>) -> Vec<Self> {
        let names: Vec<_> = containers.iter().map(|c| c.container.name.clone()).collect();
        let mut steps = vec![Self::RunPodSandbox { pod: Box::new(pod) }];
        for new in containers {
            let container = new.container.name.clone();
            steps.push(Self::CreateContainer { container: Box::new(new) });
            steps.push(Self::PostCreateContainer { container: container.clone() });
            steps.push(Self::StartContainer { container: container.clone() });
            steps.push(Self::PostStartContainer { container });
        }
        for container in names {
            steps.push(Self::StopContainer { container: container.clone(), exit_code: 0 });
            steps.push(Self::RemoveContainer { container });
        }
        steps.push(Self::StopPodSandbox);
        steps.push(Self::RemovePodSandbox);
        steps
    }
}

impl Simulation {
    /// Starts the plugins of the settings and waits until each has joined or failed; the
    /// watcher has seen it all.
    ///
    /// Not cancel safe: some plugins may be started and others not.
    pub async fn open(settings: Settings) -> Result<(Self, Watch)> {
        let info = RuntimeInfo::new("longshore", env!("CARGO_PKG_VERSION"));
        let nri = Nri::new(settings, info).map_err(|e| EngineError::invalid("plugins", e))?;
        let watch = nri.watch();
        let paper = Arc::new(Paper::new());
        nri.add_domain(Arc::clone(&paper) as Arc<dyn nri::Domain>, &[], &[]);
        let started = nri.start().await;
        started.map_err(|e| EngineError::failed("start plugins", base::Kind::Internal, &e))?;
        Ok((Self { nri, paper }, watch))
    }

    pub fn plugins(&self) -> Vec<nri::PluginStatus> {
        self.nri.plugins()
    }

    /// Ends the plugins.
    pub async fn close(self) {
        self.nri.shutdown().await;
    }

    /// Does one step, and returns when all plugins know. Of a creation says what came of it.
    /// After an error the pod is as it was before the step.
    ///
    /// Not cancel safe: the step may be done or not.
    pub async fn act(&self, step: &Step) -> Result<Option<Box<Creation>>> {
        let done = match step {
            Step::CreateContainer { container } => {
                self.create(container).await.map(Box::new).map(Some)
            }
            step => self.tell(step).await.map(|()| None),
        };
        self.tell_evictions().await;
        // What nobody waits for is on its way still.
        self.nri.idle().await;
        done
    }

    async fn tell(&self, step: &Step) -> Result<()> {
        let ask = Ask::default();
        match step {
            Step::RunPodSandbox { pod } => return self.run_pod(pod).await,
            Step::UpdatePodSandbox { overhead, resources } => {
                let limits = (describe::limits(overhead), describe::limits(resources));
                let pod = self.paper.described_pod()?;
                self.nri.update_pod(&pod, limits.0.as_ref(), limits.1.as_ref(), &ask).await?;
                self.paper.with_pod(|pod| {
                    pod.overhead = Resources::clone(overhead);
                    pod.resources = Resources::clone(resources);
                })?;
            }
            Step::PostUpdatePodSandbox => {
                self.nri.post_update_pod(&self.paper.described_pod()?).await;
            }
            Step::StopPodSandbox => {
                self.nri.stop_pod(&self.paper.described_pod()?, &ask).await?;
                let stopped = PodEvent::Stopped { at: Timestamp::now() };
                self.paper
                    .with_pod(|pod| pod.phase.on(&stopped).map(|phase| pod.phase = phase))??;
            }
            Step::RemovePodSandbox => {
                self.nri.remove_pod(&self.paper.described_pod()?).await;
                self.paper.clear();
            }
            step => self.tell_of_container(step, &ask).await?,
        }
        Ok(())
    }

    async fn tell_of_container(&self, step: &Step, ask: &Ask) -> Result<()> {
        let (paper, nri, now) = (&self.paper, &self.nri, Timestamp::now());
        match step {
            Step::PostCreateContainer { container } => {
                let (pod, container) = paper.both(container)?;
                nri.post_create_container(&pod, &container).await;
            }
            Step::StartContainer { container: name } => {
                paper.moved(name, &ContainerEvent::Starting)?;
                let (pod, mut container) = paper.both(name)?;
                let pid = paper.pid_of(name)?;
                container.pid = Some(pid);
                let asked = nri.start_container(&pod, &container, ask).await;
                let event = match &asked {
                    Ok(()) => ContainerEvent::Started { pid, at: now },
                    Err(error) => {
                        let message = base::Chain(error).to_string();
                        ContainerEvent::StartFailed { at: now, message }
                    }
                };
                paper.moved(name, &event)?;
                asked?;
            }
            Step::PostStartContainer { container } => {
                let (pod, container) = paper.both(container)?;
                nri.post_start_container(&pod, &container).await;
            }
            Step::UpdateContainer { container: name, resources } => {
                let (pod, container) = paper.both(name)?;
                let linux = oci::to_linux(resources)?;
                let asked = nri::Resources { linux, ..nri::Resources::default() };
                let asked = nri.update_container(&pod, &container, &asked, ask).await?;
                paper.change(&container.id, &asked)?;
            }
            Step::PostUpdateContainer { container } => {
                let (pod, container) = paper.both(container)?;
                nri.post_update_container(&pod, &container).await;
            }
            Step::StopContainer { container, exit_code } => {
                paper.ended(container, *exit_code, now)?;
                self.tell_stop(container).await?;
            }
            Step::RemoveContainer { container } => {
                let (pod, mut described) = paper.both(container)?;
                described.state = State::Stopped;
                nri.remove_container(&pod, &described).await;
                paper.forget(container);
            }
            _ => {}
        }
        Ok(())
    }

    async fn run_pod(&self, request: &PodRequest) -> Result<()> {
        let pod = PodRecord {
            selinux_categories: None,
            id: paper::id(0),
            request: request.clone(),
            handler: request.handler.clone(),
            phase: PodPhase::Making { step: "plugins".to_owned() }.on(&PodEvent::Made)?,
            created_at: Timestamp::now(),
            delivered: true,
            pid1: None,
            pid_namespace: None,
            ips: Vec::new(),
            last_ips: Vec::new(),
            overhead: request.overhead.clone(),
            resources: request.resources.clone(),
        };
        self.nri.run_pod(&self.paper.describe(&pod), &Ask::default()).await?;
        self.paper.begin(pod)
    }

    async fn create(&self, new: &NewContainer) -> Result<Creation> {
        let pod = self.paper.pod()?;
        let mut record = self.paper.new_container(&pod, new)?;
        let spec = Arc::new(self.paper.spec(&pod, &record)?);
        let described = describe::container(&record, spec);
        let host = Arc::new(paper::Ideal);
        let (pod, limits) = (self.paper.describe(&pod), self.paper.limits());
        let adjusted = adjust(&self.nri, &pod, &described, host, limits).await?;
        record.made.resources = oci::resources_of(&adjusted.spec);
        record.made.block_io_class = adjusted.block_io_class.clone().filter(|c| !c.is_empty());
        record.made.rdt_class = adjusted.rdt_class.clone().filter(|c| !c.is_empty());
        record.phase = record.phase.on(&ContainerEvent::Made)?;
        self.paper.add(Sheet { record, spec: adjusted.spec.clone() });
        let journal = self.nri.journal(&described.id).unwrap_or_default();
        Ok(Creation { adjusted, merged: journal.merged() })
    }

    async fn tell_stop(&self, name: &str) -> Result<()> {
        let (pod, mut described) = self.paper.both(name)?;
        described.state = State::Stopped;
        described.pid = None;
        Ok(self.nri.stop_container(&pod, &described, &Ask::default()).await?)
    }

    /// Containers that plugins wanted gone have ended, which is told like any end.
    async fn tell_evictions(&self) {
        for name in self.paper.evicted() {
            if let Err(error) = self.tell_stop(&name).await {
                tracing::warn!(name, error = %base::Chain(&error), "StopContainer after an eviction");
            }
        }
    }
}

/// An image of which nothing is known but its name.
fn image(name: &str) -> PinnedImage {
    PinnedImage {
        id: Digest::sha256([0; 32]),
        name: name.to_owned(),
        repo_digest: String::new(),
        facts: ImageFacts { name: name.to_owned(), ..ImageFacts::default() },
        chain: Vec::new(),
    }
}

/// As the engine's, with the id of its place in the pod.
fn record(pod: &PodRecord, id: Id, new: &NewContainer) -> ContainerRecord {
    ContainerRecord {
        id,
        pod: pod.id,
        name: new.full_name(&pod.request.name),
        request: new.clone(),
        image: image(&new.image.reference),
        phase: ContainerPhase::Making { step: "plugins".to_owned() },
        created_at: Timestamp::now(),
        delivered: true,
        log_path: None,
        made: Made::default(),
        stop_told: false,
        evicted: None,
    }
}
