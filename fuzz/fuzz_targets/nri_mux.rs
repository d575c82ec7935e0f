//! A trunk that carries anything at all: each connection gets exactly its bytes, up to where
//! the frames stop making sense, and the same end.
#![no_main]

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use nri_wire::{MAX_FRAME, Mux, MuxError, MuxReader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Arbitrary, Debug)]
enum Said {
    Frame { connection: u8, payload: Vec<u8> },
    /// A header that promises other than what follows.
    Header { connection: u32, len: u32 },
    Junk(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Talk {
    said: Vec<Said>,
    /// How much the trunk takes at a time.
    pipe: u16,
}

impl Said {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Frame { connection, payload } => {
                let len = u32::try_from(payload.len()).expect("fuzzers are not that patient");
                let id = u32::from(*connection % 4);
                [&id.to_be_bytes(), &len.to_be_bytes(), payload.as_slice()].concat()
            }
            Self::Header { connection, len } => {
                [connection.to_be_bytes(), len.to_be_bytes()].concat()
            }
            Self::Junk(bytes) => bytes.clone(),
        }
    }
}

/// What connections 1 and 2 are to get, and whether the trunk ends well: by a reading of the
/// frames as simple as can be.
fn oracle(mut wire: &[u8]) -> (Vec<u8>, Vec<u8>, End) {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    while !wire.is_empty() {
        let Some((header, rest)) = wire.split_at_checked(8) else { return (one, two, End::Cut) };
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
        let (id, len) = (word(0), word(4) as usize);
        if len > MAX_FRAME {
            return (one, two, End::TooLarge);
        }
        let taken = &rest[..len.min(rest.len())];
        match id {
            1 => one.extend_from_slice(taken),
            2 => two.extend_from_slice(taken),
            _ => {}
        }
        if taken.len() < len {
            return (one, two, End::Cut);
        }
        wire = &rest[len..];
    }
    (one, two, End::Well)
}

#[derive(Debug, PartialEq)]
enum End {
    Well,
    Cut,
    TooLarge,
}

async fn all(mut reader: MuxReader) -> Vec<u8> {
    let mut got = Vec::new();
    // How it ends is the mux's to say.
    let _ = reader.read_to_end(&mut got).await;
    got
}

fuzz_target!(|talk: Talk| {
    let wire: Vec<u8> = talk.said.iter().flat_map(Said::bytes).collect();
    let (want_one, want_two, want_end) = oracle(&wire);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (near, mut far) = tokio::io::duplex(usize::from(talk.pipe).max(1));
        let mut mux = Mux::new(near);
        let one = mux.open(1).expect("a new mux");
        let two = mux.open(2).expect("a new mux");
        let write = async move {
            // Nobody may read any more.
            let _ = far.write_all(&wire).await;
            far
        };
        // The writers hold the trunk open.
        let (one_reader, two_reader) = (one.reader, two.reader);
        drop((one.writer, two.writer));
        let ((_far, end), got_one, got_two) = tokio::join!(
            async {
                let run = mux.run();
                tokio::pin!(run);
                tokio::select! {
                    end = &mut run => (None, end),
                    far = write => { drop(far); (None::<()>, run.await) }
                }
            },
            all(one_reader),
            all(two_reader),
        );
        let end = match end {
            Ok(()) => End::Well,
            Err(MuxError::Truncated) => End::Cut,
            Err(MuxError::FrameTooLarge { .. }) => End::TooLarge,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(end, want_end);
        assert_eq!((got_one, got_two), (want_one, want_two));
    });
});
