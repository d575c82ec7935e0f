//! Plugins keep books while containers come and go by the hundred, plugins connect and
//! disconnect, and the daemon is killed. The books of every connection must be in order:
//! what exists is told at the beginning or announced, once; what ends is told once; nothing is
//! missing. Across the death of a daemon only what was in flight may be told again.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use api_cri::v1::ContainerConfig;
use nri_sdk::{
    Answer, Container, Context, Creation, Environment, Event, Handlers, Plugin, PodSandbox, Stub,
    Updates, World,
};
use parking_lot::Mutex;
use testkit::{Cri, Node, Pod, rounds};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Code;

use crate::{
    LONGSHORE,
    probe::{socket, until},
};

const PODS: usize = 20;
const PLUGINS: usize = 5;

/// Moments, in the order of the test.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl Clock {
    fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

async fn pause(least: u64, most: u64) {
    tokio::time::sleep(Duration::from_millis(least + random(most - least))).await;
}

// === the plugin ===

/// The books of one connection.
#[derive(Clone, Debug, Default)]
struct Account {
    synced_at: u64,
    synced: BTreeSet<String>,
    created: BTreeSet<String>,
    /// Whether each that is there has been stopped.
    known: BTreeMap<String, bool>,
    removed: BTreeSet<String>,
    told: Vec<(Event, String)>,
    faults: Vec<String>,
}

impl Account {
    fn begin(now: u64, world: &World) -> Self {
        let synced: BTreeSet<_> = world.containers.iter().map(|c| c.id.clone()).collect();
        let known = synced.iter().map(|id| (id.clone(), false)).collect();
        Self { synced_at: now, synced, known, ..Self::default() }
    }

    fn enter(&mut self, event: Event, id: &str) {
        self.told.push((event, id.to_owned()));
        if self.removed.contains(id) {
            self.faults.push(format!("{event:?} of {id} after its removal"));
        }
        let stopped = self.known.get(id).copied();
        match (event, stopped) {
            (Event::CreateContainer, None) => {
                self.created.insert(id.to_owned());
                self.known.insert(id.to_owned(), false);
            }
            (Event::StopContainer, Some(false)) => drop(self.known.insert(id.to_owned(), true)),
            (Event::RemoveContainer, Some(true)) => {
                self.known.remove(id);
                self.removed.insert(id.to_owned());
            }
            // It had ended before the plugin came.
            (Event::RemoveContainer, None) => drop(self.removed.insert(id.to_owned())),
            (Event::CreateContainer | Event::StopContainer | Event::RemoveContainer, stopped) => {
                self.faults.push(format!("{event:?} of {id}, stopped: {stopped:?}"))
            }
            (_, None) => self.faults.push(format!("{event:?} of {id}, which is unknown")),
            (_, Some(_)) => {}
        }
    }
}

#[derive(Debug)]
struct Auditor {
    clock: Arc<Clock>,
    accounts: Mutex<Vec<Account>>,
}

impl Auditor {
    async fn synchronize(self: Arc<Self>, _: Context, world: World) -> Answer<Updates> {
        let now = self.clock.now();
        self.accounts.lock().push(Account::begin(now, &world));
        Ok(Updates::default())
    }

    fn enter(&self, ctx: &Context, id: &str) {
        let event = ctx.event().expect("each handler has its event");
        match self.accounts.lock().last_mut() {
            Some(account) => account.enter(event, id),
            None => panic!("{event:?} before Synchronize"),
        }
    }

    async fn create(
        self: Arc<Self>,
        ctx: Context,
        _: PodSandbox,
        c: Container,
    ) -> Answer<Creation> {
        self.enter(&ctx, &c.id);
        Ok(Creation::default())
    }

    async fn event(self: Arc<Self>, ctx: Context, _: PodSandbox, c: Container) -> Answer {
        self.enter(&ctx, &c.id);
        Ok(())
    }

    async fn stop(self: Arc<Self>, ctx: Context, _: PodSandbox, c: Container) -> Answer<Updates> {
        self.enter(&ctx, &c.id);
        Ok(Updates::default())
    }
}

impl Plugin for Auditor {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .synchronize(Self::synchronize)
            .create_container(Self::create)
            .post_create_container(Self::event)
            .start_container(Self::event)
            .post_start_container(Self::event)
            .stop_container(Self::stop)
            .remove_container(Self::event)
    }
}

/// One that is connected, and comes back by itself when the daemon does.
struct Connected {
    auditor: Arc<Auditor>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Connected {
    async fn new(socket: &PathBuf, clock: &Arc<Clock>, number: usize) -> Self {
        let auditor = Auditor { clock: Arc::clone(clock), accounts: Mutex::default() };
        let stub = Stub::builder(auditor)
            .environment(Environment::default())
            .name("auditor")
            .index(format!("{number:02}"))
            .socket(socket)
            .build()
            .unwrap();
        let (auditor, stop) = (Arc::clone(stub.plugin()), CancellationToken::new());
        let until_stopped = stop.clone();
        let running = TaskTracker::new().spawn(async move {
            until_stopped.run_until_cancelled(stub.run()).await;
        });
        let connected = Self { auditor, stop, running };
        until("Synchronize", || (!connected.accounts().is_empty()).then_some(())).await;
        connected
    }

    fn accounts(&self) -> Vec<Account> {
        self.auditor.accounts.lock().clone()
    }

    async fn leave(self) -> Vec<Account> {
        self.stop.cancel();
        let accounts = Arc::clone(&self.auditor);
        self.running.await.unwrap();
        accounts.accounts.lock().clone()
    }
}

// === the client ===

/// What a container went through, by the clock; `u64::MAX` is "not yet".
#[derive(Clone, Debug)]
struct Lived {
    id: String,
    create_called: u64,
    create_returned: u64,
    end_called: u64,
    end_returned: u64,
}

/// Makes and removes the containers of one pod, through all deaths of the daemon.
struct Driver {
    socket: PathBuf,
    clock: Arc<Clock>,
    pod: Pod,
    /// What is being done, by the name of the container.
    in_flight: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Driver {
    async fn retried<T, F>(&self, mut call: impl FnMut(Cri) -> F) -> T
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let mut refused = 0;
        loop {
            // The daemon may be dead for a while.
            if let Ok(cri) = Cri::connect(&self.socket).await {
                match call(cri).await {
                    Ok(done) => return done,
                    Err(error) if error.code() == Code::Unavailable => {}
                    // A connection that broke says so in many ways.
                    Err(error) => {
                        refused += 1;
                        assert!(refused < 50, "{error}");
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn live(&self, config: ContainerConfig, starts: bool) -> Lived {
        let name = config.metadata.as_ref().unwrap().name.clone();
        let key = format!("{}/{name}", self.pod.id);
        self.in_flight.lock().insert(key.clone(), String::new());
        let create_called = self.clock.now();
        let id = self
            .retried(|cri| {
                let (pod, config, name) = (self.pod.clone(), config.clone(), name.clone());
                async move {
                    match cri.create(&pod, config).await {
                        // The answer was sent, and died with the daemon.
                        Err(error) if error.code() == Code::AlreadyExists => {
                            found(&cri, &pod.id, &name).await?.ok_or(error)
                        }
                        created => created,
                    }
                }
            })
            .await;
        let create_returned = self.clock.now();
        self.in_flight.lock().insert(key.clone(), id.clone());
        if starts {
            self.retried(|cri| {
                let id = id.clone();
                async move {
                    match cri.start(&id).await {
                        // It was done before the answer was lost.
                        Err(error) if error.code() == Code::FailedPrecondition => Ok(()),
                        started => started,
                    }
                }
            })
            .await;
        }
        self.in_flight.lock().remove(&key);
        pause(1, 20).await;
        self.in_flight.lock().insert(key.clone(), id.clone());
        let end_called = self.clock.now();
        self.retried(|cri| {
            let id = id.clone();
            async move {
                cri.stop(&id, 0).await?;
                cri.remove(&id).await
            }
        })
        .await;
        let end_returned = self.clock.now();
        self.in_flight.lock().remove(&key);
        Lived { id, create_called, create_returned, end_called, end_returned }
    }
}

/// As a kubelet finds what it does not know it has made.
async fn found(cri: &Cri, pod: &str, name: &str) -> Result<Option<String>, tonic::Status> {
    let all = cri.containers().await?.into_iter();
    let mut own = all.filter(|c| c.pod_sandbox_id == pod);
    let named = |c: &api_cri::v1::Container| c.metadata.as_ref().is_some_and(|m| m.name == name);
    Ok(own.find(named).map(|container| container.id))
}

/// A node with its pods.
struct Field {
    node: Node,
    clock: Arc<Clock>,
    pods: Vec<Pod>,
    in_flight: Arc<Mutex<BTreeMap<String, String>>>,
    socket: PathBuf,
}

impl Field {
    async fn new(test: &str) -> Option<Self> {
        let node = Node::start(test, LONGSHORE).await?;
        let cri = node.cri().await.unwrap();
        let mut pods = Vec::new();
        for number in 0..PODS {
            pods.push(cri.run_pod(&node.pod(&format!("p{number}"))).await.unwrap());
        }
        let socket = socket(&node);
        Some(Self { node, clock: Arc::default(), pods, in_flight: Arc::default(), socket })
    }

    /// One driver per pod; each goes on as long as `more` says so to the number it has made.
    fn drive(
        &self,
        more: impl Fn(u32) -> bool + Clone + Send + Sync + 'static,
    ) -> tokio::task::JoinSet<Vec<Lived>> {
        let mut driving = tokio::task::JoinSet::new();
        for pod in &self.pods {
            let driver = Driver {
                socket: self.node.daemon.cri_socket(),
                clock: Arc::clone(&self.clock),
                pod: pod.clone(),
                in_flight: Arc::clone(&self.in_flight),
            };
            let (template, more) = (self.node.sh("c", "exec sleep 1000"), more.clone());
            driving.spawn(async move {
                let mut lives = Vec::new();
                for number in 0.. {
                    if !more(number) {
                        break;
                    }
                    let mut config = template.clone();
                    config.metadata.as_mut().unwrap().name = format!("c{number}");
                    config.log_path = format!("c{number}.log");
                    // Few run: it is the books that are looked at, not the kernel.
                    lives.push(Box::pin(driver.live(config, number % 8 == 0)).await);
                }
                lives
            });
        }
        driving
    }
}

fn check_faults(account: &Account) {
    assert!(account.faults.is_empty(), "{:#?}", account.faults);
}

/// Everything of `lives` that falls inside the window of the account is in it.
fn check_complete(account: &Account, lives: &[Lived], begun: u64, left: u64) {
    for lived in lives {
        if lived.create_called > account.synced_at && lived.create_returned < left {
            assert!(
                account.created.contains(&lived.id),
                "not announced: {lived:?}, {begun}..{left}"
            );
        }
        if lived.create_returned < begun && lived.end_called > account.synced_at {
            assert!(account.synced.contains(&lived.id), "not synchronised: {lived:?}, {begun}");
        }
        let twice = account.synced.contains(&lived.id) && account.created.contains(&lived.id);
        assert!(!twice, "{} was synchronised and announced", lived.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_are_in_order_while_plugins_come_and_go() {
    let Some(field) = Field::new("the_books_are_in_order").await else { return };
    let (each, begun) = (rounds(5).min(25), Instant::now());
    let over = Arc::new(AtomicBool::new(false));
    let mut plugins = tokio::task::JoinSet::new();
    for number in 0..PLUGINS {
        let (socket, clock, over) =
            (field.socket.clone(), Arc::clone(&field.clock), Arc::clone(&over));
        plugins.spawn(async move {
            let mut books = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let begun = clock.now();
                let connected = Connected::new(&socket, &clock, number).await;
                pause(20, 400).await;
                let left = clock.now();
                let accounts = connected.leave().await;
                books.extend(accounts.into_iter().map(|account| (begun, left, account)));
                pause(1, 50).await;
            }
            books
        });
    }
    // One that sees it all.
    let witness = Connected::new(&field.socket, &field.clock, 90).await;
    let mut driving = field.drive(move |made| made < each);
    let mut lives = Vec::new();
    while let Some(lived) = driving.join_next().await {
        lives.extend(lived.unwrap());
    }
    over.store(true, Ordering::SeqCst);
    assert_eq!(lives.len(), PODS * each as usize);
    until("all ends to be told", || {
        let account = witness.accounts().remove(0);
        (account.known.is_empty() && account.removed.len() == lives.len()).then_some(())
    })
    .await;
    let account = witness.leave().await.remove(0);
    check_faults(&account);
    check_complete(&account, &lives, 0, u64::MAX);
    let (mut connections, mut events) = (0, account.told.len());
    while let Some(books) = plugins.join_next().await {
        for (begun, left, account) in books.unwrap() {
            connections += 1;
            events += account.told.len();
            check_faults(&account);
            check_complete(&account, &lives, begun, left);
        }
    }
    assert!(connections >= PLUGINS, "{connections} connections");
    let (made, took) = (lives.len(), begun.elapsed());
    eprintln!("{made} containers, {connections} connections, {events} events in {took:?}");
    field.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_daemon_is_killed() {
    let Some(mut field) = Field::new("nothing_is_lost_when").await else { return };
    let (over, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let mut plugins = Vec::new();
    for number in 0..PLUGINS {
        plugins.push(Connected::new(&field.socket, &field.clock, number).await);
    }
    let goes_on = Arc::clone(&over);
    let mut driving = field.drive(move |_| !goes_on.load(Ordering::SeqCst));
    // When each daemon died, and what was being done then.
    let mut deaths: Vec<(u64, BTreeSet<String>)> = Vec::new();
    for death in 0..rounds(3).min(100) {
        pause(200, 1500).await;
        field.node.daemon.kill().unwrap();
        let in_flight = field.in_flight.lock().values().cloned().collect();
        deaths.push((field.clock.now(), in_flight));
        field.node.daemon.start_again().await.unwrap();
        let connections = death as usize + 2;
        for plugin in &plugins {
            until("the next Synchronize", || {
                (plugin.accounts().len() >= connections).then_some(())
            })
            .await;
        }
    }
    over.store(true, Ordering::SeqCst);
    let mut lives = Vec::new();
    while let Some(lived) = driving.join_next().await {
        lives.extend(lived.unwrap());
    }
    let (mut events, mut repeats) = (0, 0);
    for plugin in plugins {
        until("all ends to be told", || {
            plugin.accounts().last().is_some_and(|last| last.known.is_empty()).then_some(())
        })
        .await;
        let accounts = plugin.leave().await;
        events += accounts.iter().map(|account| account.told.len()).sum::<usize>();
        repeats += check_across_deaths(&accounts, &lives, &deaths);
    }
    let (made, died, took) = (lives.len(), deaths.len(), begun.elapsed());
    eprintln!("{made} containers, {died} deaths, {events} events, {repeats} again in {took:?}");
    field.node.finish().await.unwrap();
}

/// Returns how many events were told again.
fn check_across_deaths(
    accounts: &[Account],
    lives: &[Lived],
    deaths: &[(u64, BTreeSet<String>)],
) -> usize {
    assert_eq!(accounts.len(), deaths.len() + 1, "one connection for each daemon");
    let (mut told, mut repeats) = (BTreeSet::new(), 0);
    for (number, account) in accounts.iter().enumerate() {
        check_faults(account);
        let begun = number.checked_sub(1).map_or(0, |last| deaths[last].0);
        let left = deaths.get(number).map_or(u64::MAX, |(died, _)| *died);
        check_complete(account, lives, begun, left);
        let now: BTreeSet<_> = account.told.iter().cloned().collect();
        for (event, id) in now.intersection(&told) {
            let known = deaths[..number].iter().any(|(_, in_flight)| in_flight.contains(id));
            // Whose creation nobody had an answer to has no name yet.
            let nameless = !lives.iter().any(|lived| {
                lived.id == *id
                    && deaths[..number].iter().all(|(died, _)| {
                        *died < lived.create_called || *died > lived.create_returned
                    })
            });
            assert!(known || nameless, "{event:?} of {id} again, and it was not in flight");
            repeats += 1;
        }
        told.extend(now);
    }
    for lived in lives {
        let ended = lived.end_returned != u64::MAX;
        let last = accounts.last().is_some_and(|last| last.known.contains_key(&lived.id));
        assert!(ended && !last, "its end was not told: {lived:?}");
    }
    repeats
}
