//! The configuration changes while pods come and go.

use std::{fs, path::Path, time::Duration};

use base::Kind;
use net::{PodNet, Readiness, SourceConfig};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::world::{World, block_on, list, said};

/// Waits until the readiness is as wanted.
async fn becomes(news: &mut watch::Receiver<Readiness>, wanted: impl FnMut(&Readiness) -> bool) {
    let waited = timeout(Duration::from_secs(20), news.wait_for(wanted)).await.map(drop);
    assert!(waited.is_ok(), "{:?}", news.borrow());
}

pub(crate) fn the_configuration_of_the_time_counts(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.fake("b");
    block_on(async {
        let networks = world.open().await;
        let mut news = networks.readiness("");
        let netns = world.netns();
        let pod = world.pod(&netns);
        networks.add(pod.clone()).await.unwrap();
        world.conf("10-pods.conflist", &list("1.0.0", "other", &["b"]));
        becomes(&mut news, |now| now.networks.iter().any(|n| n.name == "other")).await;
        fs::write(world.path("net.d/10-pods.conflist"), "{").unwrap();
        becomes(&mut news, |now| now.load_fault.is_some()).await;
        assert!(news.borrow().is_ready());
        // New pods on what was last good, the old one off what it was on.
        let next = world.pod(&netns);
        assert_eq!(networks.add(next.clone()).await.unwrap().interfaces[0].network, "other");
        world.calls();
        networks.del(&pod.id).await.unwrap();
        assert_eq!(world.calls(), ["DEL a eth0 ns"]);
        assert_eq!(world.input("a.DEL")["name"], "pods");
        fs::remove_file(world.path("net.d/10-pods.conflist")).unwrap();
        becomes(&mut news, |now| !now.is_ready()).await;
        networks.del(&next.id).await.unwrap();
        assert_eq!(world.calls(), ["DEL b eth0 ns"]);
    });
}

pub(crate) fn a_directory_comes_and_goes(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    let (here, away) = (world.path("net.d"), world.path("away"));
    fs::rename(&here, &away).unwrap();
    block_on(async {
        let networks = world.open().await;
        let mut news = networks.readiness("");
        let netns = world.netns();
        let error = networks.add(world.pod(&netns)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        let want =
            format!("no network is ready: configuration directory {} is not there", here.display());
        assert_eq!(said(&error), want);
        for _ in 0..3 {
            fs::rename(&away, &here).unwrap();
            becomes(&mut news, Readiness::is_ready).await;
            let pod = world.pod(&netns);
            networks.add(pod.clone()).await.unwrap();
            fs::rename(&here, &away).unwrap();
            becomes(&mut news, |now| !now.is_ready()).await;
            networks.del(&pod.id).await.unwrap();
        }
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn programs_beside_the_file_are_followed(dir: &Path) {
    let world = World::new(dir);
    world.network("1.1.0", &["a"]);
    block_on(async {
        let networks = world.open().await;
        let mut news = networks.readiness("");
        let beside = world.path("net.d/pods");
        fs::create_dir(&beside).unwrap();
        for count in 1..3 {
            sleep(Duration::from_millis(200)).await;
            fs::write(beside.join(format!("{count}.conf")), r#"{"type":"b"}"#).unwrap();
            becomes(&mut news, |now| now.networks[0].plugins.len() == count + 1).await;
        }
        networks.close().await;
    });
}

pub(crate) fn handlers_have_their_own(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    world.fake("b");
    let own = world.path("own.d");
    block_on(async {
        let mut config = world.config();
        let source = SourceConfig { conf_dir: own.clone(), max_conf: 1, template: None };
        config.handlers.insert("vm".into(), source);
        let networks = world.open_with(config).await;
        let netns = world.netns();
        let on = |handler: &str| PodNet { handler: handler.into(), ..world.pod(&netns) };
        assert!(networks.readiness("").borrow().is_ready());
        assert!(networks.readiness("crun").borrow().is_ready());
        let mut news = networks.readiness("vm");
        assert!(!news.borrow().is_ready());
        networks.add(on("vm")).await.unwrap_err();
        fs::create_dir(&own).unwrap();
        fs::write(own.join("1.conf"), list("1.0.0", "vms", &["b"]).to_string()).unwrap();
        becomes(&mut news, Readiness::is_ready).await;
        for (handler, want) in [("vm", "vms"), ("crun", "pods"), ("", "pods")] {
            let pod = on(handler);
            let result = networks.add(pod.clone()).await.unwrap();
            assert_eq!(result.interfaces[0].network, want, "{handler}");
            networks.del(&pod.id).await.unwrap();
        }
    });
}

pub(crate) fn programs_are_asked_how_they_are(dir: &Path) {
    let world = World::new(dir);
    world.network("1.1.0", &["a"]);
    world.mode("a.STATUS", r#"echo '{"code":50,"msg":"no agent"}'; exit 1"#);
    block_on(async {
        let networks = world.open().await;
        let mut news = networks.readiness("");
        becomes(&mut news, |now| !now.is_ready()).await;
        let fault = news.borrow().fault().map(str::to_owned);
        assert_eq!(fault.as_deref(), Some("STATUS of network pods by a: no agent (code 50)"));
        assert_eq!(networks.status("").await.unwrap_err().kind(), Kind::Unavailable);
        world.mode("a.STATUS", "");
        becomes(&mut news, Readiness::is_ready).await;
        // Older ones are not asked, they would not understand.
        world.network("1.0.0", &["a"]);
        becomes(&mut news, |now| now.networks[0].version.as_str() == "1.0.0").await;
        sleep(Duration::from_millis(300)).await;
        world.calls();
        sleep(Duration::from_millis(600)).await;
        assert_eq!(world.calls(), [""; 0]);
        networks.close().await;
    });
}

pub(crate) fn a_template_makes_a_network(dir: &Path) {
    let world = World::new(dir);
    world.fake("a");
    fs::remove_dir(world.path("net.d")).unwrap();
    let template = json!({"cniVersion": "1.0.0", "name": "made", "plugins": [
        {"type": "a", "ranges": "{{range $i, $r := .PodCIDRRanges}}{{if $i}} {{end}}{{$r}}{{end}}"}]});
    fs::write(world.path("template"), template.to_string()).unwrap();
    block_on(async {
        let mut config = world.config();
        config.default.template = Some(world.path("template"));
        let networks = world.open_with(config).await;
        networks.set_pod_cidrs("").await.unwrap();
        assert!(!networks.readiness("").borrow().is_ready());
        let error = networks.set_pod_cidrs("10.3.0.0/16,nonsense").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        networks.set_pod_cidrs("10.3.1.9/16, fd03::/64").await.unwrap();
        assert!(networks.readiness("").borrow().is_ready());
        let netns = world.netns();
        let pod = world.pod(&netns);
        networks.add(pod.clone()).await.unwrap();
        assert_eq!(world.input("a.ADD")["ranges"], "10.3.0.0/16 fd03::/64");
        networks.del(&pod.id).await.unwrap();
    });
}
