//! What only a shim with a sandbox of its own does, and what is refused on the way to one.

use std::{fs, os::fd::AsFd, path::Path};

use shim_client::{Foreign, PodPids, Sandboxer};

use crate::{
    keeper,
    world::{LIMIT, Wish, World},
};

#[tokio::test]
async fn a_sandbox_tells_of_itself() {
    let Some(world) = World::new("a_sandbox_tells_of_itself") else { return };
    let pod = world.start().await;
    let sandbox = pod.shim.sandbox().expect("a sandbox of its own");
    sandbox.ping(LIMIT).await.unwrap();
    let status = sandbox.status(LIMIT).await.unwrap();
    assert!(status.ready, "{status:?}");
    let name = fs::read_to_string(format!("/proc/{}/comm", status.pid)).unwrap();
    assert_eq!(name, "pause\n");
    assert_eq!(sandbox.platform(LIMIT).await.unwrap().0, "linux");
    let figures = sandbox.metrics(LIMIT).await.unwrap();
    assert!(figures.processes > 0, "{figures:?}");
    assert!(figures.memory_bytes > 0, "{figures:?}");
    pod.finish().await;
}

#[tokio::test]
async fn an_orderly_shutdown_ends_the_shim() {
    let Some(world) = World::new("an_orderly_shutdown_ends_the_shim") else { return };
    let pod = world.start().await;
    let id = pod.run("c", &["sleep", "1000"], Wish::default()).await;
    let refused = pod.shim.shutdown().await.unwrap_err();
    assert_eq!(refused.kind(), base::Kind::FailedPrecondition, "{refused}");
    pod.end(&id).await;
    pod.shim.shutdown().await.unwrap();
    tokio::time::timeout(LIMIT, pod.shim.died()).await.unwrap();
    pod.finish().await;
}

/// The pod's name and settings are there whatever the shim makes of them.
#[tokio::test]
async fn namespaces_are_furnished() {
    let Some(world) = World::new("namespaces_are_furnished") else { return };
    let mut spec = world.spec();
    let uts = world.pod_dir().join("uts");
    spec.namespaces.uts = Some(uts.clone());
    spec.hostname = Some("somebody".to_owned());
    let pod = world.start_with(&spec).await;
    let namespace = sys::namespace::open(&uts).unwrap();
    let read = || fs::read_to_string("/proc/sys/kernel/hostname");
    let name = sys::namespace::in_thread(&[namespace.as_fd()], read).unwrap().unwrap();
    assert_eq!(name, "somebody\n");
    pod.finish().await;
}

#[tokio::test]
async fn a_setting_that_is_none_is_refused_by_name() {
    let Some(world) = World::new("a_setting_that_is_none_is_refused_by_name") else { return };
    let mut spec = world.spec();
    spec.namespaces.uts = Some(world.pod_dir().join("uts"));
    spec.sysctls = [("kernel/../x".to_owned(), "1".to_owned())].into();
    let host = Foreign::open(&world.dir.path().join("e")).unwrap();
    let foreign = keeper::describe(&world, &spec);
    let error = host.prepare(&foreign).await.unwrap_err();
    let text = base::Chain(&error).to_string();
    assert!(text.contains("\"kernel/../x\" is no name"), "{text}");
    shim_client::bury(&foreign.dir, LIMIT).await.unwrap();
    world.check_empty().await;
}

/// Containers that share their processes would share the host's.
#[tokio::test]
async fn a_sandbox_among_the_processes_of_the_host_is_refused_to_those_who_share() {
    let Some(world) = World::new("a_sandbox_among_the_processes_of_the_host") else { return };
    let mut spec = world.spec();
    spec.namespaces.pid = true;
    let mut foreign = keeper::describe(&world, &spec);
    let Sandboxer::Service(config) = &mut foreign.sandboxer else { panic!("another sandbox") };
    config.pids = PodPids::Node;
    let host = Foreign::open(&world.dir.path().join("e")).unwrap();
    host.prepare(&foreign).await.unwrap();
    let error = host.launch(&foreign.dir, LIMIT).await.unwrap_err();
    assert_eq!(error.kind(), base::Kind::Unimplemented, "{error}");
    assert!(error.to_string().contains("no PID namespace"), "{error}");
    assert!(!Foreign::is_in(&foreign.dir));
    world.check_empty().await;
}

#[tokio::test]
async fn the_record_tells_how_a_pod_is_kept() {
    let Some(world) = World::new("the_record_tells_how_a_pod_is_kept") else { return };
    assert_eq!(Foreign::sandboxer_in(Path::new("/nowhere")), None);
    let pod = world.start().await;
    let kept = Foreign::sandboxer_in(&pod.world.pod_dir());
    assert!(matches!(kept, Some(Sandboxer::Service(_))), "{kept:?}");
    pod.finish().await;
}
