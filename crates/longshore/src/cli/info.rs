use std::{io::Write, path::Path, process::ExitCode, time::Duration};

use anyhow::Context;
use api_cri::{
    client::connect,
    v1::{
        RuntimeCondition, StatusRequest, StatusResponse, VersionRequest, VersionResponse,
        runtime_service_client::RuntimeServiceClient,
    },
};
use clap::Args;

use super::client::DaemonArgs;

/// Ask a running daemon for its version and whether it can take pods.
#[derive(Debug, Args)]
pub(super) struct Info {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Seconds to wait for the daemon.
    #[arg(long, default_value_t = 10)]
    timeout: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Info {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let limit = Duration::from_secs(self.timeout);
        let socket = self.daemon.socket()?;
        let asked = async {
            let answered = tokio::time::timeout(limit, ask(&socket)).await;
            answered.with_context(|| format!("{} did not answer in {limit:?}", socket.display()))?
        };
        let (version, status) = super::block_on(asked)?;
        let conditions = status.status.unwrap_or_default().conditions;
        if self.json {
            print_json(out, &version, &conditions)?;
        } else {
            print_text(out, &version, &conditions)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn ask(socket: &Path) -> anyhow::Result<(VersionResponse, StatusResponse)> {
    let mut client = RuntimeServiceClient::new(
        connect(socket)
            .await
            .with_context(|| format!("connect to {}: is the daemon running?", socket.display()))?,
    );
    let version = client.version(VersionRequest::default()).await?.into_inner();
    let status = client.status(StatusRequest::default()).await?.into_inner();
    Ok((version, status))
}

fn print_text(
    out: &mut impl Write,
    version: &VersionResponse,
    conditions: &[RuntimeCondition],
) -> std::io::Result<()> {
    let VersionResponse { runtime_name, runtime_version, runtime_api_version, .. } = version;
    writeln!(out, "{runtime_name} {runtime_version}, CRI {runtime_api_version}")?;
    for RuntimeCondition { r#type: name, status, reason, message } in conditions {
        if *status {
            writeln!(out, "{name:<13} yes")?;
        } else {
            writeln!(out, "{name:<13} no   {reason}: {message}")?;
        }
    }
    Ok(())
}

fn print_json(
    out: &mut impl Write,
    version: &VersionResponse,
    conditions: &[RuntimeCondition],
) -> anyhow::Result<()> {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|c| {
            serde_json::json!({
                "type": c.r#type, "status": c.status, "reason": c.reason, "message": c.message,
            })
        })
        .collect();
    let info = serde_json::json!({
        "name": version.runtime_name,
        "version": version.runtime_version,
        "apiVersion": version.runtime_api_version,
        "conditions": conditions,
    });
    serde_json::to_writer_pretty(&mut *out, &info)?;
    writeln!(out)?;
    Ok(())
}
