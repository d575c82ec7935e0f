//! A pod as Kubernetes writes it, in the words of the engine, as a kubelet would ask for it.
//!
//! What of it does not reach plugins is not looked at; what might and is not understood is
//! named, never dropped.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::Labels;
use engine::request::{ImageChoice, NewContainer, PodName, PodNamespace, PodPid, PodRequest};
use oci::{
    CapabilityRequest, ContainerRequest, GroupRef, MountRequest, MountSource, Profile, Propagation,
    Resources, UserRef,
};
use serde::Deserialize;
use serde_json::Value;

use super::quantity;

/// What a file describes.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) pod: PodRequest,
    pub(super) containers: Vec<NewContainer>,
    /// Parts that a plugin may care about and will not see.
    pub(super) unseen: Vec<String>,
}

/// Stands for what the image would run.
const NO_COMMAND: &str = "/bin/sh";

/// Keys that only the control plane and the kubelet care about.
const NOT_OURS: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "apiVersion",
    "automountServiceAccountToken",
    "creationTimestamp",
    "dnsPolicy",
    "enableServiceLinks",
    "generateName",
    "imagePullPolicy",
    "imagePullSecrets",
    "kind",
    "lifecycle",
    "livenessProbe",
    "managedFields",
    "nodeName",
    "nodeSelector",
    "ownerReferences",
    "ports",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessProbe",
    "resourceVersion",
    "restartPolicy",
    "schedulerName",
    "selfLink",
    "serviceAccount",
    "serviceAccountName",
    "startupProbe",
    "status",
    "terminationGracePeriodSeconds",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tolerations",
    "topologySpreadConstraints",
];

type Rest = BTreeMap<String, Value>;
type Map = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
struct PodFile {
    metadata: Metadata,
    spec: PodSpec,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    labels: Map,
    annotations: Map,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    volumes: Vec<Volume>,
    host_network: bool,
    #[serde(rename = "hostPID")]
    host_pid: bool,
    #[serde(rename = "hostIPC")]
    host_ipc: bool,
    share_process_namespace: bool,
    hostname: String,
    runtime_class_name: String,
    security_context: Security,
    overhead: quantity::List,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    image: String,
    command: Vec<String>,
    args: Vec<String>,
    working_dir: Option<String>,
    env: Vec<Variable>,
    volume_mounts: Vec<VolumeMount>,
    resources: Demand,
    security_context: Security,
    tty: bool,
    stdin: bool,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Clone, Debug, Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: String,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    mount_propagation: String,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    host_path: Option<HostPath>,
    /// Its kind and what there is to say of it.
    #[serde(flatten)]
    other: Rest,
}

#[derive(Debug, Deserialize)]
struct HostPath {
    path: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Demand {
    limits: quantity::List,
    requests: quantity::List,
    #[serde(flatten)]
    rest: Rest,
}

/// Of a pod, or of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Security {
    privileged: bool,
    run_as_user: Option<u32>,
    run_as_group: Option<u32>,
    read_only_root_filesystem: bool,
    allow_privilege_escalation: Option<bool>,
    capabilities: Capabilities,
    seccomp_profile: Option<SeccompProfile>,
    sysctls: Vec<Variable>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Capabilities {
    add: Vec<String>,
    drop: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SeccompProfile {
    r#type: String,
}

/// Reads YAML or JSON. Errors name the place in the file.
pub(super) fn parse(text: &str) -> Result<Described> {
    let value: Value = serde_saphyr::from_str(text).map_err(|e| anyhow!("{e}"))?;
    let file: PodFile = serde_json::from_value(value)?;
    ensure!(!file.metadata.name.is_empty(), "metadata.name is missing");
    ensure!(!file.spec.containers.is_empty(), "spec.containers is missing");
    let mut unseen = Unseen::default();
    unseen.of("", &file.rest);
    unseen.of("metadata.", &file.metadata.rest);
    unseen.of("spec.", &file.spec.rest);
    unseen.of("spec.securityContext.", &file.spec.security_context.rest);
    let all = file.spec.init_containers.iter().map(|c| ("initContainers", c));
    let all: Vec<_> = all.chain(file.spec.containers.iter().map(|c| ("containers", c))).collect();
    let mut containers = Vec::new();
    for (list, container) in all {
        let place = format!("spec.{list}[{:?}]", container.name);
        let made = container.request(&file, &place, &mut unseen);
        containers.push(made.with_context(|| place)?);
    }
    let pod = file.pod()?;
    Ok(Described { pod, containers, unseen: unseen.0 })
}

#[derive(Debug, Default)]
struct Unseen(Vec<String>);

impl Unseen {
    fn of(&mut self, place: &str, rest: &Rest) {
        let keys = rest.keys().filter(|key| !NOT_OURS.contains(&key.as_str()));
        self.0.extend(keys.map(|key| format!("{place}{key}")));
    }
}

impl PodFile {
    fn uid(&self) -> &str {
        match self.metadata.uid.as_str() {
            "" => &self.metadata.name,
            uid => uid,
        }
    }

    fn pod(&self) -> Result<PodRequest> {
        let (metadata, spec) = (&self.metadata, &self.spec);
        let namespace = match metadata.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let of = |host: bool| if host { PodNamespace::Node } else { PodNamespace::Pod };
        let hostname = match (spec.host_network, spec.hostname.as_str()) {
            (true, _) => "",
            (false, "") => &metadata.name,
            (false, hostname) => hostname,
        };
        let sysctls = spec.security_context.sysctls.iter();
        let annotations = metadata.annotations.clone().into_iter().collect();
        Ok(PodRequest {
            name: PodName {
                name: metadata.name.clone(),
                namespace: namespace.to_owned(),
                uid: self.uid().to_owned(),
                attempt: 0,
            },
            handler: spec.runtime_class_name.clone(),
            hostname: hostname.to_owned(),
            labels: metadata.labels.clone().into_iter().collect(),
            annotations,
            cgroup_parent: Some(self.cgroup_parent()),
            sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
            overhead: spec.overhead.limits()?,
            resources: self.total()?,
            network: of(spec.host_network),
            ipc: of(spec.host_ipc),
            pid: match (spec.host_pid, spec.share_process_namespace) {
                (true, _) => PodPid::Node,
                (false, true) => PodPid::Pod,
                (false, false) => PodPid::Container,
            },
            privileged: spec.containers.iter().any(|c| c.security_context.privileged),
            ..PodRequest::default()
        })
    }

    /// What all containers may have together.
    fn total(&self) -> Result<Resources> {
        let demands = self.spec.containers.iter().map(|container| &container.resources);
        let demands: Vec<_> = demands.map(|d| (&d.limits, &d.requests)).collect();
        quantity::total(&demands)
    }

    /// Where a kubelet puts a pod of its class of service.
    fn cgroup_parent(&self) -> String {
        let demands = self.spec.containers.iter().map(|container| &container.resources);
        let demands: Vec<_> = demands.map(|d| (&d.limits, &d.requests)).collect();
        let class = match quantity::class(&demands) {
            quantity::Class::Guaranteed => "",
            quantity::Class::Burstable => "burstable/",
            quantity::Class::BestEffort => "besteffort/",
        };
        format!("/kubepods/{class}pod{}", self.uid())
    }

    fn source(&self, name: &str) -> Result<MountSource> {
        let found = self.spec.volumes.iter().find(|volume| volume.name == name);
        let Some(volume) = found else { bail!("spec.volumes has no {name:?}") };
        if let Some(host) = &volume.host_path {
            return Ok(MountSource::Host(host.path.clone().into()));
        }
        let kind = volume.other.keys().next().map_or("emptyDir", String::as_str);
        let dir: String = kind.chars().flat_map(dashed).collect();
        let pods = "/var/lib/kubelet/pods";
        let path = format!("{pods}/{}/volumes/kubernetes.io~{dir}/{name}", self.uid());
        Ok(MountSource::Host(path.into()))
    }
}

/// `emptyDir` is kept in `empty-dir`.
fn dashed(c: char) -> Vec<char> {
    if c.is_ascii_uppercase() { vec!['-', c.to_ascii_lowercase()] } else { vec![c] }
}

impl Container {
    fn request(&self, file: &PodFile, place: &str, unseen: &mut Unseen) -> Result<NewContainer> {
        ensure!(!self.name.is_empty(), "its name is missing");
        unseen.of(&format!("{place}."), &self.rest);
        unseen.of(&format!("{place}.resources."), &self.resources.rest);
        unseen.of(&format!("{place}.securityContext."), &self.security_context.rest);
        for variable in &self.env {
            unseen.of(&format!("{place}.env[{:?}].", variable.name), &variable.rest);
        }
        let mut command = self.command.clone();
        if command.is_empty() && self.args.is_empty() {
            unseen.0.push(format!("{place}: what its image runs ({NO_COMMAND} stands for it)"));
            command.push(NO_COMMAND.to_owned());
        }
        let Demand { limits, requests, .. } = &self.resources;
        // The score that the CRI gives a container of which nothing is said. A kubelet makes it of
        // the memory of its node, which is not known here.
        let resources = Resources { oom_score_adj: Some(0), ..quantity::of(limits, requests)? };
        let mut request = ContainerRequest {
            name: self.name.clone(),
            command,
            args: self.args.clone(),
            env: self.env.iter().map(|v| (v.name.clone(), Some(v.value.clone()))).collect(),
            working_dir: self.working_dir.clone().map(Into::into),
            mounts: self.mounts(file, place, unseen)?,
            tty: self.tty,
            stdin: self.stdin,
            resources,
            annotations: Labels::default(),
            ..ContainerRequest::default()
        };
        self.secure(&file.spec.security_context, &mut request)?;
        let image = ImageChoice { reference: self.image.clone(), ..ImageChoice::default() };
        let labels = [
            ("io.kubernetes.container.name", self.name.as_str()),
            ("io.kubernetes.pod.name", &file.metadata.name),
            ("io.kubernetes.pod.uid", file.uid()),
        ];
        let labels = labels.into_iter().collect();
        Ok(NewContainer { image, labels, container: request, ..NewContainer::default() })
    }

    fn mounts(
        &self,
        file: &PodFile,
        place: &str,
        unseen: &mut Unseen,
    ) -> Result<Vec<MountRequest>> {
        let mount = |mount: &VolumeMount| {
            unseen.of(&format!("{place}.volumeMounts[{:?}].", mount.name), &mount.rest);
            Ok(MountRequest {
                source: file.source(&mount.name)?,
                container_path: mount.mount_path.clone().into(),
                readonly: mount.read_only,
                propagation: match mount.mount_propagation.as_str() {
                    "" | "None" => Propagation::Private,
                    "HostToContainer" => Propagation::HostToContainer,
                    "Bidirectional" => Propagation::Bidirectional,
                    other => bail!("volumeMounts: {other:?} is no mountPropagation"),
                },
                ..MountRequest::default()
            })
        };
        self.volume_mounts.iter().map(mount).collect()
    }

    /// What the container does not say, its pod does.
    fn secure(&self, pod: &Security, request: &mut ContainerRequest) -> Result<()> {
        let own = &self.security_context;
        let security = &mut request.security;
        security.privileged = own.privileged;
        security.readonly_rootfs = own.read_only_root_filesystem;
        security.no_new_privileges = own.allow_privilege_escalation == Some(false);
        security.user.user = own.run_as_user.or(pod.run_as_user).map(UserRef::Id);
        security.user.group = own.run_as_group.or(pod.run_as_group).map(GroupRef::Id);
        let Capabilities { add, drop } = own.capabilities.clone();
        security.capabilities = CapabilityRequest { add, drop, ..CapabilityRequest::default() };
        let profile = own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref());
        security.seccomp = match profile.map(|profile| profile.r#type.as_str()) {
            None => None,
            Some("RuntimeDefault") => Some(Profile::RuntimeDefault),
            Some("Unconfined") => Some(Profile::Unconfined),
            Some(other) => bail!("seccompProfile: {other:?} cannot be simulated"),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: { color: blue }
spec:
  restartPolicy: Never
  schedulingGates: []
  volumes:
  - name: data
    hostPath: { path: /srv }
  - name: scratch
    emptyDir: {}
  containers:
  - name: nginx
    image: nginx
    args: [nginx, -g, daemon off;]
    env: [{ name: A, value: "1" }]
    volumeMounts:
    - { name: data, mountPath: /data, readOnly: true }
    - { name: scratch, mountPath: /tmp }
    resources:
      requests: { cpu: 500m }
      limits: { memory: 64Mi, cpu: 1 }
"#;

    #[test]
    fn a_pod_is_what_a_kubelet_would_ask_for() {
        let Described { pod, containers, unseen } = parse(POD).unwrap();
        assert_eq!((pod.name.name.as_str(), pod.name.namespace.as_str()), ("web", "default"));
        assert_eq!(pod.annotations.get("color"), Some("blue"));
        assert_eq!(pod.cgroup_parent.as_deref(), Some("/kubepods/burstable/podweb"));
        let nginx = &containers[0].container;
        assert_eq!(nginx.args, ["nginx", "-g", "daemon off;"]);
        assert_eq!(nginx.env, [("A".to_owned(), Some("1".to_owned()))]);
        assert_eq!(nginx.mounts[0].source, MountSource::Host("/srv".into()));
        assert!(nginx.mounts[0].readonly);
        let scratch = "/var/lib/kubelet/pods/web/volumes/kubernetes.io~empty-dir/scratch";
        assert_eq!(nginx.mounts[1].source, MountSource::Host(scratch.into()));
        assert_eq!(nginx.resources.cpu_shares, Some(512));
        assert_eq!(nginx.resources.cpu_quota, Some(100_000));
        assert_eq!(nginx.resources.memory_limit, Some(64 << 20));
        assert_eq!(unseen, ["spec.schedulingGates"]);
    }

    #[test]
    fn a_file_that_is_no_pod_says_what_it_lacks() {
        #[track_caller]
        fn check(text: &str, want: &str) {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(want), "{error}");
        }
        check("metadata: {}\nspec: {}", "metadata.name is missing");
        check("metadata: { name: a }\nspec: {}", "spec.containers is missing");
        check("spec: {}", "metadata");
        let with = |container: &str| {
            format!("metadata: {{ name: a }}\nspec: {{ containers: [{container}] }}")
        };
        check(&with("{ args: [x] }"), "its name is missing");
        let mount = "{ name: c, volumeMounts: [{ name: v, mountPath: /v }] }";
        check(&with(mount), "spec.volumes has no \"v\"");
        check(&with("{ name: c, resources: { limits: { cpu: much } } }"), "much");
    }
}
