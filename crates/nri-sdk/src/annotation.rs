//! What annotations of a pod say about one of its containers.

use nri_wire::{
    api::{Container, PodSandbox},
    effective_annotation as lookup,
};

/// The value of the annotation `key` of a pod that counts for a container:
/// `key/container.NAME`, else `key/pod`, else `key`.
///
/// ```
/// # use nri_sdk::testing::{container, pod};
/// let mut pod = pod("web");
/// pod.annotations.insert("class.example.dev/pod".into(), "slow".into());
/// pod.annotations.insert("class.example.dev/container.nginx".into(), "fast".into());
/// let class = |name| {
///     let container = container(&pod, name);
///     nri_sdk::effective_annotation(&pod, "class.example.dev", &container).map(str::to_owned)
/// };
/// assert_eq!(class("nginx").as_deref(), Some("fast"));
/// assert_eq!(class("sidecar").as_deref(), Some("slow"));
/// ```
pub fn effective_annotation<'a>(
    pod: &'a PodSandbox,
    key: &str,
    container: &Container,
) -> Option<&'a str> {
    lookup(&pod.annotations, key, &container.name)
}
