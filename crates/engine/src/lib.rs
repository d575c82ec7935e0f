//! Pods, containers and images: all policy, and no wire type of any front end.
//!
//! ```text
//!  front ends ──> Engine ──┬── reads: straight from the store's memory
//!                          └── changes: to the pod's owner task, which alone moves the
//!                              pod and its containers; the work runs in child tasks
//! ```
//!
//! **Invariants**
//! - One owner per pod. It awaits its mailbox and the journal, never a shim, a plugin, a
//!   registry or a CNI program: it takes a stop at any time.
//! - A caller that goes away changes nothing: what it began is finished or undone.
//! - Nothing half-made is visible, nothing is left behind.

mod crash;
mod error;
pub mod health;
mod names;
pub mod phase;
pub mod record;
pub mod request;
mod stages;
mod steps;
pub mod view;

use std::{sync::Arc, time::Duration};

use base::Id;
pub use error::{EngineError, Result};
use health::Health;
use oci::{ExecRequest, Resources};
use record::{ContainerRecord, PodRecord};
use request::{NewContainer, PodRequest};
pub use stages::Stage;
use view::{ContainerFilter, ExecOutput, PodFilter, PodView};

/// The engine that both front ends call. Ids may be given as unique prefixes.
#[derive(Debug)]
pub struct Engine {
    health: Health,
}

impl Engine {
    pub fn new() -> Self {
        let health = Health::default();
        health.runtime.fail("PodsNotSupported", "this version of the engine runs no pods");
        health.network.fail("NetworkPluginNotReady", "no CNI configuration is loaded");
        Self { health }
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Makes a pod that is ready when this returns. A request with the name of one in
    /// flight waits for that one. Cancel safe: the work goes on.
    pub async fn run_pod(&self, _request: PodRequest) -> Result<Id> {
        Err(EngineError::Unimplemented("RunPodSandbox"))
    }

    /// Kills its containers and releases what it holds; of a stopped one, nothing.
    /// Cancel safe.
    pub async fn stop_pod(&self, _id: &str) -> Result<()> {
        Err(EngineError::Unimplemented("StopPodSandbox"))
    }

    /// Stops it and forgets it with its containers. Cancel safe.
    pub async fn remove_pod(&self, _id: &str) -> Result<()> {
        Err(EngineError::Unimplemented("RemovePodSandbox"))
    }

    pub fn pod(&self, id: &str) -> Result<PodView> {
        Err(EngineError::NotFound { what: "pod", id: id.to_owned() })
    }

    pub fn pods(&self, _filter: &PodFilter) -> Vec<Arc<PodRecord>> {
        Vec::new()
    }

    /// For people who debug: what the pod is made of, as JSON. Reads files.
    pub async fn pod_details(&self, _id: &str) -> Result<serde_json::Value> {
        Err(EngineError::Unimplemented("PodSandboxStatus"))
    }

    /// Cancel safe: the work goes on, and a retry joins it.
    pub async fn create_container(&self, _pod: &str, _request: NewContainer) -> Result<Id> {
        Err(EngineError::Unimplemented("CreateContainer"))
    }

    /// Cancel safe.
    pub async fn start_container(&self, _id: &str) -> Result<()> {
        Err(EngineError::Unimplemented("StartContainer"))
    }

    /// The stop signal, then SIGKILL after `grace`. Returns when the exit is on record.
    /// Cancel safe: a caller that gives up within the grace causes no SIGKILL.
    pub async fn stop_container(&self, _id: &str, _grace: Duration) -> Result<()> {
        Err(EngineError::Unimplemented("StopContainer"))
    }

    /// Kills it if it runs, and forgets it. Its log file stays. Cancel safe.
    pub async fn remove_container(&self, _id: &str) -> Result<()> {
        Err(EngineError::Unimplemented("RemoveContainer"))
    }

    pub fn container(&self, id: &str) -> Result<Arc<ContainerRecord>> {
        Err(EngineError::NotFound { what: "container", id: id.to_owned() })
    }

    pub fn containers(&self, _filter: &ContainerFilter) -> Vec<Arc<ContainerRecord>> {
        Vec::new()
    }

    /// For people who debug: the runtime spec and the rest, as JSON. Reads files.
    pub async fn container_details(&self, _id: &str) -> Result<serde_json::Value> {
        Err(EngineError::Unimplemented("ContainerStatus"))
    }

    /// What is absent stays as it is. Cancel safe.
    pub async fn update_container(&self, _id: &str, _resources: Resources) -> Result<()> {
        Err(EngineError::Unimplemented("UpdateContainerResources"))
    }

    /// Cancel safe.
    pub async fn reopen_log(&self, _id: &str) -> Result<()> {
        Err(EngineError::Unimplemented("ReopenContainerLog"))
    }

    /// Runs a command to its end; each stream is cut at 16 MiB. Past `limit` it is killed
    /// and the error is of kind `Deadline`. A caller that goes away kills it too.
    pub async fn exec_sync(
        &self,
        _id: &str,
        _request: ExecRequest,
        _limit: Option<Duration>,
    ) -> Result<ExecOutput> {
        Err(EngineError::Unimplemented("ExecSync"))
    }

    /// What is in flight now.
    pub fn stages(&self) -> Vec<Stage> {
        Vec::new()
    }

    /// Who owns the cgroups of all pods.
    pub fn cgroup_driver(&self) -> oci::CgroupDriver {
        oci::CgroupDriver::Cgroupfs
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}
