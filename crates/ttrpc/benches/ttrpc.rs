//! Calls over a socket pair, client and server in one process, against the published
//! `ttrpc` crate in the same run: one at a time and 32 at once, small and 36 KiB.

#[path = "../tests/support/interop.rs"]
mod interop;
#[path = "../tests/support/peer.rs"]
mod peer;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::join_all;
use prost::Message;
use tokio::{
    net::UnixStream,
    runtime::{Builder, Runtime},
    time::Instant,
};
use tokio_util::task::TaskTracker;
use ttrpc::{Client, Context};

const SIZES: [(&str, usize); 2] = [("300B", 300), ("36KiB", 36 << 10)];
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client of either implementation; both encode a typed argument and decode the result.
#[expect(clippy::ptr_arg, reason = "prost encodes a Vec, not a slice")]
trait Echo {
    async fn echo(&self, bytes: &Vec<u8>);
}

struct Ours(Client);

impl Echo for Ours {
    async fn echo(&self, bytes: &Vec<u8>) {
        let ctx = Context::timeout(TIMEOUT);
        let echo: Vec<u8> = self.0.call(interop::name("Echo"), &ctx, bytes).await.expect("an echo");
        assert_eq!(echo.len(), bytes.len());
    }
}

struct Theirs {
    client: ttrpc_peer::asynchronous::Client,
    _server: ttrpc_peer::asynchronous::Server,
}

impl Echo for Theirs {
    async fn echo(&self, bytes: &Vec<u8>) {
        let request = peer::request("Echo", bytes.encode_to_vec(), TIMEOUT);
        let response = self.client.request(request).await.expect("an echo");
        let echo = Vec::<u8>::decode(&*response.payload).expect("bytes");
        assert_eq!(echo.len(), bytes.len());
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn ours(tasks: &TaskTracker) -> Ours {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    tasks.spawn(async move { interop::server().serve_connection(far).await });
    Ours(Client::new(near))
}

async fn theirs() -> Theirs {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    let server = peer::serve(far).await;
    Theirs { client: peer::connect(near), _server: server }
}

fn measure(c: &mut Criterion, runtime: &Runtime, name: &str, client: &impl Echo) {
    for (label, size) in SIZES {
        let bytes = vec![0xA5; size];
        let mut group = c.benchmark_group(format!("ttrpc/{label}"));
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("sequential/{name}"), |b| {
            b.to_async(runtime).iter(|| client.echo(&bytes));
        });
        group.throughput(Throughput::Elements(32));
        group.bench_function(format!("32-way/{name}"), |b| {
            b.to_async(runtime).iter(|| join_all((0..32).map(|_| client.echo(&bytes))));
        });
        group.finish();
    }
}

fn echoes(c: &mut Criterion) {
    let (runtime, tasks) = (runtime(), TaskTracker::new());
    let _inside = runtime.enter();
    let (ours, theirs) = (ours(&tasks), runtime.block_on(theirs()));
    measure(c, &runtime, "ours", &ours);
    measure(c, &runtime, "peer", &theirs);
    // Under `cargo test` criterion runs each benchmark once; then this has no meaning.
    if std::env::args().any(|arg| arg == "--bench") {
        runtime.block_on(percentiles("ours", &ours));
        runtime.block_on(percentiles("peer", &theirs));
    }
}

/// Criterion shows means; the slowest call in a hundred matters as much.
#[expect(clippy::print_stdout, reason = "a benchmark reports")]
async fn percentiles(name: &str, client: &impl Echo) {
    const CALLS: usize = 20_000;
    for (label, size) in SIZES {
        let bytes = vec![0xA5; size];
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let start = Instant::now();
            client.echo(&bytes).await;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let at = |per_cent: usize| times[CALLS * per_cent / 100];
        println!("ttrpc/{label}/sequential/{name}: p50 {:?}, p99 {:?}", at(50), at(99));
    }
}

criterion_group!(benches, echoes);
criterion_main!(benches);
