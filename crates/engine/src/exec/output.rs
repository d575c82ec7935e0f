//! What a command writes, until it has ended and is silent.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe::Receiver,
};
use tokio_util::sync::CancellationToken;

/// Children that a command left may hold its output open for ever: after its end, this much
/// silence is the end of its output too.
const QUIET: Duration = Duration::from_millis(500);

/// The largest piece.
pub const MAX_PIECE: usize = 32 << 10;

/// One stream of a command's output.
#[derive(Debug)]
pub struct ExecPipe<R = Receiver> {
    pub(super) pipe: R,
    /// The command has.
    pub(super) ended: CancellationToken,
    pub(super) buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> ExecPipe<R> {
    pub(super) fn new(pipe: R, ended: CancellationToken) -> Self {
        Self { pipe, ended, buffer: BytesMut::new() }
    }

    /// The next piece, never empty; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.buffer.reserve(MAX_PIECE);
        let mut room = (&mut self.buffer).limit(MAX_PIECE);
        let read = tokio::select! {
            biased;
            read = self.pipe.read_buf(&mut room) => read,
            () = silence_after(&self.ended) => return None,
        };
        // An error of a pipe is its end as far as the output goes.
        matches!(read, Ok(1..)).then(|| self.buffer.split().freeze())
    }
}

async fn silence_after(ended: &CancellationToken) {
    ended.cancelled().await;
    tokio::time::sleep(QUIET).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn pipe(room: usize) -> (DuplexStream, ExecPipe<DuplexStream>, CancellationToken) {
        let (process, ours) = duplex(room);
        let ended = CancellationToken::new();
        (process, ExecPipe::new(ours, ended.clone()), ended)
    }

    async fn all(mut output: ExecPipe<DuplexStream>) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = output.next().await {
            assert!((1..=MAX_PIECE).contains(&piece.len()));
            all.extend_from_slice(&piece);
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn output_comes_whole_also_to_a_slow_reader() {
        let (mut process, output, ended) = pipe(1 << 20);
        // It ends at once, long before anybody has read everything.
        ended.cancel();
        let text: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
        process.write_all(&text).await.unwrap();
        drop(process);
        tokio::time::sleep(QUIET * 20).await;
        assert_eq!(all(output).await, text);
    }

    #[tokio::test(start_paused = true)]
    async fn output_held_open_after_the_end_is_given_up_once_it_is_silent() {
        let (mut child, output, ended) = pipe(1024);
        ended.cancel();
        let chatter = async {
            for _ in 0..3 {
                tokio::time::sleep(QUIET / 2).await;
                child.write_all(b"x").await.unwrap();
            }
        };
        let ((), got) = tokio::join!(chatter, all(output));
        assert_eq!(got, b"xxx");
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_end_silence_means_nothing() {
        let (_process, mut output, _ended) = pipe(1024);
        assert!(tokio::time::timeout(QUIET * 100, output.next()).await.is_err());
    }
}
