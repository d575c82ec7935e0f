//! Lists in pieces: a node full of pods does not fit into one message.
//!
//! **Invariant:** every item is in exactly one message, and no message is empty.

use std::iter::Peekable;

use prost::Message;
use tonic::Status;

/// What one message holds at most.
const MAX_ITEMS: usize = 1000;

/// Below the 4 MiB that gRPC clients take unless told otherwise. An item beyond it goes
/// alone.
const MAX_BYTES: usize = 3 << 20;

pub(crate) type Messages<T> =
    tokio_stream::Iter<Box<dyn Iterator<Item = Result<T, Status>> + Send>>;

/// Items are made as the client takes them: a slow one costs no memory but the records.
pub(crate) fn messages<I, T>(items: I, message: fn(Vec<I::Item>) -> T) -> Messages<T>
where
    I: Iterator<Item: Message> + Send + 'static,
    T: 'static,
{
    let batches = Batches { items: items.peekable() };
    let messages: Box<dyn Iterator<Item = _> + Send> =
        Box::new(batches.map(move |batch| Ok(message(batch))));
    tokio_stream::iter(messages)
}

struct Batches<I: Iterator> {
    items: Peekable<I>,
}

impl<I: Iterator<Item: Message>> Iterator for Batches<I> {
    type Item = Vec<I::Item>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.items.next()?;
        let mut bytes = first.encoded_len();
        let mut batch = vec![first];
        while batch.len() < MAX_ITEMS
            && let Some(item) = self.items.next_if(|item| bytes + item.encoded_len() <= MAX_BYTES)
        {
            bytes += item.encoded_len();
            batch.push(item);
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use api_cri::v1::PodIp;
    use proptest::{collection, prelude::*};

    use super::*;

    /// An item of about that many bytes.
    fn item(bytes: usize) -> PodIp {
        PodIp { ip: "x".repeat(bytes) }
    }

    fn batches(sizes: &[usize]) -> Vec<Vec<PodIp>> {
        let items: Vec<_> = sizes.iter().map(|&bytes| item(bytes)).collect();
        Batches { items: items.into_iter().peekable() }.collect()
    }

    #[track_caller]
    fn check(sizes: &[usize], want: &[usize]) {
        let counts: Vec<_> = batches(sizes).iter().map(Vec::len).collect();
        assert_eq!(counts, want);
    }

    #[test]
    fn batches_of_a_thousand() {
        check(&[], &[]);
        check(&[1], &[1]);
        check(&[1; 1000], &[1000]);
        check(&[1; 1001], &[1000, 1]);
        check(&[1; 2500], &[1000, 1000, 500]);
    }

    #[test]
    fn large_items_travel_in_smaller_company() {
        check(&[MAX_BYTES / 2; 4], &[1, 1, 1, 1]);
        check(&[MAX_BYTES / 3; 4], &[2, 2]);
        check(&[MAX_BYTES / 4; 4], &[3, 1]);
        check(&[1, MAX_BYTES * 2, 1, 1], &[1, 1, 2]);
    }

    proptest! {
        #[test]
        fn every_item_is_in_exactly_one_message(
            sizes in collection::vec(prop_oneof![9 => 0..64_usize, 1 => 0..MAX_BYTES], 0..40),
        ) {
            let got = batches(&sizes);
            prop_assert!(got.iter().all(|batch| !batch.is_empty()));
            let all: Vec<_> = got.concat().iter().map(|item| item.ip.len()).collect();
            prop_assert_eq!(all, sizes);
        }
    }

    #[tokio::test]
    async fn messages_wrap_batches() {
        use tokio_stream::StreamExt;
        let items = (0..1500).map(|_| item(1));
        let counts: Vec<_> = messages(items, |batch| batch.len()).collect().await;
        let counts: Vec<_> = counts.into_iter().map(Result::unwrap).collect();
        assert_eq!(counts, [1000, 500]);
    }
}
