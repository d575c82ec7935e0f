//! Archives of running containers: by a criu that only writes files, and by the real one where
//! it knows the kernel.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use api_cri::v1::{CheckpointContainerRequest, ContainerState};
use testkit::{Cri, FakeCriu, GoTool, Node, Pod};
use tokio::time::Instant;
use tonic::{Code, Status};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");
const LIMIT: Duration = Duration::from_secs(60);

/// A node, a container of it that runs, and where archives go.
struct World {
    node: Node,
    cri: Cri,
    pod: Pod,
    id: String,
    dir: tempfile::TempDir,
}

const SCRIPT: &str = "echo hello; echo new > /etc/new; rm /etc/passwd; touch /ready; \
                      while :; do sleep 1; done";

impl World {
    /// With a criu of ours.
    async fn fake(test: &str) -> Option<(Self, FakeCriu)> {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakeCriu::new(&dir.path().join("bin"));
        let config = format!("[handlers.runc]\nbinary = {:?}\n", fake.runc());
        let world = Self::start(test, dir, &config, |command| {
            let path = std::env::var("PATH").unwrap();
            command.env("PATH", format!("{}:{path}", fake.dir().display()));
        });
        Some((world.await?, fake))
    }

    async fn start(
        test: &str,
        dir: tempfile::TempDir,
        config: &str,
        more: impl FnOnce(&mut Command),
    ) -> Option<Self> {
        let file = dir.path().join("config.toml");
        fs::write(&file, config).unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        let node = Node::start_with(test, LONGSHORE, |command| {
            command.arg("--config").arg(&file);
            more(command);
        });
        let node = node.await?;
        let cri = node.cri().await.unwrap();
        let pod = cri.run_pod(&node.pod("p")).await.unwrap();
        let id = cri.run(&pod, node.sh("c", SCRIPT)).await.unwrap();
        let world = Self { node, cri, pod, id, dir };
        until("the container is ready", async || {
            let looked = world.cri.exec(&world.id, &["ls", "/ready"]).await;
            looked.is_ok_and(|looked| looked.exit_code == 0)
        })
        .await;
        Some(world)
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn location(&self) -> PathBuf {
        self.out().join("c.tar")
    }

    async fn checkpoint(&self, timeout: i64) -> Result<(), Status> {
        let location = self.location().display().to_string();
        call(&self.cri, &self.id, &location, timeout).await
    }

    /// It runs, is not frozen, and nothing is left of what was begun.
    async fn runs_on(&self) {
        let exec = tokio::time::timeout(LIMIT, self.cri.exec(&self.id, &["true"])).await;
        assert_eq!(exec.expect("it is not frozen").unwrap().exit_code, 0);
        let state = self.cri.status(&self.id).await.unwrap().state();
        assert_eq!(state, ContainerState::ContainerRunning);
        assert_eq!(entries(&self.node.daemon.root().join("checkpoints")), [""; 0]);
    }

    #[track_caller]
    fn no_archive(&self) {
        assert_eq!(entries(&self.out()), [""; 0]);
    }
}

async fn call(cri: &Cri, id: &str, location: &str, timeout: i64) -> Result<(), Status> {
    let (container_id, location) = (id.to_owned(), location.to_owned());
    let request = CheckpointContainerRequest { container_id, location, timeout };
    cri.runtime().checkpoint_container(request).await.map(drop)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The files of an archive, by name.
fn unpack(archive: impl Read) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(archive);
    let parts = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (entry.path().unwrap().display().to_string(), bytes)
    });
    parts.collect()
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

/// What every checkpoint has, whoever wrote the memory.
#[track_caller]
fn check_parts(world: &World) -> BTreeMap<String, Vec<u8>> {
    let archive = File::open(world.location()).unwrap();
    assert_eq!(archive.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let parts = unpack(archive);
    for name in ["checkpoint", "config.dump", "dump.log", "spec.dump", "stats-dump"] {
        assert!(parts.contains_key(name), "no {name} in {:?}", parts.keys());
    }
    let config = json(&parts["config.dump"]);
    assert_eq!(config["id"], *world.id);
    assert_eq!(config["rootfsImageName"], world.node.image());
    assert!(config["checkpointedTime"].as_str() > config["createdTime"].as_str(), "{config}");
    let args = &json(&parts["spec.dump"])["process"]["args"];
    assert_eq!(args[2], *SCRIPT);
    let log = String::from_utf8_lossy(&parts["container.log"]);
    assert!(log.ends_with(" stdout F hello\n"), "{log}");
    let changes = unpack(&*parts["rootfs-diff.tar"]);
    assert_eq!(changes["etc/new"], b"new\n");
    assert!(changes.contains_key("ready"), "{:?}", changes.keys());
    let deleted = json(&parts["deleted.files"]);
    assert_eq!(deleted, serde_json::json!(["/etc/passwd"]));
    parts
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_has_memory_and_files_of_one_moment() {
    const TEST: &str = "an_archive_has_memory_and_files_of_one_moment";
    let Some((world, _fake)) = World::fake(TEST).await else { return };
    for _ in 0..2 {
        world.checkpoint(0).await.unwrap();
        let parts = check_parts(&world);
        assert_eq!(parts["checkpoint/pages-1.img"], b"memory\n");
        // While its memory was read, and until its files were.
        assert_eq!(json(&parts["checkpoint/state.json"])["status"], "paused");
        world.runs_on().await;
        assert_eq!(entries(&world.out()), ["c.tar"]);
    }
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn crictl_asks_for_one() {
    let Some(crictl) = GoTool::Crictl.build().unwrap() else {
        return testkit::skip("crictl_asks_for_one", "crictl needs Go to be built");
    };
    let Some((world, _fake)) = World::fake("crictl_asks_for_one").await else { return };
    let endpoint = format!("unix://{}", world.node.daemon.cri_socket().display());
    let mut command = Command::new(crictl);
    command.args(["--config", "/dev/null", "--runtime-endpoint", &endpoint, "--timeout", "60s"]);
    command.arg("checkpoint").arg(format!("--export={}", world.location().display()));
    let output = command.arg(&world.id).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    check_parts(&world);
    world.runs_on().await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_criu_writes_it() {
    const TEST: &str = "the_real_criu_writes_it";
    match Command::new("criu").arg("check").output() {
        Ok(checked) if checked.status.success() => {}
        Ok(checked) => {
            let said = String::from_utf8_lossy(&checked.stderr);
            let why = said.lines().next().unwrap_or_default();
            return testkit::skip(TEST, &format!("criu does not know this kernel: {why}"));
        }
        Err(error) => return testkit::skip(TEST, &format!("no criu: {error}")),
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(world) = World::start(TEST, dir, "", |_| ()).await else { return };
    world.checkpoint(0).await.unwrap();
    let parts = check_parts(&world);
    for name in ["checkpoint/pstree.img", "checkpoint/pages-1.img", "checkpoint/inventory.img"] {
        assert!(!parts[name].is_empty(), "{name}");
    }
    assert!(!parts["stats-dump"].is_empty());
    world.runs_on().await;
    // What is frozen and thawed again has missed nothing that matters.
    world.checkpoint(60).await.unwrap();
    world.runs_on().await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_criu_it_is_refused_by_name() {
    const TEST: &str = "without_criu_it_is_refused_by_name";
    let dir = tempfile::tempdir().unwrap();
    let runc =
        ["/usr/sbin/runc", "/usr/bin/runc"].into_iter().find(|path| Path::new(path).exists());
    let config = format!("[handlers.runc]\nbinary = {:?}\n", runc.expect("runc"));
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let no_programs = |command: &mut Command| {
        command.env("PATH", &empty);
    };
    let Some(world) = World::start(TEST, dir, &config, no_programs).await else { return };
    let refused = world.checkpoint(0).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let want = "criu is not installed: install the package criu";
    assert!(refused.message().ends_with(want), "{refused:?}");
    assert!(refused.message().contains(&world.id), "{refused:?}");
    world.runs_on().await;
    world.no_archive();
    world.node.finish().await.unwrap();
}

/// As Debian's crun is: it knows no `features`, and `checkpoint` fails without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_was_built_without_criu_is_refused_by_name() {
    const TEST: &str = "a_runtime_that_was_built_without_criu_is_refused_by_name";
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeCriu::new(&dir.path().join("bin"));
    let crun = dir.path().join("crun");
    let script = format!(
        "#!/bin/sh\ncase $1 in\n\
         --version) printf 'crun version 1.8.1\\n+SYSTEMD +SECCOMP +EBPF +YAJL\\n' ;;\n\
         features) exit 1 ;;\n*) exec {} \"$@\" ;;\nesac\n",
        fake.runc().display()
    );
    testkit::program(&crun, &script);
    let config = format!("[handlers.lean]\nbinary = {crun:?}\n");
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", fake.dir().display());
    let with_criu = |command: &mut Command| {
        command.env("PATH", path);
    };
    let Some(world) = World::start(TEST, dir, &config, with_criu).await else { return };
    let refused = world.checkpoint(0).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let want = "handler \"lean\" was built without criu: \
                run the pod with a handler that has it, as runc does";
    assert!(refused.message().ends_with(want), "{refused:?}");
    assert!(!fake.has_begun());
    world.runs_on().await;
    world.no_archive();
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_before_anything_is_begun() {
    const TEST: &str = "what_cannot_be_done_is_refused_before_anything_is_begun";
    let Some((world, fake)) = World::fake(TEST).await else { return };
    let World { node, cri, pod, id, .. } = &world;
    let good = world.location().display().to_string();
    let refused = async |id: &str, location: &str, timeout, code, why: &str| {
        let refused = call(cri, id, location, timeout).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(why), "{refused:?}");
    };
    refused(id, "", 0, Code::InvalidArgument, "location").await;
    refused(id, "c.tar", 0, Code::InvalidArgument, "not an absolute path").await;
    refused(id, "/tmp/", 0, Code::InvalidArgument, "does not name a file").await;
    refused(id, &world.out().display().to_string(), 0, Code::InvalidArgument, "directory").await;
    refused(id, &good, -1, Code::InvalidArgument, "timeout").await;
    refused("", &good, 0, Code::InvalidArgument, "container_id").await;
    refused("nobody", &good, 0, Code::NotFound, "nobody").await;
    let nowhere = world.out().join("absent/c.tar").display().to_string();
    refused(id, &nowhere, 0, Code::Internal, "create").await;
    let created = cri.create(pod, node.sh("created", "true")).await.unwrap();
    refused(&created, &good, 0, Code::FailedPrecondition, "created").await;
    cri.start(&created).await.unwrap();
    cri.exited(&created).await.unwrap();
    refused(&created, &good, 0, Code::FailedPrecondition, "exited").await;
    world.runs_on().await;
    world.no_archive();
    assert!(!fake.has_begun());
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_criu_that_fails_is_quoted() {
    let Some((world, fake)) = World::fake("a_criu_that_fails_is_quoted").await else { return };
    fake.does(
        r#"echo '(00.2) Error (criu/fake.c:2): a socket on purpose' >> "$work/dump.log"
printf '%s\n' '{"level":"error","msg":"criu failed: type NOTIFY errno 0\nlog file: x"}' > "$log"
exit 1"#,
    );
    let refused = world.checkpoint(0).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal, "{refused:?}");
    let want = "criu failed: type NOTIFY errno 0; criu says: a socket on purpose";
    assert!(refused.message().ends_with(want), "{refused:?}");
    world.runs_on().await;
    world.no_archive();
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_criu_that_hangs_is_ended() {
    let Some((mut world, fake)) = World::fake("a_criu_that_hangs_is_ended").await else { return };
    // As criu is a child of runc, and outlives it.
    fake.does("sleep 987654 & echo $! > $(dirname $0)/child; wait");
    // Long enough for a busy machine to come that far.
    let refused = world.checkpoint(4 * i64::from(testkit::slowness())).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused:?}");
    world.node.note_processes();
    world.runs_on().await;
    world.no_archive();
    let child = fs::read_to_string(fake.dir().join("child")).unwrap();
    let process = Path::new("/proc").join(child.trim());
    assert!(!process.exists(), "criu is ended, too");
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_to_stop_does_not_wait_for_it() {
    const TEST: &str = "a_pod_that_is_to_stop_does_not_wait_for_it";
    let Some((world, fake)) = World::fake(TEST).await else { return };
    // As criu does when what it reads is killed.
    fake.does("while state | grep -q paused; do sleep 0.1; done; exit 1");
    let (stopped, refused) = tokio::join!(
        async {
            until("it has begun", async || fake.has_begun()).await;
            world.cri.stop_pod(&world.pod.id).await
        },
        world.checkpoint(600),
    );
    stopped.unwrap();
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("being stopped"), "{refused:?}");
    world.no_archive();
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_daemon_had_frozen_runs_again() {
    const TEST: &str = "what_a_killed_daemon_had_frozen_runs_again";
    let Some((mut world, fake)) = World::fake(TEST).await else { return };
    let go = fake.dir().join("go");
    fake.does(&format!("while [ ! -e {} ]; do sleep 0.1; done", go.display()));
    let location = world.location().display().to_string();
    let ((), cut_off) = tokio::join!(
        async {
            until("it has begun", async || fake.has_begun()).await;
            world.node.daemon.kill().unwrap();
        },
        call(&world.cri, &world.id, &location, 600),
    );
    cut_off.unwrap_err();
    world.node.daemon.start_again().await.unwrap();
    world.cri = world.node.cri().await.unwrap();
    // The shim is still at it, and the new daemon waits for that beside its other work.
    assert_eq!(world.cri.pods().await.unwrap().len(), 1);
    fs::write(go, "").unwrap();
    let checkpoints = world.node.daemon.root().join("checkpoints");
    until("it is undone", async || entries(&checkpoints).is_empty()).await;
    world.runs_on().await;
    world.no_archive();
    world.checkpoint(0).await.unwrap();
    check_parts(&world);
    world.node.finish().await.unwrap();
}
