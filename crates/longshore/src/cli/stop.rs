use std::{io::Write, process::ExitCode};

use api_cri::v1::{ContainerState, StopContainerRequest, StopPodSandboxRequest};
use clap::Args;

use super::{
    client::{Client, DaemonArgs, Told},
    find::{Found, Objects, pod_metadata},
};

/// Stop containers, politely first; a pod with all its containers.
///
///     longshore stop web/nginx
///     longshore stop --grace 0 web
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Stop {
    /// Seconds between the stop signal and SIGKILL.
    #[arg(short, long, default_value_t = 10, value_name = "SECONDS")]
    grace: u32,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// `pod/container`, a pod, or an id or its beginning.
    #[arg(required = true)]
    names: Vec<String>,
}

impl Stop {
    /// Tries every one; the exit code says whether all went well.
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.daemon.connect().await?;
            let objects = client.objects().await?;
            let mut code = ExitCode::SUCCESS;
            for name in &self.names {
                match stop(&client, &objects, name, self.grace).await {
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
}

async fn stop(client: &Client, objects: &Objects, name: &str, grace: u32) -> anyhow::Result<()> {
    let pod = match objects.find(name)? {
        Found::Container(container) => {
            let name = objects.container_name(container);
            return stop_container(client, &container.id, &name, grace).await;
        }
        Found::Pod(pod) => pod,
    };
    // The pod itself kills what runs: whoever wants to say goodbye does it before.
    let running = objects.of_pod(pod).filter(|c| c.state() == ContainerState::ContainerRunning);
    let mut goodbyes = tokio::task::JoinSet::new();
    for container in running {
        let (client, id) = (client.clone(), container.id.clone());
        let name = objects.container_name(container);
        goodbyes.spawn(async move { stop_container(&client, &id, &name, grace).await });
    }
    while let Some(stopped) = goodbyes.join_next().await {
        stopped??;
    }
    let request = StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
    let doing = format_args!("stop pod {}", pod_metadata(pod).name);
    client.cri().stop_pod_sandbox(request).await.told(doing).map(drop)
}

pub(super) async fn stop_container(
    client: &Client,
    id: &str,
    name: &str,
    grace: u32,
) -> anyhow::Result<()> {
    let request = StopContainerRequest { container_id: id.to_owned(), timeout: grace.into() };
    client.cri().stop_container(request).await.told(format_args!("stop {name}")).map(drop)
}
