//! One request on its way through the plugins.
//!
//! The pilot is who takes it there: its caller, or, where nobody waits for it or its caller has
//! gone away, a task. It is given turns: to call a plugin, to have one validate, to finish, to
//! commit. Between turns it can be stopped at once; a call it has begun is brought to its end,
//! which the plugin's time limit bounds, so that the plugin is never asked two things at a time.
//!
//! **Invariant:** every turn to call or to validate is answered to the model, or given back by
//! who ends the request: else the plugin would be waited for for ever.

mod post;
mod work;

use std::{future::poll_fn, mem, sync::Arc, task::Poll};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use nri_wire::api::{self, Event};
use serde_json::{Value, json};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tracing::warn;

pub(super) use post::Post;
use work::Heard;
pub(super) use work::{Outcome, Subject, Work};

use super::Shared;
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
    pub(super) post: Arc<Post>,
    pub(super) subject: Subject,
    pub(super) event: Event,
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
    pub(super) work: Box<Work>,
    pub(super) post: Arc<Post>,
    /// Room among the requests on their way.
    pub(super) _permit: Option<OwnedSemaphorePermit>,
}

/// Validators that are being asked.
type Validations = FuturesUnordered<BoxFuture<'static, (Lane, Result<(), NriError>)>>;

enum Next {
    Turn(Turn),
    Validated(Lane, Result<(), NriError>),
    /// The caller has given up.
    Over,
}

/// What a turn came to.
enum Step {
    GoOn,
    Ended(Result<Outcome, NriError>),
}

impl Pilot {
    /// To the end of the request. [`NriError::Stopped`] where it has left before, by the will of
    /// its caller.
    ///
    /// Not cancel safe: as long as it is not at its end plugins may wait for it.
    pub(super) async fn fly(mut self) -> Result<Outcome, NriError> {
        let mut validations = Validations::new();
        let outcome = loop {
            let step = match self.next(&mut validations).await {
                Next::Turn(Turn::Call(lane, peer)) => self.call(lane, &peer).await,
                Next::Turn(Turn::Validate(lane, peer)) => {
                    validations.push(Box::pin(self.validate(lane, peer)));
                    Step::GoOn
                }
                Next::Turn(Turn::Routed) => self.routed(),
                Next::Turn(Turn::Commit) => self.commit().await,
                Next::Validated(lane, verdict) => self.validated(lane, verdict),
                Next::Over => break Err(NriError::Stopped),
            };
            if let Step::Ended(outcome) = step {
                break outcome;
            }
        };
        if !validations.is_empty() {
            self.wait_for(validations);
        }
        outcome
    }

    /// Its end, where nobody has to be asked.
    pub(super) fn take_off(&mut self) -> Option<Result<Outcome, NriError>> {
        let step = self.post.take_routed().then(|| self.routed())?;
        match step {
            Step::Ended(outcome) => Some(outcome),
            Step::GoOn => None,
        }
    }

    async fn next(&self, validations: &mut Validations) -> Next {
        poll_fn(|cx| {
            if !validations.is_empty()
                && let Poll::Ready(Some((lane, verdict))) = validations.poll_next_unpin(cx)
            {
                return Poll::Ready(Next::Validated(lane, verdict));
            }
            self.post.poll_next(cx).map(|turn| turn.map_or(Next::Over, Next::Turn))
        })
        .await
    }

    /// Validators that are still being asked are busy until they have answered.
    fn wait_for(self, mut validations: Validations) {
        let tasks = self.shared.tasks.clone();
        tasks.spawn(async move {
            while let Some((lane, _)) = validations.next().await {
                self.shared.answered(self.place, lane, Verdict::Stop);
            }
        });
    }

    async fn call(&mut self, lane: Lane, peer: &Arc<Peer>) -> Step {
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
                return self.end(Err(error));
            }
        };
        self.shared.answered(self.place, lane, verdict);
        Step::GoOn
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
            why: failure.why(),
            fatal,
        });
    }

    /// What a plugin's failure means: to itself, and to this request.
    fn failed(&mut self, peer: &Arc<Peer>, failure: Failure) -> Result<(), NriError> {
        let (plugin, event) = (peer.id.clone(), self.work.event());
        let consequence = peer.consequence(&failure);
        if peer.is_struck_out(&failure) && !peer.is_gone() {
            let (event, error) = (event.method(), failure.why());
            warn!(%plugin, event, error, "plugin is dropped");
            peer.blame(format!("it was dropped after {event}: {error}"));
            self.shared.leave(peer);
        }
        match (consequence, failure) {
            (Consequence::GoOn, failure) => {
                let (event, error) = (event.method(), failure.why());
                warn!(%plugin, event, error, "going on without the plugin's answer");
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
                        let (event, error) = (VALIDATE.method(), failure.why());
                        warn!(%plugin, event, error, "plugin is dropped");
                        peer.blame(format!("it was dropped after {event}: {error}"));
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

    fn validated(&mut self, lane: Lane, verdict: Result<(), NriError>) -> Step {
        match verdict {
            Ok(()) => {
                self.shared.answered(self.place, lane, Verdict::Continue);
                Step::GoOn
            }
            Err(error) => {
                self.shared.answered(self.place, lane, Verdict::Stop);
                self.end(Err(error))
            }
        }
    }

    /// All plugins were asked: what is there to do about it?
    fn routed(&mut self) -> Step {
        match self.work.settle(&self.shared) {
            Ok(()) if self.work.has_changes() => {
                self.shared.await_commit(self.place);
                Step::GoOn
            }
            Ok(()) => self.succeed(),
            Err(error) => self.end(Err(error)),
        }
    }

    async fn commit(&mut self) -> Step {
        let (changes, cause) = (self.work.changes(), self.work.about().to_string());
        match self.shared.change(&cause, &changes, &self.work.owners()).await {
            Err(error) if !self.work.asks_all() => self.end(Err(error.into())),
            Err(error) => {
                let event = self.work.event().method();
                warn!(error = whole(&error), event, "change containers as plugins ask");
                self.succeed()
            }
            Ok(made) => {
                let ended = self.succeed();
                // Whoever asked for it is gone, and the container it was for is not to be.
                if let Step::Ended(Err(NriError::Stopped)) = ended {
                    let limit = self.shared.settings.load().change_timeout;
                    self.shared.take_back(made, limit).await;
                }
                ended
            }
        }
    }

    fn succeed(&mut self) -> Step {
        let outcome = self.work.outcome();
        self.end(outcome)
    }

    /// The request leaves the pipeline. If it has left before, by the will of its caller, nothing
    /// of what it came to counts.
    fn end(&mut self, outcome: Result<Outcome, NriError>) -> Step {
        self.shared.feed.tell(|| Notice::Decided {
            about: self.work.about(),
            error: outcome.as_ref().err().map(|error| whole(error)),
        });
        Step::Ended(match self.shared.conclude(self.place, &mut self.work, outcome.is_ok()) {
            true => outcome,
            false => Err(NriError::Stopped),
        })
    }
}

pub(super) fn micros(begun: Instant) -> u64 {
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
