//! A log file that may still grow, and be rotated, under its reader.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use super::log_format::{LogReader, Piece};

/// Between two questions whether the container has ended and whether the file was rotated.
const ASK: Duration = Duration::from_millis(200);
/// Between two looks at the file: the shorter, the less ago it grew.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
const PORTION: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    /// `None` until there is one.
    file: Option<File>,
    reader: LogReader,
}

impl Tail {
    /// A file that does not exist is empty: it may come.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Ok(Self { path: path.to_owned(), file, reader: LogReader::default() })
    }

    /// How many lines of the container it has now; the place in it stays.
    pub(super) fn count(&mut self) -> io::Result<u64> {
        let mut count = 0;
        let Some(file) = &mut self.file else { return Ok(0) };
        let place = file.stream_position()?;
        read(file, &mut LogReader::default(), &mut |piece| {
            count += u64::from(piece.begins);
            Ok(())
        })?;
        file.seek(SeekFrom::Start(place))?;
        Ok(count)
    }

    /// Gives all there is now to `each`; whether there was anything.
    pub(super) fn read(
        &mut self,
        each: &mut impl FnMut(Piece<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        match &mut self.file {
            Some(file) => read(file, &mut self.reader, each),
            None => Ok(false),
        }
    }

    /// Reads on as the log grows. Returns when `has_ended` said so, and all was read.
    ///
    /// Not cancel safe: `each` may have had a part.
    pub(super) async fn follow(
        &mut self,
        has_ended: impl AsyncFn() -> anyhow::Result<bool>,
        each: &mut impl FnMut(Piece<'_>) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let (mut next_ask, mut pause) = (Instant::now(), LOOK.0);
        loop {
            let mut ended = false;
            if Instant::now() >= next_ask {
                next_ask = Instant::now() + ASK;
                ended = has_ended().await?;
                self.switch(each)?;
            }
            let grown = self.read(each)?;
            if ended {
                return Ok(());
            }
            pause = if grown { LOOK.0 } else { LOOK.1.min(pause * 2) };
            tokio::time::sleep(pause).await;
        }
    }

    /// Goes on with the file that took the place of ours, once ours is read.
    fn switch(&mut self, each: &mut impl FnMut(Piece<'_>) -> io::Result<()>) -> io::Result<()> {
        let Some(new) = open(&self.path)? else { return Ok(()) };
        let is_same = match &self.file {
            Some(old) => old.metadata()?.ino() == new.metadata()?.ino(),
            None => false,
        };
        if !is_same {
            // Whoever writes took the new file before we saw it: the old one is complete.
            self.read(each)?;
            self.file = Some(new);
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn read(
    file: &mut File,
    reader: &mut LogReader,
    each: &mut impl FnMut(Piece<'_>) -> io::Result<()>,
) -> io::Result<bool> {
    // Emptied in place: what follows is new.
    if file.metadata()?.len() < file.stream_position()? {
        file.seek(SeekFrom::Start(0))?;
    }
    let (mut portion, mut any) = (vec![0; PORTION], false);
    loop {
        match file.read(&mut portion)? {
            0 => return Ok(any),
            len => reader.push(&portion[..len], &mut *each)?,
        }
        any = true;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        io::Write,
    };

    use super::*;

    fn line(text: &str) -> String {
        format!("2026-08-01T10:00:00Z stdout F {text}\n")
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(line(text).as_bytes()).unwrap();
    }

    #[test]
    fn lines_are_counted_without_moving() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut absent = Tail::open(&path).unwrap();
        assert_eq!(absent.count().unwrap(), 0);
        append(&path, "a");
        append(&path, "b");
        let mut tail = Tail::open(&path).unwrap();
        assert_eq!(tail.count().unwrap(), 2);
        let mut all = Vec::new();
        tail.read(&mut |piece| {
            all.extend_from_slice(piece.text);
            Ok(())
        })
        .unwrap();
        assert_eq!(all, b"ab");
    }

    /// What a follower sees of a log that is written, rotated and emptied meanwhile.
    #[tokio::test]
    async fn it_follows_growth_rotation_and_truncation_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::open(&path).unwrap();
        let got = std::cell::RefCell::new(String::new());
        let until = async |text: &str| {
            while !got.borrow().ends_with(text) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended = std::cell::Cell::new(false);
        let write = async {
            append(&path, "one ");
            until("one ").await;
            append(&path, "two ");
            until("two ").await;
            fs::rename(&path, dir.path().join("old")).unwrap();
            append(&dir.path().join("old"), "late ");
            append(&path, "three ");
            until("three ").await;
            fs::write(&path, line("4 ")).unwrap();
            until("4 ").await;
            append(&path, "last");
            ended.set(true);
        };
        let mut each = |piece: Piece<'_>| {
            got.borrow_mut().push_str(std::str::from_utf8(piece.text).unwrap());
            Ok(())
        };
        let follow = tail.follow(async || Ok(ended.get()), &mut each);
        let both = async { tokio::join!(write, follow) };
        let ((), followed) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        followed.unwrap();
        assert_eq!(got.into_inner(), "one two late three 4 last");
    }
}
