//! `127.0.0.1:8080:80/udp`

use anyhow::{Context, bail};
use api_cri::v1::{PortMapping, Protocol};

pub(super) fn parse(text: &str) -> anyhow::Result<PortMapping> {
    parts(text).with_context(|| {
        format!("--publish {text:?} is not [IP:]HOST:POD[/tcp|udp|sctp], e.g. 8080:80")
    })
}

fn parts(text: &str) -> anyhow::Result<PortMapping> {
    let (addresses, protocol) = text.rsplit_once('/').unwrap_or((text, "tcp"));
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        other => bail!("there is no protocol {other:?}"),
    };
    let (host, container) = addresses.rsplit_once(':').context("one port is missing")?;
    let (host_ip, host) = host.rsplit_once(':').unwrap_or(("", host));
    // As in a URL: an IPv6 address has colons of its own.
    let host_ip = host_ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host_ip);
    if !host_ip.is_empty() {
        let _: std::net::IpAddr = host_ip.parse().context("the address is none")?;
    }
    let mut mapping = PortMapping {
        container_port: port(container)?,
        host_port: port(host)?,
        host_ip: host_ip.to_owned(),
        ..Default::default()
    };
    mapping.set_protocol(protocol);
    Ok(mapping)
}

fn port(text: &str) -> anyhow::Result<i32> {
    let port: u16 = text.parse().with_context(|| format!("{text:?} is no port"))?;
    if port == 0 {
        bail!("port 0 cannot be published");
    }
    Ok(port.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let check = |text: &str, ip: &str, host: i32, container: i32, protocol: Protocol| {
            let got = parse(text).unwrap();
            assert_eq!((got.host_ip.as_str(), got.host_port), (ip, host), "{text}");
            assert_eq!((got.container_port, got.protocol()), (container, protocol), "{text}");
        };
        check("8080:80", "", 8080, 80, Protocol::Tcp);
        check("53:53/udp", "", 53, 53, Protocol::Udp);
        check("127.0.0.1:8080:80/sctp", "127.0.0.1", 8080, 80, Protocol::Sctp);
        check("[::1]:8080:80", "::1", 8080, 80, Protocol::Tcp);
    }

    #[test]
    fn what_is_none_is_refused_with_the_form() {
        for bad in ["80", "", ":", "0:80", "80:0", "a:80", "80:70000", "host:80:80", "80:80/icmp"] {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.contains("[IP:]HOST:POD[/tcp|udp|sctp]"), "{bad}: {error}");
        }
    }
}
