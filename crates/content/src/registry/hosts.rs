//! Which servers may answer for a registry: the `hosts.toml` directories.
//!
//! ```text
//!  <root>/<host>_<port>_/hosts.toml     or <root>/<host:port>/, else <root>/_default/
//!  <root>/…/*.crt, *.cert, *.key        Docker's layout, where there is no hosts.toml
//! ```
//!
//! The first root that has a directory for the registry (or a `_default`) decides. Servers
//! are tried in the order of the file, the registry itself comes last. Files are read anew
//! for each pull. A file that does not parse fails the pull by name: going on without the
//! mirrors it lists would surprise more.

use std::{
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base::Span;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use toml::Spanned;
use url::Url;

const FILE: &str = "hosts.toml";
const DEFAULT_DIR: &str = "_default";
const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_SERVER: &str = "registry-1.docker.io";

/// One server that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Scheme, host and port.
    pub base: Url,
    /// Where the API begins: `/v2`, or what `override_path` says; no slash at the end.
    pub api: String,
    /// May be asked for a blob or manifest by digest.
    pub pull: bool,
    /// May be asked what a tag means today.
    pub resolve: bool,
    pub tls: TlsFiles,
    pub headers: Vec<(String, String)>,
    /// For connecting, TLS included.
    pub dial_timeout: Option<Duration>,
    /// The registry a mirror stands for: `?ns=`.
    pub stands_for: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// Trusted beside the system's.
    pub ca: Vec<PathBuf>,
    /// Certificate and key; the key may be in the certificate's file.
    pub client: Vec<(PathBuf, Option<PathBuf>)>,
    pub skip_verify: bool,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum HostsError {
    #[error("read {path}")]
    Read { path: PathBuf, source: Arc<io::Error> },
    #[error("registry {registry:?} is no host name: {why}")]
    Name { registry: String, why: String },
    #[error("{path}: {why}")]
    Parse { path: PathBuf, why: String },
}

/// The servers of `registry` in the order they are tried. Reads files.
pub fn hosts(roots: &[PathBuf], registry: &str) -> Result<Vec<Host>, HostsError> {
    let named = |why| HostsError::Name { registry: registry.to_owned(), why };
    let Some(dir) = directory(roots, registry)? else {
        return Ok(vec![Host::origin(registry).map_err(named)?]);
    };
    let path = dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => {
            parse(registry, &dir, &text).map_err(|why| HostsError::Parse { path, why })
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(HostsError::Read { path, source: Arc::new(e) })
        }
        _ => {
            let tls = docker_layout(&dir)?;
            Ok(vec![Host { tls, ..Host::origin(registry).map_err(named)? }])
        }
    }
}

fn directory(roots: &[PathBuf], registry: &str) -> Result<Option<PathBuf>, HostsError> {
    let escaped = match registry.rsplit_once(':') {
        Some((host, port)) => format!("{host}_{port}_"),
        None => registry.to_owned(),
    };
    for root in roots {
        for name in [escaped.as_str(), registry, DEFAULT_DIR] {
            let dir = root.join(name);
            match fs::metadata(&dir) {
                Ok(_) => return Ok(Some(dir)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(HostsError::Read { path: dir, source: Arc::new(e) }),
            }
        }
    }
    Ok(None)
}

fn docker_layout(dir: &Path) -> Result<TlsFiles, HostsError> {
    let failed = |e| HostsError::Read { path: dir.to_owned(), source: Arc::new(e) };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        files.push(entry.map_err(failed)?.path());
    }
    files.sort();
    let mut tls = TlsFiles::default();
    for file in files {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("crt") => tls.ca.push(file),
            Some("cert") => {
                let key = Some(file.with_extension("key")).filter(|key| key.exists());
                tls.client.push((file, key));
            }
            _ => {}
        }
    }
    Ok(tls)
}

// === the file ===

#[derive(Deserialize)]
struct HostsFile {
    server: Option<String>,
    #[serde(default)]
    host: InOrder,
    #[serde(flatten)]
    settings: HostSettings,
}

/// The tables of the file in the order they are written, which is the order of trying.
#[derive(Default)]
struct InOrder(Vec<(String, HostSettings)>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct HostSettings {
    capabilities: Option<Vec<String>>,
    ca: OneOrMany<PathBuf>,
    client: OneOrMany<ClientFiles>,
    skip_verify: bool,
    header: std::collections::BTreeMap<String, OneOrMany<String>>,
    override_path: bool,
    dial_timeout: Option<Span>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ClientFiles {
    Joined(PathBuf),
    Pair([PathBuf; 2]),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Tables;
        impl<'de> Visitor<'de> for Tables {
            type Value = InOrder;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("tables named by URLs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let mut found: Vec<(Spanned<String>, HostSettings)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    found.push(entry);
                }
                found.sort_by_key(|(name, _)| name.span().start);
                let plain = |(name, settings): (Spanned<String>, _)| (name.into_inner(), settings);
                Ok(InOrder(found.into_iter().map(plain).collect()))
            }
        }
        from.deserialize_map(Tables)
    }
}

fn parse(registry: &str, dir: &Path, text: &str) -> Result<Vec<Host>, String> {
    let HostsFile { server, host: InOrder(mirrors), settings } =
        toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
    let mut hosts = Vec::with_capacity(mirrors.len() + 1);
    for (url, settings) in mirrors {
        let host = Host::at(registry, &url, settings.override_path)?;
        hosts.push(settings.apply(host, dir).map_err(|why| format!("host {url:?}: {why}"))?);
    }
    let last = match server {
        Some(url) => Host::at(registry, &url, settings.override_path)?,
        None => Host::origin(registry)?,
    };
    hosts.push(settings.apply(last, dir)?);
    Ok(hosts)
}

impl HostSettings {
    fn apply(self, host: Host, dir: &Path) -> Result<Host, String> {
        let absolute = |path: PathBuf| dir.join(path);
        let client = |files| match files {
            ClientFiles::Joined(both) => (absolute(both), None),
            ClientFiles::Pair([cert, key]) => (absolute(cert), Some(absolute(key))),
        };
        let tls = TlsFiles {
            ca: self.ca.into_vec().into_iter().map(absolute).collect(),
            client: self.client.into_vec().into_iter().map(client).collect(),
            skip_verify: self.skip_verify,
        };
        let (pull, resolve) = match self.capabilities.as_deref() {
            None | Some([]) => (true, true),
            Some(named) => capabilities(named)?,
        };
        let header = |(name, values): (String, OneOrMany<String>)| {
            values.into_vec().into_iter().map(move |value| (name.clone(), value))
        };
        let headers = self.header.into_iter().flat_map(header).collect();
        let dial_timeout = self.dial_timeout.map(|Span(limit)| limit);
        Ok(Host { pull, resolve, tls, headers, dial_timeout, ..host })
    }
}

fn capabilities(named: &[String]) -> Result<(bool, bool), String> {
    let (mut pull, mut resolve) = (false, false);
    for name in named {
        match name.to_ascii_lowercase().as_str() {
            "pull" => pull = true,
            "resolve" => resolve = true,
            // Known, and nothing we do.
            "push" | "referrers" => {}
            _ => return Err(format!("unknown capability {name:?}")),
        }
    }
    Ok((pull, resolve))
}

impl Host {
    /// The registry itself, as its name says: https, except on this machine.
    pub fn origin(registry: &str) -> Result<Self, String> {
        let server = if registry == DOCKER_HUB { DOCKER_HUB_SERVER } else { registry };
        let scheme = if is_plain_http(server) { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{server}")).map_err(|e| e.to_string())?;
        Ok(Self::new(registry, base, "/v2".to_owned()))
    }

    /// A server as written in the file.
    fn at(registry: &str, url: &str, override_path: bool) -> Result<Self, String> {
        let full = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
        let base = Url::parse(&full).map_err(|e| format!("server {url:?}: {e}"))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(format!("server {url:?} is not an http or https URL"));
        }
        let path = base.path().trim_end_matches('/').to_owned();
        let api = match path.ends_with("/v2") || override_path {
            true => path,
            false => path + "/v2",
        };
        Ok(Self::new(registry, base, api))
    }

    fn new(registry: &str, mut base: Url, api: String) -> Self {
        base.set_path("");
        base.set_query(None);
        base.set_fragment(None);
        let name = authority(&base);
        let own = name == registry || (registry == DOCKER_HUB && name == DOCKER_HUB_SERVER);
        Self {
            base,
            api,
            pull: true,
            resolve: true,
            tls: TlsFiles::default(),
            headers: Vec::new(),
            dial_timeout: None,
            stands_for: (!own).then(|| registry.to_owned()),
        }
    }
}

/// Host and, unless it is the scheme's own, port.
pub fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Registries on the loopback interface have no certificates, unless on the port for them.
fn is_plain_http(server: &str) -> bool {
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (server, None),
    };
    let loopback = host == "localhost"
        || host == "[::1]"
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    loopback && port != Some("443")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line per host: `base api capabilities ns`.
    fn describe(host: &Host) -> String {
        let base = host.base.as_str().trim_end_matches('/');
        let [pull, resolve] =
            [(host.pull, "p"), (host.resolve, "r")].map(|(is, c)| if is { c } else { "-" });
        format!("{base} {} {pull}{resolve} {}", host.api, host.stands_for.as_deref().unwrap_or("-"))
    }

    #[track_caller]
    fn check(registry: &str, text: &str, want: &[&str]) {
        let got = match parse(registry, Path::new("/d"), text) {
            Ok(hosts) => hosts.iter().map(describe).collect(),
            Err(why) => vec![why],
        };
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn servers_come_in_the_order_of_the_file_and_the_registry_last() {
        let text = r#"
            [host."https://z.example"]
            [host."http://a.example:5000/sub"]
              capabilities = ["pull"]
            [host."m.example/custom/api"]
              override_path = true
            [host."https://z.example".header]
              x = "y"
        "#;
        check(
            "docker.io",
            text,
            &[
                "https://z.example /v2 pr docker.io",
                "http://a.example:5000 /sub/v2 p- docker.io",
                "https://m.example /custom/api pr docker.io",
                "https://registry-1.docker.io /v2 pr -",
            ],
        );
        check(
            "r.example",
            "server = \"https://up.example/v2\"\ncapabilities = [\"Resolve\"]",
            &["https://up.example /v2 -r r.example"],
        );
        check("r.example", "[host.\"https://r.example\"]", &["https://r.example /v2 pr -"; 2]);
    }

    #[test]
    fn mistakes_are_told() {
        check(
            "r",
            "[host.\"https://a\"]\ncapabilities = [\"pul\"]",
            &["host \"https://a\": unknown capability \"pul\""],
        );
        check("r", "server = \"ftp://a\"", &["server \"ftp://a\" is not an http or https URL"]);
        assert!(parse("r", Path::new("/d"), "server = 5").is_err());
        assert!(parse("r", Path::new("/d"), "dial_timeout = \"soon\"").is_err());
    }

    #[test]
    fn files_are_relative_to_the_directory() {
        let text = r#"
            ca = "ca.pem"
            client = [["c.cert", "/abs/c.key"], "both.pem"]
            skip_verify = true
            dial_timeout = "200ms"
            [header]
              a = ["1", "2"]
        "#;
        let hosts = parse("r.example", Path::new("/d"), text).expect("parses");
        let host = &hosts[0];
        assert_eq!(host.tls.ca, [Path::new("/d/ca.pem")]);
        let pairs = [("/d/c.cert".into(), Some("/abs/c.key".into())), ("/d/both.pem".into(), None)];
        assert_eq!(host.tls.client, pairs);
        assert!(host.tls.skip_verify);
        assert_eq!(host.dial_timeout, Some(Duration::from_millis(200)));
        assert_eq!(host.headers, [("a".into(), "1".into()), ("a".into(), "2".into())]);
    }

    #[test]
    fn loopback_speaks_http_unless_on_the_port_of_tls() {
        let check = |registry: &str, want: &str| {
            let host = Host::origin(registry).expect("is a host");
            assert_eq!(host.base.as_str(), want, "{registry}");
        };
        check("localhost", "http://localhost/");
        check("localhost:5000", "http://localhost:5000/");
        check("127.9.0.1:5000", "http://127.9.0.1:5000/");
        check("[::1]:5000", "http://[::1]:5000/");
        check("localhost:443", "https://localhost/");
        check("r.example:5000", "https://r.example:5000/");
        check("10.0.0.1", "https://10.0.0.1/");
        check("docker.io", "https://registry-1.docker.io/");
        assert!(Host::origin("localhost:99999").is_err());
    }

    #[test]
    fn directories_are_found_in_containerds_order() {
        let root = tempfile::tempdir().expect("a directory");
        let other = tempfile::tempdir().expect("a directory");
        let roots = [root.path().to_owned(), other.path().to_owned()];
        let find = |registry: &str| directory(&roots, registry).expect("looks");
        assert_eq!(find("r.example:5000"), None);
        let mut expect = None;
        for (root, name) in [
            (&other, "r.example:5000"),
            (&root, "_default"),
            (&root, "r.example:5000"),
            (&root, "r.example_5000_"),
        ] {
            let dir = root.path().join(name);
            fs::create_dir(&dir).expect("creates");
            assert_ne!(find("r.example:5000"), expect);
            expect = Some(dir);
            assert_eq!(find("r.example:5000"), expect);
        }
    }

    #[test]
    fn certificates_in_dockers_layout_are_used() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("r.example");
        fs::create_dir(&dir).expect("creates");
        for name in ["b.crt", "a.crt", "c.cert", "c.key", "d.cert", "readme"] {
            fs::write(dir.join(name), "").expect("writes");
        }
        let hosts = hosts(&[root.path().to_owned()], "r.example").expect("reads");
        assert_eq!(hosts[0].tls.ca, [dir.join("a.crt"), dir.join("b.crt")]);
        let pairs = [(dir.join("c.cert"), Some(dir.join("c.key"))), (dir.join("d.cert"), None)];
        assert_eq!(hosts[0].tls.client, pairs);
    }
}
