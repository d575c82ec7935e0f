//! What the demo shows: an image made offline, a container that serves a page, and a daemon
//! that is killed in the middle without anybody noticing.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};

use super::{Daemon, Demo, line, say};

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
    demo.show(&["ps"])?;
    demo.show(&["image", "rm", IMAGE])?;
    Ok(())
}

impl Demo {
    /// Runs `longshore` as a person would, shows what it says and returns it.
    fn show(&self, args: &[&str]) -> Result<String> {
        let mut command = self.longshore();
        command.env("LONGSHORE_CRI_SOCKET", self.socket()).args(args);
        say(&line(&command));
        let Output { status, stdout, stderr } = command.output().context("run longshore")?;
        let said = String::from_utf8_lossy(&stdout).into_owned();
        print!("{said}");
        ensure!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr).trim());
        Ok(said)
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
    for applet in ["sh", "echo", "cat", "httpd", "sleep"] {
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
