//! Which proxy a request goes through, by the rules that tools written in Go follow.
//!
//! Each request decides by its own URL: a registry, its token service and the store that it
//! redirects to may differ. Hosts on this machine are always asked directly.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use reqwest::Proxy;
use url::{Host, Url};

/// The proxies as somebody wrote them down.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// The proxy for `http` URLs.
    pub http: Option<String>,
    /// The proxy for `https` URLs, through tunnels.
    pub https: Option<String>,
    /// What needs no proxy, comma-separated: hosts with their subdomains, `.domain` for subdomains
    /// only, addresses, networks, each but networks with a port if wanted; or `*`.
    pub except: Option<String>,
}

impl Proxies {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, each in lower case if that is all there is.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| {
            let upper = get(name).filter(|value| !value.is_empty());
            upper.or_else(|| get(&name.to_ascii_lowercase()).filter(|value| !value.is_empty()))
        };
        Self { http: var("HTTP_PROXY"), https: var("HTTPS_PROXY"), except: var("NO_PROXY") }
    }

    /// Takes from `other` what is not said here; an empty word says "none".
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            http: self.http.or(other.http),
            https: self.https.or(other.https),
            except: self.except.or(other.except),
        }
    }
}

/// Leaves out passwords.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<String>| {
            url.as_deref().map(|url| parse(url).map_or_else(|_| "…".into(), |url| name(&url)))
        };
        f.debug_struct("Proxies")
            .field("http", &shown(&self.http))
            .field("https", &shown(&self.https))
            .field("except", &self.except)
            .finish()
    }
}

/// The URL of a proxy cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("proxy {0}")]
pub struct ProxyError(String);

/// Checks the URL of a proxy; one without a scheme is taken for `http`.
pub fn parse(text: &str) -> Result<Url, ProxyError> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    // What is wrong is said without quoting it: there may be a password in it.
    let url = Url::parse(&full).map_err(|e| ProxyError(format!("is not a URL: {e}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(ProxyError(format!("has the scheme {other:?}, which is not http or https"))),
    }
}

/// As messages show it: without a password.
pub(super) fn name(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The rules, ready for use. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyRules(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    http: Option<Result<Url, ProxyError>>,
    https: Option<Result<Url, ProxyError>>,
    except: Vec<Exception>,
}

impl ProxyRules {
    pub(super) fn new(proxies: &Proxies) -> Self {
        let Proxies { http, https, except } = proxies;
        let given = |url: &Option<String>| url.as_deref().filter(|u| !u.is_empty()).map(parse);
        let words = except.as_deref().unwrap_or_default();
        let words = words.split([',', ' ']).filter(|word| !word.is_empty());
        Self(Arc::new(Inner {
            http: given(http),
            https: given(https),
            except: words.map(Exception::parse).collect(),
        }))
    }

    /// Returns the proxy for a request to `url`; none for one that is made directly.
    pub(super) fn choose(&self, url: &Url) -> Result<Option<&Url>, ProxyError> {
        let proxy = match url.scheme() {
            "http" => &self.0.http,
            "https" => &self.0.https,
            _ => &None,
        };
        let Some(proxy) = proxy else { return Ok(None) };
        let Some(host) = url.host() else { return Ok(None) };
        let port = url.port_or_known_default();
        if is_local(&host) || self.0.except.iter().any(|exception| exception.covers(&host, port)) {
            return Ok(None);
        }
        proxy.as_ref().map(Some).map_err(ProxyError::clone)
    }

    /// For a client; it asks about each request.
    pub(super) fn intercept(&self) -> Proxy {
        let rules = self.clone();
        // A proxy that cannot be used was refused before the request was made.
        Proxy::custom(move |url| rules.choose(url).ok().flatten().cloned())
    }
}

fn is_local(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
        }
    }
}

/// One word of `NO_PROXY`.
#[derive(Debug, PartialEq, Eq)]
enum Exception {
    Everything,
    /// The address and the number of bits that count.
    Network(IpAddr, u32),
    Address(IpAddr, Option<u16>),
    /// With a dot in front.
    Domain {
        suffix: String,
        subdomains_only: bool,
        port: Option<u16>,
    },
}

impl Exception {
    fn parse(word: &str) -> Self {
        let word = word.to_ascii_lowercase();
        if word == "*" {
            return Self::Everything;
        }
        if let Some((ip, bits)) = word.split_once('/')
            && let (Ok(ip), Ok(bits)) = (ip.parse(), bits.parse())
        {
            return Self::Network(ip, bits);
        }
        if let Ok(ip) = word.parse() {
            return Self::Address(ip, None);
        }
        let (host, port) = match word.rsplit_once(':') {
            Some((host, port)) => match port.parse() {
                Ok(port) => (host, Some(port)),
                Err(_) => (&*word, None),
            },
            None => (&*word, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = host.parse() {
            return Self::Address(ip, port);
        }
        let host = host.strip_prefix('*').unwrap_or(host);
        let subdomains_only = host.starts_with('.');
        let suffix = if subdomains_only { host.to_owned() } else { format!(".{host}") };
        Self::Domain { suffix, subdomains_only, port }
    }

    fn covers(&self, host: &Host<&str>, at: Option<u16>) -> bool {
        let on_port = |port: &Option<u16>| port.is_none() || *port == at;
        match (self, host) {
            (Self::Everything, _) => true,
            (Self::Domain { suffix, subdomains_only, port }, Host::Domain(name)) => {
                let is_itself = !subdomains_only && *name == &suffix[1..];
                on_port(port) && (is_itself || name.ends_with(suffix.as_str()))
            }
            (Self::Address(ip, port), host) => on_port(port) && address(host) == Some(*ip),
            (Self::Network(net, bits), host) => {
                address(host).is_some_and(|ip| shares_prefix(*net, ip, *bits))
            }
            _ => false,
        }
    }
}

fn address(host: &Host<&str>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(ip) => Some(IpAddr::V4(*ip)),
        Host::Ipv6(ip) => Some(IpAddr::V6(*ip)),
    }
}

fn shares_prefix(net: IpAddr, ip: IpAddr, bits: u32) -> bool {
    let (net, ip, width) = match (net, ip) {
        (IpAddr::V4(net), IpAddr::V4(ip)) => (u32::from(net).into(), u32::from(ip).into(), 32),
        (IpAddr::V6(net), IpAddr::V6(ip)) => (of_v6(net), of_v6(ip), 128),
        _ => return false,
    };
    let differing: u128 = net ^ ip;
    bits <= width && differing.checked_shr(width - bits).unwrap_or(0) == 0
}

fn of_v6(ip: Ipv6Addr) -> u128 {
    u128::from(ip)
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
        assert_eq!(both, Proxies { https: Some("a".into()), ..Proxies::default() });
        let lower = vars(&[("http_proxy", "h"), ("no_proxy", "x"), ("NO_PROXY", "")]);
        let want = Proxies { http: Some("h".into()), https: None, except: Some("x".into()) };
        assert_eq!(lower, want);
    }

    #[track_caller]
    fn check(except: &str, url: &str, want: bool) {
        let proxy = Some("http://proxy.example:3128".to_owned());
        let proxies =
            Proxies { http: proxy.clone(), https: proxy, except: Some(except.to_owned()) };
        let chosen =
            ProxyRules::new(&proxies).choose(&Url::parse(url).unwrap()).is_ok_and(|p| p.is_some());
        assert_eq!(chosen, want, "{url} with NO_PROXY={except:?}");
    }

    #[test]
    fn what_is_on_this_machine_is_asked_directly() {
        check("", "https://registry.example/v2/", true);
        check("", "http://10.0.0.1:5000/v2/", true);
        check("", "http://localhost:5000/v2/", false);
        check("", "http://127.0.0.1:5000/v2/", false);
        check("", "http://[::1]:5000/v2/", false);
        check("", "http://[::ffff:127.0.0.1]:5000/v2/", false);
    }

    #[test]
    fn exceptions_are_hosts_domains_addresses_and_networks() {
        let registry = "https://registry.example/v2/";
        check("*", registry, false);
        check("registry.example", registry, false);
        check("REGISTRY.example", registry, false);
        check("other.example, registry.example", registry, false);
        check("example", registry, false);
        check(".example", registry, false);
        check("*.example", registry, false);
        check("*.registry.example", registry, true);
        check(".registry.example", registry, true);
        check("try.example", registry, true);
        check("registry.example:443", registry, false);
        check("registry.example:5000", registry, true);
        let address = "http://10.1.2.3:5000/v2/";
        check("10.1.2.3", address, false);
        check("10.1.2.3:5000", address, false);
        check("10.1.2.3:80", address, true);
        check("10.0.0.0/8", address, false);
        check("10.1.2.0/24", address, false);
        check("10.1.3.0/24", address, true);
        check("0.0.0.0/0", address, false);
        check("10.0.0.0/8", "http://[fd00::1]:5000/", true);
        check("fd00::/8", "http://[fd00::1]:5000/", false);
        check("[fd00::1]:5000", "http://[fd00::1]:5000/", false);
        check("fd00::1", "http://[fd00::1]:5000/", false);
    }

    #[test]
    fn each_scheme_has_its_own() {
        let proxies = Proxies { https: Some("s.example:1".to_owned()), ..Proxies::default() };
        let rules = ProxyRules::new(&proxies);
        let choose = |url: &str| rules.choose(&Url::parse(url).unwrap()).unwrap().map(name);
        assert_eq!(choose("https://a.example/").as_deref(), Some("http://s.example:1"));
        assert_eq!(choose("http://a.example/"), None);
    }

    #[test]
    fn a_proxy_has_a_scheme_that_we_speak() {
        let name = |text: &str| parse(text).map(|url| super::name(&url)).map_err(|e| e.to_string());
        assert_eq!(name("proxy:3128").as_deref(), Ok("http://proxy:3128"));
        assert_eq!(name("https://user:secret@proxy").as_deref(), Ok("https://proxy"));
        let socks = "proxy has the scheme \"socks5\", which is not http or https";
        assert_eq!(name("socks5://user:secret@proxy").unwrap_err(), socks);
        assert!(name("http://").unwrap_err().starts_with("proxy is not a URL"));
    }

    #[test]
    fn passwords_do_not_show() {
        let proxies = Proxies {
            http: Some("user:secret@proxy:1".to_owned()),
            https: Some("socks5://user:secret@proxy".to_owned()),
            except: None,
        };
        assert!(!format!("{proxies:?}").contains("secret"));
    }
}
