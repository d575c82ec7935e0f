//! What a URL stands for until somebody comes with it.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::time::Instant;

const LIFE: Duration = Duration::from_secs(60);
const MOST: usize = 1000;
/// Nobody guesses 128 bits in a minute.
const RANDOM_BYTES: usize = 16;

/// Too many wait to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MOST} streaming requests wait for their clients: try again later")]
pub struct Busy;

#[derive(Debug)]
pub(crate) struct Tokens<T> {
    waiting: HashMap<String, (Instant, T)>,
    /// Oldest first; also those that were used meanwhile.
    order: VecDeque<(Instant, String)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Tokens<T> {
    pub(crate) fn issue(&mut self, request: T) -> Result<String, Busy> {
        let now = Instant::now();
        while let Some((since, token)) = self.order.front()
            && (now - *since >= LIFE || !self.waiting.contains_key(token))
        {
            self.waiting.remove(token);
            self.order.pop_front();
        }
        if self.waiting.len() >= MOST {
            return Err(Busy);
        }
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).expect("the kernel has random bytes");
        let token = URL_SAFE_NO_PAD.encode(random);
        self.waiting.insert(token.clone(), (now, request));
        self.order.push_back((now, token.clone()));
        Ok(token)
    }

    /// What it stands for, once.
    pub(crate) fn spend(&mut self, token: &str) -> Option<T> {
        let (since, request) = self.waiting.remove(token)?;
        (since.elapsed() < LIFE).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_worth_one_use_within_a_minute() {
        let mut tokens = Tokens::default();
        let (a, b) = (tokens.issue('a').unwrap(), tokens.issue('b').unwrap());
        assert_ne!(a, b);
        assert_eq!(a.len(), 22);
        assert_eq!(tokens.spend("nonsense"), None);
        assert_eq!(tokens.spend(&a), Some('a'));
        assert_eq!(tokens.spend(&a), None);
        tokio::time::advance(LIFE).await;
        assert_eq!(tokens.spend(&b), None);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_too_many() {
        let mut tokens = Tokens::default();
        let first = tokens.issue(0).unwrap();
        (1..MOST).for_each(|n| drop(tokens.issue(n).unwrap()));
        assert_eq!(tokens.issue(0), Err(Busy));
        tokens.spend(&first).unwrap();
        tokens.issue(0).unwrap();
        assert_eq!(tokens.issue(0), Err(Busy));
        tokio::time::advance(LIFE).await;
        tokens.issue(0).unwrap();
        assert_eq!((tokens.waiting.len(), tokens.order.len()), (1, 1));
    }

    /// Those in use at once, each spent before the next: nothing is kept of them.
    #[tokio::test(start_paused = true)]
    async fn spent_ones_leave_nothing() {
        let mut tokens = Tokens::default();
        for _ in 0..3 * MOST {
            let token = tokens.issue(()).unwrap();
            tokens.spend(&token).unwrap();
        }
        assert!(tokens.order.len() <= 1);
    }
}
