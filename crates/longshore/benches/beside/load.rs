//! What is asked of both, in turns, so that neither has the better hour.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use api_cri::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, ListContainerStatsRequest, NamespaceMode, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use testkit::{Cri, Pod};
use tokio::time::Instant;

use crate::peer::{Peer, median};

const AT_ONCE: usize = 10;
const POLL: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Host,
    Cni,
}

#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) start: Duration,
    pub(crate) remove: Duration,
}

#[derive(Debug)]
pub(crate) struct Many {
    pub(crate) start: Duration,
    pub(crate) shim_kib: u64,
    pub(crate) daemon_kib: u64,
    pub(crate) stats: Duration,
    pub(crate) restart: Duration,
}

/// Medians of pods that are started and removed one after the other.
pub(crate) async fn lives(
    peers: &[Peer; 2],
    image: &str,
    network: Network,
    rounds: usize,
) -> Result<[Life; 2]> {
    let mut times = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for round in 0..rounds {
        for (peer, (starts, removes)) in peers.iter().zip(&mut times) {
            let cri = peer.cri().await?;
            let begun = Instant::now();
            let pod = start(peer, &cri, image, network, &format!("life-{round}")).await;
            let (pod, container) = pod.with_context(|| format!("a pod of {}", peer.name))?;
            starts.push(begun.elapsed());
            let begun = Instant::now();
            cri.stop(&container, 0).await?;
            cri.remove(&container).await?;
            remove_pod(&cri, &pod).await?;
            removes.push(begun.elapsed());
        }
    }
    Ok(times.map(|(start, remove)| Life { start: median(start), remove: median(remove) }))
}

pub(crate) async fn execs(peers: &[Peer; 2], image: &str, rounds: usize) -> Result<[Duration; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    let mut pods = Vec::new();
    for peer in peers {
        let cri = peer.cri().await?;
        let (pod, container) = start(peer, &cri, image, Network::Host, "exec").await?;
        pods.push((cri, pod, container));
    }
    for _ in 0..rounds {
        for ((cri, _, container), times) in pods.iter().zip(&mut times) {
            let begun = Instant::now();
            cri.exec(container, &["/bin/true"]).await?;
            times.push(begun.elapsed());
        }
    }
    for (cri, pod, _) in &pods {
        remove_pod(cri, pod).await?;
    }
    Ok(times.map(median))
}

/// From the start of a container that only writes until its last line is in the file.
pub(crate) async fn logs(peers: &[Peer; 2], image: &str, times: usize) -> Result<[Duration; 2]> {
    let script = format!("cat{}; echo END", " /lines".repeat(times));
    let mut took = Vec::new();
    for peer in peers {
        let cri = peer.cri().await?;
        let pod = cri.run_pod(&pod(peer, Network::Host, "log")).await?;
        let begun = Instant::now();
        cri.run(&pod, container(image, &["/bin/sh", "-c", &script])).await?;
        let path = peer.logs().join("log/main.log");
        while !ends_with_end(&path)? {
            tokio::time::sleep(POLL).await;
        }
        took.push(begun.elapsed());
        remove_pod(&cri, &pod).await?;
        fs::remove_file(path)?;
    }
    Ok([took[0], took[1]])
}

/// Many pods at once: their start, what they cost, and how the daemon comes back to them.
pub(crate) async fn many(peers: &mut [Peer; 2], image: &str, count: usize) -> Result<[Many; 2]> {
    let mut all = Vec::new();
    for peer in peers {
        all.push(many_of(peer, image, count).await.with_context(|| peer.name)?);
    }
    let mut all = all.into_iter();
    Ok([all.next().context("two")?, all.next().context("two")?])
}

async fn many_of(peer: &mut Peer, image: &str, count: usize) -> Result<Many> {
    let cri = peer.cri().await?;
    let begun = Instant::now();
    let names: Vec<_> = (0..count).map(|at| format!("many-{at}")).collect();
    let pods: Vec<(Pod, String)> = stream::iter(&names)
        .map(|name| start(peer, &cri, image, Network::Cni, name))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let started = begun.elapsed();
    let (shim_kib, daemon_kib) = (peer.shim_kib()?, peer.daemon_kib()?);
    let stats = stats(&cri).await?;
    let restart = peer.restart(count).await?;
    let cri = peer.cri().await?;
    stream::iter(&pods)
        .map(|(pod, _)| remove_pod(&cri, pod))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(Many { start: started, shim_kib, daemon_kib, stats, restart })
}

async fn stats(cri: &Cri) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..10 {
        let begun = Instant::now();
        cri.runtime().list_container_stats(ListContainerStatsRequest::default()).await?;
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

async fn start(
    peer: &Peer,
    cri: &Cri,
    image: &str,
    network: Network,
    name: &str,
) -> Result<(Pod, String)> {
    let pod = cri.run_pod(&pod(peer, network, name)).await?;
    let id = cri.run(&pod, container(image, &["/bin/sleep", "100000"])).await?;
    Ok((pod, id))
}

async fn remove_pod(cri: &Cri, pod: &Pod) -> Result<()> {
    cri.stop_pod(&pod.id).await?;
    Ok(cri.remove_pod(&pod.id).await?)
}

fn pod(peer: &Peer, network: Network, name: &str) -> PodSandboxConfig {
    let mode = match network {
        Network::Host => NamespaceMode::Node,
        Network::Cni => NamespaceMode::Pod,
    };
    let namespaces = NamespaceOption {
        network: mode.into(),
        pid: NamespaceMode::Container.into(),
        ..NamespaceOption::default()
    };
    let security = LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces),
        ..LinuxSandboxSecurityContext::default()
    };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "bench".to_owned(),
            attempt: 0,
        }),
        hostname: if network == Network::Cni { name.to_owned() } else { String::new() },
        log_directory: peer.logs().join(name).display().to_string(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("/lsb-{}", peer.name),
            security_context: Some(security),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

fn container(image: &str, command: &[&str]) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        log_path: "main.log".to_owned(),
        ..ContainerConfig::default()
    }
}

fn ends_with_end(path: &std::path::Path) -> Result<bool> {
    use std::os::unix::fs::FileExt;
    let Ok(file) = fs::File::open(path) else { return Ok(false) };
    let mut tail = [0; 5];
    let Some(at) = file.metadata()?.len().checked_sub(5) else { return Ok(false) };
    file.read_exact_at(&mut tail, at)?;
    Ok(&tail == b" END\n")
}
