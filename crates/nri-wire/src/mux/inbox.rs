//! What waits for the reader of one connection, bounded by bytes.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};

use crate::MuxError;

/// What a piece costs besides its bytes, so that tiny ones are bounded too.
const PIECE_COST: usize = 64;

#[derive(Debug)]
pub(crate) struct Inbox {
    budget: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// Their cost together.
    cost: usize,
    end: Option<Result<(), MuxError>>,
    reader_gone: bool,
    /// Waits for bytes.
    reader: Option<Waker>,
    /// Waits for room.
    feeder: Option<Waker>,
}

/// The bytes of one connection. Reads see a plain stream: the borders of frames mean nothing.
#[derive(Debug)]
pub struct MuxReader {
    inbox: Arc<Inbox>,
}

impl Inbox {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, state: Mutex::new(State::default()) }
    }

    /// Gives the bytes back where there is no room. One piece may go over the budget.
    pub(crate) fn try_put(&self, bytes: Bytes) -> Result<(), Bytes> {
        let mut state = self.state.lock();
        if state.reader_gone {
            return Ok(());
        }
        if state.cost >= self.budget {
            return Err(bytes);
        }
        state.cost += bytes.len() + PIECE_COST;
        state.pieces.push_back(bytes);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    /// Waits for room. There is one feeder.
    pub(crate) async fn put(&self, bytes: Bytes) {
        let mut waiting = Some(bytes);
        poll_fn(|cx| {
            let Some(bytes) = waiting.take() else { return Poll::Ready(()) };
            match self.try_put(bytes) {
                Ok(()) => Poll::Ready(()),
                Err(bytes) => {
                    waiting = Some(bytes);
                    let mut state = self.state.lock();
                    state.feeder = Some(cx.waker().clone());
                    // Room may have come between the two locks.
                    if state.cost < self.budget || state.reader_gone {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
            }
        })
        .await;
    }

    /// Nothing follows. The first reason given is the one the reader gets.
    pub(crate) fn end(&self, end: Result<(), MuxError>) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

impl MuxReader {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox }
    }
}

impl AsyncRead for MuxReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.inbox.state.lock();
        let State { pieces, cost, end, reader, feeder, .. } = &mut *state;
        if pieces.is_empty() {
            let Some(end) = end else {
                *reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            return Poll::Ready(end.clone().map_err(io::Error::from));
        }
        while let Some(piece) = pieces.front_mut() {
            let taken = piece.len().min(buf.remaining());
            buf.put_slice(&piece[..taken]);
            piece.advance(taken);
            *cost -= taken;
            if !piece.is_empty() {
                break;
            }
            *cost -= PIECE_COST;
            pieces.pop_front();
        }
        if *cost < self.inbox.budget
            && let Some(feeder) = feeder.take()
        {
            feeder.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for MuxReader {
    fn drop(&mut self) {
        let mut state = self.inbox.state.lock();
        state.reader_gone = true;
        state.pieces.clear();
        if let Some(feeder) = state.feeder.take() {
            feeder.wake();
        }
    }
}
