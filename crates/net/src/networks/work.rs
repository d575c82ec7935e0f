//! What is done for a pod when it has its turn.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use sys::namespace;
use tokio::{sync::RwLockWriteGuard, time::sleep};
use tokio_util::sync::CancellationToken;

use base::Id;

use super::{Shared, turn::Turn};
use crate::{
    chain::{Chain, Pod},
    error::NetError,
    loopback,
    pod::PodNet,
    record::{Attachment, NetResult, Phase, PodNetRecord},
};

/// For a minute in which no pod comes or goes at one moment at least.
const GC_TRIES: u32 = 600;
const GC_PAUSE: Duration = Duration::from_millis(100);

impl Shared {
    pub(super) async fn add(
        self: &Arc<Self>,
        pod: PodNet,
        turn: &Turn,
        stop: &CancellationToken,
    ) -> Result<NetResult, NetError> {
        let _held = turn.wait().await;
        let _place = self.adding.acquire().await.map_err(|_| NetError::Stopped)?;
        let _no_gc = self.exclusive.read().await;
        if stop.is_cancelled() {
            return Err(NetError::Stopped);
        }
        match self.records.get(&pod.id) {
            None => {}
            Some(record) if record.phase == Phase::Attached => {
                return Err(NetError::AlreadyAttached { id: pod.id });
            }
            Some(unfinished) => self.clear(&unfinished).await?,
        }
        let networks = self.source(&pod.handler).ready_networks()?;
        let identity = self.foreign_namespace(&pod.netns)?;
        let mut record = PodNetRecord::plan(&pod, &networks, identity)?;
        self.claim_ports(&record)?;
        if let Err(error) = self.records.put(record.clone()).await {
            self.ports.lock().release(&record.id);
            return Err(error.into());
        }
        let attached = match self.attach(&mut record, stop).await {
            Ok(result) => self.settle(&mut record).await.map(|()| result),
            Err(error) => Err(error),
        };
        match attached {
            Ok(result) => Ok(result),
            Err(error) => Err(self.undo(&record, error).await),
        }
    }

    fn claim_ports(&self, record: &PodNetRecord) -> Result<(), NetError> {
        let claimed = self.ports.lock().claim(record.id, &record.ports);
        claimed.map_err(|clash| NetError::PortTaken { port: clash.wanted, holder: clash.holder })
    }

    /// Refuses what is no network namespace, and the host's own: a program would take it
    /// for a pod's.
    fn foreign_namespace(&self, path: &Path) -> Result<(u64, u64), NetError> {
        let wrong = |why| NetError::Namespace { path: path.to_owned(), why };
        if !namespace::is_namespace(path).map_err(NetError::kernel(path))? {
            return Err(wrong("is no namespace"));
        }
        let identity = namespace::identity(path).map_err(NetError::kernel(path))?;
        if identity == self.host.namespace {
            return Err(wrong("is the host's own"));
        }
        Ok(identity)
    }

    /// Runs all ADDs. What they said is in the record, also after a failure.
    async fn attach(
        &self,
        record: &mut PodNetRecord,
        stop: &CancellationToken,
    ) -> Result<NetResult, NetError> {
        let netns = record.netns.clone();
        let up = tokio::task::spawn_blocking(move || loopback::up(&netns));
        up.await.map_err(|_| NetError::Died)??;
        let mut results: Vec<_> = record.attachments.iter().map(|_| None).collect();
        let done = {
            let pod = Pod { record, netns: Some(&record.netns) };
            let adds = record.attachments.iter().zip(&mut results).map(|(at, so_far)| async {
                let chain = Chain::new(&self.host, self.limits.chain, stop);
                chain.add(pod, at, so_far).await
            });
            self.all(adds).await
        };
        for (at, result) in record.attachments.iter_mut().zip(results) {
            at.result = result;
        }
        done?;
        self.address_of(record)
    }

    fn address_of(&self, record: &PodNetRecord) -> Result<NetResult, NetError> {
        let result = record.result(self.ip_preference).filter(|result| !result.ips.is_empty());
        result.ok_or_else(|| {
            let first = record.attachments.first();
            NetError::NoAddress {
                network: first.map(|at| at.network.name.clone()).unwrap_or_default(),
            }
        })
    }

    async fn settle(&self, record: &mut PodNetRecord) -> Result<(), NetError> {
        record.phase = Phase::Attached;
        self.records.put(record.clone()).await?;
        Ok(())
    }

    /// The failure as the caller gets it, after what was done is undone, or set aside.
    async fn undo(self: &Arc<Self>, record: &PodNetRecord, failure: NetError) -> NetError {
        match self.clear(record).await {
            Ok(()) => failure,
            Err(undo) => failure.not_undone(&undo),
        }
    }

    pub(super) async fn del(self: &Arc<Self>, id: Id, turn: &Turn) -> Result<(), NetError> {
        let _held = turn.wait().await;
        match self.records.get(&id) {
            Some(record) => self.clear(&record).await,
            None => Ok(()),
        }
    }

    /// DEL of everything, and then of the record. A failure is listed, and tried again.
    pub(super) async fn clear(self: &Arc<Self>, record: &PodNetRecord) -> Result<(), NetError> {
        let _place = self.deleting.acquire().await.map_err(|_| NetError::Stopped)?;
        let _no_gc = self.exclusive.read().await;
        let id = record.id;
        let done = self.detach(record).await;
        match &done {
            Ok(()) => {
                self.ports.lock().release(&id);
                self.retries.done(&id);
            }
            Err(error) => {
                self.retry_later(id);
                self.retries.failed(&id, error);
            }
        }
        done
    }

    async fn detach(&self, record: &PodNetRecord) -> Result<(), NetError> {
        // Results of an ADD that failed are worth keeping: some programs need them.
        let leaving = PodNetRecord { phase: Phase::Leaving, ..record.clone() };
        if self.records.get(&record.id).is_none_or(|stored| *stored != leaving) {
            self.records.put(leaving).await?;
        }
        let still_there = namespace::is_namespace(&record.netns).unwrap_or(false)
            && namespace::identity(&record.netns).is_ok_and(|now| now == record.netns_identity);
        let pod = Pod { record, netns: still_there.then_some(record.netns.as_path()) };
        let dels = record.attachments.iter().rev().map(|at| async move {
            let chain = Chain::new(&self.host, self.limits.chain, &self.stop);
            chain.del(pod, at).await
        });
        self.all(dels).await?;
        if record.release {
            release(record.netns.clone()).await?;
        }
        self.records.delete(&record.id).await?;
        Ok(())
    }

    pub(super) async fn check(self: &Arc<Self>, id: Id, turn: &Turn) -> Result<(), NetError> {
        let _held = turn.wait().await;
        let record = self.records.get(&id).filter(|record| record.phase == Phase::Attached);
        let record = record.ok_or(NetError::NotAttached { id })?;
        let pod = Pod { record: &record, netns: Some(&record.netns) };
        let checks = record.attachments.iter().map(|at| async move {
            let chain = Chain::new(&self.host, self.limits.chain, &self.stop);
            chain.check(pod, at).await
        });
        self.all(checks).await
    }

    pub(super) async fn gc(&self) -> Result<(), NetError> {
        let names = self.source_names();
        let networks = names.iter().flat_map(|name| self.source(name).networks());
        let mut failures = Vec::new();
        for network in networks.filter(|network| !network.disable_gc && network.version.has_gc()) {
            let _alone = self.alone().await?;
            let valid = self.attachments_of(&network.name);
            let chain = Chain::new(&self.host, self.limits.gc, &self.stop);
            failures.extend(chain.gc(&network, &valid).await.err());
        }
        NetError::collect(failures).map_or(Ok(()), Err)
    }

    /// A moment without any ADD or DEL; none begins until the guard is gone.
    async fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, NetError> {
        for _ in 0..GC_TRIES {
            match self.exclusive.try_write() {
                Ok(alone) => return Ok(alone),
                Err(_) => sleep(GC_PAUSE).await,
            }
        }
        Err(NetError::Busy)
    }

    /// Those that are leaving, too: their DEL is still to come, and wants to find them.
    fn attachments_of(&self, network: &str) -> Vec<(String, String)> {
        let of_pod = |record: &PodNetRecord| -> Vec<_> {
            let own = |at: &&Attachment| at.network.name == network;
            let ours = record.attachments.iter().filter(own);
            ours.map(|at| (record.id.to_string(), at.ifname.clone())).collect()
        };
        self.records.list().iter().flat_map(|record| of_pod(record)).collect()
    }

    /// All of them, whatever happens to one; the networks of one pod are few.
    async fn all(
        &self,
        work: impl Iterator<Item = impl Future<Output = Result<(), NetError>>>,
    ) -> Result<(), NetError> {
        let mut failures = Vec::new();
        if self.serial {
            for one in work {
                failures.extend(one.await.err());
            }
        } else {
            failures.extend(join_all(work).await.into_iter().filter_map(Result::err));
        }
        NetError::collect(failures).map_or(Ok(()), Err)
    }
}

/// Also one that is another by now: nobody else has a use for the path.
async fn release(netns: PathBuf) -> Result<(), NetError> {
    let work = move || namespace::unpin(&netns).map_err(NetError::kernel(&netns));
    tokio::task::spawn_blocking(work).await.map_err(|_| NetError::Died)?
}
