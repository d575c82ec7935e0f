//! What a fake runtime serves.

use std::{collections::BTreeSet, sync::Arc};

use nri_wire::api::{
    Empty, RegisterPluginRequest, Runtime, UpdateContainersRequest, UpdateContainersResponse,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use ttrpc::{ServerContext, Status};

use crate::Changes;

/// What came from the plugin, and what is to fail.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) changes: Vec<Changes>,
    pub(super) refused: BTreeSet<String>,
}

pub(super) struct Service {
    /// Room for one: a second registration on a connection is a mistake.
    registered: mpsc::Sender<RegisterPluginRequest>,
    received: Arc<Mutex<Received>>,
}

impl Service {
    pub(super) fn new(
        received: Arc<Mutex<Received>>,
    ) -> (Self, mpsc::Receiver<RegisterPluginRequest>) {
        let (registered, registrations) = mpsc::channel(1);
        (Self { registered, received }, registrations)
    }
}

impl Runtime for Service {
    async fn register_plugin(
        &self,
        _: ServerContext,
        request: RegisterPluginRequest,
    ) -> Result<Empty, Status> {
        let again = |_| Status::already_exists("the connection has a plugin already");
        self.registered.try_send(request).map_err(again)?;
        Ok(Empty {})
    }

    async fn update_containers(
        &self,
        _: ServerContext,
        request: UpdateContainersRequest,
    ) -> Result<UpdateContainersResponse, Status> {
        let mut received = self.received.lock();
        let refused = |update: &&nri_wire::api::ContainerUpdate| {
            received.refused.contains(&update.container_id) && !update.ignore_failure
        };
        let failed = request.update.iter().filter(refused).cloned().collect();
        received.changes.push(request.into());
        Ok(UpdateContainersResponse { failed })
    }
}
