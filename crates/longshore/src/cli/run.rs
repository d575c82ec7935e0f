//! `longshore run`: a pod with one container, from its image to its exit code.
//!
//! ```text
//! image (pulled if absent) ──> pod ──> container ──> started ──> ended ──> removed or kept
//!                               └── whatever fails before the start removes the pod ──┘
//! ```

mod foreground;
mod limits;
mod plan;
mod ports;

use std::{io::Write, process::ExitCode};

use anyhow::{Context, bail};
use api_admin::v1::GetPathsRequest;
use api_cri::v1::{
    CreateContainerRequest, ImageSpec, ImageStatusRequest, PodSandboxConfig, PullImageRequest,
    RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
};
use clap::Args;
use tonic::Code;

use foreground::Foreground;
pub(super) use plan::LABEL;
use plan::Plan;

use super::{
    client::{Client, DaemonArgs, Refusal, Told},
    exit_code, rm,
    terminal::RawTerminal,
};

/// Run an image: a pod with one container, on the host's network or on one of its own.
///
/// Ends with the exit code of the container, or with 125 if there is none to tell. Ctrl-C
/// stops the container (a second one kills it); with -it it is a key like any other.
///
///     longshore run --rm -it docker.io/library/busybox sh
///     longshore run -d --name web -p 8080:80 docker.io/library/nginx
///     longshore run --rm -v ./data:/data:ro --memory 64m --cpus 0.5 docker.io/library/busybox ls /data
///     echo hello | longshore run --rm -i docker.io/library/busybox cat
#[derive(Clone, Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Run {
    /// Remove the pod and its log at the end.
    #[arg(long, conflicts_with = "detach")]
    rm: bool,
    /// Pass standard input on.
    #[arg(short, long)]
    interactive: bool,
    /// Give the container a terminal.
    #[arg(short, long)]
    tty: bool,
    /// Do not wait: print the ids of the pod and of the container, and end.
    #[arg(short, long)]
    detach: bool,
    /// Name of the pod [default: the image's, with a random end]
    #[arg(long)]
    name: Option<String>,
    /// Set a variable; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Annotate the pod, for plugins and handlers; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    annotation: Vec<String>,
    /// Run as this user.
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Run in this directory of the container.
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Mount a path of the host; may be repeated.
    #[arg(short, long, value_name = "HOST:CONTAINER[:ro]")]
    volume: Vec<String>,
    /// Let it have no more memory than this, such as 512m or 2GiB.
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<String>,
    /// Let it use no more CPUs than this, such as 0.5.
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<String>,
    /// Make the root file system of the container read-only.
    #[arg(long)]
    read_only: bool,
    /// Give it all capabilities and devices of the host, and no confinement.
    #[arg(long)]
    privileged: bool,
    /// The host's network, or one of the pod's own, as CNI is configured [default: host]
    #[arg(long, value_enum)]
    network: Option<Network>,
    /// Publish a port; may be repeated. Needs a network of the pod's own, which it implies.
    #[arg(short, long, value_name = "[IP:]HOST:POD[/PROTOCOL]")]
    publish: Vec<String>,
    /// The OCI runtime to run it with, by the name it is configured under.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    handler: String,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// The image; pulled if it is not there.
    image: String,
    /// What to run instead of the image's command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Network {
    Host,
    Pod,
}

/// What was made.
#[derive(Clone, Debug)]
struct Made {
    pod: String,
    container: String,
}

impl Run {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(self.whole(out))
    }

    async fn whole(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        // Before anything is made: it is refused where there is no terminal.
        let raw = (self.tty && self.interactive && !self.detach).then(RawTerminal::enter);
        let raw = raw.transpose()?;
        let client = self.daemon.connect().await?;
        let paths = client.admin().get_paths(GetPathsRequest {}).await;
        let paths = paths.told("ask the daemon for its paths")?;
        let cwd = std::env::current_dir().context("find the current directory")?;
        let plan = Plan::new(&self, paths.root.as_ref(), &cwd)?;
        ensure_image(&client, &self.image).await?;
        let made = Box::pin(make(&client, &plan, &self.handler)).await?;
        if self.detach {
            undone(&client, &plan, &made, start(&client, &plan, &made)).await?;
            writeln!(out, "{} {}", made.pod, made.container)?;
            return Ok(ExitCode::SUCCESS);
        }
        let shown = Foreground { client: &client, run: &self, plan: &plan, made: &made };
        let ended = shown.run(out).await;
        drop(raw);
        self.put_away(&client, &plan, &made).await?;
        Ok(exit_code(ended?))
    }

    /// A pod whose container has ended holds nothing but what `logs` and `inspect` show.
    async fn put_away(&self, client: &Client, plan: &Plan, made: &Made) -> anyhow::Result<()> {
        if self.rm {
            return remove(client, plan, made).await;
        }
        let request = StopPodSandboxRequest { pod_sandbox_id: made.pod.clone() };
        let doing = format_args!("stop pod {}", plan.name);
        client.cri().stop_pod_sandbox(request).await.told(doing).map(drop)
    }
}

async fn ensure_image(client: &Client, image: &str) -> anyhow::Result<()> {
    let spec = ImageSpec { image: image.to_owned(), ..Default::default() };
    let request = ImageStatusRequest { image: Some(spec.clone()), verbose: false };
    match client.images().image_status(request).await {
        Ok(answer) if answer.get_ref().image.is_some() => return Ok(()),
        Ok(_) => {}
        // A daemon without images says better at the creation what it cannot do.
        Err(status) if status.code() == Code::Unimplemented => return Ok(()),
        Err(status) => return Err(Refusal(status).into()),
    }
    eprintln!("pulling {image}");
    let request = PullImageRequest { image: Some(spec), ..Default::default() };
    client.images().pull_image(request).await.told(format_args!("pull {image}")).map(drop)
}

/// Pod and container, or neither.
async fn make(client: &Client, plan: &Plan, handler: &str) -> anyhow::Result<Made> {
    let config: PodSandboxConfig = plan.pod();
    let request =
        RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
    let pod = match client.cri().run_pod_sandbox(request).await {
        Err(status) if status.code() == Code::AlreadyExists => {
            let name = &plan.name;
            bail!("there is a pod {name} already: choose another --name, or `longshore rm {name}`")
        }
        answer => answer.told(format_args!("run pod {}", plan.name))?.pod_sandbox_id,
    };
    let mut made = Made { pod, container: String::new() };
    let request = CreateContainerRequest {
        pod_sandbox_id: made.pod.clone(),
        config: Some(plan.container()),
        sandbox_config: Some(config),
    };
    let create = async {
        let created = client.cri().create_container(request).await;
        Ok(created.told(format_args!("create {}", plan.full_name()))?.container_id)
    };
    made.container = undone(client, plan, &made, Box::pin(create)).await?;
    Ok(made)
}

async fn start(client: &Client, plan: &Plan, made: &Made) -> anyhow::Result<()> {
    let request = StartContainerRequest { container_id: made.container.clone() };
    let started = client.cri().start_container(request).await;
    started.told(format_args!("start {}", plan.full_name())).map(drop)
}

/// If `work` fails, nothing of the pod is left.
async fn undone<T>(
    client: &Client,
    plan: &Plan,
    made: &Made,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    match work.await {
        Ok(done) => Ok(done),
        Err(error) => {
            if let Err(also) = remove(client, plan, made).await {
                return Err(error.context(format!("and then: {also:#}; before that")));
            }
            Err(error)
        }
    }
}

async fn remove(client: &Client, plan: &Plan, made: &Made) -> anyhow::Result<()> {
    rm::remove_pod(client, &made.pod, &plan.name).await?;
    rm::remove_logs(&[plan.log()]);
    Ok(())
}
