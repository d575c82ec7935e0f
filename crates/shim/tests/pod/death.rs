//! A daemon that goes away, a shim that is killed, a pod that vanishes.

use std::{fs, time::Duration};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use shim_client::{ShimError, TaskStatus, bury, connect};
use tokio::time::timeout;

use crate::world::{LIMIT, Wish, World, lines, read_log};

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).expect("a process id")
}

#[tokio::test]
async fn exits_are_kept_while_no_daemon_is_there() {
    let Some(world) = World::new("exits_are_kept_while_no_daemon_is_there") else { return };
    let mut pod = world.start().await;
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let id = pod.run("c", &["sh", "-c", "sleep 0.3; echo alone; exit 42"], wish).await;
    let long = pod.run("long", &["sleep", "1000"], Wish::default()).await;
    let (dir, first) = (pod.world.pod_dir(), pod.shim.info().pid);
    // The daemon's connection goes; only the files are left.
    let away = connect(&dir, LIMIT).await.unwrap();
    drop(std::mem::replace(&mut pod.shim, away));
    tokio::time::sleep(Duration::from_millis(600)).await;
    pod.shim = connect(&dir, LIMIT).await.unwrap();
    assert_eq!(pod.shim.info().pid, first);
    let states = pod.shim.list().await.unwrap();
    let status: Vec<_> = states.iter().map(|state| (state.id.as_str(), state.status)).collect();
    assert_eq!(status, [(&*id, TaskStatus::Stopped), (&*long, TaskStatus::Running)]);
    assert_eq!(pod.wait(&id).await.code, 42);
    assert_eq!(pod.shim.delete(&id).await.unwrap().code, 42);
    assert_eq!(read_log(&pod.log_path("c")), lines(&[("stdout", "F", "alone")]));
    pod.end(&long).await;
    pod.finish().await;
}

#[tokio::test]
async fn calls_go_on_when_their_client_leaves() {
    let Some(world) = World::new("calls_go_on_when_their_client_leaves") else { return };
    let pod = world.start().await;
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["sleep", "1000"], &Wish::default());
    let (stdio, log) = (shim_client::Stdio::default(), None);
    let task = shim_client::CreateTask { id: id.clone(), bundle, stdio, log, ..Default::default() };
    let other = connect(&pod.world.pod_dir(), LIMIT).await.unwrap();
    // Long enough for the request to leave, too short for the runtime.
    assert!(timeout(Duration::from_millis(3), other.create(task)).await.is_err());
    drop(other);
    let until = tokio::time::Instant::now() + LIMIT;
    while pod.shim.start(&id).await.is_err() {
        assert!(tokio::time::Instant::now() < until, "the creation was finished");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pod.end(&id).await;
    pod.finish().await;
}

#[tokio::test]
async fn a_killed_shim_is_noticed_and_its_containers_live_on() {
    let Some(world) = World::new("a_killed_shim_is_noticed") else { return };
    let mut spec = world.spec();
    spec.namespaces.uts = Some(world.pod_dir().join("uts"));
    spec.cgroup = Some(format!("{}/shim", world.cgroup()).into());
    let pod = world.start_with(&spec).await;
    let script = "trap 'exit 0' TERM; while :; do echo tick; sleep 0.02; done";
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let id = pod.run("c", &["sh", "-c", script], wish).await;
    let done = pod.run("done", &["sh", "-c", "exit 11"], Wish::default()).await;
    assert_eq!(pod.wait(&done).await.code, 11);
    let container = pid(pod.shim.state(&id).await.unwrap().pid);
    let reconnected = connect(&pod.world.pod_dir(), LIMIT).await.unwrap();

    let waiting = pod.shim.wait(&id);
    kill_process(pid(pod.shim.info().pid), Signal::KILL).unwrap();
    timeout(LIMIT, async { tokio::join!(pod.shim.died(), reconnected.died()) }).await.unwrap();
    assert!(matches!(waiting.await, Err(ShimError::Gone { .. })));
    assert!(matches!(pod.shim.list().await, Err(ShimError::Gone { .. })));
    let gone = connect(&pod.world.pod_dir(), LIMIT).await.unwrap_err();
    assert!(matches!(gone, ShimError::Gone { .. }), "{gone}");
    // It writes into a pipe that nobody empties, and does not mind.
    tokio::time::sleep(Duration::from_millis(200)).await;
    test_kill_process(container).expect("the container lives");

    let mut buried = bury(&pod.world.pod_dir(), LIMIT).await.unwrap();
    buried.sort_by(|a, b| a.id.cmp(&b.id));
    let exits: Vec<_> =
        buried.iter().map(|one| (one.id.as_str(), one.exit.map(|exit| exit.code))).collect();
    // How the living one ended is known where the kernel tells, and its new parent reaps.
    let told = if exits[0].1.is_some() { Some(137) } else { None };
    assert_eq!(exits, [(&*id, told), (&*done, Some(11))]);
    assert!(test_kill_process(container).is_err());
    let again = bury(&pod.world.pod_dir(), LIMIT).await.unwrap_err();
    assert!(matches!(again, ShimError::NotFound { .. }), "{again}");
    pod.world.check_empty().await;
}

#[tokio::test]
async fn a_pod_ends_with_its_pid_1() {
    let Some(world) = World::new("a_pod_ends_with_its_pid_1") else { return };
    let mut spec = world.spec();
    let pin = |name: &str| Some(world.pod_dir().join(name));
    spec.namespaces.pid = true;
    (spec.namespaces.pid_pin, spec.namespaces.uts) = (pin("pid"), pin("uts"));
    spec.pid1.cgroup = Some(format!("{}/first", world.cgroup()).into());
    spec.pid1.oom_score_adj = Some(123);
    let pod = world.start_with(&spec).await;
    let first = pod.shim.info().pod_pid.unwrap();
    let read = |file: &str| fs::read_to_string(format!("/proc/{first}/{file}")).unwrap();
    assert!(read("cgroup").lines().any(|line| line.ends_with("/first")), "{}", read("cgroup"));
    assert_eq!(read("oom_score_adj"), "123\n");
    let path = pod.world.pod_dir().join("pid").display().to_string();
    let wish = Wish { pid_namespace: Some(path), log: Some(pod.log("in")), ..Wish::default() };
    let joined = pod.run("in", &["sh", "-c", "echo there; exec sleep 1000"], wish).await;
    let apart = pod.run("out", &["sleep", "1000"], Wish::default()).await;
    let done = pod.run("done", &["sh", "-c", "exit 11"], Wish::default()).await;
    assert_eq!(pod.wait(&done).await.code, 11);

    kill_process(pid(first), Signal::KILL).unwrap();
    assert_eq!(pod.wait(&joined).await.code, 137, "whoever waits is told");
    timeout(LIMIT, pod.shim.died()).await.unwrap();
    let gone = connect(&pod.world.pod_dir(), LIMIT).await.unwrap_err();
    assert!(matches!(gone, ShimError::Gone { .. }), "{gone}");
    let mut buried = bury(&pod.world.pod_dir(), LIMIT).await.unwrap();
    buried.sort_by(|a, b| a.id.cmp(&b.id));
    let exits: Vec<_> = buried.iter().map(|b| (&*b.id, b.exit.map(|exit| exit.code))).collect();
    assert_eq!(exits, [(&*done, Some(11)), (&*joined, Some(137)), (&*apart, Some(137))]);
    assert_eq!(read_log(&pod.log_path("in")), lines(&[("stdout", "F", "there")]));
    pod.world.check_empty().await;
}

/// Shims of earlier versions do not watch it: here one that cannot.
#[tokio::test]
async fn a_client_watches_the_pid_1_of_an_earlier_version() {
    let Some(world) = World::new("a_client_watches_the_pid_1") else { return };
    let mut spec = world.spec();
    spec.namespaces.pid = true;
    let pod = world.start_with(&spec).await;
    let again = connect(&pod.world.pod_dir(), LIMIT).await.unwrap();
    let (shim, first) = (pid(pod.shim.info().pid), pid(pod.shim.info().pod_pid.unwrap()));
    kill_process(shim, Signal::STOP).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    timeout(LIMIT, async { tokio::join!(pod.shim.died(), again.died()) }).await.unwrap();
    bury(&pod.world.pod_dir(), LIMIT).await.unwrap();
    pod.world.check_empty().await;
}

#[tokio::test]
async fn a_shim_ends_with_its_directory() {
    let Some(world) = World::new("a_shim_ends_with_its_directory") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "0.5"], Wish::default()).await;
    fs::remove_dir_all(pod.world.pod_dir()).unwrap();
    let died = pod.shim.died();
    let early = timeout(Duration::from_millis(100), pod.shim.died()).await;
    assert!(early.is_err(), "not while a container runs");
    assert!(pod.shim.state(&id).await.is_ok(), "whoever is connected is served");
    timeout(LIMIT, died).await.unwrap();
    // Its runtime state is the daemon's to remove; the test is the daemon here.
    let runtime = pod.world.oci_runtime();
    let deleted = std::process::Command::new(&runtime.binary)
        .arg("--root")
        .arg(&runtime.root)
        .args(["delete", &id])
        .status();
    assert!(deleted.unwrap().success());
    pod.world.check_empty().await;
}

#[tokio::test]
async fn a_runtime_that_hangs_is_given_up_and_nothing_is_left() {
    let Some(world) = World::new("a_runtime_that_hangs") else { return };
    let mut spec = world.spec();
    let fake = world.dir.path().join("runtime.sh");
    testkit::program(&fake, "#!/bin/sh\nexec sleep 1000\n");
    spec.runtime.binary = fake;
    let mut pod = world.start_with(&spec).await;
    let quick = Duration::from_millis(300);
    let limits = shim_client::Limits { quick: LIMIT, runtime: quick };
    pod.shim = pod.shim.clone().with_limits(limits);
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["true"], &Wish::default());
    let (stdio, log) = (shim_client::Stdio::default(), None);
    let task = shim_client::CreateTask { id, bundle, stdio, log, ..Default::default() };
    let error = pod.shim.create(task).await.unwrap_err();
    assert_eq!(error.kind(), base::Kind::Deadline, "{error}");
    let until = tokio::time::Instant::now() + LIMIT;
    while !pod.shim.list().await.unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < until, "the creation is undone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pod.finish().await;
}

#[tokio::test]
async fn runtimes_that_lie_are_found_out() {
    let Some(world) = World::new("runtimes_that_lie_are_found_out") else { return };
    let mut spec = world.spec();
    let fake = world.dir.path().join("runtime.sh");
    // Says that it worked, with whatever process the bundle names.
    let script = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --pid-file ] && cat said > \"$2\"; shift; done\n";
    testkit::program(&fake, script);
    spec.runtime.binary = fake;
    let pod = world.start_with(&spec).await;
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["true"], &Wish::default());
    for said in ["", "garbage", "1", "99999999"] {
        fs::write(bundle.join("said"), said).unwrap();
        let (stdio, log) = (shim_client::Stdio::default(), None);
        let task = shim_client::CreateTask {
            id: id.clone(),
            bundle: bundle.clone(),
            stdio,
            log,
            ..Default::default()
        };
        let error = pod.shim.create(task).await.unwrap_err();
        assert!(error.to_string().contains("is no process"), "{said}: {error}");
    }
    pod.finish().await;
}

#[tokio::test]
async fn a_shim_is_deaf_to_polite_signals_and_alone_in_its_directory() {
    let Some(world) = World::new("a_shim_is_deaf_to_polite_signals") else { return };
    let spec = world.spec();
    let pod = world.start_with(&spec).await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(pid(pod.shim.info().pid), signal).unwrap();
    }
    let second = shim_client::start(&spec, LIMIT).await.unwrap_err();
    assert!(second.to_string().contains("exists already"), "{second}");
    let again = connect(&pod.world.pod_dir(), LIMIT).await.unwrap();
    assert_eq!(again.info().pid, pod.shim.info().pid);
    assert_eq!(again.list().await.unwrap().len(), 1);
    pod.end(&id).await;
    pod.finish().await;
}
