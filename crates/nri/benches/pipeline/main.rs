//! Requests through no-op plugins: ours, and the Go adaptation with the same Go plugin
//! program in the same run. One request at a time shows what a request costs, 32 at once
//! what the pipeline is for: with plugins that take one request at a time, as all do unless told
//! otherwise, and with plugins whose policy says that they are `concurrent`.
//!
//! Both sides and, for comparison, the plugins alone ([`bare`]) are measured in turns, and the
//! medians of the turns shown: what else the machine does then happens to all.
//!
//! A plain program: criterion has no percentiles. Run it with `cargo bench -p nri`; an
//! argument is the number of seconds per turn, and `ours=PLUGINS,IN_FLIGHT` measures nothing
//! but that. Without Go it says so and measures nothing.

#![allow(clippy::print_stdout, reason = "the table is the product")]

mod bare;
mod ours;
mod theirs;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use oci_spec::runtime as oci;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What we promise: latency at most this share of theirs, throughput at least this multiple.
const LATENCY: f64 = 0.7;
const THROUGHPUT: f64 = 5.0;

const TURNS: usize = 5;

#[derive(Clone, Copy)]
struct Case {
    plugins: usize,
    in_flight: usize,
    /// The plugins take any number of requests at once.
    concurrent: bool,
    span: Duration,
}

/// Requests per second, median and 99th percentile.
#[derive(Clone, Copy, Default)]
struct Row {
    rate: f64,
    p50: f64,
    p99: f64,
}

struct Programs {
    plugin: PathBuf,
    adaptation: PathBuf,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(1);
    let span = Duration::from_secs(seconds);
    let Some(programs) = build()? else {
        println!("SKIPPED: nri pipeline: there is no Go to measure against");
        return Ok(());
    };
    if let Some(only) = args.iter().find_map(|arg| arg.strip_prefix("ours=")) {
        let (plugins, in_flight) = only.split_once(',').ok_or("ours=PLUGINS,IN_FLIGHT")?;
        let (plugins, in_flight) = (plugins.parse()?, in_flight.parse()?);
        let case =
            Case { plugins, in_flight, concurrent: args.iter().any(|a| a == "concurrent"), span };
        let Row { rate, p50, p99 } = ours::run(&case, &programs)?;
        println!("{rate:.0}/s, p50 {p50:.0} µs, p99 {p99:.0} µs");
        return Ok(());
    }
    println!(
        "                   |           ours            |      Go adaptation        |    plugins alone "
    );
    println!(
        "plugins  in flight |    /s   p50 µs   p99 µs   |    /s   p50 µs   p99 µs   |    /s   p50 µs   | p50 ×  rate × (alone)"
    );
    for plugins in [1, 3, 10] {
        for (in_flight, concurrent) in [(1, false), (32, false), (32, true)] {
            measure(Case { plugins, in_flight, concurrent, span }, &programs)?;
        }
    }
    println!(
        "c: plugins that take many at once. Alone: what no runtime could do better with them."
    );
    println!(
        "promised: one in flight p50 ≤ {LATENCY} ×; 32 through ten plugins rate ≥ {THROUGHPUT} ×"
    );
    Ok(())
}

/// All three in turns.
fn measure(case: Case, programs: &Programs) -> Result<()> {
    let mut rows = [(); 3].map(|()| Vec::new());
    for _ in 0..TURNS {
        rows[0].push(ours::run(&case, programs)?);
        rows[1].push(theirs::run(&case, programs)?);
        rows[2].push(bare::run(&case, programs)?);
    }
    let [ours, theirs, bare] = rows.map(|rows| Row {
        rate: median(&rows, |row| row.rate),
        p50: median(&rows, |row| row.p50),
        p99: median(&rows, |row| row.p99),
    });
    let latency = |row: &Row| row.p50 / theirs.p50;
    let throughput = |row: &Row| row.rate / theirs.rate;
    println!(
        "{:>7} {:>8} {} | {:>6.0} {:>7.0} {:>8.0}   | {:>6.0} {:>7.0} {:>8.0}   | {:>6.0} {:>7.0}   | {:>5.2} {:>6.2}  ({:.2} {:.2})",
        case.plugins,
        case.in_flight,
        if case.concurrent { 'c' } else { ' ' },
        ours.rate,
        ours.p50,
        ours.p99,
        theirs.rate,
        theirs.p50,
        theirs.p99,
        bare.rate,
        bare.p50,
        latency(&ours),
        throughput(&ours),
        latency(&bare),
        throughput(&bare),
    );
    Ok(())
}

fn median(rows: &[Row], of: impl Fn(&Row) -> f64) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Row {
    fn of(mut times: Vec<Duration>, took: Duration) -> Self {
        times.sort_unstable();
        let micros = |at: usize| times[at.min(times.len() - 1)].as_secs_f64() * 1e6;
        Self {
            rate: times.len() as f64 / took.as_secs_f64(),
            p50: micros(times.len() / 2),
            p99: micros(times.len() * 99 / 100),
        }
    }
}

fn build() -> Result<Option<Programs>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/nri-go");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let programs = Programs { plugin: out.join("nri-go"), adaptation: out.join("nri-go-bench") };
    for (program, package) in [(&programs.plugin, "."), (&programs.adaptation, "./bench")] {
        let mut go = Command::new("go");
        go.current_dir(&root).args(["build", "-mod=mod", "-o"]).arg(program).arg(package);
        match go.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("go build: {status}").into()),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(programs))
}

/// Running plugins, ended with this.
struct Plugins(Vec<Child>);

impl Plugins {
    fn start(case: &Case, programs: &Programs, socket: &Path) -> Result<Self> {
        let mut plugins = Self(Vec::new());
        for i in 0..case.plugins {
            let mut command = Command::new(&programs.plugin);
            command
                .args(["-idx", &format!("{i:02}"), "-name", "noop", "-mode", "bench", "-socket"])
                .arg(socket)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            plugins.0.push(command.spawn()?);
        }
        Ok(plugins)
    }
}

impl Drop for Plugins {
    fn drop(&mut self) {
        for plugin in &mut self.0 {
            let _ = plugin.kill();
            let _ = plugin.wait();
        }
    }
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
