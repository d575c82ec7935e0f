//! Telling a new plugin what exists.

use std::{pin::pin, sync::Arc, time::Duration};

use nri_wire::api::{
    Container, ContainerEviction, ContainerState, ContainerUpdate, PodSandbox, SynchronizeRequest,
    SynchronizeResponse,
};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{Shared, State, join::JoinError};
use crate::{
    Claimant, SyncPlan, TooLarge, Updating,
    error::Silence,
    model::{Lane, Place},
    peer::{Failure, Peer},
    watch::{Notice, whole},
};

/// The pauses after which a Synchronize that timed out is sent again.
const RETRY_PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Why a plugin could not be synchronised.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("no answer")]
    Call(#[from] ttrpc::Error),
    #[error("no answer within its time limit of {limit:?}, {attempts} times in a row")]
    Slow { limit: Duration, attempts: usize },
    #[error("{0} events came while it was synchronised, more than are kept for it")]
    TooManyEvents(usize),
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
        let begun = Instant::now();
        let told = tell_while_requests_wait(&shared, lane, &peer, &world).await;
        shared.tell_synchronized(&peer, (world.0.len(), world.1.len()), begun, &told);
        settle(&shared, lane, &peer, told).await;
    });
}

/// Requests wait for the plugin for the time of one request; then they go on without it, and it
/// is told of them when it is synchronised.
async fn tell_while_requests_wait(
    shared: &Arc<Shared>,
    lane: Lane,
    peer: &Peer,
    world: &World,
) -> Result<SynchronizeResponse, SyncError> {
    let mut told = pin!(tell_until_answered(peer, world));
    let limit = peer.treatment().limit;
    if let Ok(told) = timeout(limit, &mut told).await {
        return told;
    }
    warn!(
        plugin = %peer.id, waited = ?limit,
        "plugin is still being synchronised: requests go on without it and are announced to it later",
    );
    shared.overdue(lane);
    told.await
}

/// Sends the same again to a plugin that does not answer in time. Nothing else is told to it
/// meanwhile, so that whichever answer comes is about the same state; an answer to an earlier
/// call comes on the stream of that call and counts for nothing.
async fn tell_until_answered(peer: &Peer, world: &World) -> Result<SynchronizeResponse, SyncError> {
    for (attempt, pause) in (1..).zip(RETRY_PAUSES) {
        let limit = match tell(peer, world).await {
            Err(SyncError::Slow { limit, .. }) => limit,
            told => return told,
        };
        warn!(plugin = %peer.id, attempt, ?limit, ?pause, "Synchronize timed out, will be sent again");
        tokio::select! {
            () = sleep(pause) => {}
            _ = peer.trunk.closed() => {}
        }
    }
    tell(peer, world).await.map_err(|error| match error {
        SyncError::Slow { limit, attempts } => {
            SyncError::Slow { limit, attempts: attempts + RETRY_PAUSES.len() }
        }
        other => other,
    })
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
                let plugin = peer.id.clone();
                let _ = waiting.send(Err(JoinError::Sync { plugin, source: error }));
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
    apply_updates(shared, peer, "Synchronize", answer.update, Vec::new()).await;
}

/// What a plugin wants changed of what it was told. Failures are its own to find out.
pub(super) async fn apply_updates(
    shared: &Arc<Shared>,
    peer: &Peer,
    event: &'static str,
    update: Vec<ContainerUpdate>,
    evict: Vec<ContainerEviction>,
) {
    if update.is_empty() && evict.is_empty() {
        return;
    }
    let plugin = peer.id.to_string();
    let treatment = peer.treatment().clone();
    let by = Claimant { plugin: &plugin, fields: treatment.policy.fields.as_ref() };
    let mut updating = Updating::of_others("");
    if let Err(error) = updating.merge(by, update, evict) {
        let error = whole(&error);
        return warn!(plugin, event, error, "failed to merge the updates a plugin answered with");
    }
    let (_, changes, owners) = updating.finish();
    if let Err(error) = shared.change(event, &changes, &owners).await {
        let error = whole(&error);
        warn!(plugin, event, error, "failed to apply the updates a plugin answered with");
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

/// Sends everything, in as few messages as it takes, all of it within the plugin's time limit
/// for a Synchronize.
///
/// A plugin collects the parts before the last one. If it is silent about one of those, nobody
/// knows whether it has that part, so only the last can be given up and all begun anew.
async fn tell(peer: &Peer, world: &World) -> Result<SynchronizeResponse, SyncError> {
    let (pods, containers) = world;
    let mut plan = SyncPlan::new(pods.len(), containers.len());
    let limit = peer.treatment().sync_limit;
    let until = Instant::now() + limit;
    loop {
        let part = plan.part();
        let request = SynchronizeRequest {
            pods: pods[part.pods.clone()].iter().map(|pod| PodSandbox::clone(pod)).collect(),
            containers: containers[part.containers.clone()].iter().map(as_known).collect(),
            more: part.more,
        };
        let begun = Instant::now();
        let left = until.saturating_duration_since(begun).max(Duration::from_millis(1));
        match peer.synchronize(&request, left).await {
            Err(ttrpc::Error::Oversize(oversize))
                if oversize.direction == ttrpc::Direction::Sent =>
            {
                plan.shrink(oversize.len, ttrpc::MAX_PAYLOAD)?;
            }
            Err(error) => {
                let slow = Failure::of(error.clone(), begun.elapsed(), left);
                let slow = matches!(slow, Failure::Silent(Silence::Slow)) && !part.more;
                return Err(match slow {
                    true => SyncError::Slow { limit, attempts: 1 },
                    false => error.into(),
                });
            }
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
