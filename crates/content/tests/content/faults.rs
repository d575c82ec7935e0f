//! Every switch of the registry, and what becomes of a pull.

use std::time::Duration;

use base::{Digest, Kind};
use testkit::{
    image::{Image, ImageBuilder, Layer},
    registry::{Fault, Registry, Target},
};

use crate::support::Machine;

const SIZE: usize = 300_000;

struct World {
    machine: Machine,
    registry: Registry,
    image: Image,
}

impl World {
    async fn new() -> Self {
        let registry = Registry::start().await.expect("starts");
        let image = ImageBuilder::default().layer(Layer::of_noise(SIZE, 1)).build();
        registry.push("a", "v1", &image);
        Self { machine: Machine::new(), registry, image }
    }

    fn layer(&self) -> Digest {
        self.image.layers[0].digest.clone()
    }

    async fn pull(&self) -> Result<(), (Kind, String)> {
        let pulled = self.machine.pull(&format!("{}/a:v1", self.registry.host())).await;
        pulled.map(|_| ()).map_err(|e| (e.kind(), base::Chain(&e).to_string()))
    }

    /// The fault is overcome; so many requests for the layer were needed.
    async fn overcomes(&self, requests: usize) {
        self.pull().await.expect("pulls");
        self.machine.assert_whole(&self.image);
        assert_eq!(self.registry.blob_requests(&self.layer()), requests);
        assert_eq!(self.machine.files("ingest"), [""; 0], "nothing half-made is left");
    }

    /// The fault is told; nothing became visible; healed, the pull works.
    async fn fails(&self, kind: Kind, part: &str) {
        let (got, text) = self.pull().await.expect_err("fails");
        assert_eq!(got, kind, "{text}");
        assert!(text.contains(part), "{text}");
        assert_eq!(text.starts_with("RegistryUnavailable: "), kind == Kind::Unavailable, "{text}");
        self.machine.assert_nothing_visible();
        assert!(!self.machine.blob_path(&self.layer()).exists());
        self.registry.heal();
        self.pull().await.expect("pulls once healed");
        self.machine.assert_whole(&self.image);
    }
}

#[tokio::test]
async fn a_slow_registry_is_waited_for() {
    let world = World::new().await;
    // Twice the patience in all, but always some progress.
    let slow = Fault::Slow { piece: SIZE / 8, pause: Duration::from_millis(250) };
    world.registry.fault(Target::Blob(world.layer()), slow);
    world.overcomes(1).await;
}

#[tokio::test]
async fn a_stall_is_ended_and_resumed() {
    let world = World::new().await;
    world.registry.fault_times(Target::Blob(world.layer()), Fault::StallAfter(100_000), 1);
    world.overcomes(2).await;
    assert_eq!(world.registry.blob_bytes(&world.layer()), world.image.layers[0].bytes.len() as u64);
}

#[tokio::test]
async fn a_registry_that_always_stalls_is_given_up() {
    let world = World::new().await;
    world.registry.fault(Target::Blob(world.layer()), Fault::StallAfter(0));
    world.fails(Kind::Unavailable, "no progress within").await;
}

#[tokio::test]
async fn broken_connections_resume_where_they_broke() {
    let world = World::new().await;
    world.registry.fault_times(Target::Blob(world.layer()), Fault::TruncateAfter(40_000), 5);
    world.overcomes(6).await;
    // What had left the server but not arrived is the only thing sent twice.
    let (sent, size) = (world.registry.blob_bytes(&world.layer()), SIZE as u64);
    assert!(sent < size + 5 * 70_000, "{sent} bytes were sent for {size}");
    let seen = world.registry.seen();
    assert!(seen.iter().any(|seen| seen.headers.contains_key("range")));
}

#[tokio::test]
async fn wrong_bytes_of_the_only_server_fail_the_pull() {
    let world = World::new().await;
    world.registry.fault(Target::Blob(world.layer()), Fault::WrongBytes);
    world.fails(Kind::Unavailable, "came with wrong bytes").await;
    assert_eq!(world.machine.files("ingest"), [""; 0], "wrong bytes are not kept");
    assert_eq!(world.registry.blob_requests(&world.layer()), 2);
}

#[tokio::test]
async fn wrong_manifests_are_refused() {
    let world = World::new().await;
    world.registry.fault(Target::Manifests, Fault::WrongBytes);
    world.fails(Kind::Unavailable, " for sha256:").await;
    let world = World::new().await;
    let other = world.layer();
    world.registry.fault(Target::Manifests, Fault::ClaimDigest(other));
    world.fails(Kind::Unavailable, " for sha256:").await;
    let world = World::new().await;
    world.registry.fault(Target::Manifests, Fault::TooLong);
    world.fails(Kind::Invalid, "sent more than the 4194304 bytes").await;
}

#[tokio::test]
async fn a_wrong_length_is_refused_announced_or_not() {
    let world = World::new().await;
    world.registry.fault(Target::Blob(world.layer()), Fault::TooLong);
    world.fails(Kind::Unavailable, "would send").await;
    let world = World::new().await;
    world.registry.fault(Target::Blob(world.layer()), Fault::TooLongChunked);
    world.fails(Kind::Unavailable, "would send").await;
}

#[tokio::test]
async fn server_errors_that_pass_are_overcome() {
    for fault in [Fault::Status(500), Fault::Status(503), Fault::TooMany { retry_after: 1 }] {
        let world = World::new().await;
        world.registry.fault_times(Target::Manifests, fault.clone(), 1);
        world.registry.fault_times(Target::Blob(world.layer()), fault, 2);
        world.overcomes(3).await;
    }
}

#[tokio::test]
async fn errors_that_stay_are_told() {
    for (fault, kind, part) in [
        (Fault::Status(500), Kind::Unavailable, "answered 500: fault"),
        (Fault::Status(404), Kind::NotFound, "answered 404"),
        (Fault::Status(403), Kind::FailedPrecondition, "answered 403"),
        (Fault::Status(401), Kind::FailedPrecondition, "unauthorized"),
    ] {
        let world = World::new().await;
        world.registry.fault(Target::Everything, fault);
        world.fails(kind, part).await;
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let world = World::new().await;
    world.registry.fault(Target::Everything, Fault::Hang);
    world.fails(Kind::Unavailable, "no answer within").await;
}

#[tokio::test]
async fn a_proxy_may_fetch_a_blob_before_it_answers() {
    let world = World::new().await;
    let late = Fault::AnswerAfter(Duration::from_millis(2_300));
    world.registry.fault(Target::Blob(world.layer()), late.clone());
    world.overcomes(1).await;
    let world = World::new().await;
    world.registry.fault(Target::Manifests, late);
    world.fails(Kind::Unavailable, "no answer within 2s").await;
}

#[tokio::test]
async fn a_refused_connection_is_told() {
    let world = World::new().await;
    let name = {
        let gone = Registry::start().await.expect("starts");
        format!("{}/a:v1", gone.host())
    };
    let error = world.machine.pull(&name).await.expect_err("nobody is there");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().starts_with("RegistryUnavailable: "), "{error}");
}

#[tokio::test]
async fn blobs_may_come_from_another_host() {
    let world = World::new().await;
    let storage = Registry::start().await.expect("starts");
    storage.push("a", "v1", &world.image);
    world.registry.fault(Target::Blobs, Fault::Redirect(storage.url()));
    world.overcomes(1).await;
    assert_eq!(storage.blob_requests(&world.layer()), 1);
    let circle = World::new().await;
    circle.registry.fault(Target::Blobs, Fault::Redirect(circle.registry.url()));
    circle.fails(Kind::Unavailable, "redirects in circles").await;
}

#[tokio::test]
async fn broken_ranges_are_overcome() {
    for (fault, requests) in [
        (Fault::IgnoreRange, 2),
        (Fault::RefuseRange, 3),
        (Fault::OtherRange, 3),
        // Noticed at the end only, by the hash; then all of it is fetched.
        (Fault::LieAboutRange, 3),
    ] {
        let world = World::new().await;
        world.registry.fault_times(Target::Blob(world.layer()), Fault::TruncateAfter(100_000), 1);
        world.registry.fault(Target::Blob(world.layer()), fault.clone());
        world.pull().await.unwrap_or_else(|e| panic!("{fault:?}: {e:?}"));
        world.machine.assert_whole(&world.image);
        assert_eq!(world.registry.blob_requests(&world.layer()), requests, "{fault:?}");
    }
}

#[tokio::test]
async fn a_download_goes_on_after_a_restart() {
    let mut world = World::new().await;
    world.registry.fault_times(Target::Blob(world.layer()), Fault::TruncateAfter(128 << 10), 1);
    world.registry.fault(Target::Blob(world.layer()), Fault::Status(404));
    world.pull().await.expect_err("breaks");
    assert_eq!(world.machine.files("ingest").len(), 1, "the part is kept");
    world.registry.heal();
    world.registry.forget_requests();
    world.machine = world.machine.restart(|_| ()).await;
    world.pull().await.expect("pulls");
    world.machine.assert_whole(&world.image);
    let sent = world.registry.blob_bytes(&world.layer());
    let size = world.image.layers[0].bytes.len() as u64;
    assert!(sent > 0 && sent < size - 60_000, "{sent} of {size} were sent again");
}

#[tokio::test]
async fn a_damaged_part_of_an_earlier_run_is_thrown_away() {
    let mut world = World::new().await;
    let part = format!("content/ingest/sha256-{}", world.layer().hex());
    let home = world.machine.stop().await;
    let part = home.path().join(part);
    std::fs::write(part, vec![7; 50_000]).expect("writes");
    world.machine = Machine::open(home, |_| ());
    world.pull().await.expect("pulls");
    world.machine.assert_whole(&world.image);
    assert_eq!(world.registry.blob_requests(&world.layer()), 2);
}

#[tokio::test]
async fn a_layer_that_is_no_layer_is_the_images_fault() {
    let registry = Registry::start().await.expect("starts");
    let mut bad = Layer::of_noise(1_000, 1);
    bad.diff_id = testkit::image::digest_of(b"something else");
    registry.push("a", "v1", &ImageBuilder::default().layer(bad).build());
    let machine = Machine::new();
    let error = machine.pull(&format!("{}/a:v1", registry.host())).await.expect_err("is wrong");
    let text = base::Chain(&error).to_string();
    assert!(text.starts_with("unpack layer sha256:") && text.contains("diff id"), "{text}");
    machine.assert_nothing_visible();
}

#[tokio::test]
async fn a_sink_that_refuses_is_quoted() {
    let world = World::new().await;
    world.machine.layers.refuse(true);
    let (kind, text) = world.pull().await.expect_err("has no room");
    assert_eq!(kind, Kind::ResourceExhausted);
    assert!(text.ends_with("no room for layers"), "{text}");
    world.machine.layers.refuse(false);
    world.pull().await.expect("pulls");
}
