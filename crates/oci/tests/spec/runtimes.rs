//! Specs of ours in the hands of real OCI runtimes: what was asked for is so inside.
//!
//! Each container is in the host's network and IPC namespaces, has a static busybox and nothing
//! else, and its cgroup goes with it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use oci::{
    CgroupFacts, CgroupVersion, DeviceRequest, GroupRef, Kernel, MountRequest, MountSource,
    NamespaceMode, NamespacePaths, Profile, Resources, Rlimit, SourceFacts, UserRef,
};
use serde_json::{Value, json};
use sys::{cgroup, host::KernelVersion, process};
use tempfile::TempDir;

use crate::world::{World, device, privileged};

const RUNTIMES: [&str; 2] = ["crun", "runc"];
const BUSYBOX: &str = "/usr/bin/busybox";
const TOOLS: [&str; 12] =
    ["cat", "chroot", "dd", "grep", "id", "ls", "mount", "sh", "stat", "touch", "true", "unshare"];

/// Runs `script` in a container of each runtime, and compares what it prints.
#[track_caller]
fn check(test: &str, change: impl Fn(&mut World), script: &str, want: &str) {
    if !testkit::is_root() || !Path::new(BUSYBOX).exists() {
        return testkit::skip(test, "needs root and busybox");
    }
    let runtimes: Vec<_> = RUNTIMES.iter().filter_map(|name| program(name)).collect();
    let usable: Vec<_> = runtimes.iter().filter(|runtime| runs_its_own_spec(runtime)).collect();
    if usable.is_empty() {
        return testkit::skip(test, "needs a crun or runc that works on this host");
    }
    for runtime in usable {
        let bundle = Bundle::new();
        let mut world = on_this_host(bundle.0.path());
        world.request.command = vec!["/bin/sh".into(), "-c".into(), script.into()];
        change(&mut world);
        let built = world.build().unwrap();
        bundle.write(&oci::to_json(&built.spec).unwrap());
        assert_eq!(bundle.run(runtime), want, "{}", runtime.display());
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let dirs = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    // A runtime that is hidden from tests has a device in its place.
    dirs.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// Old crun refuses hosts with both cgroup versions, whatever the spec: that is not our fault.
fn runs_its_own_spec(runtime: &Path) -> bool {
    let bundle = Bundle::new();
    let made = Command::new(runtime).arg("spec").current_dir(bundle.0.path()).status().unwrap();
    assert!(made.success(), "{} spec", runtime.display());
    let config = fs::read(bundle.0.path().join("config.json")).unwrap();
    let mut spec: Value = serde_json::from_slice(&config).unwrap();
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!(["/bin/sh", "-c", "echo works"]);
    bundle.write(&serde_json::to_vec(&spec).unwrap());
    bundle.run(runtime) == "works\n"
}

/// A directory with a root file system in it.
struct Bundle(TempDir);

impl Bundle {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("rootfs/bin");
        fs::create_dir_all(&bin).unwrap();
        // Other users than root look in.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
        TOOLS.iter().for_each(|tool| symlink("busybox", bin.join(tool)).unwrap());
        Self(dir)
    }

    fn write(&self, config: &[u8]) {
        fs::write(self.0.path().join("config.json"), config).unwrap();
    }

    /// What the container and its runtime said.
    fn run(&self, runtime: &Path) -> String {
        let output = Command::new(runtime)
            .arg("--root")
            .arg(self.0.path().join("state"))
            .args(["run", "--bundle"])
            .arg(self.0.path())
            .arg(base::Id::random().as_str())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&output.stdout) + &text(&output.stderr)
    }
}

/// The facts as an engine would find them, on the host's own network.
fn on_this_host(dir: &Path) -> World {
    let mut world = World::new();
    world.container.id = base::Id::random();
    world.pod.namespaces = NamespacePaths::default();
    world.pod.cgroup_parent = Some("/".to_owned());
    world.pod.files.shm = None;
    for (name, file) in [
        ("hosts", &mut world.pod.files.hosts),
        ("hostname", &mut world.pod.files.hostname),
        ("resolv.conf", &mut world.pod.files.resolv_conf),
    ] {
        let path = dir.join(name);
        fs::write(&path, format!("our {name}\n")).unwrap();
        *file = Some(path);
    }
    let bounding = process::Capabilities::own().unwrap().bounding;
    world.host.capabilities = bounding.names().map(str::to_owned).collect();
    let own_score = process::oom_score_adj(std::process::id()).unwrap();
    let may_lower = bounding.has("CAP_SYS_RESOURCE");
    world.host.oom_score_floor = (!may_lower).then_some(own_score);
    let kernel = KernelVersion::running().unwrap();
    world.host.kernel = Kernel { major: kernel.major, minor: kernel.minor };
    world.host.cgroup = cgroup_facts();
    world
}

fn cgroup_facts() -> CgroupFacts {
    let layout = cgroup::Layout::detect().unwrap();
    let v2 = matches!(layout.version_of("memory"), Some(cgroup::Version::V2));
    CgroupFacts {
        version: if v2 { CgroupVersion::V2 } else { CgroupVersion::V1 },
        controllers: layout.controllers.into_keys().collect(),
        swap: false,
        mount_options: Vec::new(),
    }
}

#[test]
fn a_plain_container_runs() {
    let script = "id -u; id -G; echo $PATH; echo $HOSTNAME; cat /etc/hosts /etc/resolv.conf; \
                  echo $$; cat /proc/keys /proc/timer_list 2>/dev/null; touch /new && echo ok; \
                  grep -c . /proc/self/cgroup >/dev/null && echo cgroup; echo x >/dev/null && echo null";
    let want = "0\n0\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nshop-0\n\
                our hosts\nour resolv.conf\n1\nok\ncgroup\nnull\n";
    check("a_plain_container_runs", |_| {}, script, want);
}

#[test]
fn users_and_groups_are_as_resolved() {
    let change = |world: &mut World| {
        world.request.security.user.user = Some(UserRef::Name("app".into()));
        world.request.security.supplemental_groups = vec![GroupRef::Id(77)];
    };
    check(
        "users_and_groups_are_as_resolved",
        change,
        "id -u; id -g; id -G",
        "1000\n1000\n1000 44 77\n",
    );
}

#[test]
fn the_default_profile_filters_and_lets_work() {
    let change = |world: &mut World| {
        world.request.security.seccomp = Some(Profile::RuntimeDefault);
        world.request.security.no_new_privileges = true;
    };
    let script = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; unshare -U true 2>/dev/null || \
                  echo refused; echo a | cat; chroot / true && echo chroot";
    let want = "NoNewPrivs:\t1\nSeccomp:\t2\nrefused\na\nchroot\n";
    check("the_default_profile_filters_and_lets_work", change, script, want);
}

#[test]
fn a_read_only_root_and_mounts() {
    let change = |world: &mut World| {
        world.request.security.readonly_rootfs = true;
        let at = |to: &str| MountRequest { container_path: to.into(), ..MountRequest::default() };
        let usr = SourceFacts { path: "/usr/share".into(), ..SourceFacts::default() };
        world.mount(MountRequest { readonly: true, ..at("/usr/share") }, usr);
        let tmpfs = MountRequest {
            source: MountSource::Tmpfs,
            options: vec!["size=64k".into(), "mode=1777".into()],
            ..at("/tmp")
        };
        world.mount(tmpfs, SourceFacts::default());
    };
    let script = "for f in /x /usr/share/x /etc/hosts /sys/x; do touch $f 2>/dev/null || echo no $f; \
                  done; touch /tmp/x && echo yes; dd if=/dev/zero of=/tmp/y bs=1k count=100 \
                  2>/dev/null || echo full";
    let want = "no /x\nno /usr/share/x\nno /etc/hosts\nno /sys/x\nyes\nfull\n";
    check("a_read_only_root_and_mounts", change, script, want);
}

#[test]
fn devices_and_their_rules() {
    let change = |world: &mut World| {
        let host_path = PathBuf::from("/dev/full");
        let container_path = "/dev/mine".into();
        world.container.devices.by_path =
            [(host_path.clone(), vec![device("/dev/full", 1, 7)])].into();
        let permissions = "rw".into();
        world.request.devices = vec![DeviceRequest { host_path, container_path, permissions }];
    };
    let script = "stat -c '%F %t:%T %a %g' /dev/mine; dd if=/dev/zero of=/dev/mine bs=1 count=1 \
                  2>/dev/null || echo full; ls /dev/kmsg 2>/dev/null || echo none";
    let want = "character special file 1:7 660 44\nfull\nnone\n";
    check("devices_and_their_rules", change, script, want);
}

#[test]
fn the_privileged_have_all_we_have() {
    let change = |world: &mut World| {
        privileged(world);
        world.container.devices.host = vec![device("/dev/extra", 1, 5)];
    };
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find(|line| line.starts_with("CapBnd")).unwrap().replace("Bnd", "Eff");
    let script = "grep CapEff /proc/self/status; ls /dev/extra; mount | grep -c 'sysfs.*(rw'";
    let want = format!("{own}\n/dev/extra\n1\n");
    check("the_privileged_have_all_we_have", change, script, &want);
}

#[test]
fn limits_hold() {
    let change = |world: &mut World| {
        world.request.rlimits = vec![Rlimit { name: "nofile".into(), soft: 100, hard: 200 }];
        world.request.resources = Resources {
            cpu_shares: Some(512),
            memory_limit: Some(64 << 20),
            pids_limit: Some(50),
            oom_score_adj: Some(-900),
            ..Resources::default()
        };
        // Whether they can be lowered depends on us; that the container starts does not.
        world.host.oom_score_floor = world.host.oom_score_floor.or(Some(-900));
    };
    let script = "ulimit -n; cat /sys/fs/cgroup/memory.max 2>/dev/null || \
                  cat /sys/fs/cgroup/memory/memory.limit_in_bytes; cat /sys/fs/cgroup/pids.max \
                  2>/dev/null || cat /sys/fs/cgroup/pids/pids.max";
    check("limits_hold", change, script, "100\n67108864\n50\n");
}

#[test]
fn namespaces_of_ones_own() {
    let change = |world: &mut World| {
        let asked = &mut world.request.security.namespaces;
        (asked.ipc, asked.uts) = (NamespaceMode::Container, NamespaceMode::Container);
        world.pod.hostname = "inside".into();
        world.request.shm_size = Some(1 << 20);
        world.request.sysctls = [("kernel.msgmax".into(), "4096".into())].into();
    };
    let script = "cat /proc/sys/kernel/hostname /proc/sys/kernel/msgmax; mount | grep -c '/dev/shm.*size=1024k'";
    check("namespaces_of_ones_own", change, script, "inside\n4096\n1\n");
}
