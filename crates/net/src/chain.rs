//! A network's programs, called one after the other.
//!
//! ```text
//!   ADD    1 ──result──> 2 ──result──> 3       the last result is the network's
//!   DEL    3, 2, 1                             each is given the network's result
//! ```
//! DEL goes on when one of them fails, so that one broken program does not keep the others'
//! addresses; the whole is then tried again, which CNI allows for every program.

use std::{ffi::OsString, path::Path, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    conf::{NetworkList, PluginConf},
    error::{NetError, ProgramError},
    pod::runtime_config,
    program::{self, Call, Host, Verb, excerpt},
    record::{Attachment, PodNetRecord},
    result::CniResult,
};

type Raw = Map<String, Value>;

/// One run through a chain, within one time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain<'a> {
    pub(crate) host: &'a Host,
    pub(crate) limit: Duration,
    pub(crate) deadline: Instant,
    pub(crate) stop: &'a CancellationToken,
}

/// A pod and where its namespace is; `None` if it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) record: &'a PodNetRecord,
    pub(crate) netns: Option<&'a Path>,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(host: &'a Host, limit: Duration, stop: &'a CancellationToken) -> Self {
        Self { host, limit, deadline: Instant::now() + limit, stop }
    }

    /// `so_far` is what the programs that succeeded said, also after a failure.
    pub(crate) async fn add(
        &self,
        pod: Pod<'_>,
        at: &Attachment,
        so_far: &mut Option<Raw>,
    ) -> Result<(), NetError> {
        for plugin in &at.network.plugins {
            let stdin = pod_input(pod.record, at, plugin, so_far.as_ref());
            let stdout = self.call(Verb::Add, &at.network, plugin, pod.env(at), stdin).await?;
            let result = CniResult::parse(&stdout, at.network.version).map_err(|source| {
                let said = excerpt(&stdout[..stdout.len().min(256)]);
                failed(Verb::Add, &at.network, plugin)(ProgramError::Answer { said, source })
            })?;
            *so_far = Some(result.raw);
        }
        Ok(())
    }

    pub(crate) async fn del(&self, pod: Pod<'_>, at: &Attachment) -> Result<(), NetError> {
        let known = at.result.as_ref().filter(|_| at.network.version.has_check());
        let mut failures = Vec::new();
        for plugin in at.network.plugins.iter().rev() {
            let stdin = pod_input(pod.record, at, plugin, known);
            match self.call(Verb::Del, &at.network, plugin, pod.env(at), stdin).await {
                Ok(_) => {}
                Err(NetError::Program { source, .. }) if source.is_unknown_container() => {}
                Err(error) => failures.push(error),
            }
        }
        NetError::collect(failures).map_or(Ok(()), Err)
    }

    /// Networks that cannot be checked, or shall not be, are well.
    pub(crate) async fn check(&self, pod: Pod<'_>, at: &Attachment) -> Result<(), NetError> {
        if at.network.disable_check || !at.network.version.has_check() {
            return Ok(());
        }
        for plugin in &at.network.plugins {
            let stdin = pod_input(pod.record, at, plugin, at.result.as_ref());
            self.call(Verb::Check, &at.network, plugin, pod.env(at), stdin).await?;
        }
        Ok(())
    }

    /// Everything but `valid` (pod id and interface) may go.
    pub(crate) async fn gc(
        &self,
        network: &NetworkList,
        valid: &[(String, String)],
    ) -> Result<(), NetError> {
        let attachments =
            valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname}));
        let attachments = Value::Array(attachments.collect());
        let mut failures = Vec::new();
        for plugin in &network.plugins {
            let mut body = input(network, plugin);
            body.insert("cni.dev/valid-attachments".to_owned(), attachments.clone());
            let called = self.call(Verb::Gc, network, plugin, Vec::new(), encode(body)).await;
            failures.extend(called.err());
        }
        NetError::collect(failures).map_or(Ok(()), Err)
    }

    /// Whether an ADD could succeed.
    pub(crate) async fn status(&self, network: &NetworkList) -> Result<(), NetError> {
        for plugin in &network.plugins {
            let stdin = encode(input(network, plugin));
            self.call(Verb::Status, network, plugin, Vec::new(), stdin).await?;
        }
        Ok(())
    }

    async fn call(
        &self,
        verb: Verb,
        network: &NetworkList,
        plugin: &PluginConf,
        env: Vec<(&'static str, OsString)>,
        stdin: Vec<u8>,
    ) -> Result<Vec<u8>, NetError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let result = if left.is_zero() {
            Err(ProgramError::NoTimeLeft { limit: self.limit })
        } else {
            let call = Call { program: &plugin.program, verb, env, stdin };
            program::run(self.host, call, left, self.stop).await
        };
        result.map_err(failed(verb, network, plugin))
    }
}

fn failed(
    verb: Verb,
    network: &NetworkList,
    plugin: &PluginConf,
) -> impl FnOnce(ProgramError) -> NetError {
    move |source| NetError::Program {
        verb,
        network: network.name.clone(),
        program: plugin.program.clone(),
        source,
    }
}

impl Pod<'_> {
    fn env(&self, at: &Attachment) -> Vec<(&'static str, OsString)> {
        let netns = self.netns.map(Path::as_os_str).unwrap_or_default();
        vec![
            ("CNI_CONTAINERID", self.record.id.as_str().into()),
            ("CNI_NETNS", netns.to_owned()),
            ("CNI_IFNAME", at.ifname.clone().into()),
            ("CNI_ARGS", self.record.args.clone().into()),
        ]
    }
}

/// What a program reads: its own part of the file, under the name of the network.
fn input(network: &NetworkList, plugin: &PluginConf) -> Raw {
    let mut body = plugin.body.clone();
    body.insert("name".to_owned(), network.name.clone().into());
    body.insert("cniVersion".to_owned(), network.version.as_str().into());
    body
}

/// The same with what concerns the pod.
fn pod_input(
    record: &PodNetRecord,
    at: &Attachment,
    plugin: &PluginConf,
    previous: Option<&Raw>,
) -> Vec<u8> {
    let mut body = input(&at.network, plugin);
    let told = runtime_config(plugin, &record.told);
    if !told.is_empty() {
        body.insert("runtimeConfig".to_owned(), told.into());
    }
    if let Some(previous) = previous {
        body.insert("prevResult".to_owned(), previous.clone().into());
    }
    encode(body)
}

fn encode(body: Raw) -> Vec<u8> {
    Value::Object(body).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::Id;

    use super::*;
    use crate::pod;

    #[test]
    fn a_program_reads_its_part() {
        let conf = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "a", "x": 1, "capabilities": {"cgroupPath": true}}, {"type": "b", "name": "mine"}]});
        let network = Arc::new(NetworkList::parse(conf.to_string().as_bytes()).unwrap());
        let mut pod = pod::example(Id::random());
        pod.cgroup_path = "/p".into();
        let record = PodNetRecord::plan(&pod, &[Arc::clone(&network)], (1, 2)).unwrap();
        let read = |index: usize, previous: Option<&Raw>| -> Value {
            let at = &record.attachments[0];
            serde_json::from_slice(&pod_input(&record, at, &network.plugins[index], previous))
                .unwrap()
        };
        assert_eq!(
            read(0, None),
            json!({"cniVersion": "1.0.0", "name": "pods", "type": "a", "x": 1,
                "capabilities": {"cgroupPath": true}, "runtimeConfig": {"cgroupPath": "/p"}}),
        );
        let previous = json!({"ips": []});
        assert_eq!(
            read(1, previous.as_object()),
            json!({"cniVersion": "1.0.0", "name": "pods", "type": "b", "prevResult": {"ips": []}}),
        );
    }
}
