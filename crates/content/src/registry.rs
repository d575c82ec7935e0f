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
mod session;
mod tls;
mod tries;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use base::Repository;
use reqwest::{Client, NoProxy, Proxy, redirect};
use rustls::RootCertStore;

use credentials::Credentials;
use endpoint::Endpoint;
pub use endpoint::{Fetched, Patience};
pub use error::{Cause, Refusal, RegistryError, SetupError};
use health::Health;
use hosts::Host;
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

/// As the environment gives them, read once by whoever may read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    pub http: Option<String>,
    pub https: Option<String>,
    /// Comma-separated: hosts, domains, addresses, networks, `*`.
    pub except: Option<String>,
}

impl Proxies {
    /// `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in lower case first, as curl
    /// does.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| {
            let lower = get(&name.to_ascii_lowercase()).filter(|value| !value.is_empty());
            lower.or_else(|| get(name).filter(|value| !value.is_empty()))
        };
        let all = var("ALL_PROXY");
        Self {
            http: var("HTTP_PROXY").or_else(|| all.clone()),
            https: var("HTTPS_PROXY").or(all),
            except: var("NO_PROXY"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RegistryConfig,
    health: Health,
    /// Read when the first server with TLS is met.
    system_roots: OnceLock<RootCertStore>,
}

impl Registry {
    pub fn new(config: RegistryConfig) -> Self {
        Self(Arc::new(Inner { config, health: Health::default(), system_roots: OnceLock::new() }))
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
        let mut builder = Client::builder()
            .user_agent(USER_AGENT)
            .redirect(redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .http1_only()
            .connect_timeout(host.dial_timeout.unwrap_or(self.config.patience.dial));
        let config = |e: reqwest::Error| Refusal::Config(e.to_string());
        let Proxies { http, https, except } = &self.config.proxies;
        let except = except.as_deref().and_then(NoProxy::from_string);
        if let Some(url) = http {
            builder = builder.proxy(Proxy::http(url).map_err(config)?.no_proxy(except.clone()));
        }
        if let Some(url) = https {
            builder = builder.proxy(Proxy::https(url).map_err(config)?.no_proxy(except));
        }
        // A plain server may redirect to one with TLS, so each client has it.
        let roots = self.system_roots.get_or_init(tls::system_roots);
        let tls = tls::client_config(roots, &host.tls)?;
        builder.tls_backend_preconfigured(tls).build().map_err(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_come_from_the_variables_everybody_knows() {
        let vars = |set: &'static [(&str, &str)]| {
            Proxies::from_vars(|name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(vars(&[]), Proxies::default());
        let both = vars(&[("HTTPS_PROXY", "a"), ("https_proxy", "b"), ("no_proxy", "")]);
        assert_eq!(both, Proxies { https: Some("b".into()), ..Proxies::default() });
        let all = vars(&[("ALL_PROXY", "a"), ("HTTP_PROXY", "h"), ("NO_PROXY", "x")]);
        assert_eq!(
            (all.http.as_deref(), all.https.as_deref(), all.except.as_deref()),
            (Some("h"), Some("a"), Some("x"))
        );
    }
}
