//! Connections into pods.
//!
//! A socket belongs to the network namespace in which it was made, whoever uses it later. So
//! a thread that lives for nothing else makes the socket inside the pod, and the rest happens
//! here, as with any other.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    path::PathBuf,
    time::Duration,
};

use base::Kind;
use tokio::net::{TcpSocket, TcpStream};

use crate::{
    error::{EngineError, Result},
    files::blocking,
    record::PodRecord,
    shared::Shared,
};

/// For one address. It is local: who listens, answers at once.
const DIAL: Duration = Duration::from_secs(10);

/// Connects to `port` of the pod's localhost, IPv4 first. Cancel safe.
pub(crate) async fn connect(shared: &Shared, pod: &PodRecord, port: u16) -> Result<TcpStream> {
    let netns = pod.own_network().then(|| shared.layout.netns(&pod.id));
    let v4 = match dial(netns.clone(), (Ipv4Addr::LOCALHOST, port).into()).await? {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    match dial(netns, (Ipv6Addr::LOCALHOST, port).into()).await? {
        Ok(stream) => Ok(stream),
        Err(v6) => Err(EngineError::Failed {
            doing: format!("connect to port {port} of pod {}", pod.id),
            why: format!("127.0.0.1: {v4}; ::1: {v6}"),
            kind: Kind::Unavailable,
        }),
    }
}

/// The inner error is that of the network.
async fn dial(netns: Option<PathBuf>, address: SocketAddr) -> Result<io::Result<TcpStream>> {
    let socket = match blocking(move || socket(netns, address)).await? {
        Ok(socket) => socket,
        // A host without IPv6.
        Err(error) => return Ok(Err(error)),
    };
    let dialled = tokio::time::timeout(DIAL, socket.connect(address)).await;
    Ok(dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
}

fn socket(netns: Option<PathBuf>, address: SocketAddr) -> Result<io::Result<TcpSocket>> {
    let make = || if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    match netns {
        None => Ok(make()),
        Some(path) => {
            let namespace = sys::namespace::open(&path)?;
            Ok(sys::namespace::in_thread(&[namespace.as_fd()], make)?)
        }
    }
}
