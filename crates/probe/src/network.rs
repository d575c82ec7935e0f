//! CNI programs, CNI configuration, and the packet filter they use.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

use crate::{
    host::{HostPaths, Settings, is_program, read},
    program::{Deadline, run},
    report::Row,
};

const GROUP: &str = "network";

/// What a plain bridge network is made of.
const PROGRAMS: [&str; 5] = ["loopback", "bridge", "host-local", "portmap", "firewall"];

/// A network configuration list, or a single one seen as a list of one.
#[derive(Debug, Deserialize)]
struct List {
    name: String,
    plugins: Vec<Plugin>,
}

#[derive(Debug, Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    ipam: Ipam,
}

#[derive(Debug, Default, Deserialize)]
struct Ipam {
    #[serde(rename = "type", default)]
    kind: String,
}

pub(crate) fn rows(host: &HostPaths, settings: &Settings) -> Vec<Row> {
    vec![programs(settings), configuration(settings), filter(host, settings)]
}

fn find(settings: &Settings, name: &str) -> Option<PathBuf> {
    settings.cni_bin_dirs.iter().map(|dir| dir.join(name)).find(|path| is_program(path))
}

fn programs(settings: &Settings) -> Row {
    let (have, missing): (Vec<_>, Vec<_>) =
        PROGRAMS.into_iter().partition(|name| find(settings, name).is_some());
    let row = Row::ok(GROUP, "CNI programs", have.join(", "));
    if missing.is_empty() {
        return row;
    }
    let dirs: Vec<_> = settings.cni_bin_dirs.iter().map(|dir| dir.display().to_string()).collect();
    let found = if have.is_empty() { "none".to_owned() } else { row.found.clone() };
    let (missing, dirs) = (missing.join(", "), dirs.join(", "));
    Row { found, ..row }
        .warn(format!("no {missing} in {dirs}: only networks that bring their own programs work"))
        .remedy("install the package containernetworking-plugins, or set the CNI directories")
}

fn configuration(settings: &Settings) -> Row {
    let dir = settings.cni_conf_dir.display();
    let row = Row::ok(GROUP, "CNI configuration", "none");
    let Some(file) = first_configuration(&settings.cni_conf_dir) else {
        return row
            .warn(format!("{dir} has no configuration: pods wait for their network"))
            .remedy("install a network add-on, or write a .conflist there");
    };
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let list = match parse(&file) {
        Ok(list) => list,
        Err(why) => {
            return Row { found: name, ..row }
                .fail(format!("it cannot be used: {why}"))
                .remedy(format!("correct or remove {}", file.display()));
        }
    };
    let chain: Vec<_> = list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
    let row = Row { found: format!("{name}: {} ({})", list.name, chain.join(", ")), ..row };
    let ipam = list.plugins.iter().map(|plugin| plugin.ipam.kind.as_str());
    let needed = chain.iter().copied().chain(ipam.filter(|kind| !kind.is_empty()));
    let missing: Vec<_> = needed.filter(|kind| find(settings, kind).is_none()).collect();
    if missing.is_empty() {
        return row;
    }
    row.fail(format!("it names programs that are not installed: {}", missing.join(", ")))
        .remedy("install them, or correct the configuration")
}

/// The first in the order of names is the default network.
fn first_configuration(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    entries
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("conf" | "conflist" | "json"))
        })
        .min()
}

fn parse(file: &Path) -> Result<List, String> {
    let text = read(file).map_err(|error| error.to_string())?;
    let list: List = if file.extension().is_some_and(|extension| extension == "conflist") {
        serde_json::from_str(&text).map_err(|error| error.to_string())?
    } else {
        let plugin: Plugin = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let name = serde_json::from_str::<serde_json::Value>(&text).ok();
        let name = name.and_then(|value| Some(value.get("name")?.as_str()?.to_owned()));
        List { name: name.ok_or("it has no name")?, plugins: vec![plugin] }
    };
    match list.plugins.as_slice() {
        [] => Err("it has no plugins".into()),
        plugins if plugins.iter().any(|plugin| !is_plain(&plugin.kind)) => {
            Err("the type of a plugin is not the plain name of a program".into())
        }
        _ => Ok(list),
    }
}

/// A type with a slash would run a program from anywhere.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

fn filter(host: &HostPaths, settings: &Settings) -> Row {
    const LISTS: [(&str, &[&str]); 2] = [
        ("iptables", &["-w", "2", "-t", "nat", "-S", "POSTROUTING"]),
        ("nft", &["list", "tables"]),
    ];
    let row = Row::ok(GROUP, "packet filter", "none");
    let install = "install the package iptables";
    let mut complaints = Vec::new();
    for (name, list) in LISTS {
        let Some(path) = host.program(name) else { continue };
        match run(Command::new(&path).args(list), Deadline::after(settings.limit)) {
            Ok(ended) if ended.status.success() && name == "iptables" => {
                return Row { found: format!("iptables ({})", path.display()), ..row };
            }
            Ok(ended) if ended.status.success() => {
                return Row { found: format!("nft ({})", path.display()), ..row }
                    .warn("CNI bridge and portmap use iptables unless told to use nftables")
                    .remedy(install);
            }
            Ok(ended) => complaints.push(format!("{name}: {}", ended.complaint())),
            Err(error) => complaints.push(format!("{name}: {error}")),
        }
    }
    let lost = "masquerading and host ports of CNI networks do not work";
    match complaints.is_empty() {
        true => row.warn(lost).remedy(install),
        false => Row { found: "does not work".into(), ..row }
            .warn(format!("{lost}: {}", complaints.join("; ")))
            .remedy("run as root, with the nf_tables and nf_nat modules of the kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect, misbehaving},
    };

    #[track_caller]
    fn check(fake: &FakeHost, name: &str, want: Verdict, text: &str) {
        expect(&rows(&fake.paths, &fake.settings()), name, want, text);
    }

    fn with_programs() -> FakeHost {
        let fake = FakeHost::good();
        for name in PROGRAMS {
            fake.link("/bin/true", &format!("usr/lib/cni/{name}"));
        }
        fake
    }

    #[test]
    fn programs_fail() {
        let fake = with_programs();
        check(&fake, "CNI programs", Verdict::Ok, "bridge");
        fake.remove("usr/lib/cni/bridge");
        check(&fake, "CNI programs", Verdict::Warn, "no bridge in");
        fake.remove("usr/lib/cni");
        check(&fake, "CNI programs", Verdict::Warn, "none");
    }

    #[test]
    fn configuration_fails() {
        let fake = with_programs();
        let row = "CNI configuration";
        check(&fake, row, Verdict::Warn, "no configuration");
        fake.write("etc/cni/net.d/README", "not one");
        check(&fake, row, Verdict::Warn, "no configuration");
        fake.write(
            "etc/cni/net.d/10-net.conflist",
            r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#,
        );
        check(&fake, row, Verdict::Ok, "pods (bridge, portmap)");
        fake.remove("usr/lib/cni/host-local");
        check(&fake, row, Verdict::Fail, "not installed: host-local");
        for (text, said) in [
            ("{", "EOF"),
            (r#"{"name":"x","plugins":[]}"#, "no plugins"),
            (r#"{"plugins":[{"type":"bridge"}]}"#, "name"),
            (r#"{"name":"x","plugins":[{"type":"../../bin/sh"}]}"#, "plain name"),
        ] {
            fake.write("etc/cni/net.d/05-first.conflist", text);
            check(&fake, row, Verdict::Fail, said);
        }
    }

    #[test]
    fn a_single_configuration_is_a_list_of_one() {
        let fake = with_programs();
        fake.write("etc/cni/net.d/1.conf", r#"{"name":"one","type":"bridge"}"#);
        check(&fake, "CNI configuration", Verdict::Ok, "one (bridge)");
        fake.write("etc/cni/net.d/0.conf", r#"{"type":"bridge"}"#);
        check(&fake, "CNI configuration", Verdict::Fail, "no name");
    }

    #[test]
    fn packet_filter_fails() {
        let fake = FakeHost::good();
        check(&fake, "packet filter", Verdict::Warn, "install the package iptables");
        fake.link("/bin/false", "bin/iptables");
        check(&fake, "packet filter", Verdict::Warn, "exit status: 1");
        fake.link("/bin/true", "bin/nft");
        check(&fake, "packet filter", Verdict::Warn, "use nftables");
        fake.remove("bin/iptables");
        fake.link("/bin/true", "bin/iptables");
        check(&fake, "packet filter", Verdict::Ok, "iptables");
    }

    #[test]
    fn a_hanging_packet_filter_is_ended() {
        let fake = FakeHost::good();
        fake.link(misbehaving("hangs"), "bin/iptables");
        let settings = Settings { limit: std::time::Duration::from_millis(200), ..fake.settings() };
        let rows = rows(&fake.paths, &settings);
        expect(&rows, "packet filter", Verdict::Warn, "did not end within 200ms");
    }
}
