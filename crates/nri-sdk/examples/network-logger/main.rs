//! Writes a line whenever the network of a pod comes or goes: its addresses and the file of
//! its namespace.
//!
//! ```text
//! run default/web ips=10.1.0.7,fd00::7 netns=/var/run/netns/cni-4f2a
//! ```

#[path = "../program/mod.rs"]
mod program;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use clap::Parser;
use nri_sdk::{Answer, Context, Event, Handlers, Plugin, PodSandbox, Stub, World, stop_signal};
use parking_lot::Mutex;

/// An NRI plugin that prints a line whenever the network of a pod comes or goes.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("network-logger", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plugin = NetworkLogger(Mutex::new(Box::new(io::stdout())));
    let stub = arguments.nri.apply(Stub::builder(plugin)).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

struct NetworkLogger(Mutex<Box<dyn Write + Send>>);

impl Plugin for NetworkLogger {
    fn handlers() -> Handlers<Self> {
        Handlers::new()
            .synchronize(Self::synchronize)
            .run_pod_sandbox(Self::pod)
            .stop_pod_sandbox(Self::pod)
            .remove_pod_sandbox(Self::pod)
    }
}

impl NetworkLogger {
    async fn synchronize(self: Arc<Self>, _: Context, world: World) -> Answer {
        world.pods.iter().try_for_each(|pod| self.write("found", pod))
    }

    async fn pod(self: Arc<Self>, ctx: Context, pod: PodSandbox) -> Answer {
        let what = match ctx.event() {
            Some(Event::RunPodSandbox) => "run",
            Some(Event::StopPodSandbox) => "stop",
            _ => "remove",
        };
        self.write(what, &pod)
    }

    fn write(&self, what: &str, pod: &PodSandbox) -> Answer {
        let line = format!("{what} {}\n", describe(pod));
        let mut output = self.0.lock();
        output.write_all(line.as_bytes())?;
        Ok(output.flush()?)
    }
}

fn describe(pod: &PodSandbox) -> String {
    let namespaces = pod.linux.iter().flat_map(|linux| &linux.namespaces);
    let network = namespaces.filter(|namespace| namespace.r#type == "network");
    // A pod on the network of its host has no such namespace, or one without a file.
    let file = network.map(|namespace| namespace.path.as_str()).find(|path| !path.is_empty());
    let ips = if pod.ips.is_empty() { "none".to_owned() } else { pod.ips.join(",") };
    format!("{}/{} ips={ips} netns={}", pod.namespace, pod.name, file.unwrap_or("host"))
}

#[cfg(test)]
mod tests {
    use nri_sdk::{
        api::LinuxNamespace,
        testing::{FakeConfig, FakeRuntime, pod},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn with_network(name: &str) -> PodSandbox {
        let mut pod = pod(name);
        pod.ips = vec!["10.1.0.7".into(), "fd00::7".into()];
        let namespace =
            |kind: &str, path: &str| LinuxNamespace { r#type: kind.into(), path: path.into() };
        let namespaces = vec![namespace("ipc", "/ipc"), namespace("network", "/netns/x")];
        pod.linux.get_or_insert_default().namespaces = namespaces;
        pod
    }

    #[tokio::test]
    async fn a_line_for_every_change() {
        let paper = Paper::default();
        let plugin = NetworkLogger(Mutex::new(Box::new(paper.clone())));
        let world = World { pods: vec![with_network("old")], containers: vec![] };
        let config = FakeConfig { world, ..Default::default() };
        let runtime = FakeRuntime::start_with(plugin, config).await.unwrap();
        let web = with_network("web");
        runtime.run_pod_sandbox(&web).await.unwrap();
        runtime.run_pod_sandbox(&pod("hostly")).await.unwrap();
        runtime.stop_pod_sandbox(&web).await.unwrap();
        runtime.remove_pod_sandbox(&web).await.unwrap();
        let want = "found default/old ips=10.1.0.7,fd00::7 netns=/netns/x\n\
                    run default/web ips=10.1.0.7,fd00::7 netns=/netns/x\n\
                    run default/hostly ips=none netns=host\n\
                    stop default/web ips=10.1.0.7,fd00::7 netns=/netns/x\n\
                    remove default/web ips=10.1.0.7,fd00::7 netns=/netns/x\n";
        assert_eq!(String::from_utf8(paper.0.lock().clone()).unwrap(), want);
    }
}
