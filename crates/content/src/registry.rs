//! The registry client: OCI distribution and Docker v2, for pulling only.
//!
//! ```text
//!  Registry ── session(repository, credentials) ──► Session     one pull; hosts.toml read anew
//!                                                     │
//!                  mirror, mirror, …, the registry ◄──┘ each asked in turn (Tries)
//! ```
//!
//! Any failure of one server leads to the next: refused, hanging, 4xx, 5xx, wrong bytes. A
//! server that hung is asked last for a minute. When all failed and one of the failures
//! may pass, the round is repeated after a pause.
//!
//! **Invariant:** every wait here has a limit of its own, and each server has its own.

mod auth;
pub mod credentials;
mod endpoint;
mod error;
mod health;
pub mod hosts;
pub mod proxy;
mod session;
mod tls;
mod tries;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use base::Repository;
use reqwest::{Client, redirect};
use rustls::RootCertStore;

use credentials::Credentials;
use endpoint::Endpoint;
pub use endpoint::{Fetched, Patience};
pub use error::{Cause, Refusal, RegistryError, SetupError};
use health::Health;
use hosts::Host;
use proxy::{Proxies, ProxyRules};
pub use session::{BlobError as FetchError, Contribution, Session};

const USER_AGENT: &str = concat!("longshore/", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// Directories of `hosts.toml`, the first that knows a registry decides.
    pub hosts_dirs: Vec<PathBuf>,
    pub proxies: Proxies,
    pub patience: Patience,
    /// How often all servers are asked before a pull fails; progress begins anew.
    pub rounds: u32,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            hosts_dirs: vec!["/etc/containerd/certs.d".into(), "/etc/docker/certs.d".into()],
            proxies: Proxies::default(),
            patience: Patience::default(),
            rounds: 3,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RegistryConfig,
    proxies: ProxyRules,
    health: Health,
    /// Read when the first server with TLS is met.
    system_roots: OnceLock<RootCertStore>,
}

impl Registry {
    pub fn new(config: RegistryConfig) -> Self {
        let proxies = ProxyRules::new(&config.proxies);
        let (health, system_roots) = (Health::default(), OnceLock::new());
        Self(Arc::new(Inner { config, proxies, health, system_roots }))
    }

    /// Reads `hosts.toml` and certificates; blocks while it does.
    pub fn session(
        &self,
        repository: &Repository,
        credentials: &Credentials,
    ) -> Result<Session, SetupError> {
        let hosts = hosts::hosts(&self.0.config.hosts_dirs, repository.registry())?;
        let last = hosts.len().saturating_sub(1);
        let endpoint = |(at, host): (usize, Host)| Endpoint {
            client: self.0.client(&host),
            proxies: self.0.proxies.clone(),
            host,
            patience: self.0.config.patience,
            is_last: at == last,
            repository: repository.path().to_owned(),
            credentials: credentials.clone(),
            grant: tokio::sync::Mutex::default(),
        };
        let endpoints = hosts.into_iter().enumerate().map(endpoint).collect();
        Ok(Session::new(self.clone(), repository.clone(), credentials.clone(), endpoints))
    }
}

impl Inner {
    /// An error here is that of one server: the others may still do.
    fn client(&self, host: &Host) -> Result<Client, Refusal> {
        let builder = Client::builder()
            .user_agent(USER_AGENT)
            .redirect(redirect::Policy::none())
            .referer(false)
            // The environment is not the library's to read.
            .no_proxy()
            .proxy(self.proxies.intercept())
            .http1_only()
            .connect_timeout(host.dial_timeout.unwrap_or(self.config.patience.dial));
        let config = |e: reqwest::Error| Refusal::Config(e.to_string());
        // A plain server may redirect to one with TLS, so each client has it.
        let roots = self.system_roots.get_or_init(tls::system_roots);
        let tls = tls::client_config(roots, &host.tls)?;
        builder.tls_backend_preconfigured(tls).build().map_err(config)
    }
}
