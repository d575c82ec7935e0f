//! Volumes and limits as people write them for `longshore run`.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use api_cri::v1::{LinuxContainerResources, Mount};
use base::ByteSize;

/// Microseconds over which the kernel measures what a container uses of the CPUs.
const CPU_PERIOD: i64 = 100_000;

/// The kernel takes no quota below this.
const LEAST_CPU_QUOTA: i64 = 1_000;

/// Parses `HOST:CONTAINER[:ro|rw]`. A relative path of the host is meant from `cwd`.
pub(super) fn volume(text: &str, cwd: &Path) -> anyhow::Result<Mount> {
    let parts: Vec<_> = text.split(':').collect();
    let (host, container, readonly) = match parts[..] {
        [host, container] | [host, container, "rw"] => (host, container, false),
        [host, container, "ro"] => (host, container, true),
        _ => bail!("--volume {text:?} is not HOST:CONTAINER or HOST:CONTAINER:ro"),
    };
    ensure!(!host.is_empty(), "--volume {text:?} names no path of the host");
    ensure!(container.starts_with('/'), "--volume {text:?}: {container:?} is not absolute");
    let host_path = cwd.join(host);
    ensure!(host_path.exists(), "--volume {text:?}: there is no {} here", host_path.display());
    Ok(Mount {
        host_path: host_path.to_string_lossy().into_owned(),
        container_path: container.to_owned(),
        readonly,
        ..Default::default()
    })
}

/// Returns what is given of both.
pub(super) fn resources(
    memory: Option<&str>,
    cpus: Option<&str>,
) -> anyhow::Result<LinuxContainerResources> {
    let mut resources = LinuxContainerResources::default();
    if let Some(text) = memory {
        resources.memory_limit_in_bytes =
            bytes(text).with_context(|| format!("--memory {text}"))?;
    }
    if let Some(text) = cpus {
        resources.cpu_quota = quota(text)?;
        resources.cpu_period = CPU_PERIOD;
    }
    Ok(resources)
}

/// Takes `512MiB` and the like, and the letters of docker, which are binary: `512m`.
fn bytes(text: &str) -> anyhow::Result<i64> {
    let unit = match text.to_ascii_lowercase().chars().last() {
        Some('k') => "KiB",
        Some('m') => "MiB",
        Some('g') => "GiB",
        _ => "",
    };
    let whole = match unit {
        "" => text.to_owned(),
        unit => format!("{}{unit}", &text[..text.len() - 1]),
    };
    let ByteSize(bytes) = whole.parse()?;
    ensure!(bytes > 0, "must be more than nothing");
    i64::try_from(bytes).context("too large")
}

fn quota(text: &str) -> anyhow::Result<i64> {
    let wrong = || format!("--cpus {text:?} is not a number of CPUs such as 0.5 or 2");
    let cpus: f64 =
        text.parse().ok().filter(|cpus| (0.0..=8192.0).contains(cpus)).with_context(wrong)?;
    #[expect(clippy::cast_possible_truncation, reason = "it was checked to be small")]
    let quota = (cpus * 100_000.0).round() as i64;
    ensure!(quota >= LEAST_CPU_QUOTA, "--cpus {text}: the least is 0.01");
    Ok(quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_paths_of_the_host() {
        let parse = |text: &str| volume(text, Path::new("/usr")).map_err(|e| e.to_string());
        let mount = parse("/etc:/in").unwrap();
        assert_eq!(
            (&*mount.host_path, &*mount.container_path, mount.readonly),
            ("/etc", "/in", false)
        );
        let mount = parse("bin:/in:ro").unwrap();
        assert_eq!((&*mount.host_path, mount.readonly), ("/usr/bin", true));
        assert!(!parse("bin:/in:rw").unwrap().readonly);
        for (text, why) in [
            ("/etc", "is not HOST:CONTAINER"),
            ("/etc:/in:z", "is not HOST:CONTAINER"),
            (":/in", "names no path of the host"),
            ("/etc:in", "\"in\" is not absolute"),
            ("no-such:/in", "there is no /usr/no-such here"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn limits_are_those_of_docker() {
        let memory = |text: &str| {
            resources(Some(text), None)
                .map(|it| it.memory_limit_in_bytes)
                .map_err(|e| format!("{e:#}"))
        };
        assert_eq!(memory("512m"), Ok(512 << 20));
        assert_eq!(memory("1G"), Ok(1 << 30));
        assert_eq!(memory("2MiB"), Ok(2 << 20));
        assert_eq!(memory("4096"), Ok(4096));
        assert_eq!(memory("0"), Err("--memory 0: must be more than nothing".to_owned()));
        assert!(memory("much").unwrap_err().contains("\"much\" is not a size"));
        let cpus = |text: &str| {
            let resources = resources(None, Some(text)).map_err(|e| e.to_string())?;
            Ok::<_, String>((resources.cpu_quota, resources.cpu_period))
        };
        assert_eq!(cpus("1.5"), Ok((150_000, 100_000)));
        assert_eq!(cpus("0.01"), Ok((1_000, 100_000)));
        for bad in ["0", "-1", "0.001", "NaN", "many", "1e9"] {
            assert!(cpus(bad).unwrap_err().starts_with("--cpus"), "{bad}");
        }
    }
}
