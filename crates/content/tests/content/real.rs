//! The same client against a registry that others wrote: Debian's `docker-registry`, filled
//! by `skopeo`.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use base::Kind;
use content::{AuthConfig, PullOptions};
use tempfile::TempDir;
use testkit::{
    image::{Compression, ImageBuilder, Index, Layer},
    registry::{Authority, Fault, Registry, Target},
};

use crate::support::Machine;

/// Password `p` of user `u`.
const HTPASSWD: &str = "u:$2b$05$BZ6Z/DyB8n.e/RR4PM12o.Kz1XsV9SfEOJCEZde4k3y4.QiNYD5f6\n";

struct Real {
    child: Child,
    host: String,
    home: TempDir,
}

impl Drop for Real {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `LONGSHORE_TEST_REGISTRY`, or where the package puts it.
fn programs() -> Option<PathBuf> {
    let registry = env::var_os("LONGSHORE_TEST_REGISTRY").map(PathBuf::from);
    let registry = registry.unwrap_or_else(|| "/usr/bin/docker-registry".into());
    (registry.exists() && Path::new("/usr/bin/skopeo").exists()).then_some(registry)
}

impl Real {
    /// With TLS and a password.
    fn start(program: &Path, authority: &Authority) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let path = |name: &str| home.path().join(name);
        let (certificate, key) = authority.server().expect("makes one");
        for (name, text) in [("cert", &*certificate), ("key", &*key), ("htpasswd", HTPASSWD)] {
            fs::write(path(name), text).expect("writes");
        }
        let at = home.path().display();
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {at}/data}}}}\n\
             http: {{addr: \"127.0.0.1:0\", tls: {{certificate: {at}/cert, key: {at}/key}}}}\n\
             auth: {{htpasswd: {{realm: here, path: {at}/htpasswd}}}}\n"
        );
        fs::write(path("config.yml"), config).expect("writes");
        let mut child = Command::new(program)
            .arg("serve")
            .arg(path("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let log = BufReader::new(child.stderr.take().expect("is piped"));
        let mut lines = log.lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("listening on ")).expect("listens");
        let host =
            line.split("listening on ").nth(1).and_then(|rest| rest.split(['"', ',']).next());
        let host = host.expect("says where").to_owned();
        // Else the pipe fills up and the registry stands still.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, host, home }
    }

    /// All platforms, under both tags.
    fn fill(&self, index: &Index) {
        let layout = self.home.path().join("layout");
        fs::create_dir(&layout).expect("creates");
        index.write_layout(&layout, "v1").expect("writes");
        let copied = Command::new("/usr/bin/skopeo")
            .args([
                "copy",
                "--quiet",
                "--all",
                "--preserve-digests",
                "--dest-tls-verify=false",
                "--dest-creds=u:p",
            ])
            .arg(format!("oci:{}:v1", layout.display()))
            .arg(format!("docker://{}/a/b:v1", self.host))
            .output()
            .expect("runs");
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    }
}

fn index() -> Index {
    let image = |platform: &str, seed: u64| {
        let layers = [(Compression::Gzip, 0), (Compression::Zstd, 1), (Compression::None, 2)];
        let layers = layers.map(|(compression, more)| {
            Layer::of_tar(&testkit::image::noise(300_000, seed + more), compression)
        });
        let builder = ImageBuilder::default().platform(platform);
        layers.into_iter().fold(builder, ImageBuilder::layer).build()
    };
    Index::of(vec![image("linux/amd64", 10), image("linux/arm64", 20), image("linux/arm/v7", 30)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_registry_is_pulled_from_over_tls_with_a_password_behind_a_dead_mirror() {
    let Some(program) = programs() else {
        return testkit::skip("real registry", "docker-registry and skopeo are not installed");
    };
    let authority = Authority::new().expect("makes one");
    let (real, index) = (Real::start(&program, &authority), index());
    real.fill(&index);
    let dead = Registry::start().await.expect("starts");
    dead.fault(Target::Everything, Fault::Hang);

    let machine = Machine::new();
    let dir = machine.home.path().join("certs.d").join(&real.host);
    fs::create_dir_all(&dir).expect("creates");
    fs::write(dir.join("ca.pem"), authority.pem()).expect("writes");
    let hosts = format!(
        "server = \"https://{}\"\nca = \"ca.pem\"\n[host.\"{}\"]\ndial_timeout = \"100ms\"\n",
        real.host,
        dead.url()
    );
    fs::write(dir.join("hosts.toml"), hosts).expect("writes");
    let options = |platform: &str, password: &str| PullOptions {
        auth: AuthConfig {
            username: "u".to_owned(),
            password: password.to_owned(),
            ..AuthConfig::default()
        },
        platform: Some(platform.parse().expect("a platform")),
        ..PullOptions::default()
    };
    let by_tag = format!("{}/a/b:v1", real.host);
    let by_digest = format!("{}/a/b@{}", real.host, index.blob.digest);
    for (name, platform, at) in [(&by_tag, "linux/amd64", 0), (&by_digest, "linux/arm/v8", 2)] {
        let pulled = machine.pull_with(name, options(platform, "p")).await;
        let pulled = pulled.unwrap_or_else(|e| panic!("{name}: {}", base::Chain(&e)));
        assert_eq!(pulled.root, index.blob.digest, "skopeo and the registry kept the bytes");
        assert_eq!(pulled.id, *index.images[at].id());
        machine.assert_whole(&index.images[at]);
    }
    let refused = machine.pull_with(&by_tag, options("linux/amd64", "wrong")).await;
    assert_eq!(refused.expect_err("is wrong").kind(), Kind::FailedPrecondition);
    let missing = format!("{}/a/b:v2", real.host);
    let missing = machine.pull_with(&missing, options("linux/amd64", "p")).await;
    assert_eq!(missing.expect_err("is not there").kind(), Kind::NotFound);
}
