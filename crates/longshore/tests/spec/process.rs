//! Who a process is, what it may do, and how it is asked to end.

use api_cri::v1::{
    Capability, ContainerConfig, LinuxContainerSecurityContext, LinuxSandboxSecurityContext,
    NamespaceMode, NamespaceOption, SeLinuxOption, SecurityProfile, Signal,
    SupplementalGroupsPolicy, security_profile::ProfileType,
};
use serde_json::json;
use testkit::image::{LayerBuilder, busybox_with};
use tonic::Code;

use crate::world::{World, id, secured, spaces};

#[tokio::test(flavor = "multi_thread")]
async fn ambient_capabilities_are_kept_by_those_who_are_not_root() {
    let Some(world) = World::start("ambient_capabilities_are_kept").await else { return };
    // Bit 10 is NET_BIND_SERVICE.
    let look =
        "grep -e ^CapEff -e ^CapAmb -e ^CapInh /proc/self/status | busybox awk '{print $1 $2}'";
    let ask = |name: &str, ambient: &[&str]| {
        let add_ambient_capabilities = ambient.iter().map(|&name| name.to_owned()).collect();
        let capabilities = Capability {
            drop_capabilities: vec!["ALL".to_owned()],
            add_ambient_capabilities,
            ..Capability::default()
        };
        let security = LinuxContainerSecurityContext {
            run_as_user: id(1000),
            capabilities: Some(capabilities),
            ..LinuxContainerSecurityContext::default()
        };
        secured(world.node.sh(name, look), security)
    };
    let none = "0000000000000000";
    let bind = "0000000000000400";
    let said = |caps: &str| ["CapInh", "CapEff", "CapAmb"].map(|set| format!("{set}:{caps}"));
    assert_eq!(world.look(ask("none", &[])).await, said(none));
    assert_eq!(world.look(ask("bind", &["NET_BIND_SERVICE"])).await, said(bind));

    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let id = world.cri.run(&pod, {
        let sleeper = ask("sleeper", &["NET_BIND_SERVICE"]);
        ContainerConfig { command: vec!["sleep".into(), "1000".into()], ..sleeper }
    });
    let id = id.await.unwrap();
    let ran = world.cri.exec(&id, &["/bin/sh", "-c", look]).await.unwrap();
    let lines: Vec<_> = std::str::from_utf8(&ran.stdout).unwrap().lines().collect();
    assert_eq!(lines, said(bind), "a command run in it has them, too");
    let why = "security.capabilities.ambient[0]: \"FLY\" is not a capability";
    world.refused(&pod, ask("unknown", &["FLY"]), (Code::InvalidArgument, why)).await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_the_image_count_unless_strictly_not() {
    let Some(world) = World::start("groups_of_the_image").await else { return };
    let users = b"root:x:0:0:root:/:/bin/sh\nada:x:1000:1000:ada:/:/bin/sh\n";
    let groups = b"root:x:0:\nada:x:1000:\nmaths:x:5000:ada,root\n";
    let layer =
        LayerBuilder::default().file("etc/passwd", 0o644, users).file("etc/group", 0o644, groups);
    let image = busybox_with().unwrap().layer(layer.build()).set("User", json!("ada"));
    let image = image.set("StopSignal", json!("SIGUSR2"));
    let name = world.pull("test/groups", &image.build()).await;
    let ask = |container: &str, policy: SupplementalGroupsPolicy, user: Option<i64>| {
        let security = LinuxContainerSecurityContext {
            run_as_user: user.and_then(id),
            supplemental_groups: vec![7000],
            supplemental_groups_policy: policy.into(),
            ..LinuxContainerSecurityContext::default()
        };
        let script = "echo $(id -u) $(id -g) $(id -G)";
        let mut config = secured(world.node.sh(container, script), security);
        config.image.as_mut().unwrap().image.clone_from(&name);
        config
    };
    let merge = SupplementalGroupsPolicy::Merge;
    let strict = SupplementalGroupsPolicy::Strict;
    assert_eq!(world.look(ask("merge", merge, None)).await, ["1000 1000 1000 5000 7000"]);
    assert_eq!(world.look(ask("strict", strict, None)).await, ["1000 1000 1000 7000"]);
    assert_eq!(world.look(ask("by-id", merge, Some(1000))).await, ["1000 1000 1000 5000 7000"]);

    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let id = world.cri.create(&pod, ask("status", merge, None)).await.unwrap();
    let status = world.cri.status(&id).await.unwrap();
    let user = status.user.as_ref().unwrap().linux.as_ref().unwrap();
    assert_eq!((user.uid, user.gid), (1000, 1000));
    assert_eq!(user.supplemental_groups, [1000, 5000, 7000]);
    assert_eq!(status.stop_signal(), Signal::Sigusr2, "the image's own");
    let own = ContainerConfig { stop_signal: Signal::Sigquit.into(), ..ask("own", merge, None) };
    let id = world.cri.create(&pod, own).await.unwrap();
    assert_eq!(world.cri.status(&id).await.unwrap().stop_signal(), Signal::Sigquit);
    let unknown = ContainerConfig { stop_signal: 9999, ..ask("unknown", merge, None) };
    world.refused(&pod, unknown, (Code::InvalidArgument, "stop_signal")).await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_joins_anothers_processes_by_the_beginning_of_its_id() {
    let Some(world) = World::start("a_container_joins_anothers").await else { return };
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let target = world.cri.run(&pod, world.node.sh("target", "exec sleep 54321")).await.unwrap();
    let join = |name: &str, target_id: &str| {
        let options = spaces(NamespaceMode::Node, NamespaceMode::Target);
        let options = NamespaceOption { target_id: target_id.to_owned(), ..options };
        let security = LinuxContainerSecurityContext {
            namespace_options: Some(options),
            ..LinuxContainerSecurityContext::default()
        };
        secured(world.node.sh(name, "ps"), security)
    };
    for (name, id) in [("whole", target.as_str()), ("beginning", &target[..12])] {
        let said = world.said(&pod, join(name, id)).await;
        assert!(said.iter().any(|line| line.contains("sleep 54321")), "{name}: {said:?}");
    }
    let why = (Code::NotFound, "no container \"0000\"");
    world.refused(&pod, join("unknown", "0000"), why).await;
    world.refused(&pod, join("nobody", ""), (Code::InvalidArgument, "target_id")).await;
    world.cri.stop(&target, 0).await.unwrap();
    let why = (Code::InvalidArgument, "is no running container of this pod");
    world.refused(&pod, join("ended", &target), why).await;
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_profiles_that_the_host_lacks() {
    let Some(world) = World::start("labels_and_profiles").await else { return };
    let has = |path: &str| std::path::Path::new(path).exists();
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    if has("/sys/module/apparmor") {
        testkit::skip("labels_and_profiles: AppArmor", "this host has it");
    } else {
        let ask = |name: &str, kind: ProfileType, localhost_ref: &str| {
            let profile = SecurityProfile {
                profile_type: kind.into(),
                localhost_ref: localhost_ref.to_owned(),
            };
            let security = LinuxContainerSecurityContext {
                apparmor: Some(profile),
                ..LinuxContainerSecurityContext::default()
            };
            secured(world.node.sh(name, "echo ran"), security)
        };
        let why = (Code::FailedPrecondition, "AppArmor is not available on this host");
        world.refused(&pod, ask("default", ProfileType::RuntimeDefault, ""), why).await;
        world.refused(&pod, ask("named", ProfileType::Localhost, "mine"), why).await;
        assert_eq!(world.said(&pod, ask("free", ProfileType::Unconfined, "")).await, ["ran"]);
    }
    if has("/sys/fs/selinux/enforce") {
        testkit::skip("labels_and_profiles: SELinux", "this host has it");
    } else {
        // As elsewhere: options mean nothing on a host without it, and are no mistake.
        let ask = |name: &str, level: &str| {
            let options = SeLinuxOption { level: level.to_owned(), ..SeLinuxOption::default() };
            let security = LinuxContainerSecurityContext {
                selinux_options: Some(options),
                ..LinuxContainerSecurityContext::default()
            };
            secured(world.node.sh(name, "echo ran"), security)
        };
        assert_eq!(world.said(&pod, ask("labelled", "s0:c1,c2")).await, ["ran"]);
        let why = (Code::InvalidArgument, "\"high\" is not a level such as s0:c1,c2");
        world.refused(&pod, ask("wrong", "high"), why).await;
        let mut asked = world.node.pod("wrong");
        let context = LinuxSandboxSecurityContext {
            selinux_options: Some(SeLinuxOption { level: "high".into(), ..Default::default() }),
            ..asked.linux.as_ref().unwrap().security_context.clone().unwrap()
        };
        asked.linux.as_mut().unwrap().security_context = Some(context);
        let refused = world.cri.run_pod(&asked).await.unwrap_err();
        crate::world::refusal(&refused, why.0, why.1);
    }
    world.node.finish().await.unwrap();
}

/// Clients look for these words, which differ between OCI runtimes.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_executed_is_named_with_the_reason() {
    let Some(world) = World::start("a_program_that_cannot_be_executed").await else { return };
    let pod = world.cri.run_pod(&world.node.pod("p")).await.unwrap();
    let sleeper = world.cri.run(&pod, world.node.sh("sleeper", "exec sleep 1000")).await.unwrap();
    for (name, program, why) in [
        ("in-path", "no-such-program", "executable file not found in $PATH"),
        ("absent", "/no/such/program", "no such file or directory"),
        ("no-program", "/etc/passwd", "permission denied"),
        ("directory", "/bin", "permission denied"),
        ("below", "/bin/busybox/program", "not a directory"),
    ] {
        let want = format!("exec: {program:?}: {why}");
        let command = vec![program.to_owned()];
        let config = ContainerConfig { command, ..world.node.sh(name, "") };
        let id = world.cri.create(&pod, config).await.unwrap();
        let refused = world.cri.start(&id).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, &*want));
        let status = world.cri.status(&id).await.unwrap();
        assert_eq!((status.reason.as_str(), status.exit_code), ("StartError", 128), "{status:?}");
        assert_eq!(status.message, want);

        let refused = world.cri.exec(&sleeper, &[program]).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, &*want));
    }
    world.node.finish().await.unwrap();
}
