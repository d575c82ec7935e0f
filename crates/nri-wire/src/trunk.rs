//! Both ttrpc connections of a trunk, as one thing that lives and ends together.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io, mem,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;
use ttrpc::{Client, Server, Service};

use crate::{
    Mux, MuxError, Socket,
    api::{Plugin, PluginClient, PluginServer, Runtime, RuntimeClient, RuntimeServer},
    defaults::{PLUGIN_SERVICE_CONNECTION, RUNTIME_SERVICE_CONNECTION},
    parts::Parts,
    socket::Look,
};

/// Calls a peer may have in flight with us; one more is refused at once.
const MAX_CALLS: usize = 128;

/// A live trunk. Dropping it closes the socket and fails all calls.
///
/// What is served may be called before [`Trunk::runtime`] or [`Trunk::plugin`] has returned.
#[derive(Debug)]
pub struct Trunk {
    client: Client,
    server: Server,
    stop: CancellationToken,
    tasks: TaskTracker,
    helm: Arc<Mutex<Helm>>,
    look: Option<Look>,
    end: Arc<OnceLock<Result<(), MuxError>>>,
}

/// What there is to do for a trunk, by its own task or by who is in a hurry.
#[derive(Debug, Default)]
struct Helm {
    parts: Parts<Ended>,
    /// Found by somebody else, for the task.
    ended: VecDeque<Ended>,
    /// How reading has ended.
    trunk: Option<Result<(), MuxError>>,
}

#[derive(Debug)]
enum Ended {
    Trunk(Result<(), MuxError>),
    Calling,
    Serving(io::Result<()>),
}

impl Trunk {
    /// The runtime's end: serves `runtime` to the plugin and calls what the plugin serves.
    /// Must be called inside a tokio runtime.
    pub fn runtime<T, R>(io: T, runtime: R) -> (PluginClient, Self)
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
        R: Runtime,
    {
        let service = RuntimeServer::new(runtime);
        let trunk = Self::start(io, service, PLUGIN_SERVICE_CONNECTION, RUNTIME_SERVICE_CONNECTION);
        (PluginClient::new(trunk.client.clone()), trunk)
    }

    /// The same over a socket, which [`Trunk::look`] can look at.
    pub fn runtime_on<R: Runtime>(socket: Socket, runtime: R) -> (PluginClient, Self) {
        let look = Some(socket.look());
        let (client, mut trunk) = Self::runtime(socket, runtime);
        trunk.look = look;
        (client, trunk)
    }

    /// The plugin's end: serves `plugin` to the runtime and calls what the runtime serves.
    /// Must be called inside a tokio runtime.
    pub fn plugin<T, P>(io: T, plugin: P) -> (RuntimeClient, Self)
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
        P: Plugin,
    {
        let service = PluginServer::new(plugin);
        let trunk = Self::start(io, service, RUNTIME_SERVICE_CONNECTION, PLUGIN_SERVICE_CONNECTION);
        (RuntimeClient::new(trunk.client.clone()), trunk)
    }

    fn start<T>(io: T, service: impl Into<Service>, called: u32, served: u32) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut mux = Mux::new(io);
        let mut open = |id| mux.open(id).expect("two ids, neither of them 0, of a new mux");
        let (called, served) = (open(called), open(served));
        let server = Server::builder().max_calls(MAX_CALLS).service(service).build();
        let (client, calling) = Client::driven(called.reader, called.writer);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let mut helm = Helm::default();
        helm.parts.add(async { Ended::Trunk(mux.run().await) });
        helm.parts.add(async {
            calling.await;
            Ended::Calling
        });
        let serving = server.clone();
        helm.parts.add(async move {
            Ended::Serving(serving.serve_parts(served.reader, served.writer).await)
        });
        let (helm, end) = (Arc::new(Mutex::new(helm)), Arc::new(OnceLock::new()));
        let work = {
            let (client, server, stop) = (client.clone(), server.clone(), stop.clone());
            let (helm, end) = (Dismantle(Arc::clone(&helm)), Arc::clone(&end));
            async move {
                let work = poll_fn(|cx| helm.0.lock().poll_end(cx));
                let ended = stop.run_until_cancelled(work).await;
                debug!(?ended, "trunk ended");
                let _ = end.set(ended.unwrap_or(Ok(())));
                server.abort();
                client.close();
            }
        };
        tasks.spawn(work);
        tasks.close();
        Self { client, server, stop, tasks, helm, look: None, end }
    }

    /// For who would rather look for an answer than sleep until it comes: it may be there before
    /// a thread has fallen asleep and been woken.
    pub fn watch(&self) -> Watcher<'_> {
        Watcher { trunk: self, looked: false }
    }

    /// Ends the trunk now: calls in flight fail, handlers are dropped.
    pub fn close(&self) {
        self.stop.cancel();
    }

    /// Ends the trunk in order: new calls of the peer are refused, those in flight are
    /// answered, then it closes. Put a time limit around it.
    ///
    /// Cancel safe: what was begun goes on.
    pub async fn shutdown(&self) {
        self.server.shutdown().await;
        self.tasks.wait().await;
    }

    /// Whether no call can succeed any longer.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed() || self.end.get().is_some()
    }

    /// Resolves when the trunk is gone, whoever ended it: the socket is closed and nothing of
    /// it runs any longer. An end by the peer between two frames, or by us, is no error.
    ///
    /// Cancel safe.
    pub async fn closed(&self) -> Result<(), MuxError> {
        self.tasks.wait().await;
        self.end.get().cloned().unwrap_or(Ok(()))
    }
}

/// Somebody who looks at a trunk. Nobody is told of what comes until it is dropped or has found
/// something.
#[derive(Debug)]
pub struct Watcher<'a> {
    trunk: &'a Trunk,
    looked: bool,
}

impl Watcher<'_> {
    /// Takes in what has come by now, on this thread. Does nothing for a trunk that is not on a
    /// [`Socket`], or that somebody else is at.
    pub fn look(&mut self) {
        let Some(look) = &self.trunk.look else { return };
        if let Some(mut helm) = self.trunk.helm.try_lock() {
            look.ask();
            self.looked = true;
            helm.read();
        }
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        if self.looked {
            self.trunk.helm.lock().read();
        }
    }
}

impl Helm {
    /// Has the trunk read, in the stead of the task.
    fn read(&mut self) {
        self.parts.call_first();
        if let Some(ended) = self.parts.turn() {
            self.ended.push_back(ended);
            self.parts.wake_task();
        }
    }

    /// Ready when the trunk is at its end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), MuxError>> {
        loop {
            let ended = match self.ended.pop_front() {
                Some(ended) => ended,
                None => ready!(self.parts.poll_next(cx)),
            };
            match ended {
                // What came before the end still reaches who waits for it.
                Ended::Trunk(end) => self.trunk = Some(end),
                Ended::Calling => return Poll::Ready(self.trunk.take().unwrap_or(Ok(()))),
                Ended::Serving(_) if self.trunk.is_some() => {}
                // Reading has errors of its own, so this one is of writing.
                Ended::Serving(end) => {
                    return Poll::Ready(end.map_err(|e| MuxError::Write(Arc::new(e))));
                }
            }
        }
    }
}

/// With the task goes all that it did, whoever else could have.
struct Dismantle(Arc<Mutex<Helm>>);

impl Drop for Dismantle {
    fn drop(&mut self) {
        let parts = mem::take(&mut self.0.lock().parts);
        drop(parts);
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
        sync::Notify,
        time::timeout,
    };
    use ttrpc::{Code, Context, ServerContext, Status};

    use super::*;
    use crate::api::{
        ConfigureRequest, ConfigureResponse, Container, ContainerUpdate, Empty,
        RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse, UpdateContainersRequest,
        UpdateContainersResponse,
    };

    /// Echoes updates as failed; knows nothing else.
    struct EchoRuntime;

    impl Runtime for EchoRuntime {
        async fn update_containers(
            &self,
            _: ServerContext,
            request: UpdateContainersRequest,
        ) -> Result<UpdateContainersResponse, Status> {
            Ok(UpdateContainersResponse { failed: request.update })
        }
    }

    /// Synchronize answers an update per container, Configure waits to be let go.
    #[derive(Default)]
    struct SlowPlugin {
        go: Arc<Notify>,
    }

    impl Plugin for SlowPlugin {
        async fn configure(
            &self,
            _: ServerContext,
            _: ConfigureRequest,
        ) -> Result<ConfigureResponse, Status> {
            self.go.notified().await;
            Ok(ConfigureResponse { events: 1, ..ConfigureResponse::default() })
        }

        async fn synchronize(
            &self,
            _: ServerContext,
            request: SynchronizeRequest,
        ) -> Result<SynchronizeResponse, Status> {
            let of = |c: Container| ContainerUpdate { container_id: c.id, ..Default::default() };
            let update = request.containers.into_iter().map(of).collect();
            Ok(SynchronizeResponse { update, more: false })
        }
    }

    fn ctx() -> Context {
        Context::timeout(Duration::from_secs(20))
    }

    fn pair() -> (PluginClient, Trunk, RuntimeClient, Trunk, Arc<Notify>) {
        let (near, far) = UnixStream::pair().unwrap();
        let plugin = SlowPlugin::default();
        let go = Arc::clone(&plugin.go);
        let (to_plugin, near) = Trunk::runtime(near, EchoRuntime);
        let (to_runtime, far) = Trunk::plugin(far, plugin);
        (to_plugin, near, to_runtime, far, go)
    }

    /// About `bytes` of containers.
    fn sync(bytes: usize) -> SynchronizeRequest {
        let container = |i| Container { id: format!("{i:01000}"), ..Default::default() };
        SynchronizeRequest {
            containers: (0..bytes / 1000).map(container).collect(),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn large_messages_cross_in_both_directions_at_once() {
        let (plugin, _near, runtime, _far, _) = pair();
        for bytes in [0, 3000, 5000, 300_000, 4_100_000] {
            let request = sync(bytes);
            let update = request.containers.iter();
            let update = update
                .map(|c| ContainerUpdate { container_id: c.id.clone(), ..Default::default() });
            let unsolicited = UpdateContainersRequest { update: update.collect(), evict: vec![] };
            let (ctx1, ctx2) = (ctx(), ctx());
            let (down, up) = tokio::join!(
                plugin.synchronize(&ctx1, &request),
                runtime.update_containers(&ctx2, &unsolicited),
            );
            assert_eq!(down.unwrap().update, unsolicited.update);
            assert_eq!(up.unwrap().failed, unsolicited.update);
        }
    }

    #[tokio::test]
    async fn what_is_not_served_is_unimplemented() {
        let (plugin, _near, runtime, _far, _) = pair();
        let shutdown = plugin.shutdown(&ctx(), &Empty {}).await;
        assert_eq!(shutdown.unwrap_err().code(), Code::Unimplemented);
        let register = runtime.register_plugin(&ctx(), &RegisterPluginRequest::default()).await;
        assert_eq!(register.unwrap_err().code(), Code::Unimplemented);
    }

    #[tokio::test]
    async fn closing_either_end_fails_calls_and_ends_both() {
        for ours in [true, false] {
            let (plugin, near, _runtime, far, _) = pair();
            let call = async { plugin.configure(&ctx(), &ConfigureRequest::default()).await };
            let close = async {
                tokio::task::yield_now().await;
                if ours { near.close() } else { far.close() }
            };
            let (answer, ()) = tokio::join!(call, close);
            assert!(matches!(answer, Err(ttrpc::Error::Closed { .. })), "{answer:?}");
            near.closed().await.unwrap();
            far.closed().await.unwrap();
            assert!(near.is_closed() && far.is_closed());
        }
    }

    #[tokio::test]
    async fn shutdown_answers_what_is_in_flight() {
        let (plugin, near, _runtime, far, go) = pair();
        let call = async { plugin.configure(&ctx(), &ConfigureRequest::default()).await };
        let shutdown = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            tokio::join!(far.shutdown(), async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                go.notify_one();
            })
        };
        let (answer, _) = tokio::join!(call, shutdown);
        assert_eq!(answer.unwrap().events, 1);
        timeout(Duration::from_secs(5), near.closed()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_dropped_trunk_closes_its_socket_though_clients_remain() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (plugin, trunk) = Trunk::runtime(near, EchoRuntime);
        drop(trunk);
        let read = timeout(Duration::from_secs(5), far.read_u8()).await.unwrap();
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(plugin.configure(&ctx(), &ConfigureRequest::default()).await.is_err());
    }

    #[tokio::test]
    async fn a_peer_that_breaks_the_frames_is_named() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (_plugin, trunk) = Trunk::runtime(near, EchoRuntime);
        far.write_all(&[0, 0, 0, 2, 0x7F, 0, 0, 0]).await.unwrap();
        let end = timeout(Duration::from_secs(5), trunk.closed()).await.unwrap();
        assert!(matches!(end, Err(MuxError::FrameTooLarge { connection: 2, .. })), "{end:?}");
    }

    /// A trunk on a socket, and a plugin on a thread of its own at the other end.
    fn far_away() -> (PluginClient, Trunk, std::thread::JoinHandle<()>) {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let plugin = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let (_, trunk) = Trunk::plugin(Socket::new(far).unwrap(), SlowPlugin::default());
                trunk.closed().await.unwrap();
            });
        });
        let (client, trunk) = Trunk::runtime_on(Socket::new(near).unwrap(), EchoRuntime);
        (client, trunk, plugin)
    }

    /// Looks until it is so. Nothing else runs on this thread meanwhile.
    fn look_until(trunk: &Trunk, mut is_so: impl FnMut() -> bool) {
        let mut watcher = trunk.watch();
        for _ in 0..100_000 {
            if is_so() {
                return;
            }
            watcher.look();
            std::thread::sleep(Duration::from_micros(50));
        }
        panic!("never");
    }

    #[tokio::test]
    async fn who_looks_gets_an_answer_that_no_task_was_told_of() {
        let (client, trunk, plugin) = far_away();
        // The task of the trunk has its own start, and no more.
        tokio::task::yield_now().await;
        // Of more than a socket holds, the rest waits for being told of room.
        for bytes in [0, 5000, 50_000] {
            let (ctx, request) = (ctx(), sync(bytes));
            let mut call = std::pin::pin!(client.synchronize(&ctx, &request));
            let mut answer = None;
            look_until(&trunk, || {
                answer = call.as_mut().now_or_never();
                answer.is_some()
            });
            let updates = answer.unwrap().unwrap().update;
            assert_eq!(updates.len(), request.containers.len());
        }
        trunk.close();
        trunk.closed().await.unwrap();
        tokio::task::spawn_blocking(|| plugin.join()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_looks_and_finds_the_end_leaves_it_to_the_task() {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (client, trunk) = Trunk::runtime_on(Socket::new(near).unwrap(), EchoRuntime);
        tokio::task::yield_now().await;
        drop(far);
        let found = || !trunk.helm.lock().ended.is_empty();
        look_until(&trunk, found);
        timeout(Duration::from_secs(5), trunk.closed()).await.unwrap().unwrap();
        assert!(client.configure(&ctx(), &ConfigureRequest::default()).await.is_err());
        trunk.watch().look();
    }

    #[tokio::test]
    async fn who_has_looked_in_vain_leaves_the_trunk_as_it_was() {
        let (client, trunk, plugin) = far_away();
        tokio::task::yield_now().await;
        let mut watcher = trunk.watch();
        (0..3).for_each(|_| watcher.look());
        drop(watcher);
        let (ctx, request) = (ctx(), sync(5000));
        let answer = timeout(Duration::from_secs(20), client.synchronize(&ctx, &request)).await;
        assert_eq!(answer.expect("somebody is told of it").unwrap().update.len(), 5);
        trunk.close();
        trunk.closed().await.unwrap();
        tokio::task::spawn_blocking(|| plugin.join()).await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn looking_and_calling_from_many_threads_loses_nothing() {
        let (client, trunk, plugin) = far_away();
        let trunk = Arc::new(trunk);
        let calls = TaskTracker::new();
        for _ in 0..4 {
            let (client, trunk) = (client.clone(), Arc::clone(&trunk));
            calls.spawn(async move {
                for i in 0..200 {
                    let (ctx, request) = (ctx(), sync(1000 * (i % 7)));
                    let mut call = std::pin::pin!(client.synchronize(&ctx, &request));
                    let mut looks = i % 5;
                    let answer = poll_fn(|cx| {
                        let mut watcher = trunk.watch();
                        while call.as_mut().poll(cx).is_pending() {
                            if looks == 0 {
                                return Poll::Pending;
                            }
                            looks -= 1;
                            watcher.look();
                        }
                        Poll::Ready(())
                    });
                    timeout(Duration::from_secs(20), answer).await.expect("an answer");
                }
            });
        }
        calls.close();
        calls.wait().await;
        trunk.close();
        trunk.closed().await.unwrap();
        tokio::task::spawn_blocking(|| plugin.join()).await.unwrap().unwrap();
    }
}
