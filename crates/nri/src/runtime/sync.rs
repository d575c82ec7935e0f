//! Telling a new plugin what exists.

use std::{sync::Arc, time::Duration};

use nri_wire::api::{
    Container, ContainerState, PodSandbox, SynchronizeRequest, SynchronizeResponse,
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Shared, State, join::JoinError};
use crate::{
    Claimant, SyncPlan, TooLarge, Updating,
    model::{Lane, Place},
    peer::Peer,
    watch::Notice,
};

/// Why a plugin could not be synchronised.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("no answer")]
    Call(#[from] ttrpc::Error),
    #[error("plugin does not handle split sync requests")]
    NoParts,
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

type World = (Vec<Arc<PodSandbox>>, Vec<Arc<Container>>);

/// Starts a synchronisation with what existed at the plugin's place.
pub(super) fn begin(shared: &Arc<Shared>, state: &mut State, lane: Lane, at: Place) {
    let Some(peer) = state.peers.get(&lane).cloned() else { return };
    let sees = |domain: &str| peer.sees(domain, shared.is_hidden(domain));
    let pods = state.pods.known_at(at).filter(|(_, pod)| sees(&pod.domain));
    let containers = state.containers.live_at(at).filter(|(_, c)| sees(&c.domain));
    let world: World = (
        pods.map(|(_, pod)| Arc::clone(&pod.wire)).collect(),
        containers.map(|(_, container)| Arc::clone(&container.wire)).collect(),
    );
    let shared = Arc::clone(shared);
    shared.tasks.clone().spawn(async move {
        let told = tell(&peer, &world).await;
        settle(&shared, lane, &peer, told).await;
    });
}

async fn settle(
    shared: &Arc<Shared>,
    lane: Lane,
    peer: &Arc<Peer>,
    told: Result<SynchronizeResponse, SyncError>,
) {
    let answer = match told {
        Ok(answer) => answer,
        Err(error) => {
            let waiting = shared.state.lock().syncing.remove(&lane);
            if let Some(waiting) = waiting {
                let _ = waiting.send(Err(JoinError::Sync(error)));
            }
            return shared.leave(peer);
        }
    };
    {
        let mut state = shared.state.lock();
        // It may have left meanwhile.
        if peer.is_gone() || !state.peers.contains_key(&lane) {
            return;
        }
        state.active.insert(lane);
        let actions = state.pipeline.synced(lane);
        shared.deliver(&mut state, actions, None);
        state.prune();
        if let Some(waiting) = state.syncing.remove(&lane) {
            let _ = waiting.send(Ok(()));
        }
        shared.count_members(&state);
    }
    info!(plugin = %peer.id, events = %peer.events, "plugin has joined");
    shared
        .feed
        .tell(|| Notice::Joined { plugin: peer.id.to_string(), events: peer.events.to_string() });
    apply_updates(shared, peer, answer).await;
}

/// What a plugin wants changed of what it was told. Failures are its own to find out.
async fn apply_updates(shared: &Arc<Shared>, peer: &Peer, answer: SynchronizeResponse) {
    if answer.update.is_empty() {
        return;
    }
    let plugin = peer.id.to_string();
    let treatment = peer.treatment().clone();
    let by = Claimant { plugin: &plugin, fields: treatment.policy.fields.as_ref() };
    let mut updating = Updating::of_others("");
    if let Err(error) = updating.merge(by, answer.update, Vec::new()) {
        return warn!(plugin, %error, "updates that came with Synchronize");
    }
    let (_, changes, owners) = updating.finish();
    if let Err(error) = shared.change(&changes, &owners).await {
        warn!(plugin, ?error, "updates that came with Synchronize");
    }
}

/// What is on record was created, whatever it was when plugins were asked about it.
fn as_known(container: &Arc<Container>) -> Container {
    let mut container = Container::clone(container);
    if container.state() == ContainerState::ContainerUnknown {
        container.set_state(ContainerState::ContainerCreated);
    }
    container
}

/// Sends everything, in as few messages as it takes. All of it in the time of one request.
async fn tell(peer: &Peer, world: &World) -> Result<SynchronizeResponse, SyncError> {
    let (pods, containers) = world;
    let mut plan = SyncPlan::new(pods.len(), containers.len());
    let until = Instant::now() + peer.treatment().limit;
    loop {
        let part = plan.part();
        let request = SynchronizeRequest {
            pods: pods[part.pods.clone()].iter().map(|pod| PodSandbox::clone(pod)).collect(),
            containers: containers[part.containers.clone()].iter().map(as_known).collect(),
            more: part.more,
        };
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match peer.synchronize(&request, left).await {
            Err(ttrpc::Error::Oversize(oversize))
                if oversize.direction == ttrpc::Direction::Sent =>
            {
                plan.shrink(oversize.len, ttrpc::MAX_PAYLOAD)?;
            }
            Err(error) => return Err(error.into()),
            Ok(answer) if part.more => {
                if !answer.more || !answer.update.is_empty() {
                    return Err(SyncError::NoParts);
                }
                plan.advance();
            }
            Ok(answer) => return Ok(answer),
        }
    }
}
