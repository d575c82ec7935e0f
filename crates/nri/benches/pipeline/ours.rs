//! Our own side.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nri::{Ask, BareHost, Container, Nri, PluginPolicy, Pod, RuntimeInfo, Settings};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::{Case, Plugins, Programs, Result, Row, spec};

pub(crate) fn run(case: &Case, programs: &Programs) -> Result<Row> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(case, programs))
}

async fn measure(case: &Case, programs: &Programs) -> Result<Row> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("s");
    let policy = PluginPolicy { concurrent: case.concurrent, ..PluginPolicy::default() };
    let settings = Settings {
        socket: Some(socket.clone()),
        plugin_dirs: vec![],
        // Ten plugins on two cores under full load are not slow, they are many.
        request_timeout: Duration::from_secs(60),
        plugins: [("noop".to_owned(), policy)].into(),
        ..Settings::default()
    };
    let nri = Nri::new(settings, RuntimeInfo::new("bench", "1"))?;
    nri.start().await?;
    let plugins = Plugins::start(case, programs, &socket)?;
    while nri.plugins().iter().filter(|plugin| plugin.active).count() < case.plugins {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (begun, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let until = begun + case.span;
    let tasks = TaskTracker::new();
    let workers: Vec<_> = (0..case.in_flight)
        .map(|_| tasks.spawn(load(nri.clone(), Arc::clone(&next), until)))
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await??);
    }
    let took = begun.elapsed();
    nri.shutdown().await;
    drop(plugins);
    Ok(Row::of(times, took))
}

async fn load(nri: Nri, next: Arc<AtomicU64>, until: Instant) -> Result<Vec<Duration>> {
    let (mut times, host, ask) = (Vec::new(), Arc::new(BareHost), Ask::default());
    let pod = Pod { id: "pod".to_owned(), name: "pod".to_owned(), ..Pod::default() };
    let (name, spec) = ("web".to_owned(), Arc::new(spec()));
    let container = Container { name, spec, ..Container::default() };
    while Instant::now() < until {
        let id = format!("{:064}", next.fetch_add(1, Ordering::Relaxed));
        let container = Container { id, ..container.clone() };
        let begun = Instant::now();
        nri.create_container(&pod, &container, Arc::clone(&host) as _, &ask).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}
