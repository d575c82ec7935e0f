//! What a status tells of images and pods.

use std::{fs, path::Path, time::Duration};

use api_cri::v1::{
    ContainerConfig, ContainerStatsRequest, FilesystemUsage, ImageFsInfoRequest,
    LinuxContainerConfig, LinuxContainerResources, NamespaceMode, PodSandboxStatusRequest,
};
use jiff::Timestamp;

use crate::world::{World, bridge, pod_spaces, spaces};

fn now() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap()
}

async fn image_file_systems(world: &World) -> Vec<FilesystemUsage> {
    let mut images = world.cri.images();
    images.image_fs_info(ImageFsInfoRequest {}).await.unwrap().into_inner().image_filesystems
}

fn mountpoint(usage: &FilesystemUsage) -> &Path {
    Path::new(&usage.fs_id.as_ref().unwrap().mountpoint)
}

/// Waits until the writable layer of a container was counted.
async fn counted(world: &World, id: &str) {
    for _ in 0..3000 {
        let request = ContainerStatsRequest { container_id: id.to_owned() };
        let stats = world.cri.runtime().container_stats(request).await.unwrap().into_inner();
        if stats.stats.unwrap().writable_layer.is_some_and(|layer| layer.timestamp > 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the layer of {id} was never counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_file_systems_are_those_in_use_and_as_of_now() {
    let config = |_: &tempfile::TempDir| {
        "default_handler = 'runc'\nhandlers.runc.binary = 'runc'\n\
         handlers.copy.binary = 'runc'\nhandlers.copy.snapshotter = 'native'\n"
            .to_owned()
    };
    let Some(world) = World::configured("image_file_systems", config).await else { return };
    let before = image_file_systems(&world).await;
    assert_eq!(before.len(), 1, "nothing uses the other store: {before:?}");
    assert!(mountpoint(&before[0]).ends_with("overlayfs"), "{before:?}");

    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let sleeper = world.node.sh("c", "exec sleep 1000");
    let id = world.cri.run(&pod, sleeper.clone()).await.unwrap();
    counted(&world, &id).await;
    let asked = now();
    let told = image_file_systems(&world).await;
    assert!(told[0].timestamp >= asked, "{} is before {asked}", told[0].timestamp);

    let pod = world.cri.run_pod_with("copy", &world.node.pod("copied")).await.unwrap();
    world.cri.run(&pod, sleeper).await.unwrap();
    let both = image_file_systems(&world).await;
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(mountpoint(&both[0]).ends_with("overlayfs"), "the default is first: {both:?}");
    assert!(mountpoint(&both[1]).ends_with("native"), "{both:?}");
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oom_score_of_zero_is_not_the_daemons() {
    let Some(world) = World::start("an_oom_score_of_zero").await else { return };
    let daemon = format!("/proc/{}/oom_score_adj", world.node.daemon.pid().as_raw_nonzero());
    fs::write(daemon, "300").unwrap();
    let config = |name: &str, resources: Option<LinuxContainerResources>| ContainerConfig {
        linux: Some(LinuxContainerConfig { resources, ..LinuxContainerConfig::default() }),
        ..world.node.sh(name, "cat /proc/self/oom_score_adj")
    };
    let score = |oom_score_adj| {
        Some(LinuxContainerResources { oom_score_adj, ..LinuxContainerResources::default() })
    };
    assert_eq!(world.look(config("zero", score(0))).await, ["0"]);
    assert_eq!(world.look(config("some", score(500))).await, ["500"]);
    assert_eq!(world.look(config("none", None)).await, ["0"]);
    world.node.finish().await.unwrap();
}

async fn pod_info(world: &World, id: &str) -> serde_json::Value {
    let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
    let answer = world.cri.runtime().pod_sandbox_status(request).await.unwrap().into_inner();
    serde_json::from_str(&answer.info["info"]).unwrap()
}

/// Scripts read namespaces, cgroup and annotations of a pod from there with every runtime.
#[tokio::test(flavor = "multi_thread")]
async fn a_verbose_pod_status_has_the_runtime_spec() {
    let Some(world) = World::configured("a_verbose_pod_status", bridge).await else { return };
    let mut asked = world.node.pod("p");
    asked.hostname = "named".to_owned();
    let own = spaces(NamespaceMode::Pod, NamespaceMode::Pod);
    let pod = world.cri.run_pod(&pod_spaces(asked, own)).await.unwrap();
    let spec = pod_info(&world, &pod.id).await["runtimeSpec"].clone();
    assert_eq!(spec["hostname"], "named");
    let namespaces = spec["linux"]["namespaces"].as_array().unwrap();
    for kind in ["network", "ipc", "uts", "pid"] {
        let found = namespaces.iter().find(|namespace| namespace["type"] == kind);
        let path = found.unwrap_or_else(|| panic!("no {kind} in {spec}"))["path"].as_str().unwrap();
        assert!(Path::new(path).exists(), "{path}");
    }
    let annotations = spec["annotations"].as_object().unwrap();
    assert_eq!(annotations["io.kubernetes.cri.sandbox-id"], *pod.id);
    assert_eq!(annotations["io.kubernetes.cri.container-type"], "sandbox");
    let cgroup = spec["linux"]["cgroupsPath"].as_str().unwrap();
    assert!(cgroup.contains(&*world.node.cgroups.parent()), "{cgroup}");

    // The host's namespaces are no namespaces of the pod.
    let pod = world.cri.run_pod(&world.node.pod("host")).await.unwrap();
    let spec = pod_info(&world, &pod.id).await["runtimeSpec"].clone();
    let namespaces = spec["linux"]["namespaces"].as_array().unwrap();
    let kinds: Vec<_> = namespaces.iter().map(|namespace| &namespace["type"]).collect();
    assert_eq!(kinds, ["ipc"]);
    world.node.finish().await.unwrap();
}
