//! What shims tell without being asked.
//!
//! They give up on a daemon that is away for some seconds, so that nothing may depend on
//! hearing it: exits are learnt by waiting. What counts is that the OOM killer was there,
//! which a shim may see and we, reading the cgroup afterwards, may not.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_shim::{
    events::TaskOom,
    forward::{Events as Service, EventsServer, ForwardRequest},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::UnixListener;
use tokio_util::task::TaskTracker;
use ttrpc::{Server, ServerContext, Status};

use crate::ShimError;

/// Containers whose end is still to be collected; more are a shim gone mad.
const MOST: usize = 4096;

/// The server, and what it heard. Dropping the last clone of [`Ooms`] forgets it.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) socket: PathBuf,
    pub(crate) ooms: Ooms,
    server: Server,
    tasks: TaskTracker,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ooms(Arc<Mutex<BTreeSet<String>>>);

impl Events {
    /// A socket that a dead daemon left is replaced.
    pub(crate) fn serve(socket: &Path) -> Result<Self, ShimError> {
        let doing = || ShimError::io(format!("listen on {}", socket.display()));
        match std::fs::remove_file(socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(doing()(e)),
            _ => {}
        }
        let listener = UnixListener::bind(socket).map_err(doing())?;
        std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600)).map_err(doing())?;
        let ooms = Ooms::default();
        let server = Server::builder().service(EventsServer::new(ooms.clone())).build();
        let (tasks, serving) = (TaskTracker::new(), server.clone());
        tasks.spawn(async move {
            if let Err(error) = serving.serve(listener).await {
                tracing::error!(%error, "events of shims are not heard any more");
            }
        });
        tasks.close();
        Ok(Self { socket: socket.to_owned(), ooms, server, tasks })
    }

    pub(crate) async fn close(&self) {
        self.server.abort();
        self.tasks.wait().await;
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Ooms {
    pub(crate) fn has(&self, container: &str) -> bool {
        self.0.lock().contains(container)
    }

    pub(crate) fn forget(&self, container: &str) {
        self.0.lock().remove(container);
    }

    fn note(&self, container: String) {
        let mut all = self.0.lock();
        if all.len() < MOST {
            all.insert(container);
        }
    }
}

impl Service for Ooms {
    async fn forward(&self, _: ServerContext, request: ForwardRequest) -> Result<(), Status> {
        let envelope = request.envelope.unwrap_or_default();
        tracing::debug!(topic = envelope.topic, "event of a shim");
        if let ("/tasks/oom", Some(event)) = (envelope.topic.as_str(), envelope.event) {
            let bad = |e: prost::DecodeError| Status::invalid_argument(e.to_string());
            self.note(TaskOom::decode(&event.value[..]).map_err(bad)?.container_id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use api_shim::{forward::EventsClient, types::Envelope};
    use prost_types::Any;
    use tokio::net::UnixStream;
    use ttrpc::{Client, Context};

    use super::*;

    async fn client(events: &Events) -> EventsClient {
        EventsClient::new(Client::new(UnixStream::connect(&events.socket).await.unwrap()))
    }

    fn event(topic: &str, value: Vec<u8>) -> ForwardRequest {
        let event = Some(Any { type_url: "containerd.events.TaskOOM".to_owned(), value });
        let envelope = Envelope { topic: topic.to_owned(), event, ..Envelope::default() };
        ForwardRequest { envelope: Some(envelope) }
    }

    #[tokio::test]
    async fn ooms_are_remembered_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("e");
        std::fs::write(&socket, "left by a dead daemon").unwrap();
        let events = Events::serve(&socket).unwrap();
        let client = client(&events).await;
        let oom = TaskOom { container_id: "c".to_owned() }.encode_to_vec();
        client.forward(&Context::new(), &event("/tasks/exit", oom.clone())).await.unwrap();
        assert!(!events.ooms.has("c"));
        client.forward(&Context::new(), &event("/tasks/oom", oom)).await.unwrap();
        assert!(events.ooms.has("c"));
        events.ooms.forget("c");
        assert!(!events.ooms.has("c"));
        assert!(client.forward(&Context::new(), &event("/tasks/oom", vec![9])).await.is_err());
        events.close().await;
        assert!(!socket.exists());
    }
}
