//! Where clients of exec, attach and port-forward connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;
use front_cri::{EngineStreams, Slot, Streaming};
use stream::{Acceptor, Limits};
use tokio::net::TcpListener;

use super::parts::Parts;
use crate::config;

/// Bound, and not served yet.
pub(super) struct Listener {
    tcp: TcpListener,
    tls: Option<Acceptor>,
    base: String,
    limits: Limits,
}

pub(super) async fn listen(settings: &config::Streaming) -> anyhow::Result<Listener> {
    let config::Streaming { address, idle, tls } = settings;
    let tls = match tls.clone() {
        None => None,
        Some((certificate, key)) => {
            let read = tokio::task::spawn_blocking(move || stream::acceptor(&certificate, &key));
            Some(read.await?.context("streaming.tls_certificate, streaming.tls_key")?)
        }
    };
    let tcp = TcpListener::bind(address).await;
    let tcp = tcp.with_context(|| format!("streaming.address: listen on {address}"))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let base = format!("{scheme}://{}", reachable(tcp.local_addr()?));
    Ok(Listener { tcp, tls, base, limits: Limits { idle: *idle, ..Limits::default() } })
}

impl Listener {
    /// Serves as a part of the daemon.
    pub(super) fn serve(self, parts: &mut Parts, slot: Slot) -> Streaming {
        let Self { tcp, tls, base, limits } = self;
        let server = Streaming::new(EngineStreams::new(slot), base, limits);
        let (serving, stop) = (server.clone(), parts.stop_token());
        parts.spawn("streaming server", async move { Ok(serving.serve(tcp, tls, stop).await?) });
        server
    }
}

/// Who listens everywhere is reached here: the kubelet is on this host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_an_address_that_can_be_reached() {
        let check = |given: &str, want: &str| {
            assert_eq!(reachable(given.parse().unwrap()).to_string(), want);
        };
        check("0.0.0.0:5", "127.0.0.1:5");
        check("[::]:5", "[::1]:5");
        check("10.1.2.3:5", "10.1.2.3:5");
    }
}
