//! A daemon that goes away, a shim or a sandbox that is killed, a start that is cut off.

use std::{fs, time::Duration};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use shim_client::{Foreign, ShimError, Stdio, TaskStatus, bury};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    keeper,
    world::{LIMIT, Wish, World, lines, read_log},
};

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).expect("a process id")
}

#[tokio::test]
async fn exits_are_kept_while_no_daemon_is_there() {
    let Some(world) = World::new("exits_are_kept_while_no_daemon_is_there") else { return };
    let mut pod = world.start().await;
    let id = pod.run("c", &["sh", "-c", "sleep 0.3; exit 42"], Wish::default()).await;
    let long = pod.run("long", &["sleep", "1000"], Wish::default()).await;
    let first = pod.shim.info().pid;
    pod.shim = keeper::connect(&pod).await.unwrap();
    assert_eq!(pod.shim.info().pid, first);
    let until = Instant::now() + LIMIT;
    loop {
        let states = pod.shim.list().await.unwrap();
        let status: Vec<_> = states.iter().map(|state| (&*state.id, state.status)).collect();
        if status == [(&*id, TaskStatus::Stopped), (&*long, TaskStatus::Running)] {
            assert_eq!(states[0].exit.map(|exit| exit.code), Some(42));
            break;
        }
        assert!(Instant::now() < until, "{status:?}");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(pod.wait(&id).await.code, 42);
    assert_eq!(pod.shim.delete(&id).await.unwrap().code, 42);
    pod.end(&long).await;
    pod.finish().await;
}

#[tokio::test]
async fn a_new_daemon_reads_on_where_the_old_one_stopped() {
    let Some(world) = World::new("a_new_daemon_reads_on") else { return };
    const LINES: usize = 3000;
    let mut pod = world.start().await;
    let wish = Wish {
        log: Some(pod.log("c")),
        stdio: Stdio { stdin: true, stdin_once: true, tty: false },
        ..Wish::default()
    };
    let script = format!("seq 1 {}; read x; seq {} {LINES}; cat", LINES / 2, LINES / 2 + 1);
    let id = pod.run("c", &["sh", "-c", &script], wish).await;
    // Whatever the old one has read so far, the rest is in the pipe.
    pod.shim = keeper::connect(&pod).await.unwrap();
    let mut io = pod.shim.attach(&id, true, true, true).await.unwrap();
    io.input.write(b"go\nlast words").await.unwrap();
    drop(io.input);
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    let mut want: Vec<_> =
        (1..=LINES).map(|n| ("stdout".to_owned(), "F".to_owned(), n.to_string())).collect();
    want.extend(lines(&[("stdout", "P", "last words")]));
    assert!(read_log(&pod.log_path("c")) == want, "every line once, in order");
    pod.finish().await;
}

#[tokio::test]
async fn a_second_connection_of_one_daemon_shares_the_streams() {
    let Some(world) = World::new("a_second_connection_shares_the_streams") else { return };
    let spec = world.spec();
    let host = Foreign::open(&world.dir.path().join("e")).unwrap();
    let foreign = keeper::describe(&world, &spec);
    host.prepare(&foreign).await.unwrap();
    let first = host.launch(&foreign.dir, LIMIT).await.unwrap();
    let mut pod = world.adopt(first);
    let wish = Wish { log: Some(pod.log("c")), ..Wish::default() };
    let id = pod.run("c", &["sh", "-c", "seq 1 500; sleep 0.2; seq 501 1000"], wish).await;
    let dir = pod.world.pod_dir();
    let old = std::mem::replace(&mut pod.shim, host.connect(&dir, LIMIT).await.unwrap());
    assert_eq!(pod.wait(&id).await.code, 0);
    drop(old);
    pod.shim.delete(&id).await.unwrap();
    let said: Vec<_> = read_log(&pod.log_path("c")).into_iter().map(|line| line.2).collect();
    assert_eq!(said, (1..=1000).map(|n| n.to_string()).collect::<Vec<_>>());
    pod.finish().await;
}

#[tokio::test]
async fn a_killed_shim_is_noticed_and_buried() {
    let Some(world) = World::new("a_killed_shim_is_noticed_and_buried") else { return };
    let mut spec = world.spec();
    spec.namespaces.uts = Some(world.pod_dir().join("uts"));
    let pod = world.start_with(&spec).await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let done = pod.run("done", &["sh", "-c", "exit 11"], Wish::default()).await;
    assert_eq!(pod.wait(&done).await.code, 11);
    let container = pid(pod.shim.state(&id).await.unwrap().pid);
    let waiting = pod.shim.wait(&id);
    kill_process(pid(pod.shim.info().pid), Signal::KILL).unwrap();
    timeout(LIMIT, pod.shim.died()).await.unwrap();
    assert!(matches!(waiting.await, Err(ShimError::Gone { .. })));
    let gone = keeper::connect(&pod).await.unwrap_err();
    assert!(matches!(gone, ShimError::Gone { .. }), "{gone}");
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
async fn a_shim_that_does_not_answer_is_buried_alive() {
    let Some(world) = World::new("a_shim_that_does_not_answer_is_buried_alive") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    kill_process(pid(pod.shim.info().pid), Signal::STOP).unwrap();
    let buried = bury(&pod.world.pod_dir(), LIMIT).await.unwrap();
    assert_eq!(buried.iter().map(|one| &*one.id).collect::<Vec<_>>(), [&*id]);
    pod.world.check_empty().await;
}

#[tokio::test]
async fn the_end_of_the_sandbox_is_the_end_of_the_pod() {
    let Some(world) = World::new("the_end_of_the_sandbox_is_the_end_of_the_pod") else { return };
    let mut spec = world.spec();
    spec.namespaces.pid = true;
    let pod = world.start_with(&spec).await;
    let sandbox = pid(pod.shim.info().pod_pid.unwrap());
    assert!(timeout(Duration::from_millis(50), pod.shim.died()).await.is_err());
    kill_process(sandbox, Signal::KILL).unwrap();
    timeout(LIMIT, pod.shim.died()).await.unwrap();
    let gone = keeper::connect(&pod).await.unwrap_err();
    assert!(matches!(gone, ShimError::Gone { .. }), "{gone}");
    keeper::end(&pod).await;
    pod.world.check_empty().await;
}

/// A daemon may die anywhere in a start.
#[tokio::test]
async fn a_start_that_is_cut_off_anywhere_is_buried() {
    let Some(world) = World::new("a_start_that_is_cut_off_anywhere_is_buried") else { return };
    let mut wait = Duration::ZERO;
    let mut reached = 0;
    loop {
        let mut spec = world.spec();
        spec.namespaces.ipc = Some(world.pod_dir().join("ipc"));
        let foreign = keeper::describe(&world, &spec);
        let host = Foreign::open(&world.dir.path().join("e")).unwrap();
        host.prepare(&foreign).await.unwrap();
        let cut = timeout(wait, host.launch(&foreign.dir, LIMIT)).await;
        let whole = match &cut {
            Ok(started) => started.as_ref().map(|_| true).unwrap(),
            Err(_) => false,
        };
        drop(cut);
        assert_eq!(bury(&foreign.dir, LIMIT).await.unwrap(), []);
        world.check_empty().await;
        let left: Vec<_> = fs::read_dir(&foreign.dir).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        host.close().await;
        // As it goes with the directory of a pod.
        fs::remove_dir_all(&foreign.bundle).unwrap();
        reached += usize::from(whole);
        if reached == 2 {
            return;
        }
        wait += Duration::from_millis(6);
    }
}

#[tokio::test]
async fn the_oom_killer_is_told_of() {
    let Some(world) = World::new("the_oom_killer_is_told_of") else { return };
    let pod = world.start().await;
    let wish = Wish { memory: Some(16 << 20), ..Wish::default() };
    let script = "x=0123456789abcdef; while :; do x=$x$x; done";
    let exit = pod.outcome("c", &["sh", "-c", script], wish).await;
    assert!(exit.oom, "{exit:?}");
    pod.finish().await;
}
