//! When a start is over: the program of the container runs.

use std::fs;

use shim_client::{Shim, StartPod};
use testkit::rounds;

use crate::world::{Pod, Wish, World};

/// Set from fork to exec in the flags that the kernel shows of a process.
const PF_FORKNOEXEC: u64 = 0x40;

/// Whether a process that nobody has reaped runs a program of its own, as the kernel tells it.
fn has_executed(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let flags: u64 = fields.split_whitespace().nth(6).unwrap().parse().unwrap();
    flags & PF_FORKNOEXEC == 0
}

/// A pod whose OCI runtime does `start` as the shell script says, and all else as usual.
async fn pod_with(world: World, start: &str) -> Pod {
    let mut spec: StartPod = world.spec();
    let real = spec.runtime.binary.display();
    let script = format!(
        "#!/bin/sh\nrun() {{ {real} \"$@\"; }}\n\
         for word in \"$@\"; do if [ \"$word\" = start ]; then {start}\nexit 0; fi; done\n\
         exec {real} \"$@\"\n"
    );
    let program = world.dir.path().join("oci-runtime");
    testkit::program(&program, &script);
    spec.runtime.binary = program;
    world.start_with(&spec).await
}

async fn started(shim: &Shim, id: &str) -> bool {
    has_executed(shim.start(id).await.unwrap())
}

#[tokio::test]
async fn a_start_returns_when_the_program_runs() {
    let Some(world) = World::new("a_start_returns_when_the_program_runs") else { return };
    let pod = world.start().await;
    for round in 0..rounds(10) {
        let id = pod.create(&format!("c{round}"), &["sleep", "1000"], Wish::default()).await;
        assert!(started(&pod.shim, &id).await, "round {round}");
        pod.end(&id).await;
    }
    pod.finish().await;
}

/// What every runtime does now and then, done always: it ends before the process has executed.
#[tokio::test]
async fn a_start_waits_for_the_program_after_the_end_of_the_runtime() {
    let name = "a_start_waits_for_the_program_after_the_end_of_the_runtime";
    let Some(world) = World::new(name) else { return };
    let pod = pod_with(world, "(sleep 0.2; run \"$@\") &").await;
    let id = pod.create("late", &["sleep", "1000"], Wish::default()).await;
    assert!(started(&pod.shim, &id).await);
    pod.end(&id).await;
    pod.finish().await;
}

#[tokio::test]
async fn a_process_that_never_executes_does_not_fail_its_start() {
    let name = "a_process_that_never_executes_does_not_fail_its_start";
    let Some(world) = World::new(name) else { return };
    let pod = pod_with(world, ":").await;
    let id = pod.create("never", &["sleep", "1000"], Wish::default()).await;
    assert!(!started(&pod.shim, &id).await);
    pod.end(&id).await;
    pod.finish().await;
}
