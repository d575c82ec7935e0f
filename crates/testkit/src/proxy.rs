//! A forward proxy in the test's own process: tunnels by `CONNECT`, and requests that name their
//! server in full.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// No request that tests make has a longer head.
const MAX_HEAD: usize = 64 << 10;

/// Serves until it is dropped. Names that are not among its routes do not exist for it.
#[derive(Debug)]
pub struct ForwardProxy {
    address: SocketAddr,
    state: Arc<State>,
    _stop: DropGuard,
}

#[derive(Debug, Default)]
struct State {
    /// Where `host:port` leads.
    routes: BTreeMap<String, SocketAddr>,
    /// The `Proxy-Authorization` it wants.
    credentials: Option<String>,
    /// Method and target of each request it was sent.
    seen: Mutex<Vec<(String, String)>>,
}

impl ForwardProxy {
    pub async fn start(routes: &[(&str, SocketAddr)]) -> Result<Self> {
        Self::start_with(routes, None).await
    }

    /// The same, for those who send `credentials`, as `Basic …`, only.
    pub async fn start_with(
        routes: &[(&str, SocketAddr)],
        credentials: Option<&str>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let routes = routes.iter().map(|(name, to)| ((*name).to_owned(), *to)).collect();
        let credentials = credentials.map(str::to_owned);
        let state = Arc::new(State { routes, credentials, ..State::default() });
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        tracker.spawn(serve(listener, Arc::clone(&state), tracker.clone(), stop.clone()));
        Ok(Self { address, state, _stop: stop.drop_guard() })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Method and target of each request, in the order they came.
    pub fn seen(&self) -> Vec<(String, String)> {
        self.state.seen.lock().clone()
    }
}

async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    while let Some(Ok((client, _))) = stop.run_until_cancelled(listener.accept()).await {
        let (state, stop) = (Arc::clone(&state), stop.clone());
        tracker.spawn(async move {
            // What went wrong, the client has noticed.
            stop.run_until_cancelled(pass_on(client, &state)).await
        });
    }
}

async fn pass_on(mut client: TcpStream, state: &State) -> Result<()> {
    let head = read_head(&mut client).await?;
    let (line, headers) = head.split_once("\r\n").context("a head has lines")?;
    let [method, target, _] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        bail!("{line:?} is no request line");
    };
    state.seen.lock().push((method.to_owned(), target.to_owned()));
    let of_proxy = |line: &&str| line.to_ascii_lowercase().starts_with("proxy-");
    let sent = headers.lines().filter(of_proxy).find_map(|line| line.split_once(": "));
    if state.credentials.as_deref() != sent.map(|(_, value)| value) && state.credentials.is_some() {
        let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        return Ok(client.write_all(refusal.as_bytes()).await?);
    }
    let (host, request) = match method {
        "CONNECT" => (target.to_owned(), None),
        _ => {
            let (host, path) = split(target)?;
            // One request per connection: the next may be for another server.
            let rest: Vec<_> = headers.lines().filter(|line| !of_proxy(line)).collect();
            let rest = rest.join("\r\n");
            (host, Some(format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{rest}\r\n\r\n")))
        }
    };
    let Some(to) = state.routes.get(&host) else {
        let refusal = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n";
        return Ok(client.write_all(refusal.as_bytes()).await?);
    };
    let mut server = TcpStream::connect(to).await?;
    match request {
        Some(request) => server.write_all(request.as_bytes()).await?,
        None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
    }
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// Without the empty line at its end; nothing that follows it is read.
async fn read_head(client: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
        if head.len() > MAX_HEAD {
            bail!("the head of a request is too long");
        }
    }
    head.truncate(head.len() - 4);
    Ok(String::from_utf8(head)?)
}

/// `host:port` and path of a target in absolute form.
fn split(target: &str) -> Result<(String, String)> {
    let rest = target.strip_prefix("http://").context("a target in absolute form")?;
    let (host, path) = rest.split_once('/').context("a target with a path")?;
    let host = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    Ok((host, format!("/{path}")))
}
