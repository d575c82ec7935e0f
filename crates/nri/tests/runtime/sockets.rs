//! External plugins, programs, and settings that change.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nri::{Ask, Backoff, DomainSettings, Origin, PluginPolicy, Settings};
use tokio::net::UnixStream;

use crate::kit::*;

struct Dirs {
    root: tempfile::TempDir,
}

impl Dirs {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("plugins")).unwrap();
        fs::create_dir(root.path().join("conf")).unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn settings(&self) -> Settings {
        Settings {
            socket: Some(self.path("run/nri.sock")),
            plugin_dirs: vec![self.path("plugins")],
            config_dirs: vec![self.path("conf")],
            ..Settings::default()
        }
    }

    /// A program that writes a line to a file each time it starts and then does `then`.
    fn program(&self, name: &str, then: &str) {
        let path = self.path("plugins").join(name);
        let log = self.path(&format!("{name}.log"));
        let script = format!(
            "#!/bin/sh\necho \"$NRI_PLUGIN_NAME $NRI_PLUGIN_IDX $NRI_PLUGIN_SOCKET $#\" >> {}\n{then}\n",
            log.display()
        );
        testkit::program(&path, &script);
    }

    fn starts(&self, name: &str) -> Vec<String> {
        let log = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    async fn wait_for_starts(&self, name: &str, count: usize) {
        let started = async {
            while self.starts(name).len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(SOON, started).await;
        in_time.unwrap_or_else(|_| panic!("{name}: {:?}", self.starts(name)));
    }
}

async fn connect(world: &World, socket: &Path, id: &str) -> Result<Live, ttrpc::Error> {
    let (index, name) = id.split_once('-').unwrap();
    let stream = UnixStream::connect(socket).await.unwrap();
    Script::new("all").telling(&world.told).connect(stream, index, name).await
}

#[tokio::test]
async fn plugins_connect_by_the_socket_and_bad_names_are_refused() {
    let dirs = Dirs::new();
    let world = World::with(dirs.settings()).await;
    let socket = dirs.path("run/nri.sock");
    let mode = fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let _good = connect(&world, &socket, "10-abcd-0123+EFGH_4567.ijkl").await.unwrap();
    world.wait_for_plugins(&["10-abcd-0123+EFGH_4567.ijkl"]).await;
    let me =
        Origin::External { pid: Some(std::process::id()), uid: rustix::process::getuid().as_raw() };
    assert_eq!(world.nri.plugins()[0].origin, me);
    for bad in ["10-foo,bar", "1-a", "-a", "10-"] {
        let refused = connect(&world, &socket, bad).await.unwrap_err();
        assert_eq!(refused.code(), ttrpc::Code::InvalidArgument, "{bad}");
    }
    world.nri.shutdown().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn without_a_socket_nobody_connects() {
    let dirs = Dirs::new();
    let world = World::with(Settings { socket: None, ..dirs.settings() }).await;
    assert!(!dirs.path("run").exists());
    world.nri.shutdown().await;
}

#[tokio::test]
async fn a_silent_client_delays_nobody() {
    let dirs = Dirs::new();
    let world = World::with(dirs.settings()).await;
    let socket = dirs.path("run/nri.sock");
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(UnixStream::connect(&socket).await.unwrap());
    }
    let begun = std::time::Duration::from_secs(2);
    let _good =
        tokio::time::timeout(begun, connect(&world, &socket, "10-a")).await.unwrap().unwrap();
    world.wait_for_plugins(&["10-a"]).await;
    world.nri.shutdown().await;
}

#[tokio::test]
async fn a_socket_left_over_is_replaced_and_another_file_is_not() {
    let dirs = Dirs::new();
    fs::create_dir(dirs.path("run")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dirs.path("run/nri.sock")).unwrap());
    let world = World::with(dirs.settings()).await;
    let _plugin = connect(&world, &dirs.path("run/nri.sock"), "10-a").await.unwrap();
    world.nri.shutdown().await;
    fs::write(dirs.path("run/nri.sock"), "precious").unwrap();
    let nri = nri::Nri::new(dirs.settings(), nri::RuntimeInfo::new("t", "1")).unwrap();
    assert!(matches!(nri.start().await, Err(nri::StartError::Listen { .. })));
    assert_eq!(fs::read_to_string(dirs.path("run/nri.sock")).unwrap(), "precious");
}

#[tokio::test]
async fn who_connects_is_checked_where_the_policy_says_so() {
    let dirs = Dirs::new();
    let mut settings = dirs.settings();
    let mut add =
        |name: &str, policy: PluginPolicy| settings.plugins.insert(name.to_owned(), policy);
    let me = rustix::process::getuid().as_raw();
    add("me", PluginPolicy { uid: Some(me), ..Default::default() });
    add("other", PluginPolicy { uid: Some(me + 1), ..Default::default() });
    let here = std::env::current_exe().unwrap();
    add("here", PluginPolicy { executable: Some(here), ..Default::default() });
    add("there", PluginPolicy { executable: Some("/bin/there".into()), ..Default::default() });
    let world = World::with(settings).await;
    let socket = dirs.path("run/nri.sock");
    for (id, allowed) in
        [("10-me", true), ("10-other", false), ("10-here", true), ("10-there", false)]
    {
        let code = connect(&world, &socket, id).await.err().map(|error| error.code());
        assert_eq!(code, (!allowed).then_some(ttrpc::Code::PermissionDenied), "{id}");
    }
    world.nri.shutdown().await;
}

#[tokio::test]
async fn a_domain_may_have_a_socket_of_its_own() {
    let dirs = Dirs::new();
    let mut settings = dirs.settings();
    let own = DomainSettings {
        hidden: true,
        socket: Some(dirs.path("docker.sock")),
        ..Default::default()
    };
    settings.domains.insert("docker".to_owned(), own);
    let world = World::with(settings).await;
    let _open = connect(&world, &dirs.path("run/nri.sock"), "10-open").await.unwrap();
    let _own = connect(&world, &dirs.path("docker.sock"), "10-own").await.unwrap();
    world.wait_for_plugins(&["10-open", "10-own"]).await;
    world.told.clear();
    world.run("k").await.unwrap();
    let docker = nri::Pod { domain: "docker".to_owned(), ..pod("d") };
    world.nri.run_pod(&docker, &Ask::default()).await.unwrap();
    assert_eq!(world.told.all(), ["10-open RunPodSandbox k", "10-own RunPodSandbox d"]);
    world.nri.shutdown().await;
}

#[tokio::test]
async fn a_socket_that_another_runtime_serves_is_left_to_it() {
    let dirs = Dirs::new();
    let world = World::with(dirs.settings()).await;
    let second = nri::Nri::new(dirs.settings(), nri::RuntimeInfo::new("t", "1")).unwrap();
    let error = second.start().await.unwrap_err();
    assert!(matches!(&error, nri::StartError::Listen { .. }), "{error}");
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("another runtime serves it"), "{why}");
    second.shutdown().await;
    connect(&world, &dirs.path("run/nri.sock"), "10-a").await.unwrap();
    world.nri.shutdown().await;
}

#[tokio::test]
async fn a_socket_that_becomes_a_domains_stays_open() {
    let dirs = Dirs::new();
    let world = World::with(dirs.settings()).await;
    let socket = dirs.path("run/nri.sock");
    let own = DomainSettings { socket: Some(socket.clone()), ..Default::default() };
    let mut settings = Settings { socket: None, ..dirs.settings() };
    settings.domains.insert("docker".to_owned(), own);
    world.nri.reload(settings).await.unwrap();
    let _own = connect(&world, &socket, "10-own").await.unwrap();
    world.wait_for_plugins(&["10-own"]).await;
    world.run("k").await.unwrap();
    assert_eq!(world.told.count("10-own RunPodSandbox k"), 0, "not of its domain");
    world.nri.shutdown().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_plugin_is_restarted_on_demand() {
    let dirs = Dirs::new();
    dirs.program("10-crash", "exit 3");
    let mut settings = dirs.settings();
    let dead = PluginPolicy { restart: None, ..Default::default() };
    settings.plugins.insert("crash".to_owned(), dead);
    let world = World::with(settings).await;
    let mut watch = world.nri.watch();
    let error = world.nri.restart("crash").await.unwrap_err();
    assert_eq!(error, nri::RestartError::NotJoined("10-crash".parse().unwrap()));
    assert_eq!(dirs.starts("10-crash").len(), 2);
    let ended = async {
        loop {
            if let nri::Notice::Ended { plugin, status } = &*watch.next().await.unwrap() {
                return (plugin.clone(), status.clone());
            }
        }
    };
    let ended = tokio::time::timeout(SOON, ended).await.unwrap();
    assert_eq!(ended, ("10-crash".to_owned(), "exit status: 3".to_owned()));

    let live = connect(&world, &dirs.path("run/nri.sock"), "20-live").await.unwrap();
    world.wait_for_plugins(&["20-live"]).await;
    let done = world.nri.restart("20-live").await.unwrap();
    assert_eq!(done, nri::Restarted::Disconnected("20-live".parse().unwrap()));
    live.trunk.closed().await.unwrap();
    assert_eq!(world.told.count("20-live Shutdown"), 1);
    let unknown = world.nri.restart("nobody").await.unwrap_err();
    assert_eq!(unknown, nri::RestartError::Unknown("nobody".to_owned()));
    world.nri.shutdown().await;
}

// === programs ===

#[tokio::test]
async fn a_program_gets_three_variables_and_is_started_again_with_growing_pauses() {
    let dirs = Dirs::new();
    dirs.program("10-crash", "exit 3");
    dirs.program("badname", "exit 0");
    let mut settings = dirs.settings();
    let backoff = Backoff { first: Duration::from_millis(50), most: Duration::from_millis(100) };
    settings
        .plugins
        .insert("crash".to_owned(), PluginPolicy { restart: Some(backoff), ..Default::default() });
    let world = World::with(settings).await;
    dirs.wait_for_starts("10-crash", 3).await;
    assert_eq!(dirs.starts("10-crash")[0], "crash 10 3 0");
    assert_eq!(dirs.starts("badname"), Vec::<String>::new());
    world.create("c").await.unwrap();
    world.nri.shutdown().await;
}

#[tokio::test]
async fn a_program_that_does_not_register_is_ended() {
    let dirs = Dirs::new();
    dirs.program("10-mute", "echo $$ > \"$(dirname \"$0\")/../pid\"\nexec sleep 1000");
    let mut settings = dirs.settings();
    settings.registration_timeout = Duration::from_millis(300);
    settings
        .plugins
        .insert("mute".to_owned(), PluginPolicy { restart: None, ..Default::default() });
    // PATH is not ours to give.
    let world = World::with(settings).await;
    let pid = fs::read_to_string(dirs.path("pid")).unwrap_or_default();
    let gone = async {
        while !pid.trim().is_empty() && Path::new(&format!("/proc/{}", pid.trim())).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.unwrap();
    assert_eq!(dirs.starts("10-mute").len(), 1);
    world.nri.shutdown().await;
}

#[tokio::test]
async fn what_a_program_printed_is_there_after_its_death() {
    let dirs = Dirs::new();
    dirs.program("10-broken", "echo one\necho two >&2\nexit 3");
    let mut settings = dirs.settings();
    let dead = PluginPolicy { restart: None, ..Default::default() };
    settings.plugins.insert("broken".to_owned(), dead);
    let world = World::with(settings).await;
    let absent = async {
        loop {
            match world.nri.absent_plugins().as_slice() {
                [one] if one.absence == nri::Absence::Down => return one.clone(),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let absent = tokio::time::timeout(SOON, absent).await.unwrap();
    assert_eq!(absent.name, "10-broken");
    assert_eq!(
        absent.reason,
        "it did not join: connection closed; its process ended: exit status: 3"
    );
    let mut said: Vec<_> =
        absent.output.iter().map(|line| (line.stream.name(), line.text.as_str())).collect();
    said.sort_unstable();
    assert_eq!(said, [("stderr", "two"), ("stdout", "one")]);
    world.nri.shutdown().await;
}

/// A child of it may hold its pipes for ever.
#[tokio::test]
async fn a_program_that_prints_without_end_hurts_nobody() {
    let dirs = Dirs::new();
    dirs.program("10-loud", "while :; do echo loud; done");
    dirs.program(
        "20-left",
        "exec 3>&-\nwhile :; do :; done &\necho $! > \"${0%/*}/../pid\"\nexit 0",
    );
    let mut settings = dirs.settings();
    settings.registration_timeout = Duration::from_millis(300);
    for name in ["loud", "left"] {
        let dead = PluginPolicy { restart: None, ..Default::default() };
        settings.plugins.insert(name.to_owned(), dead);
    }
    let world = World::with(settings).await;
    let _live = connect(&world, &dirs.path("run/nri.sock"), "30-a").await.unwrap();
    world.wait_for_plugins(&["30-a"]).await;
    world.create("c").await.unwrap();
    let both = async {
        while world.nri.absent_plugins().iter().filter(|p| p.absence == nri::Absence::Down).count()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, both).await.unwrap();
    assert_eq!(world.nri.absent_plugins()[0].output.len(), 20);
    let left: i32 = fs::read_to_string(dirs.path("pid")).unwrap().trim().parse().unwrap();
    let left = rustix::process::Pid::from_raw(left).unwrap();
    rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
    world.nri.shutdown().await;
}

// === reload ===

#[tokio::test]
async fn reloading_keeps_connections_and_changes_the_rest() {
    let dirs = Dirs::new();
    let world = World::with(dirs.settings()).await;
    let live = connect(&world, &dirs.path("run/nri.sock"), "10-a").await.unwrap();
    world.wait_for_plugins(&["10-a"]).await;

    // Settings that cannot be change nothing.
    let bad = Settings { request_timeout: Duration::ZERO, ..dirs.settings() };
    world.nri.reload(bad).await.unwrap_err();
    let mut unbindable = dirs.settings();
    fs::write(dirs.path("file"), "").unwrap();
    unbindable.socket = Some(dirs.path("file"));
    world.nri.reload(unbindable).await.unwrap_err();
    drop(connect(&world, &dirs.path("run/nri.sock"), "20-b").await.unwrap());
    world.wait_for_plugins(&["10-a"]).await;

    // Another socket and other fields; the connection stays.
    let mut other = dirs.settings();
    other.socket = Some(dirs.path("other.sock"));
    let fields = Some("Mounts".parse().unwrap());
    other.plugins.insert("a".to_owned(), PluginPolicy { fields, ..Default::default() });
    dirs.program("30-new", "exit 0");
    world.nri.reload(other.clone()).await.unwrap();
    assert!(!dirs.path("run/nri.sock").exists());
    assert_eq!(dirs.starts("30-new").len(), 1);
    assert_eq!(world.plugins(), ["10-a"]);
    world.create("c").await.unwrap();
    let refused = live.update(vec![update("c", 5)], vec![]).await;
    assert_eq!(refused.unwrap_err().code(), ttrpc::Code::InvalidArgument);
    drop(connect(&world, &dirs.path("other.sock"), "20-b").await.unwrap());

    // Off: plugins are told and gone.
    world.nri.reload(Settings { enabled: false, ..other }).await.unwrap();
    live.trunk.closed().await.unwrap();
    assert_eq!(world.told.count("10-a Shutdown"), 1);
    world.wait_for_plugins(&[]).await;
    world.nri.shutdown().await;
}

// === many at once ===

/// Callers on several threads, plugins that look for their turn, sleep, or take all at once: no
/// request and no answer is left lying anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_requests_by_many_threads_all_end() {
    let dirs = Dirs::new();
    let policy = PluginPolicy { concurrent: true, ..Default::default() };
    let plugins = [("many".to_owned(), policy)].into();
    // What is forgotten is not excused by the end of a plugin's time.
    let request_timeout = 3 * SOON;
    let world = World::with(Settings { plugins, request_timeout, ..dirs.settings() }).await;
    let socket = dirs.path("run/nri.sock");
    let mut live = Vec::new();
    for id in ["10-one", "20-many", "30-many", "40-one"] {
        live.push(connect(&world, &socket, id).await.unwrap());
    }
    world.wait_for_plugins(&["10-one", "20-many", "30-many", "40-one"]).await;
    let tasks = tokio_util::task::TaskTracker::new();
    for (callers, each) in [(1, 200), (2, 500), (32, 40)] {
        let creations = (0..callers).map(|caller| {
            let world = world.clone();
            tasks.spawn(async move {
                for number in 0..each {
                    let id = format!("{callers}-{caller}-{number}");
                    let created = tokio::time::timeout(SOON, world.create(&id)).await;
                    created.expect("it is not forgotten").unwrap();
                }
            })
        });
        for created in futures_util::future::join_all(creations).await {
            created.unwrap();
        }
    }
    assert_eq!(world.told.count("40-one CreateContainer"), 200 + 2 * 500 + 32 * 40);
}
