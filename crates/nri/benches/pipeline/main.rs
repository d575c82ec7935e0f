//! Requests through no-op plugins: ours, and the Go adaptation with the same Go plugin
//! program in the same run. One request at a time shows what a request costs, 32 at once
//! what the pipeline is for.
//!
//! A plain program: criterion has no percentiles. Run it with `cargo bench -p nri`; an
//! argument is the number of seconds per row. Without Go it says so and measures nothing.

#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nri::{Ask, BareHost, Container, Nri, Pod, RuntimeInfo, Settings};
use oci_spec::runtime as oci;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::Instant,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What we promise: latency at most this share of theirs, throughput at least this multiple.
const LATENCY: f64 = 0.7;
const THROUGHPUT: f64 = 5.0;

struct Case {
    plugins: usize,
    in_flight: usize,
    span: Duration,
}

/// Requests per second, median and 99th percentile.
struct Row {
    rate: f64,
    p50: Duration,
    p99: Duration,
}

struct Programs {
    plugin: PathBuf,
    adaptation: PathBuf,
}

fn main() -> Result<()> {
    let seconds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(3);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let Some(programs) = runtime.block_on(build())? else {
        println!("SKIPPED: nri pipeline: there is no Go to measure against");
        return Ok(());
    };
    println!(
        "plugins in-flight |  ours/s   p50 µs   p99 µs |    go/s   p50 µs   p99 µs | p50 ×   rate ×"
    );
    for plugins in [1, 3, 10] {
        for in_flight in [1, 32] {
            let case = Case { plugins, in_flight, span: Duration::from_secs(seconds) };
            let ours = runtime.block_on(ours(&case, &programs))?;
            let theirs = runtime.block_on(theirs(&case, &programs))?;
            print_row(&case, &ours, &theirs);
        }
    }
    println!(
        "promised: one in flight p50 ≤ {LATENCY} ×; 32 through ten plugins rate ≥ {THROUGHPUT} ×"
    );
    Ok(())
}

fn print_row(case: &Case, ours: &Row, theirs: &Row) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{:>7} {:>9} | {:>7.0} {:>8.0} {:>8.0} | {:>7.0} {:>8.0} {:>8.0} | {:>5.2} {:>8.2}",
        case.plugins,
        case.in_flight,
        ours.rate,
        micros(ours.p50),
        micros(ours.p99),
        theirs.rate,
        micros(theirs.p50),
        micros(theirs.p99),
        ours.p50.as_secs_f64() / theirs.p50.as_secs_f64(),
        ours.rate / theirs.rate,
    );
}

async fn build() -> Result<Option<Programs>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/nri-go");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let programs = Programs { plugin: out.join("nri-go"), adaptation: out.join("nri-go-bench") };
    for (program, package) in [(&programs.plugin, "."), (&programs.adaptation, "./bench")] {
        let mut go = Command::new("go");
        go.current_dir(&root).args(["build", "-mod=mod", "-o"]).arg(program).arg(package);
        match go.status().await {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("go build: {status}").into()),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(programs))
}

fn plugins(case: &Case, programs: &Programs, socket: &Path) -> Result<Vec<Child>> {
    let start = |i: usize| {
        Command::new(&programs.plugin)
            .args(["-idx", &format!("{i:02}"), "-name", "noop", "-mode", "bench", "-socket"])
            .arg(socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
    };
    Ok((0..case.plugins).map(start).collect::<std::io::Result<_>>()?)
}

async fn end(plugins: Vec<Child>) -> Result<()> {
    for mut plugin in plugins {
        plugin.kill().await?;
    }
    Ok(())
}

async fn ours(case: &Case, programs: &Programs) -> Result<Row> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("s");
    let settings = Settings {
        socket: Some(socket.clone()),
        plugin_dirs: vec![],
        // Ten plugins on two cores under full load are not slow, they are many.
        request_timeout: Duration::from_secs(60),
        ..Settings::default()
    };
    let nri = Nri::new(settings, RuntimeInfo::new("bench", "1"))?;
    nri.start().await?;
    let plugins = plugins(case, programs, &socket)?;
    while nri.plugins().iter().filter(|plugin| plugin.active).count() < case.plugins {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (begun, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let until = begun + case.span;
    let tasks = tokio_util::task::TaskTracker::new();
    let workers: Vec<_> = (0..case.in_flight)
        .map(|_| tasks.spawn(load(nri.clone(), Arc::clone(&next), until)))
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await??);
    }
    let took = begun.elapsed();
    nri.shutdown().await;
    end(plugins).await?;
    times.sort_unstable();
    let rate = times.len() as f64 / took.as_secs_f64();
    Ok(Row { rate, p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] })
}

async fn load(nri: Nri, next: Arc<AtomicU64>, until: Instant) -> Result<Vec<Duration>> {
    let (mut times, host, ask) = (Vec::new(), Arc::new(BareHost), Ask::default());
    let pod = Pod { id: "pod".to_owned(), name: "pod".to_owned(), ..Pod::default() };
    let spec = Arc::new(spec());
    while Instant::now() < until {
        let id = format!("{:064}", next.fetch_add(1, Ordering::Relaxed));
        let (spec, name) = (Arc::clone(&spec), "web".to_owned());
        let container = Container { id, name, spec, ..Container::default() };
        let begun = Instant::now();
        nri.create_container(&pod, &container, Arc::clone(&host) as _, &ask).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// The container of the Go side.
fn spec() -> oci::Spec {
    let mut spec = oci::Spec::default();
    if let Some(process) = spec.process_mut() {
        let env = (0..20).map(|n| format!("SERVICE_{n:02}_HOST=10.0.0.{n}"));
        process.set_env(Some(env.collect())).set_rlimits(None);
        process.set_args(Some(["/usr/bin/web", "--listen", ":8080"].map(str::to_owned).into()));
    }
    let mount = |n: usize| {
        let mut mount = oci::Mount::default();
        let options = ["rbind", "rprivate", "ro"].map(str::to_owned).into();
        mount
            .set_destination(format!("/var/lib/data-{n}").into())
            .set_source(Some(format!("/srv/data-{n}").into()))
            .set_typ(Some("bind".to_owned()))
            .set_options(Some(options));
        mount
    };
    spec.set_mounts(Some((0..10).map(mount).collect()));
    if let Some(linux) = spec.linux_mut() {
        linux.set_namespaces(None);
    }
    spec
}

async fn theirs(case: &Case, programs: &Programs) -> Result<Row> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("s");
    let seconds = case.span.as_secs().max(1);
    let mut adaptation = Command::new(&programs.adaptation)
        .arg(&socket)
        .args([case.plugins, case.in_flight].map(|number| number.to_string()))
        .arg(seconds.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(adaptation.stdout.take().ok_or("no output")?).lines();
    lines.next_line().await?.ok_or("the Go adaptation did not start")?;
    let plugins = plugins(case, programs, &socket)?;
    let line = lines.next_line().await?.ok_or("the Go adaptation failed")?;
    adaptation.wait().await?;
    end(plugins).await?;
    let numbers: Vec<u64> =
        line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let [count, p50, p99] = numbers[..] else { return Err(format!("it said {line:?}").into()) };
    let rate = count as f64 / seconds as f64;
    Ok(Row { rate, p50: Duration::from_nanos(p50), p99: Duration::from_nanos(p99) })
}
