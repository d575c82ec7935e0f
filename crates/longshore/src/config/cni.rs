//! What the `[cni]` section and the handlers say of pod networks.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use net::{IpPreference, Limits, NetConfig, SourceConfig};

use super::{Config, ConfigError, Place, absolute, one_of, value};

const DEFAULT_NETNS: &str = "/var/run/netns";

#[derive(Clone, Debug, PartialEq)]
pub struct Cni {
    pub conf_dir: PathBuf,
    pub bin_dirs: Vec<PathBuf>,
    pub max_conf: usize,
    pub template: Option<PathBuf>,
    pub ip_preference: IpPreference,
    pub serial: bool,
    pub call_limit: Duration,
    pub netns_dir: PathBuf,
    /// Directories of their own, by handler.
    pub handlers: BTreeMap<String, PathBuf>,
}

impl Config {
    pub(super) fn check_cni(&self, place: &Place<'_>) -> Result<Cni, ConfigError> {
        let own = self.handlers.iter().filter_map(|(name, handler)| {
            let dir = handler.cni_conf_dir.as_ref()?;
            let key = format!("handlers.{name}.cni_conf_dir");
            Some(absolute(key, dir).map(|dir| (name.clone(), dir)))
        });
        let cni = &self.cni;
        let (conf_dir, template) = (cni.conf_dir.as_ref(), cni.template.as_ref());
        let bin_dirs = cni.bin_dirs.iter().map(|dir| absolute("cni.bin_dirs", dir));
        if cni.call_limit.0.is_zero() {
            return Err(value("cni.call_limit", "no program can end in no time"));
        }
        Ok(Cni {
            conf_dir: place.dir("cni.conf_dir", conf_dir, "/etc/cni/net.d", "cni/net.d")?,
            bin_dirs: bin_dirs.collect::<Result<_, _>>()?,
            max_conf: usize::try_from(cni.max_conf).unwrap_or(usize::MAX),
            template: template.map(|path| absolute("cni.template", path)).transpose()?,
            ip_preference: ip_preference(&cni.ip_preference)?,
            serial: cni.serial,
            call_limit: cni.call_limit.0,
            netns_dir: match &cni.netns_dir {
                Some(dir) => absolute("cni.netns_dir", dir)?,
                None if place.own_state => place.state.join("netns"),
                None => DEFAULT_NETNS.into(),
            },
            handlers: own.collect::<Result<_, _>>()?,
        })
    }
}

impl Cni {
    /// What the CNI client is told; `path` is for the programs that its programs start.
    pub fn client(&self, path: std::ffi::OsString) -> NetConfig {
        let source = |dir: &PathBuf, template: Option<&PathBuf>| SourceConfig {
            conf_dir: dir.clone(),
            max_conf: self.max_conf,
            template: template.cloned(),
        };
        // One network under two names would hand out every address twice.
        let handlers = self.handlers.iter().map(|(name, dir)| (name.clone(), source(dir, None)));
        NetConfig {
            default: source(&self.conf_dir, self.template.as_ref()),
            handlers: handlers.collect(),
            bin_dirs: self.bin_dirs.clone(),
            path,
            ip_preference: self.ip_preference,
            serial: self.serial,
            limits: Limits {
                program: self.call_limit,
                chain: self.call_limit * 2,
                ..Limits::default()
            },
        }
    }
}

fn ip_preference(name: &str) -> Result<IpPreference, ConfigError> {
    match name {
        "ipv4" => Ok(IpPreference::V4),
        "ipv6" => Ok(IpPreference::V6),
        "cni" => Ok(IpPreference::AsAnswered),
        other => Err(one_of("cni.ip_preference", other, "\"ipv4\", \"ipv6\" or \"cni\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(toml: &str) -> Result<Cni, String> {
        let config = toml::from_str::<Config>(toml).unwrap();
        config.check().map(|settings| settings.cni).map_err(|error| error.to_string())
    }

    #[test]
    fn namespaces_lie_where_cni_daemons_look_unless_the_state_is_elsewhere() {
        let netns = |toml: &str| checked(toml).unwrap().netns_dir;
        assert_eq!(netns(""), PathBuf::from("/var/run/netns"));
        assert_eq!(netns("state = '/t/run'"), PathBuf::from("/t/run/netns"));
        assert_eq!(netns("state = '/t/run'\ncni.netns_dir = '/n'"), PathBuf::from("/n"));
    }

    #[test]
    fn handlers_may_have_networks_of_their_own() {
        let toml = "handlers.kata.binary = 'kata'\nhandlers.kata.cni_conf_dir = '/k'\n\
                    handlers.runc.binary = 'runc'\ncni.max_conf = 3\ncni.call_limit = '2s'";
        let client = checked(toml).unwrap().client("/bin".into());
        assert_eq!(client.handlers.keys().collect::<Vec<_>>(), ["kata"]);
        assert_eq!(client.handlers["kata"].conf_dir, PathBuf::from("/k"));
        assert_eq!(client.handlers["kata"].max_conf, 3);
        assert_eq!(client.default.conf_dir, PathBuf::from("/etc/cni/net.d"));
        assert_eq!(client.limits.program, Duration::from_secs(2));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let check = |toml: &str, want: &str| assert_eq!(checked(toml).unwrap_err(), want);
        check("cni.template = 'x'", "cni.template: \"x\" is not an absolute path");
        check(
            "cni.ip_preference = 'v4'",
            "cni.ip_preference: \"v4\" is not \"ipv4\", \"ipv6\" or \"cni\"",
        );
        check("cni.call_limit = '0'", "cni.call_limit: no program can end in no time");
        check(
            "handlers.a.binary = 'a'\nhandlers.a.cni_conf_dir = 'x'",
            "handlers.a.cni_conf_dir: \"x\" is not an absolute path",
        );
    }
}
