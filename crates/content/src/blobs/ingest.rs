use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use base::{Algorithm, Digest};

use super::{BlobError, BlobStore};
use crate::digest::Hasher;

const PIECE: usize = 256 << 10;

/// A blob that is arriving. Dropped without [`Ingest::commit`] the bytes stay for the next
/// attempt, be it in another process.
pub struct Ingest {
    file: File,
    path: PathBuf,
    target: PathBuf,
    digest: Digest,
    size: u64,
    /// What was there when it was opened.
    found: u64,
    /// Hashed so far; the file's position too.
    position: u64,
    hasher: Hasher,
}

impl Ingest {
    pub(super) fn open(
        path: PathBuf,
        target: PathBuf,
        digest: &Digest,
        size: u64,
    ) -> Result<Self, BlobError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(BlobError::io("open", &path))?;
        let mut found = file.metadata().map_err(BlobError::io("look at", &path))?.len();
        if found > size {
            // Cannot be the beginning of it.
            file.set_len(0).map_err(BlobError::io("truncate", &path))?;
            found = 0;
        }
        let hasher = Hasher::new(digest.algorithm());
        Ok(Self { file, path, target, digest: digest.clone(), size, found, position: 0, hasher })
    }

    /// Bytes that need not be fetched.
    pub fn present(&self) -> u64 {
        self.found
    }

    /// The same file, to read what has arrived while more arrives.
    pub fn reader(&self) -> Result<File, BlobError> {
        File::open(&self.path).map_err(BlobError::io("open", &self.path))
    }

    /// Hashes what was there; must be called before the first write. `go_on` is told how
    /// far it got and may end it, after which the ingest is good for nothing.
    pub fn catch_up(&mut self, mut go_on: impl FnMut(u64) -> bool) -> Result<(), BlobError> {
        let mut piece = vec![0; PIECE.min(usize::try_from(self.found).unwrap_or(PIECE))];
        while self.position < self.found {
            let left = usize::try_from(self.found - self.position).unwrap_or(PIECE);
            let take = left.min(piece.len());
            let read = self.file.read_exact(&mut piece[..take]);
            read.map_err(BlobError::io("read", &self.path))?;
            self.hasher.update(&piece[..take]);
            self.position += take as u64;
            if !go_on(self.position) {
                break;
            }
        }
        Ok(())
    }

    /// Refuses more than the announced size before anything of it is written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<u64, BlobError> {
        let after = self.position + bytes.len() as u64;
        if after > self.size {
            let (digest, want) = (self.digest.clone(), self.size);
            return Err(BlobError::Size { digest, want, got: after });
        }
        // A write that fails half-way leaves bytes that were not hashed; the next attempt
        // hashes them.
        self.file.write_all(bytes).map_err(BlobError::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.position = after;
        Ok(after)
    }

    /// Makes the blob visible if it is what was announced; else deletes what came.
    pub fn commit(self) -> Result<(), BlobError> {
        let Self { path, target, digest: want, size, position, hasher, .. } = self;
        let got = hasher.finish();
        let fault = if position != size {
            Some(BlobError::Size { digest: want, want: size, got: position })
        } else if got != want {
            Some(BlobError::Digest { want, got })
        } else {
            None
        };
        match fault {
            None => fs::rename(&path, &target).map_err(BlobError::io("place", target)),
            Some(fault) => {
                super::remove_if_there(&path)?;
                Err(fault)
            }
        }
    }

    /// Forgets what came.
    pub fn abandon(self) -> Result<(), BlobError> {
        super::remove_if_there(&self.path)
    }
}

impl fmt::Debug for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ingest({}, {} of {})", self.digest, self.position, self.size)
    }
}

/// Bytes whose digest is known only when they are all there: an archive being read.
/// Deleted when dropped.
#[derive(Debug)]
pub struct Unnamed {
    store: BlobStore,
    file: File,
    path: PathBuf,
    hasher: Hasher,
    size: u64,
    placed: bool,
}

impl Unnamed {
    pub(super) fn create(
        store: BlobStore,
        path: PathBuf,
        algorithm: Algorithm,
    ) -> Result<Self, BlobError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(BlobError::io("create", &path))?;
        let hasher = Hasher::new(algorithm);
        Ok(Self { store, file, path, hasher, size: 0, placed: false })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.file.write_all(bytes).map_err(BlobError::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// From its beginning.
    pub fn reader(&mut self) -> Result<&mut File, BlobError> {
        self.file.seek(SeekFrom::Start(0)).map_err(BlobError::io("read", &self.path))?;
        Ok(&mut self.file)
    }

    pub fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }

    /// Makes it a blob, under its digest.
    pub fn place(mut self) -> Result<Digest, BlobError> {
        let digest = self.digest();
        let target = self.store.path(&digest);
        fs::rename(&self.path, &target).map_err(BlobError::io("place", target))?;
        self.placed = true;
        Ok(digest)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !self.placed {
            // Also done at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::sha256;

    fn store() -> (tempfile::TempDir, BlobStore) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = BlobStore::open(dir.path()).expect("opens");
        (dir, store)
    }

    #[test]
    fn nothing_is_visible_until_it_is_whole() {
        let (_dir, store) = store();
        let digest = sha256(b"hello");
        let mut ingest = store.ingest(&digest, 5).expect("opens");
        ingest.write(b"hell").expect("writes");
        assert!(!store.has(&digest));
        assert!(matches!(ingest.write(b"o!"), Err(BlobError::Size { got: 6, .. })));
        ingest.write(b"o").expect("writes");
        ingest.commit().expect("is whole");
        assert_eq!(store.read(&digest, 9).expect("reads"), b"hello");
        assert_eq!(store.partials().expect("lists"), []);
    }

    #[test]
    fn wrong_bytes_leave_nothing() {
        let (_dir, store) = store();
        let digest = sha256(b"hello");
        for wrong in [&b"hellO"[..], b"hel"] {
            let mut ingest = store.ingest(&digest, 5).expect("opens");
            ingest.write(wrong).expect("writes");
            ingest.commit().expect_err("is wrong");
            assert!(!store.has(&digest));
            assert_eq!(store.partials().expect("lists"), []);
        }
    }

    #[test]
    fn what_cannot_be_a_beginning_is_dropped() {
        let (_dir, store) = store();
        let digest = sha256(b"hello");
        fs::write(store.ingest_path(&digest), b"too long").expect("writes");
        assert_eq!(store.ingest(&digest, 5).expect("opens").present(), 0);
    }

    #[test]
    fn unnamed_bytes_get_their_digest_or_vanish() {
        let (_dir, store) = store();
        let mut unnamed = store.ingest_unnamed(Algorithm::Sha256).expect("creates");
        unnamed.write(b"hel").expect("writes");
        unnamed.write(b"lo").expect("writes");
        let mut text = String::new();
        unnamed.reader().expect("seeks").read_to_string(&mut text).expect("reads");
        assert_eq!(text, "hello");
        assert_eq!(unnamed.place().expect("places"), sha256(b"hello"));
        let mut lost = store.ingest_unnamed(Algorithm::Sha256).expect("creates");
        lost.write(b"x").expect("writes");
        drop(lost);
        assert_eq!(fs::read_dir(store.root().join("ingest")).expect("lists").count(), 0);
    }

    proptest! {
        /// Whatever the pieces and wherever it was interrupted, the blob is whole.
        #[test]
        fn resumes_anywhere(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            stops in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let (_dir, store) = store();
            let digest = sha256(&bytes);
            let size = bytes.len() as u64;
            for stop in stops {
                let mut ingest = store.ingest(&digest, size).expect("opens");
                let from = usize::try_from(ingest.present()).expect("small");
                let to = from + stop.index(bytes.len() - from + 1);
                ingest.catch_up(|_| true).expect("hashes");
                ingest.write(&bytes[from..to]).expect("writes");
            }
            let mut ingest = store.ingest(&digest, size).expect("opens");
            let from = usize::try_from(ingest.present()).expect("small");
            ingest.catch_up(|_| true).expect("hashes");
            for piece in bytes[from..].chunks(7) {
                ingest.write(piece).expect("writes");
            }
            ingest.commit().expect("is whole");
            prop_assert_eq!(store.read(&digest, size).expect("reads"), bytes);
        }
    }
}
