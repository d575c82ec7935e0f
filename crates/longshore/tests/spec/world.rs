//! A node with a configuration of its own, and short words for what is asked of it.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use api_cri::v1::{
    ContainerConfig, ContainerStatusRequest, IdMapping, Int64Value, LinuxContainerSecurityContext,
    NamespaceMode, NamespaceOption, PodSandboxConfig, UserNamespace,
};
use testkit::{Cri, GoTool, Node, Pod, cni, image::Image, skip};
use tonic::{Code, Status};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) cri: Cri,
    /// For what a test puts on the host.
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    /// `None`, loudly, where containers cannot be run.
    pub(crate) async fn start(test: &str) -> Option<Self> {
        Self::configured(test, |_| String::new()).await
    }

    /// With a configuration file; its author is told the directory that it may use.
    pub(crate) async fn configured(
        test: &str,
        config: impl FnOnce(&tempfile::TempDir) -> String,
    ) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("ls-spec-").tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, config(&dir)).unwrap();
        let add = |command: &mut Command| {
            command.arg("--config").arg(&path);
        };
        let node = Node::start_with(test, LONGSHORE, add).await?;
        let cri = node.cri().await.unwrap();
        Some(Self { node, cri, dir })
    }

    /// Two handlers: the host's `runc`, which is the default, and the `new` one.
    pub(crate) async fn with_new_runc(test: &str) -> Option<Self> {
        Self::with_new_runc_and(test, |_| String::new()).await
    }

    /// The same with more in the configuration.
    pub(crate) async fn with_new_runc_and(
        test: &str,
        more: impl FnOnce(&tempfile::TempDir) -> String,
    ) -> Option<Self> {
        let built = tokio::task::spawn_blocking(|| GoTool::Runc.build());
        let Some(new) = built.await.unwrap().unwrap() else {
            skip(test, "needs Go to build a new runc");
            return None;
        };
        Self::configured(test, |dir| {
            format!(
                "default_handler = 'runc'\nhandlers.runc.binary = 'runc'\n\
                 handlers.new.binary = '{}'\n{}",
                new.display(),
                more(dir)
            )
        })
        .await
    }

    /// A directory on the host, which all may look into.
    pub(crate) fn host_dir(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// What a script says, line by line, when it is run to its end in `pod`.
    pub(crate) async fn said(&self, pod: &Pod, config: ContainerConfig) -> Vec<String> {
        let name = config.metadata.as_ref().unwrap().name.clone();
        let status = match Box::pin(self.cri.run_to_end(pod, config)).await {
            Ok(status) => status,
            Err(error) => panic!("{name}: {error:#}\n{}", self.node.daemon.stderr()),
        };
        let said = self.node.said(pod, &name).unwrap();
        assert_eq!(status.exit_code, 0, "{name}: {said:?} {status:?}");
        said
    }

    /// Waits until a container's log has this line.
    pub(crate) async fn until_said(&self, pod: &Pod, container: &str, line: &str) {
        for _ in 0..3000 {
            let said = self.node.said(pod, container).unwrap_or_default();
            if said.iter().any(|l| l == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{container} never said {line:?}: {:?}", self.node.said(pod, container));
    }

    /// Waits until a container's log has so many lines.
    pub(crate) async fn lines(&self, pod: &Pod, container: &str, count: usize) {
        for _ in 0..3000 {
            if self.node.said(pod, container).unwrap_or_default().len() >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{container} said too little: {:?}", self.node.said(pod, container));
    }

    /// Runs it on a pod of its own.
    pub(crate) async fn look(&self, config: ContainerConfig) -> Vec<String> {
        let name = config.metadata.as_ref().unwrap().name.clone();
        let pod = self.cri.run_pod(&self.node.pod(&name)).await.unwrap();
        self.said(&pod, config).await
    }

    /// The refusal of a container; whatever it says, nothing of it is left.
    pub(crate) async fn refused(
        &self,
        pod: &Pod,
        config: ContainerConfig,
        (code, text): (Code, &str),
    ) {
        let name = config.metadata.as_ref().unwrap().name.clone();
        let status = Box::pin(self.cri.create(pod, config)).await.unwrap_err();
        refusal(&status, code, text);
        let containers = self.cri.containers().await.unwrap();
        let left = containers.iter().find(|c| c.metadata.as_ref().unwrap().name == name);
        assert_eq!(left, None);
    }

    /// Puts an image in the registry and pulls it; returns its name.
    pub(crate) async fn pull(&self, name: &str, image: &Image) -> String {
        self.node.registry.push(name, "1", image);
        let name = format!("{}/{name}:1", self.node.registry.host());
        self.cri.pull(&name).await.unwrap();
        name
    }

    /// What the runtime was told, and the process of a container that runs.
    pub(crate) async fn details(&self, id: &str) -> serde_json::Value {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        let answer = self.cri.runtime().container_status(request).await.unwrap().into_inner();
        serde_json::from_str(&answer.info["info"]).unwrap()
    }
}

/// Pods may have a network of their own.
pub(crate) fn bridge(dir: &tempfile::TempDir) -> String {
    let conf = cni::bridge(&dir.path().join("leases"), &["10.88.0.0/24"]);
    let conf_dir = dir.path().join("net.d");
    cni::configure(&conf_dir, "10.conflist", &conf.to_string());
    format!("[cni]\nconf_dir = '{}'\n", conf_dir.display())
}

#[track_caller]
pub(crate) fn refusal(status: &Status, code: Code, text: &str) {
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(text), "{status} does not say {text:?}");
}

pub(crate) fn secured(
    mut config: ContainerConfig,
    security: LinuxContainerSecurityContext,
) -> ContainerConfig {
    config.linux.get_or_insert_default().security_context = Some(security);
    config
}

pub(crate) fn id(value: i64) -> Option<Int64Value> {
    Some(Int64Value { value })
}

pub(crate) fn pod_spaces(mut pod: PodSandboxConfig, spaces: NamespaceOption) -> PodSandboxConfig {
    let security = pod.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options = Some(spaces);
    pod
}

pub(crate) fn spaces(network: NamespaceMode, pid: NamespaceMode) -> NamespaceOption {
    NamespaceOption { network: network.into(), pid: pid.into(), ..NamespaceOption::default() }
}

/// Ids of the host, as many as a pod has.
pub(crate) const FIRST: u32 = 100_000;
pub(crate) const LEN: u32 = 65_536;

/// A user namespace for the pod.
pub(crate) fn shifted(network: NamespaceMode, pid: NamespaceMode) -> NamespaceOption {
    let ranges = vec![IdMapping { host_id: FIRST, container_id: 0, length: LEN }];
    let (uids, gids) = (ranges.clone(), ranges);
    let user = UserNamespace { mode: NamespaceMode::Pod.into(), uids, gids };
    NamespaceOption { userns_options: Some(user), ..spaces(network, pid) }
}

/// With a user namespace, on the host's network.
pub(crate) fn shifted_pod(pod: PodSandboxConfig) -> PodSandboxConfig {
    pod_spaces(pod, shifted(NamespaceMode::Node, NamespaceMode::Container))
}

pub(crate) fn privileged_pod(mut pod: PodSandboxConfig) -> PodSandboxConfig {
    pod.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    pod
}

pub(crate) fn privileged(config: ContainerConfig) -> ContainerConfig {
    let security = LinuxContainerSecurityContext {
        privileged: true,
        ..LinuxContainerSecurityContext::default()
    };
    secured(config, security)
}
