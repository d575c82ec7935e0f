//! A host with a bridge, and a CNI program on it that does what a test wants.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use api_cri::v1::{
    ContainerConfig, NamespaceMode, PodSandboxConfig, PodSandboxNetworkStatus, PortMapping,
    RuntimeCondition, StatusRequest,
};
use serde_json::json;
use testkit::{
    Cri, Node, Pod,
    cni::{self, Traces},
};

pub(crate) const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// How long a program may take, where machines are as fast as they should be; always less than
/// the half minute that a pod has to be off its networks.
pub(crate) fn call_limit(seconds: u32) -> String {
    format!("call_limit = \"{}s\"", (seconds * testkit::slowness()).min(25))
}

pub(crate) struct World {
    dir: tempfile::TempDir,
}

impl World {
    /// With these lines in the `[cni]` section of the configuration.
    pub(crate) fn new(ranges: &[&str], settings: &str) -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(world.path("modes")).unwrap();
        // Published ports, by way of a program that tests can change.
        let mut conf = cni::bridge(&world.leases(), ranges);
        conf["plugins"][1]["type"] = json!("odd");
        let script = r#"conf=$(cat); mode="DIR/modes/$CNI_COMMAND"
            [ -f "$mode" ] && . "$mode"
            printf %s "$conf" | /usr/lib/cni/portmap"#;
        let script = script.replace("DIR", world.dir.path().to_str().unwrap());
        cni::program(&world.path("bin"), "odd", &script);
        world.configure(&conf.to_string());
        fs::write(world.path("config.toml"), format!("[cni]\n{settings}\n")).unwrap();
        world
    }

    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    fn leases(&self) -> PathBuf {
        self.path("ipam")
    }

    pub(crate) fn configure(&self, conf: &str) {
        cni::configure(&self.path("net.d"), "10.conflist", conf);
    }

    /// What the odd program does before it does its work, as shell; nothing again with "".
    pub(crate) fn mode(&self, verb: &str, script: &str) {
        let path = self.path("modes").join(verb);
        match script {
            "" => drop(fs::remove_file(path)),
            script => fs::write(path, format!("{script}\n")).unwrap(),
        }
    }

    pub(crate) async fn node(&self, test: &str) -> Node {
        let flags = |command: &mut std::process::Command| {
            let bin = self.path("bin");
            command.arg("--config").arg(self.path("config.toml"));
            command.arg("--cni-conf-dir").arg(self.path("net.d"));
            command.arg("--cni-bin-dir").arg(format!("{}:/usr/lib/cni", bin.display()));
        };
        Node::start_with(test, LONGSHORE, flags).await.expect("root")
    }

    pub(crate) fn traces(&self) -> Traces {
        Traces::now(&self.leases())
    }

    /// The first pod leaves the bridge and the chains that all pods share. Those may stay.
    pub(crate) async fn warm_up(&self, node: &Node, cri: &Cri) -> Traces {
        let config = publishing(on_pod_network(node.pod("first")), &[(18_999, 80)]);
        let pod = cri.run_pod(&config).await.unwrap();
        cri.remove_pod(&pod.id).await.unwrap();
        node.settled().await.unwrap();
        let traces = self.traces();
        assert_eq!(traces.leases, [""; 0]);
        traces
    }

    /// Waits until the host is as it was, and no namespace and no process is left.
    pub(crate) async fn as_before(&self, node: &Node, before: &Traces) {
        eventually("the host is as before", || self.traces() == *before).await;
        node.settled().await.unwrap();
    }
}

/// The pod gets a network, and a name on it.
pub(crate) fn on_pod_network(mut config: PodSandboxConfig) -> PodSandboxConfig {
    config.hostname = format!("{}-host", config.metadata.as_ref().unwrap().name);
    let linux = config.linux.as_mut().unwrap();
    let security = linux.security_context.as_mut().unwrap();
    security.namespace_options.as_mut().unwrap().set_network(NamespaceMode::Pod);
    config
}

pub(crate) fn publishing(mut config: PodSandboxConfig, ports: &[(i32, i32)]) -> PodSandboxConfig {
    let mapping = |&(host_port, container_port): &(i32, i32)| PortMapping {
        host_port,
        container_port,
        ..PortMapping::default()
    };
    config.port_mappings = ports.iter().map(mapping).collect();
    config
}

pub(crate) async fn network(cri: &Cri, pod: &Pod) -> PodSandboxNetworkStatus {
    cri.pod_status(&pod.id).await.unwrap().status.unwrap().network.unwrap()
}

/// What a command in a container printed; it must succeed.
pub(crate) async fn inside(cri: &Cri, container: &str, script: &str) -> String {
    let ran = cri.exec(container, &["/bin/sh", "-c", script]).await.unwrap();
    let (out, error) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.exit_code, 0, "{script}: {out}{error}");
    out.trim().to_owned()
}

/// A pod with one container that serves a page.
pub(crate) async fn serving(
    node: &Node,
    cri: &Cri,
    config: PodSandboxConfig,
    port: u16,
) -> (Pod, String) {
    let pod = cri.run_pod(&config).await.unwrap();
    let name = &config.metadata.as_ref().unwrap().name;
    let script = format!(
        "mkdir -p /www; echo page of {name} > /www/index.html; exec httpd -f -p {port} -h /www"
    );
    let container: ContainerConfig = node.sh("c", &script);
    let id = cri.run(&pod, container).await.unwrap();
    (pod, id)
}

pub(crate) async fn network_condition(cri: &Cri) -> RuntimeCondition {
    let answer = cri.runtime().status(StatusRequest::default()).await.unwrap().into_inner();
    let conditions = answer.status.unwrap().conditions;
    conditions.into_iter().find(|condition| condition.r#type == "NetworkReady").unwrap()
}

/// Generous: the machine may be busy with a build.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1200 * testkit::slowness() {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

/// Namespaces of pods that are pinned.
pub(crate) fn namespaces(node: &Node) -> usize {
    entries(&node.daemon.state().join("netns"))
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).into_iter().flatten().count()
}
