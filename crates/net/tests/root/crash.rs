//! Daemons that are killed.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    time::Duration,
};

use base::Id;
use net::Networks;
use store::Store;

use crate::world::{self, Netns, World, block_on, eventually};

/// What a daemon shall do: `<add|del> <dir> <netns> <pod id>`.
pub(crate) const DAEMON: &str = "NET_ROOT_DAEMON";

/// The other process: does its one thing and then waits to be killed.
pub(crate) fn daemon() -> ExitCode {
    let wanted = env::var(DAEMON).unwrap();
    let words: Vec<_> = wanted.split(' ').collect();
    let (what, dir, netns) = (words[0], PathBuf::from(words[1]), PathBuf::from(words[2]));
    let id: Id = words[3].parse().unwrap();
    block_on(async {
        let store = Store::open(dir.join("state")).unwrap();
        let networks = Networks::open(world::config(&dir), &store).await.unwrap();
        let pod = net::PodNet { id, ..world::pod(&netns) };
        let done = match what {
            "add" => networks.add(pod).await.map(drop),
            _ => networks.del(&id).await,
        };
        std::fs::write(dir.join("done"), format!("{done:?}")).unwrap();
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

pub(crate) struct Daemon(Child);

impl Daemon {
    pub(crate) fn start(what: &str, dir: &Path, netns: &Netns, id: &Id) -> Self {
        let wanted = format!("{what} {} {} {id}", dir.display(), netns.path.display());
        let exe = env::current_exe().unwrap();
        Self(Command::new(exe).env(DAEMON, wanted).spawn().unwrap())
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The store is the daemon's as long as it lives.
fn lend(world: World) -> PathBuf {
    block_on(world.store.close()).unwrap();
    world.dir
}

pub(crate) fn an_add_that_outlives_its_daemon_attaches_nothing(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    // Slow enough that the next daemon is there before it ends.
    world.mode("a.ADD", ": > $lease.begun; sleep 2");
    let netns = world.netns();
    let id = Id::random();
    let dir = lend(world);
    let mut daemon = Daemon::start("add", &dir, &netns, &id);
    eventually("the ADD began", || !world::entries(&dir.join("leases")).is_empty());
    daemon.kill();
    let world = World::new(&dir);
    world.mode("a.DEL", "rm -f $lease.begun");
    block_on(async {
        let networks = world.open().await;
        eventually("undone", || networks.leftovers().is_empty());
        assert_eq!(networks.result(&id), None);
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(world.leases(), [""; 0], "the old ADD went on");
    });
}

pub(crate) fn killed_between_add_and_record(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    // Its parent is the daemon: dead with the lease taken and no answer heard.
    world.mode("a.ADD", ": > $lease; kill -9 $PPID; exit 0");
    let netns = world.netns();
    let id = Id::random();
    let dir = lend(world);
    let mut daemon = Daemon::start("add", &dir, &netns, &id);
    daemon.0.wait().unwrap();
    assert_eq!(world::entries(&dir.join("leases")).len(), 1);
    let world = World::new(&dir);
    block_on(async {
        let networks = world.open().await;
        eventually("undone", || networks.leftovers().is_empty());
        assert_eq!((networks.result(&id), world.leases()), (None, vec![]));
        // And the same pod can be attached.
        world.mode("a.ADD", "");
        let pod = net::PodNet { id, ..world.pod(&netns) };
        networks.add(pod).await.unwrap();
        networks.del(&id).await.unwrap();
    });
}

pub(crate) fn a_del_that_was_asked_for_is_done(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    let netns = world.netns();
    let pod = world.pod(&netns);
    block_on(async {
        let networks = world.open().await;
        networks.add(pod.clone()).await.unwrap();
        networks.close().await;
    });
    world.mode("a.DEL", ": > $lease.begun; sleep 300");
    let dir = lend(world);
    let mut daemon = Daemon::start("del", &dir, &netns, &pod.id);
    eventually("the DEL began", || world::entries(&dir.join("leases")).len() == 2);
    daemon.kill();
    netns.remove();
    let world = World::new(&dir);
    world.mode("a.DEL", "rm -f $lease.begun");
    world.calls();
    block_on(async {
        let networks = world.open().await;
        eventually("done", || networks.leftovers().is_empty());
        assert_eq!(world.calls(), ["DEL a eth0 gone"]);
        assert_eq!(world.leases(), [""; 0]);
    });
}

pub(crate) fn a_pod_that_was_attached_stays(dir: &Path) {
    let world = World::new(dir);
    world.network("1.0.0", &["a"]);
    let netns = world.netns();
    let id = Id::random();
    let dir = lend(world);
    let mut daemon = Daemon::start("add", &dir, &netns, &id);
    eventually("the ADD is done", || dir.join("done").exists());
    daemon.kill();
    let world = World::new(&dir);
    block_on(async {
        let networks = world.open().await;
        assert_eq!(networks.leftovers(), []);
        let result = networks.result(&id).unwrap();
        assert_eq!(result.ips, ["10.240.0.7".parse::<std::net::IpAddr>().unwrap()]);
        networks.del(&id).await.unwrap();
        assert_eq!(world.leases(), [""; 0]);
    });
}
