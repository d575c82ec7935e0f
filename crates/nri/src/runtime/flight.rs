//! One request on its way through the plugins.
//!
//! The pilot is the request's own task. It is given turns: to call a plugin, to have one
//! validate, to finish, to commit. Between turns it can be stopped at once; a call it has
//! begun is brought to its end, which the plugin's time limit bounds, so that the plugin is
//! never asked two things at a time.

mod work;

use std::{mem, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};
use nri_wire::api::{self, Event};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use work::Heard;
pub(super) use work::{Outcome, Subject, Work};

use super::{Shared, dispatch::Answer};
use crate::{
    error::{NriError, Silence},
    model::{Lane, Place, Verdict},
    peer::{Consequence, Failure, Peer},
    watch::{About, Notice, whole},
};

const VALIDATE: Event = Event::ValidateContainerAdjustment;

/// A request, as the rest sees it.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) turns: mpsc::Sender<Turn>,
    /// The caller has given up.
    pub(super) over: CancellationToken,
    pub(super) subject: Subject,
}

#[derive(Debug)]
pub(super) enum Turn {
    Call(Lane, Arc<Peer>),
    Validate(Lane, Arc<Peer>),
    /// All were asked.
    Routed,
    /// Other containers may be changed now.
    Commit,
}

pub(super) struct Pilot {
    pub(super) shared: Arc<Shared>,
    pub(super) place: Place,
    pub(super) work: Work,
    pub(super) turns: mpsc::Receiver<Turn>,
    pub(super) over: CancellationToken,
    pub(super) answer: Answer,
}

impl Pilot {
    pub(super) async fn fly(mut self) {
        let mut validations = FuturesUnordered::new();
        loop {
            let turn = tokio::select! {
                biased;
                Some((lane, verdict)) = validations.next() => {
                    match self.validated(lane, verdict) {
                        true => continue,
                        false => break,
                    }
                }
                () = self.over.cancelled() => break,
                turn = self.turns.recv() => turn,
            };
            let on = match turn {
                Some(Turn::Call(lane, peer)) => self.call(lane, &peer).await,
                Some(Turn::Validate(lane, peer)) => {
                    validations.push(self.validate(lane, peer));
                    true
                }
                Some(Turn::Routed) => self.routed(),
                Some(Turn::Commit) => self.commit().await,
                None => false,
            };
            if !on {
                break;
            }
        }
        // Validators that are still being asked are busy until they have answered.
        while let Some((lane, _)) = validations.next().await {
            self.shared.answered(self.place, lane, Verdict::Stop);
        }
    }

    /// Whether to go on.
    async fn call(&mut self, lane: Lane, peer: &Arc<Peer>) -> bool {
        self.work.heard = Heard { watched: self.shared.feed.is_watched(), ..Heard::default() };
        let begun = Instant::now();
        let result = match self.work.ask(peer).await {
            Ok(result) => {
                self.tell_answer(peer, begun);
                result.map_err(NriError::from)
            }
            Err(failure) => {
                let result = self.failed(peer, failure.clone());
                self.tell_failure(peer, begun, &failure, result.is_err());
                result
            }
        };
        let verdict = match result {
            Ok(()) => Verdict::Continue,
            Err(error) if self.work.asks_all() => {
                self.work.errors.push(error);
                Verdict::Continue
            }
            Err(error) => {
                self.shared.answered(self.place, lane, Verdict::Stop);
                self.end(Err(error));
                return false;
            }
        };
        self.shared.answered(self.place, lane, verdict);
        true
    }

    fn tell_answer(&mut self, peer: &Peer, begun: Instant) {
        let asked = mem::take(&mut self.work.heard.asked);
        self.shared.feed.tell(|| Notice::Answered {
            plugin: peer.id.to_string(),
            about: self.work.about(),
            micros: micros(begun),
            asked,
        });
    }

    fn tell_failure(&self, peer: &Peer, begun: Instant, failure: &Failure, fatal: bool) {
        self.shared.feed.tell(|| Notice::Failed {
            plugin: peer.id.to_string(),
            about: self.work.about(),
            micros: micros(begun),
            why: match failure {
                Failure::Refused(status) => status.message.clone(),
                Failure::Silent(silence) => whole(silence),
            },
            fatal,
        });
    }

    /// What a plugin's failure means: to itself, and to this request.
    fn failed(&mut self, peer: &Arc<Peer>, failure: Failure) -> Result<(), NriError> {
        let (plugin, event) = (peer.id.clone(), self.work.event());
        let consequence = peer.consequence(&failure);
        if peer.is_struck_out(&failure) && !peer.is_gone() {
            warn!(%plugin, event = event.method(), ?failure, "plugin is dropped");
            self.shared.leave(peer);
        }
        match (consequence, failure) {
            (Consequence::GoOn, failure) => {
                warn!(%plugin, event = event.method(), ?failure, "going on without the plugin's answer");
                Ok(())
            }
            (_, Failure::Refused(status)) => Err(NriError::Refused { plugin, event, status }),
            (_, Failure::Silent(source)) => Err(NriError::Silent { plugin, event, source }),
        }
    }

    /// Asks one validator. Not having an answer is not having agreement.
    fn validate(
        &mut self,
        lane: Lane,
        peer: Arc<Peer>,
    ) -> impl Future<Output = (Lane, Result<(), NriError>)> + use<> {
        let request = self.work.validation(&self.shared);
        let (shared, trace) = (Arc::clone(&self.shared), self.work.trace.clone());
        let about = About { event: VALIDATE.method().to_owned(), ..self.work.about() };
        async move {
            let (plugin, begun) = (peer.id.clone(), Instant::now());
            let answer = peer.validate(&request, &trace).await;
            if let Ok(reason) = &answer {
                shared.feed.tell(|| Notice::Answered {
                    plugin: plugin.to_string(),
                    about,
                    micros: micros(begun),
                    asked: reason.as_ref().map_or(Value::Null, |why| json!({ "reject": why })),
                });
            }
            let verdict = match answer {
                Ok(None) => Ok(()),
                Ok(Some(reason)) => {
                    Err(NriError::Rejected { validator: plugin.to_string(), reason })
                }
                Err(failure) => {
                    if peer.is_struck_out(&failure) {
                        shared.leave(&peer);
                    }
                    let source = match failure {
                        Failure::Silent(silence) => silence,
                        Failure::Refused(status) => Silence::Call(status.into()),
                    };
                    Err(NriError::Validator { plugin, source })
                }
            };
            (lane, verdict)
        }
    }

    fn validated(&mut self, lane: Lane, verdict: Result<(), NriError>) -> bool {
        match verdict {
            Ok(()) => {
                self.shared.answered(self.place, lane, Verdict::Continue);
                true
            }
            Err(error) => {
                self.shared.answered(self.place, lane, Verdict::Stop);
                self.end(Err(error));
                false
            }
        }
    }

    /// All plugins were asked: what is there to do about it?
    fn routed(&mut self) -> bool {
        match self.work.settle(&self.shared) {
            Ok(()) if self.work.has_changes() => {
                self.shared.await_commit(self.place);
                true
            }
            Ok(()) => {
                self.succeed();
                false
            }
            Err(error) => {
                self.end(Err(error));
                false
            }
        }
    }

    async fn commit(&mut self) -> bool {
        let changes = self.work.changes();
        match self.shared.change(&changes, &self.work.owners()).await {
            Err(error) if !self.work.asks_all() => {
                self.end(Err(error.into()));
            }
            Err(error) => {
                warn!(
                    ?error,
                    event = self.work.event().method(),
                    "change containers as plugins ask"
                );
                self.succeed();
            }
            Ok(made) => {
                // Whoever asked for it is gone, and the container it was for is not to be.
                if !self.succeed() {
                    let limit = self.shared.settings.load().change_timeout;
                    self.shared.take_back(made, limit).await;
                }
            }
        }
        false
    }

    fn succeed(&mut self) -> bool {
        let outcome = self.work.outcome();
        self.end(outcome)
    }

    /// Whether it still mattered to anybody.
    fn end(&mut self, outcome: Result<Outcome, NriError>) -> bool {
        let effect = self.work.effect();
        self.shared.feed.tell(|| Notice::Decided {
            about: self.work.about(),
            error: outcome.as_ref().err().map(|error| whole(error)),
        });
        self.shared.conclude(self.place, self.answer.take(), outcome, effect)
    }
}

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A container as it is known after an update.
pub(super) fn with_resources(
    container: &api::Container,
    resources: api::LinuxResources,
) -> api::Container {
    let mut container = container.clone();
    container.linux.get_or_insert_default().resources = Some(resources);
    container
}
