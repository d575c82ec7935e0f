use super::{world::World, *};
use crate::{
    phase::{ContainerPhase, Exited, PodPhase, Reason},
    record::{Made, PinnedImage},
    request::{NewContainer, PodRequest},
};

const AGE: Duration = Duration::from_secs(300);
const T: Timestamp = Timestamp::UNIX_EPOCH;

fn events() -> Events {
    Events::new(AGE, Metrics::default())
}

fn event() -> Event {
    Event { id: Id::random(), moment: Moment::Created, at: T, pod: None, containers: Vec::new() }
}

fn publish(events: &Events, count: usize) -> Vec<Id> {
    let all: Vec<_> = (0..count).map(|_| event()).collect();
    let ids = all.iter().map(|event| event.id).collect();
    all.into_iter().for_each(|event| events.publish(event, Instant::now()));
    ids
}

/// What is in the queue now, and how it ended if it did.
fn heard(subscription: &mut Subscription) -> (Vec<Id>, Option<EventsEnd>) {
    use futures_util::FutureExt;
    let mut ids = Vec::new();
    loop {
        match subscription.next().now_or_never() {
            Some(Ok(event)) => ids.push(event.id),
            Some(Err(end)) => return (ids, Some(end)),
            None => return (ids, None),
        }
    }
}

// === queues ===

#[tokio::test(start_paused = true)]
async fn every_subscriber_hears_all_in_order() {
    let events = events();
    let (mut a, mut b) = (events.subscribe(), events.subscribe());
    let ids = publish(&events, 3);
    assert_eq!(heard(&mut a), (ids.clone(), None));
    let more = publish(&events, 1);
    assert_eq!(heard(&mut a), (more.clone(), None));
    assert_eq!(heard(&mut b), ([ids, more].concat(), None));
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_read_is_cut_off_and_the_others_are_not() {
    let events = events();
    let (mut slow, mut quick) = (events.subscribe(), events.subscribe());
    let mut all = Vec::new();
    for _ in 0..QUEUE + 1 {
        all.extend(publish(&events, 1));
        assert_eq!(heard(&mut quick).0.len(), 1);
    }
    // Not even what had been queued is kept for it.
    assert_eq!(slow.queue.state.lock().events.capacity(), 0);
    assert_eq!(heard(&mut slow), (Vec::new(), Some(EventsEnd::Lagged)));
    assert_eq!(heard(&mut slow), (Vec::new(), Some(EventsEnd::Lagged)), "the same end again");
    assert_eq!(events.metrics.subscribers_cut_off.get(), 1);
    assert_eq!(events.metrics.events_discarded.get(), 0, "somebody read them");
    // It may come back, and hears what happens then.
    let mut again = events.subscribe();
    let ids = publish(&events, 2);
    assert_eq!(heard(&mut again), (ids, None));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_heard_is_kept_for_the_next_but_not_for_ever() {
    let events = events();
    publish(&events, 2);
    tokio::time::advance(AGE / 2).await;
    let late = publish(&events, 2);
    assert_eq!(events.expire(Instant::now()), Some(Instant::now() + AGE / 2));
    tokio::time::advance(AGE / 2).await;
    assert_eq!(events.expire(Instant::now()), Some(Instant::now() + AGE / 2));
    assert_eq!(events.metrics.events_discarded.get(), 2);
    let mut first = events.subscribe();
    assert_eq!(heard(&mut first), (late, None));
    assert_eq!(heard(&mut events.subscribe()), (Vec::new(), None), "heard by the first");
    drop(first);
    let kept = publish(&events, 1);
    assert_eq!(heard(&mut events.subscribe()), (kept, None));
    assert_eq!(events.expire(Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn the_backlog_is_bounded() {
    let events = events();
    let ids = publish(&events, BACKLOG + 3);
    assert_eq!(events.metrics.events_discarded.get(), 3);
    let mut subscription = events.subscribe();
    // A full backlog leaves room for what comes before it is read.
    let more = publish(&events, BACKLOG);
    assert_eq!(heard(&mut subscription), ([&ids[3..], &more[..]].concat(), None));
}

#[tokio::test(start_paused = true)]
async fn the_end_comes_after_what_was_queued() {
    let events = events();
    let mut subscription = events.subscribe();
    let ids = publish(&events, 1);
    events.close();
    assert_eq!(heard(&mut subscription), (ids, Some(EventsEnd::Closing)));
    assert_eq!(heard(&mut events.subscribe()), (Vec::new(), Some(EventsEnd::Closing)));
    publish(&events, 1);
    assert!(events.inner.lock().backlog.is_empty(), "nobody will come");
}

// === meaning ===

fn pod(phase: PodPhase) -> PodRecord {
    PodRecord {
        selinux_categories: None,
        id: Id::random(),
        request: PodRequest::default(),
        handler: String::new(),
        phase,
        created_at: T,
        delivered: true,
        pid1: None,
        pid_namespace: None,
        ips: Vec::new(),
        last_ips: Vec::new(),
        overhead: Default::default(),
        resources: Default::default(),
    }
}

fn container(pod: Id) -> ContainerRecord {
    let digest: base::Digest = format!("sha256:{}", "ab".repeat(32)).parse().unwrap();
    ContainerRecord {
        id: Id::random(),
        pod,
        name: String::new(),
        request: NewContainer::default(),
        image: PinnedImage {
            id: digest,
            name: String::new(),
            repo_digest: String::new(),
            facts: Default::default(),
            chain: Vec::new(),
        },
        phase: ContainerPhase::Created,
        created_at: T,
        delivered: true,
        log_path: None,
        made: Made::default(),
        stop_told: false,
        evicted: None,
    }
}

fn running() -> ContainerPhase {
    ContainerPhase::Running { pid: 7, since: T }
}

fn exited() -> ContainerPhase {
    let (started, reason) = (Some(T), Reason::Completed);
    ContainerPhase::Exited(Exited { code: 0, at: T, started, reason, message: String::new() })
}

fn told(events: &[Event]) -> Vec<Moment> {
    events.iter().map(|event| event.moment).collect()
}

#[test]
fn a_life_is_told_step_by_step() {
    use Moment as M;
    let mut world = World::default();
    let record = pod(PodPhase::Making { step: String::new() });
    let id = record.id;
    let mut put = |record: &PodRecord| world.pod(id, Some(Arc::new(record.clone())), T);
    assert_eq!(told(&put(&record)), []);
    let made = PodRecord { phase: PodPhase::Ready, delivered: false, ..record };
    assert_eq!(told(&put(&made)), [], "nobody has its id");
    let ready = PodRecord { delivered: true, ..made };
    assert_eq!(told(&put(&ready)), [M::Created, M::Started]);

    let c = container(id);
    let mut step = |phase: ContainerPhase| {
        let record = ContainerRecord { phase, ..c.clone() };
        world.container(c.id, id, Some(Arc::new(record)), T)
    };
    let created = step(ContainerPhase::Created);
    assert_eq!(told(&created), [M::Created]);
    assert_eq!(created[0].containers.len(), 1);
    assert_eq!(created[0].pod.as_ref().unwrap().id, id);
    assert_eq!(told(&step(ContainerPhase::Starting)), []);
    let started = step(running());
    assert_eq!(told(&started), [M::Started]);
    assert_eq!(started[0].containers[0].phase, running(), "as it was then");
    assert_eq!(told(&step(ContainerPhase::Unknown { started: None })), []);
    assert_eq!(told(&step(running())), [], "it had been running all the time");
    assert_eq!(told(&step(exited())), [M::Stopped]);
    assert_eq!(told(&step(ContainerPhase::Removing)), []);
    let deleted = world.container(c.id, id, None, T);
    assert_eq!(told(&deleted), [M::Deleted]);
    assert!(deleted[0].containers.is_empty());

    let mut put = |phase| world.pod(id, Some(Arc::new(PodRecord { phase, ..ready.clone() })), T);
    assert_eq!(told(&put(PodPhase::Lost { at: T })), [M::Stopped]);
    assert_eq!(told(&put(PodPhase::Stopped { at: T })), []);
    assert_eq!(told(&put(PodPhase::Removing)), []);
    let last = world.pod(id, None, T);
    assert_eq!(told(&last), [M::Deleted]);
    assert!(last[0].pod.is_none() && last[0].id == id);
}

#[test]
fn what_was_there_at_the_start_is_no_news() {
    let ready = pod(PodPhase::Ready);
    let mut c = container(ready.id);
    c.phase = running();
    let mut world = World::new(&[Arc::new(ready.clone())], &[Arc::new(c.clone())]);
    assert_eq!(told(&world.pod(ready.id, Some(Arc::new(ready.clone())), T)), []);
    c.phase = exited();
    let end = world.container(c.id, ready.id, Some(Arc::new(c.clone())), T);
    assert_eq!(told(&end), [Moment::Stopped], "what recovery found out is");
}
