//! From calls of the runtime to handlers of the plugin, and back.
//!
//! One of these serves one connection: what it remembers, the parts of a world that comes
//! in several messages, is forgotten with it.

use std::sync::Arc;

use nri_wire::{
    EventMask,
    api::{
        self, ConfigureRequest, ConfigureResponse, Container, CreateContainerRequest,
        CreateContainerResponse, Empty, Event, FailurePolicy, PodSandbox, StateChangeEvent,
        StopContainerRequest, StopContainerResponse, SynchronizeRequest, SynchronizeResponse,
        UpdateContainerRequest, UpdateContainerResponse, UpdatePodSandboxRequest,
        UpdatePodSandboxResponse, ValidateContainerAdjustmentRequest,
        ValidateContainerAdjustmentResponse,
    },
};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use tracing::{debug, warn};
use ttrpc::{ServerContext, Status};

use crate::{
    Answer, BoxError, Configuration, Context, Handler, Handlers, Plugin, PodResources, Resources,
    Runtime, Subscription, UpdateError, Verdict, World,
};

/// Pods and containers in all parts of one Synchronize: far beyond what a node can run.
const MAX_WORLD: usize = 1 << 20;

/// A handler that took more than this share of its time is worth a warning: soon it will be
/// too late, and most runtimes then drop the plugin.
const SLOW: f64 = 0.8;

pub(crate) struct Dispatch<P> {
    plugin: Arc<P>,
    handlers: Arc<Handlers<P>>,
    runtime: Runtime,
    failure_policy: Option<FailurePolicy>,
    /// Told once, by the first Configure.
    configured: Mutex<Option<oneshot::Sender<Answer>>>,
    parts: Mutex<World>,
}

// === impl Dispatch ===

impl<P: Plugin> Dispatch<P> {
    /// The receiver learns how the plugin took its configuration.
    pub(crate) fn new(
        plugin: Arc<P>,
        handlers: Arc<Handlers<P>>,
        runtime: Runtime,
        failure_policy: Option<FailurePolicy>,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (configured, outcome) = oneshot::channel();
        let dispatch = Self {
            plugin,
            handlers,
            runtime,
            failure_policy,
            configured: Mutex::new(Some(configured)),
            parts: Mutex::default(),
        };
        (dispatch, outcome)
    }

    /// Runs a handler; without one the answer is that nothing is wanted.
    async fn run<A: 'static, R: Default + 'static>(
        &self,
        call: ServerContext,
        event: Option<Event>,
        handler: Option<&Arc<dyn Handler<P, A, R>>>,
        request: A,
    ) -> Answer<R> {
        let Some(handler) = handler else { return Ok(R::default()) };
        let allowed = self.runtime.info().map(|info| info.request_timeout);
        let ctx = Context::new(call, event, allowed, self.runtime.clone());
        let (begun, allowed) = (Instant::now(), ctx.remaining());
        let answer = handler.call(Arc::clone(&self.plugin), ctx, request).await;
        let (took, event) = (begun.elapsed(), event.map(Event::method));
        match allowed {
            Some(allowed) if took > allowed.mul_f64(SLOW) => {
                warn!(event, ?took, ?allowed, "a handler nearly missed its deadline");
            }
            _ => debug!(event, ?took, ok = answer.is_ok(), "handled"),
        }
        answer
    }

    async fn of_pod(
        &self,
        call: ServerContext,
        event: Event,
        pod: Option<PodSandbox>,
    ) -> Result<(), Status> {
        let handler = self.handlers.of_pod.get(&event);
        let request = (pod.unwrap_or_default(),);
        self.run(call, Some(event), handler, request).await.map_err(status)
    }

    async fn of_container(
        &self,
        call: ServerContext,
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container>,
    ) -> Result<(), Status> {
        let handler = self.handlers.of_container.get(&event);
        let request = (pod.unwrap_or_default(), container.unwrap_or_default());
        self.run(call, Some(event), handler, request).await.map_err(status)
    }

    async fn subscription(&self, call: ServerContext, request: ConfigureRequest) -> Answer<i32> {
        let configuration = Configuration::from(request);
        let info = configuration.runtime.clone();
        let handler = self.handlers.configure.as_ref();
        let wanted = self.run(call, None, handler, (configuration,)).await?;
        let handled = self.handlers.events();
        let events = match wanted {
            Subscription::Handled => handled,
            Subscription::Only(EventMask::NONE) => return Err("no event is subscribed to".into()),
            Subscription::Only(events) if handled.includes(events) => events,
            Subscription::Only(events) => {
                let missing = handled.iter().fold(events, EventMask::without);
                return Err(format!("events without a handler: {missing}").into());
            }
        };
        self.runtime.configured(info);
        Ok(events.to_wire())
    }

    /// Keeps a part of the world until the last one comes.
    fn keep(&self, part: SynchronizeRequest) -> Result<(), Status> {
        let mut parts = self.parts.lock();
        parts.pods.extend(part.pods);
        parts.containers.extend(part.containers);
        if parts.pods.len() + parts.containers.len() > MAX_WORLD {
            *parts = World::default();
            return Err(Status::resource_exhausted("too many pods and containers"));
        }
        Ok(())
    }
}

/// What the runtime reads of a failure: a status as it is, else the texts of the chain.
fn status(error: BoxError) -> Status {
    let error = match error.downcast::<Status>() {
        Ok(status) => return *status,
        Err(other) => other,
    };
    match error.downcast::<ttrpc::Error>() {
        Ok(error) => (*error).into(),
        Err(other) => Status::unknown(chain(other.as_ref())),
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Some errors repeat their cause in their own text.
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl From<UpdateError> for Status {
    fn from(error: UpdateError) -> Self {
        match error {
            UpdateError::Refused(status) => status,
            UpdateError::Lost(error) => error.into(),
            other => Self::unknown(other.to_string()),
        }
    }
}

// === the Plugin service ===

macro_rules! pod_notices {
    ($($method:ident: $request:ident -> $response:ident, $event:ident;)*) => {$(
        async fn $method(
            &self,
            call: ServerContext,
            request: api::$request,
        ) -> Result<api::$response, Status> {
            self.of_pod(call, Event::$event, request.pod).await?;
            Ok(api::$response {})
        }
    )*};
}

macro_rules! container_notices {
    ($($method:ident: $request:ident -> $response:ident, $event:ident;)*) => {$(
        async fn $method(
            &self,
            call: ServerContext,
            request: api::$request,
        ) -> Result<api::$response, Status> {
            self.of_container(call, Event::$event, request.pod, request.container).await?;
            Ok(api::$response {})
        }
    )*};
}

impl<P: Plugin> api::Plugin for Dispatch<P> {
    async fn configure(
        &self,
        call: ServerContext,
        request: ConfigureRequest,
    ) -> Result<ConfigureResponse, Status> {
        let told = self.configured.lock().take();
        match self.subscription(call, request).await {
            Ok(events) => {
                let _ = told.map(|told| told.send(Ok(())));
                Ok(ConfigureResponse { events, failure_policy: self.failure_policy })
            }
            Err(error) => {
                let answer = Status::unknown(chain(error.as_ref()));
                // Who runs the plugin gets the error itself, and ends.
                let _ = told.map(|told| told.send(Err(error)));
                Err(answer)
            }
        }
    }

    async fn synchronize(
        &self,
        call: ServerContext,
        request: SynchronizeRequest,
    ) -> Result<SynchronizeResponse, Status> {
        let more = request.more;
        let Some(handler) = &self.handlers.synchronize else {
            return Ok(SynchronizeResponse { update: Vec::new(), more });
        };
        self.keep(request)?;
        if more {
            return Ok(SynchronizeResponse { update: Vec::new(), more });
        }
        let world = std::mem::take(&mut *self.parts.lock());
        let updates = self.run(call, None, Some(handler), (world,)).await.map_err(status)?;
        Ok(SynchronizeResponse { update: updates.into(), more: false })
    }

    async fn shutdown(&self, call: ServerContext, _: Empty) -> Result<Empty, Status> {
        let handler = self.handlers.shutdown.as_ref();
        self.run(call, None, handler, ()).await.map_err(status)?;
        Ok(Empty {})
    }

    pod_notices! {
        run_pod_sandbox: RunPodSandboxRequest -> RunPodSandboxResponse, RunPodSandbox;
        post_update_pod_sandbox:
            PostUpdatePodSandboxRequest -> PostUpdatePodSandboxResponse, PostUpdatePodSandbox;
        stop_pod_sandbox: StopPodSandboxRequest -> StopPodSandboxResponse, StopPodSandbox;
        remove_pod_sandbox: RemovePodSandboxRequest -> RemovePodSandboxResponse, RemovePodSandbox;
    }

    container_notices! {
        post_create_container:
            PostCreateContainerRequest -> PostCreateContainerResponse, PostCreateContainer;
        start_container: StartContainerRequest -> StartContainerResponse, StartContainer;
        post_start_container:
            PostStartContainerRequest -> PostStartContainerResponse, PostStartContainer;
        post_update_container:
            PostUpdateContainerRequest -> PostUpdateContainerResponse, PostUpdateContainer;
        remove_container: RemoveContainerRequest -> RemoveContainerResponse, RemoveContainer;
    }

    async fn update_pod_sandbox(
        &self,
        call: ServerContext,
        request: UpdatePodSandboxRequest,
    ) -> Result<UpdatePodSandboxResponse, Status> {
        let resources = PodResources::from(&request);
        let handler = self.handlers.update_pod.as_ref();
        let request = (request.pod.unwrap_or_default(), resources);
        let event = Some(Event::UpdatePodSandbox);
        self.run(call, event, handler, request).await.map_err(status)?;
        Ok(UpdatePodSandboxResponse {})
    }

    async fn create_container(
        &self,
        call: ServerContext,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let container = request.container.unwrap_or_default();
        let id = container.id.clone();
        let handler = self.handlers.create.as_ref();
        let request = (request.pod.unwrap_or_default(), container);
        let event = Some(Event::CreateContainer);
        let creation = self.run(call, event, handler, request).await.map_err(status)?;
        if creation.updates.get(&id).is_some() {
            // The runtime would refuse it as well, in fewer words.
            let why = "the container being created has an adjustment, not an update";
            return Err(Status::invalid_argument(why));
        }
        CreateContainerResponse::try_from(creation)
            .map_err(|error| Status::invalid_argument(format!("adjustment: {error}")))
    }

    async fn update_container(
        &self,
        call: ServerContext,
        request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        let resources = request.linux_resources.as_ref().map(Resources::from).unwrap_or_default();
        let handler = self.handlers.update.as_ref();
        let (pod, container) = (request.pod, request.container);
        let request = (pod.unwrap_or_default(), container.unwrap_or_default(), resources);
        let event = Some(Event::UpdateContainer);
        self.run(call, event, handler, request).await.map(Into::into).map_err(status)
    }

    async fn stop_container(
        &self,
        call: ServerContext,
        request: StopContainerRequest,
    ) -> Result<StopContainerResponse, Status> {
        let handler = self.handlers.stop.as_ref();
        let request = (request.pod.unwrap_or_default(), request.container.unwrap_or_default());
        let event = Some(Event::StopContainer);
        let updates = self.run(call, event, handler, request).await.map_err(status)?;
        Ok(StopContainerResponse { update: updates.into() })
    }

    /// What runtimes before NRI 0.12 send instead of the calls that only tell.
    async fn state_change(
        &self,
        call: ServerContext,
        request: StateChangeEvent,
    ) -> Result<Empty, Status> {
        let event = request.event();
        match self.handlers.of_pod.contains_key(&event) {
            true => self.of_pod(call, event, request.pod).await?,
            false => self.of_container(call, event, request.pod, request.container).await?,
        }
        Ok(Empty {})
    }

    async fn validate_container_adjustment(
        &self,
        call: ServerContext,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, Status> {
        let handler = self.handlers.validate.as_ref();
        let event = Some(Event::ValidateContainerAdjustment);
        let verdict = self.run(call, event, handler, (request.into(),)).await;
        let reason = match verdict {
            Ok(Verdict::Accept) => return Ok(ValidateContainerAdjustmentResponse::default()),
            Ok(Verdict::Reject(reason)) => reason,
            Err(error) => chain(error.as_ref()),
        };
        Ok(ValidateContainerAdjustmentResponse { reject: true, reason })
    }
}
