//! A configuration directory and what is known of it now.
//!
//! ```text
//!   read well ─────────────> these networks, no fault
//!   a file is broken ──────> the networks of before, and the fault
//!   nothing there ─────────> no networks, and the fault
//! ```

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::Chain;
use tokio::sync::{Mutex, watch};

use crate::{
    cidr::Cidr,
    conf::NetworkList,
    dir::{self, LoadError},
    error::NetError,
    template::{PodCidrs, Template},
    watch::Watcher,
};

/// Where networks are configured.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    pub conf_dir: PathBuf,
    /// How many files count, in the order of their names; 0: all.
    pub max_conf: usize,
    /// Written into the directory when the node learns its pod networks and has no
    /// configuration yet.
    pub template: Option<PathBuf>,
}

/// Whether pods can be attached, and if not, why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readiness {
    /// What new pods are attached to. Empty: not ready.
    pub networks: Vec<Arc<NetworkList>>,
    /// What is wrong with the directory. With networks: those of before are kept.
    pub load_fault: Option<String>,
    /// What a program said when asked whether it could attach a pod.
    pub status_fault: Option<String>,
}

/// The file made from a template: early in the order, but others can go before it.
const RENDERED: &str = "10-longshore.conflist";

#[derive(Debug)]
pub(crate) struct Source {
    config: SourceConfig,
    state: watch::Sender<Readiness>,
    /// Held while the directory is read, so that a later reading is published later.
    loading: Mutex<()>,
}

// === impl Readiness ===

impl Readiness {
    pub fn is_ready(&self) -> bool {
        self.fault().is_none()
    }

    /// Why no pod can be attached.
    pub fn fault(&self) -> Option<&str> {
        match (self.networks.is_empty(), &self.load_fault) {
            (true, Some(fault)) => Some(fault),
            (true, None) => Some("the configuration was not read yet"),
            (false, _) => self.status_fault.as_deref(),
        }
    }

    fn after(self, loaded: Result<Vec<Arc<NetworkList>>, LoadError>) -> Self {
        match loaded {
            Ok(networks) => {
                let same = networks == self.networks;
                let status_fault = self.status_fault.filter(|_| same);
                Self { networks, load_fault: None, status_fault }
            }
            Err(error) => {
                let load_fault = Some(Chain(&error).to_string());
                match error {
                    LoadError::NoDirectory { .. } | LoadError::NoFile { .. } => {
                        Self { load_fault, ..Self::default() }
                    }
                    LoadError::Broken { .. } | LoadError::Io { .. } => Self { load_fault, ..self },
                }
            }
        }
    }
}

// === impl Source ===

impl Source {
    pub(crate) fn new(config: SourceConfig) -> Self {
        Self { config, state: watch::Sender::default(), loading: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.config.conf_dir
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Readiness> {
        self.state.subscribe()
    }

    pub(crate) fn networks(&self) -> Vec<Arc<NetworkList>> {
        self.state.borrow().networks.clone()
    }

    /// For attaching a pod: not empty. A program's bad news do not count here, they may be
    /// old: the attempt will tell.
    pub(crate) fn ready_networks(&self) -> Result<Vec<Arc<NetworkList>>, NetError> {
        let state = self.state.borrow();
        match state.networks.is_empty() {
            true => Err(NetError::NotReady { why: state.fault().unwrap_or_default().to_owned() }),
            false => Ok(state.networks.clone()),
        }
    }

    /// Reads the directory, watched from before the reading on.
    pub(crate) async fn refresh(&self, watcher: &mut Watcher) {
        loop {
            let beside = self.beside();
            watcher.arm(&beside);
            self.reload().await;
            // Which directories lie beside is known only after the reading.
            if self.beside() == beside {
                return;
            }
        }
    }

    /// Directories whose files belong to the networks, too.
    fn beside(&self) -> Vec<PathBuf> {
        let state = self.state.borrow();
        state.networks.iter().map(|network| self.dir().join(&network.name)).collect()
    }

    /// Reads the directory and tells. Cancel safe: nothing is told then.
    pub(crate) async fn reload(&self) {
        let _turn = self.loading.lock().await;
        let config = self.config.clone();
        let reading =
            tokio::task::spawn_blocking(move || dir::load(&config.conf_dir, config.max_conf));
        // The runtime ends, or reading panicked: what is known stays.
        let Ok(loaded) = reading.await else { return };
        self.update(|state| state.after(loaded));
    }

    pub(crate) fn set_status(&self, fault: Option<String>) {
        self.update(|state| Readiness { status_fault: fault, ..state });
    }

    fn update(&self, change: impl FnOnce(Readiness) -> Readiness) {
        self.state.send_if_modified(|state| {
            let next = change(state.clone());
            let changed = next != *state;
            if changed {
                let (dir, fault) = (self.dir().display(), next.load_fault.as_deref());
                let names: Vec<_> = next.networks.iter().map(|network| &network.name).collect();
                tracing::info!(%dir, networks = ?names, fault, status = next.status_fault, "network configuration");
            }
            *state = next;
            changed
        });
    }

    /// Writes the template's file, unless there is a configuration already or no template.
    /// Not cancel safe: the file may be written and not read yet, which the watch then does.
    pub(crate) async fn render(&self, cidrs: &[Cidr]) -> Result<(), NetError> {
        let (Some(template), Some(cidrs)) = (&self.config.template, PodCidrs::new(cidrs)) else {
            return Ok(());
        };
        self.reload().await;
        if !self.state.borrow().networks.is_empty() {
            return Ok(());
        }
        let (template, dir) = (template.clone(), self.dir().to_owned());
        let writing = tokio::task::spawn_blocking(move || write(&template, &dir, &cidrs));
        writing.await.map_err(|_| NetError::Died)??;
        self.reload().await;
        Ok(())
    }
}

fn write(template: &Path, dir: &Path, cidrs: &PodCidrs) -> Result<(), NetError> {
    let text = fs::read_to_string(template).map_err(NetError::io("read", template))?;
    let conf = Template::parse(&text)?.render(cidrs)?;
    // A file we could not read ourselves would only move the trouble elsewhere.
    NetworkList::parse(conf.as_bytes()).map_err(NetError::Rendered)?;
    fs::create_dir_all(dir).map_err(NetError::io("make", dir))?;
    // Hidden from every reader until it is whole.
    let (draft, file) = (dir.join(format!(".{RENDERED}.new")), dir.join(RENDERED));
    let written = put(&draft, conf.as_bytes()).and_then(|()| fs::rename(&draft, &file));
    written.map_err(NetError::io("write", &file))
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let options =
        || fs::File::options().write(true).create(true).truncate(true).mode(0o644).clone();
    let mut file = options().open(path)?;
    io::Write::write_all(&mut file, bytes)?;
    // Written once in the life of a node, and worth a moment.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = r#"{"cniVersion":"1.0.0","name":"a","type":"x"}"#;
    const B: &str = r#"{"cniVersion":"1.0.0","name":"b","type":"x"}"#;

    struct Fixture {
        root: tempfile::TempDir,
        source: Source,
    }

    impl Fixture {
        fn new(template: Option<&str>) -> Self {
            let root = tempfile::tempdir().unwrap();
            let conf_dir = root.path().join("net.d");
            let path = template.map(|text| {
                let path = root.path().join("template");
                fs::write(&path, text).unwrap();
                path
            });
            let source = Source::new(SourceConfig { conf_dir, max_conf: 1, template: path });
            Self { root, source }
        }

        fn put(&self, text: &str) {
            fs::create_dir_all(self.source.dir()).unwrap();
            fs::write(self.source.dir().join("10.conf"), text).unwrap();
        }

        async fn check(&self, networks: &[&str], fault: Option<&str>) {
            self.source.reload().await;
            let state = self.source.subscribe().borrow().clone();
            let names: Vec<_> = state.networks.iter().map(|n| n.name.as_str()).collect();
            assert_eq!(names, networks);
            let got = state.load_fault.map(|f| f.replace(self.root.path().to_str().unwrap(), ""));
            assert_eq!(got.as_deref(), fault);
            assert_eq!(self.source.ready_networks().is_ok(), !networks.is_empty());
        }
    }

    #[tokio::test]
    async fn the_last_good_configuration_stays() {
        let fixture = Fixture::new(None);
        fixture.check(&[], Some("configuration directory /net.d is not there")).await;
        fixture.put("{");
        let broken = "network configuration /net.d/10.conf: \
            not JSON: EOF while parsing an object at line 1 column 1";
        fixture.check(&[], Some(broken)).await;
        fixture.put(A);
        fixture.check(&["a"], None).await;
        fixture.put("{");
        fixture.check(&["a"], Some(broken)).await;
        assert!(fixture.source.subscribe().borrow().is_ready());
        fixture.put(B);
        fixture.check(&["b"], None).await;
        fs::remove_file(fixture.source.dir().join("10.conf")).unwrap();
        fixture.check(&[], Some("no network configuration in /net.d")).await;
        fs::remove_dir(fixture.source.dir()).unwrap();
        fixture.check(&[], Some("configuration directory /net.d is not there")).await;
    }

    #[tokio::test]
    async fn bad_news_of_a_program_are_about_its_configuration() {
        let fixture = Fixture::new(None);
        fixture.put(A);
        fixture.check(&["a"], None).await;
        fixture.source.set_status(Some("tired".into()));
        assert_eq!(fixture.source.subscribe().borrow().fault(), Some("tired"));
        fixture.check(&["a"], None).await;
        assert_eq!(fixture.source.subscribe().borrow().fault(), Some("tired"));
        fixture.put(B);
        fixture.check(&["b"], None).await;
        assert!(fixture.source.subscribe().borrow().is_ready());
    }

    #[tokio::test]
    async fn only_changes_are_told() {
        let fixture = Fixture::new(None);
        fixture.put(A);
        fixture.check(&["a"], None).await;
        let mut news = fixture.source.subscribe();
        news.mark_unchanged();
        fixture.check(&["a"], None).await;
        assert!(!news.has_changed().unwrap());
        fixture.put(B);
        fixture.check(&["b"], None).await;
        assert!(news.has_changed().unwrap());
    }

    fn cidrs(text: &str) -> Vec<Cidr> {
        text.split(',').map(|cidr| cidr.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_template_is_filled_once() {
        let template = r#"{"cniVersion":"1.0.0","name":"made","type":"x","subnet":"{{.PodCIDR}}"}"#;
        let fixture = Fixture::new(Some(template));
        fixture.source.render(&cidrs("10.7.0.0/16,fd00::/64")).await.unwrap();
        fixture.check(&["made"], None).await;
        let file = fixture.source.dir().join(RENDERED);
        assert!(fs::read_to_string(&file).unwrap().contains("10.7.0.0/16"));
        fixture.source.render(&cidrs("10.8.0.0/16")).await.unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("10.7.0.0/16"));
        assert_eq!(fs::read_dir(fixture.source.dir()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_bad_template_writes_nothing() {
        for bad in ["{{.Nothing}}", "{{", "no json", r#"{"name":"x"}"#] {
            let fixture = Fixture::new(Some(bad));
            assert!(fixture.source.render(&cidrs("10.7.0.0/16")).await.is_err(), "{bad}");
            assert!(!fixture.source.dir().exists(), "{bad}");
        }
        let fixture = Fixture::new(None);
        fixture.source.render(&cidrs("10.7.0.0/16")).await.unwrap();
        assert!(!fixture.source.dir().exists());
    }
}
