//! The networks of this node: the live thing.
//!
//! ```text
//!   directories ──watch──> Source ──networks──┐
//!   add, del, check ──> one turn per pod ──> Chain ──> programs
//!                            └──> record (store)   └── what DEL could not do is tried again
//! ```
//! **Invariant:** of one pod one thing is done at a time. All work runs in tasks of ours: a
//! caller that goes away changes nothing, and what it left is behind a record.

mod retry;
mod turn;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt,
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use base::{Chain as Causes, Id};
use futures_util::future::join_all;
use parking_lot::Mutex;
use store::{Store, Table};
use tokio::sync::{RwLock, Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use retry::Leftover;

use crate::{
    chain::Chain,
    cidr::Cidr,
    error::NetError,
    pod::PodNet,
    ports::PortBook,
    program::{self, Host},
    record::{NetResult, Phase, PodNetRecord},
    result::IpPreference,
    source::{Readiness, Source, SourceConfig},
    survivors,
    watch::Watcher,
};
use retry::Retries;
use turn::Turns;

#[derive(Clone, Debug)]
pub struct NetConfig {
    pub default: SourceConfig,
    /// Handlers with a configuration directory of their own.
    pub handlers: BTreeMap<String, SourceConfig>,
    /// Where CNI programs are; the first that has one counts.
    pub bin_dirs: Vec<PathBuf>,
    /// `PATH` of CNI programs, which start others.
    pub path: OsString,
    pub ip_preference: IpPreference,
    /// One network of a pod after the other.
    pub serial: bool,
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One call of one program.
    pub program: Duration,
    /// All programs of one network of one pod.
    pub chain: Duration,
    /// All programs of one network, when they collect garbage: pods wait meanwhile.
    pub gc: Duration,
    /// Bytes a program may print.
    pub output: usize,
    /// Pods that are attached at the same time, and as many detached.
    pub parallel: usize,
    /// How often programs that can tell are asked whether they could attach a pod.
    pub status_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            program: Duration::from_secs(90),
            chain: Duration::from_secs(180),
            gc: Duration::from_secs(20),
            output: 1 << 20,
            parallel: 32,
            status_every: Duration::from_secs(10),
        }
    }
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            default: SourceConfig {
                conf_dir: "/etc/cni/net.d".into(),
                max_conf: 1,
                template: None,
            },
            handlers: BTreeMap::new(),
            bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            ip_preference: IpPreference::default(),
            serial: false,
            limits: Limits::default(),
        }
    }
}

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Networks {
    shared: Arc<Shared>,
}

struct Shared {
    host: Host,
    ip_preference: IpPreference,
    serial: bool,
    limits: Limits,
    default: Source,
    handlers: BTreeMap<String, Source>,
    records: Table<PodNetRecord>,
    ports: Mutex<PortBook>,
    turns: Turns,
    /// Apart, so that programs that hang in ADD do not keep pods from going.
    adding: Semaphore,
    deleting: Semaphore,
    /// ADD and DEL hold it together, GC alone, as CNI has it. GC never queues for it: those
    /// behind it would wait for whatever hangs before it.
    exclusive: RwLock<()>,
    retries: Retries,
    tasks: TaskTracker,
    stop: CancellationToken,
}

// === impl Networks ===

impl Networks {
    /// Reads the configuration and takes up what an earlier daemon left: its programs that
    /// still run are killed if their work is to be undone, and DEL is tried for that. A bad
    /// or missing configuration is no error, see [`Networks::readiness`].
    ///
    /// Call it in the network namespace of the host. Not cancel safe: programs may be killed
    /// already.
    pub async fn open(config: NetConfig, store: &Store) -> Result<Self, NetError> {
        let records = store.table::<PodNetRecord>()?;
        let shared = Arc::new(Shared::new(config, records)?);
        let unfinished = shared.take_up();
        let pods: BTreeSet<_> = unfinished.iter().copied().collect();
        let killing = tokio::task::spawn_blocking(move || survivors::kill(&pods));
        let killed = killing.await.map_err(|_| NetError::Died)?;
        let killed = killed.map_err(NetError::io("list", "/proc".as_ref()))?;
        if killed > 0 {
            tracing::warn!(killed, "programs of an earlier daemon were still running");
        }
        for id in unfinished {
            shared.retry(id, Duration::ZERO);
        }
        for name in shared.source_names() {
            let source = shared.source(&name);
            let mut watcher = Watcher::new(source.dir());
            source.refresh(&mut watcher).await;
            let task = Arc::clone(&shared).follow(name, watcher);
            shared.tasks.spawn(shared.stop.clone().run_until_cancelled_owned(task));
        }
        Ok(Self { shared })
    }

    /// Whether pods of a handler can be attached, now and in future.
    pub fn readiness(&self, handler: &str) -> watch::Receiver<Readiness> {
        self.shared.source(handler).subscribe()
    }

    /// Attaches a pod to all its networks, `lo` included, or undoes what was done.
    ///
    /// Cancel safe: dropping the future abandons the wait; the pod is then attached or
    /// not, and [`Networks::del`] is right in both cases.
    pub async fn add(&self, pod: PodNet) -> Result<NetResult, NetError> {
        let turn = self.shared.turns.of(pod.id);
        let stop = turn.adding();
        self.run(|shared| async move { shared.add(pod, &turn, &stop).await }).await
    }

    /// Detaches a pod from whatever it was attached to; an ADD in flight is stopped. A pod
    /// nobody knows is no error. After an error it is tried again for ever, with pauses of a
    /// second to five minutes, also after a restart; the namespace may go meanwhile, but what
    /// a program needs it for is then lost.
    ///
    /// Cancel safe: dropping the future abandons the wait, not the work.
    pub async fn del(&self, id: &Id) -> Result<(), NetError> {
        let (id, turn) = (*id, self.shared.turns.of(*id));
        turn.stop_adding();
        self.run(|shared| async move { shared.del(id, &turn).await }).await
    }

    /// Asks the programs whether a pod is still as they made it. Cancel safe.
    pub async fn check(&self, id: &Id) -> Result<(), NetError> {
        let (id, turn) = (*id, self.shared.turns.of(*id));
        self.run(|shared| async move { shared.check(id, &turn).await }).await
    }

    /// Detaches every pod that is not valid, and lets programs that can (CNI 1.1) remove
    /// what no attachment of ours needs. All is tried; all failures are told.
    ///
    /// `is_valid` is asked about pods that are on record here by then: a pod must be valid
    /// from before its ADD on.
    ///
    /// Cancel safe: dropping the future abandons the wait, not the work.
    pub async fn gc(&self, is_valid: impl Fn(&Id) -> bool) -> Result<(), NetError> {
        let records = self.shared.records.list();
        let stale = records.iter().map(|record| record.id).filter(|id| !is_valid(id));
        let dels = stale.map(|id| async move { self.del(&id).await });
        let mut failures: Vec<_> =
            join_all(dels).await.into_iter().filter_map(Result::err).collect();
        failures.extend(self.run(|shared| async move { shared.gc().await }).await.err());
        NetError::collect(failures).map_or(Ok(()), Err)
    }

    /// Asks the programs that can tell (CNI 1.1) whether they could attach a pod; the answer
    /// is in the readiness, too. Cancel safe.
    pub async fn status(&self, handler: &str) -> Result<(), NetError> {
        let handler = handler.to_owned();
        self.run(|shared| async move { shared.status(&handler).await }).await
    }

    /// What a pod got, from memory.
    pub fn result(&self, id: &Id) -> Option<NetResult> {
        let record = self.shared.records.get(id).filter(|record| record.phase == Phase::Attached);
        record?.result(self.shared.ip_preference)
    }

    /// Whether there is anything to be undone for a pod: its namespace is in use, or it
    /// will be by the DEL that is still to come.
    pub fn holds(&self, id: &Id) -> bool {
        self.shared.records.get(id).is_some()
    }

    /// Pods that are to be detached and could not be yet.
    pub fn leftovers(&self) -> Vec<Leftover> {
        self.shared.retries.list()
    }

    /// The node learnt its pod networks, as a list with commas: fills the templates of
    /// directories that have no configuration yet.
    ///
    /// Not cancel safe: some of the files may be written.
    pub async fn set_pod_cidrs(&self, cidrs: &str) -> Result<(), NetError> {
        let cidrs = cidrs.split(',').map(str::trim).filter(|cidr| !cidr.is_empty());
        let cidrs = cidrs.map(|text| text.parse().map(Cidr::network));
        let cidrs = cidrs.collect::<Result<Vec<_>, _>>()?;
        for name in self.shared.source_names() {
            self.shared.source(&name).render(&cidrs).await?;
        }
        Ok(())
    }

    /// Ends in order: programs in flight are killed, their pods are taken up at the next
    /// start. Cancel safe.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    async fn run<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T, NetError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NetError>> + Send + 'static,
    {
        if self.shared.stop.is_cancelled() {
            return Err(NetError::Stopped);
        }
        let task = self.shared.tasks.spawn(work(Arc::clone(&self.shared)));
        task.await.unwrap_or(Err(NetError::Died))
    }
}

impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Networks({} pods)", self.shared.records.len())
    }
}

// === impl Shared ===

impl Shared {
    fn new(config: NetConfig, records: Table<PodNetRecord>) -> Result<Self, NetError> {
        let here = program::own_namespace()
            .map_err(NetError::kernel("/proc/thread-self/ns/net".as_ref()))?;
        let (limits, stop) = (config.limits, CancellationToken::new());
        let host = Host {
            bin_dirs: config.bin_dirs,
            path: config.path,
            namespace: here,
            limit: limits.program,
            max_output: limits.output,
        };
        let handlers =
            config.handlers.into_iter().map(|(name, source)| (name, Source::new(source)));
        Ok(Self {
            host,
            ip_preference: config.ip_preference,
            serial: config.serial,
            limits,
            default: Source::new(config.default),
            handlers: handlers.collect(),
            records,
            ports: Mutex::default(),
            turns: Turns::new(stop.clone()),
            adding: Semaphore::new(limits.parallel),
            deleting: Semaphore::new(limits.parallel),
            exclusive: RwLock::default(),
            retries: Retries::default(),
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// Ports of the pods on record are taken. Gives the pods whose work was not finished:
    /// nobody waits for their ADD any more.
    fn take_up(&self) -> Vec<Id> {
        let records = self.records.list();
        let mut ports = self.ports.lock();
        for record in &records {
            // They were granted once, so they do not clash.
            let _ = ports.claim(record.id, &record.ports);
        }
        let unfinished = records.iter().filter(|record| record.phase != Phase::Attached);
        unfinished.map(|record| record.id).collect()
    }

    fn source(&self, handler: &str) -> &Source {
        self.handlers.get(handler).unwrap_or(&self.default)
    }

    /// One for each source. The default's is a name no handler has a source under.
    fn source_names(&self) -> Vec<String> {
        let default =
            std::iter::once(String::new()).filter(|name| !self.handlers.contains_key(name));
        default.chain(self.handlers.keys().cloned()).collect()
    }

    /// Reads a directory again whenever it changes, and asks its programs how they are.
    async fn follow(self: Arc<Self>, name: String, mut watcher: Watcher) {
        let source = self.source(&name);
        loop {
            let can_tell = source.networks().iter().any(|network| network.version.has_gc());
            if can_tell {
                // The readiness has it.
                let _ = self.status(&name).await;
            }
            let pause = if can_tell { self.limits.status_every } else { Duration::MAX };
            if tokio::time::timeout(pause, watcher.changed()).await.is_ok() {
                source.refresh(&mut watcher).await;
            }
        }
    }

    async fn status(&self, handler: &str) -> Result<(), NetError> {
        let source = self.source(handler);
        let asked = source.networks();
        let mut failures = Vec::new();
        for network in asked.iter().filter(|network| network.version.has_gc()) {
            let chain = Chain::new(&self.host, self.limits.chain, &self.stop);
            failures.extend(chain.status(network).await.err());
        }
        let result = NetError::collect(failures).map_or(Ok(()), Err);
        // The answer is about the networks that were asked.
        if source.networks() == asked {
            source.set_status(result.as_ref().err().map(|error| Causes(error).to_string()));
        }
        result
    }
}
