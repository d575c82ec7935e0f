//! A tar stream, read once from front to back.
//!
//! Takes what layers are made of: POSIX (PAX records), GNU (long names, sparse files),
//! star and plain old headers. Written for input nobody vouches for: what is kept in
//! memory is bounded before it is read, and attribute values are bytes, where libraries
//! take them for lines of text.

mod header;
mod pax;
mod sparse;

use rustix::fs::Timespec;

use self::{
    header::{BLOCK, Block, Header, text},
    sparse::{Claims, Piece},
};
use crate::{ApplyError, Limited, Limits, Refusal, limits, pipeline::Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
}

impl EntryKind {
    /// `slashed`: before there was a type for directories, a slash said it.
    fn of(kind: u8, slashed: bool) -> Option<Self> {
        Some(match kind {
            0 if slashed => Self::Directory,
            0 | b'0' | b'7' | b'S' => Self::File,
            b'1' => Self::HardLink,
            b'2' => Self::Symlink,
            b'3' => Self::CharDevice,
            b'4' => Self::BlockDevice,
            b'5' => Self::Directory,
            b'6' => Self::Fifo,
            _ => return None,
        })
    }
}

/// What the archive says about one name.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timespec,
    pub(crate) atime: Option<Timespec>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) device: (u32, u32),
    /// With holes.
    pub(crate) size: u64,
    pieces: Vec<Piece>,
}

impl Entry {
    pub(crate) fn is_sparse(&self) -> bool {
        self.data_bytes() != self.size
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}

#[derive(Debug)]
pub(crate) struct Archive<'s> {
    stream: &'s mut Stream,
    limits: Limits,
    /// Of the entry given last: its data that was not read, and the padding after it.
    unread: u64,
    padding: u64,
    headers: u64,
    /// Sizes of all files so far, with their holes.
    file_bytes: u64,
}

/// What stands before the header it belongs to.
#[derive(Debug, Default)]
struct Extensions {
    bytes: u64,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    pax: Records,
}

/// PAX records that mean something to us. An empty value takes back what was said.
#[derive(Debug, Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Timespec>,
    atime: Option<Timespec>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Option<Claims>,
}

// === impl Archive ===

impl<'s> Archive<'s> {
    pub(crate) fn new(stream: &'s mut Stream, limits: Limits) -> Self {
        Self { stream, limits, unread: 0, padding: 0, headers: 0, file_bytes: 0 }
    }

    /// The next entry; its data is read by [`Archive::data`], or skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, ApplyError> {
        let mut before = Extensions::default();
        loop {
            self.skip_rest()?;
            let Some(block) = self.next_header()? else {
                return Ok(None);
            };
            let header = Header(&block);
            let size = self.positive(header.size())?;
            match header.kind() {
                b'x' => before
                    .pax
                    .read(&self.extension(&mut before.bytes, size)?)
                    .map_err(|why| ApplyError::Malformed { at: self.stream.position(), why })?,
                // Defaults for the whole archive: everybody who unpacks layers ignores them.
                b'g' => drop(self.extension(&mut before.bytes, size)?),
                b'L' => before.long_name = Some(self.long_text(&mut before.bytes, size)?),
                b'K' => before.long_link = Some(self.long_text(&mut before.bytes, size)?),
                _ => return self.entry(header, size, before).map(Some),
            }
        }
    }

    /// Calls `sink` with each part of the data and where it belongs.
    pub(crate) fn data(
        &mut self,
        entry: &Entry,
        mut sink: impl FnMut(u64, &[u8]) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        for piece in &entry.pieces {
            let (mut at, mut left) = (piece.at, piece.len);
            while left > 0 {
                let bytes = self.stream.fill()?;
                let most = usize::try_from(left).unwrap_or(usize::MAX);
                let part = &bytes[..bytes.len().min(most)];
                if part.is_empty() {
                    return Err(self.malformed("it ends inside a file"));
                }
                sink(at, part)?;
                let len = part.len();
                self.stream.consume(len);
                (at, left) = (at + len as u64, left - len as u64);
                self.unread -= len as u64;
            }
        }
        Ok(())
    }

    fn malformed(&self, why: &'static str) -> ApplyError {
        ApplyError::Malformed { at: self.stream.position(), why }
    }

    fn positive(&self, number: Option<i64>) -> Result<u64, ApplyError> {
        number
            .and_then(|number| u64::try_from(number).ok())
            .ok_or_else(|| self.malformed("a number in a header is none"))
    }

    /// Some builders never write what belongs after the last file: its data is whole then.
    fn skip_rest(&mut self) -> Result<(), ApplyError> {
        let (mut left, padding) = (self.unread + self.padding, self.padding);
        (self.unread, self.padding) = (0, 0);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let part = self.stream.fill()?.len().min(most);
            if part == 0 && left <= padding {
                return Ok(());
            }
            if part == 0 {
                return Err(self.malformed("it ends inside a file"));
            }
            self.stream.consume(part);
            left -= part as u64;
        }
        Ok(())
    }

    /// `None` at the end: two empty blocks, or simply nothing more.
    fn next_header(&mut self) -> Result<Option<Block>, ApplyError> {
        let Some(block) = self.block()? else {
            return Ok(None);
        };
        if block == [0; BLOCK] {
            return match self.block()? {
                None => Ok(None),
                Some(next) if next == [0; BLOCK] => Ok(None),
                Some(_) => Err(self.malformed("an empty block stands between headers")),
            };
        }
        if !Header(&block).is_sound() {
            return Err(self.malformed("the checksum of a header is wrong"));
        }
        self.headers += 1;
        if self.headers > self.limits.entries {
            return Err(limits::limit(Limited::Entries, self.limits.entries));
        }
        Ok(Some(block))
    }

    fn block(&mut self) -> Result<Option<Block>, ApplyError> {
        let mut block = [0; BLOCK];
        match self.stream.read(&mut block)? {
            0 => Ok(None),
            BLOCK => Ok(Some(block)),
            _ => Err(self.malformed("it ends inside a header")),
        }
    }

    /// What belongs to the next header, counted with all that does.
    fn extension(&mut self, counted: &mut u64, size: u64) -> Result<Vec<u8>, ApplyError> {
        *counted = counted.saturating_add(size);
        if *counted > limits::HEADER_BYTES {
            return Err(limits::limit(Limited::HeaderBytes, limits::HEADER_BYTES));
        }
        let Ok(len) = usize::try_from(size) else {
            return Err(self.malformed("a number in a header is none"));
        };
        let mut bytes = vec![0; len];
        if self.stream.read(&mut bytes)? < len {
            return Err(self.malformed("it ends inside a header"));
        }
        self.padding = padding(size);
        Ok(bytes)
    }

    fn long_text(&mut self, counted: &mut u64, size: u64) -> Result<Vec<u8>, ApplyError> {
        Ok(text(&self.extension(counted, size)?).to_vec())
    }

    fn entry(
        &mut self,
        header: Header<'_>,
        size: u64,
        before: Extensions,
    ) -> Result<Entry, ApplyError> {
        let Extensions { long_name, long_link, mut pax, .. } = before;
        let sparse_name = pax.sparse.as_mut().and_then(|claims| claims.name.take());
        let path = sparse_name.or(long_name).or(pax.path).unwrap_or_else(|| header.name());
        let slashed = path.last() == Some(&b'/');
        let refused = |why| ApplyError::refused(&path, why);
        let kind = EntryKind::of(header.kind(), slashed)
            .ok_or_else(|| refused(Refusal::Type(header.kind())))?;
        let owner = |own: Option<u64>, old: Option<i64>| {
            let id = own.or_else(|| old.and_then(|old| u64::try_from(old).ok()));
            // The last id is no id: chown takes it for "leave it".
            let id = id.and_then(|id| u32::try_from(id).ok()).filter(|&id| id != u32::MAX);
            id.ok_or_else(|| refused(Refusal::Owner))
        };
        let device =
            |(major, minor)| Some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?));
        let (uid, gid) = (owner(pax.uid, header.uid())?, owner(pax.gid, header.gid())?);
        let mode = self.positive(header.mode())? & 0o7777;
        let mtime = match (pax.mtime, header.mtime()) {
            (Some(time), _) => time,
            (None, Some(seconds)) => Timespec { tv_sec: seconds, tv_nsec: 0 },
            (None, None) => return Err(self.malformed("a number in a header is none")),
        };
        let device = match kind {
            EntryKind::CharDevice | EntryKind::BlockDevice => {
                header.device().and_then(device).ok_or_else(|| refused(Refusal::Device))?
            }
            _ => (0, 0),
        };
        let mut entry = Entry {
            link: long_link.or(pax.link).unwrap_or_else(|| header.link().to_vec()),
            kind,
            mode: u32::try_from(mode).unwrap_or_default(),
            uid,
            gid,
            mtime,
            atime: pax.atime,
            xattrs: pax.xattrs,
            device,
            size: 0,
            pieces: Vec::new(),
            path,
        };
        if kind == EntryKind::File {
            self.lay_out(&mut entry, header, pax.size.unwrap_or(size), pax.sparse.as_ref())?;
        }
        Ok(entry)
    }

    /// Finds out where the data of a file belongs; afterwards the stream stands before it.
    fn lay_out(
        &mut self,
        entry: &mut Entry,
        header: Header<'_>,
        stored: u64,
        claims: Option<&Claims>,
    ) -> Result<(), ApplyError> {
        let refused = || ApplyError::refused(&entry.path, Refusal::Sparse);
        (self.unread, self.padding) = (stored, padding(stored));
        let (pieces, size) = if header.kind() == b'S' {
            let (fields, more, size) = header.gnu_sparse();
            let size = size.and_then(|size| u64::try_from(size).ok()).ok_or_else(refused)?;
            (self.gnu_pieces(fields, more, refused)?, size)
        } else if let Some(claims) = claims.filter(|claims| claims.is_inline()) {
            (self.inline_pieces(refused)?, claims.size.ok_or_else(refused)?)
        } else if let Some(pieces) = claims.and_then(Claims::pieces) {
            (pieces, claims.and_then(|claims| claims.size).ok_or_else(refused)?)
        } else {
            (vec![Piece { at: 0, len: stored }], stored)
        };
        if pieces.len() as u64 > limits::SPARSE_PIECES {
            return Err(limits::limit(Limited::SparsePieces, limits::SPARSE_PIECES));
        }
        sparse::check(&pieces, size, self.unread).map_err(|_| refused())?;
        self.file_bytes = self.file_bytes.saturating_add(size);
        if self.file_bytes > self.limits.bytes {
            return Err(limits::limit(Limited::Bytes, self.limits.bytes));
        }
        (entry.size, entry.pieces) = (size, pieces);
        Ok(())
    }

    /// More pieces than fit into the header follow it, 21 in a block.
    fn gnu_pieces(
        &mut self,
        fields: &[u8],
        mut more: bool,
        refused: impl Fn() -> ApplyError,
    ) -> Result<Vec<Piece>, ApplyError> {
        let mut pieces = Vec::new();
        sparse::from_fields(fields, &mut pieces).ok_or_else(&refused)?;
        while more {
            let block = self.block()?.ok_or_else(&refused)?;
            sparse::from_fields(&block[..504], &mut pieces).ok_or_else(&refused)?;
            if pieces.len() as u64 > limits::SPARSE_PIECES {
                return Err(limits::limit(Limited::SparsePieces, limits::SPARSE_PIECES));
            }
            more = block[504] != 0;
        }
        Ok(pieces)
    }

    fn inline_pieces(
        &mut self,
        refused: impl Fn() -> ApplyError,
    ) -> Result<Vec<Piece>, ApplyError> {
        let next = || {
            self.unread = self.unread.checked_sub(BLOCK as u64).ok_or_else(&refused)?;
            self.block()?.ok_or_else(&refused)
        };
        sparse::read_inline(next, &refused)
    }
}

/// From the end of `size` bytes to that of their last block.
fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

// === impl Records ===

impl Records {
    fn read(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        for record in pax::records(bytes) {
            let (key, value) = record.ok_or("an extended header is broken")?;
            self.take(key, value).ok_or("a value in an extended header is none")?;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let number = |value: &[u8]| pax::decimal(value);
        match key {
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            b"linkpath" => self.link = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => self.size = unless_empty(value, number)?,
            b"uid" => self.uid = unless_empty(value, number)?,
            b"gid" => self.gid = unless_empty(value, number)?,
            b"mtime" => self.mtime = unless_empty(value, pax::time)?,
            b"atime" => self.atime = unless_empty(value, pax::time)?,
            key => {
                if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.get_or_insert_default().take(key, value).then_some(())?;
                } else if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    (!name.is_empty() && !name.contains(&0)).then_some(())?;
                    self.xattrs.retain(|(other, _)| other != name);
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Some(())
    }
}

/// `Some(None)` for an empty value, `None` for one that does not parse.
fn unless_empty<T>(value: &[u8], parse: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    match value {
        [] => Some(None),
        value => parse(value).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::stream_of;

    type Read = (Vec<u8>, u8, u32, u32, i64, Vec<u8>);
    type Written = (String, u8, u32, u32, u32, Vec<u8>);

    fn ours(bytes: &[u8]) -> Result<Vec<Read>, ApplyError> {
        let mut stream = stream_of(bytes);
        let mut archive = Archive::new(&mut stream, Limits::default());
        let mut all = Vec::new();
        while let Some(entry) = archive.next()? {
            let mut data = Vec::new();
            archive.data(&entry, |_, bytes| {
                data.extend_from_slice(bytes);
                Ok(())
            })?;
            let kind = match entry.kind {
                EntryKind::File => b'0',
                EntryKind::Directory => b'5',
                _ => b'2',
            };
            all.push((entry.path, kind, entry.mode, entry.uid, entry.mtime.tv_sec, data));
        }
        Ok(all)
    }

    fn theirs(bytes: &[u8]) -> Vec<Read> {
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().unwrap();
        entries
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut data = Vec::new();
                std::io::Read::read_to_end(&mut entry, &mut data).unwrap();
                let header = entry.header();
                let uid = u32::try_from(header.uid().unwrap()).unwrap();
                let mtime = i64::try_from(header.mtime().unwrap()).unwrap();
                let (kind, mode) = (header.entry_type().as_byte(), header.mode().unwrap());
                (entry.path_bytes().into_owned(), kind, mode, uid, mtime, data)
            })
            .collect()
    }

    fn build(entries: &[Written]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, mode, uid, mtime, data) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::new(*kind));
            header.set_mode(*mode);
            header.set_uid((*uid).into());
            header.set_gid(0);
            header.set_mtime((*mtime).into());
            match kind {
                b'0' => {
                    header.set_size(data.len() as u64);
                    builder.append_data(&mut header, path, &data[..]).unwrap();
                }
                b'2' => {
                    header.set_size(0);
                    builder.append_link(&mut header, path, "target").unwrap();
                }
                _ => {
                    header.set_size(0);
                    builder.append_data(&mut header, path, &[][..]).unwrap();
                }
            }
        }
        builder.into_inner().unwrap()
    }

    fn entry() -> impl Strategy<Value = Written> {
        let kind = prop_oneof![Just(b'0'), Just(b'2'), Just(b'5')];
        let data = proptest::collection::vec(any::<u8>(), 0..1500);
        ("[a-z]{1,90}(/[a-z]{1,90}){0,2}", kind, 0u32..0o10000, 0u32..2_000_000, any::<u32>(), data)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn we_read_what_the_tar_crate_reads(
            entries in proptest::collection::vec(entry(), 0..6),
        ) {
            let bytes = build(&entries);
            let mut ours = ours(&bytes).unwrap();
            for read in &mut ours {
                if read.1 != b'0' {
                    read.5.clear();
                }
            }
            prop_assert_eq!(ours, theirs(&bytes));
        }

        #[test]
        fn no_bytes_panic_and_no_cut_is_silent(
            entries in proptest::collection::vec(entry(), 1..4),
            cut in any::<prop::sample::Index>(),
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = build(&entries);
            let whole = ours(&bytes).unwrap();
            let cut = cut.index(bytes.len());
            if let Ok(read) = ours(&bytes[..cut]) {
                prop_assert!(whole.starts_with(&read));
            }
            for (at, with) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= with;
            }
            let _ = ours(&bytes);
        }
    }
}
