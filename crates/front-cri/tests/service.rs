//! The service as a client sees it, without a socket between.

use api_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use front_cri::{EngineStreams, Service, Slot, Streaming};
use telemetry::metrics::Registry;
use tonic::{Code, Status};

type Client = RuntimeServiceClient<Service>;

/// A client of a service whose engine is not there yet.
fn closed() -> Client {
    let slot = Slot::default();
    let streams = EngineStreams::new(slot.clone());
    let streaming = Streaming::new(streams, "http://node", Default::default());
    RuntimeServiceClient::new(Service::new(slot, streaming, &mut Registry::default()))
}

#[track_caller]
fn check(status: &Status, code: Code, message: &str) {
    assert_eq!((status.code(), status.message()), (code, message));
}

#[tokio::test]
async fn before_the_engine_is_there_everything_is_unavailable() {
    let mut client = closed();
    let message = "server is not initialized yet";
    let check = |status: Status| check(&status, Code::Unavailable, message);
    check(client.version(v1::VersionRequest::default()).await.unwrap_err());
    check(client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap_err());
    // Not even the name of a field: what is wrong with a request is said when it counts.
    check(client.run_pod_sandbox(v1::RunPodSandboxRequest::default()).await.unwrap_err());
    check(client.stream_containers(v1::StreamContainersRequest::default()).await.unwrap_err());
}
