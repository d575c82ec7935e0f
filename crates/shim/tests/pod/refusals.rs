//! What our shim refuses, and by which cause.

use shim_client::{CreateTask, ExecTask, ShimError};

use crate::{
    execs::process,
    world::{Wish, World},
};

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_cause() {
    let Some(world) = World::new("what_makes_no_sense_is_refused_by_cause") else { return };
    let pod = world.start().await;
    let shim = &pod.shim;
    let kind = |result: Result<u32, ShimError>| result.unwrap_err().kind();
    assert_eq!(kind(shim.start("absent").await), base::Kind::NotFound);
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    assert_eq!(kind(shim.start(&id).await), base::Kind::FailedPrecondition);
    assert_eq!(shim.delete(&id).await.unwrap_err().kind(), base::Kind::FailedPrecondition);
    assert_eq!(shim.shutdown().await.unwrap_err().kind(), base::Kind::FailedPrecondition);
    let bundle = pod.world.bundle(&id, &["true"], &Wish::default());
    let again = CreateTask { id: id.clone(), bundle: bundle.clone(), ..CreateTask::default() };
    assert_eq!(kind(shim.create(again.clone()).await), base::Kind::AlreadyExists);
    let odd = CreateTask { id: "../x".to_owned(), ..again };
    assert_eq!(kind(shim.create(odd).await), base::Kind::Invalid);
    pod.end(&id).await;
    assert!(matches!(shim.kill(&id, 9, false).await, Err(ShimError::NotFound { .. })));
    pod.finish().await;
}

#[tokio::test]
async fn execs_that_cannot_be_are_refused() {
    let Some(world) = World::new("execs_that_cannot_be_are_refused") else { return };
    let pod = world.start().await;
    let id = pod.create("c", &["sleep", "1000"], Wish::default()).await;
    let task = |exec_id: &str, args: &[&str]| ExecTask {
        id: id.clone(),
        exec_id: exec_id.to_owned(),
        process_json: process(args, false),
        tty: false,
        stdin: None,
        stdout: None,
        stderr: None,
    };
    pod.shim.exec(task("early", &["true"])).await.unwrap();
    let kind = |result: Result<u32, ShimError>| result.unwrap_err().kind();
    assert_eq!(kind(pod.shim.start_exec(&id, "early").await), base::Kind::FailedPrecondition);
    pod.shim.start(&id).await.unwrap();
    pod.shim.start_exec(&id, "early").await.unwrap();
    assert_eq!(kind(pod.shim.start_exec(&id, "early").await), base::Kind::FailedPrecondition);
    assert_eq!(kind(pod.shim.start_exec(&id, "absent").await), base::Kind::NotFound);
    let twice = pod.shim.exec(task("early", &["true"])).await.unwrap_err();
    assert_eq!(twice.kind(), base::Kind::AlreadyExists);
    let nobody_reads = ExecTask {
        tty: true,
        stdout: Some(pod.world.dir.path().join("absent")),
        ..task("deaf", &["true"])
    };
    pod.shim.exec(nobody_reads).await.unwrap();
    let error = pod.shim.start_exec(&id, "deaf").await.unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
    pod.shim.exec(task("odd", &["/no/such/program"])).await.unwrap();
    let error = pod.shim.start_exec(&id, "odd").await.unwrap_err();
    // Runtimes differ in the first letter.
    assert!(error.to_string().contains("o such file or directory"), "{error}");
    // What never ran has an end, so that nobody waits for ever.
    assert_eq!(pod.end_exec(&id, "odd").await.code, 255);
    pod.end(&id).await;
    pod.finish().await;
}

/// What any client of the Task API may say of streams and of the OCI runtime.
#[tokio::test]
async fn streams_go_to_a_log_or_to_pipes_and_by_one_runtime() {
    use api_shim::{
        longshore::CreateOptions,
        name, runc,
        task::v3::{CreateTaskRequest, TaskClient},
    };
    use prost::Message;

    let Some(world) = World::new("streams_go_to_a_log_or_to_pipes") else { return };
    let pod = world.start().await;
    let socket = tokio::net::UnixStream::connect(pod.world.pod_dir().join("shim.sock")).await;
    let client = TaskClient::new(ttrpc::Client::new(socket.unwrap()));
    let id = pod.world.id("c");
    let bundle = pod.world.bundle(&id, &["true"], &Wish::default());
    let refused = async |type_url: &str, value: Vec<u8>, stdout: &str, want: &str| {
        let request = CreateTaskRequest {
            id: id.clone(),
            bundle: bundle.display().to_string(),
            stdout: stdout.to_owned(),
            options: Some(prost_types::Any { type_url: type_url.to_owned(), value }),
            ..CreateTaskRequest::default()
        };
        let limit = ttrpc::Context::timeout(crate::world::LIMIT);
        let error = client.create(&limit, &request).await.unwrap_err();
        assert_eq!(error.code(), ttrpc::Code::InvalidArgument, "{error}");
        assert!(error.to_string().contains(want), "{error}");
    };
    let ours = CreateOptions::default().encode_to_vec();
    refused(name::CREATE_OPTIONS, ours, "/pipe", "to a log or to pipes, not to both").await;
    let other = runc::Options { binary_name: "/other".to_owned(), ..runc::Options::default() };
    let want = "options: are not those of the shim's own runtime";
    refused(name::RUNC_OPTIONS, other.encode_to_vec(), "", want).await;
    refused("x.Options", Vec::new(), "", "options: x.Options is unknown").await;
    assert!(pod.shim.list().await.unwrap().is_empty());
    pod.finish().await;
}
