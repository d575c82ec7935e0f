//! What a change of a record means to those who listen. Pure.

use std::{collections::BTreeMap, sync::Arc};

use base::Id;
use jiff::Timestamp;

use super::{Event, Moment};
use crate::{
    phase::{ContainerPhase, PodPhase},
    record::{ContainerRecord, PodRecord},
    view::ContainerState,
};

/// All that is visible, as the changes so far left it.
#[derive(Debug, Default)]
pub(super) struct World {
    families: BTreeMap<Id, Family>,
}

/// A pod and its containers, and how far others were told of each.
#[derive(Debug, Default)]
struct Family {
    pod: Option<(Arc<PodRecord>, Standing)>,
    containers: BTreeMap<Id, (Arc<ContainerRecord>, Standing)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// Nobody can see it.
    Hidden,
    Created,
    Running,
    Ended,
}

impl World {
    /// What there is at the start is not news.
    pub(super) fn new(pods: &[Arc<PodRecord>], containers: &[Arc<ContainerRecord>]) -> Self {
        let mut world = Self::default();
        for pod in pods {
            let standing = of_pod(pod, Standing::Ended);
            world.families.entry(pod.id).or_default().pod = Some((Arc::clone(pod), standing));
        }
        for container in containers {
            let unclear = match container.phase {
                ContainerPhase::Unknown { .. } => Standing::Running,
                _ => Standing::Ended,
            };
            let entry = (Arc::clone(container), of_container(container, unclear));
            let family = world.families.entry(container.pod).or_default();
            family.containers.insert(container.id, entry);
        }
        world
    }

    pub(super) fn pod(&mut self, id: Id, now: Option<Arc<PodRecord>>, at: Timestamp) -> Vec<Event> {
        let family = self.families.entry(id).or_default();
        let was = family.pod.as_ref().map_or(Standing::Hidden, |(_, standing)| *standing);
        let is = now.as_ref().map_or(Standing::Hidden, |pod| of_pod(pod, was));
        family.pod = now.map(|pod| (pod, is));
        let moments = moments(was, is, family.pod.is_none());
        let events = moments.into_iter().map(|moment| family.event(id, moment, at)).collect();
        self.drop_empty(id);
        events
    }

    pub(super) fn container(
        &mut self,
        id: Id,
        pod: Id,
        now: Option<Arc<ContainerRecord>>,
        at: Timestamp,
    ) -> Vec<Event> {
        let family = self.families.entry(pod).or_default();
        let was = family.containers.get(&id).map_or(Standing::Hidden, |(_, standing)| *standing);
        let is = now.as_ref().map_or(Standing::Hidden, |container| of_container(container, was));
        let gone = now.is_none();
        match now {
            Some(container) => drop(family.containers.insert(id, (container, is))),
            None => drop(family.containers.remove(&id)),
        }
        let moments = moments(was, is, gone);
        let events = moments.into_iter().map(|moment| family.event(id, moment, at)).collect();
        self.drop_empty(pod);
        events
    }

    fn drop_empty(&mut self, pod: Id) {
        let empty = |family: &Family| family.pod.is_none() && family.containers.is_empty();
        if self.families.get(&pod).is_some_and(empty) {
            self.families.remove(&pod);
        }
    }
}

impl Family {
    fn event(&self, id: Id, moment: Moment, at: Timestamp) -> Event {
        let visible = |(container, _): &(Arc<ContainerRecord>, Standing)| {
            container.is_visible().then(|| Arc::clone(container))
        };
        Event {
            id,
            moment,
            at,
            pod: self.pod.as_ref().map(|(pod, _)| Arc::clone(pod)),
            containers: self.containers.values().filter_map(visible).collect(),
        }
    }
}

/// On its way out a pod is what it `was`.
fn of_pod(pod: &PodRecord, was: Standing) -> Standing {
    match pod.phase {
        _ if !pod.is_visible() => Standing::Hidden,
        PodPhase::Ready => Standing::Running,
        PodPhase::Removing => was.max(Standing::Created),
        _ => Standing::Ended,
    }
}

/// A container that nobody knows about, or that is on its way out, is what it `was`.
fn of_container(container: &ContainerRecord, was: Standing) -> Standing {
    match container.state() {
        _ if !container.is_visible() => Standing::Hidden,
        ContainerState::Created => Standing::Created,
        ContainerState::Running => Standing::Running,
        ContainerState::Exited => Standing::Ended,
        ContainerState::Unknown => was.max(Standing::Created),
    }
}

/// What was skipped is told too: nothing runs that was not created.
fn moments(was: Standing, is: Standing, gone: bool) -> Vec<Moment> {
    use Standing as S;
    let mut moments = Vec::new();
    if was == S::Hidden && is > S::Hidden {
        moments.push(Moment::Created);
    }
    if was < S::Running && is == S::Running {
        moments.push(Moment::Started);
    }
    if was < S::Ended && is == S::Ended || was == S::Running && gone {
        moments.push(Moment::Stopped);
    }
    if was > S::Hidden && gone {
        moments.push(Moment::Deleted);
    }
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(was: Standing, is: Option<Standing>, want: &[Moment]) {
        let got = moments(was, is.unwrap_or(Standing::Hidden), is.is_none());
        assert_eq!(got, want, "{was:?} to {is:?}");
    }

    #[test]
    fn every_step_is_told_once() {
        use Moment as M;
        use Standing as S;
        check(S::Hidden, Some(S::Hidden), &[]);
        check(S::Hidden, None, &[]);
        check(S::Hidden, Some(S::Created), &[M::Created]);
        check(S::Hidden, Some(S::Running), &[M::Created, M::Started]);
        check(S::Hidden, Some(S::Ended), &[M::Created, M::Stopped]);
        check(S::Created, Some(S::Created), &[]);
        check(S::Created, Some(S::Running), &[M::Started]);
        check(S::Created, Some(S::Ended), &[M::Stopped]);
        check(S::Created, None, &[M::Deleted]);
        check(S::Running, Some(S::Running), &[]);
        check(S::Running, Some(S::Ended), &[M::Stopped]);
        check(S::Running, None, &[M::Stopped, M::Deleted]);
        check(S::Ended, Some(S::Ended), &[]);
        check(S::Ended, None, &[M::Deleted]);
    }
}
