//! Where CRI clients connect: a unix socket.

use std::path::Path;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error, Uri};

/// A channel to the services behind `socket`. Cancel safe.
pub async fn connect(socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    // The address is a formality: the connector knows its socket.
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}
