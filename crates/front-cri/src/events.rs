//! Events, as a stream that ends with the reason why it ends.

use std::pin::Pin;

use api_cri::v1;
use base::time;
use engine::{Event, EventsEnd, Moment, Subscription};
use futures_util::{Stream, stream};
use tonic::Status;

use crate::{container, pod};

pub(crate) type Events =
    Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

/// Taken from the engine's queue only as fast as the client takes them from us.
pub(crate) fn messages(subscription: Subscription) -> Events {
    Box::pin(stream::unfold(Some(subscription), |subscription| async {
        let mut subscription = subscription?;
        match subscription.next().await {
            Ok(event) => Some((Ok(message(&event)), Some(subscription))),
            Err(end) => Some((Err(status(end)), None)),
        }
    }))
}

fn message(event: &Event) -> v1::ContainerEventResponse {
    let kind = match event.moment {
        Moment::Created => v1::ContainerEventType::ContainerCreatedEvent,
        Moment::Started => v1::ContainerEventType::ContainerStartedEvent,
        Moment::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
        Moment::Deleted => v1::ContainerEventType::ContainerDeletedEvent,
    };
    v1::ContainerEventResponse {
        container_id: event.id.to_string(),
        container_event_type: kind.into(),
        created_at: time::to_unix_nanos(event.at),
        pod_sandbox_status: event.pod.as_deref().map(pod::status),
        containers_statuses: event.containers.iter().map(|c| container::status(c)).collect(),
    }
}

fn status(end: EventsEnd) -> Status {
    match end {
        EventsEnd::Lagged => Status::resource_exhausted(end.to_string()),
        EventsEnd::Closing => Status::unavailable(end.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::request::PodRequest;

    use super::*;
    use crate::sample;

    #[test]
    fn an_event_carries_the_pod_and_all_its_containers() {
        let pod = Arc::new(sample::pod_record(PodRequest::default()));
        let containers = vec![Arc::new(sample::container_record(Default::default()))];
        let id = containers[0].id;
        let at = time::from_unix_nanos(42);
        for (moment, number) in
            [(Moment::Created, 0), (Moment::Started, 1), (Moment::Stopped, 2), (Moment::Deleted, 3)]
        {
            let event =
                Event { id, moment, at, pod: Some(pod.clone()), containers: containers.clone() };
            let got = message(&event);
            assert_eq!((got.container_event_type, got.created_at), (number, 42));
            assert_eq!(got.container_id, id.to_string());
            assert_eq!(got.pod_sandbox_status, Some(pod::status(&pod)));
            assert_eq!(got.containers_statuses, [container::status(&containers[0])]);
        }
        let last = Event { id: pod.id, moment: Moment::Deleted, at, pod: None, containers: vec![] };
        assert_eq!(message(&last).pod_sandbox_status, None);
    }

    #[test]
    fn a_reader_that_lags_is_told_what_to_do() {
        let got = status(EventsEnd::Lagged);
        assert_eq!(got.code(), tonic::Code::ResourceExhausted);
        assert!(got.message().contains("subscribe again"), "{got:?}");
        assert_eq!(status(EventsEnd::Closing).code(), tonic::Code::Unavailable);
    }
}
