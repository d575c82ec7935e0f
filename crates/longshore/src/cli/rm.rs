use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::bail;
use api_cri::v1::{
    Container, ContainerState, PodSandbox, RemoveContainerRequest, RemovePodSandboxRequest,
};
use clap::Args;

use super::{
    client::{Client, DaemonArgs, Told},
    find::{Found, Objects, pod_metadata},
    run::LABEL,
};

/// Remove containers, and pods with all their containers.
///
/// What runs is refused, unless by force: then it is killed.
///
///     longshore rm web/nginx
///     longshore rm -f web
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Rm {
    /// Kill what runs.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// `pod/container`, a pod, or an id or its beginning.
    #[arg(required = true)]
    names: Vec<String>,
}

impl Rm {
    /// Tries every one; the exit code says whether all went well.
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.daemon.connect().await?;
            let objects = client.objects().await?;
            let mut code = ExitCode::SUCCESS;
            for name in &self.names {
                match self.remove(&client, &objects, name).await {
                    Ok(()) => writeln!(out, "{name}")?,
                    Err(error) => {
                        eprintln!("longshore: {error:#}");
                        code = ExitCode::FAILURE;
                    }
                }
            }
            Ok(code)
        })
    }

    async fn remove(&self, client: &Client, objects: &Objects, name: &str) -> anyhow::Result<()> {
        match objects.find(name)? {
            Found::Container(container) => {
                self.may_go(objects, std::iter::once(container))?;
                remove_container(client, objects, container).await
            }
            Found::Pod(pod) => {
                self.may_go(objects, objects.of_pod(pod))?;
                let logs = logs_of(client, objects, pod).await?;
                remove_pod(client, &pod.id, &pod_metadata(pod).name).await?;
                remove_logs(&logs);
                Ok(())
            }
        }
    }

    fn may_go<'a>(
        &self,
        objects: &Objects,
        mut containers: impl Iterator<Item = &'a Container>,
    ) -> anyhow::Result<()> {
        let running = containers.find(|c| c.state() == ContainerState::ContainerRunning);
        match running.filter(|_| !self.force) {
            Some(container) => {
                let name = objects.container_name(container);
                bail!("{name} is running: stop it first (`longshore stop {name}`), or use --force")
            }
            None => Ok(()),
        }
    }
}

async fn remove_container(
    client: &Client,
    objects: &Objects,
    container: &Container,
) -> anyhow::Result<()> {
    let request = RemoveContainerRequest { container_id: container.id.clone() };
    let doing = format!("remove {}", objects.container_name(container));
    client.cri().remove_container(request).await.told(doing).map(drop)
}

pub(super) async fn remove_pod(client: &Client, id: &str, name: &str) -> anyhow::Result<()> {
    let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
    client.cri().remove_pod_sandbox(request).await.told(format_args!("remove pod {name}")).map(drop)
}

/// The logs of a pod that `longshore run` made. Those of others are their makers' to remove.
async fn logs_of(
    client: &Client,
    objects: &Objects,
    pod: &PodSandbox,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    if !pod.labels.contains_key(LABEL) {
        return Ok(logs);
    }
    for container in objects.of_pod(pod) {
        if let Ok(status) = client.status(&container.id).await
            && !status.log_path.is_empty()
        {
            logs.push(status.log_path.into());
        }
    }
    Ok(logs)
}

/// With the directory, if that was all it held.
pub(super) fn remove_logs(logs: &[PathBuf]) {
    for log in logs {
        // Nothing depends on it: at worst a file of the past stays.
        let _ = std::fs::remove_file(log);
        let _ = std::fs::remove_dir(log.parent().unwrap_or(Path::new("/")));
    }
}
