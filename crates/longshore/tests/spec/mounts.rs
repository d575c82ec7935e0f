//! What a container finds mounted.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use api_cri::v1::{ContainerConfig, ImageSpec, Mount, MountPropagation};
use serde_json::json;
use sys::mount::{self, Attrs, Depth, Propagation, Tmpfs, Unmount};
use testkit::image::{Image, ImageBuilder, LayerBuilder, busybox_with};
use tonic::Code;

use crate::world::{World, privileged, privileged_pod, shifted_pod};

fn bind(from: &Path, to: &str) -> Mount {
    Mount {
        host_path: from.display().to_string(),
        container_path: to.to_owned(),
        ..Mount::default()
    }
}

/// A tmpfs on the host that a test made, gone with it.
struct HostMount(PathBuf);

impl HostMount {
    fn on(dir: PathBuf) -> Self {
        let tmpfs = Tmpfs { bytes: 1 << 20, inodes: 0, mode: 0o755 };
        tmpfs.create(Attrs::default()).unwrap().attach(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        let _ = mount::unmount_tree(&self.0, Unmount::Lazy);
    }
}

// === propagation ===

#[tokio::test(flavor = "multi_thread")]
async fn mounts_travel_as_far_as_asked() {
    let Some(world) = World::start("mounts_travel_as_far_as_asked").await else { return };
    let pod = world.cri.run_pod(&privileged_pod(world.node.pod("p"))).await.unwrap();
    let shared = HostMount::on(world.host_dir("shared"));
    mount::set_propagation(&shared.0, Propagation::Shared, Depth::One).unwrap();
    for name in ["host", "both", "none"] {
        fs::create_dir(shared.0.join(name)).unwrap();
        fs::create_dir(shared.0.join(format!("of-{name}"))).unwrap();
    }
    let config = |name: &str, propagation: MountPropagation| {
        let mount = Mount { propagation: propagation.into(), ..bind(&shared.0, "/shared") };
        // Mounts one of its own, then waits for one of the host's.
        let script = format!(
            "mount -t tmpfs none /shared/of-{name}; touch /shared/of-{name}/seen; echo mounted
             while [ ! -e /go/{name} ]; do sleep 0.05; done
             [ -e /shared/{name}/seen ] && echo sees; echo end"
        );
        let mounts = vec![mount, bind(&world.host_dir("go"), "/go")];
        privileged(ContainerConfig { mounts, ..world.node.sh(name, &script) })
    };
    for (name, propagation, sees, shows) in [
        ("none", MountPropagation::PropagationPrivate, false, false),
        ("host", MountPropagation::PropagationHostToContainer, true, false),
        ("both", MountPropagation::PropagationBidirectional, true, true),
    ] {
        world.cri.run(&pod, config(name, propagation)).await.unwrap();
        world.until_said(&pod, name, "mounted").await;
        let ours = HostMount::on(shared.0.join(name));
        fs::write(ours.0.join("seen"), "").unwrap();
        fs::write(world.host_dir("go").join(name), "").unwrap();
        world.until_said(&pod, name, "end").await;
        let said = world.node.said(&pod, name).unwrap();
        assert_eq!(said.contains(&"sees".to_owned()), sees, "{name}: {said:?}");
        let shown = shared.0.join(format!("of-{name}/seen")).exists();
        assert_eq!(shown, shows, "{name}");
    }

    // What cannot travel is not mounted as if it could.
    let alone = HostMount::on(world.host_dir("alone"));
    mount::set_propagation(&alone.0, Propagation::Private, Depth::One).unwrap();
    for propagation in
        [MountPropagation::PropagationBidirectional, MountPropagation::PropagationHostToContainer]
    {
        let mount = Mount { propagation: propagation.into(), ..bind(&alone.0, "/in") };
        let config = ContainerConfig { mounts: vec![mount], ..world.node.sh("alone", "true") };
        world
            .refused(&pod, privileged(config), (Code::InvalidArgument, "mounts[0].propagation: "))
            .await;
    }
    world.node.finish().await.unwrap();
}

// === read-only ===

#[tokio::test(flavor = "multi_thread")]
async fn read_only_is_read_only_all_the_way_down_if_asked() {
    let without = |dir: &tempfile::TempDir| {
        // As runc before it could tell what it can do.
        let old = dir.path().join("old-runc");
        let script = "#!/bin/sh\n[ \"$1\" = features ] && exit 1\nexec runc \"$@\"\n";
        testkit::program(&old, script);
        format!(
            "default_handler = 'runc'\nhandlers.runc.binary = 'runc'\n\
             handlers.old.binary = '{}'\n",
            old.display()
        )
    };
    let Some(world) = World::configured("read_only_is_read_only", without).await else { return };
    let dir = world.host_dir("dir");
    fs::create_dir(dir.join("below")).unwrap();
    let _below = HostMount::on(dir.join("below"));
    let config = |name: &str, recursive: bool| {
        let mount = Mount { readonly: true, recursive_read_only: recursive, ..bind(&dir, "/dir") };
        let script = "for f in /dir/x /dir/below/x; do touch $f 2>/dev/null && echo $f; done; true";
        ContainerConfig { mounts: vec![mount], ..world.node.sh(name, script) }
    };
    assert_eq!(world.look(config("plain", false)).await, ["/dir/below/x"]);
    assert_eq!(world.look(config("recursive", true)).await, [""; 0]);

    let pod = world.cri.run_pod_with("old", &world.node.pod("old")).await.unwrap();
    let refused = world.cri.create(&pod, config("old", true)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    let why = "RROUnsupported: mounts[0].recursive_readonly: handler \"old\"";
    assert!(refused.message().starts_with(why), "{refused}");
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_followed_made_or_refused() {
    let Some(world) = World::start("a_source_is_followed").await else { return };
    let dir = world.host_dir("dir");
    fs::write(dir.join("file"), "content\n").unwrap();
    symlink("file", dir.join("link")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    let config = |name: &str, mount: Mount, script: &str| ContainerConfig {
        mounts: vec![mount],
        ..world.node.sh(name, script)
    };
    let link = bind(&dir.join("link"), "/in");
    assert_eq!(world.look(config("link", link, "cat /in")).await, ["content"]);
    let absent = bind(&dir.join("a/b"), "/in");
    assert_eq!(world.look(config("absent", absent, "stat -c %F /in")).await, ["directory"]);
    assert_eq!(fs::metadata(dir.join("a/b")).unwrap().mode() & 0o777, 0o755);

    let pod = world.cri.run_pod(&world.node.pod("refusals")).await.unwrap();
    for (name, text) in [
        ("dangling", "is a link to nowhere: No such file"),
        ("loop", "is a link to loop: Too many"),
    ] {
        let config = config(name, bind(&dir.join(name), "/in"), "true");
        world.refused(&pod, config, (Code::InvalidArgument, text)).await;
    }
    assert!(!dir.join("nowhere").exists(), "not made");
    for (name, path) in [("relative", "in"), ("root", "/")] {
        let config = config(name, bind(&dir, path), "true");
        world.refused(&pod, config, (Code::InvalidArgument, "mounts[0].container_path")).await;
    }
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_a_mount_hold() {
    let Some(world) = World::start("options_of_a_mount_hold").await else { return };
    let dir = world.host_dir("dir");
    testkit::program(&dir.join("run"), "#!/bin/sh\necho ran\n");
    let config = |name: &str, options: &[&str]| {
        let mount_options = options.iter().map(|&option| option.to_owned()).collect();
        let mount = Mount { mount_options, ..bind(&dir, "/dir") };
        let script = "/dir/run 2>/dev/null || echo cannot
            grep ' /dir ' /proc/self/mounts | cut -d ' ' -f 4 | busybox tr , '\\n' | grep ^no | sort";
        ContainerConfig { mounts: vec![mount], ..world.node.sh(name, script) }
    };
    assert_eq!(world.look(config("plain", &[])).await[0], "ran");
    let said = world.look(config("tied", &["noexec", "nodev", "nosuid"])).await;
    assert_eq!(said[0], "cannot");
    for option in ["nodev", "noexec", "nosuid"] {
        assert!(said.iter().any(|line| line == option), "{said:?}");
    }
    let pod = world.cri.run_pod(&world.node.pod("refusals")).await.unwrap();
    let why = (Code::InvalidArgument, "mounts[0].options[0]: \"rw\" is not an option here");
    world.refused(&pod, config("bad", &["rw"]), why).await;
    let status = world.cri.runtime().status(api_cri::v1::StatusRequest::default()).await;
    assert!(status.unwrap().into_inner().features.unwrap().mount_options);
    world.node.finish().await.unwrap();
}

// === images as volumes ===

fn data_image() -> Image {
    let layer = LayerBuilder::default()
        .dir("data", 0o755)
        .dir("data/sub", 0o755)
        .file("data/file", 0o644, b"of the image\n")
        .file("data/run", 0o755, b"#!/bin/sh\necho ran\n")
        .file("data/sub/deep", 0o644, b"deep\n")
        .symlink("link", "/data/sub")
        .symlink("out", "../../../../etc");
    let above = LayerBuilder::default().file("data/above", 0o644, b"above\n");
    ImageBuilder::default().layer(layer.build()).layer(above.build()).build()
}

fn of_image(image: &str, sub_path: &str) -> Mount {
    Mount {
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        image_sub_path: sub_path.to_owned(),
        container_path: "/in".to_owned(),
        readonly: true,
        ..Mount::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_a_volume() {
    let Some(world) = World::start("an_image_is_a_volume").await else { return };
    let image = world.pull("test/data", &data_image()).await;
    let config = |name: &str, sub_path: &str, script: &str| ContainerConfig {
        mounts: vec![of_image(&image, sub_path)],
        ..world.node.sh(name, &format!("{script}; touch /in/x 2>/dev/null && echo wrote; true"))
    };
    let said = world.look(config("whole", "", "ls /in; cat /in/data/file /in/data/above")).await;
    assert_eq!(said, ["data", "link", "out", "of the image", "above"]);
    assert_eq!(world.look(config("part", "data/sub", "ls /in")).await, ["deep"]);
    assert_eq!(world.look(config("link", "link", "ls /in")).await, ["deep"]);
    // Read-only, and nothing more: neither containerd nor CRI-O keeps programs from being run.
    assert_eq!(world.look(config("run", "data", "/in/run")).await, ["ran"]);
    assert_eq!(world.look(config("up", "data/../data/sub", "ls /in")).await, ["deep"]);

    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let id = world.cri.run(&pod, config("status", "data", "exec sleep 1000")).await.unwrap();
    let mounts = world.cri.status(&id).await.unwrap().mounts;
    let shown = mounts[0].image.as_ref().unwrap();
    assert_eq!((shown.image.as_str(), mounts[0].image_sub_path.as_str()), (&*image, "data"));
    let digest = data_image().manifest.digest.to_string();
    assert!(shown.image_ref.ends_with(&format!("/test/data@{digest}")), "{shown:?}");
    // Its layers stay while somebody has them mounted.
    world.cri.remove_image(&image).await.unwrap();
    let ran = world.cri.exec(&id, &["cat", "/in/sub/deep"]).await.unwrap();
    assert_eq!(ran.stdout, "deep\n");

    let gone = config("gone", "", "true");
    image_volume_fails(&world, &pod, gone, &format!("mounts[0]: no image {image:?}")).await;
    world.cri.pull(&image).await.unwrap();
    for (sub_path, why) in [
        ("absent", "is no directory of the image: open absent: No such file or directory"),
        ("data/file", "is no directory of the image: open data/file: Not a directory"),
        ("out", "is no directory of the image: open out: No such file or directory"),
        ("/data", "must be a relative path"),
        ("data/../../..", "leads out of the image"),
        ("..", "leads out of the image"),
    ] {
        let config = config("part-of", sub_path, "true");
        let why = format!("mounts[0]: image_sub_path: {sub_path:?} {why}");
        image_volume_fails(&world, &pod, config, &why).await;
    }
    world.node.finish().await.unwrap();
}

/// The kubelet sets `image_sub_path` on every mount with a subPath once the pod has an image volume.
#[tokio::test(flavor = "multi_thread")]
async fn image_sub_path_means_nothing_for_a_path_of_the_host() {
    let Some(world) = World::start("image_sub_path_of_a_host_path").await else { return };
    let image = world.pull("test/data", &data_image()).await;
    let dir = world.host_dir("volume/part");
    fs::write(dir.join("file"), "of the host\n").unwrap();
    let beside = Mount { image_sub_path: "part".to_owned(), ..bind(&dir, "/beside") };
    let config = ContainerConfig {
        mounts: vec![of_image(&image, "data"), beside],
        ..world.node.sh("c", "cat /in/file /beside/file")
    };
    assert_eq!(world.look(config).await, ["of the image", "of the host"]);
    world.node.finish().await.unwrap();
}

async fn image_volume_fails(world: &World, pod: &testkit::Pod, config: ContainerConfig, why: &str) {
    let status = world.cri.create(pod, config).await.unwrap_err();
    let want = format!("ImageVolumeMountFailed: {why}");
    assert!(status.message().starts_with(&want), "{status} does not begin with {want}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_a_volume_of_the_pods_own_ids() {
    let Some(world) = World::with_new_runc("an_image_of_the_pods_ids").await else { return };
    let image = world.pull("test/data", &data_image()).await;
    let pod = world.cri.run_pod_with("new", &shifted_pod(world.node.pod("p"))).await.unwrap();
    let config = ContainerConfig {
        mounts: vec![of_image(&image, "data")],
        ..world.node.sh("c", "stat -c %u:%g /in /in/file; cat /in/file")
    };
    assert_eq!(world.said(&pod, config).await, ["0:0", "0:0", "of the image"]);
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_image_calls_a_volume_starts_with_its_content() {
    let Some(world) = World::with_new_runc("what_an_image_calls_a_volume").await else { return };
    let layer = LayerBuilder::default()
        .dir("data", 0o1777)
        .file("data/file", 0o640, b"of the image\n")
        .symlink("data/link", "file");
    let volumes = json!({ "/data": {}, "/absent": {}, "/covered": {} });
    let image = busybox_with().unwrap().layer(layer.build()).set("Volumes", volumes);
    let name = world.pull("test/volumes", &image.build()).await;
    let covered = world.host_dir("covered");
    fs::write(covered.join("hosts"), "").unwrap();
    let config = |container: &str| {
        let script = "
            stat -c %a /data; cat /data/link; ls /absent /covered
            for dir in /data /absent; do touch $dir/new && echo $dir; done
            stat -c %u:%g /data /data/file /absent
            grep -c -e ' /data ' -e ' /absent ' /proc/self/mounts";
        let mut config = world.node.sh(container, script);
        config.image.as_mut().unwrap().image.clone_from(&name);
        ContainerConfig { mounts: vec![bind(&covered, "/covered")], ..config }
    };
    let mut want = vec!["1777", "of the image", "/absent:", "", "/covered:", "hosts"];
    want.extend(["/data", "/absent", "0:0", "0:0", "0:0", "2"]);
    assert_eq!(world.look(config("plain")).await, want);
    // Each has its own.
    assert_eq!(world.look(config("again")).await, want);

    let asked = shifted_pod(world.node.pod("shifted"));
    let pod = world.cri.run_pod_with("new", &asked).await.unwrap();
    assert_eq!(world.said(&pod, config("shifted")).await, want);
    world.node.finish().await.unwrap();
}
