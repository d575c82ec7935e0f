//! Our plugins at our own runtime side: inside its process, and over its socket.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "interop/everything.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod everything;

use std::{path::Path, sync::Arc, time::Duration};

use everything::Everything;
use futures_util::future::BoxFuture;
use nri::{
    Ask, BareHost, Container, Domain, DomainError, Nri, Pod, Resources, RuntimeInfo, Settings,
};
use nri_sdk::{
    Adjustment, Answer, Context, Environment, FailurePolicy, Handlers, Plugin, PodSandbox,
    Reconnect, RunError, Stub, Update, UpdateError, Verdict, api,
};
use oci_spec::runtime as oci;
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tokio_util::task::TaskTracker;

const DOMAIN: &str = "k8s.io";

/// Containers that are names: all exist, and one cannot be changed.
#[derive(Default)]
struct Names {
    changes: Mutex<Vec<String>>,
}

impl Domain for Names {
    fn name(&self) -> &str {
        DOMAIN
    }

    fn resources<'a>(
        &'a self,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Resources>, DomainError>> {
        Box::pin(async { Ok(Some(Resources::default())) })
    }

    fn update<'a>(
        &'a self,
        container: &'a str,
        _: &'a Resources,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        Box::pin(async move {
            self.changes.lock().push(format!("update {container}"));
            match container {
                "stubborn" => Err(DomainError::Failed("it will not".into())),
                _ => Ok(()),
            }
        })
    }

    fn evict<'a>(
        &'a self,
        container: &'a str,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), DomainError>> {
        Box::pin(async move {
            self.changes.lock().push(format!("evict {container}: {reason}"));
            Ok(())
        })
    }
}

fn runtime(socket: Option<&Path>) -> (Nri, Arc<Names>) {
    let socket = socket.map(Into::into);
    let settings = Settings { socket, plugin_dirs: vec![], ..Settings::default() };
    let nri = Nri::new(settings, RuntimeInfo::new("own", "1.0")).unwrap();
    let names = Arc::new(Names::default());
    let containers = ["other", "noisy", "stubborn"].map(running);
    nri.add_domain(Arc::<Names>::clone(&names), &[(pod(), nri::State::Running)], &containers);
    (nri, names)
}

fn pod() -> Pod {
    Pod { domain: DOMAIN.into(), id: "p0".into(), name: "web".into(), ..Pod::default() }
}

fn running(name: &str) -> Container {
    Container { state: nri::State::Running, ..container(name) }
}

fn container(name: &str) -> Container {
    let mut process = oci::Process::default();
    process.set_env(Some(vec!["A=1".into(), "B=2".into()]));
    let mut spec = oci::Spec::default();
    spec.set_process(Some(process));
    Container {
        id: name.into(),
        pod_id: "p0".into(),
        name: name.into(),
        spec: Arc::new(spec),
        ..Container::default()
    }
}

fn env(spec: &oci::Spec) -> Vec<String> {
    spec.process().as_ref().and_then(|process| process.env().clone()).unwrap_or_default()
}

fn ask() -> Ask {
    Ask::within(Duration::from_secs(20))
}

async fn ended(running: JoinHandle<Result<(), RunError>>) {
    timeout(Duration::from_secs(20), running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn inside_the_process_of_the_runtime() {
    let (nri, names) = runtime(None);
    nri.start().await.unwrap();
    let builder = Stub::builder(Everything::default()).environment(Environment::default());
    let (builder, theirs) = builder.name("everything").index("10").in_process();
    let stub = builder.build().unwrap();
    let (plugin, handle) = (Arc::clone(stub.plugin()), stub.runtime());
    let plugin_run = TaskTracker::new().spawn(stub.run());
    nri.attach("10-everything".parse().unwrap(), "", theirs).await.unwrap();
    plugin.script(|script| {
        script.creation.adjustment.env.set("C", "3").remove("A").take_over("B", "4");
        script.creation.updates.add(Update::of("other"));
        script.creation.evictions.insert("noisy".into(), "too loud".into());
    });
    nri.run_pod(&pod(), &ask()).await.unwrap();
    let create = async |name: &str| {
        nri.create_container(&pod(), &container(name), Arc::new(BareHost), &ask()).await
    };
    assert_eq!(env(&create("new").await.unwrap().spec), ["B=4", "C=3"]);
    let changes = std::mem::take(&mut *names.changes.lock());
    assert!(changes.contains(&"evict noisy: too loud".to_owned()), "{changes:?}");

    let mut two = [Update::of("other"), Update::of("stubborn")];
    two.iter_mut().for_each(|update| update.resources.cpu.shares = Some(7));
    let error = handle.update_containers(Vec::from(two)).await.unwrap_err();
    let UpdateError::Partial { failed } = error else { panic!("{error}") };
    assert!(failed.get("stubborn").is_some());

    plugin.script(|script| script.verdict = Verdict::Reject("not here".into()));
    let refused = create("newer").await;
    let error = format!("{:#}", refused.unwrap_err());
    assert!(error.contains("not here"), "{error}");
    nri.shutdown().await;
    ended(plugin_run).await;
}

/// It answers nothing at all, and asked that requests fail then.
#[tokio::test]
async fn the_wish_of_a_plugin_is_respected() {
    let settings = Settings {
        socket: None,
        plugin_dirs: vec![],
        request_timeout: Duration::from_millis(50),
        ..Settings::default()
    };
    let nri = Nri::new(settings, RuntimeInfo::new("own", "1.0")).unwrap();
    nri.start().await.unwrap();
    let wish = FailurePolicy { fail_request: true, keep_connected: true };
    let builder = Stub::builder(Silent).environment(Environment::default()).failure_policy(wish);
    let (builder, theirs) = builder.name("silent").index("10").in_process();
    let plugin_run = TaskTracker::new().spawn(builder.build().unwrap().run());
    nri.attach("10-silent".parse().unwrap(), "", theirs).await.unwrap();
    for name in ["first", "second"] {
        let refused =
            nri.create_container(&pod(), &container(name), Arc::new(BareHost), &ask()).await;
        let error = format!("{:#}", refused.unwrap_err());
        assert!(error.contains("10-silent"), "{error}");
    }
    nri.shutdown().await;
    ended(plugin_run).await;
}

struct Silent;

impl Silent {
    async fn never(
        self: Arc<Self>,
        _: Context,
        _: PodSandbox,
        _: api::Container,
    ) -> Answer<Adjustment> {
        std::future::pending().await
    }
}

impl Plugin for Silent {
    fn handlers() -> Handlers<Self> {
        Handlers::new().create_container(Self::never)
    }
}

#[tokio::test]
async fn back_to_a_runtime_that_was_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nri.sock");
    let quick = Reconnect { first: Duration::from_millis(1), max: Duration::from_millis(20) };
    let stub = Stub::builder(Everything::default()).environment(Environment::default());
    let stub = stub.name("everything").index("10").socket(&socket).reconnect(quick);
    let stub = stub.build().unwrap();
    let plugin = Arc::clone(stub.plugin());
    let (stop, stopped) = oneshot::channel::<()>();
    let plugin_run = TaskTracker::new().spawn(stub.run_until(async { _ = stopped.await }));
    for _ in 0..2 {
        let (nri, _names) = runtime(Some(&socket));
        nri.start().await.unwrap();
        let joined = async {
            while !nri.plugins().iter().any(|plugin| plugin.active) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(20), joined).await.unwrap();
        nri.start_container(&pod(), &running("other"), &ask()).await.unwrap();
        let seen = plugin.take_seen();
        assert_eq!(seen, ["Synchronize 1 3", "StartContainer web/other"]);
        nri.shutdown().await;
    }
    stop.send(()).unwrap();
    ended(plugin_run).await;
}
