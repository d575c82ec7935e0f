//! Handlers: what a section of the configuration does for the pods that name it.

use std::fs;

use api_cri::v1::{ContainerConfig, StatusRequest};
use tonic::Code;

use crate::world::{World, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_what_its_section_says() {
    let configured = |dir: &tempfile::TempDir| {
        let base = dir.path().join("base.json");
        let spec = serde_json::json!({
            "ociVersion": "1.0.2",
            "process": {
                "cwd": "/", "user": { "uid": 0, "gid": 0 },
                "env": ["FROM_BASE=yes"],
                "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 77, "hard": 77 }],
            },
            "root": { "path": "rootfs" },
            "annotations": { "of.the/base": "1" },
        });
        fs::write(&base, spec.to_string()).unwrap();
        format!(
            "default_handler = 'runc'\nhandlers.runc.binary = 'runc'\n\
             [handlers.mine]\nbinary = 'runc'\nbase_spec = '{}'\nsnapshotter = 'native'\n\
             args = ['--debug']\nseccomp = 'default'\n\
             pod_annotations = ['pod.example/*']\n\
             container_annotations = ['run.oci.*', 'c.example/one']\n",
            base.display()
        )
    };
    let Some(world) = World::configured("a_handler_is_what", configured).await else { return };
    let labels = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let script = "echo base=$FROM_BASE; ulimit -n
        grep ^Seccomp: /proc/self/status | busybox awk '{print $2}'
        grep ' / ' /proc/self/mounts | cut -d ' ' -f 3; exec sleep 1000";
    for (handler, want) in [("runc", ["base=", "0", "overlay"]), ("mine", ["base=yes", "2", ""])] {
        let mut asked = world.node.pod(handler);
        asked.annotations = labels(&[("pod.example/a", "1"), ("other.example/a", "2")]);
        let pod = world.cri.run_pod_with(handler, &asked).await.unwrap();
        let config = ContainerConfig {
            annotations: labels(&[
                ("run.oci.x", "1"),
                ("c.example/one", "2"),
                ("c.example/two", "3"),
            ]),
            ..world.node.sh(handler, &format!("{script}; echo all"))
        };
        let id = world.cri.run(&pod, config).await.unwrap();
        world.lines(&pod, handler, 4).await;
        let said = world.node.said(&pod, handler).unwrap();
        assert_eq!([said[0].as_str(), said[2].as_str()], [want[0], want[1]], "{handler}: {said:?}");
        assert_eq!(said[1] == "77", handler == "mine", "{handler}: {said:?}");
        assert_eq!(said[3] == "overlay", handler == "runc", "{handler}: {said:?}");
        let spec = &world.details(&id).await["runtimeSpec"]["annotations"];
        let has = |key: &str| spec.get(key).is_some();
        let mine = handler == "mine";
        for key in ["pod.example/a", "run.oci.x", "c.example/one", "of.the/base"] {
            assert_eq!(has(key), mine, "{handler}: {key} in {spec}");
        }
        assert!(!has("other.example/a") && !has("c.example/two"), "{spec}");
        assert!(has("io.kubernetes.cri.sandbox-id"), "{spec}");
    }
    let refused = world.cri.run_pod_with("theirs", &world.node.pod("p")).await.unwrap_err();
    refusal(&refused, Code::InvalidArgument, "no runtime for \"theirs\" is configured");
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_handlers_can_do_is_told_and_remembered() {
    let Some(mut world) = World::with_new_runc("what_handlers_can_do").await else { return };
    let told = |world: &World| {
        let mut client = world.cri.runtime();
        async move {
            let status = client.status(StatusRequest::default()).await.unwrap().into_inner();
            let can = |handler: &api_cri::v1::RuntimeHandler| {
                let features = handler.features.as_ref().unwrap();
                let can = (features.recursive_read_only_mounts, features.user_namespaces);
                (handler.name.clone(), can)
            };
            let mut handlers: Vec<_> = status.runtime_handlers.iter().map(can).collect();
            handlers.sort();
            (handlers, status.features.unwrap())
        }
    };
    let (handlers, features) = told(&world).await;
    let find = |name: &str| handlers.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(handlers.len(), 3, "{handlers:?}");
    assert_eq!(find(""), find("runc"), "the default's");
    assert_eq!(find("new"), (true, true));
    assert!(!find("runc").1, "Debian's runc is older than user namespaces by path");
    assert!(features.user_namespaces_host_network && features.supplemental_groups_policy);

    // The next daemon knows without trying.
    let trials = |world: &World| world.node.daemon.stderr().matches("OCI runtimes tried").count();
    assert_eq!(trials(&world), 1);
    world.node.daemon.kill().unwrap();
    world.node.daemon.start_again().await.unwrap();
    world.cri = world.node.cri().await.unwrap();
    assert_eq!(told(&world).await.0, handlers);
    assert_eq!(trials(&world), 1, "{}", world.node.daemon.stderr());
    world.node.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_spec_that_cannot_be_read_stops_the_start_by_name() {
    if !testkit::is_root() {
        return testkit::skip("a_base_spec_that_cannot_be_read", "needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.json");
    fs::write(&base, "{ nonsense").unwrap();
    let config = dir.path().join("config.toml");
    let text = format!("[handlers.mine]\nbinary = 'runc'\nbase_spec = '{}'\n", base.display());
    fs::write(&config, text).unwrap();
    let started = testkit::DaemonProcess::start_with(env!("CARGO_BIN_EXE_longshore"), |command| {
        command.arg("--config").arg(&config);
    });
    let error = started.await.unwrap_err().to_string();
    let why = format!("handlers.mine.base_spec: {}", base.display());
    assert!(error.contains(&why), "{error}");
}
