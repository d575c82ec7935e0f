//! Stand-ins for every public image that critest asks for.
//!
//! What the specs want of them was learnt from specs that failed: applets are hard links (one
//! masks `/bin/ls` alone), nginx says "master process" in its title, httpd says its name,
//! `pause` is another image than the rest because its tags are counted.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::{
    image::{Image, ImageBuilder, Index, Layer, LayerBuilder},
    registry::Registry,
};

use crate::packages::{Programs, libraries};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const BUSYBOX: &str = "/bin/busybox";
const STAGING: &str = "k8s-staging-cri-tools";
const E2E: &str = "e2e-test-images";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                      bin:x:2:2:bin:/bin:/bin/false\n\
                      www-data:x:33:33:www:/var/www:/bin/false\n\
                      nobody:x:65534:65534:nobody:/home:/bin/false\n";
const GROUP: &str = "root:x:0:\nbin:x:2:\nwww-data:x:33:\nusers:x:100:\nnogroup:x:65534:\n";

/// Debian's static busybox lacks it.
const PGREP: &str = "#!/bin/sh
found=1
for dir in /proc/[0-9]*; do
  pid=${dir#/proc/}
  [ \"$pid\" = $$ ] && continue
  read -r name 2>/dev/null < $dir/comm || continue
  case \"$name\" in *\"$1\"*) echo $pid; found=0 ;; esac
done
exit $found
";

/// And this.
const IPCS: &str = "#!/bin/sh
echo '------ Shared Memory Segments --------'
echo 'key shmid owner perms bytes nattch status'
awk 'NR > 1 { printf \"0x%08x %s %s %s %s %s\\n\", $1, $2, $8, $3, $4, $7 }' /proc/sysvipc/shm
";

/// Says whose rights it has; set-uid in the image.
const RIGHTS: &str = r#"
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("Effective uid: %d\n", (int)geteuid()); return 0; }
"#;

const WAIT: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";

/// Pushes all of them; returns the digest, in hex, of the one that is pulled by digest.
pub(crate) fn push_all(registry: &Registry, programs: &Programs) -> Result<String> {
    let base = busybox(programs)?;
    let shell = |more: &[Layer]| {
        let builder = ImageBuilder::default().set("Env", json!([PATH])).set("Cmd", json!(["sh"]));
        more.iter().fold(builder.layer(base.clone()), |builder, layer| builder.layer(layer.clone()))
    };
    push_pauses(registry)?;
    push_shells(registry, &shell);
    push_servers(registry, programs, &shell)?;
    let rights = LayerBuilder::default().file("nnp", 0o4755, &testkit::compiled(RIGHTS)?).build();
    let image = shell(&[rights]).set("Entrypoint", json!(["/nnp"])).set("Cmd", Value::Null);
    registry.push(&format!("{E2E}/nonewprivs"), "1.3", &image.build());
    push_users(registry, &shell);
    Ok(push_marked(registry, &shell))
}

type Shell<'a> = dyn Fn(&[Layer]) -> ImageBuilder + 'a;

fn push_pauses(registry: &Registry) -> Result<()> {
    let layer = LayerBuilder::default().file("pause", 0o755, &testkit::compiled(WAIT)?).build();
    let image = || {
        ImageBuilder::default()
            .layer(layer.clone())
            .set("Env", json!([PATH]))
            .set("Entrypoint", json!(["/pause"]))
            .set("User", json!("65535:65535"))
    };
    for tag in ["3.10", "latest"] {
        registry.push_index("pause", tag, &everywhere(image));
    }
    let counted = || image().set("Labels", json!({ "version": "3.9" }));
    registry.push_index("pause", "3.9", &everywhere(counted));
    Ok(())
}

fn push_shells(registry: &Registry, shell: &Shell<'_>) {
    let index = everywhere(|| shell(&[]));
    registry.push_index(&format!("{E2E}/busybox"), "1.29-2", &index);
    registry.push_index("library/busybox", "latest", &index);
    let labelled = shell(&[]).set("Labels", json!({ "from": "library" })).build();
    for tag in ["1", "1-glibc", "1-musl", "1-uclibc", "1.35.0-glibc", "latest"] {
        registry.push("docker/library/busybox", tag, &labelled);
    }
}

fn push_servers(registry: &Registry, programs: &Programs, shell: &Shell<'_>) -> Result<()> {
    let nginx = |port: u16| -> Result<ImageBuilder> {
        Ok(shell(&[nginx(programs, port)?])
            .set("Cmd", json!(["nginx", "-g", "daemon off;"]))
            .set("StopSignal", json!("SIGQUIT"))
            .set("ExposedPorts", json!({ "80/tcp": {} })))
    };
    let web = nginx(80)?;
    registry.push_index(&format!("{E2E}/nginx"), "1.14-2", &everywhere(|| web.clone().docker()));
    let host = nginx(12003)?.docker().build();
    registry.push(&format!("{STAGING}/hostnet-nginx-amd64"), "latest", &host);
    registry.push(&format!("{STAGING}/hostnet-nginx-arm64"), "latest", &host);
    let serve = "echo httpd: serving on 80; exec httpd -f -vv -p 80 -h /var/www";
    let httpd = shell(&[]).set("Cmd", json!(["sh", "-c", serve])).build();
    registry.push(&format!("{E2E}/httpd"), "2.4.39-4", &httpd);
    Ok(())
}

fn push_users(registry: &Registry, shell: &Shell<'_>) {
    for (name, user) in [
        ("user-uid", "1002"),
        ("user-username", "www-data"),
        ("user-uid-group", "1003:users"),
        ("user-username-group", "www-data:100"),
    ] {
        let image = shell(&[]).set("User", json!(user)).build();
        registry.push(&format!("{STAGING}/test-image-{name}"), "latest", &image);
    }
    let passwd = format!("{PASSWD}default-user:x:1000:1000::/home/default-user:/bin/sh\n");
    let group =
        format!("{GROUP}default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n");
    let layer = LayerBuilder::default()
        .file("etc/passwd", 0o644, passwd.as_bytes())
        .file("etc/group", 0o644, group.as_bytes())
        .dir("home/default-user", 0o755)
        .build();
    let image = shell(&[layer]).set("User", json!("1000")).build();
    registry.push(&format!("{STAGING}/test-image-predefined-group"), "latest", &image);
}

fn push_marked(registry: &Registry, shell: &Shell<'_>) -> String {
    let marked = |mark: &str| -> Image {
        let layer = LayerBuilder::default().file(&format!("marker-{mark}"), 0o644, mark.as_bytes());
        shell(&[layer.build()]).build()
    };
    let push = |name: &str, tag: &str, image: &Image| {
        registry.push(&format!("{STAGING}/test-image-{name}"), tag, image);
    };
    push("latest", "latest", &marked("latest"));
    push("tag", "test", &marked("tag"));
    push("tag", "all", &marked("all"));
    for number in ["1", "2", "3"] {
        push(number, "latest", &marked(number));
        push("tags", number, &marked("tags"));
    }
    let by_digest = marked("digest");
    push("digest", "latest", &by_digest);
    by_digest.manifest.digest.hex().to_owned()
}

/// The same for two platforms.
fn everywhere(image: impl Fn() -> ImageBuilder) -> Index {
    Index::of(["linux/amd64", "linux/arm64"].map(|name| image().platform(name).build()).to_vec())
}

fn busybox(programs: &Programs) -> Result<Layer> {
    let mut layer = LayerBuilder::default();
    for dir in [
        "bin", "dev", "etc", "home", "proc", "root", "run", "sbin", "sys", "usr", "usr/bin",
        "usr/sbin", "var", "var/log", "var/www",
    ] {
        layer = layer.dir(dir, 0o755);
    }
    layer = layer.dir("tmp", 0o1777).dir("var/tmp", 0o1777);
    layer = layer.symlink("usr/bin/env", "/bin/env").symlink("var/run", "/run");
    layer = layer.file("bin/busybox", 0o755, &fs::read(BUSYBOX).context("read a busybox")?);
    let list = Command::new(BUSYBOX).arg("--list").output().context("run busybox")?;
    let list = String::from_utf8(list.stdout)?;
    for applet in list.lines().filter(|name| !["busybox", "sh"].contains(name)) {
        layer = layer.hard_link(&format!("bin/{applet}"), "bin/busybox");
    }
    for (name, script) in [("pgrep", PGREP), ("ipcs", IPCS)] {
        if !list.lines().any(|applet| applet == name) {
            layer = layer.file(&format!("bin/{name}"), 0o755, script.as_bytes());
        }
    }
    layer = layer.file("bin/sh", 0o755, &fs::read(&programs.shell)?);
    for (path, bytes) in libraries(&programs.shell)? {
        layer = layer.file(path.trim_start_matches('/'), 0o755, &bytes);
    }
    Ok(layer
        .file("etc/passwd", 0o644, PASSWD.as_bytes())
        .file("etc/group", 0o644, GROUP.as_bytes())
        .file("etc/nsswitch.conf", 0o644, b"passwd: files\ngroup: files\nhosts: files dns\n")
        .file("var/www/index.html", 0o644, b"<html><body>It works</body></html>\n")
        .build())
}

fn nginx(programs: &Programs, port: u16) -> Result<Layer> {
    let config = format!(
        "user www-data;\nworker_processes 1;\nerror_log /dev/stderr notice;\npid /run/nginx.pid;\n\
         events {{ worker_connections 64; }}\n\
         http {{\n  access_log /dev/stdout;\n\
         server {{ listen {port}; root /usr/share/nginx/html; index index.html; }}\n}}\n"
    );
    let page = b"<html><title>Welcome to nginx!</title></html>\n";
    let mut layer = LayerBuilder::default()
        .file("usr/sbin/nginx", 0o755, &fs::read(&programs.nginx)?)
        .file("etc/nginx/nginx.conf", 0o644, config.as_bytes())
        .file("usr/share/nginx/html/index.html", 0o644, page)
        .dir("var/lib/nginx", 0o755)
        .dir("var/log/nginx", 0o755);
    for (path, bytes) in libraries(&programs.nginx)? {
        layer = layer.file(path.trim_start_matches('/'), 0o755, &bytes);
    }
    Ok(layer.build())
}
