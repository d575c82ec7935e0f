//! What is refused on the way to a foreign shim, or by it.

use shim_client::{CreateTask, Foreign, ShimError};

use crate::{
    keeper,
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
    assert_eq!(kind(shim.start_exec(&id, "absent").await), base::Kind::NotFound);
    assert_eq!(shim.shutdown().await.unwrap_err().kind(), base::Kind::FailedPrecondition);
    let bundle = pod.world.bundle(&id, &["true"], &Wish::default());
    let again = CreateTask { id: id.clone(), bundle: bundle.clone(), ..CreateTask::default() };
    assert_eq!(kind(shim.create(again.clone()).await), base::Kind::AlreadyExists);
    for odd in ["../x", "", ".x", "a/b"] {
        let odd = CreateTask { id: odd.to_owned(), ..again.clone() };
        assert_eq!(kind(shim.create(odd).await), base::Kind::Invalid);
    }
    pod.end(&id).await;
    assert!(matches!(shim.kill(&id, 9, false).await, Err(ShimError::NotFound { .. })));
    assert!(matches!(shim.state(&id).await, Err(ShimError::NotFound { .. })));
    pod.finish().await;
}

#[tokio::test]
async fn user_namespaces_are_refused_by_name() {
    let Some(world) = World::new("user_namespaces_are_refused_by_name") else { return };
    let mut spec = world.spec();
    let (uids, gids) = (Vec::new(), Vec::new());
    let pin = world.pod_dir().join("user");
    spec.namespaces.user = Some(shim_client::UserNs { pin, uids, gids });
    let host = Foreign::open(&world.dir.path().join("e")).unwrap();
    let error = host.prepare(&keeper::describe(&world, &spec)).await.unwrap_err();
    assert_eq!(error.kind(), base::Kind::Unimplemented, "{error}");
}

#[tokio::test]
async fn a_shim_that_does_not_start_says_why_and_leaves_nothing() {
    let Some(world) = World::new("a_shim_that_does_not_start_says_why") else { return };
    let mut foreign = keeper::describe(&world, &world.spec());
    let host = Foreign::open(&world.dir.path().join("e")).unwrap();
    for (binary, want) in [("/bin/false", "ended with exit status: 1"), ("/bin/true", "nothing")] {
        foreign.binary = binary.into();
        host.prepare(&foreign).await.unwrap();
        let error = host.launch(&foreign.dir, crate::world::LIMIT).await.unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
        assert!(!Foreign::is_in(&foreign.dir));
    }
    world.check_empty().await;
}
