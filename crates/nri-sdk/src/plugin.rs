//! What a plugin is: a value, and which of its methods handle which events.
//!
//! **Invariant:** the events a plugin subscribes to are exactly those it has handlers for.
//! There is no second list to keep in step: [`Plugin::handlers`] names the methods, and the
//! mask on the wire is read off it. A method that was written and not named there is dead
//! code, and the compiler says so.

use std::{collections::BTreeMap, error::Error, fmt, sync::Arc};

use futures_util::future::BoxFuture;
use nri_wire::{
    EventMask,
    api::{Container, Event, PodSandbox},
};

use crate::{
    Changes, Configuration, Context, Creation, PodResources, Proposal, Resources, Subscription,
    Updates, Verdict, World,
};

/// What went wrong in a handler. `?` makes one of any error. A [`ttrpc::Status`] keeps its
/// code on the wire, everything else becomes `UNKNOWN` with the texts of its chain.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a handler returns.
pub type Answer<T = ()> = Result<T, BoxError>;

/// A plugin, and what it wants to hear of.
///
/// Handlers are async methods on `Arc<Self>`; state that changes needs a lock. The runtime
/// asks one thing at a time, but not every runtime, so do not count on it.
///
/// ```
/// use std::sync::Arc;
/// use nri_sdk::{Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox};
///
/// struct Greeter;
///
/// impl Plugin for Greeter {
///     fn handlers() -> Handlers<Self> {
///         Handlers::new().create_container(Self::create_container)
///     }
/// }
///
/// impl Greeter {
///     async fn create_container(
///         self: Arc<Self>,
///         _: Context,
///         pod: PodSandbox,
///         _: Container,
///     ) -> Answer<Adjustment> {
///         let mut adjustment = Adjustment::new();
///         adjustment.env.set("GREETING", format!("hello {}", pod.name));
///         Ok(adjustment)
///     }
/// }
/// assert_eq!(Greeter::handlers().events().to_string(), "CreateContainer");
/// ```
pub trait Plugin: Send + Sync + Sized + 'static {
    /// Which method handles which event.
    fn handlers() -> Handlers<Self>;
}

/// An async method, or a closure, that takes the plugin, the [`Context`] of the request and
/// the parts of the request, and returns an [`Answer`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle this event",
    note = "a handler is `async fn(self: Arc<{P}>, Context, ...) -> Answer<...>`, with the \
            arguments {A} after the context, an answer that converts into {R}, and a future \
            that is Send"
)]
pub trait Handler<P, A, R>: Send + Sync + 'static {
    fn call(&self, plugin: Arc<P>, ctx: Context, request: A) -> BoxFuture<'static, Answer<R>>;
}

macro_rules! handler {
    ($($name:ident: $type:ident),*) => {
        impl<P, F, Fut, T, R, $($type),*> Handler<P, ($($type,)*), R> for F
        where
            F: Fn(Arc<P>, Context, $($type),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Answer<T>> + Send + 'static,
            T: Into<R>,
        {
            fn call(
                &self,
                plugin: Arc<P>,
                ctx: Context,
                ($($name,)*): ($($type,)*),
            ) -> BoxFuture<'static, Answer<R>> {
                let answer = self(plugin, ctx, $($name),*);
                Box::pin(async move { answer.await.map(Into::into) })
            }
        }
    };
}

handler!();
handler!(a: A);
handler!(a: A, b: B);
handler!(a: A, b: B, c: C);

pub(crate) type Slot<P, A, R> = Option<Arc<dyn Handler<P, A, R>>>;
pub(crate) type PodSlots<P> = BTreeMap<Event, Arc<dyn Handler<P, (PodSandbox,), ()>>>;
pub(crate) type ContainerSlots<P> =
    BTreeMap<Event, Arc<dyn Handler<P, (PodSandbox, Container), ()>>>;

/// The handlers of a plugin. All are optional; an event has at most one, the last given.
///
/// A failure of a handler fails the request: the pod is not run, the container not created
/// or started. Where a request cannot be refused any more the runtime logs it.
pub struct Handlers<P> {
    pub(crate) configure: Slot<P, (Configuration,), Subscription>,
    pub(crate) synchronize: Slot<P, (World,), Updates>,
    pub(crate) shutdown: Slot<P, (), ()>,
    pub(crate) create: Slot<P, (PodSandbox, Container), Creation>,
    pub(crate) update: Slot<P, (PodSandbox, Container, Resources), Changes>,
    pub(crate) stop: Slot<P, (PodSandbox, Container), Updates>,
    pub(crate) update_pod: Slot<P, (PodSandbox, PodResources), ()>,
    pub(crate) validate: Slot<P, (Proposal,), Verdict>,
    /// Events that only tell; older runtimes send all of them as one kind of call.
    pub(crate) of_pod: PodSlots<P>,
    pub(crate) of_container: ContainerSlots<P>,
}

// === impl Handlers ===

macro_rules! slot {
    ($(#[$doc:meta])* $method:ident, $slot:ident, $request:ty, $response:ty) => {
        $(#[$doc])*
        pub fn $method(mut self, handler: impl Handler<P, $request, $response>) -> Self {
            self.$slot = Some(Arc::new(handler));
            self
        }
    };
}

macro_rules! notice {
    ($(#[$doc:meta])* $method:ident, $slots:ident, $event:ident, $request:ty) => {
        $(#[$doc])*
        pub fn $method(mut self, handler: impl Handler<P, $request, ()>) -> Self {
            self.$slots.insert(Event::$event, Arc::new(handler));
            self
        }
    };
}

impl<P: Plugin> Handlers<P> {
    pub fn new() -> Self {
        Self {
            configure: None,
            synchronize: None,
            shutdown: None,
            create: None,
            update: None,
            stop: None,
            update_pod: None,
            validate: None,
            of_pod: BTreeMap::new(),
            of_container: BTreeMap::new(),
        }
    }

    slot! {
        /// The first call on a connection: who the runtime is and what the plugin's
        /// configuration file says. The answer may ask for fewer events than are handled:
        /// an [`EventMask`], or `()` for all of them.
        configure, configure, (Configuration,), Subscription
    }
    slot! {
        /// The second call: all that exists already. It comes again with every connection,
        /// and is then the truth: what is not in it is gone.
        synchronize, synchronize, (World,), Updates
    }
    slot! {
        /// The runtime is about to close the connection.
        shutdown, shutdown, (), ()
    }
    slot! {
        /// A container is about to be created. Answers an
        /// [`Adjustment`](crate::Adjustment), or a [`Creation`] that changes other
        /// containers too.
        create_container, create, (PodSandbox, Container), Creation
    }
    slot! {
        /// The resources of a container are about to change to those given. The answer may
        /// change them further.
        update_container, update, (PodSandbox, Container, Resources), Changes
    }
    slot! {
        /// A container has stopped. What it used can go to others.
        stop_container, stop, (PodSandbox, Container), Updates
    }
    slot! {
        /// The resources of a pod are about to change.
        update_pod_sandbox, update_pod, (PodSandbox, PodResources), ()
    }
    slot! {
        /// Judges what all plugins together made of a creation. An error rejects it too.
        validate_container_adjustment, validate, (Proposal,), Verdict
    }
    notice! {
        /// A pod has its namespaces and its network and is about to become ready.
        run_pod_sandbox, of_pod, RunPodSandbox, (PodSandbox,)
    }
    notice! {
        /// The resources of a pod have changed.
        post_update_pod_sandbox, of_pod, PostUpdatePodSandbox, (PodSandbox,)
    }
    notice! {
        /// All containers of a pod have stopped; its network is still there.
        stop_pod_sandbox, of_pod, StopPodSandbox, (PodSandbox,)
    }
    notice! {
        /// A pod is gone.
        remove_pod_sandbox, of_pod, RemovePodSandbox, (PodSandbox,)
    }
    notice! {
        /// A container has been created, as all plugins together adjusted it.
        post_create_container, of_container, PostCreateContainer, (PodSandbox, Container)
    }
    notice! {
        /// A container is about to start.
        start_container, of_container, StartContainer, (PodSandbox, Container)
    }
    notice! {
        /// A container has started.
        post_start_container, of_container, PostStartContainer, (PodSandbox, Container)
    }
    notice! {
        /// The resources of a container have changed.
        post_update_container, of_container, PostUpdateContainer, (PodSandbox, Container)
    }
    notice! {
        /// A container is gone.
        remove_container, of_container, RemoveContainer, (PodSandbox, Container)
    }

    /// The events that have a handler: what the plugin subscribes to.
    pub fn events(&self) -> EventMask {
        let single = [
            (Event::CreateContainer, self.create.is_some()),
            (Event::UpdateContainer, self.update.is_some()),
            (Event::StopContainer, self.stop.is_some()),
            (Event::UpdatePodSandbox, self.update_pod.is_some()),
            (Event::ValidateContainerAdjustment, self.validate.is_some()),
        ];
        let single = single.into_iter().filter_map(|(event, handled)| handled.then_some(event));
        let notices = self.of_pod.keys().chain(self.of_container.keys()).copied();
        single.chain(notices).fold(EventMask::NONE, EventMask::with)
    }
}

impl<P: Plugin> Default for Handlers<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Plugin> fmt::Debug for Handlers<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("events", &self.events())
            .field("configure", &self.configure.is_some())
            .field("synchronize", &self.synchronize.is_some())
            .field("shutdown", &self.shutdown.is_some())
            .finish()
    }
}
