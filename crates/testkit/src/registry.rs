//! A registry in the test's own process, with switches for everything registries do wrong.
//!
//! It speaks enough of OCI distribution to be pulled from, over http or over TLS with an
//! authority of its own, and counts what it was asked.

mod fault;
mod serve;
mod tls;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::AtomicU64},
};

use anyhow::Result;
use base::Digest;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::image::{Blob, Image, Index};
pub use fault::{Fault, Target};
pub use tls::Authority;

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    scheme: &'static str,
    pub(crate) state: Arc<State>,
    _stop: DropGuard,
}

/// Who may pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Anyone,
    Basic {
        username: String,
        password: String,
    },
    /// By tokens of the registry's own token service, which wants a password, an identity
    /// token, or nothing.
    Token {
        from: TokenFrom,
        uses: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenFrom {
    Anyone,
    Password { username: String, password: String },
    Identity(String),
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) contents: Mutex<Contents>,
    pub(crate) faults: Mutex<Vec<fault::Armed>>,
    pub(crate) access: Mutex<Access>,
    /// How often each token may still be used.
    pub(crate) tokens: Mutex<BTreeMap<String, u64>>,
    pub(crate) token_count: AtomicU64,
    pub(crate) seen: Mutex<Vec<Seen>>,
    /// Body bytes of blobs that were sent.
    pub(crate) sent: Mutex<BTreeMap<Digest, u64>>,
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// By repository: manifests by tag or digest.
    pub(crate) manifests: BTreeMap<(String, String), Blob>,
    pub(crate) blobs: BTreeMap<Digest, Blob>,
    pub(crate) repositories: BTreeSet<String>,
}

impl Registry {
    /// Plain http on a port of the loopback interface.
    pub async fn start() -> Result<Self> {
        Self::start_with("http", None).await
    }

    /// With a certificate of `authority` for `localhost`, 127.0.0.1 and `registry.test`.
    pub async fn start_tls(authority: &Authority) -> Result<Self> {
        Self::start_with("https", Some(authority.acceptor(false)?)).await
    }

    /// The same, and clients must show one of its certificates.
    pub async fn start_mutual_tls(authority: &Authority) -> Result<Self> {
        Self::start_with("https", Some(authority.acceptor(true)?)).await
    }

    async fn start_with(
        scheme: &'static str,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let server = serve::Server {
            state: Arc::clone(&state),
            tls,
            base: format!("{scheme}://{address}"),
            tracker: tracker.clone(),
            stop: stop.clone(),
        };
        tracker.spawn(server.run(listener));
        Ok(Self { address, scheme, state, _stop: stop.drop_guard() })
    }

    /// As it stands in an image name.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    // === contents ===

    pub fn push(&self, repository: &str, tag: &str, image: &Image) {
        self.push_manifest(repository, tag, &image.manifest);
        self.push_blobs(image);
    }

    pub fn push_index(&self, repository: &str, tag: &str, index: &Index) {
        self.push_manifest(repository, tag, &index.blob);
        for image in &index.images {
            self.push_manifest(repository, image.manifest.digest.as_str(), &image.manifest);
            self.push_blobs(image);
        }
    }

    /// A document without what it names.
    pub fn push_manifest(&self, repository: &str, reference: &str, manifest: &Blob) {
        let mut contents = self.state.contents.lock();
        contents.repositories.insert(repository.to_owned());
        for reference in [reference, manifest.digest.as_str()] {
            let key = (repository.to_owned(), reference.to_owned());
            contents.manifests.insert(key, manifest.clone());
        }
    }

    fn push_blobs(&self, image: &Image) {
        let mut contents = self.state.contents.lock();
        for blob in image.blobs() {
            contents.blobs.insert(blob.digest.clone(), blob.clone());
        }
    }

    // === switches ===

    pub fn allow(&self, access: Access) {
        *self.state.access.lock() = access;
    }

    /// From now on, for every request of that kind.
    pub fn fault(&self, target: Target, fault: Fault) {
        self.fault_times(target, fault, usize::MAX);
    }

    /// For the next `times` requests of that kind.
    pub fn fault_times(&self, target: Target, fault: Fault, times: usize) {
        self.state.faults.lock().push(fault::Armed { target, fault, left: times });
    }

    pub fn heal(&self) {
        self.state.faults.lock().clear();
    }

    // === what it was asked ===

    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().clone()
    }

    /// GET requests for a blob.
    pub fn blob_requests(&self, digest: &Digest) -> usize {
        self.count("GET", &format!("/blobs/{digest}"))
    }

    /// GET requests for manifests, by whatever reference.
    pub fn manifest_requests(&self) -> usize {
        let seen = self.state.seen.lock();
        seen.iter().filter(|seen| seen.method == "GET" && seen.path.contains("/manifests/")).count()
    }

    pub fn count(&self, method: &str, path_end: &str) -> usize {
        let seen = self.state.seen.lock();
        seen.iter().filter(|seen| seen.method == method && seen.path.ends_with(path_end)).count()
    }

    /// Bytes of a blob that went out, over all requests.
    pub fn blob_bytes(&self, digest: &Digest) -> u64 {
        self.state.sent.lock().get(digest).copied().unwrap_or_default()
    }

    pub fn forget_requests(&self) {
        self.state.seen.lock().clear();
        self.state.sent.lock().clear();
    }
}
