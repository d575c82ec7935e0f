//! User namespaces: ids inside are not ids outside.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
};

use api_cri::v1::{
    ContainerConfig, IdMapping, LinuxContainerSecurityContext, Mount, NamespaceMode,
    NamespaceOption, UserNamespace,
};
use testkit::{Pod, cni::on_own_network};
use tonic::Code;

use crate::world::{
    FIRST, LEN, World, bridge, pod_spaces, refusal, secured, shifted, shifted_pod, spaces,
};

fn range(container_id: u32, host_id: u32, length: u32) -> IdMapping {
    IdMapping { host_id, container_id, length }
}

fn in_pod(pod: &Pod, config: ContainerConfig) -> ContainerConfig {
    let security = pod.config.linux.as_ref().unwrap().security_context.as_ref().unwrap();
    let context = LinuxContainerSecurityContext {
        namespace_options: security.namespace_options.clone(),
        ..LinuxContainerSecurityContext::default()
    };
    secured(config, context)
}

/// Who is who, and that root is root over its own things.
const LOOK: &str = "
    echo map=$(cat /proc/self/uid_map) gmap=$(cat /proc/self/gid_map)
    echo root=$(stat -c %u:%g /) program=$(stat -c %u:%g /bin/busybox)
    echo hosts=$(stat -c %u /etc/hosts) shm=$(stat -c %u:%a /dev/shm)
    touch /new && chown 7:8 /new && echo new=$(stat -c %u:%g /new)
    mkdir /tmp/m && mount -t tmpfs none /tmp/m 2>/dev/null && echo mounted
    [ $(busybox wc -c < /proc/self/uid_map) -gt 0 ] && echo sys=$(ls /sys/kernel | head -n 1)
    echo ready";

#[test]
fn ids_are_shifted_inside_and_out() {
    on_own_network("ids_are_shifted", ids_are_shifted);
}

async fn ids_are_shifted() {
    let world = World::with_new_runc_and("ids_are_shifted", bridge).await;
    let Some(world) = world else { return };
    for (name, network, pid) in [
        ("own", NamespaceMode::Pod, NamespaceMode::Container),
        ("own-shared", NamespaceMode::Pod, NamespaceMode::Pod),
        ("host", NamespaceMode::Node, NamespaceMode::Container),
        ("shared", NamespaceMode::Node, NamespaceMode::Pod),
    ] {
        let mut asked = pod_spaces(world.node.pod(name), shifted(network, pid));
        if network == NamespaceMode::Pod {
            asked.hostname = name.to_owned();
        }
        let pod = world.cri.run_pod_with("new", &asked).await.unwrap();
        let config = in_pod(&pod, world.node.sh(name, &format!("{LOOK}; exec sleep 1000")));
        let id = world.cri.run(&pod, config).await.unwrap();
        world.until_said(&pod, name, "ready").await;
        let said = world.node.said(&pod, name).unwrap();
        let want = [
            &format!("map= 0 {FIRST} {LEN} gmap= 0 {FIRST} {LEN}") as &str,
            "root=0:0 program=0:0",
            "hosts=0 shm=0:1777",
            "new=7:8",
        ];
        assert_eq!(said[..4], want, "{name}");
        assert!(said[4].starts_with("sys=") && said[4].len() > 4, "{name}: {said:?}");

        // From outside.
        let pid = world.details(&id).await["pid"].as_u64().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ids = |kind: &str| status.lines().find(|line| line.starts_with(kind)).unwrap();
        let first = FIRST.to_string();
        assert!(ids("Uid:").split_whitespace().skip(1).all(|id| id == first), "{status}");
        assert!(ids("Gid:").split_whitespace().skip(1).all(|id| id == first), "{status}");
        let new = fs::metadata(format!("/proc/{pid}/root/new")).unwrap();
        assert_eq!((new.uid(), new.gid()), (FIRST + 7, FIRST + 8), "{name}");

        let ran = world.cri.exec(&id, &["id", "-u"]).await.unwrap();
        assert_eq!(ran.stdout, "0\n", "{name}: {ran:?}");
    }
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_with_mapped_ids_shows_the_owners_of_the_disk() {
    let Some(world) = World::with_new_runc("a_mount_with_mapped_ids").await else { return };
    let pod = world.cri.run_pod_with("new", &shifted_pod(world.node.pod("p"))).await.unwrap();
    let dir = world.host_dir("data");
    fs::write(dir.join("file"), "x").unwrap();
    chown(dir.join("file"), Some(5), Some(6)).unwrap();
    let mount = |mapped: bool| {
        let ranges = if mapped { vec![range(0, FIRST, LEN)] } else { Vec::new() };
        Mount {
            host_path: dir.display().to_string(),
            container_path: "/data".to_owned(),
            uid_mappings: ranges.clone(),
            gid_mappings: ranges,
            ..Mount::default()
        }
    };
    let look = "stat -c %u:%g /data /data/file; touch /data/new 2>/dev/null && echo wrote";
    for (name, mapped, want) in [
        ("mapped", true, &["0:0", "5:6", "wrote"] as &[&str]),
        ("plain", false, &["65534:65534", "65534:65534"]),
    ] {
        let script = format!("{look}; true");
        let config =
            ContainerConfig { mounts: vec![mount(mapped)], ..world.node.sh(name, &script) };
        assert_eq!(world.said(&pod, in_pod(&pod, config)).await, want, "{name}");
    }
    let new = fs::metadata(dir.join("new")).unwrap();
    assert_eq!((new.uid(), new.gid()), (0, 0), "root inside wrote as root on disk");
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_mapped_is_refused_by_name() {
    let Some(world) = World::with_new_runc("what_cannot_be_mapped").await else { return };
    let ask = |mode: NamespaceMode, ranges: &[IdMapping]| {
        let (uids, gids) = (ranges.to_vec(), ranges.to_vec());
        let user = UserNamespace { mode: mode.into(), uids, gids };
        let options = spaces(NamespaceMode::Node, NamespaceMode::Container);
        let options = NamespaceOption { userns_options: Some(user), ..options };
        pod_spaces(world.node.pod("p"), options)
    };
    let good = [range(0, FIRST, LEN)];
    let two = [range(0, FIRST, 10), range(10, 2 * FIRST, 10)];
    for (handler, pod, code, text) in [
        ("new", ask(NamespaceMode::Pod, &two), Code::InvalidArgument, "exactly one mapping"),
        (
            "new",
            ask(NamespaceMode::Pod, &[range(1, FIRST, 9)]),
            Code::InvalidArgument,
            "id 0 of the container must be mapped",
        ),
        ("new", ask(NamespaceMode::Container, &good), Code::InvalidArgument, "mode CONTAINER"),
        ("new", ask(NamespaceMode::Target, &good), Code::InvalidArgument, "mode TARGET"),
        (
            "runc",
            ask(NamespaceMode::Pod, &good),
            Code::Unimplemented,
            "user namespace: handler \"runc\" cannot do that",
        ),
    ] {
        refusal(&world.cri.run_pod_with(handler, &pod).await.unwrap_err(), code, text);
    }

    // A container is in its pod's, or nowhere.
    let pod = world.cri.run_pod_with("new", &ask(NamespaceMode::Pod, &good)).await.unwrap();
    let other = ask(NamespaceMode::Pod, &[range(0, 2 * FIRST, LEN)]);
    let other = Pod { id: pod.id.clone(), config: other };
    let config = in_pod(&other, world.node.sh("c", "true"));
    let why = (Code::InvalidArgument, "the mapping is not that of the pod");
    world.refused(&pod, config, why).await;
    world.node.finish().await.unwrap();
}
