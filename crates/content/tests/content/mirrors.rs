//! `hosts.toml`: who is asked, in which order, with what, and for how long.

use std::{fs, time::Duration};

use base::Kind;
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::{Access, Fault, Registry, Target, TokenFrom},
};
use tokio::time::Instant;

use crate::support::Machine;

/// A registry nobody could reach: what is pulled comes from mirrors.
const UPSTREAM: &str = "upstream.invalid:5000";

fn image() -> Image {
    let layers = (0..4).map(|seed| Layer::of_noise(50_000, seed));
    layers.fold(ImageBuilder::default(), ImageBuilder::layer).build()
}

async fn mirror(image: &Image) -> Registry {
    let registry = Registry::start().await.expect("starts");
    registry.push("a/b", "v1", image);
    registry
}

fn write_hosts(machine: &Machine, registry: &str, text: &str) {
    let dir = machine.home.path().join("certs.d").join(registry);
    fs::create_dir_all(&dir).expect("creates");
    fs::write(dir.join("hosts.toml"), text).expect("writes");
}

/// `[host]` tables in order; the registry itself last.
fn machine(server: &str, mirrors: &[(&Registry, &str)]) -> Machine {
    let machine = Machine::new();
    let table =
        |(mirror, more): &(&Registry, &str)| format!("[host.\"{}\"]\n{more}\n", mirror.url());
    let tables: String = mirrors.iter().map(table).collect();
    write_hosts(&machine, UPSTREAM, &format!("server = \"{server}\"\n{tables}"));
    machine
}

async fn pull(machine: &Machine) -> Result<(), (Kind, String)> {
    let pulled = machine.pull(&format!("{UPSTREAM}/a/b:v1")).await;
    pulled.map(|_| ()).map_err(|e| (e.kind(), base::Chain(&e).to_string()))
}

#[tokio::test]
async fn the_first_mirror_that_can_answers_and_learns_for_whom() {
    let image = image();
    let [first, second, origin] =
        [mirror(&image).await, mirror(&image).await, mirror(&image).await];
    let machine = machine(&origin.url(), &[(&first, ""), (&second, "")]);
    pull(&machine).await.expect("pulls");
    machine.assert_whole(&image);
    assert!(second.seen().is_empty() && origin.seen().is_empty());
    for seen in first.seen() {
        assert_eq!(seen.query, "ns=upstream.invalid%3A5000", "{}", seen.path);
    }
    let names: Vec<_> =
        machine.images.list()[0].record.repo_tags().map(ToString::to_string).collect();
    assert_eq!(names, [format!("{UPSTREAM}/a/b:v1")], "named after the registry, not its mirror");
}

#[tokio::test]
async fn every_failure_of_a_mirror_leads_to_the_next_server() {
    let image = image();
    for fault in [
        Fault::Status(404),
        Fault::Status(401),
        Fault::Status(403),
        Fault::Status(500),
        Fault::TooMany { retry_after: 20 },
        Fault::Hang,
        Fault::StallAfter(10),
        Fault::TruncateAfter(10),
        Fault::WrongBytes,
        Fault::TooLong,
    ] {
        let [bad, origin] = [mirror(&image).await, mirror(&image).await];
        bad.fault(Target::Everything, fault.clone());
        let machine = machine(&origin.url(), &[(&bad, "")]);
        let begun = Instant::now();
        pull(&machine).await.unwrap_or_else(|e| panic!("{fault:?}: {e:?}"));
        machine.assert_whole(&image);
        assert!(!bad.seen().is_empty(), "{fault:?}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{fault:?} took {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_mirror_that_fails_in_the_middle_is_replaced_there() {
    let image = image();
    let [bad, origin] = [mirror(&image).await, mirror(&image).await];
    for layer in &image.layers {
        bad.fault_times(Target::Blob(layer.digest.clone()), Fault::TruncateAfter(30_000), 1);
    }
    bad.fault(Target::Blobs, Fault::Status(500));
    let machine = machine(&origin.url(), &[(&bad, "")]);
    // Its configuration comes from the origin as well.
    pull(&machine).await.expect("pulls");
    machine.assert_whole(&image);
    let resumed = origin.seen().iter().filter(|seen| seen.headers.contains_key("range")).count();
    assert_eq!(resumed, 4);
}

#[tokio::test]
async fn a_hanging_mirror_costs_one_wait_and_not_one_per_blob() {
    let image = image();
    let [hanging, origin] = [mirror(&image).await, mirror(&image).await];
    hanging.fault(Target::Everything, Fault::Hang);
    let machine = machine(&origin.url(), &[(&hanging, "dial_timeout = \"200ms\"")]);
    let begun = Instant::now();
    pull(&machine).await.expect("pulls");
    let took = begun.elapsed();
    assert_eq!(hanging.seen().len(), 1, "{:?}", hanging.seen());
    assert!(took >= Duration::from_millis(1_200) && took < Duration::from_secs(4), "{took:?}");
}

#[tokio::test]
async fn each_host_has_its_own_dial_timeout() {
    // Accepts and says nothing: TLS never begins, and that is part of connecting.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let image = image();
    let origin = mirror(&image).await;
    let machine = Machine::with(|config| {
        config.registry.patience.dial = Duration::from_secs(60);
        config.registry.patience.answer = Duration::from_secs(60);
    });
    let silent = format!("https://{}", silent.local_addr().expect("has one"));
    let hosts =
        format!("server = \"{}\"\n[host.\"{silent}\"]\ndial_timeout = \"300ms\"", origin.url());
    write_hosts(&machine, UPSTREAM, &hosts);
    let begun = Instant::now();
    pull(&machine).await.expect("pulls");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn capabilities_say_what_a_mirror_is_asked() {
    let image = image();
    let [blobs_only, tags_only, origin] =
        [mirror(&image).await, mirror(&image).await, mirror(&image).await];
    let mirrors =
        [(&blobs_only, "capabilities = [\"pull\"]"), (&tags_only, "capabilities = [\"resolve\"]")];
    let machine = machine(&origin.url(), &mirrors);
    pull(&machine).await.expect("pulls");
    assert_eq!(blobs_only.manifest_requests(), 0, "a tag is not for it to resolve");
    assert_eq!(tags_only.seen().len(), 1);
    assert!(origin.seen().is_empty());
}

#[tokio::test]
async fn paths_and_headers_are_the_hosts_own() {
    let image = image();
    let origin = mirror(&image).await;
    let machine = Machine::new();
    let hosts = format!(
        "server = \"{0}\"\n[host.\"{0}/v2/a\"]\noverride_path = true\n\
         [host.\"{0}/v2/a\".header]\nx-one = \"1\"\nx-two = [\"2\"]",
        origin.url()
    );
    write_hosts(&machine, UPSTREAM, &hosts);
    // The mirror's path is `/v2/a`, so `b` is found there as `a/b`.
    machine.pull(&format!("{UPSTREAM}/b:v1")).await.expect("pulls");
    for seen in origin.seen() {
        assert!(seen.path.starts_with("/v2/a/b/"), "{}", seen.path);
        let sent = ["x-one", "x-two"].map(|name| seen.headers.get(name).map(String::as_str));
        assert_eq!(sent, [Some("1"), Some("2")]);
    }
}

#[tokio::test]
async fn hosts_files_are_read_at_each_pull() {
    let image = image();
    let [first, second] = [mirror(&image).await, mirror(&image).await];
    let machine = machine(&first.url(), &[]);
    pull(&machine).await.expect("pulls");
    write_hosts(&machine, UPSTREAM, &format!("server = \"{}\"", second.url()));
    pull(&machine).await.expect("pulls");
    assert_eq!(second.count("HEAD", "/manifests/v1"), 1);
    write_hosts(&machine, UPSTREAM, "server = ");
    let (kind, text) = pull(&machine).await.expect_err("does not parse");
    assert_eq!(kind, Kind::FailedPrecondition);
    assert!(text.contains("hosts.toml"), "{text}");
}

#[tokio::test]
async fn a_default_stands_for_every_registry() {
    let image = image();
    let mirror = mirror(&image).await;
    let machine = Machine::new();
    write_hosts(&machine, "_default", &format!("[host.\"{}\"]", mirror.url()));
    machine.pull("docker.io/a/b:v1").await.expect("pulls");
    assert_eq!(mirror.seen()[0].query, "ns=docker.io");
}

#[tokio::test]
async fn a_mirror_may_want_tokens_of_its_own() {
    let image = image();
    let [private, origin] = [mirror(&image).await, mirror(&image).await];
    private.allow(Access::Token { from: TokenFrom::Anyone, uses: u64::MAX });
    let machine = machine(&origin.url(), &[(&private, "")]);
    pull(&machine).await.expect("pulls");
    assert_eq!(private.count("GET", "/token"), 1);
    assert!(origin.seen().is_empty());
}

#[tokio::test]
async fn when_all_fail_each_is_quoted() {
    let image = image();
    let [first, origin] = [mirror(&image).await, mirror(&image).await];
    first.fault(Target::Everything, Fault::Status(403));
    origin.fault(Target::Everything, Fault::Status(404));
    let machine = machine(&origin.url(), &[(&first, "")]);
    let (kind, text) = pull(&machine).await.expect_err("fails");
    assert_eq!(kind, Kind::NotFound);
    let want = format!(
        "fetch {UPSTREAM}/a/b:v1: {} answered 403: fault; {} answered 404: fault",
        first.url(),
        origin.url()
    );
    assert_eq!(text, want);
}
