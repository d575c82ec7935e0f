//! Devices: the host's, and those that vendors describe.

use std::{fs, os::unix::fs::MetadataExt};

use api_cri::v1::{CdiDevice, ContainerConfig, Device, LinuxContainerSecurityContext};
use tonic::Code;

use crate::world::{World, id, privileged, privileged_pod, secured};

/// A device that anybody may open, but not among those that every container may.
fn open_device(test: &str) -> Option<&'static str> {
    let all = ["/dev/fuse", "/dev/net/tun", "/dev/loop-control"];
    let found = all.into_iter().find(|path| fs::File::open(path).is_ok());
    if found.is_none() {
        testkit::skip(test, "needs /dev/fuse, /dev/net/tun or /dev/loop-control");
    }
    found
}

fn device(host: &str, inside: &str, permissions: &str) -> Device {
    Device {
        host_path: host.to_owned(),
        container_path: inside.to_owned(),
        permissions: permissions.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_there_and_no_more_may_be_done_with_it_than_asked() {
    let Some(world) = World::start("a_device_is_there").await else { return };
    let Some(host) = open_device("a_device_is_there") else { return };
    let script = "
        echo type=$(stat -c %F /dev/mine)
        echo write=$( (echo x > /dev/mine) 2>/dev/null && echo yes )
        echo read=$( (busybox dd if=/dev/mine of=/dev/null bs=1 count=1) 2>/dev/null && echo yes )";
    let mine = |name: &str, permissions: &str| ContainerConfig {
        devices: vec![device(host, "/dev/mine", permissions)],
        ..world.node.sh(name, "(exec 3</dev/mine) 2>/dev/null && echo opened; true")
    };
    assert_eq!(world.look(mine("may", "r")).await, ["opened"]);
    assert_eq!(world.look(mine("may-not", "m")).await, [""; 0]);
    let null = ContainerConfig {
        devices: vec![device("/dev/null", "/dev/mine", "rwm")],
        ..world.node.sh("null", script)
    };
    let want = ["type=character special file", "write=yes", "read=yes"];
    assert_eq!(world.look(null).await, want);

    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let absent = ContainerConfig {
        devices: vec![device("/dev/no-such", "/dev/mine", "r")],
        ..world.node.sh("absent", "true")
    };
    let why = (Code::InvalidArgument, "devices: /dev/no-such: No such file");
    world.refused(&pod, absent, why).await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_belong_to_the_containers_user_if_so_configured() {
    let config = |_: &tempfile::TempDir| "[containers]\ndevice_ownership = true\n".to_owned();
    let Some(world) = World::configured("devices_belong", config).await else { return };
    let security = LinuxContainerSecurityContext {
        run_as_user: id(1000),
        run_as_group: id(2000),
        ..LinuxContainerSecurityContext::default()
    };
    let config = ContainerConfig {
        devices: vec![device("/dev/kmsg", "/dev/mine", "r")],
        ..world.node.sh("c", "stat -c %u:%g /dev/mine")
    };
    assert_eq!(world.look(secured(config, security)).await, ["1000:2000"]);
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_privileged_have_the_hosts_devices_unless_the_handler_says_otherwise() {
    let handlers = |_: &tempfile::TempDir| {
        let handler = |name: &str, devices: &str| {
            format!("[handlers.{name}]\nbinary = 'runc'\nprivileged_devices = '{devices}'\n")
        };
        let names = [("all", "all"), ("none", "none"), ("allowed", "allowed")];
        let handlers: String = names.map(|(name, devices)| handler(name, devices)).concat();
        format!("default_handler = 'all'\n{handlers}")
    };
    let Some(world) = World::configured("the_privileged_have", handlers).await else { return };
    let Some(host) = open_device("the_privileged_have") else { return };
    let number = fs::metadata(host).unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let script = format!(
        "[ -e {host} ] && echo there
         busybox mknod /tmp/made c {major} {minor} && (exec 3</tmp/made) 2>/dev/null && echo opened
         true"
    );
    for (handler, want) in
        [("all", &["there", "opened"] as &[&str]), ("none", &[]), ("allowed", &["opened"])]
    {
        let asked = privileged_pod(world.node.pod(handler));
        let pod = world.cri.run_pod_with(handler, &asked).await.unwrap();
        let said = world.said(&pod, privileged(world.node.sh(handler, &script))).await;
        assert_eq!(said, want, "{handler}");
    }
    let pod = world.cri.run_pod(&world.node.pod("plain")).await.unwrap();
    let config = privileged(world.node.sh("c", "true"));
    world.refused(&pod, config, (Code::InvalidArgument, "no privileged container allowed")).await;
    world.node.finish().await.unwrap();
}

// === CDI ===

const SPEC: &str = r#"
cdiVersion: "0.6.0"
kind: "vendor.example/thing"
containerEdits:
  env: ["THING_FILE=yes"]
devices:
  - name: one
    containerEdits:
      env: ["THING=one"]
      deviceNodes:
        - path: /dev/thing
          hostPath: DEVICE
          permissions: r
      mounts:
        - hostPath: HOST
          containerPath: /thing
          options: [ro, rbind]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_device_of_a_vendor_brings_what_its_file_says() {
    let configured = |dir: &tempfile::TempDir| {
        let (etc, run) = (dir.path().join("etc-cdi"), dir.path().join("run-cdi"));
        format!("[containers]\ncdi_dirs = ['{}', '{}']\n", etc.display(), run.display())
    };
    let Some(device) = open_device("a_device_of_a_vendor") else { return };
    let Some(world) = World::configured("a_device_of_a_vendor", configured).await else { return };
    let name = |text: &str| vec![CdiDevice { name: text.to_owned() }];
    let config = |container: &str, devices: Vec<CdiDevice>| ContainerConfig {
        cdi_devices: devices,
        ..world.node.sh(
            container,
            "echo $THING $THING_FILE; (exec 3</dev/thing) && echo opened; cat /thing/file",
        )
    };
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let unknown = || config("unknown", name("vendor.example/thing=one"));
    let why = "cdi_devices[0]: no CDI device \"vendor.example/thing=one\"";
    world.refused(&pod, unknown(), (Code::NotFound, why)).await;

    // Described after the daemon started, in the second directory, beside a file of no use.
    let host = world.host_dir("thing");
    fs::write(host.join("file"), "of the vendor\n").unwrap();
    let dir = world.host_dir("run-cdi");
    fs::write(dir.join("broken.yaml"), "kind: [").unwrap();
    let spec = SPEC.replace("DEVICE", device).replace("HOST", &host.display().to_string());
    fs::write(dir.join("thing.yaml"), spec).unwrap();
    let want = ["one yes", "opened", "of the vendor"];
    assert_eq!(world.said(&pod, config("field", name("vendor.example/thing=one"))).await, want);
    let mut annotated = config("annotation", Vec::new());
    let (key, value) = ("cdi.k8s.io/test_thing", "vendor.example/thing=one");
    annotated.annotations.insert(key.to_owned(), value.to_owned());
    assert_eq!(world.said(&pod, annotated).await, want);
    world.node.daemon.logged("broken.yaml").await.unwrap();

    let why = (Code::InvalidArgument, "is not a name such as vendor.com/class=name");
    world.refused(&pod, config("malformed", name("thing")), why).await;
    let why = (Code::NotFound, "no CDI device \"vendor.example/thing=two\"");
    world.refused(&pod, config("two", name("vendor.example/thing=two")), why).await;
    world.node.finish().await.unwrap();
}
