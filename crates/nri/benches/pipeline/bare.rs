//! What plugins can do at all: somebody writes requests and reads answers, and does nothing else.
//! No runtime can be faster with them than that.
//!
//! One request in flight is a thread that asks one plugin after the other, and never sleeps; many
//! are a thread for each plugin that asks it all the time, once or several times at once.

#![allow(clippy::disallowed_types, reason = "there is no paused time in a benchmark")]

use std::{
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread,
    time::{Duration, Instant},
};

use nri::api;
use nri_wire::{About, defaults};
use prost::Message;

use crate::{Case, Plugins, Programs, Result, Row, spec};

const CALLED: u32 = defaults::PLUGIN_SERVICE_CONNECTION;
const SERVED: u32 = defaults::RUNTIME_SERVICE_CONNECTION;
/// Of a frame and of a message in it.
const HEADERS: usize = nri_wire::HEADER_LEN + ttrpc::HEADER_LEN;

pub(crate) fn run(case: &Case, programs: &Programs) -> Result<Row> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket)?;
    let plugins = Plugins::start(case, programs, &socket)?;
    let accept = |_| Wire::accept(&listener);
    let mut wires = (0..case.plugins).map(accept).collect::<Result<Vec<_>>>()?;
    thread::sleep(Duration::from_millis(100));
    let until = Instant::now() + case.span;
    let row = match case.in_flight {
        1 => Row::of(one_after_the_other(&mut wires, until)?, case.span),
        many => {
            let at_once = if case.concurrent { many.div_ceil(case.plugins) } else { 1 };
            let load = |mut wire: Wire| thread::spawn(move || wire.load(at_once, until));
            let threads: Vec<_> = wires.into_iter().map(load).collect();
            let mut times = Vec::new();
            for thread in threads {
                times.extend(thread.join().map_err(|_| "a thread panicked")??);
            }
            let row = Row::of(times, case.span);
            // A request visits all of them.
            Row { rate: row.rate / case.plugins as f64, ..row }
        }
    };
    drop(plugins);
    Ok(row)
}

fn one_after_the_other(wires: &mut [Wire], until: Instant) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    wires.iter().try_for_each(|wire| wire.socket.set_nonblocking(true))?;
    while Instant::now() < until {
        let begun = Instant::now();
        for wire in &mut *wires {
            wire.ask("CreateContainer")?;
            wire.message(CALLED)?;
        }
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// One plugin, connected and synchronised.
struct Wire {
    socket: UnixStream,
    read: Vec<u8>,
    next_stream: u32,
}

/// The envelope of a request, as `proto/ttrpc.proto` has it.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "bytes", tag = "3")]
    payload: bytes::Bytes,
    #[prost(int64, tag = "4")]
    timeout_nano: i64,
}

impl Wire {
    /// Takes in the next plugin that connects.
    fn accept(listener: &UnixListener) -> Result<Self> {
        let (socket, _) = listener.accept()?;
        let mut wire = Self { socket, read: Vec::new(), next_stream: 1 };
        let registration = wire.message(SERVED)?;
        wire.send(SERVED, registration, 2, &[])?;
        for method in ["Configure", "Synchronize"] {
            wire.ask(method)?;
            wire.message(CALLED)?;
        }
        Ok(wire)
    }

    fn load(&mut self, at_once: usize, until: Instant) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        while Instant::now() < until {
            let begun = Instant::now();
            for _ in 0..at_once {
                self.ask("CreateContainer")?;
            }
            for _ in 0..at_once {
                self.message(CALLED)?;
            }
            times.extend((0..at_once).map(|_| begun.elapsed()));
        }
        Ok(times)
    }

    fn ask(&mut self, method: &str) -> Result<()> {
        thread_local!(static REQUEST: bytes::Bytes = request());
        let payload = match method {
            "CreateContainer" => REQUEST.with(bytes::Bytes::clone),
            _ => bytes::Bytes::new(),
        };
        let (service, method) = (api::PluginClient::SERVICE.to_owned(), method.to_owned());
        let request = Request { service, method, payload, timeout_nano: 2_000_000_000 };
        let stream = self.next_stream;
        self.next_stream += 2;
        self.send(CALLED, stream, 1, &request.encode_to_vec())
    }

    fn send(&mut self, connection: u32, stream: u32, kind: u8, payload: &[u8]) -> Result<()> {
        let len = u32::try_from(payload.len())?;
        let mut frame = Vec::with_capacity(HEADERS + payload.len());
        for number in [connection, len + 10, len, stream] {
            frame.extend(number.to_be_bytes());
        }
        frame.extend([kind, 0]);
        frame.extend(payload);
        assert!(frame.len() <= nri_wire::FIRST_FRAME, "it is one frame");
        Ok(self.socket.write_all(&frame)?)
    }

    /// Reads the next message of the connection; returns its stream.
    fn message(&mut self, connection: u32) -> Result<u32> {
        loop {
            while let Some(headers) = self.read.first_chunk::<HEADERS>() {
                let [from, len, stream] = [0, 4, 12].map(|at| {
                    u32::from_be_bytes([
                        headers[at],
                        headers[at + 1],
                        headers[at + 2],
                        headers[at + 3],
                    ])
                });
                let frame = nri_wire::HEADER_LEN + len as usize;
                if self.read.len() < frame {
                    break;
                }
                self.read.drain(..frame);
                if from == connection {
                    return Ok(stream);
                }
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        let mut chunk = [0; 4096];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err("the plugin is gone".into()),
                Ok(read) => {
                    self.read.extend(&chunk[..read]);
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn request() -> bytes::Bytes {
    let pod = api::PodSandbox { id: "pod".into(), name: "pod".into(), ..Default::default() };
    let container = api::Container { id: "0".repeat(64), name: "web".into(), ..(&spec()).into() };
    About { pod: &pod, container: Some(&container) }.encode()
}
