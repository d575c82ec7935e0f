//! How a plugin comes to its runtime, and back to it.

use std::{io, sync::Arc, time::Duration};

use nri_sdk::{
    Answer, Container, Context, Environment, Handlers, Plugin, PodSandbox, Reconnect, RunError,
    Stub,
    api::{
        self, ConfigureRequest, Empty, RegisterPluginRequest, StartContainerRequest,
        SynchronizeRequest,
    },
    ttrpc::{self, Code, ServerContext, Status},
};
use nri_wire::Trunk;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixListener,
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

struct Nothing;

impl Nothing {
    async fn start(self: Arc<Self>, _: Context, _: PodSandbox, _: Container) -> Answer {
        Ok(())
    }
}

impl Plugin for Nothing {
    fn handlers() -> Handlers<Self> {
        Handlers::new().start_container(Self::start)
    }
}

fn builder() -> nri_sdk::Builder<Nothing> {
    Stub::builder(Nothing).environment(Environment::default()).name("nothing").index("42")
}

/// Registers whoever comes, or refuses.
struct Runtime {
    registered: mpsc::Sender<RegisterPluginRequest>,
    refusal: Option<Status>,
}

impl api::Runtime for Runtime {
    async fn register_plugin(
        &self,
        _: ServerContext,
        request: RegisterPluginRequest,
    ) -> Result<Empty, Status> {
        let _ = self.registered.send(request).await;
        self.refusal.clone().map_or(Ok(Empty {}), Err)
    }
}

fn ctx() -> ttrpc::Context {
    ttrpc::Context::timeout(Duration::from_secs(20))
}

/// The runtime's side of one connection, up to a request that is answered.
async fn serve<T: AsyncRead + AsyncWrite + Send + 'static>(io: T) -> Trunk {
    let (registered, mut registrations) = mpsc::channel(1);
    let (plugin, trunk) = Trunk::runtime(io, Runtime { registered, refusal: None });
    let who = registrations.recv().await.expect("a registration");
    assert_eq!((who.plugin_idx.as_str(), who.plugin_name.as_str()), ("42", "nothing"));
    let greeting = async {
        plugin.configure(&ctx(), &ConfigureRequest::default()).await?;
        plugin.synchronize(&ctx(), &SynchronizeRequest::default()).await?;
        plugin.start_container(&ctx(), &StartContainerRequest::default()).await
    };
    greeting.await.expect("a plugin that answers");
    trunk
}

#[tokio::test]
async fn a_socket_is_waited_for_and_come_back_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nri.sock");
    let quick = Reconnect { first: Duration::from_millis(1), max: Duration::from_millis(5) };
    let stub = builder().socket(&path).reconnect(quick).build().unwrap();
    let runtime = stub.runtime();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = TaskTracker::new().spawn(stub.run_until(async { _ = stopped.await }));
    tokio::time::sleep(Duration::from_millis(20)).await;
    for _ in 0..3 {
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let trunk = serve(stream).await;
        runtime.connected().await;
        // As a runtime that is killed leaves it: the socket file without a listener.
        drop((trunk, listener));
        runtime.disconnected().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        std::fs::remove_file(&path).unwrap();
    }
    stop.send(()).unwrap();
    timeout(Duration::from_secs(5), running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn inside_the_process_of_the_runtime() {
    let (builder, theirs) = builder().in_process();
    let running = TaskTracker::new().spawn(builder.build().unwrap().run());
    let trunk = serve(theirs).await;
    assert!(!running.is_finished());
    trunk.shutdown().await;
    timeout(Duration::from_secs(5), running).await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn attempts_get_rarer() {
    let (attempt, mut attempts) = mpsc::channel(64);
    let dial = move || {
        let attempt = attempt.clone();
        async move {
            let _ = attempt.send(Instant::now()).await;
            Err::<tokio::io::DuplexStream, _>(io::Error::from(io::ErrorKind::ConnectionRefused))
        }
    };
    let stub = builder().dialer(dial).build().unwrap();
    let running = TaskTracker::new().spawn(stub.run());
    let mut last = attempts.recv().await.unwrap();
    let default = Reconnect::default();
    for failures in 0..12 {
        let next = attempts.recv().await.unwrap();
        let longest = (default.first * (1 << failures)).min(default.max);
        // The clock of a paused test has milliseconds.
        let slack = Duration::from_millis(2);
        assert!(next - last <= longest + slack, "{failures}: {:?}", next - last);
        assert!(next - last + slack >= longest / 2, "{failures}: {:?}", next - last);
        last = next;
    }
    running.abort();
}

#[tokio::test]
async fn without_reconnecting_the_first_failure_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.sock");
    let ended = builder().socket(&path).no_reconnect().build().unwrap().run().await;
    let Err(RunError::Connect(error)) = ended else { panic!("{ended:?}") };
    assert!(error.to_string().contains("none.sock"), "{error}");
}

#[tokio::test]
async fn a_refused_registration_is_told() {
    let (builder, theirs) = builder().in_process();
    let (registered, _registrations) = mpsc::channel(1);
    let refusal = Some(Status::invalid_argument("invalid plugin name"));
    let (_plugin, _trunk) = Trunk::runtime(theirs, Runtime { registered, refusal });
    let ended = builder.build().unwrap().run().await;
    let Err(RunError::Register(error)) = ended else { panic!("{ended:?}") };
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_says_nothing_is_left() {
    let limit = Duration::from_secs(3);
    // Deaf from the beginning: the registration has no answer.
    let (builder1, _theirs) = builder().registration_timeout(limit).in_process();
    let ended = builder1.build().unwrap().run().await;
    let Err(RunError::Register(error)) = ended else { panic!("{ended:?}") };
    assert_eq!(error.code(), Code::DeadlineExceeded);
    // Registers, and never configures.
    let (builder2, theirs) = builder().registration_timeout(limit).in_process();
    let (registered, _registrations) = mpsc::channel(1);
    let (_plugin, _trunk) = Trunk::runtime(theirs, Runtime { registered, refusal: None });
    let ended = builder2.build().unwrap().run().await;
    assert!(matches!(ended, Err(RunError::NotConfigured(_))), "{ended:?}");
}

#[tokio::test]
async fn a_runtime_that_closes_before_it_configures_is_told() {
    let (builder, theirs) = builder().in_process();
    let (registered, mut registrations) = mpsc::channel(1);
    let (_plugin, trunk) = Trunk::runtime(theirs, Runtime { registered, refusal: None });
    let close = async {
        registrations.recv().await.unwrap();
        // In order, so that the answer to the registration is out.
        trunk.shutdown().await;
    };
    let (ended, ()) = tokio::join!(builder.build().unwrap().run(), close);
    assert!(matches!(ended, Err(RunError::Rejected)), "{ended:?}");
}

#[tokio::test]
async fn a_stop_while_there_is_no_runtime_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let stub = builder().socket(dir.path().join("none.sock")).build().unwrap();
    let stop = tokio::time::sleep(Duration::from_millis(20));
    timeout(Duration::from_secs(5), stub.run_until(stop)).await.unwrap().unwrap();
}
