//! Who may pull, and what is sent to whom.

use base::Kind;
use content::{AuthConfig, PullOptions};
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::{Access, Authority, Fault, Registry, Target, TokenFrom},
};

use crate::support::Machine;

fn image() -> Image {
    let builder = ImageBuilder::default();
    builder.layer(Layer::of_noise(1_000, 1)).layer(Layer::of_noise(1_000, 2)).build()
}

fn password(username: &str, password: &str) -> AuthConfig {
    let (username, password) = (username.to_owned(), password.to_owned());
    AuthConfig { username, password, ..AuthConfig::default() }
}

async fn pull(registry: &Registry, auth: AuthConfig) -> Result<Machine, (Kind, String)> {
    let machine = Machine::new();
    let options = PullOptions { auth, ..PullOptions::default() };
    let pulled = machine.pull_with(&format!("{}/a/b:v1", registry.host()), options).await;
    pulled.map(|_| machine).map_err(|e| (e.kind(), base::Chain(&e).to_string()))
}

async fn registry(access: Access) -> Registry {
    let registry = Registry::start().await.expect("starts");
    registry.push("a/b", "v1", &image());
    registry.allow(access);
    registry
}

#[tokio::test]
async fn basic() {
    let (username, password_text) = ("u".to_owned(), "p:q".to_owned());
    let registry = registry(Access::Basic { username, password: password_text }).await;
    pull(&registry, password("u", "p:q")).await.expect("may");
    let encoded = AuthConfig { auth: "dTpwOnE=".to_owned(), ..AuthConfig::default() };
    pull(&registry, encoded).await.expect("may");
    let (kind, text) = pull(&registry, password("u", "wrong")).await.expect_err("may not");
    assert_eq!(kind, Kind::FailedPrecondition);
    assert!(text.contains("unauthorized") && !text.contains("wrong"), "{text}");
    pull(&registry, AuthConfig::default()).await.expect_err("may not");
    let elsewhere =
        AuthConfig { server_address: "https://other.example".to_owned(), ..password("u", "p:q") };
    registry.forget_requests();
    pull(&registry, elsewhere).await.expect_err("may not");
    let sent = registry.seen().iter().any(|seen| seen.headers.contains_key("authorization"));
    assert!(!sent, "credentials of another registry were sent");
}

#[tokio::test]
async fn tokens_from_every_kind_of_service() {
    let username = || "u".to_owned();
    let by_password = TokenFrom::Password { username: username(), password: "p".to_owned() };
    let identity = AuthConfig { identity_token: "id".to_owned(), ..AuthConfig::default() };
    for (from, auth) in [
        (TokenFrom::Anyone, AuthConfig::default()),
        (by_password.clone(), password("u", "p")),
        (TokenFrom::Identity("id".to_owned()), identity),
    ] {
        let registry = registry(Access::Token { from, uses: u64::MAX }).await;
        pull(&registry, auth).await.expect("may");
        assert_eq!(registry.count("GET", "/token") + registry.count("POST", "/token"), 1);
        let token = registry.seen().into_iter().find(|seen| seen.path == "/token");
        let token = token.expect("was asked");
        assert!(token.query.is_empty() || token.query.contains("repository%3Aa%2Fb%3Apull"));
    }
    let registry = registry(Access::Token { from: by_password, uses: u64::MAX }).await;
    let (kind, text) = pull(&registry, password("u", "wrong")).await.expect_err("may not");
    assert_eq!(kind, Kind::FailedPrecondition);
    assert!(text.contains("bad_credentials"), "{text}");
}

#[tokio::test]
async fn a_registry_token_is_sent_as_it_is() {
    let registry = registry(Access::Token { from: TokenFrom::Identity("x".into()), uses: 9 }).await;
    let auth = AuthConfig { registry_token: "mine".to_owned(), ..AuthConfig::default() };
    pull(&registry, auth).await.expect_err("is not known there");
    let seen = registry.seen();
    let sent: Vec<_> = seen.iter().filter_map(|seen| seen.headers.get("authorization")).collect();
    assert_eq!(sent, ["Bearer mine"]);
}

#[tokio::test]
async fn a_token_that_ended_is_renewed() {
    // Manifest, configuration and two layers on tokens of two requests each.
    let registry = registry(Access::Token { from: TokenFrom::Anyone, uses: 2 }).await;
    pull(&registry, AuthConfig::default()).await.expect("renews");
    assert!(registry.count("GET", "/token") >= 2);
}

#[tokio::test]
async fn a_token_service_in_trouble_is_named_and_waited_for() {
    let registry = registry(Access::Token { from: TokenFrom::Anyone, uses: u64::MAX }).await;
    registry.fault_times(Target::Token, Fault::Status(503), 1);
    pull(&registry, AuthConfig::default()).await.expect("asks again");
    registry.fault(Target::Token, Fault::Status(503));
    let (kind, text) = pull(&registry, AuthConfig::default()).await.expect_err("stays away");
    assert_eq!(kind, Kind::Unavailable);
    assert!(text.starts_with("RegistryUnavailable: ") && text.contains("/token"), "{text}");
}

#[tokio::test]
async fn secrets_do_not_follow_a_redirect() {
    let (username, password_text) = ("u".to_owned(), "p".to_owned());
    let registry = registry(Access::Basic { username, password: password_text }).await;
    let storage = Registry::start().await.expect("starts");
    storage.push("a/b", "v1", &image());
    registry.fault(Target::Blobs, Fault::Redirect(storage.url()));
    pull(&registry, password("u", "p")).await.expect("pulls");
    assert!(!storage.seen().is_empty());
    let sent = storage.seen().iter().any(|seen| seen.headers.contains_key("authorization"));
    assert!(!sent, "the password went to the storage");
}

// === TLS ===

async fn tls_machine(registry: &Registry, files: &[(&str, &str)], hosts: &str) -> Machine {
    let machine = Machine::new();
    let dir = machine.home.path().join("certs.d").join(registry.host());
    std::fs::create_dir_all(&dir).expect("creates");
    for (name, text) in files.iter().copied().chain([("hosts.toml", hosts)]) {
        std::fs::write(dir.join(name), text).expect("writes");
    }
    machine
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_configured() {
    let authority = Authority::new().expect("makes one");
    let registry = Registry::start_tls(&authority).await.expect("starts");
    let image = image();
    registry.push("a/b", "v1", &image);
    let name = format!("{}/a/b:v1", registry.host());
    let server = |rest: &str| format!("server = \"{}\"\n{rest}", registry.url());
    let pem = authority.pem();

    let trusting = tls_machine(&registry, &[("ca.pem", &pem)], &server("ca = \"ca.pem\"")).await;
    trusting.pull(&name).await.expect("is trusted");
    trusting.assert_whole(&image);

    let stranger = tls_machine(&registry, &[], &server("")).await;
    let error = stranger.pull(&name).await.expect_err("is not trusted");
    let text = base::Chain(&error).to_string();
    assert!(text.contains("certificate"), "{text}");

    let careless = tls_machine(&registry, &[], &server("skip_verify = true")).await;
    careless.pull(&name).await.expect("does not look");

    let broken = tls_machine(&registry, &[("ca.pem", "nothing")], &server("ca = \"ca.pem\"")).await;
    let error = broken.pull(&name).await.expect_err("has no certificate");
    assert_eq!(error.kind(), Kind::FailedPrecondition);
    assert!(error.to_string().contains("ca.pem: no certificate in it"), "{error}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_configured() {
    let authority = Authority::new().expect("makes one");
    let registry = Registry::start_mutual_tls(&authority).await.expect("starts");
    registry.push("a/b", "v1", &image());
    let name = format!("{}/a/b:v1", registry.host());
    let (certificate, key) = authority.client().expect("makes one");
    let server = |rest: &str| format!("server = \"{}\"\nca = \"ca.pem\"\n{rest}", registry.url());
    let pem = authority.pem();
    let both = format!("{certificate}{key}");
    let files =
        [("ca.pem", &*pem), ("c.cert", &*certificate), ("c.key", &*key), ("both.pem", &*both)];
    for client in ["client = [[\"c.cert\", \"c.key\"]]", "client = \"both.pem\""] {
        let machine = tls_machine(&registry, &files, &server(client)).await;
        machine.pull(&name).await.unwrap_or_else(|e| panic!("{client}: {}", base::Chain(&e)));
    }
    let machine = tls_machine(&registry, &files, &server("")).await;
    machine.pull(&name).await.expect_err("shows nothing");
}
