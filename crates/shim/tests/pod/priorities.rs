//! Priorities that the OCI runtime cannot give: the shim does.

use shim_client::{CreateTask, ExecTask, IoPriority, Priorities, Scheduler};
use sys::sched;

use crate::{
    execs::process,
    keeper::LEAVINGS,
    world::{Pod, Wish, World, lines, read_log},
};

impl Pod {
    /// Runs a process in a container, and returns it.
    async fn added(&self, id: &str, exec_id: &str, args: &[&str]) -> u32 {
        let task = ExecTask {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            process_json: process(args, false),
            tty: false,
            stdin: None,
            stdout: None,
            stderr: None,
        };
        self.shim.exec(task).await.unwrap();
        self.shim.start_exec(id, exec_id).await.unwrap()
    }
}

const LOW: IoPriority = IoPriority { class: 2, level: 6 };

fn batch() -> Scheduler {
    Scheduler { policy: Scheduler::BATCH, nice: 5, ..Scheduler::default() }
}

/// More than the kernel admits, on any machine.
fn impossible() -> Scheduler {
    let (runtime, deadline, period) = (1, 1_000_000, 1_000_000);
    Scheduler { policy: Scheduler::DEADLINE, runtime, deadline, period, ..Scheduler::default() }
}

#[tokio::test]
async fn a_container_begins_with_its_priorities() {
    let Some(world) = World::new("a_container_begins_with_its_priorities") else { return };
    let pod = world.start().await;
    let priorities = Priorities { io: Some(LOW), scheduler: Some(batch()) };
    // The 41st field is the policy, the 19th nice: what it is from its first line on.
    let script = "read -r stat < /proc/self/stat; set -- $stat; echo ${19} ${41}";
    let wish = Wish { log: Some(pod.log("c")), priorities, ..Wish::default() };
    pod.outcome("c", &["sh", "-c", script], wish).await;
    assert_eq!(read_log(&pod.log_path("c")), lines(&[("stdout", "F", "5 3")]));

    let wish = Wish { priorities, ..Wish::default() };
    let id = pod.run("runs", &["sh", "-c", "sleep 1000 & wait"], wish).await;
    while pod.shim.pids(&id).await.unwrap().len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for pid in pod.shim.pids(&id).await.unwrap() {
        assert_eq!(sched::io_priority(pid).unwrap(), LOW);
        assert_eq!(sched::scheduler(pid).unwrap().policy, Scheduler::BATCH);
    }
    pod.end(&id).await;
    pod.finish().await;
}

#[tokio::test]
async fn what_is_added_to_a_container_is_like_it() {
    let Some(world) = World::new("what_is_added_to_a_container_is_like_it") else { return };
    let pod = world.start().await;
    // Not inherited: given to each as soon as it runs.
    let own = Scheduler { flags: Scheduler::RESET_ON_FORK, ..batch() };
    for (name, scheduler) in [("inherits", batch()), ("own", own)] {
        let priorities = Priorities { io: Some(LOW), scheduler: Some(scheduler) };
        let wish = Wish { priorities, ..Wish::default() };
        let id = pod.run(name, &["sleep", "1000"], wish).await;
        let pid = pod.added(&id, "x", &["sleep", "1000"]).await;
        assert_eq!(sched::io_priority(pid).unwrap(), LOW, "{name}");
        let got = sched::scheduler(pid).unwrap();
        assert_eq!((got.policy, got.nice, got.flags), (3, 5, scheduler.flags), "{name}");
        pod.end(&id).await;
    }
    // The shim itself is as it was.
    assert_eq!(sched::scheduler(pod.shim.info().pid).unwrap().policy, Scheduler::OTHER);
    pod.finish().await;
}

#[tokio::test]
async fn a_deadline_is_kept_or_refused_by_name() {
    let Some(world) = World::new("a_deadline_is_kept_or_refused_by_name") else { return };
    let pod = world.start().await;
    let (runtime, deadline, period) = (1_000_000, 100_000_000, 100_000_000);
    let policy = Scheduler::DEADLINE;
    let wanted = Scheduler { policy, runtime, deadline, period, ..Scheduler::default() };
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["sleep", "1000"], &Wish::default());
    let priorities = Priorities { io: None, scheduler: Some(wanted) };
    let task = CreateTask { id: id.clone(), bundle, priorities, ..CreateTask::default() };
    match pod.shim.create(task).await {
        Ok(_) => {
            let pid = pod.shim.start(&id).await.unwrap();
            let got = sched::scheduler(pid).unwrap();
            assert_eq!((got.policy, got.runtime, got.period), (6, runtime, period));
            pod.end(&id).await;
        }
        // Where there are cpusets, or real-time groups, a kernel has its reasons.
        Err(error) => assert!(error.to_string().contains("scheduler: the kernel"), "{error}"),
    }
    pod.finish().await;
}

#[tokio::test]
async fn priorities_that_are_refused_leave_nothing() {
    let Some(world) = World::new("priorities_that_are_refused_leave_nothing") else { return };
    let pod = world.start().await;
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["true"], &Wish::default());
    let task = CreateTask { id: id.clone(), bundle: bundle.clone(), ..CreateTask::default() };
    let odd = IoPriority { class: 9, level: 0 };
    for (field, priorities) in [
        ("scheduler", Priorities { io: None, scheduler: Some(impossible()) }),
        ("io_priority", Priorities { io: Some(odd), scheduler: None }),
    ] {
        let error = pod.shim.create(CreateTask { priorities, ..task.clone() }).await.unwrap_err();
        let want = format!("{field}: the kernel refuses it: Invalid argument");
        assert!(error.to_string().contains(&want), "{error}");
        assert_eq!(error.kind(), base::Kind::Invalid);
        assert!(pod.shim.list().await.unwrap().is_empty());
        let left = std::fs::read_dir(&bundle).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| !LEAVINGS.iter().any(|own| name == own)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    pod.shim.create(task).await.unwrap();
    pod.shim.start(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.shim.delete(&id).await.unwrap();
    pod.finish().await;
}
