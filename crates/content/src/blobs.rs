//! Content-addressed files.
//!
//! ```text
//!  <root>/blobs/<algorithm>/<hex>     verified
//!  <root>/ingest/<algorithm>-<hex>    arriving; what is there is kept for the next attempt
//!  <root>/trash/<number>              no longer named by anything, being deleted
//! ```
//!
//! A file moves from `ingest` to `blobs` by one rename, after its last byte was hashed, and
//! from `blobs` to `trash` by another; so at any moment of SIGKILL a blob is whole or not
//! there. Power loss is another matter: a file that was renamed but never synced may come
//! back damaged. What an image record names was synced before that record was written, and
//! [`BlobStore::distrust`] sends everything else back to `ingest` at start, where its bytes
//! are hashed again before anybody sees them.
//!
//! **Invariant:** a file below `blobs` was verified by this process, or is named by a record.
//!
//! All functions here block.

mod ingest;

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use base::{Algorithm, Digest, Kind};

pub use ingest::{Ingest, Unnamed};

use crate::digest::{Hasher, matches};

#[derive(Clone, Debug, thiserror::Error)]
pub enum BlobError {
    #[error("blob {0} is not here")]
    Missing(Digest),
    #[error("blob {digest} has {bytes} bytes: at most {limit} are read into memory")]
    TooLarge { digest: Digest, bytes: u64, limit: u64 },
    #[error("{digest}: got {got} bytes and not {want}")]
    Size { digest: Digest, want: u64, got: u64 },
    #[error("{want}: the bytes that came are {got}")]
    Digest { want: Digest, got: Digest },
    #[error("{doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: Arc<io::Error> },
}

impl BlobError {
    pub fn kind(&self) -> Kind {
        match self {
            // The caller asked for an image, not for a blob: its absence is our fault.
            Self::Missing(_) | Self::TooLarge { .. } => Kind::Internal,
            // The registry's; another try may meet a better one.
            Self::Size { .. } | Self::Digest { .. } => Kind::Unavailable,
            Self::Io { source, .. } => Kind::from(source.as_ref()),
        }
    }

    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source: Arc::new(source) }
    }
}

/// Cheap to clone; all clones are one store.
#[derive(Clone, Debug)]
pub struct BlobStore {
    root: Arc<PathBuf>,
    /// Makes names that nobody else in this process uses.
    unique: Arc<AtomicU64>,
}

/// Something arrived in part and nobody is fetching it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    pub digest: Digest,
    pub bytes: u64,
    /// Since it last grew.
    pub idle: Duration,
}

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Sha512];

impl BlobStore {
    /// Makes what is missing and finishes the deletions of an earlier run.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, BlobError> {
        let store = Self { root: Arc::new(root.into()), unique: Arc::default() };
        let algorithms =
            ALGORITHMS.map(|algorithm| store.root.join("blobs").join(algorithm.name()));
        for dir in algorithms.into_iter().chain([store.dir("ingest"), store.dir("trash")]) {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(&dir).map_err(BlobError::io("create", &dir))?;
        }
        store.empty_trash()?;
        store.drop_nameless_ingests()?;
        Ok(store)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn path(&self, digest: &Digest) -> PathBuf {
        let mut path = self.dir("blobs");
        path.push(digest.algorithm().name());
        path.push(digest.hex());
        path
    }

    fn ingest_path(&self, digest: &Digest) -> PathBuf {
        self.dir("ingest").join(format!("{}-{}", digest.algorithm(), digest.hex()))
    }

    /// A file beside the others that no other call uses.
    fn unique_path(&self, dir: &str) -> PathBuf {
        let number = self.unique.fetch_add(1, Ordering::Relaxed);
        self.dir(dir).join(format!("{}.{number}", std::process::id()))
    }

    /// `None` if it is not here.
    pub fn size(&self, digest: &Digest) -> Result<Option<u64>, BlobError> {
        let path = self.path(digest);
        match fs::metadata(&path) {
            Ok(meta) => Ok(Some(meta.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(BlobError::io("look at", path)(e)),
        }
    }

    pub fn has(&self, digest: &Digest) -> bool {
        matches!(self.size(digest), Ok(Some(_)))
    }

    pub fn open_blob(&self, digest: &Digest) -> Result<File, BlobError> {
        let path = self.path(digest);
        File::open(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => BlobError::Missing(digest.clone()),
            _ => BlobError::io("open", path)(e),
        })
    }

    /// A document, whole. Hashed once more: it is small, and what it says is obeyed.
    pub fn read(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, BlobError> {
        let mut bytes = Vec::new();
        let file = self.open_blob(digest)?;
        let read = file.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(BlobError::io("read", self.path(digest)))?;
        let len = bytes.len() as u64;
        if len > limit {
            return Err(BlobError::TooLarge { digest: digest.clone(), bytes: len, limit });
        }
        if !matches(digest, &bytes) {
            let mut hasher = Hasher::new(digest.algorithm());
            hasher.update(&bytes);
            return Err(BlobError::Digest { want: digest.clone(), got: hasher.finish() });
        }
        Ok(bytes)
    }

    /// Reads all of it; false if its bytes are no longer what they were.
    pub fn verify(&self, digest: &Digest) -> Result<bool, BlobError> {
        let mut file = self.open_blob(digest)?;
        let mut hasher = Hasher::new(digest.algorithm());
        let mut piece = vec![0; 256 << 10];
        loop {
            match file.read(&mut piece).map_err(BlobError::io("read", self.path(digest)))? {
                0 => return Ok(hasher.finish() == *digest),
                count => hasher.update(&piece[..count]),
            }
        }
    }

    /// Stores a document that is in memory. What is there already is left alone.
    pub fn put(&self, digest: &Digest, bytes: &[u8]) -> Result<(), BlobError> {
        if self.size(digest)? == Some(bytes.len() as u64) {
            return Ok(());
        }
        if !matches(digest, bytes) {
            let got = crate::digest::sha256(bytes);
            return Err(BlobError::Digest { want: digest.clone(), got });
        }
        let path = self.unique_path("ingest");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let written = options.open(&path).and_then(|mut file| file.write_all(bytes));
        let placed = written.and_then(|()| fs::rename(&path, self.path(digest)));
        placed.map_err(|e| {
            let _ = fs::remove_file(&path);
            BlobError::io("write", path)(e)
        })
    }

    /// Begins, or goes on with, the arrival of a blob. One caller at a time per digest:
    /// the caller sees to it.
    pub fn ingest(&self, digest: &Digest, size: u64) -> Result<Ingest, BlobError> {
        Ingest::open(self.ingest_path(digest), self.path(digest), digest, size)
    }

    /// A file without a name yet, for bytes whose digest is known only at the end.
    pub fn ingest_unnamed(&self, algorithm: Algorithm) -> Result<Unnamed, BlobError> {
        Unnamed::create(self.clone(), self.unique_path("ingest"), algorithm)
    }

    /// All blobs and their sizes.
    pub fn list(&self) -> Result<Vec<(Digest, u64)>, BlobError> {
        let mut blobs = Vec::new();
        for algorithm in ALGORITHMS {
            for (name, meta) in entries(&self.dir("blobs").join(algorithm.name()))? {
                // What is not named like a blob is not ours to judge.
                if let Ok(digest) = format!("{algorithm}:{name}").parse() {
                    blobs.push((digest, meta.len()));
                }
            }
        }
        Ok(blobs)
    }

    /// What arrived in part, in this run or before.
    pub fn partials(&self) -> Result<Vec<Partial>, BlobError> {
        let now = SystemTime::now();
        let partial = |(name, meta): (String, fs::Metadata)| {
            let digest = name.replacen('-', ":", 1).parse().ok()?;
            let changed = meta.modified().ok();
            let idle = changed.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
            Some(Partial { digest, bytes: meta.len(), idle })
        };
        Ok(entries(&self.dir("ingest"))?.into_iter().filter_map(partial).collect())
    }

    pub fn remove_partial(&self, digest: &Digest) -> Result<(), BlobError> {
        remove_if_there(&self.ingest_path(digest))
    }

    /// Takes a blob out of sight, at once. [`BlobStore::empty_trash`] does the long part.
    /// False if it was not here.
    pub fn discard(&self, digest: &Digest) -> Result<bool, BlobError> {
        let path = self.path(digest);
        match fs::rename(&path, self.unique_path("trash")) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(BlobError::io("discard", path)(e)),
        }
    }

    pub fn empty_trash(&self) -> Result<(), BlobError> {
        let trash = self.dir("trash");
        for (name, _) in entries(&trash)? {
            remove_if_there(&trash.join(name))?;
        }
        Ok(())
    }

    /// Sends every blob that is not in `named` back to `ingest`: nobody vouches that its
    /// bytes survived the last power loss. For the start, when nothing is in use yet.
    pub fn distrust(&self, named: &BTreeSet<Digest>) -> Result<(), BlobError> {
        for (digest, _) in self.list()? {
            if !named.contains(&digest) {
                let path = self.path(&digest);
                fs::rename(&path, self.ingest_path(&digest))
                    .map_err(BlobError::io("set aside", path))?;
            }
        }
        Ok(())
    }

    /// Leftovers of `put` and `ingest_unnamed`: they belong to no download.
    fn drop_nameless_ingests(&self) -> Result<(), BlobError> {
        let ingest = self.dir("ingest");
        for (name, _) in entries(&ingest)? {
            if name.replacen('-', ":", 1).parse::<Digest>().is_err() {
                remove_if_there(&ingest.join(name))?;
            }
        }
        Ok(())
    }

    /// Everything written so far survives power loss when this returns.
    pub fn sync(&self) -> Result<(), BlobError> {
        let root = File::open(&*self.root).map_err(BlobError::io("open", &*self.root))?;
        rustix::fs::syncfs(root).map_err(|e| BlobError::io("sync", &*self.root)(e.into()))
    }
}

/// Names that are not UTF-8 are not ours and left out.
fn entries(dir: &Path) -> Result<Vec<(String, fs::Metadata)>, BlobError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(BlobError::io("list", dir))? {
        let entry = entry.map_err(BlobError::io("list", dir))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        match entry.metadata() {
            Ok(meta) => found.push((name, meta)),
            // Renamed since we looked.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(BlobError::io("look at", entry.path())(e)),
        }
    }
    Ok(found)
}

fn remove_if_there(path: &Path) -> Result<(), BlobError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(BlobError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::sha256;

    fn store() -> (tempfile::TempDir, BlobStore) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = BlobStore::open(dir.path().join("content")).expect("opens");
        (dir, store)
    }

    #[test]
    fn a_document_is_read_as_it_was_put() {
        let (_dir, store) = store();
        let digest = sha256(b"hello");
        store.put(&digest, b"hello").expect("puts");
        store.put(&digest, b"hello").expect("puts again");
        assert_eq!(store.read(&digest, 5).expect("reads"), b"hello");
        assert!(store.verify(&digest).expect("reads"));
        assert_eq!(store.list().expect("lists"), [(digest.clone(), 5)]);
        assert!(matches!(store.read(&digest, 4), Err(BlobError::TooLarge { .. })));
        assert!(matches!(store.put(&sha256(b"x"), b"y"), Err(BlobError::Digest { .. })));
        assert!(matches!(store.read(&sha256(b"x"), 9), Err(BlobError::Missing(_))));
        assert_eq!(store.partials().expect("lists"), []);
    }

    #[test]
    fn a_document_that_rotted_is_not_read() {
        let (_dir, store) = store();
        let digest = sha256(b"hello");
        store.put(&digest, b"hello").expect("puts");
        fs::write(store.path(&digest), b"hellO").expect("writes");
        assert!(matches!(store.read(&digest, 9), Err(BlobError::Digest { .. })));
        assert!(!store.verify(&digest).expect("reads"));
    }

    #[test]
    fn discarded_blobs_are_gone_at_once_and_deleted_later() {
        let (_dir, store) = store();
        let digest = sha256(b"hello");
        store.put(&digest, b"hello").expect("puts");
        assert!(store.discard(&digest).expect("discards"));
        assert!(!store.discard(&digest).expect("finds nothing"));
        assert!(!store.has(&digest));
        assert_eq!(entries(&store.dir("trash")).expect("lists").len(), 1);
        let again = BlobStore::open(store.root()).expect("opens");
        assert_eq!(entries(&again.dir("trash")).expect("lists").len(), 0);
    }

    #[test]
    fn at_start_unnamed_blobs_must_prove_themselves_again() {
        let (_dir, store) = store();
        let [named, unnamed] = [sha256(b"named"), sha256(b"unnamed")];
        store.put(&named, b"named").expect("puts");
        store.put(&unnamed, b"unnamed").expect("puts");
        store.distrust(&BTreeSet::from([named.clone()])).expect("sorts");
        assert_eq!((store.has(&named), store.has(&unnamed)), (true, false));
        let mut ingest = store.ingest(&unnamed, 7).expect("opens");
        assert_eq!(ingest.present(), 7);
        ingest.catch_up(|_| true).expect("hashes");
        ingest.commit().expect("is whole");
        assert!(store.has(&unnamed));
        store.sync().expect("syncs");
    }

    #[test]
    fn nameless_leftovers_do_not_survive_a_start() {
        let (_dir, store) = store();
        fs::write(store.dir("ingest").join("77.0"), b"half").expect("writes");
        let partial = sha256(b"partial");
        fs::write(store.ingest_path(&partial), b"part").expect("writes");
        let again = BlobStore::open(store.root()).expect("opens");
        let left = entries(&again.dir("ingest")).expect("lists");
        assert_eq!(left.len(), 1);
        assert_eq!(again.partials().expect("lists")[0].digest, partial);
        again.remove_partial(&partial).expect("removes");
        assert_eq!(again.partials().expect("lists"), []);
    }
}
