//! Gives containers what annotations of their pod ask for: devices, mounts, CDI devices,
//! network devices, sysctls, I/O priority, scheduling and memory policy.
//!
//! ```yaml
//! devices.noderesource.dev/container.db: |
//!   - {path: /dev/fuse, type: c, major: 10, minor: 229, file_mode: 0o660}
//! mounts.noderesource.dev/pod: |
//!   - {source: /srv, destination: /data, type: bind, options: [rbind, ro]}
//! cdi-devices.noderesource.dev: "[vendor.com/gpu=0]"
//! network-devices.noderesource.dev/container.db: "[{hostIf: eth1, name: net1}]"
//! sysctl.noderesource.dev/container.db: "{net.core.somaxconn: '256'}"
//! io-priority.noderesource.dev/container.db: "{class: IOPRIO_CLASS_BE, priority: 2}"
//! scheduling-policy.noderesource.dev/container.db: "{policy: SCHED_FIFO, priority: 10}"
//! memory-policy.noderesource.dev/container.db: "{mode: MPOL_BIND, nodes: 0-1}"
//! ```

mod asked;
#[path = "../program/mod.rs"]
mod program;

use std::{process::ExitCode, sync::Arc};

use asked::Asked;
use clap::Parser;
use nri_sdk::{
    Adjustment, Answer, Container, Context, Handlers, Plugin, PodSandbox, Stub, stop_signal,
};

/// An NRI plugin that gives containers the devices and mounts that annotations of their pod ask for.
///
/// It also takes CDI devices, network devices, sysctls, I/O priority, scheduling and memory
/// policy, each by an annotation such as devices.noderesource.dev/container.NAME.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    nri: nri_sdk::Flags,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::log();
    program::exit("device-injector", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let stub = arguments.nri.apply(Stub::builder(DeviceInjector)).build()?;
    Ok(stub.run_until(stop_signal()).await?)
}

struct DeviceInjector;

impl Plugin for DeviceInjector {
    fn handlers() -> Handlers<Self> {
        Handlers::new().create_container(Self::create_container)
    }
}

impl DeviceInjector {
    async fn create_container(
        self: Arc<Self>,
        _: Context,
        pod: PodSandbox,
        container: Container,
    ) -> Answer<Adjustment> {
        let adjustment = Asked { pod: &pod, container: &container }.adjustment()?;
        if !adjustment.is_empty() {
            tracing::info!(pod = pod.name, container = container.name, "injecting");
        }
        Ok(adjustment)
    }
}

#[cfg(test)]
mod tests {
    use nri_sdk::{
        Device, Setting,
        api::{IoPrioClass, LinuxSchedulerFlag, LinuxSchedulerPolicy, MpolFlag, MpolMode},
        testing::{FakeRuntime, container, pod},
    };

    use super::*;

    async fn adjusted(annotations: &[(&str, &str)]) -> Result<Adjustment, String> {
        let runtime = FakeRuntime::start(DeviceInjector).await.unwrap();
        let mut web = pod("web");
        for (key, value) in annotations {
            web.annotations.insert((*key).to_owned(), (*value).to_owned());
        }
        let created = runtime.create_container(&web, &container(&web, "db")).await;
        Ok(created.map_err(|error| error.to_string())?.adjustment)
    }

    #[tokio::test]
    async fn devices_mounts_and_networks() {
        let adjustment = adjusted(&[
            (
                "devices.noderesource.dev/container.db",
                "- {path: /dev/fuse, type: c, major: 10, minor: 229, file_mode: 0o660, gid: 7}\n\
                 - {path: /dev/sdz, type: b, major: 8, minor: 16}",
            ),
            (
                "mounts.noderesource.dev/pod",
                "- {source: /srv, destination: /data, type: bind, options: [rbind, ro]}",
            ),
            ("cdi-devices.noderesource.dev", "[vendor.com/gpu=0, vendor.com/gpu=1]"),
            ("network-devices.noderesource.dev/container.db", "- {hostIf: eth1, Name: net1}"),
            ("sysctl.noderesource.dev/container.db", "{net.core.somaxconn: '256'}"),
        ]);
        let adjustment = adjustment.await.unwrap();
        let mut fuse = Device::character(10, 229);
        (fuse.mode, fuse.gid) = (Some(0o660), Some(7));
        assert_eq!(adjustment.devices.value("/dev/fuse"), Some(&fuse));
        assert_eq!(adjustment.devices.value("/dev/sdz"), Some(&Device::block(8, 16)));
        let mount = adjustment.mounts.value("/data").unwrap();
        assert_eq!((mount.source.as_str(), mount.options.join(",")), ("/srv", "rbind,ro".into()));
        assert_eq!(adjustment.cdi_devices.len(), 2);
        assert_eq!(adjustment.net_devices.value("eth1").unwrap(), "net1");
        assert_eq!(adjustment.sysctl.value("net.core.somaxconn").unwrap(), "256");
    }

    #[tokio::test]
    async fn priorities_and_policies() {
        let adjustment = adjusted(&[
            ("io-priority.noderesource.dev/container.db", "{class: IOPRIO_CLASS_BE, priority: 2}"),
            (
                "scheduling-policy.noderesource.dev/container.db",
                "{policy: SCHED_FIFO, priority: 10, flags: [SCHED_FLAG_RESET_ON_FORK]}",
            ),
            (
                "memory-policy.noderesource.dev/container.db",
                "{mode: MPOL_BIND, nodes: 0-1, flags: [MPOL_F_STATIC_NODES]}",
            ),
        ]);
        let adjustment = adjustment.await.unwrap();
        let Some(Setting::Set(io)) = adjustment.io_priority else { panic!("no I/O priority") };
        assert_eq!((io.class(), io.priority), (IoPrioClass::IoprioClassBe, 2));
        let Some(Setting::Set(scheduler)) = adjustment.scheduler else { panic!("no scheduler") };
        assert_eq!(scheduler.policy(), LinuxSchedulerPolicy::SchedFifo);
        assert_eq!(scheduler.priority, 10);
        let flags: Vec<_> = scheduler.flags().collect();
        assert_eq!(flags, [LinuxSchedulerFlag::SchedFlagResetOnFork]);
        let policy = adjustment.memory_policy.unwrap();
        assert_eq!((policy.mode(), policy.nodes.as_str()), (MpolMode::MpolBind, "0-1"));
        assert_eq!(policy.flags().collect::<Vec<_>>(), [MpolFlag::MpolFStaticNodes]);
    }

    #[tokio::test]
    async fn the_narrowest_key_wins_and_the_newer_of_two() {
        let keys = [
            "devices.nri.io",
            "devices.noderesource.dev",
            "devices.nri.io/pod",
            "devices.noderesource.dev/pod",
            "devices.nri.io/container.db",
            "devices.noderesource.dev/container.db",
        ];
        let values: Vec<_> = (0..keys.len())
            .map(|i| format!("[{{path: /dev/{i}, type: c, major: 1, minor: 3}}]"))
            .collect();
        for count in 1..=keys.len() {
            let annotations: Vec<_> =
                keys.iter().zip(&values).take(count).map(|(key, value)| (*key, &**value)).collect();
            let adjustment = adjusted(&annotations).await.unwrap();
            let paths: Vec<_> = adjustment.devices.iter().map(|(path, _)| path).collect();
            assert_eq!(paths, [format!("/dev/{}", count - 1)]);
        }
    }

    #[tokio::test]
    async fn what_is_wrong_fails_the_creation_by_name() {
        let check = async |key: &str, value: &str, want: &str| {
            let error = adjusted(&[(key, value)]).await.unwrap_err();
            assert!(error.contains(key) && error.contains(want), "{error}");
        };
        check("devices.noderesource.dev", "[{path: /dev/x, type: z, major: 1, minor: 1}]", "\"z\"")
            .await;
        check("mounts.noderesource.dev", "nonsense", "").await;
        check("scheduling-policy.noderesource.dev", "{policy: SCHED_FAST}", "SCHED_FAST").await;
        check("memory-policy.noderesource.dev", "{mode: MPOL_X}", "MPOL_X").await;
        check("io-priority.noderesource.dev", "{class: FAST}", "FAST").await;
    }

    #[tokio::test]
    async fn nothing_asked_is_nothing_done() {
        let other = [("devices.noderesource.dev/container.other", "nonsense")];
        assert!(adjusted(&other).await.unwrap().is_empty());
    }
}
