//! How a plugin becomes part of the set: it registers, is configured, gets its place in the
//! order, and is told what exists.
//!
//! Each connection goes through this in a task of its own, so that a silent one delays
//! nobody. The plugin may call us from the first moment; before it has its place all but
//! registering is refused.

use std::{
    io,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use nri_wire::{EventMask, IdentityError, InvalidMask, PluginId, Trunk, api::*, defaults};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};
use tracing::{info, warn};
use ttrpc::{Context, ServerContext, Status};

use super::{Shared, State, sync::SyncError};
use crate::{
    Claimant, Updating,
    model::Member,
    peer::{Introduction, Origin, Peer, Scope, Treatment},
    settings::{Duplicates, Settings},
    watch::whole,
};

/// Why a plugin is not part of the set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    #[error("plugin registration timed out")]
    NotRegistered,
    #[error("connection closed")]
    Closed,
    #[error("register the socket of a plugin with the runtime")]
    Socket(#[source] io::Error),
    #[error("registration refused")]
    Refused(#[source] Status),
    #[error("configure plugin {plugin}")]
    Configure {
        plugin: PluginId,
        #[source]
        source: ttrpc::Error,
    },
    #[error("plugin {plugin}")]
    Events {
        plugin: PluginId,
        #[source]
        source: InvalidMask,
    },
    #[error("synchronize plugin {plugin}")]
    Sync {
        plugin: PluginId,
        #[source]
        source: SyncError,
    },
}

/// A connection before anything was said on it.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// Known where we started it; whoever connects says who it is.
    pub(super) id: Option<PluginId>,
    pub(super) config: String,
    pub(super) origin: Origin,
    pub(super) scope: Scope,
    /// What it called itself when it registered, `NN-name`.
    pub(super) claimed: Arc<OnceLock<String>>,
}

/// How long a refusal may take to reach the plugin before the connection is closed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Its policy and time limit by the settings.
pub(super) fn treatment(settings: &Settings, id: &PluginId) -> Treatment {
    let policy = settings.policy(id);
    let limit = policy.request_timeout.unwrap_or(settings.request_timeout);
    let sync_limit = policy.synchronize_timeout.unwrap_or(settings.synchronize_timeout);
    Treatment { policy, limit, sync_limit }
}

/// Takes a connection in, over which `connect` serves what the plugin may call. Returns when the
/// plugin is synchronised.
///
/// Not cancel safe: dropped late, it leaves the plugin in the set.
pub(super) async fn join(
    shared: &Arc<Shared>,
    connect: impl FnOnce(Desk) -> (PluginClient, Trunk),
    arrival: Arrival,
) -> Result<Arc<Peer>, JoinError> {
    let (registered, registration) = oneshot::channel();
    let peer_cell = Arc::new(OnceLock::new());
    let desk = Desk {
        shared: Arc::downgrade(shared),
        arrival: arrival.clone(),
        registered: Mutex::new(Some(registered)),
        peer: Arc::clone(&peer_cell),
    };
    let (client, trunk) = connect(desk);
    let limit = shared.settings.load().registration_timeout;
    let (id, version) = tokio::select! {
        id = timeout(limit, registration) => match id {
            Ok(Ok(Ok(known))) => known,
            Ok(Ok(Err(status))) => {
                let _ = timeout(LAST_WORDS, trunk.shutdown()).await;
                return Err(JoinError::Refused(status));
            }
            Ok(Err(_)) => return Err(JoinError::Closed),
            Err(_) => return Err(JoinError::NotRegistered),
        },
        _ = trunk.closed() => return Err(JoinError::Closed),
    };
    let treatment = treatment(&shared.settings.load(), &id);
    let answer = configure(shared, &client, &arrival, &treatment).await;
    let answer = answer.map_err(|source| JoinError::Configure { plugin: id.clone(), source })?;
    let mask = EventMask::from_wire(answer.events)
        .map_err(|source| JoinError::Events { plugin: id.clone(), source })?;
    let intro = Introduction {
        id,
        origin: arrival.origin,
        scope: arrival.scope,
        version,
        events: mask,
        by_default: answer.events == 0,
        wishes: answer.failure_policy.unwrap_or_default(),
        treatment,
    };
    let peer = Arc::new(Peer::new(intro, client, trunk, &shared.metrics, shared.mailbag.clone()));
    let _ = peer_cell.set(Arc::downgrade(&peer));
    enter(shared, &peer).await?;
    Ok(peer)
}

/// Stays with a plugin until it is gone.
///
/// Not cancel safe: dropped, nobody notices that the plugin goes.
pub(super) async fn stay(shared: &Arc<Shared>, peer: Arc<Peer>) {
    let end = peer.trunk.closed().await;
    shared.leave(&peer);
    info!(plugin = %peer.id, ?end, "plugin is gone");
}

async fn configure(
    shared: &Shared,
    client: &PluginClient,
    arrival: &Arrival,
    treatment: &Treatment,
) -> Result<ConfigureResponse, ttrpc::Error> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let request = ConfigureRequest {
        config: arrival.config.clone(),
        runtime_name: shared.info.name.clone(),
        runtime_version: shared.info.version.clone(),
        registration_timeout: millis(shared.settings.load().registration_timeout),
        request_timeout: millis(treatment.limit),
        nri_version: defaults::NRI_VERSION.to_owned(),
    };
    client.configure(&Context::timeout(treatment.limit), &request).await
}

/// Gives the plugin its place, in the stead of one of its name where there is one, and waits
/// until it knows what exists.
async fn enter(shared: &Arc<Shared>, peer: &Arc<Peer>) -> Result<(), JoinError> {
    let (synced, waiting) = oneshot::channel();
    {
        let mut state = shared.state.lock();
        if shared.settings.load().duplicates == Duplicates::Replace {
            for old in state.twins(&peer.id) {
                warn!(plugin = %old.id, "plugin is replaced by one that registered under its name");
                shared.leave_at(&mut state, &old);
            }
        }
        let policy = &peer.treatment().policy;
        let member = Member {
            id: peer.id.clone(),
            events: peer.events,
            concurrent: policy.concurrent,
            validates_updates: policy.validates_updates,
        };
        let (lane, _, actions) = state.pipeline.join(member);
        state.peers.insert(lane, Arc::clone(peer));
        state.syncing.insert(lane, synced);
        shared.deliver(&mut state, actions, None);
    }
    // Biased: a synchronisation that fails closes the trunk too, and knows why.
    tokio::select! {
        biased;
        synced = waiting => synced.unwrap_or(Err(JoinError::Closed)),
        _ = peer.trunk.closed() => {
            shared.leave(peer);
            Err(JoinError::Closed)
        }
    }
}

impl State {
    fn twins(&self, id: &PluginId) -> Vec<Arc<Peer>> {
        let twins = self.peers.values().filter(|peer| peer.id == *id && !peer.is_gone());
        twins.cloned().collect()
    }
}

/// Who it is, and its version of NRI.
type Registered = Result<(PluginId, String), Status>;

/// What one plugin can call.
pub(super) struct Desk {
    shared: Weak<Shared>,
    arrival: Arrival,
    registered: Mutex<Option<oneshot::Sender<Registered>>>,
    peer: Arc<OnceLock<Weak<Peer>>>,
}

impl Desk {
    fn identify(&self, request: &RegisterPluginRequest) -> Result<PluginId, Status> {
        let invalid = |error: IdentityError| Status::invalid_argument(error.to_string());
        let shared = self.shared.upgrade().ok_or_else(stopped)?;
        let id = match &self.arrival.id {
            // The name of the file counts, whatever the program calls itself.
            Some(id) => id.clone(),
            None => PluginId::new(&request.plugin_idx, &request.plugin_name).map_err(invalid)?,
        };
        let settings = shared.settings.load();
        self.check_origin(&id, &settings)?;
        let taken = !shared.state.lock().twins(&id).is_empty();
        match settings.duplicates == Duplicates::Reject && taken {
            true => Err(Status::already_exists(format!("plugin {id} is here already"))),
            false => Ok(id),
        }
    }

    /// Whether it is who it says it is, as far as its policy wants to know.
    fn check_origin(&self, id: &PluginId, settings: &Settings) -> Result<(), Status> {
        let policy = settings.policy(id);
        let Origin::External { pid, uid } = self.arrival.origin else { return Ok(()) };
        let refused = |why: String| Err(Status::permission_denied(format!("plugin {id}: {why}")));
        if policy.uid.is_some_and(|wanted| wanted != uid) {
            return refused(format!("must not connect as user {uid}"));
        }
        let Some(wanted) = &policy.executable else { return Ok(()) };
        let found = pid.and_then(super::listen::executable);
        match found {
            Some(found) if found == *wanted => Ok(()),
            Some(found) => refused(format!("must not connect from {}", found.display())),
            None => refused("its program is not known".to_owned()),
        }
    }

    async fn update(
        &self,
        request: UpdateContainersRequest,
    ) -> Result<UpdateContainersResponse, Status> {
        let peer = self.peer.get().and_then(Weak::upgrade);
        let peer =
            peer.ok_or_else(|| Status::failed_precondition("plugin is not registered yet"))?;
        let shared = self.shared.upgrade().ok_or_else(stopped)?;
        let operation = "UpdateContainers";
        shared.metrics.asked_for(&peer.id, operation, request.update.len(), request.evict.len());
        let (plugin, treatment) = (peer.id.to_string(), peer.treatment().clone());
        let by = Claimant { plugin: &plugin, fields: treatment.policy.fields.as_ref() };
        let mut updating = Updating::of_others("");
        updating
            .merge(by, request.update, request.evict)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (_, changes, owners) = updating.finish();
        // In a task of its own: a plugin that does not wait for the answer must not leave a
        // container half changed.
        let work = {
            let shared = Arc::clone(&shared);
            async move { shared.change_each(&plugin, &changes, &owners).await }
        };
        let done = shared.tasks.spawn(work).await;
        let (failed, refused) = done.map_err(|_| Status::internal("updating containers failed"))?;
        match refused {
            // The list of failed updates has no place for evictions, so only their failure
            // can be told.
            Some(error) if failed.is_empty() => {
                Err(Status::internal(format!("evict: {}", whole(&error))))
            }
            _ => Ok(UpdateContainersResponse { failed }),
        }
    }
}

fn stopped() -> Status {
    Status::unavailable("the runtime is stopping")
}

impl Runtime for Desk {
    async fn register_plugin(
        &self,
        _: ServerContext,
        request: RegisterPluginRequest,
    ) -> Result<Empty, Status> {
        let registered = self.registered.lock().take();
        let registered = registered
            .ok_or_else(|| Status::already_exists("this connection has registered its plugin"))?;
        let claimed = format!("{}-{}", request.plugin_idx, request.plugin_name);
        let _ = self.arrival.claimed.set(claimed);
        let id = self.identify(&request);
        let answer = id.as_ref().map(|_| Empty {}).map_err(Status::clone);
        let _ = registered.send(id.map(|id| (id, request.nri_version)));
        answer
    }

    async fn update_containers(
        &self,
        _: ServerContext,
        request: UpdateContainersRequest,
    ) -> Result<UpdateContainersResponse, Status> {
        self.update(request).await
    }
}
