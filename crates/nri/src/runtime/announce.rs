//! Telling a plugin of what went on without it while it was being synchronised.
//!
//! The plugin gets the event that it missed. What it answers comes too late to prevent anything:
//! of an adjustment the resources are applied as an update of the container, and so are updates
//! and evictions; the rest is discarded, and the log says what.

use std::sync::Arc;

use bytes::Bytes;
use nri_wire::{About as Request, api::*};
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;
use ttrpc::Metadata;

use super::{
    Shared, State,
    flight::{Subject, micros},
    sync::apply_updates,
};
use crate::{
    model::{Lane, Place},
    peer::{Failure, Peer},
    watch::{self, About, Notice},
};

/// An event that a plugin has missed.
#[derive(Debug)]
pub(super) struct Announcement {
    pub(super) event: Event,
    pub(super) subject: Subject,
    pub(super) about: About,
    /// The request as it goes over the wire.
    pub(super) request: Bytes,
    pub(super) trace: Metadata,
}

/// What the plugin wants.
#[derive(Default)]
struct Answer {
    adjust: Option<ContainerAdjustment>,
    update: Vec<ContainerUpdate>,
    evict: Vec<ContainerEviction>,
}

/// Tells one plugin in a task of its own, which reports to the model when it is done.
pub(super) fn begin(shared: &Arc<Shared>, state: &State, place: Place, lane: Lane) {
    let told = state.peers.get(&lane).cloned().zip(state.late.get(&place).cloned());
    let shared = Arc::clone(shared);
    shared.tasks.clone().spawn(async move {
        let answer = match &told {
            Some((peer, event)) => event.tell(&shared, peer).await,
            None => None,
        };
        // The plugin is free for the next before its answer is acted upon.
        shared.announced(place, lane);
        if let (Some((peer, event)), Some(answer)) = (told, answer) {
            event.apply(&shared, &peer, answer).await;
        }
    });
}

impl Announcement {
    async fn tell(&self, shared: &Arc<Shared>, peer: &Arc<Peer>) -> Option<Answer> {
        let (plugin, begun) = (peer.id.to_string(), Instant::now());
        let told = self.call(peer).await;
        let (about, micros) = (self.about.clone(), micros(begun));
        match told {
            Ok(answer) => {
                shared.feed.tell(|| Notice::Answered {
                    plugin,
                    about,
                    micros,
                    asked: answer.asked(),
                });
                Some(answer)
            }
            Err(failure) => {
                if peer.is_struck_out(&failure) && !peer.is_gone() {
                    shared.leave(peer);
                }
                warn!(
                    plugin,
                    event = self.event.method(),
                    id = self.subject.id(),
                    ?failure,
                    "plugin failed on an event that it was told of after its Synchronize",
                );
                let why = failure.why();
                shared.feed.tell(|| Notice::Failed { plugin, about, micros, why, fatal: false });
                None
            }
        }
    }

    async fn call(&self, peer: &Peer) -> Result<Answer, Failure> {
        let Self { event, subject, request, trace, .. } = self;
        Ok(match event {
            Event::CreateContainer => {
                let CreateContainerResponse { adjust, update, evict } =
                    peer.create(request, trace).await?;
                Answer { adjust, update, evict }
            }
            Event::UpdateContainer => {
                let UpdateContainerResponse { update, evict } = peer.update(request, trace).await?;
                Answer { update, evict, ..Answer::default() }
            }
            Event::StopContainer => {
                let update = peer.stop(request, trace).await?.update;
                Answer { update, ..Answer::default() }
            }
            Event::UpdatePodSandbox => {
                peer.update_pod(request, trace).await?;
                Answer::default()
            }
            _ => {
                let about = Request { pod: &subject.pod, container: subject.container.as_deref() };
                peer.event(*event, about, request, trace).await?;
                Answer::default()
            }
        })
    }

    async fn apply(&self, shared: &Arc<Shared>, peer: &Peer, answer: Answer) {
        let Answer { adjust, mut update, evict } = answer;
        let mut adjust = adjust.unwrap_or_default();
        let resources = adjust.linux.as_mut().and_then(|linux| linux.resources.take());
        if let Some(resources) = resources {
            update.insert(
                0,
                ContainerUpdate {
                    container_id: self.subject.id().to_owned(),
                    linux: Some(LinuxContainerUpdate { resources: Some(resources) }),
                    ignore_failure: false,
                },
            );
        }
        let discarded = watch::asked(Some(&adjust), &[], &[]);
        if discarded != Value::Null {
            warn!(
                plugin = %peer.id, container = self.subject.id(), %discarded,
                "container was created while the plugin was being synchronised: adjustment discarded",
            );
        }
        apply_updates(shared, peer, self.event.method(), update, evict).await;
    }
}

impl Answer {
    fn asked(&self) -> Value {
        watch::asked(self.adjust.as_ref(), &self.update, &self.evict)
    }
}
