//! A log file that may be full, moved away, or both.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::{Format, Warn};

#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    pub(crate) format: Format,
    pub(crate) max_line: usize,
    file: File,
    errors: u64,
    warn: Warn,
    /// The file ends in the middle of a line, because the disk was full there.
    torn: bool,
}

impl LogFile {
    /// Lines above `max_line` are cut into parts; 0 never cuts. `warn` hears of the first
    /// write that fails.
    pub fn open(path: PathBuf, format: Format, max_line: usize, warn: Warn) -> io::Result<Self> {
        let file = open(&path)?;
        Ok(Self { path, format, max_line, file, errors: 0, warn, torn: false })
    }

    /// After the file was moved away. A failure leaves the old one in use.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        self.torn = false;
        Ok(())
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Whole lines. What cannot be written is lost and counted: the container must not
    /// stop because a disk is full.
    pub(crate) fn write(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let result = match self.torn {
            true => self.file.write_all(b"\n").map_err(|e| (0, e)),
            false => Ok(()),
        };
        self.torn &= result.is_err();
        let Err((written, error)) = result.and_then(|()| write_all(&mut self.file, lines)) else {
            return;
        };
        self.torn |= written > 0 && lines[written - 1] != b'\n';
        if self.errors == 0 {
            (self.warn)(format_args!(
                "write {}: {error}; further ones are counted",
                self.path.display()
            ));
        }
        self.errors += 1;
    }
}

/// Like the one of std, but says how far it came.
fn write_all(file: &mut File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(len) => written += len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((written, e)),
        }
    }
    Ok(())
}

/// The group may read it, whatever our own umask is: log collectors do.
fn open(path: &Path) -> io::Result<File> {
    const MODE: u32 = 0o640;
    let file = OpenOptions::new().create(true).append(true).mode(MODE).open(path)?;
    let now = file.metadata()?.permissions().mode();
    if file.metadata()?.len() == 0 && now & 0o777 != MODE {
        // A mode that cannot be set (some network disks) is no reason to have no log.
        let _ = file.set_permissions(PermissionsExt::from_mode(MODE));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn log(path: &Path) -> LogFile {
        LogFile::open(path.to_owned(), Format::Cri, 0, |_| {}).unwrap()
    }

    #[test]
    fn a_moved_file_is_left_and_a_new_one_begun() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("0.log"), dir.path().join("0.log.1"));
        let mut log = log(&path);
        log.write(b"one\n");
        fs::rename(&path, &moved).unwrap();
        log.write(b"two\n");
        log.reopen().unwrap();
        log.write(b"three\n");
        assert_eq!(fs::read(&moved).unwrap(), b"one\ntwo\n");
        assert_eq!(fs::read(&path).unwrap(), b"three\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_failed_reopen_keeps_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let mut log = log(&inner.join("0.log"));
        fs::rename(&inner, dir.path().join("gone")).unwrap();
        assert!(log.reopen().is_err());
        log.write(b"still\n");
        assert_eq!(fs::read(dir.path().join("gone/0.log")).unwrap(), b"still\n");
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let mut log = LogFile {
            file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
            path: "/dev/full".into(),
            format: Format::Cri,
            max_line: 0,
            errors: 0,
            warn: |_| {},
            torn: false,
        };
        log.write(b"lost\n");
        log.write(b"");
        log.write(b"lost too\n");
        assert_eq!((log.errors(), log.torn), (2, false));
    }

    #[test]
    fn a_torn_line_is_ended_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = log(&path);
        log.write(b"half a li");
        log.torn = true;
        log.write(b"next\n");
        assert_eq!(fs::read(&path).unwrap(), b"half a li\nnext\n");
    }
}
