//! Archives byte by byte, also such as no tool would write.

/// One entry, with every lie an archive can tell.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: i64,
    pub(crate) data: Vec<u8>,
    pub(crate) device: (u32, u32),
    pub(crate) pax: Vec<(Vec<u8>, Vec<u8>)>,
}

/// When everything was made.
pub(crate) const THEN: i64 = 1_600_000_000;

impl Item {
    fn new(kind: u8, name: impl AsRef<[u8]>, mode: u32) -> Self {
        Self {
            name: name.as_ref().to_vec(),
            kind,
            link: Vec::new(),
            mode,
            uid: 0,
            gid: 0,
            mtime: THEN,
            data: Vec::new(),
            device: (0, 0),
            pax: Vec::new(),
        }
    }

    pub(crate) fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub(crate) fn owner(mut self, uid: u64, gid: u64) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    pub(crate) fn mtime(mut self, mtime: i64) -> Self {
        self.mtime = mtime;
        self
    }

    pub(crate) fn pax(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn xattr(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax(format!("SCHILY.xattr.{name}"), value)
    }
}

pub(crate) fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Item {
    Item { data: data.as_ref().to_vec(), ..Item::new(b'0', name, 0o644) }
}

pub(crate) fn dir(name: impl AsRef<[u8]>) -> Item {
    Item::new(b'5', name, 0o755)
}

pub(crate) fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item {
    Item { link: target.as_ref().to_vec(), ..Item::new(b'2', name, 0o777) }
}

pub(crate) fn hardlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item {
    Item { link: target.as_ref().to_vec(), ..Item::new(b'1', name, 0o644) }
}

pub(crate) fn char_device(name: &str, major: u32, minor: u32) -> Item {
    Item { device: (major, minor), ..Item::new(b'3', name, 0o600) }
}

pub(crate) fn block_device(name: &str, major: u32, minor: u32) -> Item {
    Item { device: (major, minor), ..Item::new(b'4', name, 0o660) }
}

pub(crate) fn fifo(name: &str) -> Item {
    Item::new(b'6', name, 0o600)
}

pub(crate) fn of_kind(kind: u8, name: &str) -> Item {
    Item::new(kind, name, 0o644)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tarball(Vec<u8>);

pub(crate) fn tarball(items: impl IntoIterator<Item = Item>) -> Vec<u8> {
    items.into_iter().fold(Tarball::default(), |tarball, item| tarball.add(&item)).end()
}

impl Tarball {
    pub(crate) fn add(self, item: &Item) -> Self {
        let mut pax = item.pax.clone();
        if item.name.len() > 100 && !pax.iter().any(|(key, _)| key == b"path") {
            pax.push((b"path".to_vec(), item.name.clone()));
        }
        if item.link.len() > 100 {
            pax.push((b"linkpath".to_vec(), item.link.clone()));
        }
        let tarball = match pax.is_empty() {
            true => self,
            false => {
                let records: Vec<u8> = pax.iter().flat_map(|(k, v)| record(k, v)).collect();
                let head = Item { mode: 0o644, ..Item::new(b'x', "pax", 0o644) };
                self.raw(&header(&head, records.len() as u64)).padded(&records)
            }
        };
        tarball.raw(&header(item, item.data.len() as u64)).padded(&item.data)
    }

    /// A header that says another size than that of its data.
    pub(crate) fn add_sized(self, item: &Item, size: u64) -> Self {
        self.raw(&header(item, size)).padded(&item.data)
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn padded(self, bytes: &[u8]) -> Self {
        let padding = bytes.len().next_multiple_of(512) - bytes.len();
        self.raw(bytes).raw(&vec![0; padding])
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).0
    }

    pub(crate) fn unended(self) -> Vec<u8> {
        self.0
    }
}

/// A record of an extended header, its length included in its length.
pub(crate) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut length = body + 1;
    while length != body + length.to_string().len() {
        length = body + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

pub(crate) fn header(item: &Item, size: u64) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &item.name[..item.name.len().min(100)]);
    put(100, format!("{:07o}\0", item.mode).as_bytes());
    put(108, &number(item.uid.cast_signed(), 8));
    put(116, &number(item.gid.cast_signed(), 8));
    put(124, &number(size.cast_signed(), 12));
    put(136, &number(item.mtime, 12));
    put(156, &[item.kind]);
    put(157, &item.link[..item.link.len().min(100)]);
    put(257, b"ustar\x0000");
    put(329, format!("{:07o}\0", item.device.0).as_bytes());
    put(337, format!("{:07o}\0", item.device.1).as_bytes());
    sum(&mut block);
    block
}

/// Makes the checksum right.
pub(crate) fn sum(block: &mut [u8; 512]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn number(value: i64, width: usize) -> Vec<u8> {
    let fits = u32::try_from(value).is_ok() && value < 1 << (3 * (width - 1)).min(62);
    if fits {
        return format!("{value:0w$o}\0", w = width - 1).into_bytes();
    }
    let mut bytes = vec![if value < 0 { 0xff } else { 0 }; width];
    let low = value.to_be_bytes();
    let take = low.len().min(width);
    bytes[width - take..].copy_from_slice(&low[low.len() - take..]);
    bytes[0] |= 0x80;
    bytes
}
