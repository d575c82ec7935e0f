//! Create, start, end, delete.

use shim_client::{CreateTask, ShimError, TaskStatus};
use sys::cgroup::{Cgroup, Layout};

use crate::{
    keeper::{CHILDREN, LEAVINGS},
    world::{LIMIT, Wish, World, lines, read_log},
};

#[tokio::test]
async fn containers_run_and_their_exits_are_told() {
    let Some(world) = World::new("containers_run_and_their_exits_are_told") else { return };
    let pod = world.start().await;
    for (name, command, code) in [
        ("ok", "exit 0", 0),
        ("seven", "exit 7", 7),
        ("signal", "kill -SEGV $$; sleep 1; exit 3", 3),
    ] {
        let exit = pod.outcome(name, &["sh", "-c", command], Wish::default()).await;
        assert_eq!((exit.code, exit.oom), (code, false), "{command}");
    }
    pod.finish().await;
}

#[tokio::test]
async fn states_follow_the_life_of_a_container() {
    let Some(world) = World::new("states_follow_the_life_of_a_container") else { return };
    let pod = world.start().await;
    let shim = &pod.shim;
    assert!(shim.list().await.unwrap().is_empty());
    let id = pod.create("c", &["sleep", "1000"], Wish::default()).await;
    let status = async || shim.state(&id).await.unwrap().status;
    assert_eq!(status().await, TaskStatus::Created);
    let pid = shim.start(&id).await.unwrap();
    assert_eq!(status().await, TaskStatus::Running);
    assert_eq!(shim.pids(&id).await.unwrap(), [pid]);
    shim.pause(&id).await.unwrap();
    assert_eq!(status().await, TaskStatus::Paused);
    shim.resume(&id).await.unwrap();
    assert_eq!(status().await, TaskStatus::Running);
    // SIGTERM to a PID 1 without a handler does nothing; SIGKILL does.
    shim.kill(&id, 15, false).await.unwrap();
    shim.kill(&id, 9, false).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    let state = shim.state(&id).await.unwrap();
    assert_eq!((state.status, state.exit.unwrap().code), (TaskStatus::Stopped, 137));
    shim.delete(&id).await.unwrap();
    assert!(matches!(shim.state(&id).await, Err(ShimError::NotFound { .. })));
    pod.finish().await;
}

#[tokio::test]
async fn a_failed_creation_leaves_nothing_and_can_be_repeated() {
    let Some(world) = World::new("a_failed_creation_leaves_nothing_and_can_be_repeated") else {
        return;
    };
    let pod = world.start().await;
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["/no/such/program"], &Wish::default());
    let task = CreateTask { id: id.clone(), bundle: bundle.clone(), ..CreateTask::default() };
    let error = pod.shim.create(task.clone()).await.unwrap_err();
    // Runtimes differ in the first letter.
    assert!(error.to_string().contains("o such file or directory"), "{error}");
    assert!(pod.shim.list().await.unwrap().is_empty());
    let left = std::fs::read_dir(&bundle).unwrap().map(|e| e.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| !LEAVINGS.iter().any(|own| name == own)).collect();
    assert!(left.is_empty(), "{left:?}");
    // A log that cannot be written is said at the creation too.
    let log = Some(shim_client::LogTarget {
        path: "/no/such/dir/0.log".into(),
        format: shim_client::LogFormat::Cri,
        max_line: 0,
    });
    let error = pod.shim.create(CreateTask { log, ..task.clone() }).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/dir/0.log"), "{error}");
    pod.world.bundle(&id, &["true"], &Wish::default());
    pod.shim.create(task).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}

#[tokio::test]
async fn a_container_has_three_descriptors() {
    let Some(world) = World::new("a_container_has_three_descriptors") else { return };
    let pod = world.start().await;
    let wish = Wish { log: Some(pod.log("fds")), ..Wish::default() };
    // The fourth is that of the directory being listed.
    pod.outcome("fds", &["ls", "/proc/self/fd"], wish).await;
    let fds = ["0", "1", "2", "3"].map(|fd| ("stdout", "F", fd));
    assert_eq!(read_log(&pod.log_path("fds")), lines(&fds));
    pod.finish().await;
}

#[tokio::test]
async fn a_killed_container_takes_its_children_and_leaves_no_zombie() {
    let Some(world) = World::new("a_killed_container_takes_its_children") else { return };
    let pod = world.start().await;
    let script = "sleep 1000 & sleep 1000 & setsid sleep 1000 & wait";
    let id = pod.run("c", &["sh", "-c", script], Wish::default()).await;
    while pod.shim.pids(&id).await.unwrap().len() < 4 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    pod.shim.kill(&id, 9, true).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    pod.shim.delete(&id).await.unwrap();
    let children = format!("/proc/{0}/task/{0}/children", pod.shim.info().pid);
    let children = std::fs::read_to_string(children).unwrap();
    assert_eq!(children.split_whitespace().count(), CHILDREN, "{children}");
    pod.finish().await;
}

#[tokio::test]
async fn a_paused_container_can_be_killed() {
    let Some(world) = World::new("a_paused_container_can_be_killed") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    pod.shim.pause(&id).await.unwrap();
    pod.shim.kill(&id, 9, false).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}

/// An operator, or a checkpoint that was cut off, froze it without the shim.
#[tokio::test]
async fn a_container_that_others_froze_can_be_killed() {
    let Some(world) = World::new("a_container_that_others_froze_can_be_killed") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let path = std::path::PathBuf::from(format!("{}/{id}", pod.world.cgroup()));
    let group = Cgroup::open(&Layout::detect().unwrap(), &path).unwrap().unwrap();
    group.freeze(true, LIMIT).unwrap();
    pod.shim.kill(&id, 9, false).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}

#[tokio::test]
async fn several_containers_at_once() {
    let Some(world) = World::new("several_containers_at_once") else { return };
    let pod = world.start().await;
    let names: Vec<String> = (0..6).map(|n| format!("c{n}")).collect();
    let run = async |n: usize| {
        let command = format!("exit {n}");
        pod.outcome(&names[n], &["sh", "-c", &command], Wish::default()).await.code
    };
    let codes = tokio::join!(run(0), run(1), run(2), run(3), run(4), run(5));
    assert_eq!(codes, (0, 1, 2, 3, 4, 5));
    pod.finish().await;
}
