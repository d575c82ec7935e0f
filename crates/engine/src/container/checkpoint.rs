//! The memory and the files of a running container, in an archive; it runs on.
//!
//! ```text
//!   prepare ─> freeze ─> dump: criu ─> changes of its files ─> thaw ─> archive ─> rename
//!                 └───────────── a failure: thaw, remove ───────────┘
//! ```
//!
//! All that is made on the way is in a directory of the container's own, which is there before
//! anything is done:
//!
//! ```text
//! ROOT/checkpoints/CONTAINER/partial   the path of the archive that is being written
//!                            parts/    what goes into it
//! ```
//!
//! **Invariant:** as long as that directory is there the container may be frozen; who finds it
//! after the death of a daemon thaws the container, and only then removes the directory.

mod archive;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base::{Chain, Id, Kind};
use jiff::Timestamp;
use shim_client::{CheckpointPaths, Shim, ShimError, TaskStatus};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::archive::{Description, Target};
use crate::{
    error::{EngineError, Result},
    files::{blocking, make_dir, remove_dir, write},
    record::ContainerRecord,
    request::CheckpointRequest,
    shared::Shared,
    stages::Entered,
    storage::GoOn,
};

pub(crate) const OPERATION: &str = "checkpoint-container";
pub(crate) const STAGES: [&str; 7] =
    ["prepare", "freeze", "dump", "changes", "thaw", "archive", "clean"];

/// Nobody means more, and clocks have an end.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// `criu check` takes a fraction of a second, and longer on a busy machine.
const CHECK: Duration = Duration::from_secs(30);
/// For a shim that is still at the dump: it kills criu when the time of that is over.
const THAW: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(100);
/// At the end of the daemon: enough to be heard by the shim, which then thaws by itself.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Everything that can be known before.
pub(crate) async fn check(
    shared: &Shared,
    container: &ContainerRecord,
    request: &CheckpointRequest,
) -> Result<()> {
    Target::of(&request.location)?;
    check_phase(container)?;
    let id = container.id;
    // Debian's crun, for one, would fail without a word.
    let handler = shared.handler(&handler_of(shared, container))?;
    if !handler.facts.abilities.checkpoints {
        return Err(EngineError::BuiltWithoutCriu { id, handler: handler.name.clone() });
    }
    let dirs = shared.config.program_dirs.clone();
    let found = blocking(move || Ok(probe::criu(&dirs, CHECK))).await?;
    found.map(drop).map_err(|source| EngineError::NoCriu { id, source })
}

fn handler_of(shared: &Shared, container: &ContainerRecord) -> String {
    shared.pods.get(&container.pod).map(|pod| pod.handler.clone()).unwrap_or_default()
}

pub(crate) fn check_phase(container: &ContainerRecord) -> Result<()> {
    if container.phase.pid().is_some() {
        return Ok(());
    }
    let (id, state) = (container.id, container.phase.to_string());
    Err(EngineError::State { what: "container", id, state, action: "checkpoint it" })
}

/// Not cancel safe. `broken_off`: the container is being killed.
pub(crate) async fn checkpoint(
    shared: Arc<Shared>,
    container: Arc<ContainerRecord>,
    request: CheckpointRequest,
    broken_off: CancellationToken,
) -> Result<()> {
    let limit = request.limit.unwrap_or(shared.config.limits.checkpoint).min(LONGEST);
    let (id, since) = (container.id, Instant::now());
    let job = Job {
        shim: shared.shim(container.pod)?,
        target: Target::of(&request.location)?,
        dir: shared.layout.checkpoint(&id),
        end: since + limit,
        limit,
        broken_off,
        container,
        shared,
    };
    let stage = job.shared.stages.enter(id, OPERATION);
    let bytes = job.run(&stage).await?;
    let (location, took) = (request.location.display(), since.elapsed());
    tracing::info!(container = %id, %location, bytes, ?took, "checkpoint written");
    Ok(())
}

/// After the death of the daemon that had begun it. Idempotent.
pub(crate) async fn settle(shared: Arc<Shared>, container: Arc<ContainerRecord>) -> Result<()> {
    let id = container.id;
    if let Some(shim) = shared.live.shim(container.pod) {
        let thawed = thaw(&shim, id.as_str());
        if shared.stop.run_until_cancelled(thawed).await.is_none() {
            return Err(EngineError::Closing);
        }
    }
    let dir = shared.layout.checkpoint(&id);
    let discarded = blocking(move || discard(&dir)).await;
    match &discarded {
        Ok(()) => tracing::info!(container = %id, "an unfinished checkpoint was undone"),
        Err(error) => tracing::warn!(container = %id, error = %Chain(error), "undo a checkpoint"),
    }
    discarded
}

/// Removes what is left of a checkpoint in the making, if anything is. Blocking.
pub(crate) fn discard(dir: &Path) -> Result<()> {
    let mark = dir.join(PARTIAL);
    match fs::read_to_string(&mark) {
        Ok(partial) => remove_file(Path::new(&partial))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(EngineError::io("read", mark)(e)),
    }
    remove_dir(dir)
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(EngineError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

const PARTIAL: &str = "partial";
const PARTS: &str = "parts";

/// Returns when it runs, or is gone. A call that the shim is at, for this container, comes first.
async fn thaw(shim: &Shim, id: &str) {
    loop {
        match shim.resume(id).await {
            Ok(()) | Err(ShimError::NotFound { .. } | ShimError::Gone { .. }) => return,
            Err(error) => tracing::debug!(container = id, error = %Chain(&error), "thaw"),
        }
        match shim.state(id).await {
            Ok(state) if state.status == TaskStatus::Paused => {}
            Err(ShimError::Timeout { .. }) => {}
            _ => return,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

struct Job {
    shared: Arc<Shared>,
    container: Arc<ContainerRecord>,
    shim: Arc<Shim>,
    target: Target,
    dir: PathBuf,
    limit: Duration,
    end: Instant,
    broken_off: CancellationToken,
}

impl Job {
    /// Returns the size of the archive.
    async fn run(&self, stage: &Entered) -> Result<u64> {
        stage.at(STAGES[0]);
        let done = match self.prepare().await {
            Ok(()) => {
                let frozen = self.frozen(stage).await;
                stage.at(STAGES[4]);
                self.thaw().await?;
                stage.at(STAGES[5]);
                match frozen {
                    Ok(()) => self.archive().await,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        stage.at(STAGES[6]);
        let dir = self.dir.clone();
        if let Err(error) = blocking(move || discard(&dir)).await {
            // The removal of the container tries again.
            tracing::warn!(container = %self.id(), error = %Chain(&error), "clean up");
        }
        done.map_err(|error| self.explain(error))
    }

    fn id(&self) -> Id {
        self.container.id
    }

    fn parts(&self) -> PathBuf {
        self.dir.join(PARTS)
    }

    fn images(&self) -> PathBuf {
        self.parts().join(archive::IMAGES)
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn go_on(&self) -> GoOn {
        let (end, broken_off, stop) = (self.end, self.broken_off.clone(), self.shared.stop.clone());
        Box::new(move || Instant::now() < end && !broken_off.is_cancelled() && !stop.is_cancelled())
    }

    /// A place that cannot be written to is found out before anything is frozen.
    async fn prepare(&self) -> Result<()> {
        let (dir, images, target) = (self.dir.clone(), self.images(), self.target.clone());
        let description = self.describe();
        let spec = self.shared.layout.spec(&self.container.pod, &self.id());
        blocking(move || {
            discard(&dir)?;
            make_dir(&images, 0o700)?;
            let partial = target.partial.to_str().ok_or_else(|| not_text(&target.partial))?;
            write(&dir.join(PARTIAL), partial.as_bytes(), 0o600)?;
            target.create()?;
            description.write(&dir.join(PARTS), &spec)
        })
        .await
    }

    fn describe(&self) -> Description {
        let image = &self.container.image;
        Description {
            id: self.id(),
            name: self.container.name.clone(),
            rootfs_image: image.name.clone(),
            rootfs_image_ref: image.repo_digest.clone(),
            rootfs_image_name: image.name.clone(),
            runtime: handler_of(&self.shared, &self.container),
            created_time: self.container.created_at,
            checkpointed_time: Timestamp::now(),
        }
    }

    /// What has to be of one moment.
    async fn frozen(&self, stage: &Entered) -> Result<()> {
        stage.at(STAGES[1]);
        self.shim.pause(self.id().as_str()).await?;
        stage.at(STAGES[2]);
        let paths = CheckpointPaths { images: self.images(), work: self.parts() };
        let id = self.id();
        let dump = self.shim.checkpoint(id.as_str(), paths, self.left());
        match self.shared.stop.run_until_cancelled(dump).await {
            None => return Err(EngineError::Closing),
            Some(Err(error)) => return Err(self.dump_failed(error).await),
            Some(Ok(())) => {}
        }
        stage.at(STAGES[3]);
        self.changes().await
    }

    async fn changes(&self) -> Result<()> {
        let (path, parts) = (self.parts().join(archive::CHANGES), self.parts());
        let created = path.clone();
        let create = move || fs::File::create(&created).map_err(EngineError::io("create", created));
        let out = blocking(create).await?;
        let diff = self.shared.storage.diff(self.id(), out, self.go_on()).await?;
        blocking(move || {
            if diff.entries == 0 {
                remove_file(&path)?;
            }
            archive::list_deleted(&parts, &diff.deleted)
        })
        .await
    }

    /// The work directory stays if it cannot be: it says what is to be done.
    async fn thaw(&self) -> Result<()> {
        let id = self.id();
        let limit = if self.shared.stop.is_cancelled() { LAST_WORD } else { THAW };
        if tokio::time::timeout(limit, thaw(&self.shim, id.as_str())).await.is_ok() {
            return Ok(());
        }
        if self.shared.stop.is_cancelled() {
            return Err(EngineError::Closing);
        }
        tracing::error!(container = %id, "frozen for a checkpoint, and cannot be thawed");
        Err(EngineError::Timeout { doing: format!("thaw container {id}"), limit })
    }

    async fn archive(&self) -> Result<u64> {
        let (parts, target, go_on) = (self.parts(), self.target.clone(), self.go_on());
        let log = self.container.log_path.clone();
        blocking(move || archive::write(&parts, log.as_deref(), &target, &go_on)).await
    }

    /// With what criu has to say, which its caller only points to.
    async fn dump_failed(&self, error: ShimError) -> EngineError {
        let log = self.parts().join(archive::LOG);
        let said = blocking(move || Ok(archive::complaint(&log))).await.ok().flatten();
        let kind = error.kind();
        let text = Chain(&error).to_string();
        let why = text.lines().next().unwrap_or_default();
        let why = match said {
            Some(said) => format!("{why}; criu says: {said}"),
            None => why.to_owned(),
        };
        EngineError::Failed { doing: format!("checkpoint container {}", self.id()), why, kind }
    }

    /// Says why it was ended, where it was.
    fn explain(&self, error: EngineError) -> EngineError {
        let id = self.id();
        if self.broken_off.is_cancelled() {
            let state = "being stopped".to_owned();
            return EngineError::State { what: "container", id, state, action: "checkpoint it" };
        }
        if self.shared.stop.is_cancelled() {
            return EngineError::Closing;
        }
        match error.kind() {
            Kind::Deadline if Instant::now() >= self.end => EngineError::Timeout {
                doing: format!("the checkpoint of container {id}"),
                limit: self.limit,
            },
            _ => error,
        }
    }
}

fn not_text(path: &Path) -> EngineError {
    EngineError::invalid("location", format_args!("{} is not UTF-8", path.display()))
}
