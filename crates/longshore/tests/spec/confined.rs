//! AppArmor profiles and SELinux labels, on hosts that have them.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use api_cri::v1::{
    Capability, ContainerConfig, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, Mount,
    PodSandboxConfig, SeLinuxOption, SecurityProfile, security_profile::ProfileType,
};
use testkit::Pod;
use tonic::Code;

use crate::world::{World, privileged, privileged_pod, secured};

// === AppArmor ===

fn has_apparmor() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    enabled.is_ok_and(|text| text.trim() == "Y")
}

fn profile(kind: ProfileType, name: &str) -> Option<SecurityProfile> {
    Some(SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() })
}

fn confined(config: ContainerConfig, profile: Option<SecurityProfile>) -> ContainerConfig {
    let capabilities =
        Capability { add_capabilities: vec!["SYS_ADMIN".to_owned()], ..Capability::default() };
    let security = LinuxContainerSecurityContext {
        apparmor: profile,
        capabilities: Some(capabilities),
        ..LinuxContainerSecurityContext::default()
    };
    secured(config, security)
}

/// A loaded profile, gone with the value.
struct Loaded(&'static str);

impl Loaded {
    fn new(name: &'static str, rules: &str) -> Self {
        Self::parse("--replace", &format!("profile {name} {{ {rules} }}\n"));
        Self(name)
    }

    fn parse(how: &str, text: &str) {
        let mut parser = Command::new("apparmor_parser")
            .arg(how)
            .stdin(Stdio::piped())
            .spawn()
            .expect("apparmor_parser");
        parser.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(parser.wait().unwrap().success(), "apparmor_parser {how}");
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        Self::parse("--remove", &format!("profile {} {{ }}\n", self.0));
    }
}

const WHO: &str =
    "cat /proc/self/attr/current; mount -t tmpfs none /mnt 2>/dev/null && echo mounted; true";

#[tokio::test(flavor = "multi_thread")]
async fn containers_have_the_profile_they_ask_for() {
    let Some(world) = World::start("containers_have_the_profile").await else { return };
    if !has_apparmor() {
        return testkit::skip("containers_have_the_profile_they_ask_for", "AppArmor is off");
    }
    let pod = world.cri.run_pod(&privileged_pod(world.node.pod("p"))).await.unwrap();
    let script = format!("mkdir -p /mnt; {WHO}");
    let run = async |name: &str, asked: Option<SecurityProfile>| {
        world.said(&pod, confined(world.node.sh(name, &script), asked)).await
    };
    let ours = ["longshore-default (enforce)"];
    assert_eq!(run("unset", None).await, ours, "and no mount, whatever the capabilities");
    assert_eq!(run("default", profile(ProfileType::RuntimeDefault, "")).await, ours);
    let free = ["unconfined", "mounted"];
    assert_eq!(run("free", profile(ProfileType::Unconfined, "")).await, free);
    let all = privileged(world.node.sh("privileged", &script));
    assert_eq!(world.said(&pod, all).await, free);

    let _loaded = Loaded::new("ls-test-mine", "file, mount, capability,");
    let mine = profile(ProfileType::Localhost, "ls-test-mine");
    assert_eq!(run("mine", mine).await, ["ls-test-mine (enforce)", "mounted"]);
    let missing = profile(ProfileType::Localhost, "nobody-loaded-this");
    let why = "no AppArmor profile \"nobody-loaded-this\" is loaded on this host";
    let config = confined(world.node.sh("missing", "true"), missing);
    world.refused(&pod, config, (Code::NotFound, why)).await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_profile_leaves_a_container_its_own() {
    let Some(world) = World::start("the_default_profile").await else { return };
    if !has_apparmor() {
        return testkit::skip("the_default_profile_leaves_a_container_its_own", "AppArmor is off");
    }
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    // Files, pipes, sockets, signals to its own, its own /proc; but nothing of the host's.
    let script = "echo 5 > /proc/self/oom_score_adj && echo own-proc; \
                  sleep 1000 & kill $! && echo signal; \
                  (echo x | nc -l -p 7 >/dev/null 2>&1 &) ; echo y > /tmp/f && echo file; \
                  echo 1 > /proc/sysrq-trigger || echo no-sysrq; \
                  echo x > /sys/kernel/uevent_helper || echo no-sys";
    let mut config = world.node.sh("c", &format!("mkdir -p /tmp; ({script}) 2>/dev/null"));
    // What would forbid it all by itself is left out.
    let security = LinuxContainerSecurityContext::default();
    config = secured(config, security);
    let said = world.said(&pod, config).await;
    assert_eq!(said, ["own-proc", "signal", "file", "no-sysrq", "no-sys"]);

    let id = world.cri.run(&pod, world.node.sh("stop", TRAP)).await.unwrap();
    world.until_said(&pod, "stop", "ready").await;
    let exec = world.cri.exec(&id, &["cat", "/proc/self/attr/current"]).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&exec.stdout).trim(), "longshore-default (enforce)");
    world.cri.stop(&id, 30).await.unwrap();
    assert_eq!(world.cri.status(&id).await.unwrap().exit_code, 7, "its stop signal came through");
    world.node.finish().await.unwrap();
}

const TRAP: &str = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done";

// === SELinux ===

/// With a policy that knows containers: the kernel says which labels it knows.
fn has_selinux() -> bool {
    fs::write("/sys/fs/selinux/context", "system_u:system_r:container_t:s0").is_ok()
}

fn level(level: &str) -> Option<SeLinuxOption> {
    Some(SeLinuxOption { level: level.to_owned(), ..SeLinuxOption::default() })
}

fn pod_labelled(mut pod: PodSandboxConfig, asked: Option<SeLinuxOption>) -> PodSandboxConfig {
    let linux = pod.linux.as_mut().unwrap();
    let security = linux.security_context.take().unwrap();
    let labelled = LinuxSandboxSecurityContext { selinux_options: asked, ..security };
    linux.security_context = Some(labelled);
    pod
}

fn labelled(config: ContainerConfig, asked: Option<SeLinuxOption>) -> ContainerConfig {
    let security = LinuxContainerSecurityContext {
        selinux_options: asked,
        ..LinuxContainerSecurityContext::default()
    };
    secured(config, security)
}

/// The last two parts of a label: its type, and its level.
fn parts(label: &str) -> (&str, &str) {
    let mut parts = label.trim_end_matches('\0').splitn(4, ':').skip(2);
    (parts.next().unwrap(), parts.next().unwrap_or_default())
}

/// What a container and some of its files are labelled, looked at from the host.
async fn labels(world: &World, pod: &Pod, config: ContainerConfig, files: &[&str]) -> Vec<String> {
    let id = world.cri.run(pod, config).await.unwrap();
    let pid = world.details(&id).await["pid"].as_u64().unwrap();
    let process = fs::read_to_string(format!("/proc/{pid}/attr/current")).unwrap();
    let of = |file: &&str| sys::label::get(&PathBuf::from(format!("/proc/{pid}/root{file}")));
    let files = files.iter().map(|file| of(file).unwrap());
    std::iter::once(process.trim_end_matches('\0').to_owned()).chain(files).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_and_files_have_the_labels_of_their_pod() {
    let Some(world) = World::start("processes_and_files_have_the_labels").await else { return };
    if !has_selinux() {
        return testkit::skip(
            "processes_and_files_have_the_labels_of_their_pod",
            "no SELinux policy for containers",
        );
    }
    let files = ["/", "/bin/busybox", "/etc/hosts", "/dev/shm"];
    let sleeper = |name: &str| world.node.sh(name, "exec sleep 1000");
    let one = world.cri.run_pod(&world.node.pod("one")).await.unwrap();
    let first = labels(&world, &one, sleeper("a"), &files).await;
    let same = labels(&world, &one, sleeper("b"), &files).await;
    assert_eq!(first, same, "of one pod");
    let (kind, own) = parts(&first[0]);
    assert_eq!(kind, "container_t", "{first:?}");
    for file in &first[1..] {
        assert_eq!(parts(file), ("container_file_t", own), "{first:?}");
    }
    let two = world.cri.run_pod(&world.node.pod("two")).await.unwrap();
    let other = labels(&world, &two, sleeper("a"), &files).await;
    assert_ne!(parts(&other[0]).1, own, "of different pods");

    let asked = pod_labelled(world.node.pod("asked"), level("s0:c11,c12"));
    let asked = world.cri.run_pod(&asked).await.unwrap();
    let said = labels(&world, &asked, sleeper("pods"), &files).await;
    assert!(said.iter().all(|label| parts(label).1 == "s0:c11,c12"), "{said:?}");
    let config = labelled(sleeper("own"), level("s0:c21,c22"));
    let said = labels(&world, &asked, config, &files).await;
    assert_eq!((parts(&said[0]).1, parts(&said[1]).1), ("s0:c21,c22", "s0:c21,c22"));
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_are_labelled_on_request() {
    let Some(world) = World::start("mounts_are_labelled_on_request").await else { return };
    if !has_selinux() {
        return testkit::skip("mounts_are_labelled_on_request", "no SELinux policy for containers");
    }
    let asked = pod_labelled(world.node.pod("p"), level("s0:c31,c32"));
    let pod = world.cri.run_pod(&asked).await.unwrap();
    let mount = |name: &str, selinux_relabel: bool| {
        let dir = world.host_dir(name);
        fs::write(dir.join("file"), "x").unwrap();
        let mount = Mount {
            host_path: dir.display().to_string(),
            container_path: "/m".to_owned(),
            selinux_relabel,
            ..Mount::default()
        };
        ContainerConfig { mounts: vec![mount], ..world.node.sh(name, "exec sleep 1000") }
    };
    let file = ["/m/file"];
    let plain = labels(&world, &pod, mount("plain", false), &file).await;
    assert_ne!(parts(&plain[1]).1, "s0:c31,c32");
    let said = labels(&world, &pod, mount("labelled", true), &file).await;
    assert_eq!(parts(&said[1]), ("container_file_t", "s0:c31,c32"));
    let mut hosts = mount("hosts", true);
    hosts.mounts[0].host_path = "/etc".to_owned();
    let why = "mounts[0].selinux_relabel: /etc is the host's own";
    world.refused(&pod, hosts, (Code::InvalidArgument, why)).await;
    world.node.finish().await.unwrap();
}
