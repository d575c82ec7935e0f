//! What the demo shows: an image made offline, a container that serves a page, a daemon that
//! is killed in the middle without anybody noticing, two pods on a network, and plugins that
//! agree and disagree about a container.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, ExitStatus, Output},
    thread,
};

use anyhow::{Context, Result, bail, ensure};

use super::{Daemon, Demo, PATIENCE, TICK, line, say, ticks};
use crate::bin_dir;

/// The sample of the SDK that is shown.
pub(super) const PLUGIN: &str = "ulimit-adjuster";

const IMAGE: &str = "demo/busybox:1";
const POD: &str = "web";
const PAGE: &str = "hello from a container";

pub(super) fn walk(demo: &Demo, daemon: &mut Daemon) -> Result<()> {
    let port = free_port()?;
    let folder = demo.dir.join("rootfs");
    busybox(&folder)?;
    let serve = format!("echo serving on {port}; exec httpd -f -p 127.0.0.1:{port} -h /www");
    let folder = folder.to_string_lossy();
    demo.show(&["image", "build-rootfs", &folder, IMAGE, "--", "/bin/sh", "-c", &serve])?;
    demo.show(&["image", "ls"])?;
    demo.show(&["run", "-d", "--name", POD, IMAGE])?;
    demo.show(&["ps"])?;
    let url = format!("http://127.0.0.1:{port}/");
    page(&url)?;
    demo.show(&["logs", POD])?;
    demo.show(&["exec", POD, "cat", "/www/index.html"])?;

    say("kill -9 of the daemon");
    daemon.kill_9()?;
    page(&url).context("the container is gone with its daemon")?;
    *daemon = demo.start()?;
    demo.wait_for_answer(daemon)?;
    demo.show(&["ps"])?;
    let again = demo.show(&["exec", POD, "cat", "/www/index.html"])?;
    ensure!(again.contains(PAGE), "the new daemon does not reach the container");

    demo.show(&["rm", "-f", POD])?;
    network(demo)?;
    plugins(demo, daemon)?;
    demo.show(&["ps"])?;
    demo.show(&["image", "rm", IMAGE])?;
    Ok(())
}

/// A plugin has a hand in a container; a second one wants the same, and both are named.
fn plugins(demo: &Demo, daemon: &Daemon) -> Result<()> {
    let program = bin_dir()?.join("examples").join(PLUGIN);
    let dir = demo.dir.join("lib/nri/plugins");
    fs::create_dir_all(&dir).context("make a directory for plugins")?;
    install(demo, daemon, &program, &dir.join("10-ulimits"))?;
    let asked = "ulimits.noderesource.dev/pod=[{type: nofile, hard: 321, soft: 123}]";
    let run = |name| {
        let limit = ["--annotation", asked, IMAGE, "sleep", "1000"];
        [&["run", "-d", "--name", name][..], &limit].concat()
    };
    demo.show(&run("limited"))?;
    let limit = demo.show(&["exec", "limited", "sh", "-c", "ulimit -n"])?;
    ensure!(limit.trim() == "123", "the plugin's limit is not in the container: {limit}");
    let story = demo.show(&["nri", "explain", "limited/busybox"])?;
    let row = |line: &str| line.starts_with("Rlimits") && line.ends_with("10-ulimits");
    ensure!(story.lines().any(row), "who set it is not told: {story}");

    install(demo, daemon, &program, &dir.join("20-rival"))?;
    let refused = demo.refused(&run("contested"))?;
    let both = refused.contains("10-ulimits") && refused.contains("20-rival");
    ensure!(both, "not both plugins are named: {refused}");
    fs::remove_dir_all(&dir).context("remove the plugins")?;
    daemon.signal("HUP")?;
    demo.show(&["rm", "-f", "limited"]).map(drop)
}

fn install(demo: &Demo, daemon: &Daemon, program: &Path, to: &Path) -> Result<()> {
    fs::copy(program, to).context("install a plugin")?;
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    say(&format!("a plugin is installed as {name}, SIGHUP"));
    daemon.signal("HUP")?;
    for _ in 0..ticks(PATIENCE) {
        if demo.quietly(&["nri", "plugins"])?.1.contains(&*name) {
            return demo.show(&["nri", "plugins"]).map(drop);
        }
        thread::sleep(TICK);
    }
    bail!("plugin {name} did not join within {PATIENCE:?}")
}

/// Two pods with addresses of their own: one serves, the other and the host ask.
fn network(demo: &Demo) -> Result<()> {
    let serve = ["httpd", "-f", "-p", "80", "-h", "/www"];
    let publish = ["run", "-d", "--name", "site", "-p", "8080:80", IMAGE];
    demo.show(&[&publish[..], &serve].concat())?;
    let beside = ["run", "-d", "--name", "guest", "--network", "pod", IMAGE];
    demo.show(&[&beside[..], &["sleep", "1000"]].concat())?;
    let pods = demo.show(&["ps"])?;
    let ip = address_of(&pods, "site").context("the pod has no address")?;
    let url = format!("http://{ip}/");
    let heard = demo.show(&["exec", "guest", "wget", "-qO-", &url])?;
    ensure!(heard.contains(PAGE), "one pod does not reach the other");
    page("http://10.89.0.1:8080/").context("the published port is not reached")?;
    demo.show(&["rm", "-f", "site", "guest"])?;
    let leases = fs::read_dir(demo.dir.join("leases/demo")).context("look at the leases")?;
    let names = leases.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let held: Vec<_> = names.filter(|name| name.starts_with("10.89.")).collect();
    ensure!(held.is_empty(), "addresses are left: {}", held.join(", "));
    Ok(())
}

/// In the list of `longshore ps`.
fn address_of<'a>(list: &'a str, pod: &str) -> Option<&'a str> {
    let row = list.lines().find(|line| line.split_whitespace().next() == Some(pod))?;
    row.split_whitespace().find(|word| word.parse::<std::net::IpAddr>().is_ok())
}

impl Demo {
    /// Runs `longshore` as a person would, shows what it says and returns it.
    fn show(&self, args: &[&str]) -> Result<String> {
        say(&line(&self.command(args)));
        let (status, said, complaint) = self.quietly(args)?;
        print!("{said}");
        ensure!(status.success(), "{status}: {complaint}");
        Ok(said)
    }

    /// The same for what must not succeed; returns the complaint.
    fn refused(&self, args: &[&str]) -> Result<String> {
        say(&line(&self.command(args)));
        let (status, _, complaint) = self.quietly(args)?;
        println!("{complaint}");
        ensure!(!status.success(), "it was not refused");
        Ok(complaint)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.longshore();
        command.env("LONGSHORE_CRI_SOCKET", self.socket()).args(args);
        command
    }

    /// How it ended, what it said and what it complained of.
    fn quietly(&self, args: &[&str]) -> Result<(ExitStatus, String, String)> {
        let output = self.command(args).output().context("run longshore")?;
        let Output { status, stdout, stderr } = output;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((status, text(stdout), text(stderr).trim().to_owned()))
    }
}

/// Taken from the kernel a moment before it is used; nobody else is likely to get it.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

fn busybox(folder: &Path) -> Result<()> {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).context("make the image's folder")?;
    fs::create_dir_all(folder.join("www")).context("make the image's folder")?;
    fs::copy("/bin/busybox", bin.join("busybox")).context("copy busybox")?;
    for applet in ["sh", "echo", "cat", "httpd", "sleep", "wget"] {
        symlink("busybox", bin.join(applet)).context("make the image's folder")?;
    }
    fs::write(folder.join("www/index.html"), format!("{PAGE}\n")).context("write the page")
}

fn page(url: &str) -> Result<()> {
    say(&format!("busybox wget -qO- {url}"));
    // It listens a moment after its start.
    let fetch = "for i in 1 2 3 4 5 6 7 8 9 10; do busybox wget -qO- \"$0\" && exit; sleep 0.2; done; exit 1";
    let output = Command::new("sh").args(["-c", fetch, url]).output().context("run wget")?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    ensure!(output.status.success(), "the page is not served at {url}");
    Ok(())
}
