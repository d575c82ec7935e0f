//! Laws: the store equals a map, before and after it is opened again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use store::{Pace, Store, StoreError, Table};

use crate::records::{Count, Pod, count, pod};

#[derive(Clone, Debug)]
enum Step {
    PutPod(u8, u16),
    DeletePod(u8),
    PutCount(u8, u16),
    DeleteCount(u8),
}

#[derive(Clone, Debug)]
enum Act {
    Commit { steps: Vec<Step>, durable: bool },
    Close,
    Drop,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    pods: BTreeMap<String, Pod>,
    counts: BTreeMap<u64, Count>,
}

struct Open {
    store: Store,
    pods: Table<Pod>,
    counts: Table<Count>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..20u8, any::<u16>()).prop_map(|(id, note)| Step::PutPod(id, note)),
        1 => (0..20u8).prop_map(Step::DeletePod),
        3 => (0..20u8, any::<u16>()).prop_map(|(number, value)| Step::PutCount(number, value)),
        1 => (0..20u8).prop_map(Step::DeleteCount),
    ];
    prop::collection::vec(step, 0..8)
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        16 => (steps(), prop::bool::weighted(0.2)).prop_map(|(steps, durable)| Act::Commit { steps, durable }),
        1 => Just(Act::Close),
        1 => Just(Act::Drop),
    ];
    prop::collection::vec(act, 1..40)
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::PutPod(id, note) => drop(self.pods.insert(id.to_string(), pod(id, note))),
            Step::DeletePod(id) => drop(self.pods.remove(&id.to_string())),
            Step::PutCount(number, value) => {
                drop(self.counts.insert(number.into(), count(number.into(), value.into())));
            }
            Step::DeleteCount(number) => drop(self.counts.remove(&number.into())),
        }
    }
}

impl Open {
    async fn at(dir: &std::path::Path) -> Self {
        // Small limits, so that checkpoints happen between the steps.
        let pace = Pace {
            sync_after: std::time::Duration::from_millis(2),
            checkpoint_bytes: 20_000,
            quiet: std::time::Duration::from_millis(1),
            force_bytes: 60_000,
        };
        let store = loop {
            match Store::open_with(dir, pace) {
                Ok(store) => break store,
                Err(StoreError::Locked { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error:#}"),
            }
        };
        let (pods, counts) = (store.table().unwrap(), store.table().unwrap());
        Self { store, pods, counts }
    }

    async fn commit(&self, steps: &[Step], durable: bool) {
        let mut batch = self.store.batch();
        for step in steps {
            match *step {
                Step::PutPod(id, note) => batch.put(&self.pods, pod(id, note)),
                Step::DeletePod(id) => batch.delete(&self.pods, &id.to_string()),
                Step::PutCount(number, value) => {
                    batch.put(&self.counts, count(number.into(), value.into()))
                }
                Step::DeleteCount(number) => batch.delete(&self.counts, &number.into()),
            };
        }
        if durable {
            batch.durable();
        }
        batch.commit().await.unwrap();
    }

    fn model(&self) -> Model {
        Model {
            pods: self.pods.list().iter().map(|pod| (pod.id.clone(), Pod::clone(pod))).collect(),
            counts: self.counts.list().iter().map(|c| (c.number, Count::clone(c))).collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_disk_equal_the_model(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let mut model = Model::default();
            let mut open = Open::at(dir.path()).await;
            for act in acts {
                match act {
                    Act::Commit { steps, durable } => {
                        open.commit(&steps, durable).await;
                        steps.iter().for_each(|step| model.apply(step));
                    }
                    Act::Close => {
                        open.store.close().await.unwrap();
                        open = Open::at(dir.path()).await;
                    }
                    Act::Drop => {
                        drop(open);
                        open = Open::at(dir.path()).await;
                    }
                }
                prop_assert_eq!(&open.model(), &model);
            }
            open.store.close().await.unwrap();
            prop_assert_eq!(&Open::at(dir.path()).await.model(), &model);
            Ok(())
        })?;
    }
}
