//! The files of an archive, as blobs.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::Arc,
};

use base::{Algorithm, Digest};
use tar::EntryType;

use super::ArchiveError;
use crate::{blobs::BlobStore, error::ContentError, lease::Lease};

/// No image has that many, and each costs a rename.
const FILE_LIMIT: usize = 50_000;
/// `index.json` and its like are read into memory.
pub(super) const LIST_LIMIT: u64 = 4 << 20;

/// What an archive holds.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) index: Option<Vec<u8>>,
    pub(super) docker: Option<Vec<u8>>,
    /// Every other file by its path: digest and size.
    pub(super) files: BTreeMap<String, (Digest, u64)>,
    /// Old Docker wrote a layer once and linked to it.
    links: BTreeMap<String, String>,
}

impl Contents {
    pub(super) fn file(&self, path: &str) -> Option<&(Digest, u64)> {
        let path = clean(path);
        let target = self.links.get(&path).unwrap_or(&path);
        self.files.get(target)
    }
}

/// Without `./`, `..` resolved; never outside.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn unreadable(what: &str) -> impl Fn(io::Error) -> ContentError {
    move |source| {
        let what = what.to_owned();
        ArchiveError::Read { what, source: Arc::new(source) }.into()
    }
}

/// Any `Read`, compressed or not.
pub(super) fn tar(
    archive: impl Read,
    blobs: &BlobStore,
    lease: &Lease,
) -> Result<Contents, ContentError> {
    let mut archive = BufReader::with_capacity(64 << 10, archive);
    let magic = archive.fill_buf().map_err(unreadable("archive"))?;
    if magic.starts_with(&[0x1f, 0x8b]) {
        return entries(flate2::bufread::MultiGzDecoder::new(archive), blobs, lease);
    }
    if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = zstd::Decoder::with_buffer(archive).map_err(unreadable("archive"))?;
        return entries(decoder, blobs, lease);
    }
    entries(archive, blobs, lease)
}

fn entries(archive: impl Read, blobs: &BlobStore, lease: &Lease) -> Result<Contents, ContentError> {
    let mut contents = Contents::default();
    let mut archive = tar::Archive::new(archive);
    for (count, entry) in archive.entries().map_err(unreadable("archive"))?.enumerate() {
        let mut entry = entry.map_err(unreadable("archive"))?;
        if count >= FILE_LIMIT {
            return Err(ArchiveError::TooManyFiles { limit: FILE_LIMIT }.into());
        }
        let path = clean(&String::from_utf8_lossy(&entry.path_bytes()));
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                contents.take(&path, size, &mut entry, blobs, lease)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = String::from_utf8_lossy(&target);
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let target = clean(&format!("{folder}/{target}"));
                contents.links.insert(path, target);
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default();
                contents.links.insert(path, clean(&String::from_utf8_lossy(&target)));
            }
            // Directories and whatever else have no bytes of interest.
            _ => {}
        }
    }
    Ok(contents)
}

/// Every file two levels down is enough for both forms.
pub(super) fn folder(
    dir: &Path,
    blobs: &BlobStore,
    lease: &Lease,
) -> Result<Contents, ContentError> {
    let mut contents = Contents::default();
    let mut folders = vec![(dir.to_owned(), String::new(), 0)];
    let mut count = 0;
    while let Some((folder, prefix, depth)) = folders.pop() {
        let name = folder.display().to_string();
        let failed = unreadable(&name);
        for entry in fs::read_dir(&folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            count += 1;
            if count > FILE_LIMIT {
                return Err(ArchiveError::TooManyFiles { limit: FILE_LIMIT }.into());
            }
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().map_err(&failed)?;
            if kind.is_dir() && depth < 2 {
                folders.push((entry.path(), format!("{path}/"), depth + 1));
            } else if kind.is_file() {
                let file = fs::File::open(entry.path()).map_err(unreadable(&path))?;
                let size = file.metadata().map_err(unreadable(&path))?.len();
                contents.take(&path, size, file, blobs, lease)?;
            }
        }
    }
    Ok(contents)
}

impl Contents {
    fn take(
        &mut self,
        path: &str,
        size: u64,
        bytes: impl Read,
        blobs: &BlobStore,
        lease: &Lease,
    ) -> Result<(), ContentError> {
        let list = match path {
            "index.json" => &mut self.index,
            "manifest.json" => &mut self.docker,
            "oci-layout" | "repositories" => return Ok(()),
            _ => {
                let placed = place(path, bytes, blobs, lease)?;
                self.files.insert(path.to_owned(), placed);
                return Ok(());
            }
        };
        if size > LIST_LIMIT {
            let (file, limit) = (path.to_owned(), LIST_LIMIT);
            return Err(ArchiveError::TooLarge { file, bytes: size, limit }.into());
        }
        let mut text = Vec::new();
        bytes.take(LIST_LIMIT).read_to_end(&mut text).map_err(unreadable(path))?;
        *list = Some(text);
        Ok(())
    }
}

fn place(
    path: &str,
    mut bytes: impl Read,
    blobs: &BlobStore,
    lease: &Lease,
) -> Result<(Digest, u64), ContentError> {
    let named = digest_of_name(path)?;
    let algorithm = named.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
    let mut file = blobs.ingest_unnamed(algorithm)?;
    let mut piece = vec![0; 128 << 10];
    loop {
        match bytes.read(&mut piece).map_err(unreadable(path))? {
            0 => break,
            count => file.write(&piece[..count])?,
        }
    }
    let (digest, size) = (file.digest(), file.size());
    if named.is_some_and(|named| named != digest) {
        return Err(ArchiveError::WrongName { file: path.to_owned(), got: digest }.into());
    }
    // Before it is visible, or the collector could take it.
    lease.add([&digest]);
    file.place()?;
    Ok((digest, size))
}

/// Of `blobs/sha256/<hex>`.
fn digest_of_name(path: &str) -> Result<Option<Digest>, ArchiveError> {
    let Some(rest) = path.strip_prefix("blobs/") else { return Ok(None) };
    let parsed = rest.replacen('/', ":", 1).parse();
    parsed.map(Some).map_err(|source| ArchiveError::Digest { file: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let check = |path: &str, want: &str| assert_eq!(clean(path), want, "{path}");
        check("./blobs//sha256/x", "blobs/sha256/x");
        check("a/../b/layer.tar", "b/layer.tar");
        check("../../etc/passwd", "etc/passwd");
        check("/a/", "a");
    }

    #[test]
    fn links_lead_to_files() {
        let digest = crate::digest::sha256(b"x");
        let mut contents = Contents::default();
        contents.files.insert("a/layer.tar".to_owned(), (digest.clone(), 1));
        contents.links.insert("b/layer.tar".to_owned(), "a/layer.tar".to_owned());
        assert_eq!(contents.file("./b/layer.tar"), Some(&(digest, 1)));
        assert_eq!(contents.file("c/layer.tar"), None);
    }
}
