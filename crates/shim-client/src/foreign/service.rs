//! The Sandbox service of a shim that makes the pod itself.
//!
//! ```text
//!   create ──> start ──> ready ──> stop, or its own end ──> shutdown: the shim ends too
//!                          └─ wait: answered at the end
//! ```

use std::{path::Path, time::Duration};

use api_shim::{
    metrics::Metrics,
    name,
    sandbox::{
        CreateSandboxRequest, PingRequest, PlatformRequest, SandboxClient, SandboxMetricsRequest,
        SandboxStatusRequest, ShutdownSandboxRequest, StartSandboxRequest, StopSandboxRequest,
        WaitSandboxRequest,
    },
};
use jiff::Timestamp;
use prost::Message;
use ttrpc::{Client, Context, Error};

use super::PodConfig;
use crate::{
    ShimError,
    own::time,
    shim::{garbled, text},
};

const READY: &str = "SANDBOX_READY";

/// Of one pod. Clones share the connection.
#[derive(Clone, Debug)]
pub struct SandboxService {
    client: SandboxClient,
    pub(crate) id: String,
}

/// What a shim says of its sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxStatus {
    /// On the host; 0 where there is none to tell.
    pub pid: u32,
    pub ready: bool,
}

/// What a sandbox uses, with all that runs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxMetrics {
    pub at: Timestamp,
    pub cpu: Duration,
    pub memory_bytes: u64,
    pub processes: u64,
}

impl SandboxService {
    pub(crate) fn new(client: Client, id: &str) -> Self {
        Self { client: SandboxClient::new(client), id: id.to_owned() }
    }

    pub(crate) async fn create(
        &self,
        limit: Duration,
        bundle: &Path,
        netns: Option<&Path>,
        config: &PodConfig,
    ) -> Result<(), ShimError> {
        let request = CreateSandboxRequest {
            sandbox_id: self.id.clone(),
            bundle_path: text(bundle.to_owned())?,
            rootfs: Vec::new(),
            options: Some(config.to_any()),
            netns_path: netns.map_or(Ok(String::new()), |path| text(path.to_owned()))?,
            annotations: config.passed_annotations.clone(),
        };
        let created = self.client.create_sandbox(&Context::timeout(limit), &request).await;
        created.map(drop).map_err(failed("CreateSandbox", limit))
    }

    /// Returns the process of the sandbox; 0 where there is none to tell.
    pub(crate) async fn start(&self, limit: Duration) -> Result<u32, ShimError> {
        let request = StartSandboxRequest { sandbox_id: self.id.clone() };
        let started = self.client.start_sandbox(&Context::timeout(limit), &request).await;
        Ok(started.map_err(failed("StartSandbox", limit))?.pid)
    }

    /// What images have to be made for: operating system and architecture. Empty where the shim
    /// does not say.
    pub async fn platform(&self, limit: Duration) -> Result<(String, String), ShimError> {
        let request = PlatformRequest { sandbox_id: self.id.clone() };
        let answer = self.client.platform(&Context::timeout(limit), &request).await;
        let platform = answer.map_err(failed("Platform", limit))?.platform.unwrap_or_default();
        Ok((platform.os, platform.architecture))
    }

    /// Without limit: ends with the sandbox, or with [`ShimError::Gone`].
    pub async fn wait(&self) -> Result<(), ShimError> {
        let request = WaitSandboxRequest { sandbox_id: self.id.clone() };
        let ended = self.client.wait_sandbox(&Context::new(), &request).await;
        ended.map(drop).map_err(failed("WaitSandbox", Duration::MAX))
    }

    pub(crate) async fn stop(&self, limit: Duration) -> Result<(), ShimError> {
        let timeout_secs = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
        let request = StopSandboxRequest { sandbox_id: self.id.clone(), timeout_secs };
        let stopped = self.client.stop_sandbox(&Context::timeout(limit), &request).await;
        stopped.map(drop).map_err(failed("StopSandbox", limit))
    }

    /// The shim ends with it.
    pub(crate) async fn shutdown(&self, limit: Duration) -> Result<(), ShimError> {
        let request = ShutdownSandboxRequest { sandbox_id: self.id.clone() };
        let ended = self.client.shutdown_sandbox(&Context::timeout(limit), &request).await;
        ended.map(drop).map_err(failed("ShutdownSandbox", limit))
    }

    pub async fn status(&self, limit: Duration) -> Result<SandboxStatus, ShimError> {
        let request = SandboxStatusRequest { sandbox_id: self.id.clone(), verbose: false };
        let answer = self.client.sandbox_status(&Context::timeout(limit), &request).await;
        let answer = answer.map_err(failed("SandboxStatus", limit))?;
        Ok(SandboxStatus { pid: answer.pid, ready: answer.state == READY })
    }

    pub async fn ping(&self, limit: Duration) -> Result<(), ShimError> {
        let request = PingRequest { sandbox_id: self.id.clone() };
        let answer = self.client.ping_sandbox(&Context::timeout(limit), &request).await;
        answer.map(drop).map_err(failed("PingSandbox", limit))
    }

    pub async fn metrics(&self, limit: Duration) -> Result<SandboxMetrics, ShimError> {
        const CALL: &str = "SandboxMetrics";
        let request = SandboxMetricsRequest { sandbox_id: self.id.clone() };
        let answer = self.client.sandbox_metrics(&Context::timeout(limit), &request).await;
        let metric = answer.map_err(failed(CALL, limit))?.metrics.unwrap_or_default();
        let data = metric.data.ok_or_else(|| garbled(CALL, "it has no figures"))?;
        // Some write a host before the name, as the type demands.
        if data.type_url.rsplit('/').next() != Some(name::METRICS_V2) {
            return Err(ShimError::Refused {
                call: CALL,
                kind: base::Kind::Unimplemented,
                message: format!("figures as {:?} are not implemented", data.type_url),
            });
        }
        let read = Metrics::decode(&*data.value).map_err(|e| garbled(CALL, &e.to_string()))?;
        Ok(SandboxMetrics {
            at: time(CALL, metric.timestamp)?,
            cpu: Duration::from_micros(read.cpu.unwrap_or_default().usage_usec),
            memory_bytes: read.memory.unwrap_or_default().usage,
            processes: read.pids.unwrap_or_default().current,
        })
    }
}

fn failed(call: &'static str, limit: Duration) -> impl FnOnce(Error) -> ShimError {
    move |error| ShimError::of_call(call, limit, error)
}
