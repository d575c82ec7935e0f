//! Registries that are reached only through a forward proxy.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{fs, path::Path, process::Command};

use testkit::{
    ForwardProxy, Node,
    image::{ImageBuilder, Layer},
    registry::{Authority, Registry},
};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// `user:secret`.
const CREDENTIALS: &str = "Basic dXNlcjpzZWNyZXQ=";

/// Two registries under names that nobody resolves, one with TLS and one without.
struct Registries {
    dir: tempfile::TempDir,
    secure: Registry,
    plain: Registry,
}

impl Registries {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new().unwrap();
        let secure = Registry::start_tls(&authority).await.unwrap();
        let plain = Registry::start().await.unwrap();
        let certs = dir.path().join("certs.d");
        let write = |registry: &str, file: &str, text: &str| {
            fs::create_dir_all(certs.join(registry)).unwrap();
            fs::write(certs.join(registry).join(file), text).unwrap();
        };
        write("registry.test", "ca.crt", &authority.pem());
        write("plain.test:5000", "hosts.toml", "server = 'http://plain.test:5000'\n");
        for registry in [&secure, &plain] {
            let image = ImageBuilder::default().layer(Layer::of_noise(10_000, 1)).build();
            registry.push("a/b", "1", &image);
        }
        Self { dir, secure, plain }
    }

    fn routes(&self) -> [(&'static str, std::net::SocketAddr); 2] {
        [("registry.test:443", self.secure.address()), ("plain.test:5000", self.plain.address())]
    }

    /// A configuration file whose `[registry]` has `more`.
    fn configure(&self, more: &str) -> std::path::PathBuf {
        let path = self.dir.path().join("config.toml");
        let certs = self.dir.path().join("certs.d");
        let text = format!("[registry]\nconfig_dir = '{}'\n{more}", certs.display());
        fs::write(&path, text).unwrap();
        path
    }
}

/// A node whose daemon has these variables, and no others about proxies.
async fn node(test: &str, config: &Path, variables: &[(&str, &str)]) -> Option<Node> {
    let set = |command: &mut Command| {
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"] {
            command.env_remove(name).env_remove(name.to_ascii_lowercase());
        }
        command.arg("--config").arg(config).envs(variables.iter().copied());
    };
    Node::start_with(test, LONGSHORE, set).await
}

#[tokio::test(flavor = "multi_thread")]
async fn images_come_through_the_proxies_of_the_environment() {
    let registries = Registries::start().await;
    let proxy = ForwardProxy::start_with(&registries.routes(), Some(CREDENTIALS)).await.unwrap();
    let with_password = format!("http://user:secret@{}", proxy.address());
    let without_scheme = format!("user:secret@{}", proxy.address());
    let variables = [("HTTPS_PROXY", &*with_password), ("http_proxy", &*without_scheme)];
    let config = registries.configure("");
    let Some(node) = node("images_through_proxies", &config, &variables).await else { return };
    assert_eq!(proxy.seen(), [], "what is on this machine is not asked for elsewhere");
    let cri = node.cri().await.unwrap();

    cri.pull("registry.test/a/b:1").await.unwrap();
    let tunnels = proxy.seen();
    assert!(!tunnels.is_empty());
    for (method, target) in &tunnels {
        assert_eq!((method.as_str(), target.as_str()), ("CONNECT", "registry.test:443"));
    }
    cri.pull("plain.test:5000/a/b:1").await.unwrap();
    for (method, target) in &proxy.seen()[tunnels.len()..] {
        assert!(matches!(method.as_str(), "GET" | "HEAD"), "{method} {target}");
        assert!(target.starts_with("http://plain.test:5000/v2/"), "{target}");
    }
    assert!(
        registries
            .plain
            .seen()
            .iter()
            .all(|seen| { seen.headers.keys().all(|header| !header.starts_with("proxy-")) })
    );
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_of_the_configuration_win_over_the_environment() {
    let registries = Registries::start().await;
    let proxy = ForwardProxy::start(&registries.routes()).await.unwrap();
    // Nobody listens on that port.
    let dead = "http://user:secret@127.0.0.1:1";
    let variables = [("HTTPS_PROXY", dead), ("HTTP_PROXY", dead), ("NO_PROXY", "registry.test")];
    let more = format!("https_proxy = '{}'\nno_proxy = '.plain.test'\n", proxy.url());
    let config = registries.configure(&more);
    let Some(node) = node("proxies_of_the_configuration", &config, &variables).await else {
        return;
    };
    let cri = node.cri().await.unwrap();
    cri.pull("registry.test/a/b:1").await.unwrap();
    assert!(!proxy.seen().is_empty());

    let failed = cri.pull("plain.test:5000/a/b:1").await.unwrap_err();
    assert!(failed.message().contains("proxy http://127.0.0.1:1"), "{failed}");
    assert!(!failed.message().contains("secret"), "{failed}");
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_no_proxy_is_asked_directly() {
    let registries = Registries::start().await;
    let proxy = ForwardProxy::start(&registries.routes()).await.unwrap();
    let url = proxy.url();
    let variables = [("https_proxy", &*url), ("no_proxy", "other.example, .test")];
    let config = registries.configure("");
    let Some(node) = node("what_needs_no_proxy", &config, &variables).await else { return };
    let cri = node.cri().await.unwrap();
    let failed = cri.pull("registry.test/a/b:1").await.unwrap_err();
    assert!(!failed.message().contains("proxy"), "the name is not known here: {failed}");
    assert_eq!(proxy.seen(), []);
    node.finish().await.unwrap();
}
