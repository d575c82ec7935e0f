//! A daemon, as the commands talk to it: CRI for what CRI can, our own API for the rest.

use std::{error::Error, fmt, path::PathBuf};

use anyhow::Context;
use api_admin::v1::admin_client::AdminClient;
use api_cri::{
    MAX_MESSAGE_BYTES,
    client::connect,
    v1::{
        ContainerStatus, ContainerStatusRequest, ListContainersRequest, ListPodSandboxRequest,
        image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
    },
};
use clap::Args;
use tonic::{Code, Response, Status, transport::Channel};

use super::find::Objects;
use crate::config::{ConfigError, load};

/// Which daemon: found by the flags, the environment and the file that the daemon has its socket
/// from.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct DaemonArgs {
    /// The daemon's socket [default: as its configuration says, or STATE/longshore.sock]
    #[arg(long, env = "LONGSHORE_CRI_SOCKET", value_name = "PATH")]
    cri_socket: Option<PathBuf>,
    /// The daemon's configuration file [default: /etc/longshore/config.toml, if it exists]
    #[arg(long, env = "LONGSHORE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's state directory [default: /run/longshore]
    #[arg(long, env = "LONGSHORE_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
}

/// Clones share one connection.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) cri: RuntimeServiceClient<Channel>,
    pub(super) images: ImageServiceClient<Channel>,
    pub(super) admin: AdminClient<Channel>,
}

/// What a daemon answered instead of doing it.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Status);

/// Names the step: `client.cri().stop_container(…).await.told("stop web/app")?`.
pub(super) trait Told<T> {
    fn told(self, doing: impl fmt::Display) -> anyhow::Result<T>;
}

impl DaemonArgs {
    /// Where the daemon serves, as it would work it out itself.
    pub(super) fn socket(&self) -> Result<PathBuf, ConfigError> {
        // Who names the socket needs no configuration.
        if let Some(socket) = &self.cri_socket {
            return Ok(socket.clone());
        }
        let mut config = load(self.config.as_deref())?;
        if let Some(state) = &self.state {
            config.state.clone_from(state);
        }
        config.cri_socket()
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        let socket = &self.socket()?;
        let channel = connect(socket).await.map_err(|e| {
            let why = e.source().map_or_else(|| e.to_string(), |e| base::Chain(e).to_string());
            let hint = "start one with `longshore daemon`, or name another by --state, --config or \
                        --cri-socket";
            anyhow::anyhow!("no daemon at {}: {why}; {hint}", socket.display())
        })?;
        Ok(Client {
            cri: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            images: ImageServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            admin: AdminClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
        })
    }
}

impl Client {
    /// For one call beside others: a call takes its client for itself.
    pub(super) fn cri(&self) -> RuntimeServiceClient<Channel> {
        self.cri.clone()
    }

    pub(super) fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    pub(super) fn admin(&self) -> AdminClient<Channel> {
        self.admin.clone()
    }

    /// Everything there is, to find objects in by name.
    pub(super) async fn objects(&self) -> anyhow::Result<Objects> {
        let pods = self.cri().list_pod_sandbox(ListPodSandboxRequest::default()).await;
        let pods = pods.told("list pods")?.items;
        let containers = self.cri().list_containers(ListContainersRequest::default()).await;
        let containers = containers.told("list containers")?.containers;
        Ok(Objects { pods, containers })
    }

    pub(super) async fn status(&self, container: &str) -> Result<ContainerStatus, Status> {
        let request = ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
        let answer = self.cri().container_status(request).await?.into_inner();
        Ok(answer.status.unwrap_or_default())
    }
}

/// No answer came at all: the daemon may be restarting.
pub(super) fn is_silence(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unavailable
}

impl<T> Told<T> for Result<Response<T>, Status> {
    fn told(self, doing: impl fmt::Display) -> anyhow::Result<T> {
        self.map(Response::into_inner).map_err(Refusal).with_context(|| doing.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.source().is_some() {
            return f.write_str("the daemon went away: is it still running?");
        }
        match self.0.message() {
            "" => f.write_str(self.0.code().description()),
            message => f.write_str(message),
        }
    }
}

impl Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_found_as_the_daemon_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, named) = (dir.path().join("plain.toml"), dir.path().join("named.toml"));
        std::fs::write(&plain, "state = '/file'").unwrap();
        std::fs::write(&named, "state = '/file'\ncri.socket = '/own.sock'").unwrap();
        let check = |cri_socket: &str, config: &PathBuf, state: &str, want: &str| {
            let some = |text: &str| Some(PathBuf::from(text)).filter(|_| !text.is_empty());
            let args = DaemonArgs {
                cri_socket: some(cri_socket),
                config: Some(config.clone()),
                state: some(state),
            };
            assert_eq!(args.socket().unwrap(), PathBuf::from(want));
        };
        check("", &plain, "", "/file/longshore.sock");
        check("", &plain, "/flag", "/flag/longshore.sock");
        check("", &named, "/flag", "/own.sock");
        check("/given.sock", &named, "/flag", "/given.sock");
        check("/given.sock", &dir.path().join("absent"), "", "/given.sock");
        let absent = DaemonArgs { config: Some("/absent.toml".into()), ..DaemonArgs::default() };
        let error = absent.socket().unwrap_err().to_string();
        assert!(error.contains("read configuration /absent.toml"), "{error}");
    }

    #[test]
    fn errors_name_the_step_and_what_the_daemon_said() {
        let refused: Result<Response<()>, _> = Err(Status::not_found("no container \"x\""));
        let error = refused.told("stop x").unwrap_err();
        assert_eq!(format!("{error:#}"), "stop x: no container \"x\"");
        let gone = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert!(is_silence(&gone));
        assert!(Refusal(gone).to_string().contains("is it still running?"));
        assert!(!is_silence(&Status::not_found("x")));
    }
}
