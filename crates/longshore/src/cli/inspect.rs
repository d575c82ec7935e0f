use std::{collections::BTreeMap, io::Write, process::ExitCode};

use api_cri::v1::{
    ContainerStatus, ContainerStatusRequest, PodSandboxStatus, PodSandboxStatusRequest,
};
use base::time;
use clap::Args;
use serde_json::{Value, json};

use super::{
    client::{DaemonArgs, Told},
    find::{Found, container_state, pod_metadata, pod_state},
};

/// Show all there is to know of pods and containers, as JSON.
///
///     longshore inspect web/nginx | jq '.[0].info.runtimeSpec.mounts'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Inspect {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// `pod/container`, a pod, or an id or its beginning.
    #[arg(required = true)]
    names: Vec<String>,
}

impl Inspect {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let all: Vec<Value> = super::block_on(async {
            let client = self.daemon.connect().await?;
            let objects = client.objects().await?;
            let mut all = Vec::new();
            for name in &self.names {
                all.push(match objects.find(name)? {
                    Found::Pod(pod) => {
                        let pod_sandbox_id = pod.id.clone();
                        let request = PodSandboxStatusRequest { pod_sandbox_id, verbose: true };
                        let answer = client.cri().pod_sandbox_status(request).await;
                        let doing = format_args!("inspect pod {}", pod_metadata(pod).name);
                        let answer = answer.told(doing)?;
                        let containers = &answer.containers_statuses;
                        of_pod(&answer.status.unwrap_or_default(), containers, &answer.info)
                    }
                    Found::Container(container) => {
                        let container_id = container.id.clone();
                        let request = ContainerStatusRequest { container_id, verbose: true };
                        let answer = client.cri().container_status(request).await;
                        let name = objects.container_name(container);
                        let answer = answer.told(format_args!("inspect {name}"))?;
                        of_container(&answer.status.unwrap_or_default(), &answer.info)
                    }
                });
            }
            Ok(all)
        })?;
        writeln!(out, "{:#}", Value::Array(all))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn of_pod(
    status: &PodSandboxStatus,
    containers: &[ContainerStatus],
    info: &BTreeMap<String, String>,
) -> Value {
    let meta = status.metadata.clone().unwrap_or_default();
    let network = status.network.clone().unwrap_or_default();
    let more = network.additional_ips.iter().map(|ip| &ip.ip);
    let ips: Vec<_> =
        std::iter::once(&network.ip).chain(more).filter(|ip| !ip.is_empty()).collect();
    let containers: Vec<_> =
        containers.iter().map(|status| of_container(status, &BTreeMap::new())).collect();
    json!({
        "kind": "pod",
        "id": status.id,
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
        "attempt": meta.attempt,
        "state": pod_state(status.state()),
        "createdAt": at(status.created_at),
        "handler": status.runtime_handler,
        "ips": ips,
        "labels": status.labels,
        "annotations": status.annotations,
        "containers": containers,
        "info": details(info),
    })
}

fn of_container(status: &ContainerStatus, info: &BTreeMap<String, String>) -> Value {
    let meta = status.metadata.clone().unwrap_or_default();
    let has_ended = status.finished_at != 0;
    json!({
        "kind": "container",
        "id": status.id,
        "name": meta.name,
        "attempt": meta.attempt,
        "state": container_state(status.state()),
        "createdAt": at(status.created_at),
        "startedAt": at(status.started_at),
        "finishedAt": at(status.finished_at),
        "exitCode": has_ended.then_some(status.exit_code),
        "reason": status.reason,
        "message": status.message,
        "image": status.image.as_ref().map(|spec| &spec.image),
        "imageId": status.image_id,
        "imageRef": status.image_ref,
        "logPath": status.log_path,
        "labels": status.labels,
        "annotations": status.annotations,
        "info": details(info),
    })
}

/// `null` for what has not happened yet.
fn at(nanos: i64) -> Option<String> {
    time::from_wire(nanos).map(|at| at.to_string())
}

/// What the daemon says for people who debug: JSON, under a key that crictl reads.
fn details(info: &BTreeMap<String, String>) -> Value {
    let text = info.get("info").map(String::as_str).unwrap_or("null");
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_have_not_come_are_null() {
        let mut status = ContainerStatus { id: "c".into(), created_at: 1, ..Default::default() };
        let info = BTreeMap::from([("info".to_owned(), r#"{"pid":7}"#.to_owned())]);
        let shown = of_container(&status, &info);
        assert_eq!(shown["createdAt"], "1970-01-01T00:00:00.000000001Z");
        assert_eq!(shown["startedAt"], Value::Null);
        assert_eq!(shown["exitCode"], Value::Null);
        assert_eq!(shown["info"]["pid"], 7);
        status.finished_at = 2;
        assert_eq!(of_container(&status, &BTreeMap::new())["exitCode"], 0);
    }

    #[test]
    fn a_pod_shows_its_containers() {
        let pod = PodSandboxStatus { id: "p".into(), ..Default::default() };
        let container = ContainerStatus { id: "c".into(), ..Default::default() };
        let shown = of_pod(&pod, &[container], &BTreeMap::new());
        assert_eq!(shown["containers"][0]["id"], "c");
        assert_eq!(shown["ips"], json!([]));
    }
}
