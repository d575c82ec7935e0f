//! What `longshore run` asks of CRI. Pure but for a random name.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::bail;
use api_cri::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, Int64Value, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, PortMapping,
};
use base::Id;

use super::{Network, Run, limits, ports};

/// On pods that `longshore run` made.
pub(in crate::cli) const LABEL: &str = "longshore.run";

const NAMESPACE: &str = "longshore";
/// Of a random name's end.
const RANDOM_DIGITS: usize = 6;

#[derive(Debug)]
pub(super) struct Plan {
    /// Of the pod.
    pub(super) name: String,
    /// Of the container: the image's.
    container: String,
    log_directory: PathBuf,
    run: Run,
    env: Vec<KeyValue>,
    annotations: BTreeMap<String, String>,
    network: NamespaceMode,
    ports: Vec<PortMapping>,
    mounts: Vec<Mount>,
    resources: LinuxContainerResources,
}

impl Plan {
    /// `root` is where the daemon keeps what survives a reboot; relative volumes are meant from `cwd`.
    pub(super) fn new(run: &Run, root: &Path, cwd: &Path) -> anyhow::Result<Self> {
        let container = short_name(&run.image);
        let name = match &run.name {
            Some(name) => checked(name)?,
            None => format!("{container}-{}", &Id::random().as_str()[..RANDOM_DIGITS]),
        };
        let log_directory = root.join("logs").join(&name);
        let env = run.env.iter().map(|text| variable(text)).collect::<anyhow::Result<_>>()?;
        let annotations =
            run.annotation.iter().map(|text| annotation(text)).collect::<anyhow::Result<_>>()?;
        let ports: Vec<_> =
            run.publish.iter().map(|text| ports::parse(text)).collect::<anyhow::Result<_>>()?;
        let network = match (run.network, ports.is_empty()) {
            (Some(Network::Host), false) => {
                bail!("--publish: a pod on the host's network has its ports there already")
            }
            (Some(Network::Host) | None, _) if ports.is_empty() => NamespaceMode::Node,
            _ => NamespaceMode::Pod,
        };
        let mounts = run.volume.iter().map(|text| limits::volume(text, cwd));
        let mounts = mounts.collect::<anyhow::Result<_>>()?;
        let resources = limits::resources(run.memory.as_deref(), run.cpus.as_deref())?;
        Ok(Self {
            name,
            container,
            log_directory,
            run: run.clone(),
            env,
            annotations,
            network,
            ports,
            mounts,
            resources,
        })
    }

    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.name, self.container)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.log_directory.join(self.log_file())
    }

    fn log_file(&self) -> String {
        format!("{}.log", self.container)
    }

    pub(super) fn pod(&self) -> PodSandboxConfig {
        let own_network = self.network == NamespaceMode::Pod;
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: self.name.clone(),
                // One pod of a name is enough: a second one is refused.
                uid: self.name.clone(),
                namespace: NAMESPACE.to_owned(),
                attempt: 0,
            }),
            hostname: if own_network { self.name.clone() } else { String::new() },
            port_mappings: self.ports.clone(),
            log_directory: self.log_directory.to_string_lossy().into_owned(),
            labels: BTreeMap::from([(LABEL.to_owned(), "true".to_owned())]),
            annotations: self.annotations.clone(),
            linux: Some(LinuxPodSandboxConfig {
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(self.namespaces()),
                    privileged: self.run.privileged,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(super) fn container(&self) -> ContainerConfig {
        let Run { image, command, workdir, interactive, tty, detach, user, .. } = &self.run;
        let mut security = LinuxContainerSecurityContext {
            namespace_options: Some(self.namespaces()),
            privileged: self.run.privileged,
            readonly_rootfs: self.run.read_only,
            ..Default::default()
        };
        match user.as_deref().map(|user| (user, user.parse())) {
            Some((_, Ok(uid))) => security.run_as_user = Some(Int64Value { value: uid }),
            Some((name, Err(_))) => security.run_as_username = name.to_owned(),
            None => {}
        }
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: self.container.clone(), attempt: 0 }),
            image: Some(ImageSpec { image: image.clone(), ..Default::default() }),
            args: command.clone(),
            working_dir: workdir.clone().unwrap_or_default(),
            envs: self.env.clone(),
            log_path: self.log_file(),
            stdin: *interactive,
            // Ours is the only input there will be, unless somebody is to attach later.
            stdin_once: *interactive && !detach,
            tty: *tty,
            mounts: self.mounts.clone(),
            linux: Some(LinuxContainerConfig {
                security_context: Some(security),
                resources: Some(self.resources.clone()),
            }),
            ..Default::default()
        }
    }

    /// Processes are its own.
    fn namespaces(&self) -> NamespaceOption {
        NamespaceOption {
            network: self.network.into(),
            pid: NamespaceMode::Container.into(),
            ipc: NamespaceMode::Pod.into(),
            ..Default::default()
        }
    }
}

/// `registry:5000/library/Busy_box:1.36@sha256:…` is a busy-box.
fn short_name(image: &str) -> String {
    let image = image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let bare = last.split(':').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = bare.chars().map(plain).collect();
    match name.trim_matches('-') {
        "" => "container".to_owned(),
        name => name.to_owned(),
    }
}

/// It becomes part of paths, and is typed after others with a slash.
fn checked(name: &str) -> anyhow::Result<String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !starts_well || !name.chars().all(good) || name.len() > 63 {
        bail!("--name {name:?}: use at most 63 of a-z, 0-9, - and ., a letter or digit first");
    }
    Ok(name.to_owned())
}

fn variable(text: &str) -> anyhow::Result<KeyValue> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            Ok(KeyValue { key: key.to_owned(), value: value.to_owned().into() })
        }
        _ => bail!("--env {text:?} is not KEY=VALUE"),
    }
}

fn annotation(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => bail!("--annotation {text:?} is not KEY=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(words: &[&str]) -> Run {
        let words = ["longshore", "run"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    fn plan(words: &[&str]) -> anyhow::Result<Plan> {
        Plan::new(&parse(words), Path::new("/root"), Path::new("/usr"))
    }

    #[test]
    fn flags_after_the_image_are_the_commands() {
        let run = parse(&["--rm", "-it", "img", "sh", "-c", "ls --rm -d"]);
        assert!(run.rm && run.interactive && run.tty && !run.detach);
        assert_eq!(
            (run.image.as_str(), run.command),
            ("img", vec!["sh".to_owned(), "-c".to_owned(), "ls --rm -d".to_owned()])
        );
    }

    #[test]
    fn the_pod_is_on_the_hosts_network_and_the_log_under_the_root() {
        let plan = plan(&["--name", "web", "reg:5000/x/Nginx:1@sha256:00"]).unwrap();
        assert_eq!(plan.full_name(), "web/nginx");
        assert_eq!(plan.log(), Path::new("/root/logs/web/nginx.log"));
        let pod = plan.pod();
        assert_eq!(pod.log_directory, "/root/logs/web");
        let options = pod.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!(options.network(), NamespaceMode::Node);
        assert_eq!(options.pid(), NamespaceMode::Container);
    }

    #[test]
    fn a_published_port_means_a_network_of_its_own() {
        let network = |words: &[&str]| plan(words).unwrap().namespaces().network();
        assert_eq!(network(&["--network", "pod", "x"]), NamespaceMode::Pod);
        assert_eq!(network(&["--network", "host", "x"]), NamespaceMode::Node);
        assert_eq!(network(&["-p", "80:80", "x"]), NamespaceMode::Pod);
        let words = ["-p", "80:8080", "--name", "web", "--annotation", "a.b/c=d=e", "x"];
        let pod = plan(&words).unwrap().pod();
        assert_eq!(pod.annotations["a.b/c"], "d=e");
        assert_eq!((pod.hostname.as_str(), pod.port_mappings[0].container_port), ("web", 8080));
        let error = plan(&["--network", "host", "-p", "80:80", "x"]).unwrap_err().to_string();
        assert!(error.contains("has its ports there already"), "{error}");
    }

    #[test]
    fn what_was_asked_for_reaches_the_container() {
        let words = ["-i", "-e", "A=1=2", "-w", "/tmp", "-u", "7", "busybox", "cat", "-n"];
        let plan = plan(&words).unwrap();
        assert!(plan.name.starts_with("busybox-") && plan.name.len() == 14, "{}", plan.name);
        let config = plan.container();
        assert_eq!(config.args, ["cat", "-n"]);
        assert!(config.command.is_empty(), "the image's entry point stays");
        assert_eq!((config.envs[0].key.as_str(), &config.envs[0].value[..]), ("A", &b"1=2"[..]));
        assert_eq!(config.working_dir, "/tmp");
        assert!(config.stdin && config.stdin_once && !config.tty);
        let security = config.linux.unwrap().security_context.unwrap();
        assert_eq!(security.run_as_user, Some(Int64Value { value: 7 }));
        let named = super::tests::plan(&["-u", "ann", "-d", "-i", "b"]).unwrap().container();
        assert!(named.stdin && !named.stdin_once, "somebody may attach later");
        assert_eq!(named.linux.unwrap().security_context.unwrap().run_as_username, "ann");
    }

    #[test]
    fn volumes_limits_and_rights_reach_the_container() {
        let words = ["-v", "bin:/in:ro", "--memory", "64m", "--cpus", "2", "--read-only", "b"];
        let config = plan(&words).unwrap().container();
        assert_eq!((&*config.mounts[0].host_path, config.mounts[0].readonly), ("/usr/bin", true));
        let linux = config.linux.unwrap();
        let resources = linux.resources.unwrap();
        assert_eq!((resources.memory_limit_in_bytes, resources.cpu_quota), (64 << 20, 200_000));
        let security = linux.security_context.unwrap();
        assert!(security.readonly_rootfs && !security.privileged);
        let plan = plan(&["--privileged", "b"]).unwrap();
        let of_pod = plan.pod().linux.unwrap().security_context.unwrap().privileged;
        assert!(of_pod && plan.container().linux.unwrap().security_context.unwrap().privileged);
    }

    #[test]
    fn names_of_images() {
        for (image, want) in [
            ("busybox", "busybox"),
            ("docker.io/library/busybox:1.36", "busybox"),
            ("localhost:5000/My_App", "my-app"),
            ("sha256:00ff", "sha256"),
            ("_", "container"),
        ] {
            assert_eq!(short_name(image), want, "{image}");
        }
    }

    #[test]
    fn bad_names_and_variables_are_refused_with_the_way_out() {
        for name in ["", "a/b", "..", "-a", "Web", &"x".repeat(64)] {
            let error = plan(&[&format!("--name={name}"), "b"]).unwrap_err().to_string();
            assert!(error.contains("use at most 63"), "{error}");
        }
        let error = plan(&["-e", "A", "b"]).unwrap_err().to_string();
        assert_eq!(error, "--env \"A\" is not KEY=VALUE");
        let error = plan(&["--annotation", "=1", "b"]).unwrap_err().to_string();
        assert_eq!(error, "--annotation \"=1\" is not KEY=VALUE");
    }
}
