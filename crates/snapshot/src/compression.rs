use std::{
    fmt,
    io::{self, BufRead, Read},
};

use crate::ApplyError;

/// How the bytes of a layer are packed. Found by looking: media types lie now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

/// As much as [`Compression::sniff`] wants to see.
pub(crate) const HEAD: usize = 6;

/// The window a decoder has to keep: what `zstd` itself takes without being asked.
const ZSTD_WINDOW_LOG: u32 = 27;

impl Compression {
    /// By the first bytes. A layer that is packed in a way we do not know is told as such,
    /// and not as a broken archive.
    pub fn sniff(head: &[u8]) -> Result<Self, ApplyError> {
        Ok(match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A frame to skip, with which chunked zstd may begin.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(ApplyError::Unsupported("xz")),
            [b'B', b'Z', b'h', ..] => return Err(ApplyError::Unsupported("bzip2")),
            [0x04, 0x22, 0x4d, 0x18, ..] => return Err(ApplyError::Unsupported("lz4")),
            _ => Self::None,
        })
    }

    /// Reads through all members and frames: tools concatenate them.
    pub(crate) fn decoder<'r>(
        self,
        reader: impl BufRead + Send + 'r,
    ) -> io::Result<Box<dyn Read + Send + 'r>> {
        Ok(match self {
            Self::None => Box::new(reader),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "plain tar",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}
