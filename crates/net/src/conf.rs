//! What a configuration file says: one network as a chain of programs.
//!
//! ```text
//!   {cniVersion, name, plugins: [{type, capabilities, …}, …]}   a list
//!   {cniVersion, name, type, …}                                 a list of one
//! ```
//! **Invariant:** a [`NetworkList`] that exists has a name CNI takes, a version we speak and
//! at least one program, each named by a bare file name: no configuration can make us run a
//! file outside the directories of programs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::version::{SpecVersion, UnknownVersion};

/// One network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkList {
    pub name: String,
    pub version: SpecVersion,
    pub disable_check: bool,
    pub disable_gc: bool,
    /// In the order of ADD.
    pub plugins: Vec<PluginConf>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginConf {
    /// The file name to look for.
    pub program: String,
    /// What the program wants to be told of a pod.
    pub capabilities: BTreeSet<String>,
    /// The object as written; `name` and `cniVersion` come from the list.
    pub body: Map<String, Value>,
}

/// A file, before the programs that lie beside it are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    pub list: NetworkList,
    /// Further programs are in the directory with the network's name.
    pub open_ended: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{field} has the wrong type: {want} is wanted")]
    Type { field: &'static str, want: &'static str },
    #[error("{0:?} is no name for a network: letters, digits, and inside also . _ -")]
    Name(String),
    #[error("{0:?} is no name for a program")]
    Program(String),
    #[error(transparent)]
    Version(#[from] UnknownVersion),
    #[error("the list of plugins is empty")]
    NoPlugins,
    #[error("plugin {index}")]
    Plugin { index: usize, source: Box<ConfError> },
}

// === impl NetworkList ===

impl NetworkList {
    /// A whole network from one file.
    pub fn parse(json: &[u8]) -> Result<Self, ConfError> {
        Draft::parse(json)?.finish()
    }

    pub fn has_capability(&self, name: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin.capabilities.contains(name))
    }
}

// === impl Draft ===

impl Draft {
    pub fn parse(json: &[u8]) -> Result<Self, ConfError> {
        let mut object = object(json)?;
        let name = text(&object, "name")?.ok_or(ConfError::Missing("name"))?.to_owned();
        if !is_name(&name) {
            return Err(ConfError::Name(name));
        }
        let list = NetworkList {
            name,
            version: version(&object)?,
            disable_check: switch(&object, "disableCheck")?,
            disable_gc: switch(&object, "disableGC")?,
            plugins: Vec::new(),
        };
        let inlined_only = switch(&object, "loadOnlyInlinedPlugins")?;
        match object.remove("plugins") {
            None => {
                let plugins = vec![PluginConf::from_object(object)?];
                Ok(Self { list: NetworkList { plugins, ..list }, open_ended: false })
            }
            Some(Value::Array(items)) => {
                let items = items.into_iter().enumerate();
                let plugins = items.map(|(index, item)| in_list(index, item));
                let plugins = plugins.collect::<Result<_, _>>()?;
                Ok(Self { list: NetworkList { plugins, ..list }, open_ended: !inlined_only })
            }
            Some(_) => Err(ConfError::Type { field: "plugins", want: "a list" }),
        }
    }

    /// A program from a file of its own goes to the end of the chain.
    pub fn push(&mut self, json: &[u8]) -> Result<(), ConfError> {
        self.list.plugins.push(PluginConf::from_object(object(json)?)?);
        Ok(())
    }

    pub fn finish(self) -> Result<NetworkList, ConfError> {
        if self.list.plugins.is_empty() { Err(ConfError::NoPlugins) } else { Ok(self.list) }
    }
}

fn in_list(index: usize, item: Value) -> Result<PluginConf, ConfError> {
    let plugin = match item {
        Value::Object(body) => PluginConf::from_object(body),
        _ => Err(ConfError::Type { field: "plugin", want: "an object" }),
    };
    plugin.map_err(|source| ConfError::Plugin { index, source: source.into() })
}

// === impl PluginConf ===

impl PluginConf {
    fn from_object(body: Map<String, Value>) -> Result<Self, ConfError> {
        let program = text(&body, "type")?.ok_or(ConfError::Missing("type"))?.to_owned();
        if program.is_empty() || program.starts_with('.') || program.contains(['/', '\0']) {
            return Err(ConfError::Program(program));
        }
        let wrong = ConfError::Type { field: "capabilities", want: "an object of booleans" };
        let capabilities = match body.get("capabilities") {
            None | Some(Value::Null) => BTreeSet::new(),
            Some(Value::Object(all)) => {
                if !all.values().all(Value::is_boolean) {
                    return Err(wrong);
                }
                let on = all.iter().filter(|(_, on)| **on == Value::Bool(true));
                on.map(|(name, _)| name.clone()).collect()
            }
            Some(_) => return Err(wrong),
        };
        Ok(Self { program, capabilities, body })
    }
}

/// What CNI allows as the name of a network or a container.
pub(crate) fn is_name(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric) && name.bytes().all(inside)
}

fn object(json: &[u8]) -> Result<Map<String, Value>, ConfError> {
    match serde_json::from_slice(json)? {
        Value::Object(object) => Ok(object),
        _ => Err(ConfError::Type { field: "the file", want: "an object" }),
    }
}

fn text<'a>(
    object: &'a Map<String, Value>,
    field: &'static str,
) -> Result<Option<&'a str>, ConfError> {
    match object.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ConfError::Type { field, want: "text" }),
    }
}

/// Files in the field write these as booleans or as text.
fn switch(object: &Map<String, Value>, field: &'static str) -> Result<bool, ConfError> {
    match object.get(field) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(ConfError::Type { field, want: "true or false" }),
    }
}

/// The newest of those the file offers that we speak.
fn version(object: &Map<String, Value>) -> Result<SpecVersion, ConfError> {
    let mut offered: Vec<&str> = text(object, "cniVersion")?.into_iter().collect();
    let wrong = || ConfError::Type { field: "cniVersions", want: "a list of texts" };
    match object.get("cniVersions") {
        None => {}
        Some(Value::Array(more)) => {
            for version in more {
                offered.push(version.as_str().ok_or_else(wrong)?);
            }
        }
        Some(_) => return Err(wrong()),
    }
    let newest = offered.iter().filter_map(|version| version.parse().ok()).max();
    newest.ok_or_else(|| match offered.first() {
        None => ConfError::Missing("cniVersion"),
        Some(first) => UnknownVersion((*first).to_owned()).into(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(conf: &Value, want: &str) {
        let got = match NetworkList::parse(conf.to_string().as_bytes()) {
            Ok(list) => {
                let programs: Vec<_> = list.plugins.iter().map(|p| p.program.as_str()).collect();
                format!("{} {} {}", list.name, list.version, programs.join(" "))
            }
            Err(error) => base::Chain(&error).to_string(),
        };
        assert_eq!(got, want, "{conf}");
    }

    #[test]
    fn lists_and_single_files() {
        check(
            &json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}),
            "pods 1.0.0 bridge portmap",
        );
        check(&json!({"cniVersion": "0.3.1", "name": "old", "type": "ptp"}), "old 0.3.1 ptp");
    }

    #[test]
    fn the_newest_version_both_know_is_spoken() {
        let conf = |one: &str, more: &[&str]| json!({"cniVersion": one, "cniVersions": more, "name": "n", "type": "t"});
        check(&conf("0.4.0", &["0.4.0", "1.0.0", "1.1.0"]), "n 1.1.0 t");
        check(&conf("1.0.0", &["1.0.0", "2.0.0"]), "n 1.0.0 t");
        check(&conf("0.2.0", &[]), "CNI version \"0.2.0\" is not spoken here: 0.3.0 to 1.1.0 are");
        check(&json!({"name": "n", "type": "t"}), "cniVersion is missing");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |plugins: Value| json!({"cniVersion": "1.0.0", "name": "n", "plugins": plugins});
        check(&json!([]), "the file has the wrong type: an object is wanted");
        check(&json!({"cniVersion": "1.0.0", "type": "t"}), "name is missing");
        check(
            &json!({"cniVersion": "1.0.0", "name": "../x", "type": "t"}),
            "\"../x\" is no name for a network: letters, digits, and inside also . _ -",
        );
        check(&with(json!([])), "the list of plugins is empty");
        check(&with(json!({})), "plugins has the wrong type: a list is wanted");
        check(&with(json!([{"type": "a"}, {}])), "plugin 1: type is missing");
        check(&with(json!(["a"])), "plugin 0: plugin has the wrong type: an object is wanted");
        for bad in ["", "..", "/bin/sh", "a/b", "a\0b"] {
            check(
                &with(json!([{"type": bad}])),
                &format!("plugin 0: {bad:?} is no name for a program"),
            );
        }
        check(
            &with(json!([{"type": "a", "capabilities": {"dns": "yes"}}])),
            "plugin 0: capabilities has the wrong type: an object of booleans is wanted",
        );
    }

    #[test]
    fn half_a_file_is_not_json() {
        let whole = json!({"cniVersion": "1.0.0", "name": "n", "type": "t"}).to_string();
        for end in 0..whole.len() {
            let half = NetworkList::parse(&whole.as_bytes()[..end]);
            assert!(matches!(half, Err(ConfError::Json(_))), "{}", &whole[..end]);
        }
    }

    #[test]
    fn switches_are_booleans_or_text() {
        let list = |value: Value| {
            let conf =
                json!({"cniVersion": "1.0.0", "name": "n", "disableCheck": value, "type": "t"});
            NetworkList::parse(conf.to_string().as_bytes()).map(|list| list.disable_check)
        };
        assert!(list(json!(true)).unwrap() && list(json!("True")).unwrap());
        assert!(!list(json!(false)).unwrap() && !list(json!("false")).unwrap());
        assert!(list(json!(1)).is_err());
    }

    #[test]
    fn only_capabilities_that_are_on_count() {
        let conf = json!({"cniVersion": "1.0.0", "name": "n", "plugins": [
            {"type": "a", "capabilities": {"dns": true, "mac": false}}, {"type": "b"}]});
        let list = NetworkList::parse(conf.to_string().as_bytes()).unwrap();
        assert!(list.has_capability("dns") && !list.has_capability("mac"));
        assert!(list.plugins[1].capabilities.is_empty());
    }

    #[test]
    fn programs_beside_the_file_come_last() {
        let conf = json!({"cniVersion": "1.1.0", "name": "n", "plugins": []}).to_string();
        let mut draft = Draft::parse(conf.as_bytes()).unwrap();
        assert!(draft.open_ended);
        draft.push(br#"{"type": "late"}"#).unwrap();
        assert_eq!(draft.finish().unwrap().plugins[0].program, "late");
        let closed = json!({"cniVersion": "1.1.0", "name": "n", "loadOnlyInlinedPlugins": true, "plugins": []});
        assert!(!Draft::parse(closed.to_string().as_bytes()).unwrap().open_ended);
    }

    proptest! {
        #[test]
        fn no_file_panics(bytes: Vec<u8>) {
            let _ = NetworkList::parse(&bytes);
        }

        #[test]
        fn what_parses_is_stored_and_read_back(
            name in "[a-z0-9][a-z0-9._-]{0,8}",
            version in proptest::sample::select(SpecVersion::ALL.to_vec()),
            programs in proptest::collection::vec("[a-z][a-z0-9-]{0,8}", 1..4),
        ) {
            let plugins: Vec<_> = programs.iter().map(|p| json!({"type": p, "x": [1, null]})).collect();
            let conf = json!({"cniVersion": version.as_str(), "name": name, "plugins": plugins});
            let list = NetworkList::parse(conf.to_string().as_bytes()).unwrap();
            prop_assert_eq!(list.plugins.len(), programs.len());
            let stored = serde_json::to_vec(&list).unwrap();
            prop_assert_eq!(serde_json::from_slice::<NetworkList>(&stored).unwrap(), list);
        }
    }
}
