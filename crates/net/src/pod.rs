//! What a caller says of a pod, and how CNI programs are told.

use std::{collections::BTreeMap, path::PathBuf};

use base::Id;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{conf::PluginConf, error::NetError, ports::PortMapping};

/// A pod to be attached to its networks.
#[derive(Clone, Debug)]
pub struct PodNet {
    pub id: Id,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// Which configuration directory: the handler's own, if it has one.
    pub handler: String,
    /// The file of the network namespace.
    pub netns: PathBuf,
    /// It goes with the last DEL, and until then it stays: whoever made it forgets it.
    pub release: bool,
    pub ports: Vec<PortMapping>,
    pub bandwidth: Bandwidth,
    pub dns: Option<Dns>,
    /// Empty: not told.
    pub cgroup_path: String,
    pub annotations: BTreeMap<String, String>,
}

/// Bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    pub ingress: Option<u64>,
    pub egress: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// No burst was asked for, so none is held back.
const BURST: u64 = u32::MAX as u64;

// === impl PodNet ===

impl PodNet {
    /// `CNI_ARGS`. The names are a convention of the field; programs that do not know one
    /// are told to look away.
    pub(crate) fn cni_args(&self) -> Result<String, NetError> {
        let pairs = [
            ("K8S_POD_NAMESPACE", "pod namespace", self.namespace.as_str()),
            ("K8S_POD_NAME", "pod name", &self.name),
            ("K8S_POD_INFRA_CONTAINER_ID", "pod id", self.id.as_str()),
            ("K8S_POD_UID", "pod uid", &self.uid),
        ];
        let mut args = "IgnoreUnknown=1".to_owned();
        for (key, field, value) in pairs {
            if value.contains([';', '=', '\0']) {
                let why = format!("{value:?} has a character that CNI arguments cannot carry");
                return Err(NetError::Invalid { field, why });
            }
            if !value.is_empty() {
                args.push_str(&format!(";{key}={value}"));
            }
        }
        Ok(args)
    }

    /// Everything a program could want to know, by capability.
    pub(crate) fn capability_args(&self) -> Map<String, Value> {
        let mut all = Map::new();
        if !self.ports.is_empty() {
            all.insert("portMappings".to_owned(), json!(self.ports));
        }
        if self.bandwidth != Bandwidth::default() {
            all.insert("bandwidth".to_owned(), self.bandwidth.as_json());
        }
        if let Some(dns) = &self.dns {
            all.insert("dns".to_owned(), json!(dns));
        }
        if !self.cgroup_path.is_empty() {
            all.insert("cgroupPath".to_owned(), json!(self.cgroup_path));
        }
        if !self.annotations.is_empty() {
            all.insert("io.kubernetes.cri.pod-annotations".to_owned(), json!(self.annotations));
        }
        all
    }
}

/// `runtimeConfig` of one program: of all there is, what it asked for.
pub(crate) fn runtime_config(plugin: &PluginConf, all: &Map<String, Value>) -> Map<String, Value> {
    let wanted = all.iter().filter(|(name, _)| plugin.capabilities.contains(*name));
    wanted.map(|(name, value)| (name.clone(), value.clone())).collect()
}

// === impl Bandwidth ===

impl Bandwidth {
    /// What Kubernetes accepts in a bandwidth annotation, in bits per second.
    const RANGE: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

    /// Reads a rate as Kubernetes writes it: `10M`, `1Gi`, `64000`.
    pub fn parse_rate(text: &str) -> Result<u64, NetError> {
        let wrong =
            |why: &str| NetError::Invalid { field: "bandwidth", why: format!("{text:?} {why}") };
        let number = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let scale: u128 = match &text[number..] {
            "" => 1,
            "k" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "P" => 1_000_000_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return Err(wrong("is no rate: write a number, or one with k, M, G, Ki, Mi, Gi")),
        };
        let rate = scaled(&text[..number], scale).and_then(|rate| u64::try_from(rate).ok());
        let rate = rate.filter(|rate| Self::RANGE.contains(rate));
        rate.ok_or_else(|| wrong("is not between 1k and 1P"))
    }

    fn as_json(self) -> Value {
        let mut all = Map::new();
        let mut tell = |rate: Option<u64>, rate_name: &str, burst_name: &str| {
            if let Some(rate) = rate {
                all.insert(rate_name.to_owned(), rate.into());
                all.insert(burst_name.to_owned(), BURST.into());
            }
        };
        tell(self.ingress, "ingressRate", "ingressBurst");
        tell(self.egress, "egressRate", "egressBurst");
        Value::Object(all)
    }
}

/// `1.5` times a scale, rounded down; `None` for what is no number or too long a one.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 18 || part.len() > 18 || part.contains('.') {
        return None;
    }
    let ten = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let part: u128 = if part.is_empty() { 0 } else { part.parse().ok()? };
    Some(whole.parse::<u128>().ok()? * scale + part * scale / ten)
}

#[cfg(test)]
pub(crate) fn example(id: Id) -> PodNet {
    PodNet {
        id,
        name: "web".into(),
        namespace: "default".into(),
        uid: "u-1".into(),
        handler: String::new(),
        netns: "/run/netns/x".into(),
        release: false,
        ports: Vec::new(),
        bandwidth: Bandwidth::default(),
        dns: None,
        cgroup_path: String::new(),
        annotations: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Protocol;

    #[test]
    fn arguments_name_the_pod() {
        let id = Id::random();
        let want = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;\
             K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID=u-1"
        );
        assert_eq!(example(id).cni_args().unwrap(), want);
        let nameless = PodNet { namespace: String::new(), uid: String::new(), ..example(id) };
        assert!(!nameless.cni_args().unwrap().contains("NAMESPACE"));
    }

    #[test]
    fn arguments_cannot_be_smuggled_in() {
        for name in ["a;K8S_POD_NAME=b", "a=b", "a\0b"] {
            let pod = PodNet { name: name.into(), ..example(Id::random()) };
            let error = pod.cni_args().unwrap_err().to_string();
            assert!(error.starts_with("pod name: "), "{error}");
        }
    }

    #[test]
    fn a_program_is_told_what_it_asked_for() {
        let mut pod = example(Id::random());
        pod.ports = vec![PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: Protocol::Tcp,
            host_ip: Some([127, 0, 0, 1].into()),
        }];
        pod.bandwidth.egress = Some(5_000);
        pod.dns = Some(Dns { servers: vec!["10.0.0.2".into()], ..Dns::default() });
        pod.cgroup_path = "/pods/x".into();
        pod.annotations.insert("a".into(), "b".into());
        let all = pod.capability_args();
        let told = |capabilities: &[&str]| {
            let capabilities = capabilities.iter().map(|name| (*name).to_owned()).collect();
            let plugin = PluginConf { program: "x".into(), capabilities, body: Map::new() };
            Value::Object(runtime_config(&plugin, &all))
        };
        assert_eq!(told(&[]), json!({}));
        assert_eq!(told(&["mac"]), json!({}));
        assert_eq!(
            told(&["portMappings", "bandwidth"]),
            json!({
                "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}],
                "bandwidth": {"egressRate": 5000, "egressBurst": 4_294_967_295_u64},
            }),
        );
        assert_eq!(
            told(&["dns", "cgroupPath", "io.kubernetes.cri.pod-annotations"]),
            json!({
                "dns": {"servers": ["10.0.0.2"], "searches": [], "options": []},
                "cgroupPath": "/pods/x",
                "io.kubernetes.cri.pod-annotations": {"a": "b"},
            }),
        );
    }

    #[test]
    fn rates() {
        let check = |text: &str, want: Option<u64>| {
            assert_eq!(Bandwidth::parse_rate(text).ok(), want, "{text}");
        };
        check("1000", Some(1_000));
        check("10M", Some(10_000_000));
        check("1Gi", Some(1 << 30));
        check("1.5M", Some(1_500_000));
        check("1.", None);
        check("1P", Some(1_000_000_000_000_000));
        for bad in
            ["", "M", "999", "2P", "1.2.3M", ".5M", "-1M", "10MB", "99999999999999999999", "1µ"]
        {
            check(bad, None);
        }
    }
}
