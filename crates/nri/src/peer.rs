//! One live plugin, as it is called.

use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::pin,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use nri_wire::{About, EventMask, PluginId, Trunk, api::*};
use parking_lot::Mutex;
use prost::Message;
use tokio::{sync::OnceCell, time::Instant};
use ttrpc::{Code, Context, Metadata, MethodName, Status};

use crate::{
    error::Silence,
    mailbag::Mailbag,
    metrics::{Metrics, PluginMetrics},
    settings::{OnFailure, PluginPolicy},
    tally::{Calls, Tally},
    watch::whole,
};

/// Where a plugin came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Started by us.
    Launched { pid: u32 },
    /// Connected to the socket.
    External { pid: Option<u32>, uid: u32 },
    /// Runs inside this process.
    BuiltIn,
}

/// For one that has not said its name.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launched { pid } | Self::External { pid: Some(pid), .. } => {
                write!(f, "process {pid}")
            }
            Self::External { pid: None, uid } => write!(f, "a process of user {uid}"),
            Self::BuiltIn => f.write_str("built in"),
        }
    }
}

/// Whose objects a plugin sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Of every domain that is not hidden.
    Open,
    /// Of this domain only.
    Domain(String),
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PluginId,
    pub(crate) origin: Origin,
    pub(crate) scope: Scope,
    /// Of NRI, as it says.
    pub(crate) version: String,
    pub(crate) events: EventMask,
    /// It subscribed by not saying anything.
    pub(crate) by_default: bool,
    /// What it wants done when it does not answer; the operator's word counts first.
    wishes: FailurePolicy,
    pub(crate) since: Instant,
    pub(crate) trunk: Trunk,
    client: PluginClient,
    treatment: ArcSwap<Treatment>,
    metrics: PluginMetrics,
    /// It knows the old form of events only.
    old_events: AtomicBool,
    no_validator: AtomicBool,
    strikes: AtomicU32,
    tally: Mutex<Tally>,
    goodbye: OnceCell<()>,
    /// Why we want it no more.
    blamed: OnceLock<String>,
    mailbag: Mailbag,
    attention: Attention,
}

/// Whether to look for a plugin's answer or to sleep until it comes.
///
/// A plugin that does little answers before a thread has fallen asleep and been woken again, so
/// that looking takes half the time. It takes a CPU, too: so it is done for a request that is
/// alone, for a moment, and for plugins that were found to be that quick.
#[derive(Debug)]
struct Attention {
    /// There are threads for others while one looks.
    possible: bool,
    /// Answers that did not come while we looked, in a row.
    misses: AtomicU32,
}

/// Its policy, and the time it has for an answer and for a Synchronize.
#[derive(Clone, Debug)]
pub(crate) struct Treatment {
    pub(crate) policy: PluginPolicy,
    pub(crate) limit: Duration,
    pub(crate) sync_limit: Duration,
}

/// What [`Peer::new`] needs to know.
#[derive(Debug)]
pub(crate) struct Introduction {
    pub(crate) id: PluginId,
    pub(crate) origin: Origin,
    pub(crate) scope: Scope,
    pub(crate) version: String,
    pub(crate) events: EventMask,
    pub(crate) by_default: bool,
    pub(crate) wishes: FailurePolicy,
    pub(crate) treatment: Treatment,
}

/// Why a call brought no answer that counts.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Refused(Status),
    Silent(Silence),
}

/// What a failure means for the request it happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    FailRequest,
    GoOn,
}

type Call<T> = Result<T, Failure>;

impl Peer {
    pub(crate) fn new(
        intro: Introduction,
        client: PluginClient,
        trunk: Trunk,
        metrics: &Metrics,
        mailbag: Mailbag,
    ) -> Self {
        let Introduction { id, origin, scope, version, events, by_default, wishes, treatment } =
            intro;
        Self {
            metrics: metrics.of(id.clone()),
            id,
            origin,
            scope,
            version,
            events,
            by_default,
            wishes,
            since: Instant::now(),
            trunk,
            client,
            treatment: ArcSwap::from_pointee(treatment),
            old_events: AtomicBool::new(false),
            no_validator: AtomicBool::new(false),
            strikes: AtomicU32::new(0),
            tally: Mutex::default(),
            goodbye: OnceCell::new(),
            blamed: OnceLock::new(),
            mailbag,
            attention: Attention::new(),
        }
    }

    pub(crate) fn treatment(&self) -> arc_swap::Guard<std::sync::Arc<Treatment>> {
        self.treatment.load()
    }

    pub(crate) fn treat(&self, treatment: Treatment) {
        self.treatment.store(std::sync::Arc::new(treatment));
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.trunk.is_closed()
    }

    /// Notes why it is about to be dropped; the first reason counts.
    pub(crate) fn blame(&self, why: String) {
        let _ = self.blamed.set(why);
    }

    pub(crate) fn gone_because(&self) -> String {
        let why = self.blamed.get().cloned();
        why.unwrap_or_else(|| "its connection was closed".to_owned())
    }

    pub(crate) fn calls(&self) -> Calls {
        self.tally.lock().calls()
    }

    pub(crate) fn strikes(&self) -> u32 {
        self.strikes.load(Ordering::Relaxed)
    }

    pub(crate) fn sees(&self, domain: &str, hidden: bool) -> bool {
        match &self.scope {
            Scope::Open => !hidden,
            Scope::Domain(own) => own == domain,
        }
    }

    /// What the failure means, by the plugin's policy.
    pub(crate) fn consequence(&self, failure: &Failure) -> Consequence {
        match (self.treatment().policy.on_failure(), failure) {
            (Some(OnFailure::Fail), _) | (None, Failure::Refused(_)) => Consequence::FailRequest,
            (None, Failure::Silent(_)) if self.wishes.fail_request => Consequence::FailRequest,
            (Some(OnFailure::Ignore), _) | (None, Failure::Silent(_)) => Consequence::GoOn,
        }
    }

    /// Whether the failure is the last the plugin was allowed.
    pub(crate) fn is_struck_out(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Refused(_) => false,
            Failure::Silent(Silence::Slow) => match self.treatment().policy.strikes {
                Some(allowed) => self.strikes() >= allowed.get(),
                None => !self.wishes.keep_connected,
            },
            Failure::Silent(Silence::Gone | Silence::Call(_)) => true,
        }
    }

    // === calls ===

    /// An event whose answer is empty. `request` is what `about` says.
    pub(crate) async fn event(
        &self,
        event: Event,
        about: About<'_>,
        request: &[u8],
        trace: &Metadata,
    ) -> Call<()> {
        if self.old_events.load(Ordering::Relaxed) {
            return self.state_change(event, about, trace).await;
        }
        match self.ask::<Empty>(event, request, trace).await {
            Err(Failure::Refused(status)) if status.code == Code::Unimplemented => {
                let answer = self.state_change(event, about, trace).await;
                if answer.is_ok() {
                    tracing::info!(plugin = %self.id, "plugin takes events by StateChange only");
                    self.old_events.store(true, Ordering::Relaxed);
                }
                answer
            }
            answer => answer.map(drop),
        }
    }

    async fn state_change(&self, event: Event, about: About<'_>, trace: &Metadata) -> Call<()> {
        let request = about.encode_state_change(event);
        self.timed::<Empty>(event, "StateChange", &request, trace).await.map(drop)
    }

    pub(crate) async fn update_pod(&self, request: &[u8], trace: &Metadata) -> Call<()> {
        match self.ask::<Empty>(Event::UpdatePodSandbox, request, trace).await {
            // As it subscribed to everything it may not even know the event.
            Err(Failure::Refused(status))
                if status.code == Code::Unimplemented && self.by_default =>
            {
                Ok(())
            }
            answer => answer.map(drop),
        }
    }

    pub(crate) async fn create(
        &self,
        request: &[u8],
        trace: &Metadata,
    ) -> Call<CreateContainerResponse> {
        let event = Event::CreateContainer;
        let answer: CreateContainerResponse = self.ask(event, request, trace).await?;
        self.metrics.asked_for(event.method(), answer.update.len(), answer.evict.len());
        Ok(answer)
    }

    pub(crate) async fn update(
        &self,
        request: &[u8],
        trace: &Metadata,
    ) -> Call<UpdateContainerResponse> {
        let event = Event::UpdateContainer;
        let answer: UpdateContainerResponse = self.ask(event, request, trace).await?;
        self.metrics.asked_for(event.method(), answer.update.len(), answer.evict.len());
        Ok(answer)
    }

    pub(crate) async fn stop(
        &self,
        request: &[u8],
        trace: &Metadata,
    ) -> Call<StopContainerResponse> {
        let event = Event::StopContainer;
        let answer: StopContainerResponse = self.ask(event, request, trace).await?;
        self.metrics.asked_for(event.method(), answer.update.len(), 0);
        Ok(answer)
    }

    /// `Ok(None)` is agreement, `Ok(Some(reason))` a rejection.
    pub(crate) async fn validate(
        &self,
        request: &ValidateContainerAdjustmentRequest,
        trace: &Metadata,
    ) -> Call<Option<String>> {
        if self.no_validator.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let answer: Call<ValidateContainerAdjustmentResponse> =
            self.ask(Event::ValidateContainerAdjustment, &request.encode_to_vec(), trace).await;
        match answer {
            // Subscribed to everything by saying nothing: it never meant to validate.
            Err(Failure::Refused(status))
                if status.code == Code::Unimplemented && self.by_default =>
            {
                self.no_validator.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Ok(answer) if answer.reject && answer.reason.is_empty() => {
                Ok(Some("unknown rejection reason".to_owned()))
            }
            Ok(answer) => Ok(answer.reject.then_some(answer.reason)),
            Err(failure) => Err(failure),
        }
    }

    /// One part of a synchronisation, in the time that is left for all of it.
    pub(crate) async fn synchronize(
        &self,
        request: &SynchronizeRequest,
        left: Duration,
    ) -> Result<SynchronizeResponse, ttrpc::Error> {
        let begun = Instant::now();
        let answer = self.client.synchronize(&Context::timeout(left), request).await;
        // A part that is too large was never sent.
        if !matches!(answer, Err(ttrpc::Error::Oversize(_))) {
            let error = answer.as_ref().err();
            self.metrics.synchronized(begun.elapsed(), error);
            self.tally.lock().count(begun.elapsed(), error.is_some());
        }
        if let Ok(answer) = &answer {
            self.metrics.asked_for("Synchronize", answer.update.len(), 0);
        }
        answer
    }

    /// Tells the plugin that we are done with it, once, whoever says so.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        let say = async {
            let _ = self.client.shutdown(&Context::timeout(limit), &Empty {}).await;
        };
        self.goodbye.get_or_init(|| say).await;
    }

    /// Brings a call to its end, at first with open eyes.
    async fn watch<T>(&self, call: impl Future<Output = T>) -> T {
        let alone = self.metrics.in_flight() <= 1;
        let mut look = alone && self.attention.is_worth_it();
        let mut call = pin!(call);
        poll_fn(|cx| {
            let mut answer = call.as_mut().poll(cx);
            if answer.is_pending() && mem::take(&mut look) {
                let (patience, mut watcher) = (Patience::begin(), self.trunk.watch());
                while answer.is_pending() && patience.lasts() {
                    std::thread::yield_now();
                    watcher.look();
                    answer = call.as_mut().poll(cx);
                }
                self.attention.found(answer.is_ready());
            }
            answer
        })
        .await
    }

    /// What a plugin gets one at a time is sent at once, what it takes together is sent together.
    async fn send(
        &self,
        name: MethodName<'_>,
        ctx: &Context,
        request: &[u8],
    ) -> Result<Bytes, ttrpc::Error> {
        let client = self.client.connection();
        if self.metrics.in_flight() <= 1 || !self.treatment().policy.concurrent {
            return client.call_encoded(name, ctx, request).await;
        }
        client.call_encoded_later(name, ctx, request, |client| self.mailbag.put(client)).await
    }

    async fn ask<T: Message + Default>(
        &self,
        event: Event,
        request: &[u8],
        trace: &Metadata,
    ) -> Call<T> {
        self.timed(event, event.method(), request, trace).await
    }

    async fn timed<T: Message + Default>(
        &self,
        event: Event,
        method: &'static str,
        request: &[u8],
        trace: &Metadata,
    ) -> Call<T> {
        if self.is_gone() {
            return Err(Failure::Silent(Silence::Gone));
        }
        let limit = self.treatment().limit;
        let begun = Instant::now();
        let ctx = Context { metadata: trace.clone(), timeout: Some(limit) };
        let name = MethodName::new(PluginClient::SERVICE, method);
        let answer = self.watch(self.send(name, &ctx, request)).await;
        let answer = answer.and_then(|answer| Ok(T::decode(answer)?));
        let took = begun.elapsed();
        self.attention.note(took);
        self.metrics.called(event, took, answer.as_ref().err());
        self.tally.lock().count(took, answer.is_err());
        match answer {
            Ok(answer) => {
                self.strikes.store(0, Ordering::Relaxed);
                Ok(answer)
            }
            Err(error) => {
                let failure = Failure::of(error, took, limit);
                if let Failure::Silent(Silence::Slow) = failure {
                    self.strikes.fetch_add(1, Ordering::Relaxed);
                    self.metrics.strike();
                }
                Err(failure)
            }
        }
    }
}

impl Attention {
    /// Who answers within this may be worth looking for; about as long as it takes to fall asleep
    /// and to be woken.
    const QUICK: Duration = Duration::from_micros(200);
    const MISSES: u32 = 3;

    fn new() -> Self {
        let runtime = tokio::runtime::Handle::try_current();
        let threads = runtime.map_or(1, |runtime| runtime.metrics().num_workers());
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { possible: threads.min(cpus) > 1, misses: AtomicU32::new(0) }
    }

    fn is_worth_it(&self) -> bool {
        self.possible && self.misses.load(Ordering::Relaxed) < Self::MISSES
    }

    fn found(&self, answer: bool) {
        if !answer {
            self.misses.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note(&self, took: Duration) {
        if took < Self::QUICK {
            self.misses.store(0, Ordering::Relaxed);
        }
    }
}

/// Who looks holds up a thread, and everything else that could run on it.
#[expect(clippy::disallowed_types, reason = "threads take real time, also while tokio's is paused")]
struct Patience(std::time::Instant);

#[expect(clippy::disallowed_types, reason = "as above")]
impl Patience {
    fn begin() -> Self {
        Self(std::time::Instant::now())
    }

    fn lasts(&self) -> bool {
        self.0.elapsed() < Attention::QUICK
    }
}

impl Failure {
    /// Returns the reason with all its causes, for people.
    pub(crate) fn why(&self) -> String {
        match self {
            Self::Refused(status) => status.message.clone(),
            Self::Silent(silence) => whole(silence),
        }
    }

    pub(crate) fn of(error: ttrpc::Error, took: Duration, limit: Duration) -> Self {
        // A plugin that gives up at its limit is as slow as one that we give up on; which of
        // the two clocks is first must not matter.
        let near = limit.mul_f64(0.95);
        match error {
            ttrpc::Error::Timeout => Self::Silent(Silence::Slow),
            ttrpc::Error::Status(status)
                if status.code == Code::DeadlineExceeded && took >= near =>
            {
                Self::Silent(Silence::Slow)
            }
            ttrpc::Error::Status(status) => Self::Refused(status),
            // It did answer, if only nonsense, or could not be asked at all.
            error @ (ttrpc::Error::Decode(_) | ttrpc::Error::Oversize(_)) => {
                Self::Refused(Status::new(error.code(), error.to_string()))
            }
            error => Self::Silent(Silence::Call(error)),
        }
    }
}
