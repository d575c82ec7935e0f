//! Events of pods and containers, as a kubelet hears them.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{collections::BTreeMap, fs, time::Duration};

use api_cri::v1::{
    ContainerEventResponse, ContainerEventType, ContainerState, GetEventsRequest, PodSandboxState,
};
use testkit::{Cri, Node};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// Generous: the machine may be busy with a build.
const LIMIT: Duration = Duration::from_secs(60);

use ContainerEventType::{
    ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted,
    ContainerStartedEvent as Started, ContainerStoppedEvent as Stopped,
};

struct Listener(Streaming<ContainerEventResponse>);

impl Listener {
    async fn of(cri: &Cri) -> Self {
        let events = cri.runtime().get_container_events(GetEventsRequest {}).await;
        Self(events.unwrap().into_inner())
    }

    async fn next(&mut self) -> Result<ContainerEventResponse, Status> {
        let next = tokio::time::timeout(LIMIT, self.0.message()).await.expect("an event in time");
        next.map(|event| event.expect("events end with a reason"))
    }

    /// All up to this one.
    async fn until(&mut self, id: &str, kind: ContainerEventType) -> Vec<ContainerEventResponse> {
        let mut heard = Vec::new();
        loop {
            let event = self.next().await.unwrap();
            let last = event.container_id == id && event.container_event_type() == kind;
            heard.push(event);
            if last {
                return heard;
            }
        }
    }
}

fn what(events: &[ContainerEventResponse]) -> Vec<(&str, ContainerEventType)> {
    events.iter().map(|e| (e.container_id.as_str(), e.container_event_type())).collect()
}

/// The states of the pod's containers at the moment of the event.
fn states(event: &ContainerEventResponse) -> BTreeMap<&str, ContainerState> {
    event.containers_statuses.iter().map(|c| (c.id.as_str(), c.state())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_is_told_in_order_with_the_pod_as_it_was() {
    use ContainerState::{ContainerCreated, ContainerExited, ContainerRunning};
    let Some(node) = Node::start("a_life_is_told", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let mut listener = Listener::of(&cri).await;
    let pod = cri.run_pod(&node.pod("told")).await.unwrap();
    let a = cri.create(&pod, node.sh("a", "exit 3")).await.unwrap();
    let b = cri.run(&pod, node.sh("b", "sleep 1000")).await.unwrap();
    cri.start(&a).await.unwrap();
    cri.exited(&a).await.unwrap();
    cri.remove(&a).await.unwrap();
    cri.remove_pod(&pod.id).await.unwrap();

    let heard = listener.until(&pod.id, Deleted).await;
    let (p, a, b) = (pod.id.as_str(), a.as_str(), b.as_str());
    let want = [
        (p, Created),
        (p, Started),
        (a, Created),
        (b, Created),
        (b, Started),
        (a, Started),
        (a, Stopped),
        (a, Deleted),
        (b, Stopped),
        (p, Stopped),
        (b, Deleted),
        (p, Deleted),
    ];
    assert_eq!(what(&heard), want);
    let times: Vec<_> = heard.iter().map(|event| event.created_at).collect();
    assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
    for event in &heard[..11] {
        let status = event.pod_sandbox_status.as_ref().unwrap();
        assert_eq!(status.id, p);
        assert_eq!(status.metadata, pod.config.metadata);
    }
    assert_eq!(heard[11].pod_sandbox_status, None, "it is gone");
    // As it was then, not as it is when it is read.
    assert_eq!(states(&heard[5]), BTreeMap::from([(a, ContainerRunning), (b, ContainerRunning)]));
    assert_eq!(states(&heard[3]), BTreeMap::from([(a, ContainerCreated), (b, ContainerCreated)]));
    assert_eq!(states(&heard[6]), BTreeMap::from([(a, ContainerExited), (b, ContainerRunning)]));
    let ended = heard[6].containers_statuses.iter().find(|c| c.id == a).unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_str()), (3, "Error"));
    assert_eq!(states(&heard[7]), BTreeMap::from([(b, ContainerRunning)]));
    let ready = |at: usize| heard[at].pod_sandbox_status.as_ref().unwrap().state();
    assert_eq!(ready(8), PodSandboxState::SandboxReady);
    assert_eq!(ready(9), PodSandboxState::SandboxNotready);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_heard_is_told_to_the_next_also_across_a_restart() {
    let Some(mut node) = Node::start("what_nobody_heard", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("quiet")).await.unwrap();
    let id = cri.run(&pod, node.sh("c", "read x < /tmp/go; exit 5")).await;
    // No such FIFO: it has ended by itself.
    let id = id.unwrap();
    cri.exited(&id).await.unwrap();
    let mut listener = Listener::of(&cri).await;
    let heard = listener.until(&id, Stopped).await;
    let (p, c) = (pod.id.as_str(), id.as_str());
    let want = [(p, Created), (p, Started), (c, Created), (c, Started), (c, Stopped)];
    assert_eq!(what(&heard), want);
    drop(listener);

    let sleeper = cri.run(&pod, node.sh("sleeper", "exec sleep 1000")).await.unwrap();
    let sleeping = |p: &testkit::Process| p.command.starts_with("sleep");
    let process = node.processes().into_iter().find(sleeping).unwrap();
    node.daemon.kill().unwrap();
    process.signal(rustix::process::Signal::KILL);
    node.daemon.start_again().await.unwrap();
    let cri = node.cri().await.unwrap();
    let heard = Listener::of(&cri).await.until(&sleeper, Stopped).await;
    assert_eq!(what(&heard), [(sleeper.as_str(), Stopped)], "what is not new is not told");
    let status = heard[0].containers_statuses.iter().find(|c| c.id == sleeper).unwrap();
    assert_eq!(status.exit_code, 137);
    node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_does_not_hold_up_the_end_of_the_daemon() {
    let Some(mut node) = Node::start("a_subscriber_does_not", LONGSHORE).await else { return };
    let mut listener = Listener::of(&node.cri().await.unwrap()).await;
    let exit = node.daemon.stop().await.unwrap();
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    let end = listener.next().await.unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "the engine is closing"));
}

// === one who never reads ===

fn rss_kib(node: &Node) -> u64 {
    let path = format!("/proc/{}/status", node.daemon.pid().as_raw_nonzero());
    let status = fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn counted(node: &Node, metric: &str) -> u64 {
    let socket = node.daemon.metrics_socket();
    let text = tokio::task::spawn_blocking(move || {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        let ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(ask).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let text = text.await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{metric} ")));
    line.unwrap_or_else(|| panic!("no {metric} in {text}")).parse().unwrap()
}

/// Two events of a container that is created and removed; the median of what a round took.
async fn churn(node: &Node, cri: &Cri, pod: &testkit::Pod, rounds: u32) -> Duration {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let id = cri.create(pod, node.sh("c", "true")).await.unwrap();
        cri.remove(&id).await.unwrap();
        took.push(begun.elapsed());
    }
    took.sort();
    took[took.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_never_reads_is_cut_off_and_nobody_notices() {
    const CUT_OFF: &str = "longshore_events_subscribers_cut_off_total";
    let Some(node) = Node::start("one_who_never_reads", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let pod = cri.run_pod(&node.pod("churn")).await.unwrap();
    let alone = churn(&node, &cri, &pod, 100).await;
    let before = rss_kib(&node);
    // On a connection of its own, whose window fills up.
    let mut deaf = Listener::of(&node.cri().await.unwrap()).await;
    let mut together = Vec::new();
    let until = Instant::now() + 4 * LIMIT;
    while counted(&node, CUT_OFF).await == 0 {
        assert!(Instant::now() < until, "it was never cut off");
        together.push(churn(&node, &cri, &pod, 50).await);
    }
    for _ in 0..testkit::rounds(1) {
        together.push(churn(&node, &cri, &pod, 50).await);
    }
    together.sort();
    let (median, grown) = (together[together.len() / 2], rss_kib(&node).saturating_sub(before));
    eprintln!("a round: {alone:?} alone, {median:?} beside one who never reads; {grown} KiB more");
    assert!(median < 10 * alone + Duration::from_millis(200), "{alone:?} became {median:?}");
    assert!(grown < 8 << 10, "{grown} KiB more");

    let end = loop {
        match deaf.next().await {
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end:?}");
    // Nobody listens any more: what comes now is kept for the next, within limits.
    let made = counted(&node, "longshore_events_made_total").await;
    let id = cri.create(&pod, node.sh("last", "true")).await.unwrap();
    let heard = Listener::of(&cri).await.until(&id, Created).await;
    assert!(heard.len() <= 256 && made > 512, "{} of {made}", heard.len());
    node.finish().await.unwrap();
}
