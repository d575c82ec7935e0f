//! The one task that moves a pod and its containers.
//!
//! ```text
//!   Engine ──Ask──┐                  ┌──> child task: steps, shim calls, waits
//!                 ├──> mailbox ──> Owner          │
//!   children ─News┘        └── records, replies <─┘
//! ```
//!
//! The owner awaits its mailbox and the journal. Everything slower runs in a child that
//! reports back as [`News`], so that it takes a stop while a start hangs. Per container one
//! piece of exclusive work (start, update, checkpoint, remove) runs at a time; what comes meanwhile
//! waits in that container's queue, and nowhere else.

mod asks;
mod news;
mod slot;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use base::Id;
use futures_util::FutureExt;
use oci::Resources;
use shim_client::{Buried, Exit, Shim, ShimError, TaskState};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;

use self::slot::Slot;
use crate::{
    attach::Waiter,
    container::{Started, limits::Changed},
    controller::{Controller, Keeper},
    error::{EngineError, Result},
    names::Outcome,
    phase::{ContainerEvent, PodEvent},
    pod::update::PodLimits,
    record::{ContainerRecord, PinnedImage, PodRecord},
    request::{CheckpointRequest, NewContainer},
    shared::Shared,
    steps::Failure,
};

/// Requests that may wait before those who ask do.
const MAILBOX: usize = 64;

/// Retries of work that must succeed in the end: 1 s, twice as long each time, to 5 min.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);

/// What an OCI runtime that starts a container gets to come to its end when the pod is to
/// stop. Then it goes with the shim that called it.
const LAST_STARTS: Duration = Duration::from_secs(5);

pub(crate) type Mailbox = mpsc::Sender<Message>;
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

#[derive(Debug)]
pub(crate) enum Message {
    Ask(Ask),
    News(News),
}

/// From callers.
#[derive(Debug)]
pub(crate) enum Ask {
    Create {
        id: Id,
        name: String,
        request: Box<NewContainer>,
        image: Box<PinnedImage>,
        tell: watch::Sender<Outcome>,
    },
    Start {
        id: Id,
        reply: Reply<()>,
    },
    /// Replies once the waiter will not miss the start, or is being connected.
    Attach {
        id: Id,
        waiter: Waiter,
        reply: Reply<()>,
    },
    /// Replies with the news of its exit, or `None` if it does not run.
    Signal {
        id: Id,
        with: StopWith,
        reply: Reply<Option<watch::Receiver<Life>>>,
    },
    Update {
        id: Id,
        resources: Box<Resources>,
        reply: Reply<()>,
    },
    /// New limits, as a plugin wants them. Waits for no other work.
    Amend {
        id: Id,
        resources: Box<nri::Resources>,
        reply: Reply<()>,
    },
    /// A plugin wants it gone. Replies as a signal does, and waits for no other work.
    Evict {
        id: Id,
        reason: String,
        reply: Reply<Option<watch::Receiver<Life>>>,
    },
    Checkpoint {
        id: Id,
        request: Box<CheckpointRequest>,
        reply: Reply<()>,
    },
    /// Undoes a checkpoint that an earlier daemon had begun.
    Settle {
        id: Id,
    },
    Remove {
        id: Id,
        reply: Reply<()>,
    },
    /// Somebody has the id of the container, or of the pod itself.
    Deliver {
        container: Option<Id>,
        reply: Reply<()>,
    },
    UpdatePod {
        overhead: Option<Box<Resources>>,
        resources: Option<Box<Resources>>,
        reply: Reply<()>,
    },
    StopPod {
        reply: Reply<()>,
    },
    RemovePod {
        reply: Reply<()>,
    },
}

/// The turn of who reads or writes a container's limits. Held only for that, never while
/// plugins are asked about a container they know.
pub(crate) type Turn = Arc<tokio::sync::Mutex<()>>;

/// How far a container's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    Lives,
    /// Its exit is on record.
    Ended,
    /// And plugins know.
    Told,
}

/// How a container is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopWith {
    /// Its stop signal; sent once in its life.
    Politeness,
    Kill,
}

/// From children.
#[derive(Debug)]
pub(crate) enum News {
    PodMade {
        made: Result<(Box<PodRecord>, Arc<Shim>), Box<Failure>>,
    },
    ContainerMade {
        id: Id,
        name: String,
        made: Result<(), Box<Failure>>,
    },
    Started {
        id: Id,
        started: Result<Started>,
    },
    Exited {
        id: Id,
        exit: Exit,
    },
    /// Its shim does not know it any more.
    Vanished {
        id: Id,
    },
    Updated {
        id: Id,
        updated: Result<Box<Changed>>,
    },
    Amended {
        id: Id,
        amended: Result<Box<Changed>>,
        reply: Reply<()>,
    },
    Checkpointed {
        id: Id,
        done: Result<()>,
    },
    /// Plugins know that it has ended.
    StopTold {
        id: Id,
        told: Result<()>,
    },
    Removed {
        id: Id,
        removed: Result<()>,
    },
    ShimDied,
    /// A shim that had not answered does, with the tasks it has.
    ShimAnswers {
        shim: Arc<Shim>,
        tasks: Vec<TaskState>,
    },
    /// The pod is to end, and its starts have had their time.
    StartsOverdue,
    /// What a shim left could not be buried; again.
    BuryAgain,
    Buried {
        buried: Result<Vec<Buried>>,
    },
    PodUpdated {
        updated: Result<Box<PodLimits>>,
        reply: Reply<()>,
    },
    PodStopped {
        stopped: Result<Vec<Buried>>,
    },
    PodRemoved {
        removed: Result<()>,
    },
    /// Nobody took the answer of a create for too long.
    Expired {
        container: Option<Id>,
    },
}

/// Waits for somebody to take the answer of a create.
type Expiry = Option<AbortOnDropHandle<()>>;

/// What a pod's owner knows beyond the records.
pub(crate) struct Owner {
    shared: Arc<Shared>,
    pod: Arc<PodRecord>,
    slots: BTreeMap<Id, Slot>,
    /// To tell those who wait for the pod to be made.
    tell: Option<watch::Sender<Outcome>>,
    /// Of the pod itself.
    expiry: Expiry,
    me: mpsc::WeakSender<Message>,
    ending: Ending,
    updates: Updates,
    /// A child is burying what the shim left.
    burying: bool,
    burial_retry: Duration,
    over: bool,
}

/// Changes of the pod's own limits: one at a time, the others in order.
#[derive(Debug, Default)]
struct Updates {
    running: bool,
    queue: VecDeque<Ask>,
}

/// A stop or removal of the whole pod, and who waits for it.
#[derive(Debug, Default)]
struct Ending {
    stop: Vec<Reply<()>>,
    remove: Vec<Reply<()>>,
    /// The child at it.
    running: bool,
    /// Starts in flight are being waited for.
    patient: bool,
}

/// What the owner of a pod begins with.
pub(crate) enum Begin {
    Make {
        tell: watch::Sender<Outcome>,
    },
    /// Found at start, in whatever phase.
    Recovered {
        shim: Option<Arc<Shim>>,
    },
}

impl Owner {
    /// Starts the owner of `pod`; its mailbox is among the live ones from now on.
    pub(crate) fn spawn(shared: &Arc<Shared>, pod: Arc<PodRecord>, begin: Begin) {
        let (me, mut inbox) = mpsc::channel(MAILBOX);
        let id = pod.id;
        let mut owner = Self {
            shared: Arc::clone(shared),
            pod,
            slots: BTreeMap::new(),
            tell: None,
            expiry: None,
            me: me.downgrade(),
            ending: Ending::default(),
            updates: Updates::default(),
            burying: false,
            burial_retry: FIRST_RETRY,
            over: false,
        };
        shared.live.add(id, me);
        let stop = shared.stop.clone();
        shared.tasks.spawn(async move {
            owner.begin(begin);
            while !owner.over {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    message = inbox.recv() => match message {
                        Some(Message::Ask(ask)) => owner.on_ask(ask).await,
                        Some(Message::News(news)) => Box::pin(owner.on_news(news)).await,
                        None => break,
                    },
                }
            }
            owner.shared.live.remove(id);
        });
    }

    /// Runs `work` beside the owner and hears of its end, also if it panics.
    fn child<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
        news: impl FnOnce(Result<T>) -> News + Send + 'static,
    ) {
        let me = self.me.clone();
        self.shared.tasks.spawn(async move {
            let done = std::panic::AssertUnwindSafe(work).catch_unwind().await;
            let done = done.unwrap_or_else(|_| Err(panicked(what)));
            report(&me, news(done)).await;
        });
    }

    /// Hears, unless it is dropped before, that nobody took the answer of a create.
    fn expiry(&self, container: Option<Id>) -> Expiry {
        let wait = self.shared.config.limits.undelivered;
        Some(AbortOnDropHandle::new(self.later(wait, News::Expired { container })))
    }

    /// Hears of `news` after `delay`.
    fn later(&self, delay: Duration, news: News) -> JoinHandle<()> {
        let (me, stop) = (self.me.clone(), self.shared.stop.clone());
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => report(&me, news).await,
                () = stop.cancelled() => {}
            }
        })
    }

    /// Moves the pod and puts it on record.
    async fn advance_pod(&mut self, event: &PodEvent) -> Result<()> {
        let mut pod = PodRecord::clone(&self.pod);
        pod.phase = pod.phase.on(event)?;
        self.save_pod(pod).await
    }

    async fn save_pod(&mut self, pod: PodRecord) -> Result<()> {
        let pod = Arc::new(pod);
        self.shared.pods.put(Arc::clone(&pod)).await?;
        self.pod = pod;
        Ok(())
    }

    async fn advance(&mut self, id: Id, event: &ContainerEvent) -> Result<Arc<ContainerRecord>> {
        let container = Arc::new(self.container(id)?.on(event)?);
        self.shared.containers.put(Arc::clone(&container)).await?;
        Ok(container)
    }

    fn container(&self, id: Id) -> Result<Arc<ContainerRecord>> {
        let found = self.shared.containers.get(&id);
        found.ok_or_else(|| EngineError::NotFound { what: "container", id: id.to_string() })
    }

    /// Waits for the exit of a running container, which the shim keeps until then. That it
    /// has started is told before its end can be.
    fn watch_exit(&self, id: Id, started: Option<Arc<ContainerRecord>>) {
        let (shared, pod, me) = (Arc::clone(&self.shared), Arc::clone(&self.pod), self.me.clone());
        self.shared.tasks.spawn(async move {
            let stop = shared.stop.clone();
            if let Some(started) = started {
                shared.plugins.post_start(&shared, &started).await;
            }
            tokio::select! {
                news = exit_news(&shared, &pod, id) => if let Some(news) = news {
                    report(&me, news).await;
                },
                () = stop.cancelled() => {}
            }
        });
    }

    /// Its end is on record: whoever waits for that hears of it, then plugins do.
    fn tell_end(&self, container: Arc<ContainerRecord>) {
        let id = container.id;
        if let Some(slot) = self.slots.get(&id) {
            slot.life.send_if_modified(|life| {
                let new = *life < Life::Ended;
                *life = (*life).max(Life::Ended);
                new
            });
        }
        let shared = Arc::clone(&self.shared);
        let work = async move { shared.plugins.stop(&shared, &container).await };
        self.child("tell plugins", work, move |told| News::StopTold { id, told });
    }

    fn watch_shim(&self, shim: &Shim) {
        let (me, stop, died) = (self.me.clone(), self.shared.stop.clone(), shim.died());
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = died => report(&me, News::ShimDied).await,
                () = stop.cancelled() => {}
            }
        });
    }

    fn state_error(&self, action: &'static str) -> EngineError {
        let state = self.pod.phase.to_string();
        EngineError::State { what: "pod", id: self.pod.id, state, action }
    }
}

/// How a container ended, as its shim tells; `None` if the shim itself died, which is news of
/// its own. A connection that breaks is made again.
async fn exit_news(shared: &Shared, pod: &PodRecord, id: Id) -> Option<News> {
    loop {
        let shim = shared.live.shim(pod.id)?;
        match shim.wait(id.as_str()).await {
            Ok(exit) => return Some(News::Exited { id, exit }),
            Err(ShimError::NotFound { .. }) => return Some(News::Vanished { id }),
            Err(error) => {
                tracing::debug!(container = %id, error = %base::Chain(&error), "wait again");
                tokio::select! {
                    () = shim.died() => return None,
                    () = tokio::time::sleep(FIRST_RETRY) => {}
                }
                if let Ok(again) = Keeper::of(shared, pod).connect(pod).await {
                    shared.live.set_shim(pod.id, again);
                }
            }
        }
    }
}

async fn report(me: &mpsc::WeakSender<Message>, news: News) {
    if let Some(me) = me.upgrade() {
        let _ = me.send(Message::News(news)).await;
    }
}

fn panicked(what: &'static str) -> EngineError {
    EngineError::Failed {
        doing: what.to_owned(),
        why: "panicked; see the log".to_owned(),
        kind: base::Kind::Internal,
    }
}

fn doubled(delay: Duration) -> Duration {
    (delay * 2).min(LAST_RETRY)
}
