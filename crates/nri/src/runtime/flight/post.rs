//! Where turns are left for the pilot of a request.

use std::{
    collections::VecDeque,
    mem,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::Turn;

/// There are two turns per plugin and request, and two more, so that nothing else bounds it.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Post {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    turns: VecDeque<Turn>,
    /// The request has left the pipeline.
    over: bool,
    /// The pilot sleeps. One that is awake comes for its turns by itself.
    asleep: Option<Waker>,
}

impl Post {
    pub(in crate::runtime) fn put(&self, turn: Turn) {
        let asleep = {
            let mut state = self.state.lock();
            state.turns.push_back(turn);
            state.asleep.take()
        };
        asleep.into_iter().for_each(Waker::wake);
    }

    /// The request has left, by the will of its caller or because the pilot has brought it to its
    /// end. Returns the turns that nobody has taken.
    pub(in crate::runtime) fn close(&self) -> VecDeque<Turn> {
        let (asleep, turns) = {
            let mut state = self.state.lock();
            state.over = true;
            (state.asleep.take(), mem::take(&mut state.turns))
        };
        asleep.into_iter().for_each(Waker::wake);
        turns
    }

    /// What can be done at once.
    pub(super) fn take_routed(&self) -> bool {
        let mut state = self.state.lock();
        state.turns.pop_front_if(|turn| matches!(turn, Turn::Routed)).is_some()
    }

    /// `None`: it is over.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Turn>> {
        let mut state = self.state.lock();
        if state.over {
            return Poll::Ready(None);
        }
        let turn = state.turns.pop_front();
        state.asleep = turn.is_none().then(|| cx.waker().clone());
        match turn {
            Some(turn) => Poll::Ready(Some(turn)),
            None => Poll::Pending,
        }
    }
}
