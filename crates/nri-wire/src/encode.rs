//! Requests made of parts that others keep: what would have to be copied into a message only to
//! be written out of it.
//!
//! A runtime asks many plugins the same; it encodes a request once and sends the bytes to each.

use bytes::{Bytes, BytesMut};
use prost::{Message, encoding::message};

use crate::api::{Container, Event, LinuxResources, PodSandbox, StateChangeEvent};

/// A request about a pod, or a container of it.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    pub pod: &'a PodSandbox,
    pub container: Option<&'a Container>,
}

impl About<'_> {
    /// What most events send: `RunPodSandboxRequest`, `CreateContainerRequest` and their like.
    ///
    /// ```
    /// # use nri_wire::{About, api};
    /// # use prost::Message;
    /// let pod = api::PodSandbox { id: "p0".into(), ..Default::default() };
    /// let bytes = About { pod: &pod, container: None }.encode();
    /// assert_eq!(api::RunPodSandboxRequest::decode(bytes)?.pod, Some(pod));
    /// # Ok::<(), prost::DecodeError>(())
    /// ```
    pub fn encode(self) -> Bytes {
        fields([(1, Part::Pod(self.pod)), (2, Part::of(self.container))])
    }

    /// An `UpdateContainerRequest`.
    pub fn encode_update(self, resources: &LinuxResources) -> Bytes {
        let resources = Part::Resources(resources);
        fields([(1, Part::Pod(self.pod)), (2, Part::of(self.container)), (3, resources)])
    }

    /// An `UpdatePodSandboxRequest`.
    pub fn encode_pod_update(
        self,
        overhead: Option<&LinuxResources>,
        resources: Option<&LinuxResources>,
    ) -> Bytes {
        let part = |resources: Option<_>| resources.map_or(Part::Nothing, Part::Resources);
        fields([(1, Part::Pod(self.pod)), (2, part(overhead)), (3, part(resources))])
    }

    /// The same in the old form that has one message for all events.
    pub fn encode_state_change(self, event: Event) -> Bytes {
        let event = StateChangeEvent { event: event.into(), ..StateChangeEvent::default() };
        let parts = [(2, Part::Pod(self.pod)), (3, Part::of(self.container))];
        let mut buf = BytesMut::with_capacity(event.encoded_len() + len(&parts));
        event.encode(&mut buf).expect("BytesMut grows");
        put(&parts, &mut buf);
        buf.freeze()
    }
}

#[derive(Clone, Copy)]
enum Part<'a> {
    Nothing,
    Pod(&'a PodSandbox),
    Container(&'a Container),
    Resources(&'a LinuxResources),
}

impl<'a> Part<'a> {
    fn of(container: Option<&'a Container>) -> Self {
        container.map_or(Part::Nothing, Part::Container)
    }
}

fn fields<const N: usize>(parts: [(u32, Part<'_>); N]) -> Bytes {
    let mut buf = BytesMut::with_capacity(len(&parts));
    put(&parts, &mut buf);
    buf.freeze()
}

fn len(parts: &[(u32, Part<'_>)]) -> usize {
    let len = |(tag, part): &(u32, Part<'_>)| match part {
        Part::Nothing => 0,
        Part::Pod(pod) => message::encoded_len(*tag, *pod),
        Part::Container(container) => message::encoded_len(*tag, *container),
        Part::Resources(resources) => message::encoded_len(*tag, *resources),
    };
    parts.iter().map(len).sum()
}

fn put(parts: &[(u32, Part<'_>)], buf: &mut BytesMut) {
    for (tag, part) in parts {
        match part {
            Part::Nothing => {}
            Part::Pod(pod) => message::encode(*tag, *pod, buf),
            Part::Container(container) => message::encode(*tag, *container, buf),
            Part::Resources(resources) => message::encode(*tag, *resources, buf),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::{
        CreateContainerRequest, LinuxCpu, StopPodSandboxRequest, UpdateContainerRequest,
        UpdatePodSandboxRequest,
    };

    fn resources() -> impl Strategy<Value = LinuxResources> {
        "[0-9,]{0,4}".prop_map(|cpus| LinuxResources {
            cpu: (!cpus.is_empty()).then(|| LinuxCpu { cpus, ..Default::default() }),
            ..Default::default()
        })
    }

    fn pod() -> impl Strategy<Value = PodSandbox> {
        ("[a-z]{0,300}", proptest::collection::btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3))
            .prop_map(|(id, labels)| PodSandbox { id, labels, ..Default::default() })
    }

    fn container() -> impl Strategy<Value = Container> {
        ("[a-z]{0,8}", proptest::collection::vec("[A-Z]=[a-z]{0,9}", 0..20))
            .prop_map(|(id, env)| Container { id, env, ..Default::default() })
    }

    proptest! {
        #[test]
        fn parts_are_read_as_the_messages_they_stand_for(
            pod in pod(),
            container in proptest::option::of(container()),
            overhead in proptest::option::of(resources()),
            asked in resources(),
        ) {
            let about = About { pod: &pod, container: container.as_ref() };
            let (some_pod, event) = (Some(pod.clone()), Event::PostStartContainer);
            let want = CreateContainerRequest { pod: some_pod.clone(), container: container.clone() };
            prop_assert_eq!(about.encode(), want.encode_to_vec());
            let want = UpdateContainerRequest {
                pod: some_pod.clone(),
                container: container.clone(),
                linux_resources: Some(asked.clone()),
            };
            prop_assert_eq!(about.encode_update(&asked), want.encode_to_vec());
            let want = StateChangeEvent { event: event.into(), pod: some_pod.clone(), container: container.clone() };
            prop_assert_eq!(about.encode_state_change(event), want.encode_to_vec());
            let want = UpdatePodSandboxRequest {
                pod: some_pod.clone(),
                overhead_linux_resources: overhead.clone(),
                linux_resources: Some(asked.clone()),
            };
            let got = about.encode_pod_update(overhead.as_ref(), Some(&asked));
            prop_assert_eq!(got, want.encode_to_vec());
            let alone = About { container: None, ..about }.encode();
            prop_assert_eq!(alone, StopPodSandboxRequest { pod: some_pod }.encode_to_vec());
        }
    }
}
