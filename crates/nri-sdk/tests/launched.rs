//! A plugin that the Go runtime starts: this very program. Where there is no Go the test says
//! so and passes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "interop/runtime.rs"]
mod runtime;

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nri_sdk::{
    Answer, Configuration, Container, Context, Handlers, Plugin, PodSandbox, Stub,
    api::{Empty, StartContainerRequest},
    defaults,
    testing::{container, pod},
};
use parking_lot::Mutex;
use runtime::GoRuntime;
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return say("a_plugin_is_started_by_the_runtime: test\n");
    }
    match std::env::var_os(defaults::SOCKET_ENV) {
        Some(_) => Stub::builder(Notes::default()).build().unwrap().run().await.unwrap(),
        None => {
            a_plugin_is_started_by_the_runtime().await;
            say("test a_plugin_is_started_by_the_runtime ... ok\n");
        }
    }
}

fn say(line: &str) {
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Writes what it hears to the file its configuration names.
#[derive(Default)]
struct Notes {
    path: Mutex<PathBuf>,
}

impl Notes {
    async fn configure(self: Arc<Self>, _: Context, configuration: Configuration) -> Answer {
        *self.path.lock() = configuration.text.into();
        let variables = std::env::vars().map(|(name, value)| format!("{name}={value}"));
        let mut variables: Vec<_> = variables.collect();
        variables.sort();
        self.note(&variables.join(" "))
    }

    async fn start(self: Arc<Self>, _: Context, _: PodSandbox, container: Container) -> Answer {
        self.note(&container.name)
    }

    fn note(&self, line: &str) -> Answer {
        let path = self.path.lock();
        let mut file = OpenOptions::new().create(true).append(true).open(&*path)?;
        Ok(writeln!(file, "{line}")?)
    }
}

impl Plugin for Notes {
    fn handlers() -> Handlers<Self> {
        Handlers::new().configure(Self::configure).start_container(Self::start)
    }
}

async fn a_plugin_is_started_by_the_runtime() {
    let Some(mut go) = GoRuntime::spawn("a plugin that the runtime starts").await else { return };
    let (plugins, conf) = go.plugins();
    let (program, notes) = (plugins.join("07-notes"), conf.join("notes"));
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    fs::write(conf.join("notes.conf"), notes.as_os_str().as_encoded_bytes()).unwrap();
    go.tell("start", &Empty {}).await;
    let web = pod("web");
    let nginx = container(&web, "nginx");
    go.tell("StartContainer", &StartContainerRequest { pod: Some(web), container: Some(nginx) })
        .await;
    let want = "NRI_PLUGIN_IDX=07 NRI_PLUGIN_NAME=notes NRI_PLUGIN_SOCKET=3\nnginx\n";
    assert_eq!(fs::read_to_string(&notes).unwrap(), want, "{}", go.log());
    assert!(runs(&program));
    go.end().await;
    // The runtime has gone without a word; the plugin notices.
    let gone = async {
        while runs(&program) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), gone).await.unwrap();
}

/// Whether a process was started by this path and is still there.
fn runs(program: &Path) -> bool {
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes.any(|process| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        first == program.as_os_str().as_encoded_bytes()
    })
}
